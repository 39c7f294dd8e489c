//! One connection as calls see it: where their messages go, and where the answers come from.
//!
//! Every call that publishes has a mailbox here, under a number. The reply subject of a message is
//! `INBOX.<call>-<index>`, so an answer finds its way by itself. Numbers are not used again. So an answer
//! that comes after its call has gone is nobody's, and can never be taken for another message's. The client's
//! own publishing with acknowledgements was refused. It keeps something for each message, and does not tell a
//! stream's answer from any other.
//!
//! A session is one connection. When it ends, every call that waits is told so at once, and nothing of it is
//! ever sent later.

use super::answer::PublishReply;
use super::{Connection, WriteBacklog, is_refusal, refused};
use crate::address::Address;
use crate::lock::locked;
use crate::mailbox::Mailbox;
use async_nats::{Client, Event, Message, ServerError, ServerInfo, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use posthaste::sink::Failure;
use rustc_hash::FxHashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout};

/// The last part of the subject that we send pings to.
const PING: &str = "ping";
/// How long a server's limits are believed. An operator may change them, and the client does not hear of
/// that. So a message that is too large costs a new session, once in this time.
const FRESH: Duration = Duration::from_secs(30);
/// Notes that a call did not ask for: refusals of others' subjects, answers that come twice. More are
/// dropped.
const SPARE_NOTES: usize = 128;

/// What a call hears.
#[derive(Debug)]
pub(in crate::nats) enum Note {
    /// The answer to its message of this index.
    Reply(usize, PublishReply),
    /// Publishing to this subject is not allowed.
    Denied(Arc<str>),
    /// The connection is about to be left. Answers may still come, and nothing more is to be sent.
    Leaving,
    /// The connection is gone, and no answer will come.
    Ended(Arc<str>),
}

/// How a session came to an end.
#[derive(Debug)]
pub(in crate::nats) enum SessionEnd {
    /// The connection is gone, or of no use.
    Lost(Failure),
    /// The server asks us to go. Messages that are under way may still be answered.
    Leaving(Failure),
}

/// One connection.
#[derive(Debug)]
pub(in crate::nats) struct Session {
    pub(in crate::nats) client: Client,
    pub(in crate::nats) backlog: WriteBacklog,
    /// What the server said of itself at the beginning.
    pub(in crate::nats) info: ServerInfo,
    /// Whether `info` may be somebody else's word.
    pub(in crate::nats) is_hearsay: bool,
    opened_at: Instant,
    /// Notified when somebody wants to know what the server says of itself now.
    stale: Notify,
    /// As whom we are connected, in words.
    pub(in crate::nats) identity: String,
    server: Address,
    /// The subject of the inbox, with the dot at its end.
    inbox: String,
    calls: Mutex<Calls>,
    /// Notified when the last call has gone.
    idle: Notify,
    /// How many pings were answered.
    pongs: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Calls {
    opened: u64,
    open: FxHashMap<u64, Arc<CallMailbox>>,
    is_leaving: bool,
    ended: Option<Arc<str>>,
}

/// A call's mailbox, and how many messages the call has.
#[derive(Debug)]
struct CallMailbox {
    notes: Mailbox<Note>,
    messages: usize,
}

impl CallMailbox {
    /// Every message is answered once, or refused. Other notes fill no more than the spare room.
    fn answer(&self, index: usize, answer: PublishReply) -> bool {
        self.notes.post_within(Note::Reply(index, answer), 2 * (self.messages + SPARE_NOTES))
    }

    fn deny(&self, subject: Arc<str>) {
        self.notes.post_within(Note::Denied(subject), self.messages + SPARE_NOTES);
        self.notes.ring();
    }

    fn tell(&self, note: Note) {
        self.notes.post(note);
        self.notes.ring();
    }
}

impl Session {
    /// Opens the inbox. It is `None` if the connection is gone already.
    pub(super) async fn open(
        connection: Connection,
        server: &Address,
        identity: String,
    ) -> Option<(Arc<Self>, SessionInbox)> {
        let Connection { client, events, is_hearsay } = connection;
        let inbox = format!("{}.", client.new_inbox());
        let answers = client.subscribe(format!("{inbox}*")).await.ok()?;
        let session = Arc::new(Self {
            info: client.server_info(),
            client,
            backlog: WriteBacklog::default(),
            is_hearsay,
            opened_at: Instant::now(),
            stale: Notify::new(),
            identity,
            server: server.clone(),
            inbox,
            calls: Mutex::default(),
            idle: Notify::new(),
            pongs: watch::Sender::new(0),
        });
        Some((
            session,
            SessionInbox { answers, events, rung: Vec::new(), is_leaving: false, last_words: None },
        ))
    }

    /// The server's limit for headers and payload of a message together, if it has named one.
    pub(in crate::nats) fn bytes_max(&self) -> Option<usize> {
        Some(self.info.max_payload).filter(|bytes| *bytes > 0)
    }

    /// Whether the server's limits are recent.
    pub(in crate::nats) fn is_fresh(&self) -> bool {
        self.opened_at.elapsed() < FRESH
    }

    /// Makes way for another session, which hears what the server says now.
    pub(in crate::nats) fn renew(&self) {
        self.stale.notify_one();
    }

    /// Opens a mailbox for a call with this many messages. It closes when the handle is dropped.
    pub(in crate::nats) fn register(self: &Arc<Self>, messages: usize) -> Registration {
        let mailbox = Arc::new(CallMailbox { notes: Mailbox::default(), messages });
        let mut calls = self.calls();
        calls.opened += 1;
        let call = calls.opened;
        if calls.is_leaving {
            mailbox.notes.post(Note::Leaving);
        }
        match &calls.ended {
            Some(why) => drop(mailbox.notes.post(Note::Ended(Arc::clone(why)))),
            None => drop(calls.open.insert(call, Arc::clone(&mailbox))),
        }
        drop(calls);
        Registration { session: Arc::clone(self), call, mailbox }
    }

    /// Waits until no call waits for anything.
    async fn until_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.calls().open.is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Tells every call to send nothing more here.
    pub(in crate::nats) fn leave(&self) {
        let mut calls = self.calls();
        calls.is_leaving = true;
        let open: Vec<_> = calls.open.values().map(Arc::clone).collect();
        drop(calls);
        open.iter().for_each(|mailbox| mailbox.tell(Note::Leaving));
    }

    /// Tells every call that no answer will come any more.
    pub(in crate::nats) fn end(&self, why: &str) {
        let why: Arc<str> = why.into();
        let mut calls = self.calls();
        calls.ended = Some(Arc::clone(&why));
        let open = std::mem::take(&mut calls.open);
        drop(calls);
        open.into_values().for_each(|mailbox| mailbox.tell(Note::Ended(Arc::clone(&why))));
    }

    /// Sends a message to ourselves, through the server. A server that refuses it has answered too.
    pub(in crate::nats) async fn answers_ping(&self, within: Duration) -> bool {
        let mut pongs = self.pongs.subscribe();
        let echo = async {
            let sent = self.client.publish(format!("{}{PING}", self.inbox), Bytes::new()).await;
            sent.is_ok() && pongs.changed().await.is_ok()
        };
        timeout(within, echo).await.unwrap_or(false)
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        locked(&self.calls)
    }

    /// Puts an answer into its mailbox, and remembers that this one is to be rung.
    fn deliver(&self, message: &Message, rung: &mut Vec<Arc<CallMailbox>>) {
        let Some(token) = message.subject.strip_prefix(self.inbox.as_str()) else { return };
        if token == PING {
            return self.pongs.send_modify(|pongs| *pongs += 1);
        }
        let Some((call, index)) = parse(token) else { return };
        let status = message.status.map(|status| status.as_u16());
        let Some(answer) = PublishReply::read(status, &message.payload) else { return };
        let Some(mailbox) = self.calls().open.get(&call).map(Arc::clone) else { return };
        if mailbox.answer(index, answer) {
            rung.push(mailbox);
        }
    }

    /// Handles what the server said beside the messages. If it is `Some`, this session is of no use.
    fn complain(&self, text: &str) -> Option<Failure> {
        let subject = &quoted(text)?;
        if text.contains("Permissions Violation for Subscription") {
            let text = format!(
                "{} may not subscribe to {subject:?}, where the acknowledgements come; allow it, or set inbox_prefix",
                self.identity
            );
            return Some(Failure::of_sink("nats.denied", text));
        }
        if text.contains("Permissions Violation for Publish with Reply") {
            let text = format!(
                "{} may not have acknowledgements sent to {subject:?}; allow it, or set inbox_prefix",
                self.identity
            );
            return Some(Failure::of_sink("nats.denied", text));
        }
        if text.contains("Permissions Violation for Publish") {
            self.deny(subject);
        }
        None
    }

    fn deny(&self, subject: &str) {
        if subject.starts_with(&self.inbox) {
            return self.pongs.send_modify(|pongs| *pongs += 1);
        }
        let subject: Arc<str> = subject.into();
        let open: Vec<_> = self.calls().open.values().map(Arc::clone).collect();
        open.iter().for_each(|mailbox| mailbox.deny(Arc::clone(&subject)));
    }
}

/// The first word in quotes, which a server writes as Go does (`%q`): with `\"`, `\\` and `\u200b`.
fn quoted(text: &str) -> Option<String> {
    let (mut rest, mut word) = (text.split_once('"')?.1.chars(), String::new());
    loop {
        match rest.next()? {
            '"' => return Some(word),
            '\\' => word.push(escaped(&mut rest)?),
            plain => word.push(plain),
        }
    }
}

fn escaped(rest: &mut std::str::Chars<'_>) -> Option<char> {
    let digits = match rest.next()? {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        // A quote or a backslash. Subjects have no other escapes.
        plain => return Some(plain),
    };
    let digits: String = rest.by_ref().take(digits).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
}

fn parse(token: &str) -> Option<(u64, usize)> {
    let (call, index) = token.split_once('-')?;
    Some((u64::from_str_radix(call, 16).ok()?, usize::from_str_radix(index, 16).ok()?))
}

/// The incoming side of a session's connection.
pub(in crate::nats) struct SessionInbox {
    answers: Subscriber,
    events: mpsc::Receiver<Event>,
    rung: Vec<Arc<CallMailbox>>,
    is_leaving: bool,
    last_words: Option<String>,
}

impl SessionInbox {
    /// Gives every answer to its call, until the connection ends or is to be left.
    pub(in crate::nats) async fn serve(&mut self, session: &Session) -> SessionEnd {
        let mut backlog = pin!(session.backlog.keep(&session.client));
        loop {
            tokio::select! {
                answer = self.answers.next() => match answer {
                    Some(answer) => self.take(&answer, session),
                    None => return self.lost(session).await,
                },
                event = self.events.recv() => match event.map(|event| self.hear(event, session)) {
                    Some(None) => {}
                    Some(Some(end)) => return end,
                    None => return self.lost(session).await,
                },
                () = session.stale.notified(), if !self.is_leaving => {
                    self.is_leaving = true;
                    let text = format!("{}: a new connection asks what the server takes now", session.server);
                    return SessionEnd::Leaving(Failure::of_sink("nats.unreachable", text));
                }
                () = &mut backlog => {}
            }
        }
    }

    /// Serves until no call waits for an answer, or this time is over.
    pub(in crate::nats) async fn serve_until_idle(&mut self, session: &Session, within: Duration) {
        let rest = async {
            tokio::select! {
                _ = self.serve(session) => {}
                () = session.until_idle() => {}
            }
        };
        let _ = timeout(within, rest).await;
    }

    /// Takes all answers that are there, before any call is woken. So calls send their next messages in one
    /// go, and the client writes them in one go.
    fn take(&mut self, answer: &Message, session: &Session) {
        // The server went on talking, so its last words were no reason to hang up.
        self.last_words = None;
        session.deliver(answer, &mut self.rung);
        while let Some(Some(answer)) = self.answers.next().now_or_never() {
            session.deliver(&answer, &mut self.rung);
        }
        self.rung.drain(..).for_each(|mailbox| mailbox.notes.ring());
    }

    fn hear(&mut self, event: Event, session: &Session) -> Option<SessionEnd> {
        match event {
            Event::ServerError(ServerError::AuthorizationViolation) => {
                self.complain("Authorization Violation".to_owned(), session)
            }
            Event::ServerError(ServerError::Other(words)) => self.complain(words, session),
            Event::LameDuckMode if !self.is_leaving => {
                self.is_leaving = true;
                let text = format!("{}: the server is about to stop (lame duck mode)", session.server);
                Some(SessionEnd::Leaving(Failure::of_sink("nats.unreachable", text)))
            }
            Event::Disconnected => {
                // An answer that came before counts.
                if let Some(Some(answer)) = self.answers.next().now_or_never() {
                    self.take(&answer, session);
                }
                Some(self.gone(session))
            }
            _ => None,
        }
    }

    fn complain(&mut self, words: String, session: &Session) -> Option<SessionEnd> {
        if is_refusal(&words) {
            return Some(SessionEnd::Lost(refused(&session.server, &session.identity, &words)));
        }
        let failure = session.complain(&words);
        // After most complaints the server hangs up, and then the complaint is the reason. After this one it
        // does not.
        self.last_words = Some(words).filter(|words| !words.starts_with("Permissions Violation"));
        failure.map(SessionEnd::Lost)
    }

    /// The client has ended. What the server said before that is still on its way.
    async fn lost(&mut self, session: &Session) -> SessionEnd {
        while let Some(event) = self.events.recv().await {
            if let Some(end) = self.hear(event, session) {
                return end;
            }
        }
        self.gone(session)
    }

    fn gone(&self, session: &Session) -> SessionEnd {
        let last = self.last_words.as_ref().map(|words| format!("; its last words: {words}"));
        let text = format!("{}: the connection was lost{}", session.server, last.unwrap_or_default());
        SessionEnd::Lost(Failure::of_sink("nats.unreachable", text))
    }
}

/// A call's place in the session.
#[derive(Debug)]
pub(in crate::nats) struct Registration {
    session: Arc<Session>,
    call: u64,
    mailbox: Arc<CallMailbox>,
}

impl Registration {
    pub(in crate::nats) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The reply subject, but for the index of the message.
    pub(in crate::nats) fn reply(&self) -> String {
        format!("{}{:x}-", self.session.inbox, self.call)
    }

    /// Takes all notes. If there are none, the waker is kept.
    pub(in crate::nats) fn poll_notes(&self, context: &mut Context<'_>, notes: &mut Vec<Note>) -> Poll<()> {
        self.mailbox.notes.poll_take(context, notes)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut calls = self.session.calls();
        calls.open.remove(&self.call);
        let is_idle = calls.open.is_empty();
        drop(calls);
        if is_idle {
            self.session.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
pub(in crate::nats) mod tests;
