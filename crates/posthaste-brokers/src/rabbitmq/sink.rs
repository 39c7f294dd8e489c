//! The sink itself: the way to the broker, the window, the chain, and a [`Publisher`] for each call.
//!
//! One channel keeps the order of publishes, so the messages of a key could travel in a row. But one of them
//! may be refused or come back alone, while those behind it are stored. So a key has one message in flight,
//! as with every broker that answers message by message. Many keys fill the window.

use super::client::{
    self, ConnectOptions, Note, Publish, PublishOutcome, Question, Registration, Server, Session,
};
use super::{RabbitmqConfig, entry, examine, verdict};
use crate::BuildError;
use crate::call::{Flight, Publisher, Silence};
use crate::link::{Dial, Ended, Port};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Scope, Sink, Verdict};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;

/// The way to the broker.
pub(super) type RabbitmqLink = crate::link::Link<Session>;

/// Publishes to RabbitMQ.
#[derive(Debug)]
pub struct RabbitmqSink {
    config: RabbitmqConfig,
    link: RabbitmqLink,
    chain: Chain,
    window: Semaphore,
}

impl RabbitmqSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &RabbitmqConfig, name: &str) -> Result<Self, BuildError> {
        let servers = config.check()?;
        Ok(Self {
            link: RabbitmqLink::start(
                "rabbitmq",
                Scope::Sink,
                name.into(),
                RabbitmqDialler { config: config.clone(), servers },
            ),
            chain: Chain::default(),
            window: Semaphore::new(config.options.max_in_flight),
            config: config.clone(),
        })
    }
}

#[async_trait]
impl Sink for RabbitmqSink {
    fn capabilities(&self) -> Capabilities {
        // The broker tells its limit only when a message was larger.
        let payload_bytes_max = self.link.current().and_then(|session| session.bytes_max());
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // This stands before the first wait, so that calls keep the order in which they were begun.
        let flight = Flight::new(messages, self.config.options.delivery_timeout())
            .in_turns(self.chain.enter(messages))
            .in_window(&self.window);
        match self.link.session(flight.connect_wait()).await {
            Ok(session) => {
                let answers = session.register();
                flight.run(&mut Confirms { config: &self.config, answers, notes: Vec::new() }).await
            }
            Err(failure) => flight.refused(failure),
        }
    }

    async fn close(&self) {
        self.link.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.link, destinations).await
    }
}

/// Dials for the link.
struct RabbitmqDialler {
    config: RabbitmqConfig,
    servers: Vec<Server>,
}

#[async_trait]
impl Dial for RabbitmqDialler {
    type Server = Server;
    type Session = Session;

    fn servers(&self) -> &[Server] {
        &self.servers
    }

    async fn live_through(&self, server: &Server, port: &Port<Session>) -> Ended {
        let name = format!("posthaste {}", port.sink());
        let client = ConnectOptions {
            options: &self.config.options,
            heartbeat_secs: self.config.heartbeat_secs,
            name: &name,
        };
        let mut connection = match port.unless_closed(client::connect(server, client)).await {
            Some(Ok(connection)) => connection,
            Some(Err(failure)) => return Ended::NeverBegan(failure),
            None => return Ended::NeverBegan(port.closed()),
        };
        let version = &connection.session().terms().product.version;
        tracing::info!(sink = port.sink(), server = %server, version, "connected");
        port.up(connection.session());
        let served = port.unless_closed(connection.serve()).await;
        let failure = match served {
            Some(failure) => failure,
            None => {
                let closed = port.closed();
                connection.close(&closed.message).await;
                closed
            }
        };
        Ended::Lost(failure)
    }
}

/// The publisher: messages go to the session, confirmations come back.
struct Confirms<'a> {
    config: &'a RabbitmqConfig,
    answers: Registration,
    notes: Vec<Note>,
}

impl Publisher for Confirms<'_> {
    type Found = Silence;

    fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()> {
        let mut notes = std::mem::take(&mut self.notes);
        let polled = self.answers.poll_notes(context, &mut notes);
        for note in notes.drain(..) {
            match note {
                Note::Outcome(index, answer) => self.hear(index, answer, flight),
                // The outcome of every message that had left was told before. The rest never left.
                Note::Ended(why) => flight.decide_rest(|_, _| verdict::connection_lost(&why).verdict(false)),
            }
        }
        self.notes = notes;
        polled
    }

    fn send(&mut self, flight: &mut Flight<'_>) {
        let mut messages = Vec::new();
        while let Some(index) = flight.next() {
            match self.encode(&flight.messages()[index], index) {
                Ok(message) => {
                    flight.sent(index);
                    messages.push(message);
                }
                Err(verdict) => flight.decide(index, verdict),
            }
        }
        if !messages.is_empty() {
            self.answers.submit(messages.into_iter());
        }
    }

    fn stop(&mut self, flight: &mut Flight<'_>) {
        for index in self.withdraw() {
            flight.unsent(index);
        }
    }

    fn question(&mut self, flight: &Flight<'_>, within: Duration) -> BoxFuture<'static, Silence> {
        let (session, started) = (Arc::clone(self.answers.session()), flight.started());
        Box::pin(async move {
            let answers = is_there(&session, within).await;
            verdict::timeout(started.elapsed(), answers, session.blocked())
        })
    }

    fn withdraw(&mut self) -> Vec<usize> {
        self.answers.withdraw()
    }

    fn silence(&self, _: usize, _: &Message, is_sent: bool, found: &Silence) -> Verdict {
        found.verdict(is_sent)
    }
}

/// Whether the broker is there. One that blocks the connection does not listen, and need not be asked.
async fn is_there(session: &Session, within: Duration) -> bool {
    session.blocked().is_none() && session.ask(Question::Ping, within).await != Err(None)
}

impl Confirms<'_> {
    fn hear(&self, index: usize, answer: PublishOutcome, flight: &mut Flight<'_>) {
        if !flight.is_sent(index) {
            return;
        }
        // The message was sent, so its destination is good.
        let (exchange, routing_key) =
            self.config.place(&flight.messages()[index].destination).unwrap_or_default();
        let identity = self.answers.session().identity();
        flight.decide(index, verdict::of(answer, exchange, routing_key, identity));
    }

    fn encode(&self, message: &Message, index: usize) -> Result<Publish, Verdict> {
        let place = self.config.place(&message.destination);
        let place = place.map_err(|why| verdict::bad_destination(&message.destination, why))?;
        let session = self.answers.session();
        let publish = entry::encode(message, index, place, session.terms().frame_max)?;
        match session.bytes_max() {
            Some(max) if publish.payload.len() > max => {
                Err(verdict::too_large(&format!("{} bytes, and it takes {max}", publish.payload.len())))
            }
            _ => Ok(publish),
        }
    }
}
