//! The source itself. It waits for what the subscriptions do.

use super::shelf::Shelves;
use super::subscription::QueueDialler;
use crate::link::Link;
use crate::lock::locked;
use crate::rabbitmq::RabbitmqConfig;
use crate::rabbitmq::client::SHORT_MAX;
use crate::{BuildError, GroupMember};
use async_trait::async_trait;
use posthaste::consumer::Order;
use posthaste::sink::Scope;
use posthaste::source::{
    AckScope, Batch, Capabilities, Drained, Limit, NackOrder, Partition, PartitionView, SeekTo, Source,
    SourceError, Standing, Ticket,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Most messages that the broker sends ahead of their acknowledgement, whatever may be in hand: it counts no
/// bytes, and a thousand hide the way to the broker and the pauses between two acknowledgements.
const PREFETCH_MAX: usize = 1_000;

/// A member that reads queues. Dropping it without a drain cuts its connections: what was in hand comes again
/// elsewhere.
pub struct RabbitmqSource {
    member: Arc<QueueMember>,
    links: Vec<Link<()>>,
}

/// What the source and its subscriptions share.
pub(super) struct QueueMember {
    pub(super) plan: GroupMember,
    shelves: Mutex<Shelves>,
    /// Something happened that `next` may wait for, and `drain`. One each: either would take the other's.
    stirred: Notify,
    ended: Notify,
    /// Somebody calls `next`, after a silence that was too long.
    called: Notify,
    /// Acknowledgements are to be written, by queue.
    pub(super) acked: Vec<Notify>,
    /// The defect that a test shows to be one, and how many queues have it behind them.
    cancels: AtomicBool,
    cancelled: AtomicUsize,
}

impl std::fmt::Debug for RabbitmqSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitmqSource").field("queues", &self.member.plan.topics).finish_non_exhaustive()
    }
}

impl RabbitmqSource {
    /// Checks the configuration and begins to subscribe. A broker that is down is no error, nor is a queue
    /// that does not exist yet. Needs a runtime to be called in.
    pub fn start(config: &RabbitmqConfig, plan: &GroupMember) -> Result<Self, BuildError> {
        let servers = config.check()?;
        plan.check()?;
        if plan.topics.iter().any(|topic| topic.is_empty() || topic.len() > SHORT_MAX) {
            return Err(BuildError::option("topics", "a queue's name has 1 to 255 bytes"));
        }
        let nack_order = if plan.order == Order::None { NackOrder::Overtaken } else { NackOrder::Kept };
        let member = Arc::new(QueueMember {
            plan: plan.clone(),
            shelves: Mutex::new(Shelves::new(&plan.topics, nack_order, plan.in_hand_max)),
            stirred: Notify::new(),
            ended: Notify::new(),
            called: Notify::new(),
            acked: plan.topics.iter().map(|_| Notify::new()).collect(),
            cancels: AtomicBool::new(false),
            cancelled: AtomicUsize::new(0),
        });
        let link = |index: usize| {
            let (member, config, servers) = (Arc::clone(&member), config.clone(), servers.clone());
            let name = member.name().into();
            Link::start("rabbitmq", Scope::Sink, name, QueueDialler { member, index, config, servers })
        };
        let links = (0..plan.topics.len()).map(link).collect();
        Ok(Self { member, links })
    }

    /// Dies as a process does: its connections are gone, and nothing is settled any more. For tests.
    #[doc(hidden)]
    pub async fn freeze(&self) {
        for link in &self.links {
            link.close().await;
        }
    }

    /// Says `basic.cancel` at the beginning of a drain, as consumers are used to. It breaks the order of
    /// keys, and a test shows that. For that test.
    #[doc(hidden)]
    pub fn cancel_at_drain(&self) {
        self.member.cancels.store(true, Ordering::SeqCst);
    }
}

impl QueueMember {
    pub(super) fn shelves(&self) -> MutexGuard<'_, Shelves> {
        locked(&self.shelves)
    }

    /// What the broker shows of this member.
    pub(super) fn name(&self) -> String {
        let GroupMember { group, member, .. } = &self.plan;
        let name = member.as_ref().map_or_else(|| group.clone(), |member| format!("{group} {member}"));
        // Each connection has one subscription, so the name need not be the only one of its kind.
        name.chars().take(SHORT_MAX / 4).collect()
    }

    pub(super) fn prefetch(&self) -> u16 {
        u16::try_from(self.plan.in_hand_max.min(PREFETCH_MAX)).unwrap_or(u16::MAX)
    }

    /// Wakes whoever waits for something to happen.
    pub(super) fn stir(&self) {
        self.stirred.notify_one();
        self.ended.notify_one();
    }

    /// Whether the consumer has not called for too long. One that is being drained calls no more.
    pub(super) fn is_stalled(&self) -> bool {
        let shelves = self.shelves();
        !shelves.is_closing && shelves.last_call.elapsed() > self.plan.stall_limit
    }

    /// Waits while the consumer hangs.
    pub(super) async fn until_called(&self) {
        while self.is_stalled() {
            self.called.notified().await;
        }
    }

    pub(super) fn cancels(&self) -> bool {
        self.cancels.load(Ordering::SeqCst) && self.shelves().is_closing
    }

    pub(super) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        self.stir();
    }

    /// Whether everything is cancelled that a test wanted to be.
    fn is_sabotaged(&self) -> bool {
        let queues = self.shelves().views().len();
        !self.cancels() || self.cancelled.load(Ordering::SeqCst) >= queues
    }
}

#[async_trait]
impl Source for RabbitmqSource {
    fn capabilities(&self) -> Capabilities {
        let keeps_order = self.member.plan.order != Order::None;
        Capabilities {
            ack_scope: AckScope::Each,
            nack_order: if keeps_order { NackOrder::Kept } else { NackOrder::Overtaken },
            orders_keys: keeps_order,
            counts_redeliveries: true,
            seeks: false,
            stall_limit: self.member.plan.stall_limit,
        }
    }

    async fn next(&self, limit: Limit, wait: Duration) -> Result<Batch, SourceError> {
        let until = Instant::now() + wait;
        loop {
            let due = {
                let mut shelves = self.member.shelves();
                if shelves.is_closing {
                    return Err(SourceError::Closed);
                }
                let was_stalled = shelves.last_call.elapsed() > self.member.plan.stall_limit;
                shelves.last_call = Instant::now();
                if was_stalled {
                    self.member.called.notify_waiters();
                }
                let batch = shelves.take(limit);
                if !batch.is_empty() {
                    return Ok(batch);
                }
                // One that needs an operator stays.
                match shelves.fault.take() {
                    Some(fault @ SourceError::Fatal(_)) => {
                        shelves.fault = Some(fault.clone());
                        return Err(fault);
                    }
                    Some(fault) => return Err(fault),
                    None => {}
                }
                shelves.next_due()
            };
            if Instant::now() >= until {
                return Ok(Batch::default());
            }
            let sleep = due.filter(|_| limit.events > 0).map_or(until, |due| due.min(until));
            tokio::select! {
                () = self.member.stirred.notified() => {}
                () = tokio::time::sleep_until(sleep.into()) => {}
            }
        }
    }

    async fn ack(&self, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError> {
        let (mut standings, waits) = self.member.shelves().ack(tickets);
        self.member.acked.iter().for_each(Notify::notify_one);
        for (partition, written) in waits {
            if written.await.is_err() {
                // The connection was lost before the broker had them: they come again.
                let lost =
                    tickets.iter().zip(&mut standings).filter(|(ticket, _)| ticket.partition == partition);
                lost.for_each(|(_, standing)| *standing = Standing::Revoked);
            }
        }
        Ok(standings)
    }

    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError> {
        let standing = self.member.shelves().nack(ticket, Instant::now() + delay);
        self.member.stir();
        Ok(standing)
    }

    async fn pause(&self, partition: &Partition) -> Result<(), SourceError> {
        self.member.shelves().pause(partition, true)
    }

    async fn resume(&self, partition: &Partition) -> Result<(), SourceError> {
        self.member.shelves().pause(partition, false)?;
        self.member.stir();
        Ok(())
    }

    async fn seek(&self, partition: &Partition, to: SeekTo) -> Result<i64, SourceError> {
        if to != SeekTo::Earliest {
            return Err(SourceError::Unsupported("seek"));
        }
        let epoch = self.member.shelves().again(partition)?;
        self.member.stir();
        Ok(epoch)
    }

    async fn view(&self) -> Result<Vec<PartitionView>, SourceError> {
        Ok(self.member.shelves().views())
    }

    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError> {
        let deadline = Instant::now() + wait;
        self.member.shelves().is_closing = true;
        self.member.stir();
        let emptied = async {
            while self.member.shelves().unsettled() != (0, 0) {
                self.member.ended.notified().await;
            }
        };
        // What is not settled by then is given up. Nothing is cancelled: see `wire`.
        let _ = tokio::time::timeout_at(deadline.into(), emptied).await;
        while !self.member.is_sabotaged() {
            self.member.ended.notified().await;
        }
        let (abandoned, _) = self.member.shelves().unsettled();
        for link in &self.links {
            link.close().await;
        }
        Ok(Drained { abandoned })
    }
}
