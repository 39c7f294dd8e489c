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
use crate::handler::OutsideHandler;
use crate::handler::replies::Asking;
use crate::session::params;
use futures_util::future::join_all;
use posthaste::consumer::store::{ApplyError, Applying, MessageOutcome, Witness, Work};
use posthaste::consumer::{Failure, FailureKind, Message};
use rustc_hash::FxHashMap;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use uuid::Uuid;

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
        outside.has_handled(&Message::new(&self.consumer, work))
    }

    pub(super) fn forget_replies<'a>(&self, works: impl IntoIterator<Item = &'a Work>) {
        for work in works {
            if let Some(outside) = self.outside(work) {
                outside.forget(&Message::new(&self.consumer, work));
            }
        }
    }

    /// Asks about messages of different keys at once and about those of one key in turn, until one of that
    /// key is refused. Nobody is asked any more once somebody is away, or the time is over. One reply for
    /// each, `None` where nobody was asked.
    pub(super) async fn ask_outside(
        &self,
        works: &[&Work],
        asking: &Asking,
    ) -> Vec<Option<Result<(), Failure>>> {
        let mut chains: Vec<Vec<usize>> = Vec::new();
        let mut chain_of: FxHashMap<(&str, Uuid), usize> = FxHashMap::default();
        for (at, work) in works.iter().enumerate() {
            match key(work).and_then(|key| chain_of.get(&key).copied()) {
                Some(chain) => chains[chain].push(at),
                None => {
                    chain_of.extend(key(work).map(|key| (key, chains.len())));
                    chains.push(vec![at]);
                }
            }
        }
        let (is_away, is_by_app) = (AtomicBool::new(false), self.is_marked_by_app());
        let asked = chains.into_iter().map(async |chain| {
            let mut replies = Vec::with_capacity(chain.len());
            for at in chain {
                let Some(outside) = self.outside(works[at]).filter(|_| !is_away.load(Relaxed)) else { break };
                let message = Message::new(&self.consumer, works[at]);
                let Some(reply) = outside.ask(&message, asking, is_by_app).await else { break };
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

    /// Before T1: what of this batch may run is asked about, if its handler is outside. `None`: nothing of it
    /// is outside.
    ///
    /// What was answered is committed whatever was said of the others: [`MessageOutcome::Again`] stands for
    /// those that were refused or not asked, and for what is behind them.
    pub(super) async fn ask_before(
        &self,
        asked: Option<Witness>,
        batch: &[Work],
        within: Duration,
    ) -> Result<Option<Before>, ApplyError> {
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
        let asking = self.askings.begin(witness, within);
        let mut before =
            Before { outcomes: vec![MessageOutcome::Duplicate; batch.len()], redriven: Vec::new(), asking };
        let (mut held, mut here, mut seen) = (HashSet::new(), HashSet::new(), HashSet::new());
        let (mut free, mut rows) = (Vec::new(), rows.iter());
        for (at, work) in batch.iter().enumerate() {
            let Some(row) = outside.binary_search(&at).ok().and_then(|_| rows.next()) else {
                // It runs in the transaction, and nobody is asked about what is behind it before.
                here.extend(key(work));
                continue;
            };
            before.outcomes[at] = match row.get::<_, Option<&str>>("outcome") {
                Some("x") if row.get("elsewhere") => {
                    before.redriven.push(at);
                    MessageOutcome::Duplicate
                }
                Some(_) => MessageOutcome::Duplicate,
                None if row.get("held") || key(work).is_some_and(|key| held.contains(&key)) => {
                    held.extend(key(work));
                    MessageOutcome::Held
                }
                None if key(work).is_some_and(|key| here.contains(&key)) => MessageOutcome::Again,
                // One that comes twice in a batch is handled once.
                None if !seen.insert(&*work.id) => MessageOutcome::Duplicate,
                None => {
                    free.push(at);
                    MessageOutcome::Done
                }
            };
        }
        let works: Vec<&Work> = free.iter().map(|at| &batch[*at]).collect();
        let replies = self.ask_outside(&works, &before.asking).await;
        for (reply, &at) in replies.into_iter().zip(&free) {
            match reply {
                Some(Ok(())) => {}
                // Alone it counts, and the next attempt is another one.
                Some(Err(failure)) if batch.len() == 1 => {
                    self.forget_replies(batch);
                    return Err(ApplyError { witness: Some(witness), at: Some(0), failure });
                }
                None if batch.len() == 1 => {
                    let why = "its handler is busy with others, and could not be asked in time";
                    let failure = Failure::new(FailureKind::Conflict, "handler.busy", why);
                    return Err(ApplyError { witness: Some(witness), at: Some(0), failure });
                }
                Some(Err(_)) | None => before.outcomes[at] = MessageOutcome::Again,
            }
        }
        let mut again = HashSet::new();
        for (work, outcome) in batch.iter().zip(&mut before.outcomes) {
            let is_behind = key(work).is_some_and(|key| again.contains(&key));
            if is_behind || *outcome == MessageOutcome::Again {
                *outcome = MessageOutcome::Again;
                again.extend(key(work));
            }
        }
        before.redriven.retain(|at| before.outcomes[*at] != MessageOutcome::Again);
        // CRASH(outside.answered): a handler outside has done its work, and nothing here says so. The message
        // is delivered again and asked about again: effects outside happen at least once, unless the
        // application keeps the marks itself (G5).
        posthaste::crash_point!("outside.answered");
        Ok(Some(before))
    }
}

/// What handlers outside say of a batch, before its transaction. Their replies are kept while it lives.
pub(super) struct Before {
    pub(super) outcomes: Vec<MessageOutcome>,
    /// Dead letters that somebody's tool sent back.
    pub(super) redriven: Vec<usize>,
    asking: Asking,
}

impl Before {
    /// Where the application keeps the marks, that is all there is to do.
    pub(super) fn applied(&self) -> (Applying, Vec<usize>) {
        let (witness, outcomes) = (self.asking.life(), self.outcomes.clone());
        (Applying { witness, outcomes, handler_time: Duration::ZERO }, self.redriven.clone())
    }

    /// Those that the transaction is about.
    pub(super) fn in_transaction(&self) -> Vec<usize> {
        let outcomes = self.outcomes.iter().enumerate();
        outcomes.filter(|(_, outcome)| **outcome != MessageOutcome::Again).map(|(at, _)| at).collect()
    }
}

/// What is kept in order.
fn key(work: &Work) -> Option<(&str, Uuid)> {
    Some((&*work.delivery.partition().topic, work.order_id?))
}

/// The lock of a message that is in no order, where no mark of ours lets one of two members pass.
pub(super) fn own_lock(id: &str) -> Uuid {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    id.hash(&mut hasher);
    Uuid::from_u64_pair(hasher.finish(), 0)
}
