//! One durable consumer, read over one session until that ends.

use super::durable;
use crate::nats::client::session::Session;
use crate::nats::client::streams::{StreamInfo, ended, refused};
use crate::nats::source::log::context;
use crate::nats::source::record;
use crate::queue::{Acks, HeldMessages, LeavingSign, QueueMember, QueueReading, ReadingEnd, of};
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::message::Message;
use async_nats::{Subject, Subscriber};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use posthaste::source::{Delivery, SourceError};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval_at, timeout};

/// How long the server keeps a question open. When nothing came it says so: that is its sign of life.
const EXPIRES: Duration = Duration::from_secs(5);
/// After so much silence while something is asked for, the reading begins anew.
const SILENCE: Duration = Duration::from_secs(15);
/// Between two looks whether the consumer still calls.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two looks at the durable consumer: somebody may change or delete it.
const EXAMINE_EVERY: Duration = Duration::from_secs(5);
/// For the answers to all acknowledgements of one call, and how many are asked for at once.
const ACK_WAIT: Duration = Duration::from_secs(10);
const ACKS_AT_ONCE: usize = 512;
/// For what the server has sent before it hears that no more is wanted, and for writing what is given back.
const LAST_WAIT: Duration = Duration::from_secs(2);
/// Messages that are taken before anybody is woken.
const PAGE: usize = 256;
/// About how many bytes may be on the way. A question cannot be bounded by bytes: a larger message would
/// never come. So the number goes by the stream's average.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_MIN: usize = 16;
/// After an answer that is none, before the next question.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A durable consumer at work.
pub(super) struct PullReading {
    member: Arc<QueueMember>,
    index: usize,
    session: Arc<Session>,
    subscriber: Subscriber,
    /// Where messages come to.
    inbox: String,
    durable: Info,
    /// An average message: of the stream, and then of what came last.
    average: u64,
    held: HeldMessages<u64, Subject>,
    /// Messages that were asked for and have not come.
    asked: usize,
    /// Nothing is asked for before this time.
    ask_at: Instant,
    /// When the server last said something.
    heard_at: Instant,
    /// When the consumer is looked at again.
    examine_at: Instant,
    has_stopped: bool,
    /// The client reads a message's numbers by this.
    envelope: Option<Message>,
}

type AcksWritten = BoxFuture<'static, Result<Vec<Acks>, String>>;
type Examined = BoxFuture<'static, Result<Option<Info>, SourceError>>;

#[async_trait]
impl QueueReading for PullReading {
    async fn serve(&mut self, leaving: &mut LeavingSign) -> ReadingEnd {
        let session = Arc::clone(&self.session);
        let (member, index) = (Arc::clone(&self.member), self.index);
        let mut gone = pin!(ended(&session));
        let subjects = [format!("$JS.ACK.{}.{}.", self.stream(), self.group()), self.ask_subject()];
        let mut refused = pin!(refused(&session, &subjects));
        let mut look = tokio::time::interval(LOOK_EVERY);
        let mut third = durable::ack_wait(&self.durable.config) / 3;
        let mut progress = interval_at(Instant::now() + third, third);
        let (mut writing, mut examining): (Option<AcksWritten>, Option<Examined>) = (None, None);
        loop {
            if let Err(why) = self.ask().await {
                return ReadingEnd::Lost(why);
            }
            tokio::select! {
                why = &mut gone => return ReadingEnd::Lost(self.lost(&why)),
                subject = &mut refused => return self.denied(&subject),
                message = self.subscriber.next(), if !self.has_stopped => {
                    let Some(message) = message else {
                        return ReadingEnd::Lost(self.lost(&"the subscription ended"));
                    };
                    self.take(message);
                }
                () = member.acked[index].notified(), if writing.is_none() => writing = Some(self.write()),
                written = of(&mut writing) => match written {
                    Ok(acks) => {
                        // After a death here the handler's transaction has committed, and the server knows.
                        for acks in acks {
                            let _ = acks.written.send(());
                        }
                        member.shelves().acks_are_written(index);
                        member.stir();
                    }
                    Err(why) => {
                        return ReadingEnd::Lost(self.lost(&format!("acknowledgements did not arrive: {why}")));
                    }
                },
                _ = progress.tick() => {
                    if let Err(why) = self.say_progress().await {
                        return ReadingEnd::Lost(self.lost(&why));
                    }
                }
                found = of(&mut examining) => match self.judge(found) {
                    Ok(()) => {
                        let now = durable::ack_wait(&self.durable.config) / 3;
                        if now != third {
                            third = now;
                            progress = interval_at(Instant::now(), third);
                        }
                    }
                    Err(end) => return end,
                },
                _ = look.tick() => {
                    if member.is_stalled() {
                        return ReadingEnd::Stalled;
                    }
                    if member.shelves().is_closing {
                        self.stop().await;
                    }
                    if self.asked > 0 && self.heard_at.elapsed() > SILENCE {
                        return ReadingEnd::Lost(self.lost(&"the server says nothing"));
                    }
                    if examining.is_none() && self.examine_at <= Instant::now() {
                        self.examine_at = Instant::now() + EXAMINE_EVERY;
                        examining = Some(self.examine());
                    }
                }
                end = leaving.told() => return end,
            }
        }
    }

    async fn give_back(&mut self, _: &ReadingEnd) {
        self.stop().await;
        let rest = self.held.take_all();
        let _ = timeout(LAST_WAIT, async {
            self.nak(rest).await;
            self.session.client.flush().await
        })
        .await;
    }
}

impl PullReading {
    pub(super) async fn open(
        member: Arc<QueueMember>,
        index: usize,
        session: Arc<Session>,
        stream: &StreamInfo,
        durable: Info,
    ) -> Result<Self, SourceError> {
        let inbox = session.client.new_inbox();
        let subscriber = session.client.subscribe(inbox.clone()).await;
        let subscriber = subscriber.map_err(|error| SourceError::Transient(error.to_string()))?;
        let now = Instant::now();
        Ok(Self {
            member,
            index,
            session,
            subscriber,
            inbox,
            durable,
            average: stream.state.bytes / stream.state.messages.max(1),
            held: HeldMessages::default(),
            asked: 0,
            ask_at: now,
            heard_at: now,
            examine_at: now + EXAMINE_EVERY,
            has_stopped: false,
            envelope: None,
        })
    }

    fn stream(&self) -> &str {
        &self.durable.stream_name
    }

    fn group(&self) -> &str {
        &self.durable.name
    }

    fn lost(&self, why: &dyn std::fmt::Display) -> String {
        format!("the reading of consumer {:?} of stream {:?} ended: {why}", self.group(), self.stream())
    }

    fn denied(&self, subject: &str) -> ReadingEnd {
        let (who, stream) = (&self.session.identity, self.stream());
        ReadingEnd::Refused(SourceError::Transient(format!(
            "stream {stream:?} cannot be read: {who} may not publish to {subject}. Allow it $JS.ACK.{stream}.{group}.> and {ask}. \
             Its messages wait",
            group = self.group(),
            ask = self.ask_subject()
        )))
    }

    fn ask_subject(&self) -> String {
        format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream(), self.group())
    }

    /// Most messages in hand and on the way.
    fn most(&self) -> usize {
        // Of an empty stream nobody knows yet: a few show what comes.
        let by_bytes = AHEAD_BYTES.checked_div(self.average).unwrap_or(0);
        let by_bytes = usize::try_from(by_bytes).unwrap_or(usize::MAX).max(AHEAD_MIN);
        self.member.ahead_max().min(by_bytes)
    }

    /// Asks for messages where there is room for them: at once if none is on the way, else when it is worth
    /// a question.
    async fn ask(&mut self) -> Result<(), String> {
        let most = self.most();
        let room = most.saturating_sub(self.held.len() + self.asked);
        let is_worth_it = self.asked == 0 || room >= most / 4;
        if room == 0 || !is_worth_it || self.has_stopped || self.ask_at > Instant::now() {
            return Ok(());
        }
        let config = &self.durable.config;
        let batch_max = usize::try_from(config.max_batch).ok().filter(|most| *most > 0);
        let batch = room.min(batch_max.unwrap_or(usize::MAX));
        let expires_max = Some(config.max_expires).filter(|most| !most.is_zero());
        let expires = EXPIRES.min(expires_max.unwrap_or(EXPIRES));
        let body = format!(r#"{{"batch":{batch},"expires":{}}}"#, expires.as_nanos());
        let (client, inbox) = (&self.session.client, self.inbox.clone());
        let sent = client.publish_with_reply(self.ask_subject(), inbox, body.into()).await;
        sent.map_err(|error| self.lost(&error))?;
        if self.asked == 0 {
            self.heard_at = Instant::now();
        }
        self.asked += batch;
        Ok(())
    }

    /// Takes all messages that are there, before anybody is woken.
    fn take(&mut self, message: async_nats::Message) {
        self.heard_at = Instant::now();
        self.hear(message);
        for _ in 0..PAGE {
            let Some(Some(message)) = self.subscriber.next().now_or_never() else { break };
            self.hear(message);
        }
        self.member.stir();
    }

    fn hear(&mut self, message: async_nats::Message) {
        let Some(status) = message.status.map(|status| status.as_u16()) else { return self.put(message) };
        let pending = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        let pending = pending.and_then(|pending| pending.as_str().parse().ok());
        match status {
            100 => {}
            // The time of a question is over, and so many of its messages have not come.
            404 | 408 => self.asked = self.asked.saturating_sub(pending.unwrap_or(self.asked)),
            // The consumer is gone, has moved, or is asked by too many. A look will say.
            _ => {
                let words = message.description.unwrap_or_default();
                tracing::debug!(stream = self.stream(), status, words, "a question was not answered");
                self.asked = 0;
                let now = Instant::now();
                (self.ask_at, self.examine_at) = (now + ASK_AGAIN, now);
            }
        }
    }

    fn put(&mut self, message: async_nats::Message) {
        self.asked = self.asked.saturating_sub(1);
        // The first ones of a stream are not known when it is opened: an eighth of each counts.
        self.average = (7 * self.average + message.payload.len() as u64) / 8 + 1;
        let Some(reply) = message.reply.clone() else { return };
        let context = || context(&self.session);
        let envelope = match self.envelope.take() {
            Some(envelope) => Message { message, ..envelope },
            None => Message { message, context: context() },
        };
        // Whoever else sends messages here sends none of a stream.
        if let Ok(info) = envelope.info()
            && let Some(number) = self.held.put(info.stream_sequence, reply)
        {
            let before = u32::try_from(info.delivered.saturating_sub(1)).unwrap_or(u32::MAX);
            self.member.shelves().put(self.index, number, |ticket| {
                let mut delivery = record::delivery(&ticket.partition, &envelope, &info);
                // A queue has no positions, but the message has a place.
                delivery.message.id = delivery.identity().map(String::from);
                Delivery { ticket, position: None, redelivery: Some(before), ..delivery }
            });
        }
        self.envelope = Some(envelope);
    }

    /// Acknowledges all that is to be, and waits for the answers.
    fn write(&mut self) -> AcksWritten {
        let (acks, _) = self.member.shelves().take_acks(self.index);
        let numbers = acks.iter().flat_map(|acks| &acks.tags);
        let numbers = numbers.filter_map(|number| i64::try_from(*number).ok());
        let replies: Vec<Subject> = numbers.filter_map(|number| self.held.take(number)).collect();
        let client = self.session.client.clone();
        Box::pin(async move {
            let asked = stream::iter(replies).map(|reply| {
                let client = &client;
                async move { client.request(reply, AckKind::Ack.into()).await.map(drop) }
            });
            let all = asked.buffer_unordered(ACKS_AT_ONCE).try_collect::<()>();
            match timeout(ACK_WAIT, all).await {
                Ok(answered) => answered.map(|()| acks).map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {} s", ACK_WAIT.as_secs())),
            }
        })
    }

    /// Says of everything in hand that it is worked on.
    async fn say_progress(&self) -> Result<(), String> {
        for reply in self.held.replies() {
            let said = self.session.client.publish(reply.clone(), AckKind::Progress.into()).await;
            said.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn examine(&self) -> Examined {
        let session = Arc::clone(&self.session);
        let (stream, group) = (self.stream().to_owned(), self.group().to_owned());
        Box::pin(async move { durable::find(&session, &stream, &group).await })
    }

    /// What a look at the consumer means. One without an answer means nothing.
    fn judge(&mut self, found: Result<Option<Info>, SourceError>) -> Result<(), ReadingEnd> {
        let found = match found {
            Ok(Some(found)) if found.created == self.durable.created => found,
            Ok(_) => return Err(ReadingEnd::Lost(self.lost(&"somebody deleted its durable consumer"))),
            Err(_) => return Ok(()),
        };
        if let Some(why) = durable::refusal(self.stream(), &found.config) {
            return Err(ReadingEnd::Refused(SourceError::Fatal(why)));
        }
        self.durable = found;
        Ok(())
    }

    /// Asks for nothing more. What nobody has, and what the server has sent by now, goes to others. In a
    /// cluster a message may still be sent to where nobody listens: it comes to others after `ack_wait`.
    async fn stop(&mut self) {
        if std::mem::replace(&mut self.has_stopped, true) {
            return;
        }
        // Nothing more is waited for, however long the rest takes.
        self.asked = 0;
        let mut rest: Vec<Subject> =
            self.member.shelves().let_go(self.index).into_iter().filter_map(|n| self.held.take(n)).collect();
        let subscriber = &mut self.subscriber;
        let last = async {
            // The server hears this before it hears what is given back.
            let _ = subscriber.drain().await;
            while let Some(message) = subscriber.next().await {
                rest.extend(message.reply.filter(|_| message.status.is_none()));
            }
        };
        let _ = timeout(LAST_WAIT, last).await;
        self.nak(rest).await;
    }

    async fn nak(&self, replies: Vec<Subject>) {
        for reply in replies {
            let nak: Bytes = AckKind::Nak(None).into();
            // One that cannot be sent comes again after `ack_wait`.
            let _ = self.session.client.publish(reply, nak).await;
        }
    }
}
