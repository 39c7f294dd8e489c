//! One queue, read over a connection of its own: looked at, subscribed to, and kept until it ends.
//!
//! The [`Link`](crate::link) dials again. Here is what happens in between: deliveries go to the shelf,
//! acknowledgements go to the channel that the deliveries came by, and a consumer that hangs loses the queue.
//! When it ends, for whatever reason, the shelf forgets first and the connection is cut then: no ticket of it
//! settles anything any more.

use super::declared;
use super::member::{Cancelling, name_of};
use super::message;
use super::refusal::{self, Refusal};
use super::wire::{self, Wire};
use crate::link::{Dial, Ended, Port};
use crate::queue::{Acks, QueueMember};
use crate::rabbitmq::RabbitmqConfig;
use crate::rabbitmq::client::Server;
use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use posthaste::sink::Failure;
use posthaste::source::SourceError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// For all questions before the first delivery.
const SUBSCRIBE_WAIT: Duration = Duration::from_secs(10);
/// For the answer that says that acknowledgements arrived.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// Between two looks whether the consumer still calls.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reads one queue of a member.
pub(super) struct QueueDialler {
    pub(super) member: Arc<QueueMember>,
    pub(super) index: usize,
    pub(super) config: RabbitmqConfig,
    pub(super) servers: Vec<Server>,
    pub(super) cancelling: Arc<Cancelling>,
}

/// A subscription. The connection is cut before lapin's handles go, or they would cancel.
struct Subscription {
    wire: Wire,
    channel: Channel,
    consumer: Consumer,
}

#[async_trait]
impl Dial for QueueDialler {
    type Server = Server;
    type Session = ();

    fn servers(&self) -> &[Server] {
        &self.servers
    }

    async fn live_through(&self, server: &Server, port: &Port<()>) -> Ended {
        // A consumer that hung may come back.
        if port.unless_closed(self.member.until_called()).await.is_none() {
            return Ended::NeverBegan(port.closed());
        }
        let opened = match port.unless_closed(wire::open(server, &self.config, port.sink())).await {
            Some(Ok(wire)) => port.unless_closed(timeout(SUBSCRIBE_WAIT, self.subscribe(wire))).await,
            Some(Err(failure)) => return self.never_began(Refusal { failure, is_final: false }),
            None => return Ended::NeverBegan(port.closed()),
        };
        let subscription = match opened {
            Some(Ok(Ok(subscription))) => subscription,
            Some(Ok(Err(refusal))) => return self.never_began(refusal),
            Some(Err(_)) => {
                let text = format!("{server}: no answer within {} s", SUBSCRIBE_WAIT.as_secs());
                let failure = Failure::of_sink("rabbitmq.unreachable", text);
                return self.never_began(Refusal { failure, is_final: false });
            }
            None => return Ended::NeverBegan(port.closed()),
        };
        let version = &subscription.wire.version;
        tracing::info!(source = port.sink(), server = %server, version, queue = self.queue(), "subscribed");
        port.up(&Arc::new(()));
        self.member.shelves().assign(self.index);
        self.member.stir();
        let mut subscription = subscription;
        let ended = port.unless_closed(self.serve(&mut subscription)).await;
        self.member.shelves().revoke(self.index);
        self.member.stir();
        drop(subscription);
        Ended::Lost(ended.unwrap_or_else(|| port.closed()))
    }
}

impl QueueDialler {
    fn queue(&self) -> &str {
        &self.member.plan.topics[self.index]
    }

    fn prefetch(&self) -> u16 {
        u16::try_from(self.member.ahead_max()).unwrap_or(u16::MAX)
    }

    /// A queue that is not there yet is waited for; everything else is told to whoever calls.
    fn never_began(&self, refusal: Refusal) -> Ended {
        let Refusal { failure, is_final } = refusal;
        let text = failure.message.to_string();
        if is_final || failure.code != "rabbitmq.no_queue" {
            let fault = if is_final { SourceError::Fatal(text) } else { SourceError::Transient(text) };
            self.member.tell(fault);
        }
        Ended::NeverBegan(failure)
    }

    async fn subscribe(&self, wire: Wire) -> Result<Subscription, Refusal> {
        let (queue, order) = (self.queue(), self.member.plan.order);
        let found = declared::look(&wire.connection, queue, order).await?;
        found.check(queue, &wire.version, order, self.config.quorum_queues)?;
        let told = |error: lapin::Error| refusal::of(&error, queue);
        let channel = wire.connection.create_channel().await.map_err(told)?;
        channel.basic_qos(self.prefetch(), BasicQosOptions::default()).await.map_err(told)?;
        let (tag, options) = (name_of(&self.member.plan), BasicConsumeOptions::default());
        let consumer = channel.basic_consume(queue.into(), tag.into(), options, FieldTable::default()).await;
        Ok(Subscription { consumer: consumer.map_err(told)?, wire, channel })
    }

    /// Deliveries in, acknowledgements out, until the connection ends or the consumer hangs.
    async fn serve(&self, subscription: &mut Subscription) -> Failure {
        let lost = |text: String| Failure::of_sink("rabbitmq.connection_lost", text);
        let queue = self.queue();
        let mut look = tokio::time::interval(LOOK_EVERY);
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                delivered = subscription.consumer.next() => match delivered {
                    Some(Ok(delivered)) => {
                        let number = i64::try_from(delivered.delivery_tag).unwrap_or(i64::MAX);
                        let delivery = |ticket| message::delivery(delivered, ticket);
                        self.member.shelves().put(self.index, number, delivery);
                        self.member.stir();
                    }
                    Some(Err(error)) => return refusal::of(&error, queue).failure,
                    // A test asked for it.
                    None if is_cancelled => drop(look.tick().await),
                    None => {
                        let why = "the broker ended the subscription: the queue was deleted, or moved";
                        return lost(format!("queue {queue:?}: {why}"));
                    }
                },
                () = self.member.acked[self.index].notified() => {
                    let (acks, before) = self.member.shelves().take_acks(self.index);
                    if let Err(error) = self.write(&subscription.channel, acks, before).await {
                        return lost(format!("queue {queue:?}: acknowledgements did not arrive: {error}"));
                    }
                    self.member.shelves().acks_are_written(self.index);
                    self.member.stir();
                }
                _ = look.tick() => {
                    if self.member.is_stalled() {
                        return lost(format!("queue {queue:?}: the consumer has stopped calling"));
                    }
                    if self.cancelling.is_due(&self.member) && !is_cancelled {
                        is_cancelled = true;
                        let tag = subscription.consumer.tag();
                        let _ = subscription.channel.basic_cancel(tag, BasicCancelOptions::default()).await;
                        self.cancelling.done(&self.member);
                    }
                }
            }
        }
    }

    /// Writes acknowledgements, and waits until the broker has them: AMQP does not answer one, but answers
    /// the next question only after it.
    async fn write(&self, channel: &Channel, acks: Vec<Acks>, before: u64) -> Result<(), String> {
        let tags = || acks.iter().flat_map(|acks| acks.tags.iter().copied());
        let told = |error: lapin::Error| error.to_string();
        if let Some(last) = tags().filter(|tag| *tag <= before).max() {
            let all = BasicAckOptions { multiple: true };
            channel.basic_ack(last, all).await.map_err(told)?;
        }
        for tag in tags().filter(|tag| *tag > before) {
            channel.basic_ack(tag, BasicAckOptions::default()).await.map_err(told)?;
        }
        // After a death here the handler's transaction has committed, and the broker may not have heard of
        // it. It delivers again, and the mark says that it is done (G5).
        let asked = channel.basic_qos(self.prefetch(), BasicQosOptions::default());
        match timeout(ACK_WAIT, asked).await {
            Ok(answer) => answer.map_err(told)?,
            Err(_) => return Err(format!("no answer within {} s", ACK_WAIT.as_secs())),
        }
        for acks in acks {
            let _ = acks.written.send(());
        }
        Ok(())
    }
}
