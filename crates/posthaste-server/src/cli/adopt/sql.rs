//! `posthaste adopt sql`.

use super::super::{Context, explain};
use crate::output::Usage;
use posthaste::store::StoreError;
use posthaste_postgres::PostgresConfig;
use posthaste_postgres::claim::{self, Layout};
use serde_json::json;
use std::process::ExitCode;

pub(super) async fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let Some((server, layout)) = outbox.database.layout() else {
        let text = format!("outbox `{}` has no [outbox.adopt]: it is a log of our own", outbox.name);
        return Err(Usage(text).into());
    };
    let mut missing = dead_letters(server, layout).await.map_err(|error| explain(outbox, error))?;
    let statements = match claim::statements_for(server, layout).await {
        Ok(statements) => [statements.all(), statements.for_people()].concat(),
        // What is missing comes first, and is what keeps the rest from being made.
        Err(_) if !missing.is_empty() => Vec::new(),
        Err(error) => return Err(explain(outbox, error)),
    };
    let more = more_missing(server, layout, !statements.is_empty()).await;
    missing.extend(more.map_err(|error| explain(outbox, error))?);
    let answer = json!({ "missing": missing, "statements": statements.iter().map(|(what, sql)| json!({ "what": what, "sql": sql })).collect::<Vec<_>>() });
    context.out().data(&answer, || {
        let ddl = missing.iter().map(|sql| format!("-- missing: to be run by the table's owner\n{sql}\n"));
        let rest = (statements.is_empty() && !missing.is_empty()).then(|| {
            "-- the statements of the relay can be shown when that is there: then run this again\n".to_owned()
        });
        let each = statements.iter().map(|(what, sql)| format!("-- {what}\n{sql};\n"));
        ddl.chain(each).chain(rest).collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The dead-letter table, if it is missing: DDL that the table's owners would have to run.
async fn dead_letters(server: &PostgresConfig, layout: &Layout) -> Result<Vec<String>, StoreError> {
    let client = posthaste_postgres::connect(server).await?;
    let mut missing = Vec::new();
    if let (Some(name), Some(table)) = (&layout.dead_letters, claim::table(&client, &layout.table).await?)
        && claim::table(&client, name).await?.is_none()
    {
        missing.extend(claim::dead_letter_table(layout, &table));
    }
    Ok(missing)
}

/// The same for the index of the claim, where a claim can be planned, and for the audit of acts on dead rows.
async fn more_missing(
    server: &PostgresConfig,
    layout: &Layout,
    plans: bool,
) -> Result<Vec<String>, StoreError> {
    let mut missing = Vec::new();
    if plans && claim::missing_index(server, layout).await?.is_some() {
        missing.extend(claim::claim_index(layout));
    }
    missing.extend(claim::missing_audit(server, layout).await?);
    Ok(missing)
}
