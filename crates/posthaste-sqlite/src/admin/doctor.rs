//! Doctor: every assumption the outbox rests on, looked at one by one.
//!
//! Each check has a stable name, and answers with what it found, what that means for the events, and what to
//! do. `fail` means that events are not delivered or can be lost; `warn`, that it works and can stall or lose
//! in the way that is named. Nothing is changed.

use crate::clock::now;
use crate::connect::{check_wal, open_reader};
use crate::log::heart::{Heart, beats};
use crate::migrate;
use crate::watch::last_seq;
use posthaste::sink::{Finding, Level};
use rusqlite::Connection;
use std::path::Path;

/// Names of all checks, in the order they are made. Each finding bears one of them.
pub const CHECKS: &[&str] = &[
    "file",
    "integrity",
    "journal_mode",
    "schema_version",
    "write_access",
    "file_locks",
    "clock",
    "log_went_back",
    "append_only",
    "audit_topic",
    "lanes_owned",
    "retired_sinks",
];

/// What a check says.
type CheckResult = (Level, String);

fn ok(text: impl Into<String>) -> CheckResult {
    (Level::Ok, text.into())
}

fn warn(text: impl Into<String>) -> CheckResult {
    (Level::Warn, text.into())
}

fn fail(text: impl Into<String>) -> CheckResult {
    (Level::Fail, text.into())
}

struct Exam {
    findings: Vec<Finding>,
}

impl Exam {
    fn note(&mut self, check: &'static str, verdict: CheckResult) {
        debug_assert!(CHECKS.contains(&check), "{check} is not listed");
        self.findings.push(Finding { check: check.to_owned(), level: verdict.0, text: verdict.1 });
    }

    fn note_result(&mut self, check: &'static str, verdict: rusqlite::Result<CheckResult>) {
        let verdict = verdict.unwrap_or_else(|error| {
            fail(format!("could not be checked: {}", crate::error::store_error(error)))
        });
        self.note(check, verdict);
    }
}

pub(super) fn examine(path: &Path, topic: Option<&str>) -> Vec<Finding> {
    let mut exam = Exam { findings: Vec::new() };
    let connection = match open_reader(path) {
        Ok(connection) => connection,
        Err(error) => {
            exam.note("file", fail(error.to_string()));
            return exam.findings;
        }
    };
    exam.note("file", ok(format!("{} is a database", path.display())));
    exam.note_result("integrity", integrity(&connection));
    exam.note(
        "journal_mode",
        check_wal(&connection).map_or_else(|error| fail(error.to_string()), |()| ok("WAL")),
    );
    match migrate::check_version(&connection) {
        Ok(version) => exam.note("schema_version", ok(format!("version {version}"))),
        Err(error) => {
            exam.note("schema_version", fail(error.to_string()));
            return exam.findings;
        }
    }
    exam.note("write_access", write_access(path));
    exam.note("file_locks", file_locks(path));
    exam.note_result("clock", clock(&connection));
    exam.note_result("log_went_back", log_went_back(&connection));
    exam.note_result("append_only", append_only(&connection));
    exam.note_result("audit_topic", audit_topic(&connection, topic));
    exam.note_result("lanes_owned", lanes_owned(&connection, path));
    exam.note_result("retired_sinks", retired_sinks(&connection));
    exam.findings
}

/// Not `integrity_check`: that reads every index of the application too. This one reads every page once.
fn integrity(connection: &Connection) -> rusqlite::Result<CheckResult> {
    let found: String = connection.query_row("pragma quick_check(1)", [], |row| row.get(0))?;
    Ok(if found == "ok" {
        ok("every page is sound")
    } else {
        fail(format!(
            "the file is damaged: {found}. Stop everything that uses it, keep a copy of it with its -wal, and restore a \
             backup or run `sqlite3 FILE .recover`; events since the backup are lost otherwise"
        ))
    })
}

fn write_access(path: &Path) -> CheckResult {
    let begun = crate::connect::open_writer(path, crate::connect::Synchronous::Full).and_then(|connection| {
        connection.execute_batch("begin immediate; rollback").map_err(crate::error::store_error)
    });
    match begun {
        Ok(()) => ok("the write lock can be had"),
        Err(error) => fail(error.to_string()),
    }
}

fn file_locks(path: &Path) -> CheckResult {
    let unlocked = "the file system knows no locks: the death of a relay is noticed only when its lease expires, and \
                    SQLite itself is not safe there with several processes. Use a local disk";
    match Heart::start(path) {
        Ok(Some(heart)) if beats(path, &heart.name) => ok("a relay's death is noticed at once"),
        Ok(_) => warn(unlocked),
        Err(error) => fail(format!(
            "no file can be made next to the database ({error}), so a relay cannot show that it lives and does not start. \
             Give it the right to write that directory"
        )),
    }
}

fn clock(connection: &Connection) -> rusqlite::Result<CheckResult> {
    let sql =
        "select max((select settled_at from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane
                            order by n desc limit 1)) from posthaste_lanes l";
    let newest: Option<i64> = connection.query_row(sql, [], |row| row.get(0))?;
    let ahead = newest.map_or(0, |newest| (newest - now()) / 1_000_000);
    Ok(if ahead > 5 {
        warn(format!(
            "the clock went back: the last settlement is {ahead} s in the future. Leases and due events wait until the \
             clock is there again; nothing is lost"
        ))
    } else {
        ok("the clock goes forward")
    })
}

fn log_went_back(connection: &Connection) -> rusqlite::Result<CheckResult> {
    let known: i64 =
        connection.query_row(include_str!("../../sql/admin/known_seq.sql"), [], |row| row.get(0))?;
    let last = last_seq(connection)?;
    Ok(if last < known {
        fail(format!(
            "the log draws numbers above {last}, but {known} was in use already: what is appended now would be skipped. Was \
             sqlite_sequence changed? Run `posthaste lanes repair`"
        ))
    } else {
        ok(format!("the log ends at {last}"))
    })
}

/// The triggers that keep rows as they were published, and as long as somebody needs them.
fn append_only(connection: &Connection) -> rusqlite::Result<CheckResult> {
    let sql = "select count(*) from sqlite_schema where type = 'trigger'
                  and name in ('posthaste_outbox_no_update', 'posthaste_outbox_no_early_delete')";
    let there: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    Ok(if there == 2 {
        ok("rows of the log cannot be changed, nor removed too early")
    } else {
        warn(
            "a trigger of posthaste_outbox is gone: rows can be changed after they were published, or vanish before. \
             `posthaste migrate sql` prints both",
        )
    })
}

fn audit_topic(connection: &Connection, configured: Option<&str>) -> rusqlite::Result<CheckResult> {
    let there = migrate::audit_topic(connection)?;
    let (same, text) = posthaste::admin::compare_topics(there.as_deref(), configured);
    Ok(if same { ok(text) } else { warn(text) })
}

fn lanes_owned(connection: &Connection, path: &Path) -> rusqlite::Result<CheckResult> {
    let status = super::status::look(connection, path)?;
    let (is_owned, text) = posthaste::admin::lanes_owned(&status);
    Ok(if is_owned { ok(text) } else { warn(text) })
}

fn retired_sinks(connection: &Connection) -> rusqlite::Result<CheckResult> {
    let sql = "select distinct sink from posthaste_lanes where retired_at is not null order by sink";
    let retired = connection
        .prepare(sql)?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(if retired.is_empty() {
        ok("every sink is in the configuration of the relay that joined last")
    } else {
        warn(format!(
            "sinks that left the configuration: {}. Their events are kept for a day after that; bring the sink back, or \
             look at what is left with `posthaste dead list --sink NAME`",
            retired.join(", ")
        ))
    })
}
