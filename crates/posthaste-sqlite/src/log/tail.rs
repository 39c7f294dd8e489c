//! Reading the log: the rows behind the position, in one snapshot.
//!
//! There are no late rows here (see [`crate::log::store`]), so a read is one statement in order of the
//! primary key. Rows are stepped through one by one, and stepping ends where the page is full: bounds hold
//! before anything more is loaded, and a payload above the largest size is never loaded at all.

use crate::clock::now;
use crate::error::store_error;
use crate::log::lease::{Holding, LogLease, PageRead};
use crate::row::{self, Payloads};
use crate::watch::last_seq;
use posthaste::event::StoredEvent;
use posthaste::store::{Detained, Page, PageLimit, StoreError};
use rusqlite::{Transaction, params};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// There is no round trip to save: pages of 2,048 are not faster than these, and cost 10 MB more.
const PAGE_EVENTS_MAX: usize = 512;

/// Numbers scanned at once where a filter may select little of them: some tens of milliseconds.
const SCAN_WINDOW: i64 = 100_000;

/// What an event weighs beyond its payload, for the bound in bytes.
const ROW_BYTES: usize = 256;

/// The statement of a lane that reads what this condition selects.
pub(crate) fn page_sql(condition: &str) -> String {
    let columns = row::columns("?1");
    format!(
        "select {columns} from posthaste_outbox where seq > ?2 and seq <= ?3{condition} order by seq limit ?4"
    )
}

/// A read, with all that the blocking thread needs.
struct TailRead {
    sql: Arc<str>,
    sink: Arc<str>,
    behind: i64,
    is_filtered: bool,
    limit: PageLimit,
    payload_bytes_max: usize,
    holding: Arc<Holding>,
}

/// What a read found.
struct TailRows {
    events: Vec<StoredEvent>,
    detained: Vec<(usize, Detained)>,
    reached: i64,
    more: bool,
}

impl LogLease {
    pub(crate) async fn read_page(&self, limit: PageLimit) -> Result<Page, StoreError> {
        let limit = PageLimit { events: limit.events.min(PAGE_EVENTS_MAX), ..limit };
        let mut reading = self.reading.lock().await;
        let look = TailRead {
            sql: Arc::clone(&self.page_sql),
            sink: self.sink(),
            behind: reading.position,
            is_filtered: self.is_filtered,
            limit,
            payload_bytes_max: self.inner.config.limits.payload_bytes_max,
            holding: Arc::clone(&self.holding),
        };
        let found = self.inner.readers.read(move |tx| look.look(tx)).await?;
        // Nothing that can fail comes after the position has moved: a page that is not handed out is read
        // again.
        let moved = found.reached > reading.position;
        reading.position = found.reached;
        reading.number += 1;
        let step =
            PageRead { number: reading.number, after: found.reached, count: found.events.len() as i64 };
        let mut steps = self.steps.lock();
        // Reads of an idle lane leave no trail: the newest says everything the one before did.
        if step.count == 0
            && steps.back().is_some_and(|last| last.count == 0 && last.number + 1 == step.number)
        {
            steps.pop_back();
        }
        steps.push_back(step);
        drop(steps);
        let TailRows { events, detained, more, .. } = found;
        Ok(Page { number: reading.number, events, detained, more, moved })
    }
}

impl TailRead {
    fn look(&self, tx: &Transaction<'_>) -> Result<TailRows, StoreError> {
        let window = if self.is_filtered { self.behind.saturating_add(SCAN_WINDOW) } else { i64::MAX };
        let (events, cut) = self.rows(tx, window).map_err(store_error)?;
        let last = events.last().map_or(self.behind, |stored| stored.seq);
        let (reached, more) = if cut {
            (last, true)
        } else {
            // The same snapshot: whatever is appended later has a number above its last one. So a sparse lane
            // moves on over what it does not read.
            let last_seq = last_seq(tx).map_err(store_error)?;
            (last.max(last_seq.min(window)), window < last_seq)
        };
        let detained = self.detained(tx, &events).map_err(store_error)?;
        Ok(TailRows { events, detained, reached, more })
    }

    /// The rows of a page, and whether there were more than fit.
    fn rows(&self, tx: &Transaction<'_>, window: i64) -> rusqlite::Result<(Vec<StoredEvent>, bool)> {
        let mut statement = tx.prepare_cached(&self.sql)?;
        // One more than fits: whether there is more is then known.
        let rows_max = i64::try_from(self.limit.events.max(1)).unwrap_or(i64::MAX - 1) + 1;
        let payload_max = i64::try_from(self.payload_bytes_max).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![payload_max, self.behind, window, rows_max])?;
        let (mut events, mut bytes, mut payloads) = (Vec::new(), 0, Payloads::shared());
        while let Some(row) = rows.next()? {
            let stored = row::event(row, self.payload_bytes_max, &mut payloads)?;
            bytes += stored.event.payload.as_ref().map_or(0, bytes::Bytes::len) + ROW_BYTES;
            // One event may exceed the bytes alone, or it would never be read.
            if !events.is_empty() && (bytes > self.limit.bytes || events.len() >= self.limit.events) {
                return Ok((events, true));
            }
            events.push(stored);
        }
        Ok((events, false))
    }

    /// Which events must wait: those whose key is held, and those whose time has not come. Asked after the
    /// rows were read: a settlement says that it holds before it writes, so whatever this snapshot shows was
    /// said by now.
    fn detained(
        &self,
        tx: &Transaction<'_>,
        events: &[StoredEvent],
    ) -> rusqlite::Result<Vec<(usize, Detained)>> {
        let (now, look) = (now(), self.holding.is_any());
        let mut held: FxHashMap<&str, bool> = FxHashMap::default();
        let mut behind = tx.prepare_cached(include_str!("../../sql/log/behind.sql"))?;
        let mut detained = Vec::new();
        for (index, stored) in events.iter().enumerate() {
            // Its time comes first: an event for later is not made due by its key becoming free.
            if stored.event.deliver_at.is_some_and(|at| at.0 > now) {
                detained.push((index, Detained::Scheduled));
                continue;
            }
            let Some(key) = stored.event.key.as_deref().filter(|_| look) else { continue };
            let is_held = match held.get(key) {
                Some(known) => *known,
                None => behind.query_row(params![&*self.sink, key], |row| row.get(0))?,
            };
            held.insert(key, is_held);
            if is_held {
                detained.push((index, Detained::Behind));
            }
        }
        Ok(detained)
    }
}
