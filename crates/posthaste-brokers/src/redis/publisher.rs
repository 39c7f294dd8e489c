//! The publisher of a call: messages become requests, and each stream's server is found.
//!
//! A request is a pipeline of messages that have nothing to do with each other, or a transaction of whole
//! runs ([`super`] says why). All messages of a request go to one stream. `answer` reads the replies.
//!
//! The call gives the turn to the first message of a key only. The messages behind it, in the same call and
//! for the same stream, leave with it as its run. They are decided with it in their order, so the turns that
//! they get then come too late to matter.
//!
//! A stream's server is sought when the call begins, and again when a server says that the slot has moved.
//! Messages for that stream are parked meanwhile, and the other streams go on.

use super::client::{BYTES_MIN, Broken, Session, SessionConnection};
use super::sink::RedisSink;
use super::{entry, verdict};
use crate::call::{Flight, Publisher, Silence};
use ::redis::{Pipeline, Value};
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use posthaste::sink::{Failure, Message, Verdict};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Messages of one request. A server does nothing else while it works through a transaction, and 256 entries
/// take it about 1 ms.
const REQUEST_MESSAGES: usize = 256;
/// Bytes of one request. A larger message goes alone, so that a refusal of its size is its own. It is no more
/// than fits into an empty backlog.
const REQUEST_BYTES: usize = BYTES_MIN as usize;
/// Fewer messages than this wait until the stream's earlier requests are answered. The turns of a call come
/// one by one, as other calls' messages are answered, and a request for each would cost more than its
/// messages.
const SMALL_REQUEST: usize = 64;
/// Redis' own default for the longest string.
const BULK_BYTES_MAX: usize = 512 << 20;

type SessionResult = Result<Arc<Session>, Failure>;

/// A stream that messages of the call are for.
#[derive(Default)]
pub(super) struct CallStream<'a> {
    pub(super) name: &'a str,
    /// The session with its server, or why there is none. It is `None` while the server is sought.
    pub(super) session: Option<SessionResult>,
    /// Messages that may go when the server is found, or has room.
    pub(super) parked: Vec<usize>,
    /// Requests without an answer.
    pub(super) under_way: usize,
    /// How often its slot has moved.
    pub(super) redirects: usize,
}

/// Messages that travel together to one stream.
#[derive(Default)]
struct Request {
    messages: Vec<usize>,
    commands: Pipeline,
    bytes: usize,
    /// Where it ends in the session's backlog.
    end: u64,
}

/// A request that has come back.
pub(super) struct Answered {
    pub(super) session: Arc<Session>,
    pub(super) stream: usize,
    pub(super) messages: Vec<usize>,
    pub(super) together: bool,
    pub(super) replies: Result<Vec<Value>, Broken>,
}

pub(super) struct Requests<'a> {
    pub(super) sink: &'a RedisSink,
    pub(super) streams: Vec<CallStream<'a>>,
    /// The stream of each message, by index, and the stream of a name.
    of: Vec<usize>,
    numbers: FxHashMap<&'a str, usize>,
    /// The next message of the same key, if it goes to the same stream.
    followers: Vec<Option<usize>>,
    requests: FuturesUnordered<BoxFuture<'static, Answered>>,
    sought: FuturesUnordered<BoxFuture<'a, (usize, SessionResult)>>,
    connect_wait: Duration,
}

impl Publisher for Requests<'_> {
    /// The servers that do not answer.
    type Found = Vec<Arc<Session>>;

    fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()> {
        let mut polled = Poll::Pending;
        while let Poll::Ready(Some(answer)) = self.requests.poll_next_unpin(context) {
            self.streams[answer.stream].under_way -= 1;
            self.hear(&answer, flight);
            polled = Poll::Ready(());
        }
        while let Poll::Ready(Some((stream, session))) = self.sought.poll_next_unpin(context) {
            self.found(stream, session, flight);
            polled = Poll::Ready(());
        }
        if self.unpark(context, flight) { Poll::Ready(()) } else { polled }
    }

    fn wants_to_send(&self, flight: &Flight<'_>) -> bool {
        let mut ready = flight.ready();
        ready.len() >= SMALL_REQUEST || ready.any(|index| self.streams[self.of[index]].under_way == 0)
    }

    fn send(&mut self, flight: &mut Flight<'_>) {
        let mut open: FxHashMap<(usize, bool), Request> = FxHashMap::default();
        let trim = self.sink.config.trim();
        while let Some(index) = flight.next() {
            let stream = self.of[index];
            let room = match &self.streams[stream].session {
                None => 0,
                Some(Ok(session)) => session.backlog.room(),
                Some(Err(_)) => u64::MAX,
            };
            if room == 0 {
                self.streams[stream].parked.push(index);
                continue;
            }
            if let Err(verdict) = self.check(&flight.messages()[index], stream) {
                flight.decide(index, verdict);
                continue;
            }
            let room = usize::try_from(room).unwrap_or(usize::MAX).min(REQUEST_BYTES);
            let (run, bytes) = self.run(index, room, flight);
            let place = (stream, run.len() > 1);
            if open.get(&place).is_some_and(|request| !request.fits(run.len(), bytes))
                && let Some(full) = open.remove(&place)
            {
                self.submit(place, full, flight.send_until());
            }
            let request = open.entry(place).or_default();
            request.bytes += bytes;
            if let Some(Ok(session)) = &self.streams[stream].session {
                request.end = session.backlog.add(place_lane(place.1), bytes as u64);
            }
            for index in run {
                request.commands.add_command(entry::command(&flight.messages()[index], trim));
                request.messages.push(index);
            }
        }
        for (place, request) in open {
            self.submit(place, request, flight.send_until());
        }
    }

    fn is_waiting(&self, _: &Flight<'_>) -> bool {
        !self.sought.is_empty()
    }

    fn question(&mut self, flight: &Flight<'_>, within: Duration) -> BoxFuture<'static, Self::Found> {
        let mut asked: Vec<Arc<Session>> = Vec::new();
        let is_open = |index: &usize| flight.is_sent(*index) || flight.is_unsent(*index);
        for index in (0..self.of.len()).filter(is_open) {
            if let Some(Ok(session)) = &self.streams[self.of[index]].session
                && !is_among(session, &asked)
            {
                asked.push(Arc::clone(session));
            }
        }
        Box::pin(async move {
            let answers = join_all(asked.iter().map(|session| session.is_there(within))).await;
            asked
                .into_iter()
                .zip(answers)
                .filter(|(_, answers)| !answers)
                .map(|(session, _)| session)
                .collect()
        })
    }

    fn silence(&self, _: usize, message: &Message, is_sent: bool, silent: &Self::Found) -> Verdict {
        let timeout =
            verdict::timeout(self.sink.config.options.delivery_timeout_ms, self.sink.servers.reach());
        let stream = self.numbers.get(message.destination.as_str()).map(|stream| &self.streams[*stream]);
        let silence = match stream.and_then(|stream| stream.session.as_ref()) {
            Some(Err(failure)) => Silence::Absent(failure.clone()),
            Some(Ok(session)) if is_among(session, silent) => Silence::Absent(timeout),
            _ => Silence::Present(timeout),
        };
        silence.verdict(is_sent)
    }
}

fn is_among(session: &Arc<Session>, sessions: &[Arc<Session>]) -> bool {
    sessions.iter().any(|other| Arc::ptr_eq(other, session))
}

impl<'a> Requests<'a> {
    pub(super) fn new(sink: &'a RedisSink, messages: &'a [Message], connect_wait: Duration) -> Self {
        let (mut streams, mut numbers) = (Vec::new(), FxHashMap::default());
        let mut number = |name: &'a str| {
            *numbers.entry(name).or_insert_with(|| {
                streams.push(CallStream { name, ..CallStream::default() });
                streams.len() - 1
            })
        };
        let of: Vec<usize> = messages.iter().map(|message| number(&message.destination)).collect();
        let mut requests = Self {
            sink,
            followers: followers(messages, &of),
            streams,
            of,
            numbers,
            requests: FuturesUnordered::new(),
            sought: FuturesUnordered::new(),
            connect_wait,
        };
        (0..requests.streams.len()).for_each(|stream| requests.seek(stream));
        requests
    }

    /// Begins to look for the server of a stream.
    pub(super) fn seek(&mut self, stream: usize) {
        let (servers, name, wait) = (&self.sink.servers, self.streams[stream].name, self.connect_wait);
        self.streams[stream].session = None;
        self.sought.push(Box::pin(async move { (stream, servers.session(name, wait).await) }));
    }

    fn found(&mut self, stream: usize, session: SessionResult, flight: &mut Flight<'_>) {
        for index in std::mem::take(&mut self.streams[stream].parked) {
            match &session {
                Ok(_) => flight.go(index),
                Err(failure) => flight.decide(index, Verdict::Retry(failure.clone())),
            }
        }
        self.streams[stream].session = Some(session);
    }

    /// Lets the messages go that waited for room, where there is some.
    fn unpark(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> bool {
        let mut any = false;
        for stream in self.streams.iter_mut().filter(|stream| !stream.parked.is_empty()) {
            let may_go = match &stream.session {
                // `found` lets them go later.
                None => false,
                Some(Ok(session)) => session.backlog.poll_room(context).is_ready(),
                Some(Err(_)) => true,
            };
            if may_go {
                stream.parked.drain(..).for_each(|index| flight.go(index));
                any = true;
            }
        }
        any
    }

    /// Whether a message can be sent at all.
    fn check(&self, message: &Message, stream: usize) -> Result<(), Verdict> {
        let CallStream { name, session, .. } = &self.streams[stream];
        if name.is_empty() {
            return Err(verdict::bad_stream());
        }
        // While the server is sought, there is no session that knows a limit.
        let Some(session) = session else { return Ok(()) };
        let most = session.as_ref().map_err(|failure| Verdict::Retry(failure.clone()))?.bulk_bytes_max;
        let (bytes, most) = (payload_bytes(message), most.unwrap_or(BULK_BYTES_MAX));
        if bytes > most { Err(verdict::too_large(bytes, most)) } else { Ok(()) }
    }

    /// A message that may go, with those of its key that may go with it as far as there is room, and their
    /// size. From here on they may have left, also when the call is dropped.
    fn run(&self, first: usize, room: usize, flight: &mut Flight<'_>) -> (Vec<usize>, usize) {
        let (mut run, mut total, mut next) = (Vec::with_capacity(1), 0, Some(first));
        while let Some(index) = next {
            let message = &flight.messages()[index];
            let bytes = total + entry::size(message);
            let fits = run.is_empty() || (run.len() < REQUEST_MESSAGES && bytes <= room);
            let may_go = fits && flight.is_unsent(index) && self.check(message, self.of[index]).is_ok();
            if !may_go || !flight.has_room() {
                break;
            }
            flight.sent(index);
            run.push(index);
            (total, next) = (bytes, self.followers[index]);
        }
        (run, total)
    }

    fn submit(&mut self, (stream, together): (usize, bool), request: Request, until: Instant) {
        // `check` has seen the session for each of these messages.
        let Some(Ok(session)) = self.streams[stream].session.clone() else { return };
        let Request { messages, commands, end, .. } = request;
        self.streams[stream].under_way += 1;
        self.requests.push(Box::pin(async move {
            let replies = if together {
                session.send_together(commands, end, until).await
            } else {
                session.send_each(&commands, end).await
            };
            Answered { session, stream, messages, together, replies }
        }));
    }
}

fn place_lane(together: bool) -> SessionConnection {
    if together { SessionConnection::Fence } else { SessionConnection::Plain }
}

impl Request {
    fn fits(&self, messages: usize, bytes: usize) -> bool {
        self.messages.len() + messages <= REQUEST_MESSAGES && self.bytes + bytes <= REQUEST_BYTES
    }
}

pub(super) fn payload_bytes(message: &Message) -> usize {
    message.payload.as_ref().map_or(0, bytes::Bytes::len)
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
