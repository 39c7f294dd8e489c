//! `posthaste adopt inspect`.

use super::super::{Context, explain};
use super::{InspectArgs, file};
use crate::config::{Config, scrub};
use crate::output::escape::line;
use crate::output::{Usage, plural, remark};
use posthaste::store::StoreError;
use posthaste_postgres::PostgresConfig;
use posthaste_postgres::claim::{self, Proposal, TableName};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// A proposal, and what its owners would have to add.
struct InspectedTable {
    proposal: Proposal,
    dead_letter_table: Option<String>,
    index: Option<String>,
}

pub(super) async fn run(context: &Context, args: InspectArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox(&config)?;
    let Some(server) = outbox.database.server() else {
        return Err(Usage("only tables in PostgreSQL can be adopted".to_owned()).into());
    };
    let only = args.table.as_deref().map(TableName::parse).transpose().map_err(Usage)?;
    let seen = look(server, only.as_ref()).await.map_err(|error| explain(outbox, error))?;
    let unlike = match &only {
        Some(name) if seen.is_empty() => {
            Some(why_not(server, name).await.map_err(|error| explain(outbox, error))?)
        }
        _ => None,
    };
    let answer: Vec<_> = seen.iter().map(as_json).collect();
    context.out().data(&answer, || draw(&seen, unlike.as_deref()))?;
    if let Some(path) = &args.write {
        let Some(first) = seen.first() else {
            return Err(Usage("there is no proposal to write".to_owned()).into());
        };
        write(path, &file::whole(&first.proposal, &without_password(&server.url)))?;
        remark(&format!(
            "wrote {}; next: posthaste run --dry-run --config {}",
            path.display(),
            path.display()
        ));
    }
    Ok(if seen.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn look(server: &PostgresConfig, only: Option<&TableName>) -> Result<Vec<InspectedTable>, StoreError> {
    let client = posthaste_postgres::connect(server).await?;
    let mut seen = Vec::new();
    for proposal in claim::propose(&client, only).await? {
        let layout = &proposal.layout;
        let dead_letter_table = match &layout.dead_letters {
            Some(name) if claim::table(&client, name).await?.is_none() => {
                claim::dead_letter_table(layout, &proposal.table)
            }
            _ => None,
        };
        // Where the claim cannot even be planned, the reason is another line of the proposal.
        let index =
            if dead_letter_table.is_some() { None } else { claim::missing_index(server, layout).await? };
        seen.push(InspectedTable { dead_letter_table, index, proposal });
    }
    Ok(seen)
}

/// An address that may go into a file.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return scrub(url) };
    let authority = rest.find(['/', '?']).unwrap_or(rest.len());
    match rest[..authority].rsplit_once('@') {
        Some((user, host)) => {
            let name = user.split_once(':').map_or(user, |(name, _)| name);
            format!("{scheme}://{name}@{host}{}", &rest[authority..])
        }
        None => url.to_owned(),
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    // As it will be read.
    Config::parse(path, text)?;
    let opened = OpenOptions::new().write(true).create_new(true).open(path);
    let mut out = opened.map_err(|error| Usage(format!("cannot write {}: {error}", path.display())))?;
    out.write_all(text.as_bytes())?;
    Ok(out.sync_all()?)
}

fn as_json(seen: &InspectedTable) -> serde_json::Value {
    let proposal = &seen.proposal;
    json!({
        "table": proposal.table.name.to_string(), "preset": proposal.preset, "rows": proposal.rows,
        "claim": claim::style_in_words(&proposal.layout), "reasons": proposal.reasons, "config": file::section(proposal),
        "dead_letter_table": seen.dead_letter_table, "index": seen.index,
    })
}

/// Why nothing is proposed for the table that was named.
async fn why_not(server: &PostgresConfig, name: &TableName) -> Result<String, StoreError> {
    let client = posthaste_postgres::connect(server).await?;
    Ok(match claim::table(&client, name).await? {
        None => {
            format!("there is no table {name} in this database, or its schema is not the one that was meant")
        }
        Some(_) => format!(
            "{name} does not look like an outbox: nothing in it is named like a payload, a topic and the end of a row. \
             Describe it by hand: docs/adopt.md"
        ),
    })
}

fn draw(seen: &[InspectedTable], unlike: Option<&str>) -> String {
    if let Some(why) = unlike {
        return why.to_owned();
    }
    if seen.is_empty() {
        return "no table here looks like an outbox. Name one with --table, or describe it by hand: docs/adopt.md".to_owned();
    }
    seen.iter().map(draw_one).collect::<Vec<_>>().join("\n")
}

fn draw_one(seen: &InspectedTable) -> String {
    let proposal = &seen.proposal;
    let kind = proposal.preset.map_or_else(|| "no preset".to_owned(), |name| format!("preset {name}"));
    // The estimate of a table that was never analysed is nothing.
    let rows = match proposal.rows {
        ..=0 => "few rows, or never analysed".to_owned(),
        rows => format!("about {}", plural(rows.unsigned_abs(), "row")),
    };
    let mut lines = vec![format!("{}: {kind}, {rows}", line(&proposal.table.name.to_string()))];
    lines.extend(proposal.reasons.iter().map(|reason| format!("  - {}", line(reason))));
    lines.push(format!("  - rows are {}", claim::style_in_words(&proposal.layout)));
    if let Some(index) = &seen.index {
        lines.push(format!("  ! {index}"));
    }
    if let Some(ddl) = &seen.dead_letter_table {
        lines.push(format!("  ! there is no table for dead rows:\n{ddl}"));
    }
    lines.push(String::new());
    lines.extend(file::section(proposal).lines().map(|line| format!("    {line}")));
    lines.join("\n") + "\n"
}
