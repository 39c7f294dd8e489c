//! The sink itself: the way to the broker, the window, the chain, and a [`Publisher`] for each call.
//!
//! One channel keeps the order of publishes, so whole keys could travel in a row; but one of them may be
//! refused or come back alone while those behind it are stored. So a key has one message in flight, as
//! with every broker that answers message by message; many keys fill the window.

use super::link::{self, Link};
use super::message::pack;
use super::session::{Registration, Session};
use super::table::{Note, Parcel, Question};
use super::verdict::{self, Answer};
use super::{RabbitmqConfig, examine};
use crate::BuildError;
use crate::call::{Flight, Publisher, Silence};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Publishes to RabbitMQ.
#[derive(Debug)]
pub struct RabbitmqSink {
    config: RabbitmqConfig,
    link: Link,
    chain: Chain,
    window: Semaphore,
}

impl RabbitmqSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &RabbitmqConfig, name: &str) -> Result<Self, BuildError> {
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
impl Sink for RabbitmqSink {
    fn capabilities(&self) -> Capabilities {
        // The broker tells its limit only to those who have passed it.
        let payload_bytes_max = self.link.current().and_then(|session| session.bytes_max());
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // Before the first wait: calls keep the order in which they were begun.
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
                Note::Answer(index, answer) => self.hear(index, answer, flight),
                // Whatever had left has been answered for before: the rest never did.
                Note::Ended(why) => flight.decide_rest(|_, _| verdict::connection_lost(&why).verdict(false)),
            }
        }
        self.notes = notes;
        polled
    }

    fn send(&mut self, flight: &mut Flight<'_>) {
        let mut parcels = Vec::new();
        while let Some(index) = flight.next() {
            match self.pack(&flight.messages()[index], index) {
                Ok(parcel) => {
                    flight.sent(index);
                    parcels.push(parcel);
                }
                Err(verdict) => flight.decide(index, verdict),
            }
        }
        if !parcels.is_empty() {
            self.answers.submit(parcels.into_iter());
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

/// A broker that blocks the connection does not listen, and need not be asked.
async fn is_there(session: &Session, within: Duration) -> bool {
    session.blocked().is_none() && session.ask(Question::Ping, within).await != Err(None)
}

impl Confirms<'_> {
    fn hear(&self, index: usize, answer: Answer, flight: &mut Flight<'_>) {
        if !flight.is_sent(index) {
            return;
        }
        // It was packed, so its destination is one.
        let (exchange, routing_key) =
            self.config.place(&flight.messages()[index].destination).unwrap_or_default();
        flight.decide(index, answer.verdict(exchange, routing_key, self.answers.session().identity()));
    }

    fn pack(&self, message: &Message, index: usize) -> Result<Parcel, Verdict> {
        let place = self.config.place(&message.destination);
        let place = place.map_err(|why| verdict::bad_destination(&message.destination, why))?;
        let session = self.answers.session();
        let parcel = pack(message, index, place, session.terms().frame_max)?;
        match session.bytes_max() {
            Some(max) if parcel.payload.len() > max => {
                Err(verdict::too_large(&format!("{} bytes, and it takes {max}", parcel.payload.len())))
            }
            _ => Ok(parcel),
        }
    }
}
