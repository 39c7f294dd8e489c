//! Settling: one transaction for a whole batch, the receipt among it.
//!
//! The lane's owner is checked first, under the write lock: a settlement under a stale epoch changes nothing
//! (G4). Repeating one whose outcome is unknown is harmless: the receipt of that number is there already,
//! with our epoch.
//!
//! A settlement that began is finished, also when nobody waits for it any more: it runs in a task of its own,
//! so that the cursor in memory and the one in the database never part.

use crate::clock::{NEVER, micros, now};
use crate::error::store_error;
use crate::log::lease::{LogLease, Settled, Title};
use crate::log::store::transient;
use crate::row::event_sql;
use posthaste::Timestamp;
use posthaste::admin::History;
use posthaste::crash_point;
use posthaste::store::{Death, Deferral, Due, Settlement, StoreError};
use rusqlite::{OptionalExtension, Transaction, params};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a receipt says.
#[derive(Debug, Clone, Copy)]
struct Receipt {
    n: i64,
    position: i64,
    count: i64,
    delivered: i64,
}

/// A settlement as the writer's thread needs it: numbers and outcomes. The copies are made from the log,
/// which still holds every event of an unsettled page.
struct Outcomes {
    deferred: Vec<(i64, Option<String>, Deferral)>,
    dead: Vec<(i64, Death)>,
    delivered: Vec<i64>,
    again: Vec<(i64, Deferral)>,
    died: Vec<(i64, Death)>,
}

impl Outcomes {
    fn of(settlement: &Settlement) -> Self {
        let deferred = settlement.deferred.iter();
        Self {
            deferred: deferred.map(|(e, d)| (e.seq, e.event.key.clone(), d.clone())).collect(),
            dead: settlement.dead.iter().map(|(e, death)| (e.seq, death.clone())).collect(),
            delivered: settlement.delivered.clone(),
            again: settlement.again.clone(),
            died: settlement.died.clone(),
        }
    }

    fn is_empty(&self) -> bool {
        self.deferred.is_empty()
            && self.dead.is_empty()
            && self.delivered.is_empty()
            && self.again.is_empty()
            && self.died.is_empty()
    }
}

impl LogLease {
    pub(crate) async fn write_settlement(&self, settlement: &Settlement) -> Result<(), StoreError> {
        let mut settled = Arc::clone(&self.settled).lock_owned().await;
        if self.is_settled(settlement) {
            return Ok(());
        }
        let (receipt, through) = (self.receipt(&settled, settlement), settlement.through);
        let outcomes = Outcomes::of(settlement);
        if !outcomes.is_empty() {
            // Before the rows are there: a page that is read from now on must look.
            self.holding.set();
        }
        let (inner, title) = (Arc::clone(&self.inner), Arc::clone(&self.title));
        let (steps, holding) = (Arc::clone(&self.steps), Arc::clone(&self.holding));
        let holds = !outcomes.is_empty();
        let finish = tokio::spawn(async move {
            inner.write(move |tx| write(tx, &title, receipt, &outcomes)).await?;
            if holds {
                // And once more now that they are: a look at the deferred in between did not see them, and
                // may have said that nothing is held.
                holding.set();
            }
            (settled.n, settled.position) = (receipt.n, receipt.position);
            let mut steps = steps.lock();
            while steps.front().is_some_and(|step| through.is_some_and(|through| step.number <= through)) {
                steps.pop_front();
            }
            Ok(())
        });
        finish.await.unwrap_or_else(|error| Err(transient(format!("a settlement was cut off: {error}"))))
    }

    /// A settlement of pages that are settled already, and nothing else.
    fn is_settled(&self, settlement: &Settlement) -> bool {
        let Some(through) = settlement.through else { return settlement.is_empty() };
        let has_outcome =
            !settlement.delivered.is_empty() || !settlement.again.is_empty() || !settlement.died.is_empty();
        let first = self.steps.lock().front().map(|step| step.number);
        !has_outcome && first.is_none_or(|first| first > through)
    }

    fn receipt(&self, settled: &Settled, settlement: &Settlement) -> Receipt {
        let mut receipt = Receipt { n: settled.n + 1, position: settled.position, count: 0, delivered: 0 };
        let through = settlement.through.unwrap_or(0);
        for step in self.steps.lock().iter().take_while(|step| step.number <= through) {
            receipt.position = step.after;
            receipt.count += step.count;
        }
        receipt.delivered = settlement.delivered_of(receipt.count);
        receipt
    }
}

/// All of a settlement, in the writer's transaction.
fn write(
    tx: &Transaction<'_>,
    title: &Title,
    receipt: Receipt,
    outcomes: &Outcomes,
) -> Result<(), StoreError> {
    title.check(tx)?;
    if is_there(tx, title, receipt.n)? {
        return Ok(());
    }
    let written = write_receipt(tx, title, receipt).and_then(|()| write_outcomes(tx, title, outcomes));
    written.map_err(store_error)?;
    // CRASH(sqlite.settle.uncommitted): the transaction dies with the process: nothing is settled, the next
    // owner publishes the batch again (G2).
    crash_point!("sqlite.settle.uncommitted");
    Ok(())
}

/// Whether the receipt is there already: an earlier try of ours was committed after all. Somebody else's
/// fences.
fn is_there(tx: &Transaction<'_>, title: &Title, n: i64) -> Result<bool, StoreError> {
    let sql = "select epoch from posthaste_receipts where sink = ?1 and lane = ?2 and n = ?3";
    let epoch: Option<i64> = tx
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.query_row(params![&*title.id.sink, title.id.lane, n], |row| row.get(0)).optional()
        })
        .map_err(store_error)?;
    match epoch {
        None => Ok(false),
        Some(epoch) if epoch == title.epoch => Ok(true),
        Some(_) => Err(StoreError::LeaseLost(title.id.clone())),
    }
}

fn write_receipt(tx: &Transaction<'_>, title: &Title, receipt: Receipt) -> rusqlite::Result<()> {
    let sql =
        "insert into posthaste_receipts (sink, lane, n, epoch, kind, position, count, settled_at, delivered)
               values (?1, ?2, ?3, ?4, 'settle', ?5, ?6, ?7, ?8)";
    let Receipt { n, position, count, delivered } = receipt;
    let (id, epoch) = (&title.id, title.epoch);
    let params = params![&*id.sink, id.lane, n, epoch, position, count, now(), delivered];
    tx.prepare_cached(sql)?.execute(params)?;
    Ok(())
}

fn write_outcomes(tx: &Transaction<'_>, title: &Title, outcomes: &Outcomes) -> rusqlite::Result<()> {
    if outcomes.is_empty() {
        return Ok(());
    }
    let sink: &str = &title.id.sink;
    let mut keys = BTreeSet::new();
    for (seq, key, deferral) in &outcomes.deferred {
        defer(tx, sink, *seq, deferral)?;
        keys.extend(key.clone().filter(|_| deferral.due == Due::Behind));
    }
    for (seq, death) in &outcomes.dead {
        bury(tx, sink, *seq, death)?;
    }
    for seq in &outcomes.delivered {
        keys.extend(leave(tx, sink, *seq)?);
    }
    for (seq, deferral) in &outcomes.again {
        wait_again(tx, sink, *seq, deferral)?;
    }
    for (seq, death) in &outcomes.died {
        let died = event_sql!("../../sql/log/died.sql");
        let params = params![
            sink,
            seq,
            death.holds,
            death.attempts,
            death.class.as_str(),
            storable(&death.code),
            storable(&death.error),
            now(),
            death.fingerprint(sink),
            with_attempt(history(tx, sink, *seq)?, &death.as_attempt()),
        ];
        tx.prepare_cached(died)?.execute(params)?;
        keys.extend(leave(tx, sink, *seq)?);
    }
    // After all changes: who is first of a key is decided by what is there now.
    keys.iter().try_for_each(|key| promote(tx, sink, key))
}

fn defer(tx: &Transaction<'_>, sink: &str, seq: i64, deferral: &Deferral) -> rusqlite::Result<()> {
    let now = now();
    let due_at = match deferral.due {
        Due::In(delay) => Some(now.saturating_add(micros(delay))),
        Due::AtDelivery => None,
        Due::Behind => Some(NEVER),
    };
    tx.prepare_cached(event_sql!("../../sql/log/defer.sql"))?.execute(params![
        sink,
        seq,
        &*deferral.route,
        deferral.destination,
        deferral.reason.as_str(),
        deferral.holds,
        deferral.attempts,
        due_at,
        deferral.class.map(|class| class.as_str()),
        deferral.error.as_deref().map(storable),
        now,
        deferral.code.as_deref().map(storable),
        deferral.as_attempt().and_then(|attempt| with_attempt(History::default(), &attempt)),
    ])?;
    Ok(())
}

fn bury(tx: &Transaction<'_>, sink: &str, seq: i64, death: &Death) -> rusqlite::Result<()> {
    tx.prepare_cached(event_sql!("../../sql/log/bury.sql"))?.execute(params![
        sink,
        seq,
        &*death.route,
        death.holds,
        death.attempts,
        death.class.as_str(),
        storable(&death.code),
        storable(&death.error),
        now(),
        death.fingerprint(sink),
        with_attempt(History::default(), &death.as_attempt()),
    ])?;
    Ok(())
}

/// A deferred event leaves. Answers with its key: the next of it may go.
fn leave(tx: &Transaction<'_>, sink: &str, seq: i64) -> rusqlite::Result<Option<String>> {
    let sql = "delete from posthaste_deferred where sink = ?1 and seq = ?2 returning key";
    let key: Option<Option<String>> =
        tx.prepare_cached(sql)?.query_row(params![sink, seq], |row| row.get(0)).optional()?;
    Ok(key.flatten())
}

fn wait_again(tx: &Transaction<'_>, sink: &str, seq: i64, deferral: &Deferral) -> rusqlite::Result<()> {
    let now = now();
    let before = history(tx, sink, seq)?;
    let last_code = before.attempts().last().map(|attempt| attempt.code.clone());
    let is_news = deferral.is_news_after(last_code.as_deref());
    let history = match deferral.as_attempt().filter(|_| is_news) {
        Some(attempt) => with_attempt(before, &attempt),
        None => before.to_json(),
    };
    let delay = match deferral.due {
        Due::In(delay) => micros(delay),
        Due::AtDelivery | Due::Behind => 0,
    };
    tx.prepare_cached(include_str!("../../sql/log/again.sql"))?.execute(params![
        sink,
        seq,
        deferral.attempts,
        deferral.reason.as_str(),
        deferral.destination,
        deferral.holds,
        now.saturating_add(delay),
        deferral.class.map(|class| class.as_str()),
        deferral.error.as_deref().map(storable),
        now,
        deferral.code.as_deref().map(storable),
        history,
    ])?;
    Ok(())
}

/// The attempts of a deferred event.
fn history(tx: &Transaction<'_>, sink: &str, seq: i64) -> rusqlite::Result<History> {
    let sql = "select history from posthaste_deferred where sink = ?1 and seq = ?2";
    let stored: Option<Option<String>> =
        tx.prepare_cached(sql)?.query_row(params![sink, seq], |row| row.get(0)).optional()?;
    Ok(stored.flatten().map_or_else(History::default, |text| History::from_json(&text)))
}

/// A history as it is stored, with an attempt more that failed now.
fn with_attempt(mut history: History, attempt: &str) -> Option<String> {
    history.add_json(Timestamp(now()), attempt);
    history.to_json()
}

/// The first holding event of a key comes due.
pub(crate) fn promote(tx: &Transaction<'_>, sink: &str, key: &str) -> rusqlite::Result<()> {
    tx.prepare_cached(include_str!("../../sql/log/promote.sql"))?.execute(params![
        sink,
        key,
        now(),
        NEVER
    ])?;
    Ok(())
}

/// An error's text, not without end: it comes from a broker.
fn storable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(2_000).collect()
}
