//! A connection, and what comes back over it.
//!
//! We dial by ourselves ([`crate::link`]). The client could do that, but then it says "IO error" where we
//! must say "the certificate has expired", and it keeps what was given to it during an outage and sends it
//! after the reconnect, long after the relay has been told that it failed. So a [`Session`] is one
//! connection.
//!
//! Every call that publishes has a mailbox in the session, under a number. The reply subject of a message
//! is `INBOX.<call>-<index>`, so an answer finds its way by itself, and one that comes after its call has
//! gone is nobody's: numbers are not used again, so it can never be taken for another message's.

use super::NatsConfig;
use super::verdict::{Answer, connect_failure};
use crate::link::{Dial, Ended, Port};
use crate::mailbox::Mailbox;
use async_nats::{
    Client, ConnectOptions, Event, Message, ReconnectToServer, ServerAddr, ServerError, ServerInfo,
    Subscriber,
};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use posthaste::sink::{Failure, Scope};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// The client's own bound begins after the name was looked up, and holds for each of its addresses.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// For the ping that a new session begins with.
const PING_WAIT: Duration = Duration::from_secs(1);
/// The server's complaints that wait to be read. More are dropped: one for each subject is enough.
const COMPLAINTS: usize = 128;
/// The last part of the subject that we send pings to.
const PING: &str = "ping";

/// The way to the broker.
pub(super) type Link = crate::link::Link<Session>;

/// Begins to dial.
pub(super) fn start(config: NatsConfig, servers: Vec<ServerAddr>, name: &str) -> Link {
    Link::start("nats", Scope::Sink, name.into(), Dialler { config, servers })
}

struct Dialler {
    config: NatsConfig,
    servers: Vec<ServerAddr>,
}

#[async_trait]
impl Dial for Dialler {
    type Server = ServerAddr;
    type Session = Session;

    fn servers(&self) -> &[ServerAddr] {
        &self.servers
    }

    async fn live_through(&self, server: &ServerAddr, port: &Port<Session>) -> Ended {
        let name = display(server);
        let (complain, complaints) = mpsc::channel(COMPLAINTS);
        let options = match self.config.connect_options(port.sink()) {
            Ok(options) => hear(single_use(options, server), complain),
            Err(error) => return Ended::NeverBegan(Failure::of_sink("nats.config", error.to_string())),
        };
        let unreachable = |why: &str| Failure::of_sink("nats.unreachable", format!("{name}: {why}"));
        let pool = vec![server.clone(), nowhere()];
        let dialled = port.unless_closed(timeout(DIAL_TIMEOUT, options.connect(pool))).await;
        let Some(dialled) = dialled else { return Ended::NeverBegan(port.closed()) };
        let opened = match dialled {
            Ok(Ok(client)) => Session::open(client, self.config.identity()).await,
            Ok(Err(error)) => {
                let failure = connect_failure(&error, &name, &self.config.identity());
                return Ended::NeverBegan(self.config.tls().name_in(failure));
            }
            Err(_) => return Ended::NeverBegan(unreachable("no connection in time")),
        };
        let Some((session, answers)) = opened else {
            return Ended::NeverBegan(unreachable("closed at once"));
        };
        let mut serving = pin!(serve(&session, answers, complaints));
        // A ping before the first message: it shows that answers reach us.
        let alive = tokio::select! {
            failure = &mut serving => return Ended::NeverBegan(failure),
            alive = session.answers_ping(PING_WAIT) => alive,
        };
        if !alive {
            return Ended::NeverBegan(unreachable("the server does not answer"));
        }
        tracing::info!(sink = port.sink(), server = name, version = session.info().version, "connected");
        port.up(&session);
        let failure = port.unless_closed(serving).await.unwrap_or_else(|| port.closed());
        session.end(&failure.message);
        Ended::Lost(failure)
    }
}

/// The address without anything secret: [`NatsConfig::check`] has refused URLs with credentials.
fn display(server: &ServerAddr) -> String {
    format!("{}://{}:{}", server.scheme(), server.host(), server.port())
}

/// Makes a client that lives for one connection. The client cannot be told not to reconnect: the least
/// that it takes is one attempt, which is also the first connection's. So the one attempt that it makes
/// after a loss is led to an address where nobody can listen, and the client ends at once.
fn single_use(options: ConnectOptions, server: &ServerAddr) -> ConnectOptions {
    let (server, used) = (server.clone(), AtomicBool::new(false));
    options.max_reconnects(1).reconnect_to_server_callback(move |_, _| {
        let addr = if used.swap(true, Ordering::Relaxed) { nowhere() } else { server.clone() };
        std::future::ready(Some(ReconnectToServer { addr, delay: Some(Duration::ZERO) }))
    })
}

/// Port 0 can be asked for, but not be connected to.
fn nowhere() -> ServerAddr {
    "nats://127.0.0.1:0".parse().expect("a constant that parses")
}

/// Passes on what the server says beside the messages.
fn hear(options: ConnectOptions, complain: mpsc::Sender<String>) -> ConnectOptions {
    options.event_callback(move |event| -> std::future::Ready<()> {
        if let Event::ServerError(ServerError::Other(text)) = event {
            // Full: see COMPLAINTS.
            let _ = complain.try_send(text);
        }
        std::future::ready(())
    })
}

/// What a call hears.
#[derive(Debug)]
pub(super) enum Note {
    /// The answer to its message of this index.
    Answer(usize, Answer),
    /// Publishing to this subject is not allowed.
    Denied(Arc<str>),
    /// The connection is gone, and no answer will come.
    Ended(Arc<str>),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    /// With the dot at its end.
    inbox: String,
    /// As whom we are connected, in words.
    identity: String,
    calls: Mutex<Calls>,
    pings: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Calls {
    opened: u64,
    open: FxHashMap<u64, Arc<Mailbox<Note>>>,
    ended: Option<Arc<str>>,
}

impl Session {
    /// Opens the inbox. `None`: the connection is gone already.
    pub(super) async fn open(client: Client, identity: String) -> Option<(Arc<Self>, Subscriber)> {
        let inbox = format!("{}.", client.new_inbox());
        let answers = client.subscribe(format!("{inbox}*")).await.ok()?;
        let pings = watch::Sender::new(0);
        Some((Arc::new(Self { client, inbox, identity, calls: Mutex::default(), pings }), answers))
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn info(&self) -> ServerInfo {
        self.client.server_info()
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Opens a mailbox. It closes when the handle is dropped.
    pub(super) fn register(self: &Arc<Self>) -> Registration {
        let mailbox = Arc::new(Mailbox::default());
        let mut calls = self.calls();
        calls.opened += 1;
        let call = calls.opened;
        match &calls.ended {
            Some(why) => drop(mailbox.post(Note::Ended(Arc::clone(why)))),
            None => drop(calls.open.insert(call, Arc::clone(&mailbox))),
        }
        drop(calls);
        Registration { session: Arc::clone(self), call, mailbox }
    }

    /// Tells everybody that no answer will come any more.
    pub(super) fn end(&self, why: &str) {
        let why: Arc<str> = why.into();
        let mut calls = self.calls();
        calls.ended = Some(Arc::clone(&why));
        let open = std::mem::take(&mut calls.open);
        drop(calls);
        for mailbox in open.into_values() {
            mailbox.post(Note::Ended(Arc::clone(&why)));
            mailbox.ring();
        }
    }

    /// Sends a message to ourselves, through the server. A server that refuses it has answered too.
    pub(super) async fn answers_ping(&self, within: Duration) -> bool {
        let mut pings = self.pings.subscribe();
        let echo = async {
            self.client.publish(format!("{}{PING}", self.inbox), bytes::Bytes::new()).await.is_ok()
                && pings.changed().await.is_ok()
        };
        timeout(within, echo).await.unwrap_or(false)
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        // A panic elsewhere leaves the map whole: nothing under the lock can panic half way.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an answer into its mailbox and notes which one is to be rung.
    fn deliver(&self, message: &Message, rung: &mut Vec<Arc<Mailbox<Note>>>) {
        let Some(token) = message.subject.strip_prefix(self.inbox.as_str()) else { return };
        if token == PING {
            self.pings.send_modify(|pings| *pings += 1);
            return;
        }
        let Some((call, index)) = parse(token) else { return };
        let Some(answer) = Answer::read(message.status.map(|status| status.as_u16()), &message.payload)
        else {
            return;
        };
        let Some(mailbox) = self.calls().open.get(&call).map(Arc::clone) else { return };
        if mailbox.post(Note::Answer(index, answer)) {
            rung.push(mailbox);
        }
    }

    /// What the server said beside the messages. `Some`: this session is of no use.
    fn complain(&self, text: &str) -> Option<Failure> {
        let subject = text.split('"').nth(1)?;
        if text.contains("Permissions Violation for Subscription") {
            let text = format!(
                "{} may not subscribe to {subject:?}, where the acknowledgements come; allow it, or set inbox_prefix",
                self.identity
            );
            return Some(Failure::of_sink("nats.denied", text));
        }
        if text.contains("Permissions Violation for Publish") {
            if subject.starts_with(&self.inbox) {
                self.pings.send_modify(|pings| *pings += 1);
            }
            let subject: Arc<str> = subject.into();
            let open: Vec<_> = self.calls().open.values().map(Arc::clone).collect();
            for mailbox in open {
                mailbox.post(Note::Denied(Arc::clone(&subject)));
                mailbox.ring();
            }
        }
        None
    }
}

fn parse(token: &str) -> Option<(u64, usize)> {
    let (call, index) = token.split_once('-')?;
    Some((u64::from_str_radix(call, 16).ok()?, usize::from_str_radix(index, 16).ok()?))
}

/// Reads what the server says until the connection ends; the answer is why it did.
pub(super) async fn serve(
    session: &Session,
    mut answers: Subscriber,
    mut complaints: mpsc::Receiver<String>,
) -> Failure {
    let mut last_words = None;
    let mut rung = Vec::new();
    loop {
        tokio::select! {
            answer = answers.next() => {
                let Some(answer) = answer else { break };
                session.deliver(&answer, &mut rung);
                // All that is there, before anybody is woken: calls then send their next messages in
                // one go, and the client writes them in one go.
                while let Some(Some(answer)) = answers.next().now_or_never() {
                    session.deliver(&answer, &mut rung);
                }
                rung.drain(..).for_each(|mailbox| mailbox.ring());
            }
            Some(complaint) = complaints.recv() => {
                if let Some(failure) = session.complain(&complaint) {
                    return failure;
                }
                last_words = Some(complaint);
            }
        }
    }
    while let Ok(complaint) = complaints.try_recv() {
        last_words = Some(complaint);
    }
    let why = last_words.map(|words| format!("; its last words: {words}")).unwrap_or_default();
    Failure::of_sink("nats.unreachable", format!("the connection to the server was lost{why}"))
}

/// A call's place in the session.
#[derive(Debug)]
pub(super) struct Registration {
    session: Arc<Session>,
    call: u64,
    mailbox: Arc<Mailbox<Note>>,
}

impl Registration {
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Where the answer to this message is to go.
    pub(super) fn write_reply_subject(&self, index: usize, subject: &mut String) {
        subject.clear();
        subject.push_str(&self.session.inbox);
        // Writing to a string cannot fail.
        let _ = write!(subject, "{:x}-{index:x}", self.call);
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
        self.session.calls().open.remove(&self.call);
    }
}
