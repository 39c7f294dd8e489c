//! Running handlers in an open transaction: in order, each with its time, and none of them may end it.
//!
//! **The guard.** A handler that says COMMIT would commit the marks of the whole batch. So before each
//! handler goes a question, sent ahead without waiting: is the transaction still ours? Its answer is there
//! when the handler is done. The last one goes with the commit. The guard also finds a handler that swallowed
//! an error: then the transaction is aborted, and a COMMIT would be answered with a friendly ROLLBACK.
//!
//! **The time.** A handler whose time is over has failed, unless it stands in front of somebody's lock: a
//! migration is nobody's fault, however long it takes. Only the server knows, so it is asked over another
//! connection, when half of the time is over and at the end. The lock may go in between, and what is left
//! then is not the time that the handler was promised. At the end its statement is cancelled, or it would
//! keep what others of the key wait for. Refused: a `lock_timeout` of ours for handlers, which would be
//! another one than the service has chosen.

use super::failure::{LOST_CODE, is_in_conflict, late, of_handler, of_panic, waiting};
use super::{PostgresInbox, THEIRS};
use crate::error::{describe, is_code};
use crate::handler::Failed;
use crate::session::{LentTransaction, SqlResult, params};
use futures_util::FutureExt;
use posthaste::consumer::store::Work;
use posthaste::consumer::{Failure, FailureKind, Message};
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;
use tracing::Instrument;

/// Whose transaction it is. A role that a handler left behind is not the next one's.
pub(super) const GUARD: &str = "set local role to default; select pg_current_xact_id_if_assigned()::text";

/// How long the question may take whether a handler waits for a lock. By itself its statement ends after
/// [`SLACK`](super::SLACK).
const ASK_MAX: Duration = Duration::from_secs(3);

/// How to go.
#[derive(Clone, Copy)]
pub(super) struct RunBounds {
    /// For one call of a handler.
    pub(super) timeout: Duration,
    /// After so much time of handlers none is begun. Messages are then handed over by and by: as many as were
    /// handled before, if they fit into the time.
    pub(super) time_max: Option<Duration>,
    /// What one message took the last time, if that is known. Then the first call is as large as fits.
    pub(super) each: Option<Duration>,
}

impl RunBounds {
    /// How many messages go into the next call, of so many that could.
    fn next(self, ran: &Ran, most: usize) -> usize {
        let Some(time_max) = self.time_max else { return most };
        let (each, most) = match (ran.count, self.each) {
            (0, None) => return 1,
            (0, Some(each)) => (each.as_secs_f64(), most),
            (count, _) => (ran.time.as_secs_f64() / count as f64, most.min(count)),
        };
        let fit = time_max.saturating_sub(ran.time).as_secs_f64() / each.max(1e-9);
        most.min(fit as usize).max(1)
    }
}

/// How far it went.
pub(super) struct Ran {
    /// So many of the messages were handled, from the first on.
    pub(super) count: usize,
    /// So many were begun: more than were handled, if a call failed.
    pub(super) begun: usize,
    /// What their handlers took.
    pub(super) time: Duration,
    pub(super) stop: Option<Stop>,
}

/// Why it did not go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// A handler failed: whose, or nobody's alone.
    Failed { at: Option<usize>, failure: Failure },
    /// The transaction was ended by this one's handler.
    Committed { by: usize },
}

/// What a call of a handler came to.
enum Called {
    Done,
    OneByOne,
    Failed(Option<usize>, Failure),
}

impl PostgresInbox {
    /// Runs these messages in order. Those that no handler takes are passed over.
    pub(super) async fn run(
        &self,
        tx: &mut LentTransaction<'_>,
        works: &[&Work],
        xid: &str,
        pace: RunBounds,
    ) -> Ran {
        let mut ran = Ran { count: 0, begun: 0, time: Duration::ZERO, stop: None };
        let mut one_by_one = false;
        let mut guard = format!("{THEIRS}; {GUARD}");
        while ran.stop.is_none() && ran.count < works.len() && !is_over(&ran, pace) {
            let rest = &works[ran.count..];
            let Some(index) = self.handler(&rest[0].delivery) else {
                ran.count += 1;
                continue;
            };
            let alike = rest.iter().take_while(|work| self.handler(&work.delivery) == Some(index)).count();
            let taken = if one_by_one { 1 } else { pace.next(&ran, alike) };
            ran.begun = ran.count + taken;
            let asked = match tx.send(&guard).await {
                Ok(asked) => asked,
                Err(error) => {
                    ran.stop = Some(lost(ran.count, &error));
                    break;
                }
            };
            let began = Instant::now();
            let called = self.call(tx, index, &rest[..taken], xid, pace.timeout).await;
            ran.time += began.elapsed();
            let guarded = tx.answer(asked).await;
            ran.stop = match (judge(guarded, xid, ran.count), called) {
                (Err(stop @ Stop::Committed { .. }), Called::Done) => {
                    ran.count += taken;
                    Some(stop)
                }
                // Without an answer of the guard the handler's own words are the better ones.
                (Err(Stop::Failed { failure, .. }), Called::Failed(at, said))
                    if failure.kind == FailureKind::ConnectionLost =>
                {
                    Some(Stop::Failed { at: at.map(|at| ran.count + at), failure: said })
                }
                (Err(stop), _) => Some(stop),
                (Ok(()), Called::Failed(at, failure)) => {
                    Some(Stop::Failed { at: at.map(|at| ran.count + at), failure })
                }
                (Ok(()), Called::Done) => {
                    ran.count += taken;
                    None
                }
                (Ok(()), Called::OneByOne) => {
                    one_by_one = true;
                    None
                }
            };
            GUARD.clone_into(&mut guard);
        }
        ran
    }

    async fn call(
        &self,
        tx: &mut LentTransaction<'_>,
        handler: usize,
        works: &[&Work],
        xid: &str,
        limit: Duration,
    ) -> Called {
        let (_, handler) = &self.handlers[handler];
        let messages: Vec<Message<'_>> =
            works.iter().map(|work| Message::new(&self.consumer, work)).collect();
        let only = (works.len() == 1).then_some(0);
        let began = Instant::now();
        let handling = async {
            match &messages[..] {
                [message] => handler.handle(&mut tx.tx, message).await.map_err(|error| Failed::At(0, error)),
                all => handler.handle_all(&mut tx.tx, all).await,
            }
        };
        let handling = AssertUnwindSafe(handling.instrument(Message::span_of(&messages))).catch_unwind();
        let backend = tx.backend;
        let ended = tokio::select! {
            biased;
            ended = handling => Ok(ended),
            has_waited = self.time_out(backend, xid, limit) => Err(has_waited),
        };
        let (at, error) = match ended {
            Ok(Ok(Ok(()))) => return Called::Done,
            Ok(Ok(Err(Failed::OneByOne))) => return Called::OneByOne,
            Ok(Ok(Err(Failed::At(at, error)))) => (Some(at).filter(|at| *at < works.len()), error),
            Ok(Ok(Err(Failed::Together(error)))) => (only, error),
            Ok(Err(panic)) => return Called::Failed(only, of_panic(&*panic)),
            Err(has_waited) => {
                let waits = self.is_blocked(backend, xid, Overdue::Cancel, ASK_MAX).await;
                return Called::Failed(only, if waits || has_waited { waiting() } else { late(None) });
            }
        };
        let is_late = began.elapsed() >= limit && !is_in_conflict(&error);
        Called::Failed(at, if is_late { late(Some(error)) } else { of_handler(error, tx.is_closed()) })
    }
}

/// What becomes of the statement that is asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overdue {
    LeftAlone,
    Cancel,
}

impl PostgresInbox {
    /// Ends when the handler's time is over, and answers whether half-way it stood in front of a lock.
    async fn time_out(&self, backend: Option<i32>, xid: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        tokio::time::sleep(limit / 2).await;
        let has_waited = self.is_blocked(backend, xid, Overdue::LeftAlone, ASK_MAX.min(limit / 2)).await;
        tokio::time::sleep_until(end).await;
        has_waited
    }

    /// Whether a handler's statement stands in front of somebody's lock. No answer is no excuse.
    async fn is_blocked(&self, backend: Option<i32>, xid: &str, then: Overdue, within: Duration) -> bool {
        let (sql, cancel) = (include_str!("../../sql/consumer/overdue.sql"), then == Overdue::Cancel);
        let asked = timeout(within, self.look(sql, params![INT4 backend, TEXT xid, BOOL cancel])).await;
        matches!(asked, Ok(Ok(rows)) if rows.first().is_some_and(|row| row.get(0)))
    }
}

fn is_over(ran: &Ran, pace: RunBounds) -> bool {
    ran.count > 0 && pace.time_max.is_some_and(|max| ran.time >= max)
}

/// What the guard before this message says about the handlers before it.
pub(super) fn judge(guarded: SqlResult<Option<String>>, xid: &str, next: usize) -> Result<(), Stop> {
    let last = next.saturating_sub(1);
    match guarded {
        Ok(found) if found.as_deref() == Some(xid) => Ok(()),
        Ok(_) => Err(Stop::Committed { by: last }),
        Err(error) if is_code(&error, &SqlState::IN_FAILED_SQL_TRANSACTION) => {
            let why = "a statement of the handler failed, and the handler did not say so";
            let failure = Failure::new(FailureKind::Error, "handler.swallowed", why);
            Err(Stop::Failed { at: Some(last), failure })
        }
        Err(error) => Err(lost(next, &error)),
    }
}

fn lost(at: usize, error: &tokio_postgres::Error) -> Stop {
    let failure = Failure::new(FailureKind::ConnectionLost, LOST_CODE, describe(error));
    Stop::Failed { at: Some(at), failure }
}

/// Why a consumer stops whose handler ended the transaction.
pub(super) fn committed() -> Failure {
    Failure::new(
        FailureKind::Committed,
        "handler.committed",
        "the handler ended the transaction that it was given: other messages of its batch may have their marks \
         without their effects. Take COMMIT and ROLLBACK out of the handler",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_grow_while_they_fit_into_the_time() {
        let ms = Duration::from_millis;
        let ran = |count, took| Ran { count, begun: count, time: ms(took), stop: None };
        let bounds = |time_max| RunBounds { timeout: ms(1_000), time_max, each: None };
        let next = |count, took, most| bounds(Some(ms(50))).next(&ran(count, took), most);
        assert_eq!([next(0, 0, 64), next(1, 1, 63), next(2, 2, 62), next(16, 4, 48)], [1, 1, 2, 16]);
        assert_eq!([next(8, 40, 56), next(1, 40, 63), next(32, 8, 5)], [2, 1, 5], "what is left, and fits");
        let first = |each| RunBounds { each: Some(each), ..bounds(Some(ms(50))) };
        let begun = |each, most| first(each).next(&ran(0, 0), most);
        assert_eq!([begun(ms(1), 64), begun(ms(1), 9), begun(ms(80), 64)], [50, 9, 1], "as the last time");
        assert_eq!(bounds(None).next(&ran(0, 0), 64), 64);
    }
}
