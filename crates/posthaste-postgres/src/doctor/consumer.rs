//! What holds for a consumer's login. A service's database need have no relay, and its login need not be one.

use super::{Bounds, CheckResult, Exam, cursors, fail, ok, rights, schema, server};
use crate::config::PostgresConfig;
use crate::consumer::SqlHandler;
use crate::pooler::is_pooled;
use crate::session::Sessions;
use posthaste::sink::Finding;
use posthaste::store::StoreError;

/// The check of what a consumer may do, which no other login needs.
pub const CONSUMER_RIGHTS: &str = "consumer_rights";

/// Names of the checks of a consumer's login, in the order they are made.
pub const CONSUMER_CHECKS: &[&str] = &[
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
    CONSUMER_RIGHTS,
    "prepared_transactions",
    "pooler",
];

/// Checks what a consumer rests on, with its own login. Nothing is changed.
pub async fn examine_consumer(config: &PostgresConfig, bounds: &Bounds) -> Result<Vec<Finding>, StoreError> {
    let sessions = Sessions::new(config.clone());
    let session = sessions.session().await?;
    let mut exam = Exam { sessions, session, bounds: *bounds, findings: Vec::new() };
    let durable = Some("a consumer's own transactions wait until they are durable");
    if server::examine(&mut exam, durable).await.is_none() {
        return Ok(exam.findings);
    }
    if schema::examine_version(&mut exam).await {
        let checksum = schema::checksums(&mut exam).await;
        exam.note_result("schema_checksum", checksum);
        let needed = crate::rights::consumer();
        let rights = rights::lacking(&mut exam, "consumer", &needed, "messages wait at the broker").await;
        exam.note_result(CONSUMER_RIGHTS, rights);
        let prepared = cursors::prepared_transactions(&mut exam).await;
        exam.note_result("prepared_transactions", prepared);
    }
    let pooler = is_pooled(config).await.map_or_else(
        |error| fail(format!("could not be checked: {error}")),
        |pooled| judge_pooler(pooled, config.pooled, "messages wait at the broker"),
    );
    exam.note("pooler", pooler);
    Ok(exam.findings)
}

/// The check of a consumer's handlers in SQL.
pub const HANDLERS: &str = "handlers";

/// Checks that each of these handlers is there and may be called, with the consumer's login.
pub async fn examine_handlers(config: &PostgresConfig, handlers: &[SqlHandler]) -> Vec<Finding> {
    // Why there is no session, the other checks say.
    let Ok(mut session) = Sessions::new(config.clone()).session().await else { return Vec::new() };
    let checked = async {
        for handler in handlers {
            handler.check(&mut session).await?;
        }
        Ok::<_, StoreError>(())
    };
    let (level, text) = match checked.await {
        Ok(()) => ok(format!("{} in SQL, and they may be called", handlers.len())),
        Err(error) => fail(error.to_string()),
    };
    vec![Finding { check: HANDLERS.to_owned(), level, text }]
}

/// Unlike a relay, a consumer or a gateway holds nothing in its session.
pub(super) fn judge_pooler(found: bool, configured: bool, then: &str) -> CheckResult {
    if !found || configured {
        return ok("whatever lies between, nothing is kept in a session");
    }
    fail(format!(
        "a pooler in transaction mode lies between, and pooled = false: named statements are looked for on another \
         connection and fail, so {then}. Set pooled = true, or connect to the server itself"
    ))
}
