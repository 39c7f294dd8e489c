//! Migrations: the outbox's tables, versioned, and who may use them.
//!
//! The SQL is embedded in the binary. Each version is applied in one transaction together with its line
//! in `migrations`, under an advisory lock **of that transaction**: a session's lock would not hold
//! behind a pooler, where the next statement may run on another connection. So several may run `up` at
//! once, and one that dies half-way leaves nothing behind.
//!
//! Versions and relays: a rolling upgrade runs two versions on one schema (F89). A migration may only
//! make changes that the version before it can live with, and writes down which is the oldest that can. So
//! a relay works on its own schema and on newer ones that suit it, and says what to do everywhere else
//! (`check_version`).
//!
//! People whose DBA applies everything get the same as a script ([`sql`]). What the connected role may
//! not do (making roles, granting on tables of another owner) is no failure of `up` either: the
//! statements are handed back, to be run by somebody who may.
//!
//! Refused: a migration crate. It would bring a second way to connect, and its session lock does not
//! survive a pooler in transaction mode.

mod audit;
mod roles;
mod script;

pub use audit::TopicChange;
pub(crate) use audit::topic as audit_topic;
pub use roles::Roles;
pub(crate) use script::bytes_max as payload_bytes_max;
pub(crate) use script::check_limits;
pub use script::sql;

use crate::config::PostgresConfig;
use crate::error::{commit_error, is_code, store_error};
use crate::log::store::{LOCK_CLASS, check_server};
use crate::row::Micros;
use crate::session::{Session, Sessions, quote};
use posthaste::Timestamp;
use posthaste::store::{StoreCode, StoreError};
use script::{MIGRATIONS, Migration};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// The version of the schema that this binary writes.
pub const SCHEMA_VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// Class of the advisory lock under which migrations run.
const MIGRATION_LOCK: i32 = LOCK_CLASS + 2;

/// For how long a migration waits for a table that somebody uses: whoever wants the table next, as a relay
/// does, waits behind it.
const TABLE_PATIENCE: &str = "set local lock_timeout = '2s'";

/// How often it is tried, and the pause between, in which the others go on.
const TRIES: u32 = 15;
const PAUSE: Duration = Duration::from_secs(2);

/// What `up` did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Versions applied now, with their names.
    pub applied: Vec<(i32, String)>,
    /// Statements that the connected role may not run, in order, for somebody who may.
    pub to_run_by_hand: Vec<String>,
    /// Where the audit goes now, if that was another topic before.
    pub audit_topic: Option<TopicChange>,
}

/// A version that is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Its number.
    pub version: i32,
    /// Its name.
    pub name: String,
    /// When.
    pub applied_at: Timestamp,
    /// By which role.
    pub applied_by: String,
}

/// What is applied, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The schema's version; `None` where there is no outbox yet.
    pub current: Option<i32>,
    /// The newest version this binary knows.
    pub latest: i32,
    /// What is applied, oldest first.
    pub applied: Vec<Applied>,
    /// What `up` would apply.
    pub pending: Vec<(i32, String)>,
    /// The topic to which the audit goes, if it goes to one.
    pub audit_topic: Option<String>,
}

/// Applies what is missing, sets the limits, makes the roles and grants them their rights.
/// Harmless when repeated, also by several at once.
pub async fn up(config: &PostgresConfig, roles: &Roles) -> Result<Outcome, StoreError> {
    script::check_schema_name(&config.schema)?;
    check_limits(&config.limits)?;
    let sessions = Sessions::new(config.clone());
    let mut session = sessions.session().await?;
    check_server(&mut session).await?;
    let mut outcome = Outcome::default();
    while let Some(applied) = step(&sessions, &mut session).await? {
        outcome.applied.push(applied);
    }
    // A newer binary was here: limits and rights of its schema are its business.
    if version(&mut session, &sessions).await? == SCHEMA_VERSION {
        settings(&sessions, &mut session, roles, &mut outcome).await?;
    }
    Ok(outcome)
}

/// The limits, the forms of `append`, the audit's topic and the roles. Under the lock too: two at once would
/// change the same catalog rows.
async fn settings(
    sessions: &Sessions,
    session: &mut Session,
    roles: &Roles,
    outcome: &mut Outcome,
) -> Result<(), StoreError> {
    session.begin().await.map_err(store_error)?;
    match settings_in(sessions, session, roles, outcome).await {
        Ok(()) => session.commit().await.map_err(commit_error),
        Err(error) => {
            session.rollback().await;
            Err(error)
        }
    }
}

async fn settings_in(
    sessions: &Sessions,
    session: &mut Session,
    roles: &Roles,
    outcome: &mut Outcome,
) -> Result<(), StoreError> {
    lock(sessions, session).await?;
    let mut left = script::set_limits(sessions, session).await?;
    left.extend(script::add_append_keys(sessions, session).await?);
    match audit::set_topic(sessions, session).await? {
        audit::Set::Same => {}
        audit::Set::Changed(change) => outcome.audit_topic = Some(change),
        audit::Set::ByHand(statement) => left.push(statement),
    }
    left.extend(roles::apply(sessions, session, roles).await?);
    outcome.to_run_by_hand = left;
    Ok(())
}

/// What is applied and what is missing. Changes nothing.
pub async fn status(config: &PostgresConfig) -> Result<Status, StoreError> {
    let sessions = Sessions::new(config.clone());
    let mut session = sessions.session().await?;
    let applied = if is_set_up(&sessions, &mut session).await? {
        applied(&sessions, &mut session).await?.into_iter().map(|(applied, _)| applied).collect()
    } else {
        Vec::new()
    };
    let current = applied.last().map(|applied: &Applied| applied.version);
    let missing =
        MIGRATIONS.iter().filter(|migration| current.is_none_or(|current| migration.version > current));
    let pending = missing.map(|migration| (migration.version, migration.name.to_owned())).collect();
    let audit_topic = match current {
        Some(version) if version >= audit::SINCE => {
            audit::topic(&sessions, &mut session).await.map_err(store_error)?
        }
        _ => None,
    };
    Ok(Status { current, latest: SCHEMA_VERSION, applied, pending, audit_topic })
}

/// Whether a version was applied with another text than this binary has.
pub(crate) fn differs(version: i32, checksum: &str) -> bool {
    let known = MIGRATIONS.iter().find(|migration| migration.version == version);
    known.is_some_and(|migration| migration.checksum() != checksum)
}

/// The schema's version, if this binary may work on it: its own, or a newer one that suits it.
pub(crate) async fn check_version(session: &mut Session, sessions: &Sessions) -> Result<i32, StoreError> {
    let current = version(session, sessions).await?;
    // Where there is a newer version, there is the column too.
    let oldest = if current > SCHEMA_VERSION { oldest(session, sessions).await? } else { None };
    StoreError::check_schema(current, oldest, SCHEMA_VERSION)?;
    Ok(current)
}

async fn oldest(session: &mut Session, sessions: &Sessions) -> Result<Option<i32>, StoreError> {
    let sql = sessions.sql("select oldest from posthaste.migrations order by version desc limit 1");
    crate::log::store::single(session.query_alone(&sql, &[]).await.map_err(store_error)?)
}

async fn version(session: &mut Session, sessions: &Sessions) -> Result<i32, StoreError> {
    let sql = sessions.sql("select coalesce(max(version), 0) from posthaste.migrations");
    crate::log::store::single(session.query_alone(&sql, &[]).await.map_err(store_error)?)
}

/// What became of a step.
enum MigrationStep {
    Applied(i32, String),
    UpToDate,
    /// Somebody uses a table, or it was a deadlock.
    Busy(StoreError),
}

/// Applies the next version, if there is one.
async fn step(sessions: &Arc<Sessions>, session: &mut Session) -> Result<Option<(i32, String)>, StoreError> {
    let mut tries = 0;
    loop {
        session.begin().await.map_err(store_error)?;
        let step = step_in(sessions, session).await;
        if let Ok(MigrationStep::Applied(version, name)) = step {
            session.commit().await.map_err(commit_error)?;
            return Ok(Some((version, name)));
        }
        session.rollback().await;
        match step? {
            MigrationStep::Busy(error) if tries >= TRIES => return Err(error),
            MigrationStep::Busy(_) => tokio::time::sleep(PAUSE).await,
            MigrationStep::Applied(..) | MigrationStep::UpToDate => return Ok(None),
        }
        tries += 1;
    }
}

async fn step_in(sessions: &Sessions, session: &mut Session) -> Result<MigrationStep, StoreError> {
    lock(sessions, session).await?;
    if !is_set_up(sessions, session).await? {
        set_up(sessions, session).await?;
    }
    let done = applied(sessions, session).await?;
    for migration in MIGRATIONS {
        match done.iter().find(|(applied, _)| applied.version == migration.version) {
            Some((_, checksum)) => check_text(migration, checksum)?,
            None => {
                session.client().batch_execute(TABLE_PATIENCE).await.map_err(store_error)?;
                match session.client().batch_execute(&sessions.sql(migration.text)).await {
                    Err(error) if is_busy(&error) => return Ok(MigrationStep::Busy(store_error(error))),
                    applied => applied.map_err(refused)?,
                }
                session
                    .client()
                    .batch_execute(&sessions.sql(&migration.record()))
                    .await
                    .map_err(store_error)?;
                return Ok(MigrationStep::Applied(migration.version, migration.name.to_owned()));
            }
        }
    }
    Ok(MigrationStep::UpToDate)
}

/// Whether somebody else has what it needs.
fn is_busy(error: &tokio_postgres::Error) -> bool {
    is_code(error, &SqlState::LOCK_NOT_AVAILABLE) || is_code(error, &SqlState::T_R_DEADLOCK_DETECTED)
}

async fn lock(sessions: &Sessions, session: &mut Session) -> Result<(), StoreError> {
    let schema = sessions.config().schema.as_str();
    let sql = "select pg_advisory_xact_lock($1, hashtext($2))";
    session.query(sql, &[(&MIGRATION_LOCK, Type::INT4), (&schema, Type::TEXT)]).await.map_err(store_error)?;
    Ok(())
}

/// Runs a statement within the transaction. `false`: the connected role may not, and the transaction goes
/// on without it. A role that somebody else made at the same moment is as good as our own: roles belong
/// to the server, and our lock to one database.
async fn attempt(session: &mut Session, statement: &str) -> Result<bool, StoreError> {
    session.client().batch_execute("savepoint attempt").await.map_err(store_error)?;
    let Err(error) = session.client().batch_execute(statement).await else {
        session.client().batch_execute("release attempt").await.map_err(store_error)?;
        return Ok(true);
    };
    let refused = is_code(&error, &SqlState::INSUFFICIENT_PRIVILEGE);
    let there = is_code(&error, &SqlState::DUPLICATE_OBJECT) || is_code(&error, &SqlState::UNIQUE_VIOLATION);
    if !refused && !there {
        return Err(store_error(error));
    }
    session.client().batch_execute("rollback to attempt").await.map_err(store_error)?;
    Ok(there)
}

/// A version whose text is another one than that which was applied describes another database.
fn check_text(migration: &Migration, applied: &str) -> Result<(), StoreError> {
    if applied == migration.checksum() {
        return Ok(());
    }
    Err(StoreError::other_text((migration.version, migration.name), applied, &migration.checksum()))
}

async fn is_set_up(sessions: &Sessions, session: &mut Session) -> Result<bool, StoreError> {
    let table = sessions.sql("posthaste.migrations");
    let rows = session.query("select to_regclass($1) is not null", &[(&table, Type::TEXT)]).await;
    crate::log::store::single(rows.map_err(store_error)?)
}

/// The schema, unless somebody made it for us, and the table of versions. `if not exists` would ask for
/// the right to make schemas even where there is nothing to make.
async fn set_up(sessions: &Sessions, session: &mut Session) -> Result<(), StoreError> {
    let schema = sessions.config().schema.as_str();
    let sql = "select exists (select from pg_namespace where nspname = $1)";
    let exists: bool =
        crate::log::store::single(session.query(sql, &[(&schema, Type::TEXT)]).await.map_err(store_error)?)?;
    let mut text = sessions.sql(script::BOOKKEEPING);
    if !exists {
        text = format!("create schema {};\n{text}", quote(schema));
    }
    session.client().batch_execute(&text).await.map_err(refused)
}

/// What is applied, oldest first, each with its checksum.
async fn applied(sessions: &Sessions, session: &mut Session) -> Result<Vec<(Applied, String)>, StoreError> {
    let sql = sessions.sql(
        "select version, name, applied_at, applied_by, checksum from posthaste.migrations order by version",
    );
    let rows = session.query_alone(&sql, &[]).await.map_err(store_error)?;
    let read = |row: &tokio_postgres::Row| {
        let applied = Applied {
            version: row.get(0),
            name: row.get(1),
            applied_at: Timestamp(row.get::<_, Micros>(2).0),
            applied_by: row.get(3),
        };
        (applied, row.get(4))
    };
    Ok(rows.iter().map(read).collect())
}

/// A refusal to make something is the one error with its own advice here.
fn refused(error: tokio_postgres::Error) -> StoreError {
    if !is_code(&error, &SqlState::INSUFFICIENT_PRIVILEGE) {
        return store_error(error);
    }
    let what = error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned());
    StoreError::fatal(
        StoreCode::Rights,
        format!(
            "{what}: this role may not set up the outbox. Grant it CREATE on the database, or have the output of \
             `posthaste migrate sql` applied by somebody who may. Nothing was changed"
        ),
    )
}
