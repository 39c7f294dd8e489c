//! One connection as calls see it: where their messages go, and where the answers come from.
//!
//! Every call that publishes has a mailbox here, under a number. The reply subject of a message is
//! `INBOX.<call>-<index>`, so an answer finds its way by itself, and one that comes after its call has gone is
//! nobody's: numbers are not used again, so it can never be taken for another message's. Questions to JetStream
//! (`INBOX.q<number>`) are answered the same way.
//!
//! A session is one connection. When that ends, everybody who waits is told so at once, and nothing of it is ever
//! sent later.

use super::dial::Info;
use super::entry::number;
use super::frame::Message;
use super::outbox::Outbox;
use super::verdict::Answer;
use crate::mailbox::Mailbox;
use posthaste::sink::Failure;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// What a call hears.
#[derive(Debug)]
pub(super) enum Note {
    /// The answer to its message of this index.
    Answer(usize, Answer),
    /// Publishing to this subject is not allowed.
    Denied(Arc<str>),
    /// The connection is about to be left: answers may come, and nothing more is to be sent.
    Leaving,
    /// The connection is gone, and no answer will come.
    Ended(Arc<str>),
}

/// The answer to a question.
#[derive(Debug)]
pub(super) enum Reply {
    Words(Vec<u8>),
    /// Nobody is there who could answer.
    Nobody,
    Denied,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) outbox: Outbox,
    /// With the dot at its end.
    inbox: String,
    /// As whom we are connected, in words.
    identity: String,
    info: Mutex<Arc<Info>>,
    waiting: Mutex<Waiting>,
    /// How many pings were answered.
    pongs: watch::Sender<u64>,
}

/// Who waits for answers.
#[derive(Debug, Default)]
struct Waiting {
    opened: u64,
    calls: FxHashMap<u64, Arc<Mailbox<Note>>>,
    questions: FxHashMap<u64, Question>,
    is_leaving: bool,
    ended: Option<Arc<str>>,
}

#[derive(Debug)]
struct Question {
    subject: String,
    reply: oneshot::Sender<Reply>,
}

impl Session {
    pub(super) fn new(inbox: String, identity: String, info: Info) -> Arc<Self> {
        let (outbox, info) = (Outbox::default(), Mutex::new(Arc::new(info)));
        let (waiting, pongs) = (Mutex::default(), watch::Sender::new(0));
        Arc::new(Self { outbox, inbox, identity, info, waiting, pongs })
    }

    /// What the server said of itself last.
    pub(super) fn info(&self) -> Arc<Info> {
        Arc::clone(&lock(&self.info))
    }

    pub(super) fn learn(&self, info: Info) {
        *lock(&self.info) = Arc::new(info);
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Opens a mailbox. It closes when the handle is dropped.
    pub(super) fn register(self: &Arc<Self>) -> Registration {
        let mailbox = Arc::new(Mailbox::default());
        let mut waiting = lock(&self.waiting);
        waiting.opened += 1;
        let call = waiting.opened;
        if waiting.is_leaving {
            mailbox.post(Note::Leaving);
        }
        match &waiting.ended {
            Some(why) => drop(mailbox.post(Note::Ended(Arc::clone(why)))),
            None => drop(waiting.calls.insert(call, Arc::clone(&mailbox))),
        }
        drop(waiting);
        let mut reply = self.inbox.clone().into_bytes();
        number(call as usize, 16, &mut reply);
        reply.push(b'-');
        Registration { session: Arc::clone(self), call, mailbox, reply }
    }

    /// Whether no call waits for anything.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.waiting).calls.is_empty()
    }

    /// Tells everybody to send nothing more here.
    pub(super) fn leave(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.is_leaving = true;
        let open: Vec<_> = waiting.calls.values().map(Arc::clone).collect();
        drop(waiting);
        for mailbox in open {
            mailbox.post(Note::Leaving);
            mailbox.ring();
        }
    }

    /// Tells everybody that no answer will come any more.
    pub(super) fn end(&self, why: &str) {
        self.outbox.end();
        let why: Arc<str> = why.into();
        let mut waiting = lock(&self.waiting);
        waiting.ended = Some(Arc::clone(&why));
        let calls = std::mem::take(&mut waiting.calls);
        // Whoever asked hears it by the channel that is closed.
        waiting.questions.clear();
        drop(waiting);
        for mailbox in calls.into_values() {
            mailbox.post(Note::Ended(Arc::clone(&why)));
            mailbox.ring();
        }
    }

    /// Whether the server answers in time.
    pub(super) async fn answers_ping(&self, within: Duration) -> bool {
        let (mut pongs, wanted) = (self.pongs.subscribe(), self.outbox.ping());
        timeout(within, pongs.wait_for(|pongs| *pongs >= wanted)).await.is_ok_and(|found| found.is_ok())
    }

    pub(super) fn hear_pong(&self) {
        self.pongs.send_modify(|pongs| *pongs += 1);
    }

    /// Asks a question that has one answer. `None`: it did not come in time.
    pub(super) async fn ask(&self, subject: &str, body: &str, within: Duration) -> Option<Reply> {
        let (reply, answered) = oneshot::channel();
        let question = self.open_question(subject, reply)?;
        let frame =
            format!("PUB {subject} {}q{:x} {}\r\n{body}\r\n", self.inbox, question.number, body.len());
        self.outbox.append(|bytes| bytes.extend_from_slice(frame.as_bytes()));
        timeout(within, answered).await.ok()?.ok()
    }

    fn open_question(&self, subject: &str, reply: oneshot::Sender<Reply>) -> Option<OpenQuestion<'_>> {
        let mut waiting = lock(&self.waiting);
        if waiting.ended.is_some() {
            return None;
        }
        waiting.opened += 1;
        let number = waiting.opened;
        waiting.questions.insert(number, Question { subject: subject.to_owned(), reply });
        Some(OpenQuestion { session: self, number })
    }

    /// Gives a message of the inbox to whom it is for.
    pub(super) fn deliver(&self, message: &Message<'_>, round: &mut Round) {
        let Some(token) = message.subject.strip_prefix(self.inbox.as_bytes()) else { return };
        if let Some(number) = token.strip_prefix(b"q") {
            return self.answer(number, message);
        }
        let Some((call, index)) = parse(token) else { return };
        let Some(answer) = Answer::read(message.status(), message.payload) else { return };
        if round.call != call {
            let found = lock(&self.waiting).calls.get(&call).map(Arc::clone);
            (round.call, round.mailbox) = (call, found);
        }
        if let Some(mailbox) = &round.mailbox
            && mailbox.post(Note::Answer(index, answer))
        {
            round.rung.push(Arc::clone(mailbox));
        }
    }

    fn answer(&self, number: &[u8], message: &Message<'_>) {
        let Some(number) = hexadecimal(number) else { return };
        let Some(question) = lock(&self.waiting).questions.remove(&number) else { return };
        let reply = if message.status() == Some(503) {
            Reply::Nobody
        } else {
            Reply::Words(message.payload.to_vec())
        };
        // Who asked may have gone.
        let _ = question.reply.send(reply);
    }

    /// What the server said beside the messages. `Some`: this session is of no use.
    pub(super) fn complain(&self, text: &str) -> Option<Failure> {
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
        let name: Arc<str> = subject.into();
        let mut waiting = lock(&self.waiting);
        let denied = waiting.questions.extract_if(|_, question| question.subject == subject);
        denied.for_each(|(_, question)| drop(question.reply.send(Reply::Denied)));
        let open: Vec<_> = waiting.calls.values().map(Arc::clone).collect();
        drop(waiting);
        for mailbox in open {
            mailbox.post(Note::Denied(Arc::clone(&name)));
            mailbox.ring();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves what is inside whole: nothing under these locks can panic half way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        // A quote or a backslash: subjects have no other ones.
        plain => return Some(plain),
    };
    let digits: String = rest.by_ref().take(digits).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
}

fn parse(token: &[u8]) -> Option<(u64, usize)> {
    let dash = token.iter().position(|byte| *byte == b'-')?;
    let index = usize::try_from(hexadecimal(&token[dash + 1..])?).ok()?;
    Some((hexadecimal(&token[..dash])?, index))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(u64::from);
    digits.iter().try_fold(0, |number, byte| Some(number << 4 | digit(byte)?))
}

/// What is delivered between two rings. Neighbours are mostly of one call: its mailbox is looked up once.
#[derive(Default)]
pub(super) struct Round {
    /// 0 is no call's number.
    call: u64,
    mailbox: Option<Arc<Mailbox<Note>>>,
    rung: Vec<Arc<Mailbox<Note>>>,
}

impl Round {
    /// Wakes everybody who got something.
    pub(super) fn ring(&mut self) {
        (self.call, self.mailbox) = (0, None);
        self.rung.drain(..).for_each(|mailbox| mailbox.ring());
    }
}

/// A question is forgotten when nobody waits for its answer any more.
struct OpenQuestion<'a> {
    session: &'a Session,
    number: u64,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        lock(&self.session.waiting).questions.remove(&self.number);
    }
}

/// A call's place in the session.
#[derive(Debug)]
pub(super) struct Registration {
    session: Arc<Session>,
    call: u64,
    mailbox: Arc<Mailbox<Note>>,
    reply: Vec<u8>,
}

impl Registration {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Where answers go, but for the index of the message.
    pub(super) fn reply(&self) -> &[u8] {
        &self.reply
    }

    /// Takes all notes, or leaves the waker.
    pub(super) fn poll_notes(&self, context: &mut Context<'_>, notes: &mut Vec<Note>) -> Poll<()> {
        self.mailbox.poll_take(context, notes)
    }

    /// Takes the notes that are there.
    pub(super) fn take_notes(&self, notes: &mut Vec<Note>) {
        self.mailbox.take(notes);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.session.waiting).calls.remove(&self.call);
    }
}

#[cfg(test)]
mod tests;
