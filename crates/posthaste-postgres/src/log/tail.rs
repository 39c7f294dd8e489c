//! Reading the log: the late rows, then the tail, as `posthaste::cursor` says where to look.
//!
//! The usual read is one statement, and the next page is often on its way already: see `fetch`. Only when
//! a long transaction has ended (an elder) are its rows looked for in a REPEATABLE READ transaction of
//! its own. Bounds hold before anything is loaded: rows carry their size, and a payload above the page's
//! inline size stays on the server until it is known to fit.

use crate::error::store_error;
use crate::log::fetch::{Bounds, Fetch, Fetched, Found, LATE_AND_TAIL, columns};
use crate::log::lease::{LogLease, PageRead, ReadCursor, seq_hash, tally};
use crate::session::{Param, Session};
use bytes::Bytes;
use posthaste::cursor::{Elder, Look, Mark, Marks, Position};
use posthaste::event::{Defect, EventError};
use posthaste::store::{Detained, Page, PageLimit, StoreCode, StoreError};
use rustc_hash::FxHashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_postgres::types::Type;

/// Numbers scanned at once where a filter may select little of them.
const SCAN_WINDOW: i64 = 200_000;

/// When the late window is wider than this, a fresh mark is worth an xid.
const MARK_AFTER: i64 = 1_024;

/// How often a cursor that only watches time go by asks for a receipt.
const IDLE_RECEIPT: Duration = Duration::from_secs(20);

impl LogLease {
    pub(crate) async fn read_page(&self, limit: PageLimit) -> Result<Page, StoreError> {
        let mut reading = self.reading.lock().await;
        for mark in self.take_marks() {
            reading.marks.add(mark);
        }
        let bounds = bounds(limit, reading.average_bytes);
        let (found, after, more) = match reading.position.catching_up.is_some() {
            true => self.catch_up(&reading, bounds).await?,
            false => self.look(&mut reading, bounds).await?,
        };
        if self.inner.sessions.config().flush_before_publish && !found.is_empty() {
            flush(&mut self.session().await?).await?;
        }
        self.accept(&mut reading, found, after, more).await
    }

    /// Keeps the late window small: a mark is a number that was known before an xid was assigned.
    async fn refresh_mark(&self, session: &mut Session, reading: &mut ReadCursor) -> Result<(), StoreError> {
        let position = &reading.position;
        if position.catching_up.is_some()
            || position.position - position.late_from(&reading.marks) <= MARK_AFTER
        {
            return Ok(());
        }
        let seq = self.known_seq.load(Ordering::Relaxed);
        let rows = session.query("select pg_current_xact_id()::text", &[]).await.map_err(store_error)?;
        if let Some(xid) = rows.first().and_then(|row| row.get::<_, &str>(0).parse().ok()) {
            reading.marks.add(Mark { xid, seq });
        }
        reading.marks.thin(position.snapshot.running.first().copied().unwrap_or(position.snapshot.xmin));
        Ok(())
    }

    /// The usual read.
    async fn look(
        &self,
        reading: &mut ReadCursor,
        asked: Bounds,
    ) -> Result<(Vec<Found>, Position, bool), StoreError> {
        let ahead = self.arrived(reading).await?;
        let early = ahead.is_some();
        let fetched = match ahead {
            Some(ahead) => ahead,
            None => {
                let mut session = self.session().await?;
                self.refresh_mark(&mut session, reading).await?;
                self.fetch(&reading.position, &reading.marks, asked).run(&mut session).await?
            }
        };
        self.known_seq.fetch_max(fetched.last_value, Ordering::Relaxed);
        let position = &reading.position;
        let any_ended = match position.look(&reading.marks, &fetched.now) {
            Look::Fresh { elders, .. } => !elders.is_empty(),
            Look::CatchUp => false,
        };
        // A page that was fetched ahead may hold more than is asked for now, or less.
        let bounds = Bounds { rows: asked.rows.min(fetched.bounds.rows), ..asked };
        let looked = if any_ended {
            // All elders, not only those that had ended by this snapshot: the transaction below has a
            // later one, and what it shows becomes the cursor's. Rows of one that still runs are not
            // visible in it; rows of one that ended in between would be lost if it were not asked for.
            let elders: Vec<Elder> = position.elders(&reading.marks).collect();
            let mut session = self.session().await?;
            self.with_elders(&mut session, position, &reading.marks, &elders, bounds).await?
        } else {
            self.read_ahead(reading, &fetched, asked);
            fetched
        };
        let (found, after, more) = self.bound(&reading.position, looked, bounds);
        // A page that was fetched ahead cannot say that there is nothing more by now.
        Ok((found, after, more || early))
    }

    /// The page that was fetched ahead, if it begins where the cursor stands.
    async fn arrived(&self, reading: &mut ReadCursor) -> Result<Option<Fetched>, StoreError> {
        match reading.ahead.take() {
            Some(ahead) => ahead.arrive(&reading.position).await,
            None => Ok(None),
        }
    }

    /// Sends for the next page at once, if it is clear where that begins. Not for a
    /// page smaller than the relay usually asks for: it is in no hurry then.
    fn read_ahead(&self, reading: &mut ReadCursor, fetched: &Fetched, asked: Bounds) {
        if asked.rows < fetched.bounds.rows || asked.bytes < fetched.bounds.bytes {
            return;
        }
        let Some(reached) = fetched.plain_full_tail() else { return };
        let next = reading.position.after_tail(fetched.now.clone(), reached);
        let fetch = self.fetch(&next, &reading.marks, asked);
        if next.position - fetch.late_from > MARK_AFTER {
            return;
        }
        reading.ahead = Some(fetch.ahead(&self.inner.sessions));
    }

    fn fetch(&self, position: &Position, marks: &Marks, bounds: Bounds) -> Fetch {
        let closing = self.inner.closing();
        Fetch {
            sql: self.statement_without(closing.map(|(segment, _)| segment), &LATE_AND_TAIL, bounds.inline),
            believed_until: closing.map(|(_, until)| until),
            late_from: position.late_from(marks),
            position: position.clone(),
            to: self.scan_to(position.position),
            bounds,
        }
    }

    /// Rows of transactions that ended after a long time come first: their numbers are the lowest.
    async fn with_elders(
        &self,
        session: &mut Session,
        position: &Position,
        marks: &Marks,
        elders: &[Elder],
        bounds: Bounds,
    ) -> Result<Fetched, StoreError> {
        session.begin().await.map_err(store_error)?;
        let looked = self.elders_in(session, position, marks, elders, bounds).await;
        match looked {
            Ok(looked) => session.commit().await.map_err(store_error).map(|()| looked),
            Err(error) => {
                session.rollback().await;
                Err(error)
            }
        }
    }

    async fn elders_in(
        &self,
        session: &mut Session,
        position: &Position,
        marks: &Marks,
        elders: &[Elder],
        bounds: Bounds,
    ) -> Result<Fetched, StoreError> {
        // The elders' rows are found by their xid: here the planner may use what it likes.
        session
            .batch(
                "set transaction isolation level repeatable read read only; \
                 set local enable_bitmapscan = on; set local enable_sort = on; set local plan_cache_mode = force_custom_plan",
            )
            .await
            .map_err(store_error)?;
        let xids: Vec<i64> = elders.iter().map(|elder| elder.xid as i64).collect();
        let fetch = self.fetch(position, marks, bounds);
        let low = elders.iter().map(|elder| elder.low).min().unwrap_or(0);
        let sql = self.statement(
            "select /*columns*/ from posthaste.outbox
              where seq > $1 and seq <= $2 and xid::text::bigint = any ($3)/*condition*/ order by seq limit $4",
            bounds.inline,
        );
        let params: [Param<'_>; 4] = [
            (&low, Type::INT8),
            (&fetch.late_from, Type::INT8),
            (&xids, Type::INT8_ARRAY),
            (&bounds.rows, Type::INT8),
        ];
        let rows = session.query(&sql, &params).await.map_err(store_error)?;
        let mut old: Vec<Found> =
            rows.iter().map(Found::read).collect::<Result<_, _>>().map_err(store_error)?;
        let mut looked = fetch.run(session).await?;
        old.append(&mut looked.late);
        old.truncate(bounds.rows as usize);
        looked.late = old;
        Ok(looked)
    }

    /// A step of catching up with more late rows than fit a page: against the fixed target, whatever is
    /// current.
    async fn catch_up(
        &self,
        reading: &ReadCursor,
        bounds: Bounds,
    ) -> Result<(Vec<Found>, Position, bool), StoreError> {
        let position = &reading.position;
        let Some(catch_up) = &position.catching_up else { return Ok((Vec::new(), position.clone(), true)) };
        let hi = position.position.min(catch_up.late_position.saturating_add(SCAN_WINDOW));
        let sql = self.statement(
            "select /*columns*/ from posthaste.outbox
              where seq > $1 and seq <= $2 and not pg_visible_in_snapshot(xid, $3::text::pg_snapshot)
                and pg_visible_in_snapshot(xid, $5::text::pg_snapshot)/*condition*/
              order by seq limit $4",
            bounds.inline,
        );
        let rows = self
            .session()
            .await?
            .query_alone(
                &sql,
                &[
                    (&catch_up.late_position, Type::INT8),
                    (&hi, Type::INT8),
                    (&position.snapshot.to_string(), Type::TEXT),
                    (&bounds.rows, Type::INT8),
                    (&catch_up.target.to_string(), Type::TEXT),
                ],
            )
            .await
            .map_err(store_error)?;
        let full = rows.len() as i64 >= bounds.rows;
        let mut rows: Vec<Found> =
            rows.iter().map(Found::read).collect::<Result<_, _>>().map_err(store_error)?;
        let cut = fit(&mut rows, bounds.bytes, 0);
        let reached = if full || cut { rows.last().map_or(hi, |row| row.stored.seq) } else { hi };
        Ok((rows, position.after_catch_up(reached), true))
    }

    /// Cuts what was found to the page's bounds, and says where the cursor stands after it.
    fn bound(&self, position: &Position, looked: Fetched, bounds: Bounds) -> (Vec<Found>, Position, bool) {
        let Fetched { now, last_value, to, mut late, mut tail, .. } = looked;
        let late_full = late.len() as i64 >= bounds.rows;
        late.truncate(bounds.rows as usize);
        let late_cut = fit(&mut late, bounds.bytes, 0);
        if late_full || late_cut {
            let last = late.last().map_or(0, |row| row.stored.seq);
            return (late, position.after_full_late_page(now, last), true);
        }
        let late_bytes = late.iter().map(Found::bytes).sum();
        let tail_full = tail.len() as i64 >= bounds.rows;
        let room = bounds.rows as usize - late.len();
        let mut cut = tail.len() > room;
        tail.truncate(room);
        cut |= fit(&mut tail, bounds.bytes, late_bytes);
        let last_read = tail.last().map_or(position.position, |row| row.stored.seq);
        let (reached, more) = if tail_full || cut {
            (last_read, true)
        } else if self.condition.is_empty() {
            (last_read, false)
        } else {
            // A sparse lane moves on over what it does not read. Whatever is drawn up to here and not
            // visible yet is looked for as late.
            (last_read.max(last_value.min(to)), to < last_value)
        };
        late.append(&mut tail);
        (late, position.after_tail(now, reached), more)
    }

    /// Turns rows into a page and remembers the position after it. Nothing that can fail comes after the
    /// position has moved: a page that is not handed out must be read again.
    async fn accept(
        &self,
        reading: &mut ReadCursor,
        mut found: Vec<Found>,
        after: Position,
        more: bool,
    ) -> Result<Page, StoreError> {
        self.load_large(&mut found).await?;
        let detained = self.detained(&found).await?;
        let mut tallies = Vec::new();
        for row in &found {
            tally(&mut tallies, row.segment, 1, seq_hash(row.stored.seq));
        }
        if !found.is_empty() {
            let average = found.iter().map(Found::bytes).sum::<usize>() as f64 / found.len() as f64;
            reading.average_bytes = reading.average_bytes * 0.5 + average * 0.5;
        }
        let moved = is_worth_a_receipt(reading, &after);
        if moved || !found.is_empty() {
            reading.moved_at = tokio::time::Instant::now();
        }
        reading.number += 1;
        reading.position = after.clone();
        let mut steps = self.steps();
        // Reads of an idle lane leave no trail: the newest says everything the one before did.
        if steps.back().is_some_and(|step| step.tally.is_empty() && step.number + 1 == reading.number)
            && tallies.is_empty()
        {
            steps.pop_back();
        }
        steps.push_back(PageRead { number: reading.number, after, tally: tallies });
        drop(steps);
        let events = found.into_iter().map(|row| row.stored).collect();
        Ok(Page { number: reading.number, events, detained, more, moved })
    }

    /// Fetches payloads that were too large to come along, now that they are known to fit. The rows
    /// cannot change or vanish: nobody updates the log, and this lane has not handled them.
    async fn load_large(&self, found: &mut [Found]) -> Result<(), StoreError> {
        let max = self.inner.sessions.config().limits.payload_bytes_max;
        for row in found.iter_mut() {
            let bytes = row.size.unwrap_or(0);
            if bytes > max {
                row.stored.defect = Some(Defect::Limit(EventError::PayloadTooLarge { bytes, max }));
            }
        }
        let missing = |row: &&mut Found| {
            row.size.is_some() && row.stored.event.payload.is_none() && row.stored.defect.is_none()
        };
        let wanted: Vec<i64> = found.iter_mut().filter(missing).map(|row| row.stored.seq).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let sql = self.sql("select seq, payload from posthaste.outbox where seq = any ($1)");
        let mut session = self.session().await?;
        let rows = session.query_alone(&sql, &[(&wanted, Type::INT8_ARRAY)]).await.map_err(store_error)?;
        let mut loaded = rustc_hash::FxHashMap::default();
        for row in &rows {
            loaded.insert(row.get::<_, i64>(0), Bytes::copy_from_slice(row.get(1)));
        }
        for row in found.iter_mut().filter(missing) {
            row.stored.event.payload = loaded.remove(&row.stored.seq);
            if row.stored.event.payload.is_none() {
                let why = format!("row {} vanished from the log", row.stored.seq);
                return Err(StoreError::broken(StoreCode::Damaged, why));
            }
        }
        Ok(())
    }

    /// Which events must wait: those whose key is held, and those whose time has not come.
    async fn detained(&self, found: &[Found]) -> Result<Vec<(usize, Detained)>, StoreError> {
        let mut held = FxHashSet::default();
        if self.is_holding() && !found.is_empty() {
            let keys: FxHashSet<&str> =
                found.iter().filter_map(|row| row.stored.event.key.as_deref()).collect();
            let keys: Vec<&str> = keys.into_iter().collect();
            let sink: &str = &self.id.sink;
            let sql = self.sql(include_str!("../../sql/log/behind.sql"));
            let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&keys, Type::TEXT_ARRAY)];
            let rows = self.session().await?.query_alone(&sql, &params).await.map_err(store_error)?;
            held.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        }
        let why = |row: &Found| {
            // Its time comes first: an event for later is not made due by its key becoming free.
            if row.scheduled {
                Some(Detained::Scheduled)
            } else if row.stored.event.key.as_ref().is_some_and(|key| held.contains(key)) {
                Some(Detained::Behind)
            } else {
                None
            }
        };
        Ok(found.iter().enumerate().filter_map(|(index, row)| why(row).map(|why| (index, why))).collect())
    }

    /// A statement over the log. The schema's name goes in first: what configuration put into the
    /// condition must not be touched by that.
    fn statement(&self, template: &str, inline: usize) -> String {
        self.statement_without(None, template, inline)
    }

    fn statement_without(&self, closing: Option<i16>, template: &str, inline: usize) -> String {
        let leave_out = closing.map(|segment| format!(" and segment <> {segment}")).unwrap_or_default();
        self.sql(template)
            .replace("/*columns*/", &columns(inline))
            .replace("/*condition*/", &format!("{}{leave_out}", self.condition))
    }

    /// How far one read scans. Without a condition the row limit bounds it.
    fn scan_to(&self, position: i64) -> i64 {
        if self.condition.is_empty() { i64::MAX } else { position.saturating_add(SCAN_WINDOW) }
    }
}

/// How many rows to ask for, given what an event usually weighs, and which payloads come along at once.
fn bounds(limit: PageLimit, average: f64) -> Bounds {
    let likely = (limit.bytes as f64 / average.max(64.0) * 1.25) as usize;
    let rows = limit.events.min(likely.max(16)).max(1);
    // One of three sizes: each is a statement of its own that the server keeps prepared.
    let inline =
        [4 << 10, 64 << 10].into_iter().find(|size| 2 * limit.bytes / rows <= *size).unwrap_or(1 << 20);
    Bounds { rows: rows as i64, inline, bytes: limit.bytes }
}

/// Cuts rows at the byte bound; one row always stays. `true` if something was cut.
fn fit(rows: &mut Vec<Found>, bytes: usize, already: usize) -> bool {
    let mut total = already;
    let keep = rows
        .iter()
        .take_while(|row| {
            total += row.bytes();
            total <= bytes
        })
        .count();
    let keep = if already == 0 { keep.max(1) } else { keep };
    let cut = keep < rows.len();
    rows.truncate(keep);
    cut
}

/// A position that moved without events is worth a receipt, and now and then one that only saw time go
/// by: a stale snapshot would keep segments from being truncated.
fn is_worth_a_receipt(reading: &ReadCursor, after: &Position) -> bool {
    let before = &reading.position;
    let moved = after.position > before.position || after.catching_up != before.catching_up;
    moved || (reading.moved_at.elapsed() > IDLE_RECEIPT && after.snapshot.xmin > before.snapshot.xmin)
}

/// Makes durable what an asynchronous application has committed, before it is published (F7). The small
/// transaction must write WAL: one that only has an xid would commit asynchronously itself.
async fn flush(session: &mut Session) -> Result<(), StoreError> {
    let behind = "select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()";
    let rows = session.query(behind, &[]).await.map_err(store_error)?;
    if rows.first().is_some_and(|row| row.get(0)) {
        let emit = "select pg_logical_emit_message(true, 'posthaste', 'flush')";
        session.query_alone(emit, &[]).await.map_err(store_error)?;
    }
    Ok(())
}
