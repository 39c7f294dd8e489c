//! The outbox at work: positions, the ring, lanes, and transactions that hold things up.

use super::{CheckResult, Exam, fail, list, ok, warn};
use crate::admin::PostgresAdmin;
use crate::session::Param;
use posthaste::admin::{Admin, AdminError, SinkStatus};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

pub(super) async fn examine(exam: &mut Exam, admin: &PostgresAdmin) {
    let positions = positions(exam).await;
    exam.note_all(&["sequence_went_back", "xids_from_elsewhere"], positions);
    let long = long_transactions(exam).await;
    exam.note_result("long_transactions", long);
    let prepared = prepared_transactions(exam).await;
    exam.note_result("prepared_transactions", prepared);
    let ring = ring(exam).await;
    exam.note_all(&["ring_state", "ring_full", "audit"], ring);
    let owned = answered(admin.status().await, |status| {
        let (is_owned, text) = posthaste::admin::lanes_owned(&status);
        if is_owned { ok(text) } else { warn(text) }
    });
    exam.note("lanes_owned", owned);
    let retired = answered(admin.retired_sinks().await, |sinks| retired_sinks(&sinks));
    exam.note("retired_sinks", retired);
}

fn answered<T>(result: Result<T, AdminError>, judge: impl FnOnce(T) -> CheckResult) -> CheckResult {
    result.map_or_else(|error| fail(format!("could not be checked: {error}")), judge)
}

async fn positions(exam: &mut Exam) -> Result<Vec<CheckResult>, Error> {
    let rows = exam.query(include_str!("../../sql/doctor/positions.sql"), &[]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let xmax: i64 = row.get("xmax");
    let known =
        row.get::<_, i64>("snapshot_xmax").max(row.get::<_, Option<i64>>("receipt_xid").unwrap_or(0) + 1);
    let foreign = foreign_rows(exam).await?;
    Ok(vec![
        sequence_goes_on(row.get("last_value"), row.get("last_row"), row.get("position")),
        xids_are_ours(xmax, known, foreign),
    ])
}

/// The planner would rather walk the log by its other index and find nothing.
async fn foreign_rows(exam: &mut Exam) -> Result<i64, Error> {
    exam.session.begin().await?;
    let settings = "set local enable_bitmapscan = on; set local enable_indexscan = off; set local enable_indexonlyscan = off";
    let counted = match exam.session.client().batch_execute(settings).await {
        Ok(()) => exam.query(include_str!("../../sql/doctor/foreign_rows.sql"), &[]).await,
        Err(error) => Err(error),
    };
    exam.session.rollback().await;
    Ok(counted?.first().map_or(0, |row| row.get(0)))
}

fn sequence_goes_on(last_value: i64, last_row: i64, position: i64) -> CheckResult {
    let known = last_row.max(position);
    if last_value >= known {
        return ok(format!("at {last_value}"));
    }
    let what = if position > last_row { "a cursor has handled numbers" } else { "the log holds numbers" };
    fail(format!(
        "outbox_seq stands at {last_value}, but {what} up to {known}: it went back (setval, a restored backup, a failover that \
         lost the end). New events get numbers that cursors have passed; lanes stop until `posthaste lanes repair`"
    ))
}

fn xids_are_ours(xmax: i64, known: i64, foreign_rows: i64) -> CheckResult {
    if known <= xmax && foreign_rows == 0 {
        return ok(format!("transaction ids fit this server, which is at {xmax}"));
    }
    fail(format!(
        "this server's transaction ids are at {xmax}, but cursors know {known} and {foreign_rows} rows of the log carry higher \
         ones: the database was restored from another server, or went back. Events would be skipped or sent again later; lanes \
         stop until `posthaste lanes repair`"
    ))
}

async fn long_transactions(exam: &mut Exam) -> Result<CheckResult, Error> {
    let bound = exam.bounds.long_transaction.as_secs_f64();
    let rows =
        exam.query(include_str!("../../sql/doctor/long_transactions.sql"), &[(&bound, Type::FLOAT8)]).await?;
    let describe = |row: &Row| {
        format!(
            "pid {} ({} in {}, {})",
            row.get::<_, i32>(0),
            row.get::<_, String>(1),
            row.get::<_, String>(2),
            age(row.get(3))
        )
    };
    let found: Vec<String> = rows.iter().map(describe).collect();
    Ok(if found.is_empty() {
        ok("none")
    } else {
        warn(format!(
            "open for long: {}. Their own events wait for their end; old segments are not truncated and tables not vacuumed \
             meanwhile, so the database grows. End them (pg_terminate_backend) if they are forgotten",
            list(&found)
        ))
    })
}

pub(super) async fn prepared_transactions(exam: &mut Exam) -> Result<CheckResult, Error> {
    let bounds = [exam.bounds.long_transaction, exam.bounds.prepared_inbox].map(|bound| bound.as_secs_f64());
    let params: [Param<'_>; 2] = [(&bounds[0], Type::FLOAT8), (&bounds[1], Type::FLOAT8)];
    let rows = exam.query(include_str!("../../sql/doctor/prepared.sql"), &params).await?;
    let describe = |row: &Row| {
        let inbox = if row.get(3) { ", with locks on the inbox" } else { "" };
        format!("{} (in {}, {}{inbox})", row.get::<_, String>(0), row.get::<_, String>(1), age(row.get(2)))
    };
    let found: Vec<String> = rows.iter().map(describe).collect();
    if found.is_empty() {
        return Ok(ok("none"));
    }
    let waiting = if rows.iter().any(|row| row.get(3)) {
        " A consumer that gets a message whose mark is in one of them cannot handle it before its end, nor what follows by key."
    } else {
        ""
    };
    Ok(warn(format!(
        "prepared long ago and never ended: {}. They survive everything, hold their locks, and keep old segments from \
         being truncated.{waiting} COMMIT PREPARED or ROLLBACK PREPARED them",
        list(&found)
    )))
}

fn age(seconds: f64) -> String {
    if seconds >= 3_600.0 { format!("{:.1} h", seconds / 3_600.0) } else { format!("{seconds:.0} s") }
}

async fn ring(exam: &mut Exam) -> Result<Vec<CheckResult>, Error> {
    let rows = exam.query(include_str!("../../sql/doctor/ring.sql"), &[]).await?;
    let Some(row) = rows.first() else {
        let gone = || fail("the table ring is empty: nothing is turned or truncated. Restore its one row");
        return Ok(vec![gone(), gone(), gone()]);
    };
    let state = ring_state(row.get("turn"), row.get("current"));
    let full = if row.get::<_, Option<bool>>("next_used") == Some(true) {
        warn(
            "the next segment is not empty: the ring cannot turn, and the current segment grows until the oldest is truncated. \
             Nothing fails. Look for a sink that is behind, a long transaction, or a failed audit; or shorten the retention",
        )
    } else {
        ok("the next segment is empty")
    };
    let audit = match row.get::<_, Option<String>>("audit_notes") {
        None => ok("no difference was found"),
        Some(notes) => fail(format!(
            "the receipts do not balance with the log ({notes}): an event may not have been delivered. The segment is kept; \
             `posthaste lanes rewind` sends it again. Please report it"
        )),
    };
    Ok(vec![state, full, audit])
}

fn ring_state(turn: i64, current: Option<i64>) -> CheckResult {
    match current {
        None => fail(
            "outbox_segment has no value: every append fails, and with it the application's transaction. Run \
             `select setval('posthaste.outbox_segment', 1, true)` with the number of the current segment",
        ),
        Some(current) if current == (turn - 1) % 8 + 1 => ok(format!("segment {current}, turn {turn}")),
        Some(current) => warn(format!(
            "appends go to segment {current}, the bookkeeping says {}: whoever turned the ring died half-way. The next sweep of a \
             relay completes it; run one",
            (turn - 1) % 8 + 1
        )),
    }
}

fn retired_sinks(sinks: &[SinkStatus]) -> CheckResult {
    let waits = |sink: &&SinkStatus| sink.backlog.count + sink.deferred.count + sink.dead.count > 0;
    let describe = |sink: &SinkStatus| {
        format!(
            "{} ({} in the log, {} deferred, {} dead)",
            sink.sink, sink.backlog.count, sink.deferred.count, sink.dead.count
        )
    };
    let waiting: Vec<String> = sinks.iter().filter(waits).map(describe).collect();
    if waiting.is_empty() {
        return ok("none with events left");
    }
    warn(format!(
        "sinks that left the configuration still have events: {}. Nobody delivers them, and the log keeps them for a day \
         only after the sink left. Configure the sink again, or let them go",
        list(&waiting)
    ))
}
