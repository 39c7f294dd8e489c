//! A handler in another process, and what it answered.
//!
//! It is asked before the transaction, and [`Handler::handle`] only appends the events of its reply. Who is
//! asked, and when, is the inbox's business: `consumer/outside.rs`.

use super::Handler;
use super::replies::{Asking, CallId, Replies};
use crate::append::Outbox;
use async_trait::async_trait;
use posthaste::consumer::{Failure, FailureKind, HandlerError, Message};
use posthaste::event::{Event, Limits};
use posthaste::inbox::remote::RemoteHandler;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_postgres::Transaction;
use tracing::Instrument;

/// A handler in another process.
pub struct OutsideHandler {
    remote: Arc<dyn RemoteHandler>,
    outbox: Outbox,
    permits: Semaphore,
    replies: Replies,
}

impl OutsideHandler {
    /// Asks `remote`, and appends the events of its replies to the outbox in this schema.
    #[must_use]
    pub fn new(schema: &str, remote: Arc<dyn RemoteHandler>) -> Self {
        let (permits, replies) = (Semaphore::new(remote.calls_max().max(1)), Replies::default());
        Self { remote, outbox: Outbox::new(schema), permits, replies }
    }

    /// Asks about one message, unless the reply is here already. `None`: its turn did not come in time.
    pub(crate) async fn ask(
        &self,
        message: &Message<'_>,
        asking: &Asking,
        is_marked_by_app: bool,
    ) -> Option<Result<(), Failure>> {
        let id = CallId::of(message);
        if let Some(known) = self.replies.take_up(&id, asking) {
            return Some(known);
        }
        // It is never closed.
        let _permit = self.permits.acquire().await;
        if asking.is_late() {
            return None;
        }
        let reply = self.remote.call(message, asking.within).instrument(message.span()).await;
        let reply = reply.and_then(|events| acceptable(events, is_marked_by_app));
        let told = reply.as_ref().map(drop).map_err(Clone::clone);
        // What is away is asked again when the engine wants to know.
        if !matches!(&told, Err(Failure { kind: FailureKind::Unavailable(_), .. })) {
            self.replies.keep(id, reply, asking);
        }
        Some(told)
    }

    /// Whether it has handled this message.
    pub(crate) fn has_handled(&self, message: &Message<'_>) -> bool {
        self.replies.get(&CallId::of(message)).is_some_and(|reply| reply.is_ok())
    }

    pub(crate) fn forget(&self, message: &Message<'_>) {
        self.replies.forget(&CallId::of(message));
    }
}

/// Events that can be appended, where they are ours to append.
fn acceptable(events: Vec<Event>, is_marked_by_app: bool) -> Result<Vec<Event>, Failure> {
    let wrong = |why: String| Err(Failure::new(FailureKind::Error, "handler.answer", why));
    if is_marked_by_app && !events.is_empty() {
        return wrong(
            "the answer has events, and the application keeps the marks: they could be appended twice. Append them in the \
             application's own transaction"
                .to_owned(),
        );
    }
    let limits = Limits::default();
    match events.iter().find_map(|event| Some((event, limits.check(event).err()?))) {
        Some((event, why)) => wrong(format!("an event of the answer, for {:?}: {why}", event.topic)),
        None => Ok(events),
    }
}

#[async_trait]
impl Handler for OutsideHandler {
    /// Appends the events of the reply. The message was asked about before.
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        // Without a reply its effects may be missing: to say nothing would be to lose it.
        let unasked = || std::io::Error::other("its handler outside was not asked, or has not answered");
        let events = self.replies.get(&CallId::of(message)).and_then(Result::ok).ok_or_else(unasked)?;
        for event in &events {
            self.outbox.append(tx, event).await?;
        }
        Ok(())
    }

    fn outside(&self) -> Option<&OutsideHandler> {
        Some(self)
    }
}
