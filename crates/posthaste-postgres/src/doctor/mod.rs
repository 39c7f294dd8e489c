//! Doctor: every assumption the outbox rests on, looked at one by one.
//!
//! Each check has a stable name, and answers with what it found, what that means for the events, and what
//! to do. `fail` means that events are not delivered or can be lost; `warn`, that it works and can stall
//! or lose in the way that is named. A check that cannot be made (a missing right, a missing table) fails
//! under its own name instead of hiding the others.
//!
//! Nothing is changed. What is judged is read first and judged by plain functions, so that also a server
//! nobody has at hand (an old one, a lookalike, one with a wrong clock) is part of the tests.
//!
//! ```text
//! server.rs   the server and its settings       rights.rs   who may do what
//! schema.rs   what somebody changed by hand     cursors.rs  positions, ring, lanes, transactions
//! session.rs  poolers, notifications            consumer.rs what holds for a consumer's login
//!                                               gateway.rs  the same for a gateway's
//! ```

mod consumer;
mod cursors;
mod gateway;
mod rights;
mod schema;
mod server;
mod session;

pub use consumer::{CONSUMER_CHECKS, CONSUMER_RIGHTS, HANDLERS, examine_consumer, examine_handlers};
pub use gateway::{GATEWAY_CHECKS, GATEWAY_RIGHTS, examine_gateway};

use crate::admin::PostgresAdmin;
use crate::error::describe;
use crate::session::{Param, Session, Sessions, SqlResult};
use posthaste::admin::AdminError;
use posthaste::sink::{Finding, Level};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

/// Names of all checks, in the order they are made. Each finding bears one of them.
pub const CHECKS: &[&str] = &[
    "server_version",
    "server_kind",
    "standby",
    "read_only",
    "functions",
    "encoding",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "autovacuum",
    "clock_skew",
    "schema_version",
    "schema_checksum",
    "payload_limit",
    "audit_topic",
    "column_defaults",
    "segment_indexes",
    "lease_tokens",
    "wakeup_trigger",
    "two_phase",
    "sequence_cache",
    "sequence_cycle",
    "sequence_owner",
    "relay_rights",
    "app_table_rights",
    "app_column_rights",
    "app_sequence_rights",
    "sequence_went_back",
    "xids_from_elsewhere",
    "long_transactions",
    "prepared_transactions",
    "ring_state",
    "ring_full",
    "audit",
    "lanes_owned",
    "retired_sinks",
    "pooler",
    "notify",
];

/// From where on something is worth a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// A transaction that is open for longer holds up retention. An hour is far beyond what a service's
    /// transaction takes, and early against a retention of days.
    pub long_transaction: Duration,
    /// A prepared transaction that wrote to the inbox holds up the keys of what it marked. A minute is far
    /// beyond what a coordinator needs between the two phases.
    pub prepared_inbox: Duration,
    /// Ages and latencies in metrics are off by the difference of the clocks. Nothing durable depends on
    /// the host's.
    pub clock_skew: Duration,
    /// How long a notification may take. It is a matter of milliseconds, or it does not come.
    pub notify: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            long_transaction: Duration::from_secs(3_600),
            prepared_inbox: Duration::from_secs(60),
            clock_skew: Duration::from_secs(2),
            notify: Duration::from_secs(2),
        }
    }
}

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

/// An examination under way.
struct Exam {
    sessions: Arc<Sessions>,
    session: Session,
    bounds: Bounds,
    findings: Vec<Finding>,
}

impl Exam {
    async fn query(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        self.session.query_alone(&self.sessions.sql(sql), params).await
    }

    fn note(&mut self, check: &'static str, verdict: CheckResult) {
        let listed = [CHECKS, CONSUMER_CHECKS, GATEWAY_CHECKS];
        debug_assert!(listed.iter().any(|checks| checks.contains(&check)), "{check} is not listed");
        let (level, text) = verdict;
        self.findings.push(Finding { check: check.to_owned(), level, text });
    }

    /// Notes what a query led to, or that it could not be made.
    fn note_result(&mut self, check: &'static str, verdict: SqlResult<CheckResult>) {
        let verdict = verdict.unwrap_or_else(|error| {
            fail(format!(
                "could not be checked: {}. What it would have found is unknown; give the role the right, or look again",
                describe(&error)
            ))
        });
        self.note(check, verdict);
    }

    /// The same for checks that share a query.
    fn note_all(&mut self, checks: &[&'static str], verdicts: SqlResult<Vec<CheckResult>>) {
        match verdicts {
            Ok(verdicts) => {
                checks.iter().zip(verdicts).for_each(|(check, verdict)| self.note(check, verdict))
            }
            Err(error) => {
                let text = format!("could not be checked: {}", describe(&error));
                checks.iter().for_each(|check| self.note(check, fail(text.clone())));
            }
        }
    }
}

impl PostgresAdmin {
    /// [`doctor`](posthaste::admin::Admin::doctor) with bounds of one's own.
    pub async fn doctor_with(&self, bounds: &Bounds) -> Result<Vec<Finding>, AdminError> {
        let session = self.sessions.session().await?;
        let sessions = Arc::clone(&self.sessions);
        let mut exam = Exam { sessions, session, bounds: *bounds, findings: Vec::new() };
        let flushes = exam.sessions.config().flush_before_publish;
        let durable = flushes.then_some("the relay flushes before it publishes");
        let Some(server) = server::examine(&mut exam, durable).await else { return Ok(exam.findings) };
        if schema::examine_version(&mut exam).await {
            schema::examine(&mut exam, &server).await;
            rights::examine(&mut exam).await;
            cursors::examine(&mut exam, self).await;
        }
        // Last: behind a pooler they move this session to another connection of the server.
        session::examine(&mut exam).await;
        Ok(exam.findings)
    }
}

/// A list for people: `a, b and 3 more`.
fn list(items: &[String]) -> String {
    const SHOWN: usize = 8;
    match items.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", items[..SHOWN].join(", ")),
        _ => items.join(", "),
    }
}
