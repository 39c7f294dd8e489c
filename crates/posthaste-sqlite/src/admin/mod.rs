//! Administration on SQLite: looking, and acting with an audit.
//!
//! Every act is one transaction (a bulk act one for each chunk) that holds the change and its line in the
//! audit. An act that fails leaves neither. Acts come from a command line beside the running relay: each
//! opens a connection, waits its turn for the write lock, and is done. The relay's watch sees the commit.
//!
//! ```text
//! status.rs   one look at everything        lanes.rs   set, rewind, repair: cursors written by hand
//! dead.rs     list, count, replay, discard  control.rs pause, resume, rate, tuning
//! doctor.rs   every assumption, one by one  events.rs  lists, lives, sending again
//! consumers.rs  partitions, seeks, traces of consumers; letters.rs and messages.rs what they set aside
//! ```
//!
//! Jobs have a room of their own.

pub(crate) mod aside;
pub(crate) mod consumers;
pub(crate) mod control;
pub(crate) mod dead;
mod doctor;
pub(crate) mod events;
mod lanes;
pub(crate) mod letters;
pub(crate) mod messages;
mod status;

pub use doctor::CHECKS;

use crate::clock::now;
use crate::config::SqliteConfig;
use crate::connect::{canonical, check_wal, open_writer};
use crate::error::{judge, store_error};
use crate::migrate;
use crate::readers::Readers;
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::job::JobStore;
use posthaste::admin::{
    Actor, Admin, AdminError, AuditFilter, AuditLine, Control, ControlTarget, DeadAct, DeadCauses,
    DeadFilter, DeadLetter, DeferredCause, DeferredEvent, DeferredFilter, Ends, EventFilter, EventLife,
    EventName, EventPage, LogEvent, OutboxStatus, ReplayChunk, RewindTo, Setting, TailPlace, TuneAct, Tuned,
    Where, letter_of_place,
};
use posthaste::sink::Finding;
use posthaste::store::{StoreCode, StoreError};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use uuid::Uuid;

/// Looks at an outbox and acts on it.
pub struct SqliteAdmin {
    config: SqliteConfig,
    readers: Readers,
}

impl SqliteAdmin {
    /// Opens the file at the first use. This is the one for [`doctor`](Admin::doctor), which has something to
    /// say about a database that [`connect`](Self::connect) refuses.
    #[must_use]
    pub fn new(config: SqliteConfig) -> Self {
        let readers = Readers::new(canonical(&config.path), 2);
        Self { config, readers }
    }

    /// Looks once whether the database is there, with an outbox we understand.
    pub async fn connect(config: SqliteConfig) -> Result<Self, StoreError> {
        let admin = Self::new(config);
        admin.readers.read(|tx| check_wal(tx).and_then(|()| migrate::check_version(tx))).await?;
        Ok(admin)
    }

    /// Looks, in one snapshot.
    pub(crate) async fn look<T, F>(&self, look: F) -> Result<T, AdminError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, AdminError> + Send + 'static,
    {
        self.readers.read(look).await
    }

    /// Acts: all of it, or nothing.
    pub(crate) async fn act<T, F>(&self, act: F) -> Result<T, AdminError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, AdminError> + Send + 'static,
    {
        let config = self.config.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = open_writer(&config.path, config.synchronous)?;
            migrate::check_version(&connection)?;
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
            let answer = act(&tx)?;
            tx.commit().map_err(|error| AdminError::Store(judge(&error, false)))?;
            Ok(answer)
        });
        done.await.unwrap_or_else(|error| Err(crate::log::store::transient(error.to_string()).into()))
    }
}

/// Rows that the database will never take as they are are no outage: a job passes them over and goes on.
pub(crate) fn failed(error: rusqlite::Error) -> AdminError {
    let refuses = [ErrorCode::ConstraintViolation, ErrorCode::TypeMismatch, ErrorCode::TooBig];
    AdminError::Store(match error.sqlite_error_code() {
        Some(code) if refuses.contains(&code) => StoreError::fatal(
            StoreCode::Refused,
            format!("the database does not take it: {error}. Nothing was changed"),
        ),
        _ => store_error(error),
    })
}

/// The audit's line of an act.
pub(crate) fn audit(
    tx: &Transaction<'_>,
    actor: &Actor,
    action: &str,
    detail: &serde_json::Value,
) -> Result<(), AdminError> {
    audit_line(tx, actor, action, detail, "done")
}

fn audit_line(
    tx: &Transaction<'_>,
    actor: &Actor,
    action: &str,
    detail: &serde_json::Value,
    outcome: &str,
) -> Result<(), AdminError> {
    let sql = include_str!("../../sql/admin/audit.sql");
    let Actor { name, reason, verified, trace_id } = actor;
    let params = params![now(), name, action, reason, detail.to_string(), trace_id, verified, outcome];
    tx.execute(sql, params).map_err(failed)?;
    Ok(())
}

/// Refuses the name of a sink that has no lanes.
fn check_sink(connection: &Connection, sink: &str) -> Result<(), AdminError> {
    AdminError::check_sink(sink, &sinks(connection).map_err(failed)?)
}

/// Sinks that have lanes, retired ones included: their events may still wait, and be acted on.
fn sinks(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("select distinct sink from posthaste_lanes order by sink")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

#[async_trait]
impl Admin for SqliteAdmin {
    async fn status(&self) -> Result<OutboxStatus, AdminError> {
        let path = self.readers.path().to_owned();
        self.look(move |tx| status::look(tx, &path).map_err(failed)).await
    }

    async fn dead_list(
        &self,
        filter: &DeadFilter,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        let (filter, after) = (filter.clone(), letter_of_place(after)?.unwrap_or(0));
        self.look(move |tx| dead::list(tx, &filter, after, limit).map_err(failed)).await
    }

    async fn dead_show(&self, id: Uuid) -> Result<Vec<DeadLetter>, AdminError> {
        self.look(move |tx| dead::show(tx, id).map_err(failed)).await
    }

    async fn dead_newest(
        &self,
        filter: &DeadFilter,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        let (filter, before) = (filter.clone(), letter_of_place(before)?);
        self.look(move |tx| dead::newest(tx, &filter, before, limit).map_err(failed)).await
    }

    async fn dead_causes(&self, filter: &DeadFilter, limit: i64) -> Result<DeadCauses, AdminError> {
        let filter = filter.clone();
        let causes = self.look(move |tx| aside::causes_of_death(tx, &filter, limit).map_err(failed)).await?;
        Ok(DeadCauses { causes, looked: None })
    }

    async fn deferred_list(
        &self,
        filter: &DeferredFilter,
        after: Option<(&str, i64)>,
        limit: i64,
    ) -> Result<Vec<DeferredEvent>, AdminError> {
        let (filter, after) = (filter.clone(), after.map(|(sink, seq)| (sink.to_owned(), seq)));
        self.look(move |tx| aside::list(tx, &filter, after, limit).map_err(failed)).await
    }

    async fn deferred_causes(
        &self,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<DeferredCause>, AdminError> {
        let filter = filter.clone();
        self.look(move |tx| aside::causes(tx, &filter, limit).map_err(failed)).await
    }

    async fn deferred_retry(
        &self,
        filter: &DeferredFilter,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        filter.check()?;
        let (filter, actor) = (filter.clone(), actor.clone());
        self.act(move |tx| aside::retry(tx, &filter, &actor, chunk)).await
    }

    async fn audit_lines(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<AuditLine>, AdminError> {
        let filter = filter.clone();
        self.look(move |tx| aside::audit_lines(tx, &filter, before, limit).map_err(failed)).await
    }

    async fn audit_denied(
        &self,
        actor: &Actor,
        action: &str,
        detail: &serde_json::Value,
    ) -> Result<(), AdminError> {
        let (actor, action, detail) = (actor.clone(), action.to_owned(), detail.clone());
        self.act(move |tx| audit_line(tx, &actor, &action, &detail, "denied")).await
    }

    async fn dead_count(&self, filter: &DeadFilter) -> Result<u64, AdminError> {
        let filter = filter.clone();
        self.look(move |tx| dead::count(tx, &filter).map_err(failed)).await
    }

    async fn dead_act(
        &self,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        filter.check()?;
        let (filter, actor) = (filter.clone(), actor.clone());
        // Before the lock: whoever comes second must know what it came for.
        let named = if filter.ids.is_empty() {
            Vec::new()
        } else {
            let wanted = filter.clone();
            self.look(move |tx| dead::letters(tx, &wanted, chunk).map_err(failed)).await?
        };
        self.act(move |tx| dead::act(tx, &filter, act, &actor, chunk, &named)).await
    }

    async fn events(&self, filter: &EventFilter, after: i64, limit: i64) -> Result<EventPage, AdminError> {
        let filter = filter.clone();
        self.look(move |tx| events::list(tx, &filter, after, limit).map_err(failed)).await
    }

    async fn event(&self, name: EventName, place: Where) -> Result<EventLife, AdminError> {
        self.look(move |tx| events::life(tx, name, place)).await
    }

    async fn events_since(
        &self,
        filter: &EventFilter,
        place: Option<&TailPlace>,
    ) -> Result<(Vec<LogEvent>, TailPlace), AdminError> {
        let (filter, place) = (filter.clone(), place.cloned());
        self.look(move |tx| events::since(tx, &filter, place.as_ref()).map_err(failed)).await
    }

    async fn events_replay(
        &self,
        sink: &str,
        filter: &EventFilter,
        after: i64,
        chunk: i64,
        actor: Option<&Actor>,
    ) -> Result<ReplayChunk, AdminError> {
        filter.check()?;
        let (sink, filter) = (sink.to_owned(), filter.clone());
        let Some(actor) = actor.cloned() else {
            return self.look(move |tx| events::would_replay(tx, &sink, &filter, after, chunk)).await;
        };
        actor.check()?;
        self.act(move |tx| events::replay(tx, &sink, &filter, after, chunk, (&actor, None))).await
    }

    async fn control_until(
        &self,
        target: &ControlTarget,
        control: &Control,
        ends: Option<Ends>,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        actor.check()?;
        let (setting, actor) = (Setting::new(target, control)?, actor.clone());
        self.act(move |tx| control::set(tx, &setting, ends, &actor)).await
    }

    async fn tuning(&self) -> Result<Vec<Tuned>, AdminError> {
        self.look(|tx| control::tuned(tx).map_err(failed)).await
    }

    async fn tune(&self, act: &TuneAct, actor: &Actor) -> Result<Option<Timestamp>, AdminError> {
        actor.check()?;
        let (act, actor) = (act.clone(), actor.clone());
        self.act(move |tx| control::tune(tx, &act, &actor)).await
    }

    async fn set_lanes(&self, lanes: u16, actor: &Actor) -> Result<(), AdminError> {
        actor.check()?;
        let actor = actor.clone();
        self.act(move |tx| lanes::set(tx, lanes, &actor)).await
    }

    async fn rewind(&self, sink: &str, to: RewindTo, actor: &Actor) -> Result<(), AdminError> {
        actor.check()?;
        let (sink, actor) = (sink.to_owned(), actor.clone());
        self.act(move |tx| lanes::rewind(tx, &sink, to, &actor)).await
    }

    async fn repair(&self, sink: &str, actor: &Actor) -> Result<String, AdminError> {
        actor.check()?;
        let (sink, actor) = (sink.to_owned(), actor.clone());
        self.act(move |tx| lanes::repair(tx, &sink, &actor)).await
    }

    fn jobs(&self) -> Option<&dyn JobStore> {
        Some(self)
    }

    async fn doctor(&self) -> Result<Vec<Finding>, AdminError> {
        let (path, topic) = (self.readers.path().to_owned(), self.config.audit_topic.clone());
        let examined = tokio::task::spawn_blocking(move || doctor::examine(&path, topic.as_deref())).await;
        examined.map_err(|error| crate::log::store::transient(error.to_string()).into())
    }
}
