//! The source itself. It waits for what the readers of the queues do.

use super::shelf::Shelves;
use crate::GroupMember;
use crate::lock::locked;
use async_trait::async_trait;
use posthaste::consumer::Order;
use posthaste::source::{
    AckScope, Batch, Capabilities, Drained, Limit, NackOrder, Partition, PartitionView, SeekTo, Source,
    SourceError, Standing, Ticket,
};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Most messages that a broker sends ahead of their acknowledgement, whatever may be in hand: it counts no
/// bytes, and a thousand hide the way to the broker and the pauses between two acknowledgements.
const AHEAD_MAX: usize = 1_000;

/// What reads the queues of a member, and writes its acknowledgements.
#[async_trait]
pub trait ReadQueues: Send + Sync + 'static {
    /// Ends for good, in order: whatever is still in hand goes to others.
    async fn leave(&self);

    /// Ends as a process does that dies.
    async fn cut(&self);
}

/// A member that reads queues. Dropping it without a drain cuts its connections: what was in hand comes again
/// elsewhere.
pub struct QueueSource<R> {
    member: Arc<QueueMember>,
    readers: R,
}

/// What the source and the readers of its queues share.
#[derive(Debug)]
pub(crate) struct QueueMember {
    pub(crate) plan: GroupMember,
    shelves: Mutex<Shelves>,
    /// Something happened that `next` may wait for, and `drain`. One each: either would take the other's.
    stirred: Notify,
    ended: Notify,
    /// Somebody calls `next`, after a silence that was too long.
    called: Notify,
    /// Acknowledgements are to be written, by queue.
    pub(crate) acked: Vec<Notify>,
}

impl<R> std::fmt::Debug for QueueSource<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueSource").field("queues", &self.member.plan.topics).finish_non_exhaustive()
    }
}

impl<R: ReadQueues> QueueSource<R> {
    pub(crate) fn new(member: Arc<QueueMember>, readers: R) -> Self {
        Self { member, readers }
    }

    pub(crate) fn readers(&self) -> &R {
        &self.readers
    }

    /// Dies as a process does: its connections are gone, and nothing is settled any more. For tests.
    #[doc(hidden)]
    pub async fn freeze(&self) {
        self.readers.cut().await;
    }
}

fn nack_order(order: Order) -> NackOrder {
    if order == Order::None { NackOrder::Overtaken } else { NackOrder::Kept }
}

impl QueueMember {
    pub(crate) fn new(plan: &GroupMember) -> Self {
        let shelves = Shelves::new(&plan.topics, nack_order(plan.order), plan.in_hand_max);
        Self {
            plan: plan.clone(),
            shelves: Mutex::new(shelves),
            stirred: Notify::new(),
            ended: Notify::new(),
            called: Notify::new(),
            acked: plan.topics.iter().map(|_| Notify::new()).collect(),
        }
    }

    pub(crate) fn shelves(&self) -> MutexGuard<'_, Shelves> {
        locked(&self.shelves)
    }

    /// Most messages that a broker may send ahead of their acknowledgement.
    pub(crate) fn ahead_max(&self) -> usize {
        self.plan.in_hand_max.min(AHEAD_MAX)
    }

    /// Wakes whoever waits for something to happen.
    pub(crate) fn stir(&self) {
        self.stirred.notify_one();
        self.ended.notify_one();
    }

    /// Waits until something has happened. Only a drain calls it.
    pub(crate) async fn stirred(&self) {
        self.ended.notified().await;
    }

    /// What `next` is to say when it has nothing better.
    pub(crate) fn tell(&self, fault: SourceError) {
        self.shelves().fault = Some(fault);
        self.stir();
    }

    /// Whether the consumer has not called for too long. One that is being drained calls no more.
    pub(crate) fn is_stalled(&self) -> bool {
        let shelves = self.shelves();
        !shelves.is_closing && shelves.last_call.elapsed() > self.plan.stall_limit
    }

    /// Waits while the consumer hangs.
    pub(crate) async fn until_called(&self) {
        loop {
            // A call between the look and the wait is heard, too.
            let called = self.called.notified();
            if !self.is_stalled() {
                return;
            }
            called.await;
        }
    }
}

#[async_trait]
impl<R: ReadQueues> Source for QueueSource<R> {
    fn capabilities(&self) -> Capabilities {
        let keeps_order = self.member.plan.order != Order::None;
        Capabilities {
            ack_scope: AckScope::Each,
            nack_order: nack_order(self.member.plan.order),
            orders_keys: keeps_order,
            counts_redeliveries: true,
            seeks: false,
            stall_limit: self.member.plan.stall_limit,
            ahead_max: Some(self.member.ahead_max()),
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
        // What is not settled by then is given up.
        let _ = tokio::time::timeout_at(deadline.into(), emptied).await;
        let (abandoned, _) = self.member.shelves().unsettled();
        self.readers.leave().await;
        Ok(Drained { abandoned, lost: self.member.shelves().untold_losses() })
    }
}
