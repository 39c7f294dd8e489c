//! The schema: its version, and what somebody changed by hand.

use super::server::Server;
use super::{CheckResult, Exam, fail, list, ok, warn};
use crate::migrate::{self, SCHEMA_VERSION};
use crate::session::SqlResult;
use posthaste::sink::Level;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Whether there is an outbox to look at.
pub(super) async fn examine_version(exam: &mut Exam) -> bool {
    let sessions = std::sync::Arc::clone(&exam.sessions);
    let verdict = match migrate::check_version(&mut exam.session, &sessions).await {
        Ok(version) if version > SCHEMA_VERSION => {
            ok(format!("version {version}, ahead of this binary's {SCHEMA_VERSION}, which works on it"))
        }
        Ok(version) => ok(format!("version {version}")),
        Err(error) => fail(error.to_string()),
    };
    let usable = verdict.0 == Level::Ok;
    exam.note("schema_version", verdict);
    usable
}

pub(super) async fn examine(exam: &mut Exam, server: &Server) {
    let checksum = checksums(exam).await;
    exam.note_result("schema_checksum", checksum);
    let limit = payload_limit(exam).await;
    exam.note_result("payload_limit", limit);
    let audit = audit_topic(exam).await;
    exam.note_result("audit_topic", audit);
    let shape = shape(exam, server).await;
    exam.note_all(
        &["column_defaults", "segment_indexes", "lease_tokens", "wakeup_trigger", "two_phase"],
        shape,
    );
    let sequence = sequence(exam).await;
    exam.note_all(&["sequence_cache", "sequence_cycle", "sequence_owner"], sequence);
}

pub(super) async fn checksums(exam: &mut Exam) -> SqlResult<CheckResult> {
    let rows = exam.query("select version, checksum from posthaste.migrations order by version", &[]).await?;
    let differs = |row: &&Row| migrate::differs(row.get(0), row.get(1));
    let differing: Vec<String> =
        rows.iter().filter(differs).map(|row| row.get::<_, i32>(0).to_string()).collect();
    Ok(if differing.is_empty() {
        ok("the applied texts are those of this binary")
    } else {
        fail(format!(
            "version {} was applied with another text than this binary has: the tables may not be what it expects. Use the \
             build that applied it, or compare with `posthaste migrate sql`",
            list(&differing)
        ))
    })
}

async fn payload_limit(exam: &mut Exam) -> SqlResult<CheckResult> {
    let configured = migrate::payload_bytes_max(&exam.sessions.config().limits);
    let rows = exam.query("select posthaste.payload_bytes_max()", &[]).await?;
    let now: i32 = rows.first().map_or(0, |row| row.get(0));
    Ok(if now == configured {
        ok(format!("{now} bytes"))
    } else {
        warn(format!(
            "posthaste.append() takes payloads of up to {now} bytes, the configuration says {configured}: what lies between is \
             refused at append, or accepted and then ends as a dead letter. Run `posthaste migrate up`"
        ))
    })
}

async fn audit_topic(exam: &mut Exam) -> SqlResult<CheckResult> {
    let sessions = std::sync::Arc::clone(&exam.sessions);
    let there = migrate::audit_topic(&sessions, &mut exam.session).await?;
    let (same, text) =
        posthaste::admin::compare_topics(there.as_deref(), sessions.config().audit_topic.as_deref());
    Ok(if same { ok(text) } else { warn(text) })
}

/// Verdicts on defaults, indexes, tokens, the trigger, and what it means for two-phase commit.
async fn shape(exam: &mut Exam, server: &Server) -> SqlResult<Vec<CheckResult>> {
    let wakeups = exam.sessions.config().wakeups;
    let rows = exam.query(include_str!("../../sql/doctor/shape.sql"), &[]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let expression = |column: &str| row.get::<_, Option<String>>(column).unwrap_or_default();
    let defaults = defaults(&expression("seq"), &expression("xid"), &expression("segment"));
    let unindexed: Vec<String> = row.get("unindexed");
    let indexes = if unindexed.is_empty() {
        ok("every segment has its index")
    } else {
        fail(format!(
            "{} lacks the unique index on seq: every read scans the whole segment, and one number could be given twice. \
             Create it again, see `posthaste migrate sql`",
            list(&unindexed)
        ))
    };
    let tokens = if row.get::<_, Option<String>>("tokens").as_deref() == Some("u") {
        ok("unlogged, as they must be")
    } else {
        fail(
            "lease_tokens is not UNLOGGED: a crash of the server would not take leases away, and a relay's position in memory \
             could be ahead of what survived. Run `alter table posthaste.lease_tokens set unlogged`",
        )
    };
    let enabled = row.get::<_, Option<String>>("trigger").is_some_and(|state| state != "D");
    let trigger = match (enabled, wakeups) {
        (true, _) => ok("on"),
        (false, false) => ok("off, as configured (wakeups = false)"),
        (false, true) => warn(
            "the trigger outbox_wakeup is missing or disabled: nobody wakes a sleeping relay, and an event after a quiet time \
             waits for the next poll. Enable it, or set wakeups = false",
        ),
    };
    Ok(vec![defaults, indexes, tokens, trigger, server.allows_wakeups(enabled && wakeups)])
}

/// A number must be drawn after the transaction has its xid, by construction of the default (F2).
fn defaults(seq: &str, xid: &str, segment: &str) -> CheckResult {
    let after_xid = |text: &str, call: &str| {
        let guard = text.find("pg_current_xact_id() IS NOT NULL");
        guard.is_some_and(|guard| text.find(call).is_some_and(|call| guard < call))
            && !text.contains("COALESCE")
    };
    let mut wrong = Vec::new();
    if !after_xid(seq, "nextval(") {
        wrong.push("seq".to_owned());
    }
    if xid != "pg_current_xact_id()" {
        wrong.push("xid".to_owned());
    }
    if !after_xid(segment, "pg_sequence_last_value(") {
        wrong.push("segment".to_owned());
    }
    if wrong.is_empty() {
        return ok("as migrated");
    }
    fail(format!(
        "the default of {} in the outbox was changed: the cursor relies on a number being drawn after its transaction has an \
         xid, and on rows lying in the current segment. Events can be skipped. Restore it, see `posthaste migrate sql`",
        list(&wrong)
    ))
}

async fn sequence(exam: &mut Exam) -> SqlResult<Vec<CheckResult>> {
    let schema = exam.sessions.config().schema.clone();
    let rows = exam.query(include_str!("../../sql/doctor/sequence.sql"), &[(&schema, Type::TEXT)]).await?;
    let Some(row) = rows.first() else {
        let gone = || fail("the sequence outbox_seq is not there: nothing can be appended. Restore it");
        return Ok(vec![gone(), gone(), gone()]);
    };
    let cache: i64 = row.get("cache_size");
    let (cycle, step, max): (bool, i64, i64) =
        (row.get("cycle"), row.get("increment_by"), row.get("max_value"));
    let (owner, log_owner): (String, Option<String>) = (row.get("owner"), row.get("log_owner"));
    Ok(vec![caches_one(cache), counts_up(cycle, step, max), has_owner(&owner, log_owner.as_deref())])
}

fn caches_one(cache: i64) -> CheckResult {
    if cache == 1 {
        return ok("CACHE 1");
    }
    fail(format!(
        "outbox_seq has CACHE {cache}: a session keeps numbers back and uses them later, below a mark that says they are \
         past. Their events are skipped. Run `alter sequence posthaste.outbox_seq cache 1`, then `posthaste lanes rewind`"
    ))
}

fn counts_up(cycle: bool, step: i64, max: i64) -> CheckResult {
    if !cycle && step > 0 && max == i64::MAX {
        return ok("counts up and never starts again");
    }
    fail(
        "outbox_seq cycles, counts down or ends early: a number would come twice or below what cursors have passed, and its \
         event is skipped. Run `alter sequence posthaste.outbox_seq no cycle increment 1 no maxvalue`",
    )
}

fn has_owner(owner: &str, log_owner: Option<&str>) -> CheckResult {
    if Some(owner) == log_owner {
        return ok(format!("owned by {owner}, like the log"));
    }
    warn(format!(
        "outbox_seq belongs to {owner}, the rest of the outbox to {}: its owner can set it back, which makes cursors skip \
         events. Run `alter sequence posthaste.outbox_seq owner to …`",
        log_owner.unwrap_or("nobody")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_drawn_before_the_xid_is_seen() {
        let (seq, xid) = (
            "CASE WHEN (pg_current_xact_id() IS NOT NULL) THEN nextval('posthaste.outbox_seq'::regclass) ELSE NULL::bigint END",
            "pg_current_xact_id()",
        );
        let segment = "(CASE WHEN (pg_current_xact_id() IS NOT NULL) THEN pg_sequence_last_value(('posthaste.outbox_segment'::regclass)) END)::smallint";
        assert_eq!(defaults(seq, xid, segment).0, Level::Ok);
        assert!(defaults("nextval('posthaste.outbox_seq'::regclass)", xid, segment).1.contains("of seq in"));
        assert!(defaults(seq, "", segment).1.contains("of xid in"));
        assert!(defaults(seq, xid, &format!("COALESCE({segment}, 1)")).1.contains("of segment in"));
    }
}
