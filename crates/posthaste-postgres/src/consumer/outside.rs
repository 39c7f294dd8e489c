//! Handlers in another process, as our transactions see them.
//!
//! Such a handler is asked first, without a transaction, and its reply is kept until the transaction with the
//! mark has committed. So a batch that fails for one of its messages, or for the database, does not ask
//! anybody again about the others. A refusal is kept in the same way: it was that message's own, and when
//! the engine runs the message alone to find out, the answer is there already.
//!
//! What is asked is decided by a look at holds and marks, in a statement of its own. Between that look and
//! the transaction somebody else may settle the message: then the mark says so, and the reply is dropped. Or
//! a hold goes, and a message is free that nobody was asked about: it comes again in a moment.
//!
//! With [`InboxTables::MarkedByApp`](super::InboxTables) there is no transaction at all after the reply: the
//! application has marked the message, in its own. What waits and what is dead is ours in both cases.

use super::PostgresInbox;
use super::columns::Places;
use super::failure::apply_error;
use crate::append::Outbox;
use crate::handler::Handler;
use crate::session::params;
use async_trait::async_trait;
use futures_util::future::join_all;
use posthaste::consumer::store::{ApplyError, Applying, MessageOutcome, Witness, Work};
use posthaste::consumer::{Failure, FailureKind, HandlerError, Message};
use posthaste::event::{Event, Limits};
use posthaste::inbox::remote::RemoteHandler;
use posthaste::source::Ticket;
use rustc_hash::FxHashMap;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_postgres::Transaction;
use tracing::Instrument;
use uuid::Uuid;

/// A reply that nobody has used for so long belongs to a message that went elsewhere.
const KEPT_MAX: Duration = Duration::from_secs(60);

/// A handler in another process.
pub struct OutsideHandler {
    remote: Arc<dyn RemoteHandler>,
    outbox: Outbox,
    permits: Semaphore,
    kept: Mutex<FxHashMap<CallId, KeptReply>>,
}

/// One attempt of one delivery.
#[derive(Clone, PartialEq, Eq, Hash)]
struct CallId {
    message: Box<str>,
    ticket: Ticket,
    attempt: u32,
}

impl CallId {
    fn of(message: &Message<'_>) -> Self {
        Self { message: message.id().into(), ticket: message.ticket.clone(), attempt: message.attempt() }
    }
}

struct KeptReply {
    reply: Result<Vec<Event>, Failure>,
    since: Instant,
}

impl OutsideHandler {
    /// Asks `remote`, and appends the events of its replies to the outbox in this schema.
    #[must_use]
    pub fn new(schema: &str, remote: Arc<dyn RemoteHandler>) -> Self {
        let (permits, kept) = (Semaphore::new(remote.calls_max().max(1)), Mutex::default());
        Self { remote, outbox: Outbox::new(schema), permits, kept }
    }

    fn kept(&self) -> MutexGuard<'_, FxHashMap<CallId, KeptReply>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has answered, and what it refused.
    fn refusal(&self, id: &CallId) -> Option<Result<(), Failure>> {
        self.kept().get(id).map(|kept| kept.reply.as_ref().map(drop).map_err(Clone::clone))
    }

    /// Asks about one message, unless the reply is here already.
    async fn ask(
        &self,
        message: &Message<'_>,
        within: Duration,
        is_marked_by_app: bool,
    ) -> Result<(), Failure> {
        let id = CallId::of(message);
        if let Some(known) = self.refusal(&id) {
            return known;
        }
        // It is never closed.
        let _permit = self.permits.acquire().await;
        let reply = self.remote.call(message, within).instrument(message.span()).await;
        let reply = reply.and_then(|events| acceptable(events, is_marked_by_app));
        let told = reply.as_ref().map(drop).map_err(Clone::clone);
        // What is away is asked again when the engine wants to know.
        if !matches!(&told, Err(Failure { kind: FailureKind::Unavailable(_), .. })) {
            let (since, mut kept) = (Instant::now(), self.kept());
            kept.retain(|_, kept| since.duration_since(kept.since) < KEPT_MAX);
            kept.insert(id, KeptReply { reply, since });
        }
        told
    }

    fn forget(&self, message: &Message<'_>) {
        self.kept().remove(&CallId::of(message));
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
        let events = self.kept().get(&CallId::of(message)).and_then(|kept| kept.reply.clone().ok());
        for event in events.iter().flatten() {
            self.outbox.append(tx, event).await?;
        }
        Ok(())
    }

    fn outside(&self) -> Option<&OutsideHandler> {
        Some(self)
    }
}

impl PostgresInbox {
    fn outside(&self, work: &Work) -> Option<&OutsideHandler> {
        let (_, handler) = self.handlers.get(self.handler(&work.delivery)?)?;
        handler.outside()
    }

    pub(super) fn is_outside(&self, work: &Work) -> bool {
        self.has_outside && self.outside(work).is_some()
    }

    pub(super) fn is_marked_by_app(&self) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.is_by_app)
    }

    /// Whether a message can run: its handler is here, or has answered.
    pub(super) fn has_reply(&self, work: &Work) -> bool {
        let Some(outside) = self.outside(work) else { return true };
        outside.refusal(&CallId::of(&Message::new(&self.consumer, work))).is_some_and(|reply| reply.is_ok())
    }

    pub(super) fn forget_replies<'a>(&self, works: impl IntoIterator<Item = &'a Work>) {
        for work in works {
            if let Some(outside) = self.outside(work) {
                outside.forget(&Message::new(&self.consumer, work));
            }
        }
    }

    /// Asks about messages of different keys at once and about those of one key in turn, until one of that
    /// key is refused. Nobody is asked any more once somebody is away. One reply for each, `None` where
    /// nobody was asked.
    pub(super) async fn ask_outside(
        &self,
        works: &[&Work],
        within: Duration,
    ) -> Vec<Option<Result<(), Failure>>> {
        let mut chains: Vec<Vec<usize>> = Vec::new();
        let mut chain_of: FxHashMap<(&str, Uuid), usize> = FxHashMap::default();
        for (at, work) in works.iter().enumerate() {
            let key = work.order_id.map(|order_id| (&*work.delivery.partition().topic, order_id));
            match key.and_then(|key| chain_of.get(&key).copied()) {
                Some(chain) => chains[chain].push(at),
                None => {
                    chain_of.extend(key.map(|key| (key, chains.len())));
                    chains.push(vec![at]);
                }
            }
        }
        let (is_away, is_by_app) = (AtomicBool::new(false), self.is_marked_by_app());
        let asked = chains.into_iter().map(async |chain| {
            let mut replies = Vec::with_capacity(chain.len());
            for at in chain {
                let Some(outside) = self.outside(works[at]).filter(|_| !is_away.load(Relaxed)) else { break };
                let reply = outside.ask(&Message::new(&self.consumer, works[at]), within, is_by_app).await;
                if let Err(failure) = &reply {
                    let away = matches!(failure.kind, FailureKind::Unavailable(_));
                    is_away.fetch_or(away, Relaxed);
                }
                let is_refused = reply.is_err();
                replies.push((at, reply));
                if is_refused {
                    break;
                }
            }
            replies
        });
        let mut all: Vec<Option<Result<(), Failure>>> = works.iter().map(|_| None).collect();
        for (at, reply) in join_all(asked).await.into_iter().flatten() {
            all[at] = Some(reply);
        }
        all
    }

    /// Before T1: what of this batch may run is asked about, if its handler is outside. Where the application
    /// keeps the marks, that is all there is to do, and this is the answer.
    pub(super) async fn apply_outside(
        &self,
        asked: Option<Witness>,
        batch: &[Work],
        within: Duration,
    ) -> Result<Option<(Applying, Vec<usize>)>, ApplyError> {
        let outside: Vec<usize> = (0..batch.len()).filter(|at| self.is_outside(&batch[*at])).collect();
        if outside.is_empty() {
            return Ok(None);
        }
        let places = Places::of(outside.iter().map(|at| &batch[*at]));
        let params = params![
            TEXT &*self.consumer, TEXT_ARRAY places.ids, TEXT_ARRAY places.topics, UUID_ARRAY places.order_ids,
            INT4_ARRAY places.partitions, INT8_ARRAY places.positions,
        ];
        let rows =
            self.look(&self.statements.look, params).await.map_err(|error| apply_error(None, error))?;
        let witness = rows.first().map(super::witness).unwrap_or_default();
        if witness.is_not(asked) {
            return Err(ApplyError::another_life(witness));
        }
        let (mut outcomes, mut redriven) = (vec![MessageOutcome::Duplicate; batch.len()], Vec::new());
        let (mut held, mut seen, mut free) = (HashSet::new(), HashSet::new(), Vec::new());
        for (row, &at) in rows.iter().zip(&outside) {
            let work = &batch[at];
            let key = work.order_id.map(|order_id| (&*work.delivery.partition().topic, order_id));
            match row.get::<_, Option<&str>>("outcome") {
                Some("x") if row.get("elsewhere") => redriven.push(at),
                Some(_) => {}
                None if row.get("held") || key.is_some_and(|key| held.contains(&key)) => {
                    held.extend(key);
                    outcomes[at] = MessageOutcome::Held;
                }
                // One that comes twice in a batch is handled once.
                None if !seen.insert(&*work.id) => {}
                None => {
                    outcomes[at] = MessageOutcome::Done;
                    free.push(at);
                }
            }
        }
        let works: Vec<&Work> = free.iter().map(|at| &batch[*at]).collect();
        let replies = self.ask_outside(&works, within).await;
        let refused = replies.iter().position(|reply| matches!(reply, Some(Err(_))));
        if let Some(at) = refused
            && let Some(Some(Err(failure))) = replies.into_iter().nth(at)
        {
            // Alone it counts, and the next attempt is another one. In company it is named, and runs alone.
            if batch.len() == 1 {
                self.forget_replies([works[at]]);
            }
            return Err(ApplyError { witness: Some(witness), at: Some(free[at]), failure });
        }
        // CRASH: a handler outside has done its work, and nothing here says so. The message
        // is delivered again and asked about again: effects outside happen at least once, unless the
        // application keeps the marks itself (G5).
        if !self.is_marked_by_app() {
            return Ok(None);
        }
        self.forget_replies(works);
        Ok(Some((Applying { witness, outcomes, handler_time: Duration::ZERO }, redriven)))
    }
}

/// The lock of a message that is in no order, where no mark of ours lets one of two members pass.
pub(super) fn own_lock(id: &str) -> Uuid {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    id.hash(&mut hasher);
    Uuid::from_u64_pair(hasher.finish(), 0)
}
