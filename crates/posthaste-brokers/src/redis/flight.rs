//! One call: its messages on their way, and their verdicts.
//!
//! A [`Flight`] takes turns from the chain, makes requests of the messages that may go, and reads replies, until every
//! message has a verdict or time is up. A request is a pipeline of messages that have nothing to do with each other,
//! or a transaction of whole runs ([`super`] says why); all messages of one go to one stream. What the replies mean is
//! `judge`'s part.
//!
//! The chain gives the turn to the first message of a key only. Those behind it in the same call and for the same
//! stream leave with it, as its run, and are decided with it in their order, so the turns that the chain then hands
//! out for them come too late to matter.
//!
//! Nothing is sent twice but what a server has refused because its slot has moved, and nothing on another session than
//! the one the call began with: trying again is the relay's affair.

use super::entry;
use super::link::{Broken, Session};
use super::sink::{CONNECT_WAIT, RedisSink, Servers};
use super::verdict::{self, Silence};
use ::redis::Value;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use posthaste::sink::chain::{Call, Turn};
use posthaste::sink::{Failure, Message, Verdict};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// One request. A server does nothing else while it works through a transaction: 256 entries take it about 1 ms.
const REQUEST_MESSAGES: usize = 256;
/// What is larger goes alone, so that a refusal of its size is its own.
const REQUEST_BYTES: usize = 256 << 10;
/// Fewer messages than these wait until the answers to the stream's earlier requests are there. The turns of a call
/// come one by one, as other calls' messages are answered, and a request for each would cost more than its messages.
const SMALL_REQUEST: usize = 64;
/// Redis' own default for the longest string.
const BULK_BYTES_MAX: usize = 512 << 20;

/// The streams of a call, and the session that each of them is reached by.
pub(super) struct Streams<'a> {
    pub(super) names: Vec<&'a str>,
    sessions: Vec<Result<Arc<Session>, Failure>>,
    /// By message.
    of: Vec<usize>,
}

impl<'a> Streams<'a> {
    pub(super) async fn find(servers: &Servers, messages: &'a [Message], wait: Duration) -> Self {
        let (mut names, mut numbers) = (Vec::new(), FxHashMap::default());
        let mut number = |name: &'a str| {
            *numbers.entry(name).or_insert_with(|| {
                names.push(name);
                names.len() - 1
            })
        };
        let of = messages.iter().map(|message| number(&message.destination)).collect();
        let sessions = match servers {
            Servers::One(link) => vec![link.session(wait).await; names.len()],
            Servers::Many(cluster) => join_all(names.iter().map(|name| cluster.session(name, wait))).await,
        };
        Self { names, sessions, of }
    }

    /// This session is over, for this reason.
    pub(super) fn leave(&mut self, over: &Arc<Session>, why: &Failure) {
        for session in &mut self.sessions {
            if session.as_ref().is_ok_and(|session| Arc::ptr_eq(session, over)) {
                *session = Err(why.clone());
            }
        }
    }
}
#[derive(Clone, PartialEq)]
pub(super) enum Fate {
    /// Not sent.
    Waiting,
    /// Sent; the answer is to come.
    Sent,
    Decided(Verdict),
}

/// Messages that travel together to one stream.
#[derive(Default)]
struct Request {
    messages: Vec<usize>,
    commands: Vec<u8>,
    bytes: usize,
}

/// A request that has come back.
pub(super) struct Answered {
    pub(super) session: Arc<Session>,
    pub(super) stream: usize,
    pub(super) messages: Vec<usize>,
    together: bool,
    replies: Result<Vec<Value>, Broken>,
}

pub(super) struct Flight<'a> {
    send_until: Instant,
    pub(super) sink: &'a RedisSink,
    pub(super) messages: &'a [Message],
    pub(super) streams: Streams<'a>,
    /// The next message of the same key, if it goes to the same stream.
    followers: Vec<Option<usize>>,
    pub(super) fates: Vec<Fate>,
    undecided: usize,
    /// Taken from the window: for each message in flight one, and what is not used yet.
    permits: usize,
    pub(super) in_flight: usize,
    /// May be sent, when the window has room.
    pub(super) ready: VecDeque<usize>,
    call: Call<'a>,
    requests: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// Requests that are under way, by stream.
    under_way: Vec<usize>,
    turns: Vec<(usize, Turn)>,
    answers: Vec<Answered>,
    /// Streams whose slot has moved.
    pub(super) moved: Vec<usize>,
    pub(super) redirects: usize,
}

impl<'a> Flight<'a> {
    pub(super) fn new(
        sink: &'a RedisSink,
        messages: &'a [Message],
        call: Call<'a>,
        streams: Streams<'a>,
        send_until: Instant,
    ) -> Self {
        Self {
            send_until,
            sink,
            messages,
            followers: followers(messages, &streams.of),
            under_way: vec![0; streams.names.len()],
            streams,
            fates: vec![Fate::Waiting; messages.len()],
            undecided: messages.len(),
            permits: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            call,
            requests: FuturesUnordered::new(),
            turns: Vec::new(),
            answers: Vec::new(),
            moved: Vec::new(),
            redirects: 0,
        }
    }

    pub(super) async fn fly(&mut self) {
        while self.undecided > 0 {
            self.await_news().await;
            self.take_turns();
            self.take_answers();
            self.follow_moved().await;
            self.send_ready();
        }
    }

    /// Waits for turns, for answers, or for room in the window.
    async fn await_news(&mut self) {
        let (window, wants_room) = (&self.sink.window, self.wants_to_send());
        let mut room = pin!(window.acquire());
        poll_fn(|context| {
            let mut news = self.call.poll_turns(context, &mut self.turns).is_ready();
            while let Poll::Ready(Some(answer)) = self.requests.poll_next_unpin(context) {
                self.answers.push(answer);
                news = true;
            }
            if wants_room && let Poll::Ready(Ok(permit)) = room.as_mut().poll(context) {
                // Kept: given back to be taken again, it would go round among the waiting calls.
                permit.forget();
                self.permits += 1;
                return Poll::Ready(());
            }
            if news { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn take_turns(&mut self) {
        for (index, turn) in std::mem::take(&mut self.turns) {
            match turn {
                _ if self.fates[index] != Fate::Waiting => {}
                Turn::Go => self.ready.push_back(index),
                Turn::Held => self.set(index, Verdict::Held),
            }
        }
    }

    fn take_answers(&mut self) {
        for answer in std::mem::take(&mut self.answers) {
            self.under_way[answer.stream] -= 1;
            match &answer.replies {
                Ok(replies) if answer.together => self.judge_together(&answer, replies),
                Ok(replies) => self.judge_each(&answer, replies),
                Err(broken) => self.judge_broken(&answer, broken),
            }
        }
    }

    /// Finds the new servers of streams whose slot has moved.
    async fn follow_moved(&mut self) {
        if self.moved.is_empty() {
            return;
        }
        self.redirects += 1;
        let mut moved = std::mem::take(&mut self.moved);
        moved.sort_unstable();
        moved.dedup();
        for stream in moved {
            let found = self.sink.way.session(self.streams.names[stream], CONNECT_WAIT).await;
            self.streams.sessions[stream] = found;
        }
    }

    pub(super) fn give_up(&mut self, why: &Silence) {
        self.ready.clear();
        let (reach, silent) = (self.sink.way.reach(), self.fates.contains(&Fate::Sent));
        for index in 0..self.messages.len() {
            match self.fates[index] {
                Fate::Waiting => self.decide(index, why.unsent(reach, silent)),
                Fate::Sent => self.decide(index, why.sent(reach)),
                Fate::Decided(_) => {}
            }
        }
    }

    fn send_ready(&mut self) {
        let mut open: FxHashMap<(usize, bool), Request> = FxHashMap::default();
        let (trim, wants_to_send) = (self.sink.config.trim(), self.wants_to_send());
        while wants_to_send && !self.ready.is_empty() && self.has_permit() {
            let Some(index) = self.ready.pop_front() else { break };
            if self.fates[index] != Fate::Waiting {
                continue;
            }
            if let Err(verdict) = self.check(index) {
                self.decide(index, verdict);
                continue;
            }
            let (stream, run) = (self.streams.of[index], self.run(index));
            let place = (stream, run.len() > 1);
            let request = open.entry(place).or_default();
            let bytes: usize = run.iter().map(|index| entry::size(&self.messages[*index])).sum();
            if !request.fits(run.len(), bytes) {
                let full = std::mem::take(request);
                self.send(place, full);
            }
            let request = open.entry(place).or_default();
            if request.messages.is_empty() {
                // Most messages are of one size: so the rest will fit without moving.
                let rest = (self.ready.len() + run.len()).min(REQUEST_MESSAGES);
                request.commands.reserve((bytes * rest / run.len()).clamp(bytes, REQUEST_BYTES.max(bytes)));
            }
            request.bytes += bytes;
            for index in run {
                entry::write(&self.messages[index], trim, &mut request.commands);
                request.messages.push(index);
            }
        }
        for (place, request) in open {
            self.send(place, request);
        }
        self.sink.window.add_permits(self.permits - self.in_flight);
        self.permits = self.in_flight;
    }

    /// A message that may go and those of its key that may go with it, as far as there is room. From here on they may
    /// have left, also when this future is dropped.
    fn run(&mut self, first: usize) -> Vec<usize> {
        let (mut run, mut bytes) = (Vec::with_capacity(1), 0);
        let mut next = Some(first);
        while let Some(index) = next {
            bytes += entry::size(&self.messages[index]);
            let fits = run.is_empty() || (run.len() < REQUEST_MESSAGES && bytes <= REQUEST_BYTES);
            if !fits || !self.has_permit() || self.fates[index] != Fate::Waiting || self.check(index).is_err()
            {
                break;
            }
            self.fates[index] = Fate::Sent;
            self.in_flight += 1;
            run.push(index);
            next = self.followers[index];
        }
        run
    }

    fn send(&mut self, (stream, together): (usize, bool), request: Request) {
        let Request { messages, commands, .. } = request;
        let count = messages.len();
        // Checked for each of its messages.
        let Ok(session) = self.streams.sessions[stream].clone() else { return };
        self.under_way[stream] += 1;
        self.requests.push(Box::pin(async move {
            let replies = if together {
                session.send_together(commands, count).await
            } else {
                session.send_each(commands, count).await
            };
            Answered { session, stream, messages, together, replies }
        }));
    }

    /// Whether a message can be sent at all.
    fn check(&self, index: usize) -> Result<(), Verdict> {
        let stream = self.streams.of[index];
        if self.streams.names[stream].is_empty() {
            return Err(verdict::bad_stream());
        }
        let session = self.streams.sessions[stream].as_ref();
        let most = session.map_err(|failure| Verdict::Retry(failure.clone()))?.bulk_bytes_max;
        let (bytes, most) = (self.payload_bytes(index), most.unwrap_or(BULK_BYTES_MAX));
        if bytes > most { Err(verdict::too_large(bytes, most)) } else { Ok(()) }
    }

    pub(super) fn payload_bytes(&self, index: usize) -> usize {
        self.messages[index].payload.as_ref().map_or(0, bytes::Bytes::len)
    }

    /// Whether there is something to send, and it is worth a request, and not too late.
    fn wants_to_send(&self) -> bool {
        let idle = |index: &usize| self.under_way[self.streams.of[*index]] == 0;
        let enough = self.ready.len() >= SMALL_REQUEST || self.ready.iter().any(idle);
        enough && Instant::now() < self.send_until
    }

    /// Whether there is room for one more, used before or taken now.
    fn has_permit(&mut self) -> bool {
        if self.permits > self.in_flight {
            return true;
        }
        let Ok(permit) = self.sink.window.try_acquire() else { return false };
        permit.forget();
        self.permits += 1;
        true
    }

    /// Decides a message and tells those behind it.
    pub(super) fn decide(&mut self, index: usize, verdict: Verdict) {
        self.in_flight -= usize::from(self.fates[index] == Fate::Sent);
        self.call.decide(index, &verdict);
        self.set(index, verdict);
    }

    fn set(&mut self, index: usize, verdict: Verdict) {
        if !matches!(self.fates[index], Fate::Decided(_)) {
            self.undecided -= 1;
            self.fates[index] = Fate::Decided(verdict);
        }
    }

    pub(super) fn verdicts(mut self) -> Vec<Verdict> {
        // A message is undecided only while `fly` runs.
        let fates = std::mem::take(&mut self.fates);
        fates
            .into_iter()
            .map(|fate| if let Fate::Decided(verdict) = fate { verdict } else { Verdict::Held })
            .collect()
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.sink.window.add_permits(self.permits);
    }
}

impl Request {
    fn fits(&self, messages: usize, bytes: usize) -> bool {
        self.messages.is_empty()
            || (self.messages.len() + messages <= REQUEST_MESSAGES && self.bytes + bytes <= REQUEST_BYTES)
    }
}

/// For each message the next one of its key, where that goes to the same stream.
fn followers(messages: &[Message], streams: &[usize]) -> Vec<Option<usize>> {
    let mut followers = vec![None; messages.len()];
    let mut last: FxHashMap<&str, usize> = FxHashMap::default();
    for (index, message) in messages.iter().enumerate() {
        let Some(key) = message.order_key() else { continue };
        if let Some(before) = last.insert(key, index)
            && streams[before] == streams[index]
        {
            followers[before] = Some(index);
        }
    }
    followers
}
