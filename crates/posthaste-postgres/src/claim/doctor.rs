//! Checks of every assumption about an adopted table. Nothing of it is changed.

use super::audit;
use super::check;
use super::layout::Layout;
use super::rehearse;
use super::session::ClaimSession;
use super::statements::Statements;
use crate::config::PostgresConfig;
use crate::error::store_error;
use posthaste::sink::{Finding, Level};
use posthaste::store::StoreError;

/// Names of the checks that [`examine`] makes.
pub const CHECKS: &[&str] = &[
    "adopted_table",
    "adopted_rehearsal",
    "adopted_index",
    "adopted_status",
    "adopted_backlog",
    "adopted_audit",
];

/// Makes all checks.
pub async fn examine(config: &PostgresConfig, layout: &Layout) -> Vec<Finding> {
    let opened = async {
        let mut session = ClaimSession::open(config, layout).await?;
        let statements = check::statements(&mut session, layout.clone()).await?;
        Ok::<_, StoreError>((session, statements))
    };
    match opened.await {
        Err(error) => vec![found("adopted_table", Level::Fail, error.to_string())],
        Ok((mut session, statements)) => {
            let fits = format!("{} fits its layout", statements.layout().table);
            let mut findings = vec![found("adopted_table", Level::Ok, fits)];
            findings.extend(examine_on(&mut session, &statements, &config.schema).await);
            findings
        }
    }
}

fn found(check: &str, level: Level, text: String) -> Finding {
    Finding { check: check.to_owned(), level, text }
}

pub(super) async fn examine_on(
    session: &mut ClaimSession,
    statements: &Statements,
    schema: &str,
) -> Vec<Finding> {
    vec![
        rehearsal(session, statements).await,
        index(session, statements).await,
        status(session, statements).await,
        backlog(session, statements).await,
        audited(session, statements, schema).await,
    ]
}

async fn rehearsal(session: &mut ClaimSession, statements: &Statements) -> Finding {
    const CHECK: &str = "adopted_rehearsal";
    match rehearse::rehearse(session, statements).await {
        Ok(()) => found(CHECK, Level::Ok, "one row can be claimed and settled; it was taken back".to_owned()),
        Err(error) => {
            // A rehearsal that failed leaves its transaction behind.
            let _ = session.rollback().await;
            found(CHECK, Level::Fail, error.to_string())
        }
    }
}

async fn index(session: &mut ClaimSession, statements: &Statements) -> Finding {
    const CHECK: &str = "adopted_index";
    match plan(session, statements).await {
        Ok(plan) if has_index(&plan) => found(CHECK, Level::Ok, "the claim walks an index".to_owned()),
        Ok(_) => found(CHECK, Level::Warn, no_index(statements.layout())),
        Err(error) => found(CHECK, Level::Warn, error.to_string()),
    }
}

async fn status(session: &mut ClaimSession, statements: &Statements) -> Finding {
    const CHECK: &str = "adopted_status";
    match rehearse::unmapped(session, statements).await {
        Ok(words) if words.is_empty() => found(CHECK, Level::Ok, "every status is mapped".to_owned()),
        Ok(words) => {
            let words: Vec<String> = words.iter().map(|(word, rows)| format!("{word} ({rows})")).collect();
            let text = format!("rows with a status that is not mapped are left alone: {}", words.join(", "));
            found(CHECK, Level::Warn, text)
        }
        Err(error) => found(CHECK, Level::Warn, error.to_string()),
    }
}

/// Rows that wait for so long that somebody may have published them without a mark (F27).
async fn backlog(session: &mut ClaimSession, statements: &Statements) -> Finding {
    const CHECK: &str = "adopted_backlog";
    let old = match old_rows(session, statements).await {
        Ok(old) => old,
        Err(error) => return found(CHECK, Level::Warn, error.to_string()),
    };
    match old {
        0 => found(CHECK, Level::Ok, "no row has waited for more than a day".to_owned()),
        rows => {
            let more = if rows >= OLD_ROWS_MAX { " or more" } else { "" };
            let text = format!(
                "{rows}{more} rows have waited for more than a day. If somebody published them without a mark, set them to done, or \
                 leave them out with `where`, before a relay starts: it would publish them again"
            );
            found(CHECK, Level::Warn, text)
        }
    }
}

/// Counts of old rows go up to this number.
const OLD_ROWS_MAX: i64 = 100_000;

async fn old_rows(session: &mut ClaimSession, statements: &Statements) -> Result<i64, StoreError> {
    let Some(sql) = statements.old_rows(OLD_ROWS_MAX) else { return Ok(0) };
    let rows = session.query(&sql, &[]).await.map_err(store_error)?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Whether acts on dead rows can be written down.
async fn audited(session: &mut ClaimSession, statements: &Statements, schema: &str) -> Finding {
    const CHECK: &str = "adopted_audit";
    let layout = statements.layout();
    match audit::place(session, layout, schema).await {
        Ok(Some(table)) => found(CHECK, Level::Ok, format!("acts on dead rows are written to {table}")),
        Ok(None) => found(CHECK, Level::Warn, audit::missing(layout)),
        Err(error) => found(CHECK, Level::Warn, error.to_string()),
    }
}

/// How the server would find what is due.
async fn plan(session: &mut ClaimSession, statements: &Statements) -> Result<String, StoreError> {
    let rows = session.query(&statements.explained(), &[]).await.map_err(store_error)?;
    Ok(rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n"))
}

/// Whether a plan finds due rows by an index and in their order.
fn has_index(plan: &str) -> bool {
    !plan.contains("Seq Scan") && !plan.contains("Sort Key")
}

fn no_index(layout: &Layout) -> String {
    let line = super::advice::claim_index(layout).unwrap_or_default();
    format!(
        "no index gives due rows in their order: each look reads and sorts all that waits, and gets slower as that grows. {line}"
    )
}

/// The plan of a layout's claim, and the index it lacks, if it lacks one.
pub async fn missing_index(config: &PostgresConfig, layout: &Layout) -> Result<Option<String>, StoreError> {
    let mut session = ClaimSession::open(config, layout).await?;
    let statements = check::statements(&mut session, layout.clone()).await?;
    let plan = plan(&mut session, &statements).await?;
    Ok((!has_index(&plan)).then(|| no_index(statements.layout())))
}

/// The CREATE TABLE of the audit that acts on dead rows need, if it is missing.
pub async fn missing_audit(config: &PostgresConfig, layout: &Layout) -> Result<Option<String>, StoreError> {
    let mut session = ClaimSession::open(config, layout).await?;
    let place = audit::place(&mut session, layout, &config.schema).await?;
    Ok(place.is_none().then(|| audit::audit_table(layout)))
}

/// The statements of a layout on a real table.
pub async fn statements_for(config: &PostgresConfig, layout: &Layout) -> Result<Statements, StoreError> {
    let mut session = ClaimSession::open(config, layout).await?;
    check::statements(&mut session, layout.clone()).await
}
