//! Retention: turning the ring, sealing, auditing, truncating, purging.
//!
//! Nothing here is on the way of an append: the current segment's number is a sequence value, and
//! TRUNCATE locks one old segment only, with a short `lock_timeout`. Whoever turns, seals or truncates
//! holds the ring's row lock in the very session that does it; a timed lease would not do, because a
//! stalled second sweeper could turn the ring back into a segment that the first is truncating.
//!
//! Refused: range partitions made ahead of time. If their maker is down, appends fail, and with them
//! the user's business transactions; dropping one locks the parent, and every append queues behind it.

use crate::error::{is_code, store_error};
use crate::log::filter;
use crate::log::store::{Inner, single};
use crate::session::{Param, Session};
use posthaste::crash_point;
use posthaste::store::{StoreCode, StoreError, Swept};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// Small rows removed in one statement, at most.
const PURGE_CHUNK: i64 = 5_000;

/// Full chunks removed in one sweep, at most: more than anybody writes in the time between two sweeps.
const PURGE_CHUNKS: usize = 20;

/// After this many failures to lock a segment for 20 ms, one try waits longer than `deadlock_timeout`,
/// so that the server cancels an autovacuum in its way.
const PATIENT_EVERY: u64 = 20;

/// A statement of a sweep may count a whole segment; one that takes this long has nobody to answer it.
const SWEEP_ANSWER_MAX: Duration = Duration::from_secs(900);

pub(crate) async fn sweep(inner: &Inner) -> Result<Swept, StoreError> {
    let mut session = inner.sessions.session().await?;
    session.answer_within(SWEEP_ANSWER_MAX);
    let mut swept = Swept::default();
    let look = look(inner, &mut session).await?;
    swept.audit_failures = look.audit_failures.unsigned_abs();
    let wants_turn = look.old || look.bytes >= inner.sessions.config().retention.turn_bytes;
    if wants_turn || look.is_torn() {
        if look.next_empty || look.is_torn() {
            swept.turned = locked(inner, &mut session, Act::Turn).await?;
        } else {
            swept.ring_full = true;
            tracing::warn!(
                "the ring of segments is full: the current one grows until the oldest can be truncated"
            );
        }
    }
    if let Some(segment) = look.to_seal {
        locked(inner, &mut session, Act::Seal(segment)).await?;
    }
    if let Some(segment) = look.closing {
        swept.truncated += u32::from(locked(inner, &mut session, Act::Truncate(segment)).await?);
    } else if let Some(segment) = look.to_audit {
        audit(inner, &mut session, segment, &mut swept).await?;
    }
    purge(inner, &mut session, &mut swept).await?;
    Ok(swept)
}

struct RingState {
    turn: i64,
    current: i16,
    old: bool,
    bytes: i64,
    next_empty: bool,
    to_seal: Option<i16>,
    to_audit: Option<i16>,
    closing: Option<i16>,
    audit_failures: i32,
}

impl RingState {
    /// The sequence was set and the bookkeeping was not: a sweeper died between the two.
    fn is_torn(&self) -> bool {
        i64::from(self.current) != (self.turn - 1) % 8 + 1
    }
}

async fn look(inner: &Inner, session: &mut Session) -> Result<RingState, StoreError> {
    let retention = &inner.sessions.config().retention;
    let schema = inner.sessions.config().schema.replace('\'', "''").replace('"', "\"\"");
    let text = include_str!("../../sql/log/sweep_look.sql")
        .replace("'posthaste.outbox_%s'", &format!("'\"{schema}\".outbox_%s'"));
    let sql = inner.sessions.sql(&text);
    let params: [Param<'_>; 2] = [
        (&retention.turn_after.as_secs_f64(), Type::FLOAT8),
        (&retention.events.as_secs_f64(), Type::FLOAT8),
    ];
    let rows = session.query_alone(&sql, &params).await.map_err(store_error)?;
    let row = rows.first().ok_or_else(|| StoreError::broken(StoreCode::Damaged, "the ring has no row"))?;
    Ok(RingState {
        turn: row.get("turn"),
        current: row.get("current"),
        old: row.get("old"),
        bytes: row.get("bytes"),
        next_empty: row.get("next_empty"),
        to_seal: row.get("to_seal"),
        to_audit: row.get("to_audit"),
        closing: row.get("closing"),
        audit_failures: row.get("audit_failures"),
    })
}

#[derive(Clone, Copy)]
enum Act<'a> {
    Turn,
    Seal(i16),
    Close(i16),
    Note(i16, &'a str),
    Truncate(i16),
}

/// Does one thing under the ring's lock. `false`: somebody else holds it, or there is nothing to do.
async fn locked(inner: &Inner, session: &mut Session, act: Act<'_>) -> Result<bool, StoreError> {
    session.begin().await.map_err(store_error)?;
    let done = match lock_ring(inner, session).await {
        Ok(Some((turn, current))) => match act {
            Act::Turn => turn_ring(inner, session, turn, current).await,
            Act::Seal(segment) => seal(inner, session, segment, current).await,
            Act::Close(segment) => close(inner, session, segment, current).await,
            Act::Note(segment, note) => take_note(inner, session, segment, note).await,
            Act::Truncate(segment) => truncate(inner, session, segment, current).await,
        },
        Ok(None) => Ok(false),
        Err(error) => Err(error),
    };
    match done {
        Ok(true) => {
            // CRASH(sweep.before_commit): the transaction is rolled back. A turn has set the sequence
            // already, which no rollback undoes: the next sweep sees the two disagree and completes the
            // bookkeeping. Rows in the new segment are rows like any other.
            crash_point!("sweep.before_commit");
            session.commit().await.map_err(store_error)?;
            Ok(true)
        }
        Ok(false) => {
            session.rollback().await;
            Ok(false)
        }
        Err(error) => {
            session.rollback().await;
            Err(error)
        }
    }
}

async fn lock_ring(inner: &Inner, session: &mut Session) -> Result<Option<(i64, i16)>, StoreError> {
    let sql = inner.sessions.sql(
        "select turn, pg_sequence_last_value('posthaste.outbox_segment'::regclass)::smallint
           from posthaste.ring for update skip locked",
    );
    let rows = session.query(&sql, &[]).await.map_err(store_error)?;
    Ok(rows.first().map(|row| (row.get(0), row.get(1))))
}

/// Turns to the next segment if it is empty. setval comes first: bookkeeping that said "closed" while
/// rows still arrived would let a live segment be sealed.
async fn turn_ring(
    inner: &Inner,
    session: &mut Session,
    turn: i64,
    current: i16,
) -> Result<bool, StoreError> {
    let (from, to) = (((turn - 1) % 8 + 1) as i16, (turn % 8 + 1) as i16);
    let sql = inner.sessions.sql("select turn is null from posthaste.segments where segment = $1");
    let empty: bool = single(session.query(&sql, &[(&to, Type::INT2)]).await.map_err(store_error)?)?;
    if !empty {
        return Ok(false);
    }
    if current != to {
        let sql = inner.sessions.sql("select setval('posthaste.outbox_segment', $1, true)");
        session.query(&sql, &[(&i64::from(to), Type::INT8)]).await.map_err(store_error)?;
    }
    // CRASH(sweep.turned): the sequence says the new segment, the bookkeeping the old one. See above.
    crash_point!("sweep.turned");
    let sql = inner.sessions.sql(include_str!("../../sql/log/turn.sql"));
    let params: [Param<'_>; 3] = [(&from, Type::INT2), (&to, Type::INT2), (&(turn + 1), Type::INT8)];
    session.query(&sql, &params).await.map_err(store_error)?;
    tracing::info!(from, to, "ring turned");
    Ok(true)
}

/// Takes the seal's xid, in a later transaction than the turn: setval takes its own xid before its value
/// changes, so the turning transaction's would be too early. Whoever read the old number had its xid
/// before it read, hence before the turn, hence below the seal.
async fn seal(inner: &Inner, session: &mut Session, segment: i16, current: i16) -> Result<bool, StoreError> {
    if segment == current {
        return Ok(false);
    }
    let sql = inner.sessions.sql(
        "update posthaste.segments set seal_xid = pg_current_xact_id()
          where segment = $1 and closed_at is not null and seal_xid is null returning 1",
    );
    let rows = session.query(&sql, &[(&segment, Type::INT2)]).await.map_err(store_error)?;
    Ok(!rows.is_empty())
}

/// Audits a sealed segment that is old enough: handled by every cursor, and balanced with the receipts.
async fn audit(
    inner: &Inner,
    session: &mut Session,
    segment: i16,
    swept: &mut Swept,
) -> Result<(), StoreError> {
    let sql = inner.sessions.sql(&format!(
        "select coalesce(max(seq), 0), coalesce(max(appended_at) < clock_timestamp() - make_interval(secs => $1), true)
           from posthaste.outbox_{segment}"
    ));
    let retention = inner.sessions.config().retention.events.as_secs_f64();
    let rows = session.query_alone(&sql, &[(&retention, Type::FLOAT8)]).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (last, old): (i64, bool) = (row.get(0), row.get(1));
    if !old || !is_handled(inner, session, segment, last).await? {
        return Ok(());
    }
    match imbalance(inner, session, segment).await? {
        None => {
            locked(inner, session, Act::Close(segment)).await?;
        }
        Some(note) => {
            tracing::error!(
                segment,
                "audit: {note}. The segment stays; `posthaste lanes rewind` sends it again"
            );
            swept.audit_failures += u32::from(locked(inner, session, Act::Note(segment, &note)).await?);
        }
    }
    Ok(())
}

async fn is_handled(
    inner: &Inner,
    session: &mut Session,
    segment: i16,
    last: i64,
) -> Result<bool, StoreError> {
    let sql = inner.sessions.sql(include_str!("../../sql/log/handled.sql"));
    let params: [Param<'_>; 2] = [(&segment, Type::INT2), (&last, Type::INT8)];
    single(session.query_alone(&sql, &params).await.map_err(store_error)?)
}

/// The double entry: rows of the segment, counted for each cursor, against its receipts. Says what does
/// not balance. A cursor whose filter changed since its base is not counted: nobody can tell under which
/// filter a row was read.
async fn imbalance(inner: &Inner, session: &mut Session, segment: i16) -> Result<Option<String>, StoreError> {
    let sql = inner.sessions.sql(include_str!("../../sql/log/audit_lanes.sql"));
    let lanes = session.query_alone(&sql, &[(&segment, Type::INT2)]).await.map_err(store_error)?;
    for lane in lanes.iter().filter(|lane| !lane.get::<_, bool>("filter_changed")) {
        let condition = format!(
            "{}{}",
            filter::slots((lane.get("slot_from"), lane.get("slot_to"))),
            filter::condition_since(lane.get("filter"), lane.get("filter_before"), lane.get("filter_until"))
        );
        let sql = inner
            .sessions
            .sql(&format!(
                "select count(*), coalesce(sum((seq % 2147483647) * 48271 % 2147483647), 0)::bigint
                   from posthaste.outbox_{segment}
                  where not (seq <= $1 and pg_visible_in_snapshot(xid, $2::text::pg_snapshot))/*condition*/"
            ))
            .replace("/*condition*/", &condition);
        let params: [Param<'_>; 2] =
            [(&lane.get::<_, i64>("position"), Type::INT8), (&lane.get::<_, String>("snapshot"), Type::TEXT)];
        let rows = session.query_alone(&sql, &params).await.map_err(store_error)?;
        let Some(row) = rows.first() else { continue };
        let (count, sum): (i64, i64) = (row.get(0), row.get(1));
        let (counted, summed): (i64, i64) = (lane.get("counted"), lane.get("summed"));
        if (count, sum) != (counted, summed) {
            return Ok(Some(format!(
                "segment {segment}: {}/{} has receipts for {counted} rows (sum {summed}), the segment holds {count} (sum {sum})",
                lane.get::<_, String>("sink"),
                lane.get::<_, i16>("lane"),
            )));
        }
    }
    Ok(None)
}

/// From here on readers leave the segment out; the next sweep truncates it. The condition is checked
/// again under the lock: a rewind or a new sink may have come in between.
async fn close(inner: &Inner, session: &mut Session, segment: i16, current: i16) -> Result<bool, StoreError> {
    if segment == current {
        return Ok(false);
    }
    let sql = inner.sessions.sql(&format!("select coalesce(max(seq), 0) from posthaste.outbox_{segment}"));
    let last: i64 = single(session.query(&sql, &[]).await.map_err(store_error)?)?;
    if !is_handled(inner, session, segment, last).await? {
        return Ok(false);
    }
    let sql = inner.sessions.sql(
        "update posthaste.segments set closing = true where segment = $1 and seal_xid is not null returning 1",
    );
    let rows = session.query(&sql, &[(&segment, Type::INT2)]).await.map_err(store_error)?;
    Ok(!rows.is_empty())
}

/// Writes an imbalance down, if the segment is still handled: a rewind or a new sink that came in between
/// explains it.
async fn take_note(
    inner: &Inner,
    session: &mut Session,
    segment: i16,
    note: &str,
) -> Result<bool, StoreError> {
    let sql = inner.sessions.sql(&format!("select coalesce(max(seq), 0) from posthaste.outbox_{segment}"));
    let last: i64 = single(session.query(&sql, &[]).await.map_err(store_error)?)?;
    if !is_handled(inner, session, segment, last).await? {
        return Ok(false);
    }
    let sql = inner.sessions.sql("update posthaste.segments set audit_note = $2 where segment = $1");
    let params: [Param<'_>; 2] = [(&segment, Type::INT2), (&note, Type::TEXT)];
    session.query(&sql, &params).await.map_err(store_error)?;
    Ok(true)
}

async fn truncate(
    inner: &Inner,
    session: &mut Session,
    segment: i16,
    current: i16,
) -> Result<bool, StoreError> {
    let sql = inner
        .sessions
        .sql("select closing and seal_xid is not null from posthaste.segments where segment = $1");
    let closing: bool = single(session.query(&sql, &[(&segment, Type::INT2)]).await.map_err(store_error)?)?;
    if !closing || segment == current {
        return Ok(false);
    }
    let sql = inner.sessions.sql(&format!("select coalesce(max(seq), 0) from posthaste.outbox_{segment}"));
    let last: i64 = single(session.query(&sql, &[]).await.map_err(store_error)?)?;
    if !is_handled(inner, session, segment, last).await? {
        // A sink came back, or was rewound: the segment is needed again.
        let sql = inner.sessions.sql("update posthaste.segments set closing = false where segment = $1");
        session.query(&sql, &[(&segment, Type::INT2)]).await.map_err(store_error)?;
        return Ok(true);
    }
    let failures = inner.truncate_failures.load(Ordering::Relaxed);
    let patience = if failures % PATIENT_EVERY == PATIENT_EVERY - 1 { "3s" } else { "20ms" };
    let truncate = inner
        .sessions
        .sql(&format!("set local lock_timeout = '{patience}'; truncate only posthaste.outbox_{segment}"));
    if let Err(error) = session.batch(&truncate).await {
        inner.truncate_failures.fetch_add(1, Ordering::Relaxed);
        if is_code(&error, &SqlState::LOCK_NOT_AVAILABLE) {
            tracing::debug!(segment, "somebody reads the old segment; truncated later");
            return Ok(false);
        }
        return Err(store_error(error));
    }
    inner.truncate_failures.store(0, Ordering::Relaxed);
    // CRASH(sweep.truncated): not committed, so the segment is still there and still closing.
    crash_point!("sweep.truncated");
    let sql = inner.sessions.sql(
        "update posthaste.segments set turn = null, opened_at = null, opened_xid = pg_current_xact_id(),
                closed_at = null, seal_xid = null, closing = false, truncated_at = clock_timestamp() where segment = $1",
    );
    session.query(&sql, &[(&segment, Type::INT2)]).await.map_err(store_error)?;
    tracing::info!(segment, "segment truncated");
    Ok(true)
}

/// Repeats a statement that removes a chunk, until one comes back not full.
async fn purge_chunks(session: &mut Session, sql: &str, params: &[Param<'_>]) -> Result<usize, StoreError> {
    let mut purged = 0;
    for _ in 0..PURGE_CHUNKS {
        let chunk = session.query_alone(sql, params).await.map_err(store_error)?.len();
        purged += chunk;
        if chunk < PURGE_CHUNK as usize {
            break;
        }
    }
    Ok(purged)
}

/// Removes small old rows in chunks.
async fn purge(inner: &Inner, session: &mut Session, swept: &mut Swept) -> Result<(), StoreError> {
    let retention = inner.sessions.config().retention;
    let receipts = inner.sessions.sql(include_str!("../../sql/log/purge_receipts.sql"));
    let mut purged = purge_chunks(session, &receipts, &[(&PURGE_CHUNK, Type::INT8)]).await?;
    let keys = inner.sessions.sql(
        "delete from posthaste.idempotency_keys where ctid = any (array(
           select ctid from posthaste.idempotency_keys
            where appended_at < clock_timestamp() - make_interval(secs => $2) order by appended_at limit $1)) returning 1",
    );
    let age = retention.idempotency_keys.as_secs_f64();
    purged += purge_chunks(session, &keys, &[(&PURGE_CHUNK, Type::INT8), (&age, Type::FLOAT8)]).await?;
    let relays = inner.sessions.sql(include_str!("../../sql/log/purge_relays.sql"));
    session.query_alone(&relays, &[]).await.map_err(store_error)?;
    if let Some(age) = retention.dead_letters {
        let sql = inner.sessions.sql(
            "with gone as (delete from posthaste.dead_letters where letter = any (array(
               select letter from posthaste.dead_letters where not holds_key
                  and dead_at < clock_timestamp() - make_interval(secs => $2) order by dead_at limit $1)) returning topic),
             noted as (insert into posthaste.audit (actor, action, reason, detail)
               select 'retention', 'purge', 'declared dead letter retention',
                      jsonb_build_object('count', count(*), 'topics', (array_agg(distinct topic))[1:10])
                 from gone having count(*) > 0)
             select 1 from gone",
        );
        let params: [Param<'_>; 2] = [(&PURGE_CHUNK, Type::INT8), (&age.as_secs_f64(), Type::FLOAT8)];
        swept.dead_purged = session.query_alone(&sql, &params).await.map_err(store_error)?.len() as u64;
    }
    swept.purged = purged as u64 + swept.dead_purged;
    Ok(())
}
