//! What holds for a gateway's login. It appends and reads no event, so it needs no more than this.

use super::consumer::judge_pooler;
use super::{Bounds, Exam, fail, rights, schema, server};
use crate::config::PostgresConfig;
use crate::pooler::is_pooled;
use crate::session::Sessions;
use posthaste::sink::Finding;
use posthaste::store::StoreError;

/// The check of what a gateway may do, which no other login needs.
pub const GATEWAY_RIGHTS: &str = "gateway_rights";

/// Names of the checks of a gateway's login, in the order they are made.
pub const GATEWAY_CHECKS: &[&str] = &[
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
    GATEWAY_RIGHTS,
    "pooler",
];

/// What becomes of requests where something is missing.
const THEN: &str = "requests are answered with 503";

/// Checks what a gateway rests on, with its own login. Nothing is changed.
pub async fn examine_gateway(config: &PostgresConfig, bounds: &Bounds) -> Result<Vec<Finding>, StoreError> {
    let sessions = Sessions::new(config.clone());
    let session = sessions.session().await?;
    let mut exam = Exam { sessions, session, bounds: *bounds, findings: Vec::new() };
    let durable = Some("the gateway switches it on for its own transactions, and 202 waits for them");
    if server::examine(&mut exam, durable).await.is_none() {
        return Ok(exam.findings);
    }
    if schema::examine_version(&mut exam).await {
        let checksum = schema::checksums(&mut exam).await;
        exam.note_result("schema_checksum", checksum);
        let rights = rights::lacking(&mut exam, "gateway", &crate::rights::gateway(), THEN).await;
        exam.note_result(GATEWAY_RIGHTS, rights);
    }
    let pooler = is_pooled(config).await.map_or_else(
        |error| fail(format!("could not be checked: {error}")),
        |pooled| judge_pooler(pooled, config.pooled, THEN),
    );
    exam.note("pooler", pooler);
    Ok(exam.findings)
}
