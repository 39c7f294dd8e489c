//! One connection as the calls see it: messages go in, answers come out.
//!
//! There is one table under one lock, and one task ([`Connection`](super::Connection)) that reads and writes.
//! Calls leave their messages in a queue. The task takes them when the broker takes bytes, and only then
//! gives them a number. So a message that has not left can be taken back. Nothing is sent after the relay was
//! told that it failed, and a blocked connection holds whole messages, not half-sent ones.

use super::answer::{Close, Note};
use super::frames::Product;
use super::table::{ChannelTable, Publish, Question};
use crate::lock::locked;
use crate::mailbox::Mailbox;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// What was agreed on when the connection was opened.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) product: Product,
    pub(super) channels: u16,
    pub(crate) frame_max: usize,
    pub(super) heartbeat: Duration,
    pub(crate) encrypted: bool,
    pub(crate) local: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    terms: Terms,
    /// As whom we are connected, in words.
    identity: String,
    table: Mutex<ChannelTable>,
    wake: Notify,
}

impl Session {
    pub(super) fn new(terms: Terms, identity: String) -> Arc<Self> {
        let table = Mutex::new(ChannelTable::new(terms.channels, terms.frame_max));
        Arc::new(Self { terms, identity, table, wake: Notify::new() })
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Why the broker takes nothing now, if so.
    pub(crate) fn blocked(&self) -> Option<String> {
        self.table().blocked().map(str::to_owned)
    }

    /// The largest body that the broker takes, once it has said so.
    pub(crate) fn bytes_max(&self) -> Option<usize> {
        self.table().bytes_max()
    }

    /// Opens a mailbox. It closes when the handle is dropped.
    pub(crate) fn register(self: &Arc<Self>) -> Registration {
        let mailbox = Arc::new(Mailbox::default());
        let call = self.table().register(&mailbox);
        Registration { session: Arc::clone(self), call, mailbox }
    }

    /// Asks, and waits for the answer. `Err(Some)` is a refusal, and `Err(None)` is silence.
    pub(crate) async fn ask(&self, question: Question, within: Duration) -> Result<(), Option<Close>> {
        let (answer, answered) = oneshot::channel();
        self.table().ask(question, answer);
        self.wake.notify_one();
        match tokio::time::timeout(within, answered).await {
            Ok(Ok(answer)) => answer.map_err(Some),
            _ => Err(None),
        }
    }

    /// Whether a question has no answer yet.
    pub(super) fn is_asking(&self) -> bool {
        self.table().is_asking()
    }

    /// Tells everybody that the connection is gone.
    pub(super) fn end(&self, why: &str) {
        let mut bells = Vec::new();
        self.table().end(&why.into(), &mut bells);
        bells.iter().for_each(|mailbox| mailbox.ring());
    }

    /// Waits until a call wants something.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn table(&self) -> MutexGuard<'_, ChannelTable> {
        locked(&self.table)
    }
}

/// A call's place in the session.
#[derive(Debug)]
pub(crate) struct Registration {
    session: Arc<Session>,
    call: u64,
    mailbox: Arc<Mailbox<Note>>,
}

impl Registration {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Hands messages over, in this order.
    pub(crate) fn submit(&self, messages: impl Iterator<Item = Publish>) {
        let mut table = self.session.table();
        messages.for_each(|message| table.submit(self.call, message));
        drop(table);
        self.session.wake.notify_one();
    }

    /// Takes back the messages that have not left, and answers with their indices.
    pub(crate) fn withdraw(&self) -> Vec<usize> {
        self.session.table().withdraw(self.call)
    }

    /// Takes all notes. If there are none, the waker is kept.
    pub(crate) fn poll_notes(&self, context: &mut Context<'_>, notes: &mut Vec<Note>) -> Poll<()> {
        self.mailbox.poll_take(context, notes)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.session.table().forget(self.call);
    }
}
