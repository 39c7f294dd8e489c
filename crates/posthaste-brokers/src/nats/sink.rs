//! The sink itself: the way to the broker, the window, the chain, and a [`Publisher`] for each call.
//!
//! Streams answer message by message, and one message may be refused while those behind it are stored. So a
//! key has one message in flight, and many keys fill the window.

use super::client::link::{self, NatsLink};
use super::client::session::{Note, Registration};
use super::entry::MessageWriter;
use super::{NatsConfig, examine, verdict};
use crate::BuildError;
use crate::call::{Flight, Publisher, Silence};
use async_nats::Client;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Sink as _;
use futures_util::future::BoxFuture;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Publishes to NATS JetStream.
#[derive(Debug)]
pub struct NatsSink {
    config: NatsConfig,
    link: NatsLink,
    chain: Chain,
    window: Semaphore,
}

impl NatsSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &NatsConfig, name: &str) -> Result<Self, BuildError> {
        let servers = config.check()?;
        Ok(Self {
            link: link::start(config.clone(), servers, name),
            chain: Chain::default(),
            window: Semaphore::new(config.options.max_in_flight),
            config: config.clone(),
        })
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn capabilities(&self) -> Capabilities {
        // The server counts headers too, so a payload that is larger than this is refused for certain.
        let session = self.link.current().filter(|session| !session.is_hearsay);
        let payload_bytes_max = session.and_then(|session| session.bytes_max());
        Capabilities { ordering: Ordering::Overlap, dedupes: true, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // This stands before the first wait, so that calls keep the order in which they were begun.
        let flight = Flight::new(messages, self.config.options.delivery_timeout())
            .in_turns(self.chain.enter(messages))
            .in_window(&self.window);
        match self.link.session(flight.connect_wait()).await {
            Ok(session) => flight.run(&mut Acks::new(session.register(messages.len()))).await,
            Err(failure) => flight.refused(failure),
        }
    }

    async fn close(&self) {
        self.link.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.link, destinations).await
    }

    async fn dedup_window(&self, destination: &str) -> Option<Duration> {
        examine::dedup_window(&self.link, destination).await
    }
}

/// The publisher: messages go to the client, acknowledgements come back.
struct Acks {
    client: Client,
    answers: Registration,
    writer: MessageWriter,
    notes: Vec<Note>,
    /// Whether the server is about to stop.
    is_leaving: bool,
}

impl Publisher for Acks {
    type Found = Silence;

    fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()> {
        let mut notes = std::mem::take(&mut self.notes);
        let polled = self.answers.poll_notes(context, &mut notes);
        for note in notes.drain(..) {
            match note {
                Note::Reply(index, answer) => {
                    if flight.is_sent(index) {
                        let message = &flight.messages()[index];
                        flight.decide(index, verdict::answered(answer, || &message.destination));
                    }
                }
                Note::Denied(subject) => self.deny(&subject, flight),
                Note::Leaving => {
                    self.is_leaving = true;
                    flight.stop_sending();
                }
                Note::Ended(why) => self.end(&why, flight),
            }
        }
        self.notes = notes;
        polled
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.answers.session().backlog.poll_room(context).is_pending() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.client).poll_ready(context) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            // The client has ended, and the session says so in a moment.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }

    fn send(&mut self, flight: &mut Flight<'_>) {
        let session = Arc::clone(self.answers.session());
        let (room, mut handed) = (session.backlog.room(), 0);
        while handed < room
            && self.is_ready()
            && let Some(index) = flight.next()
        {
            handed += self.hand_over(index, flight);
        }
        session.backlog.add(handed);
    }

    fn question(&mut self, flight: &Flight<'_>, within: Duration) -> BoxFuture<'static, Silence> {
        let (session, started) = (Arc::clone(self.answers.session()), flight.started());
        Box::pin(async move {
            let answers = session.answers_ping(within).await;
            verdict::timeout(started.elapsed(), answers)
        })
    }

    fn silence(&self, _: usize, _: &Message, is_sent: bool, found: &Silence) -> Verdict {
        // A server that is about to stop is not to blame for what it was not sent.
        if self.is_leaving && !is_sent { Verdict::Held } else { found.verdict(is_sent) }
    }
}

impl Acks {
    fn new(answers: Registration) -> Self {
        let client = answers.session().client.clone();
        let writer = MessageWriter::new(answers.reply());
        Self { client, answers, writer, notes: Vec::new(), is_leaving: false }
    }

    /// Whether the client has room for one more message now.
    fn is_ready(&mut self) -> bool {
        let ready = Pin::new(&mut self.client).poll_ready(&mut Context::from_waker(Waker::noop()));
        matches!(ready, Poll::Ready(Ok(())))
    }

    /// Gives a message to the client, which has room for it. The answer is the size of the message in bytes.
    fn hand_over(&mut self, index: usize, flight: &mut Flight<'_>) -> usize {
        let session = self.answers.session();
        let bytes_max = session.bytes_max().unwrap_or(usize::MAX);
        let written = self.writer.write(&flight.messages()[index], index, bytes_max);
        let (message, bytes) = match written {
            Ok(written) => written,
            Err(verdict) => {
                flight.decide(index, self.doubt(verdict));
                return 0;
            }
        };
        // CRASH: from here on it may have left, also when this call is dropped. A death before the answer
        // leaves a message that the stream may hold: the relay sends it again, under the same id (G2).
        flight.sent(index);
        if let Err(error) = Pin::new(&mut self.client).start_send(message) {
            flight.decide(index, verdict::not_taken(&error));
        }
        bytes
    }

    /// A limit that was said before TLS, or long ago, is no reason for giving an event up. The client does
    /// not hear of a new limit, so a new session asks for it.
    fn doubt(&self, verdict: Verdict) -> Verdict {
        let session = self.answers.session();
        if !verdict::is_too_large(&verdict) || (!session.is_hearsay && session.is_fresh()) {
            return verdict;
        }
        if !session.is_fresh() {
            session.renew();
        }
        verdict::doubted(verdict)
    }

    /// The connection is gone. A server ends it over a message that is larger than it takes. Then that
    /// message is at fault, because it would end the next connection too.
    fn end(&self, why: &str, flight: &mut Flight<'_>) {
        let lost = verdict::connection_lost(why);
        if verdict::is_payload_violation(why) {
            let bytes = |index: &usize| flight.messages()[*index].payload.as_ref().map_or(0, Bytes::len);
            if let Some(largest) = flight.unanswered().max_by_key(bytes) {
                flight.decide(largest, verdict::broke_the_connection(why));
            }
        }
        flight.decide_rest(|_, is_sent| lost.verdict(is_sent));
    }

    /// Decides the messages of a subject that may not be published to. The server names the subject and not
    /// the message.
    fn deny(&self, subject: &str, flight: &mut Flight<'_>) {
        let messages = flight.messages();
        for (index, message) in messages.iter().enumerate() {
            if flight.is_sent(index) && message.destination == subject {
                flight.decide(index, verdict::denied(subject, &self.answers.session().identity));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nats::client::session::tests::session;
    use crate::testing::{message, seen};
    use posthaste::event::Event;
    use posthaste::sink::Scope;

    #[tokio::test]
    async fn a_limit_that_was_said_long_ago_rejects_nothing() {
        let session = session().await;
        let acks = Acks::new(session.register(1));
        let rejected = verdict::too_large(2, 1);
        assert_eq!(acks.doubt(rejected.clone()), rejected, "the server has just said so");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(seen(&acks.doubt(rejected)).0, "retry");
        let other = verdict::bad_subject("", "is empty");
        assert_eq!(acks.doubt(other.clone()), other);
    }

    #[tokio::test]
    async fn the_message_over_which_the_server_hangs_up_is_to_blame() {
        let acks = Acks::new(session().await.register(2));
        let messages = ["small", "much larger"].map(|text| message("s", Event::new("t", text)));
        let mut flight = Flight::new(&messages, Duration::from_secs(8));
        (0..2).for_each(|index| flight.sent(index));
        acks.end("the connection was lost; its last words: Maximum Payload Violation", &mut flight);
        let verdicts = flight.run(&mut Acks::new(acks.answers.session().register(0))).await;
        let scopes: Vec<_> = verdicts.iter().map(|verdict| seen(verdict).2).collect();
        assert_eq!(scopes, [Scope::Sink, Scope::Event]);
    }

    #[tokio::test]
    async fn what_a_leaving_server_was_not_sent_is_held() {
        let mut acks = Acks::new(session().await.register(1));
        acks.is_leaving = true;
        let (message, silent) = (message("s", Event::new("t", "")), verdict::timeout(Duration::ZERO, false));
        assert_eq!(acks.silence(0, &message, false, &silent), Verdict::Held);
        assert_eq!(seen(&acks.silence(0, &message, true, &silent)).0, "unknown");
    }
}
