//! One connection as the calls see it: parcels go in, answers come out.
//!
//! All of it is one table under one lock, and one task ([`serve`]) that reads and writes. Calls leave their
//! parcels in a queue; the task takes them when the broker takes bytes, and only then gives them a number.
//! So a parcel that has not left can be taken back: nothing is sent after the relay was told that it failed,
//! and a blocked connection holds parcels, not half-sent ones.

use super::table::{Bells, Note, Parcel, Question, Table};
use super::transport::Transport;
use super::verdict;
use super::wire::{self, Close, Server};
use crate::mailbox::Mailbox;
use posthaste::sink::Failure;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Unanswered messages of calls that have given up. More of them, and the connection is not worth keeping.
const UNANSWERED_MAX: usize = 65_536;

/// What was agreed on when the connection was opened.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) server: Server,
    pub(super) channels: u16,
    pub(super) frame_max: usize,
    pub(super) heartbeat: Duration,
    pub(super) encrypted: bool,
    pub(super) local: bool,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    terms: Terms,
    /// As whom we are connected, in words.
    identity: String,
    table: Mutex<Table>,
    wake: Notify,
}

impl Session {
    pub(super) fn new(terms: Terms, identity: String) -> Arc<Self> {
        let table = Mutex::new(Table::new(terms.channels, terms.frame_max));
        Arc::new(Self { terms, identity, table, wake: Notify::new() })
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Why the broker takes nothing now, if so.
    pub(super) fn blocked(&self) -> Option<String> {
        self.table().blocked().map(str::to_owned)
    }

    /// The largest body that the broker takes, once it has said so.
    pub(super) fn bytes_max(&self) -> Option<usize> {
        self.table().bytes_max()
    }

    /// Opens a mailbox. It closes when the handle is dropped.
    pub(super) fn register(self: &Arc<Self>) -> Registration {
        let mailbox = Arc::new(Mailbox::default());
        let call = self.table().register(&mailbox);
        Registration { session: Arc::clone(self), call, mailbox }
    }

    /// Asks, and waits for the answer: `Err(Some)` is a refusal, `Err(None)` silence.
    pub(super) async fn ask(&self, question: Question, within: Duration) -> Result<(), Option<Close>> {
        let (answer, answered) = oneshot::channel();
        self.table().ask(question, answer);
        self.wake.notify_one();
        match tokio::time::timeout(within, answered).await {
            Ok(Ok(answer)) => answer.map_err(Some),
            _ => Err(None),
        }
    }

    /// Tells everybody that the connection is gone.
    pub(super) fn end(&self, why: &str) {
        let mut bells = Vec::new();
        self.table().end(&why.into(), &mut bells);
        ring(bells);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere leaves the table whole: no code of others runs under the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ring(bells: Bells) {
    bells.iter().for_each(|mailbox| mailbox.ring());
}

/// Reads and writes until the connection ends; the answer is why it did.
pub(super) async fn serve(session: &Session, transport: &mut Transport) -> Failure {
    let error = match exchange_frames(session, transport).await {
        Ok(failure) => return failure,
        Err(error) => error,
    };
    // What came before the end still counts: confirmations, and why the broker hung up.
    let _ = transport.read();
    hear(session, transport).ok().flatten().unwrap_or_else(|| verdict::lost(&error))
}

async fn exchange_frames(session: &Session, transport: &mut Transport) -> io::Result<Failure> {
    let heartbeat = session.terms.heartbeat;
    let mut beat = tokio::time::interval(heartbeat / 2);
    let (mut heard_at, mut idle) = (Instant::now(), false);
    loop {
        idle &= !write(session, transport)?;
        let ticked = tokio::select! {
            ready = transport.ready() => ready.map(|()| false)?,
            () = session.wake.notified() => false,
            _ = beat.tick() => true,
        };
        if transport.read()? {
            heard_at = Instant::now();
        }
        if let Some(failure) = hear(session, transport)? {
            return Ok(failure);
        }
        // Two intervals of silence: the other end, or the line to it, is gone.
        if ticked && heard_at.elapsed() > heartbeat * 2 {
            return Ok(verdict::silent(heartbeat * 2));
        }
        if ticked && std::mem::replace(&mut idle, true) {
            session.table().beat();
        }
    }
}

/// Writes what the broker takes now. Whether anything was.
fn write(session: &Session, transport: &mut Transport) -> io::Result<bool> {
    let mut any = false;
    loop {
        if transport.is_drained() {
            session.table().fill(&mut transport.out);
        }
        let mut left = 0;
        let written = transport.write(&mut left);
        session.table().wrote(left);
        written?;
        any |= left > 0;
        if left == 0 || !transport.is_drained() {
            return Ok(any);
        }
    }
}

/// Handles every frame that is there. `Some`: the broker closed the connection.
fn hear(session: &Session, transport: &mut Transport) -> io::Result<Option<Failure>> {
    let mut bells = Vec::new();
    let mut table = session.table();
    let mut closed = None;
    while closed.is_none()
        && let Some((channel, heard)) = transport.frame()?
    {
        closed = table.hear(channel, heard, &mut bells);
    }
    let too_many = table.unanswered() > UNANSWERED_MAX;
    drop(table);
    ring(bells);
    if let Some(close) = closed {
        wire::connection_close_ok(&mut transport.out);
        let _ = transport.write(&mut 0);
        return Ok(Some(verdict::closed(&close)));
    }
    Ok(too_many.then(verdict::too_many_unanswered))
}

/// A call's place in the session.
#[derive(Debug)]
pub(super) struct Registration {
    session: Arc<Session>,
    call: u64,
    mailbox: Arc<Mailbox<Note>>,
}

impl Registration {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Hands parcels over, in this order.
    pub(super) fn submit(&self, parcels: impl Iterator<Item = Parcel>) {
        let mut table = self.session.table();
        parcels.for_each(|parcel| table.submit(self.call, parcel));
        drop(table);
        self.session.wake.notify_one();
    }

    /// Takes back what has not left; answers with the indexes.
    pub(super) fn withdraw(&self) -> Vec<usize> {
        self.session.table().withdraw(self.call)
    }

    /// Takes all notes, or leaves the waker.
    pub(super) fn poll_notes(&self, context: &mut Context<'_>, notes: &mut Vec<Note>) -> Poll<()> {
        self.mailbox.poll_take(context, notes)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.session.table().forget(self.call);
    }
}
