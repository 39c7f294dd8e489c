//! Looking for deferred events whose time has come.
//!
//! First the **heads**: what is due, and of a key that is held only its first. Then, behind each head, the
//! **run** of events that wait for it, so that a key with many waiting events does not need a look for each.
//! A run ends before the first event that may not go, and at a dead letter that holds the key: nothing of a
//! key is passed over (G3). All of it is one snapshot.

use crate::clock::{NEVER, now};
use crate::error::store_error;
use crate::log::lease::LogLease;
use crate::row::{self, Payloads, WIDTH};
use posthaste::store::{DueBatch, DueEvent, DueQuery, Reason, StoreError};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Events of a run, at most: what one key may add to a batch at once.
const RUN_MAX: i64 = 32;

static LOAD: LazyLock<String> = LazyLock::new(|| {
    let columns = row::columns("?1");
    format!("select {columns}, attempts, reason from posthaste_deferred where sink = ?2 and seq = ?3")
});

struct DueRead {
    sink: Arc<str>,
    slots: (i16, i16),
    query: DueQuery,
    payload_bytes_max: usize,
}

struct Head {
    seq: i64,
    key: Option<String>,
    holds: bool,
}

impl LogLease {
    pub(crate) async fn read_due(&self, query: DueQuery) -> Result<DueBatch, StoreError> {
        let generation = self.holding.generation();
        let look = DueRead {
            sink: self.sink(),
            slots: self.slots,
            query,
            payload_bytes_max: self.inner.config.limits.payload_bytes_max,
        };
        let read = move |tx: &Transaction<'_>| look.look(tx).map_err(store_error);
        let (batch, holding) = self.inner.readers.read(read).await?;
        if !holding {
            self.holding.clear(generation);
        }
        Ok(batch)
    }
}

impl DueRead {
    /// What is due, and whether any key is held (looked at only when nothing is due).
    fn look(&self, tx: &Transaction<'_>) -> rusqlite::Result<(DueBatch, bool)> {
        let now = now();
        let mut batch = DueBatch::default();
        let mut bytes = 0;
        'heads: for head in self.heads(tx, now)? {
            for seq in self.run(tx, &head)? {
                if batch.events.len() >= self.query.events || bytes >= self.query.bytes {
                    break 'heads;
                }
                if let Some(due) = self.load(tx, seq)? {
                    bytes += due.stored.event.payload.as_ref().map_or(0, bytes::Bytes::len);
                    batch.events.push(due);
                }
            }
        }
        if !batch.events.is_empty() {
            return Ok((batch, true));
        }
        let sql =
            "select min(due_at) from posthaste_deferred where sink = ?1 and due_at > ?2 and due_at < ?3";
        let next: Option<i64> =
            tx.prepare_cached(sql)?.query_row(params![&*self.sink, now, NEVER], |row| row.get(0))?;
        batch.next_in = next.map(|next| Duration::from_micros((next - now).max(0).unsigned_abs()));
        Ok((batch, crate::log::take::is_holding(tx, &self.sink)?))
    }

    fn heads(&self, tx: &Transaction<'_>, now: i64) -> rusqlite::Result<Vec<Head>> {
        let read = |row: &Row<'_>| Ok(Head { seq: row.get(0)?, key: row.get(1)?, holds: row.get(2)? });
        let mut statement = tx.prepare_cached(include_str!("../../sql/log/due.sql"))?;
        let rows = statement.query_map(
            params![
                &*self.sink,
                now,
                self.slots.0,
                self.slots.1,
                json(&self.query.closed_destinations),
                json(&self.query.paused_routes),
                self.query.only_destination,
                self.query.events as i64,
            ],
            read,
        )?;
        rows.collect()
    }

    /// The head, and what may go behind it.
    fn run(&self, tx: &Transaction<'_>, head: &Head) -> rusqlite::Result<Vec<i64>> {
        let mut run = vec![head.seq];
        let Some(key) = head.key.as_deref().filter(|_| head.holds && self.query.events > 1) else {
            return Ok(run);
        };
        let sql = "select min(seq) from posthaste_dead_letters where sink = ?1 and key = ?2 and holds_key";
        let dead: Option<i64> =
            tx.prepare_cached(sql)?.query_row(params![&*self.sink, key], |row| row.get(0))?;
        let mut statement = tx.prepare_cached(include_str!("../../sql/log/run.sql"))?;
        let mut rows = statement.query(params![&*self.sink, key, head.seq, RUN_MAX])?;
        while let Some(row) = rows.next()? {
            let (seq, due_at): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (destination, route): (String, String) = (row.get(2)?, row.get(3)?);
            let goes =
                due_at == NEVER && self.admits(&destination, &route) && dead.is_none_or(|dead| dead >= seq);
            if !goes {
                break;
            }
            run.push(seq);
        }
        Ok(run)
    }

    fn admits(&self, destination: &str, route: &str) -> bool {
        let query = &self.query;
        !query.closed_destinations.iter().any(|closed| closed == destination)
            && !query.paused_routes.iter().any(|paused| paused == route)
            && query.only_destination.as_deref().is_none_or(|only| only == destination)
    }

    fn load(&self, tx: &Transaction<'_>, seq: i64) -> rusqlite::Result<Option<DueEvent>> {
        let payload_max = i64::try_from(self.payload_bytes_max).unwrap_or(i64::MAX);
        let read = |row: &Row<'_>| {
            let reason: String = row.get(WIDTH + 1)?;
            Ok(DueEvent {
                stored: row::event(row, self.payload_bytes_max, &mut Payloads::apart())?,
                attempts: row.get::<_, i64>(WIDTH)?.try_into().unwrap_or(u32::MAX),
                reason: reason_of(&reason),
            })
        };
        tx.prepare_cached(&LOAD)?.query_row(params![payload_max, &*self.sink, seq], read).optional()
    }
}

/// A list for `json_each`.
fn json(list: &[String]) -> String {
    serde_json::Value::from(list.to_vec()).to_string()
}

fn reason_of(word: &str) -> Reason {
    let all = [
        Reason::Retry,
        Reason::Unknown,
        Reason::Scheduled,
        Reason::Held,
        Reason::Outage,
        Reason::Paused,
        Reason::Drained,
        Reason::Replayed,
    ];
    all.into_iter().find(|reason| reason.as_str() == word).unwrap_or(Reason::Retry)
}
