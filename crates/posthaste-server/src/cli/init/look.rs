//! Looking at the database and at the sink, without changing anything.

use super::could_not;
use super::file::InitPlan;
use crate::config::{Config, Outbox, scrub};
use crate::database::Database;
use posthaste::sink::{Finding, Level};
use posthaste_postgres::PostgresConfig;
use posthaste_postgres::doctor::Bounds;
use posthaste_postgres::survey::{self, Role};
use serde::Serialize;
use std::time::Duration;

/// A database or broker that does not answer within this time is told, and not waited for.
const PATIENCE: Duration = Duration::from_secs(15);

/// Tables that look like an outbox, at most.
const TABLES_MAX: i64 = 5;

/// One thing that was found.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    /// `database` or `sink NAME`.
    pub(super) of: String,
    #[serde(flatten)]
    pub(super) finding: Finding,
}

/// What the rest depends on.
#[derive(Debug, Default)]
pub(super) struct DatabaseState {
    /// The outbox is there, and of this version.
    pub(super) set_up: bool,
    /// Tables of somebody else that look like an outbox.
    pub(super) tables: Vec<String>,
}

fn seen(of: &str, level: Level, text: impl AsRef<str>) -> Seen {
    Seen {
        of: of.to_owned(),
        finding: Finding { check: "init".to_owned(), level, text: scrub(text.as_ref()) },
    }
}

pub(super) async fn look(config: &Config, plan: &InitPlan) -> (Vec<Seen>, DatabaseState) {
    let (mut list, mut state) = (Vec::new(), DatabaseState::default());
    if let Some(outbox) = config.outboxes.first() {
        look_at_database(outbox, &mut list, &mut state).await;
    }
    list.extend(look_at_sink(config, plan).await);
    (list, state)
}

async fn look_at_database(outbox: &Outbox, list: &mut Vec<Seen>, state: &mut DatabaseState) {
    let Ok(status) = tokio::time::timeout(PATIENCE, outbox.database.migrations()).await else {
        let text = format!("no answer within {} s from {}", PATIENCE.as_secs(), outbox.database.address());
        return list.push(seen("database", Level::Fail, text));
    };
    match status {
        Err(error) => return list.push(seen("database", Level::Fail, error.to_string())),
        Ok(status) => {
            state.set_up = status.current.is_some() && status.pending.is_empty();
            list.push(match (status.current, state.set_up) {
                (None, _) => {
                    let text = format!("it answers; no outbox yet ({})", outbox.database.place());
                    seen("database", Level::Ok, text)
                }
                (Some(version), true) => {
                    let text =
                        format!("the outbox is set up ({}, version {version})", outbox.database.place());
                    seen("database", Level::Ok, text)
                }
                (Some(version), false) => {
                    let text =
                        format!("the outbox is of version {version}, this binary writes {}", status.latest);
                    seen("database", Level::Warn, text)
                }
            });
        }
    }
    match &outbox.database {
        Database::Postgres { config, .. } | Database::Adopted { config, .. } => {
            look_at_server(config, list, state).await;
        }
        #[cfg(feature = "sqlite")]
        Database::Sqlite(config) => look_at_file(&config.path, list, state),
    }
    if state.set_up {
        list.extend(trouble(outbox).await);
    }
}

/// What `doctor` does not like.
async fn trouble(outbox: &Outbox) -> Vec<Seen> {
    match tokio::time::timeout(PATIENCE, outbox.database.examine(&Bounds::default())).await {
        Ok(Ok(findings)) => {
            let bad = findings.into_iter().filter(|finding| finding.level != Level::Ok);
            bad.map(|finding| Seen { of: "database".to_owned(), finding }).collect()
        }
        Ok(Err(error)) => vec![seen("database", Level::Warn, format!("not checked further: {error}"))],
        Err(_) => vec![seen("database", Level::Warn, "not checked further: it is slow")],
    }
}

async fn look_at_server(config: &PostgresConfig, list: &mut Vec<Seen>, state: &mut DatabaseState) {
    let client = match posthaste_postgres::connect(config).await {
        Ok(client) => client,
        Err(error) => return list.push(seen("database", Level::Fail, error.to_string())),
    };
    match survey::role(&client).await {
        Ok(role) => list.push(judge_rights(&role, state.set_up)),
        Err(error) => could_not("the role's rights", &error),
    }
    match survey::tables_alike(&client, &config.schema, TABLES_MAX).await {
        Ok(tables) => note_tables(tables, list, state),
        Err(error) => could_not("tables that are there", &error),
    }
}

fn judge_rights(role: &Role, set_up: bool) -> Seen {
    if role.is_standby {
        return seen("database", Level::Fail, "this is a standby: an outbox lives on the primary");
    }
    let text = format!("PostgreSQL {}, connected as {}", role.server_version, role.name);
    match (set_up, role.makes_schemas, role.makes_roles) {
        (true, ..) | (false, true, true) => seen("database", Level::Ok, text),
        (false, true, false) => seen(
            "database",
            Level::Warn,
            format!(
                "{text}, which may make the outbox and no roles: `migrate up` prints what somebody else has to run"
            ),
        ),
        (false, false, _) => seen(
            "database",
            Level::Warn,
            format!(
                "{text}, which may not make a schema: run `posthaste migrate sql` and give it to whoever may"
            ),
        ),
    }
}

fn note_tables(tables: Vec<String>, list: &mut Vec<Seen>, state: &mut DatabaseState) {
    for table in &tables {
        let text = format!(
            "table {table} looks like an outbox. Posthaste reads its own log: append there in the same transaction, and \
             let the old one run dry"
        );
        list.push(seen("database", Level::Warn, text));
    }
    state.tables = tables;
}

#[cfg(feature = "sqlite")]
fn look_at_file(path: &std::path::Path, list: &mut Vec<Seen>, state: &mut DatabaseState) {
    if !path.exists() {
        let text = format!("{} is not there yet; `migrate up` makes it", path.display());
        return list.push(seen("database", Level::Ok, text));
    }
    match posthaste_sqlite::survey::tables_alike(path, TABLES_MAX) {
        Ok(tables) => note_tables(tables, list, state),
        Err(error) => could_not("tables that are there", &error),
    }
}

async fn look_at_sink(config: &Config, plan: &InitPlan) -> Vec<Seen> {
    let of = format!("sink {}", plan.sink.name());
    let Some(setting) = config.sinks.first() else { return Vec::new() };
    let sink = match setting.config.build(&setting.name).await {
        Ok(sink) => sink,
        Err(error) => return vec![seen(&of, Level::Fail, error.to_string())],
    };
    let findings = tokio::time::timeout(PATIENCE, sink.examine(&subjects(&plan.topics))).await;
    sink.close().await;
    match findings {
        Err(_) => {
            vec![seen(
                &of,
                Level::Fail,
                format!("no answer within {} s; events wait in the log", PATIENCE.as_secs()),
            )]
        }
        Ok(findings) if findings.is_empty() => vec![seen(&of, Level::Ok, "nothing to look at")],
        Ok(findings) => findings.into_iter().map(|finding| Seen { of: of.clone(), finding }).collect(),
    }
}

/// Addresses that stand for the topics: a pattern is tried with an example. One that takes everything has
/// none.
fn subjects(topics: &[String]) -> Vec<String> {
    topics.iter().filter_map(|topic| crate::daemon::example(topic)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_tried_with_an_example() {
        let topics = ["orders.*", "*", "paid"].map(str::to_owned);
        assert_eq!(subjects(&topics), ["orders.example", "paid"]);
    }
}
