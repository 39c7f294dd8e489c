//! Administration on PostgreSQL: looking, and acting with an audit.
//!
//! Every act is one transaction (a bulk act one for each chunk) that holds the change, its line in the
//! audit and the wakeup of whoever should notice. An act that fails leaves nothing of the three.
//!
//! Looking costs the same at a thousand and at ten million events (F82): whatever could grow is counted
//! up to a bound and estimated above it.
//!
//! ```text
//! status.rs   one look at everything        lanes.rs   set, rewind: cursors written by hand
//! backlog.rs  exact, then estimated (pure)  relane.rs  which state new lanes start from (pure)
//! dead.rs     list, count, replay, discard  repair.rs  after the database went back in time
//! control.rs  pause, resume, rate, tuning   log.rs     events by number, new ones as they come
//! life.rs     one event, with every sink    again.rs   send events of the log again
//! aside.rs    what waits, what is dead by cause, the audit
//! ```
//!
//! Consumers and jobs have rooms of their own.

mod again;
pub(crate) mod aside;
mod backlog;
pub(crate) mod control;
pub(crate) mod dead;
mod lanes;
mod life;
mod log;
mod relane;
mod repair;
mod status;

use crate::config::PostgresConfig;
use crate::consumer::InboxTables;
use crate::error::{commit_error, is_code, is_refusal_of_data, store_error};
use crate::log::filter;
use crate::log::store::check_server;
use crate::migrate;
use crate::session::{Param, Session, Sessions, params};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::job::JobStore;
use posthaste::admin::{
    Actor, Admin, AdminError, AuditFilter, AuditLine, Control, ControlTarget, DeadAct, DeadCauses,
    DeadFilter, DeadLetter, DeferredCause, DeferredEvent, DeferredFilter, Ends, EventFilter, EventLife,
    EventName, EventPage, LogEvent, OutboxStatus, ReplayChunk, RewindTo, TailPlace, TuneAct, Tuned, Where,
    letter_of_place,
};
use posthaste::sink::Finding;
use posthaste::store::{StoreCode, StoreError};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Undoes, for a transaction, what reading the log asks of the planner.
const FREELY: &str = "set local enable_seqscan = on; set local enable_bitmapscan = on; set local enable_sort = on; \
                      set local plan_cache_mode = force_custom_plan";

/// Looks at an outbox and acts on it.
pub struct PostgresAdmin {
    pub(crate) sessions: Arc<Sessions>,
    /// Group and tables of consumers that have others than ours.
    pub(crate) tables: BTreeMap<String, (String, InboxTables)>,
}

impl PostgresAdmin {
    /// Connects at the first use. This is the one for [`doctor`](Admin::doctor), which has something to
    /// say about a database that [`connect`](Self::connect) refuses.
    #[must_use]
    pub fn new(config: PostgresConfig) -> Self {
        Self { sessions: Sessions::new(config), tables: BTreeMap::new() }
    }

    /// Connects once to see that the database is there, is a primary, and has an outbox we understand.
    pub async fn connect(config: PostgresConfig) -> Result<Self, StoreError> {
        let admin = Self::new(config);
        let mut session = admin.sessions.session().await?;
        check_server(&mut session).await?;
        migrate::check_version(&mut session, &admin.sessions).await?;
        drop(session);
        Ok(admin)
    }

    /// A connection with a transaction begun.
    pub(crate) async fn begin(&self) -> Result<Session, AdminError> {
        let mut session = self.sessions.session().await?;
        session.begin().await.map_err(failed)?;
        Ok(session)
    }

    /// The same, and the planner may use what it likes, with the values at hand. Connections are set up for
    /// reading the log, where a plan that sorts is never right; letters are looked for by id, topic, time.
    pub(crate) async fn begin_freely(&self) -> Result<Session, AdminError> {
        let mut session = self.begin().await?;
        session.batch(FREELY).await.map_err(failed)?;
        Ok(session)
    }

    /// One statement that only reads, planned freely.
    pub(crate) async fn look_freely(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, AdminError> {
        let mut session = self.begin_freely().await?;
        let rows = self.query(&mut session, sql, params).await;
        session.rollback().await;
        rows
    }

    /// One statement of a file.
    pub(crate) async fn query(
        &self,
        session: &mut Session,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, AdminError> {
        session.query_alone(&self.sessions.sql(sql), params).await.map_err(failed)
    }

    /// One statement of a file with a condition on rows. The schema's name goes in first: a topic in the
    /// condition may look like one.
    pub(crate) async fn query_where(
        &self,
        session: &mut Session,
        sql: &str,
        condition: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, AdminError> {
        let sql = self.sessions.sql(sql).replace("/*condition*/", condition);
        session.query_alone(&sql, params).await.map_err(failed)
    }

    /// The audit's line of an act.
    pub(crate) async fn audit(
        &self,
        session: &mut Session,
        actor: &Actor,
        action: &str,
        detail: &serde_json::Value,
    ) -> Result<(), AdminError> {
        if actor.verified {
            return self.audit_verified(session, actor, action, detail, "done").await;
        }
        let detail = detail.to_string();
        let params = params![
            TEXT actor.name, TEXT action, TEXT actor.reason, TEXT detail, TEXT actor.trace_id,
        ];
        self.query(session, include_str!("../../sql/admin/audit.sql"), params).await?;
        Ok(())
    }

    /// The line of somebody whom a token named.
    async fn audit_verified(
        &self,
        session: &mut Session,
        actor: &Actor,
        action: &str,
        detail: &serde_json::Value,
        outcome: &str,
    ) -> Result<(), AdminError> {
        let detail = detail.to_string();
        let params = params![
            TEXT actor.name, TEXT action, TEXT actor.reason, TEXT detail, TEXT actor.trace_id, TEXT outcome,
        ];
        self.query(session, include_str!("../../sql/admin/audit_verified.sql"), params).await?;
        Ok(())
    }

    /// Tells relays that there is something to do, when the transaction commits. `lanes`: a lane became
    /// free.
    pub(crate) async fn wake(&self, session: &mut Session, payload: &str) -> Result<(), AdminError> {
        let channel = format!("{}_wakeup", self.sessions.config().schema);
        let params: [Param<'_>; 2] = [(&channel, Type::TEXT), (&payload, Type::TEXT)];
        self.query(session, "select pg_notify($1, $2)", &params).await?;
        Ok(())
    }

    /// Refuses the name of a sink that has no lanes.
    async fn check_sink(&self, session: &mut Session, sink: &str) -> Result<(), AdminError> {
        let rows = self.query(session, include_str!("../../sql/admin/known_sinks.sql"), &[]).await?;
        let known: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        AdminError::check_sink(sink, &known)
    }
}

/// What an act or a look failed of. Rows that the database will never take as they are are no outage: a job
/// passes them over and goes on.
pub(crate) fn failed(error: tokio_postgres::Error) -> AdminError {
    let says_no = is_refusal_of_data(&error) || is_code(&error, &SqlState::RAISE_EXCEPTION);
    // Not for relays: what they cannot read they come back to, for the database may be restored meanwhile. An
    // act on many letters goes on without this one.
    let is_damaged =
        [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].iter().any(|code| is_code(&error, code));
    AdminError::Store(match error.as_db_error() {
        Some(db) if is_damaged => StoreError::fatal(
            StoreCode::Refused,
            format!(
                "the database cannot read or write it, a part of it is damaged: {} ({}). Nothing was changed; restore it \
                 from a backup",
                db.message(),
                db.code().code()
            ),
        ),
        Some(db) if says_no => StoreError::fatal(
            StoreCode::Refused,
            format!(
                "the database does not take it: {} ({}). Nothing was changed",
                db.message(),
                db.code().code()
            ),
        ),
        _ => store_error(error),
    })
}

/// Which topics the sink of a lane's row reads, as SQL: also what its former routes took, up to the number
/// where they changed.
fn reads(row: &Row) -> String {
    let (stored, former): (&str, Option<&str>) = (row.get("filter"), row.get("filter_before"));
    filter::condition_since(stored, former, row.get("filter_until"))
}

/// Ends the transaction of an act: all of it, or nothing.
pub(crate) async fn finish<T>(session: &mut Session, result: Result<T, AdminError>) -> Result<T, AdminError> {
    match result {
        Ok(value) => {
            session.commit().await.map_err(|error| AdminError::Store(commit_error(error)))?;
            Ok(value)
        }
        Err(error) => {
            session.rollback().await;
            Err(error)
        }
    }
}

#[async_trait]
impl Admin for PostgresAdmin {
    async fn status(&self) -> Result<OutboxStatus, AdminError> {
        self.look().await
    }

    async fn dead_list(
        &self,
        filter: &DeadFilter,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        self.list_dead(filter, letter_of_place(after)?.unwrap_or(0), limit).await
    }

    async fn dead_newest(
        &self,
        filter: &DeadFilter,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        self.newest_dead(filter, letter_of_place(before)?, limit).await
    }

    async fn dead_causes(&self, filter: &DeadFilter, limit: i64) -> Result<DeadCauses, AdminError> {
        Ok(DeadCauses { causes: self.causes_of_death(filter, limit).await?, looked: None })
    }

    async fn deferred_list(
        &self,
        filter: &DeferredFilter,
        after: Option<(&str, i64)>,
        limit: i64,
    ) -> Result<Vec<DeferredEvent>, AdminError> {
        self.list_deferred(filter, after, limit).await
    }

    async fn deferred_causes(
        &self,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<DeferredCause>, AdminError> {
        self.causes_of_waiting(filter, limit).await
    }

    async fn deferred_retry(
        &self,
        filter: &DeferredFilter,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        self.retry_deferred(filter, actor, chunk).await
    }

    async fn audit_lines(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<AuditLine>, AdminError> {
        self.list_audit(filter, before, limit).await
    }

    async fn audit_denied(
        &self,
        actor: &Actor,
        action: &str,
        detail: &serde_json::Value,
    ) -> Result<(), AdminError> {
        let mut session = self.begin().await?;
        let written = self.audit_verified(&mut session, actor, action, detail, "denied").await;
        finish(&mut session, written).await
    }

    async fn dead_show(&self, id: Uuid) -> Result<Vec<DeadLetter>, AdminError> {
        self.show_dead(id).await
    }

    async fn dead_count(&self, filter: &DeadFilter) -> Result<u64, AdminError> {
        self.count_dead(filter).await
    }

    async fn dead_act(
        &self,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        self.act_on_dead(filter, act, actor, chunk).await
    }

    async fn events(&self, filter: &EventFilter, after: i64, limit: i64) -> Result<EventPage, AdminError> {
        self.list_events(filter, after, limit).await
    }

    async fn event(&self, name: EventName, place: Where) -> Result<EventLife, AdminError> {
        self.show_event(name, place).await
    }

    async fn events_since(
        &self,
        filter: &EventFilter,
        place: Option<&TailPlace>,
    ) -> Result<(Vec<LogEvent>, TailPlace), AdminError> {
        self.tail_events(filter, place).await
    }

    async fn events_replay(
        &self,
        sink: &str,
        filter: &EventFilter,
        after: i64,
        chunk: i64,
        actor: Option<&Actor>,
    ) -> Result<ReplayChunk, AdminError> {
        self.replay_events(sink, filter, after, chunk, actor).await
    }

    async fn control_until(
        &self,
        target: &ControlTarget,
        control: &Control,
        ends: Option<Ends>,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        actor.check()?;
        self.set_control(target, control, ends, actor).await
    }

    async fn tuning(&self) -> Result<Vec<Tuned>, AdminError> {
        self.tuned(&mut self.sessions.session().await?).await
    }

    async fn tune(&self, act: &TuneAct, actor: &Actor) -> Result<Option<Timestamp>, AdminError> {
        actor.check()?;
        self.set_tuning(act, actor).await
    }

    async fn set_lanes(&self, lanes: u16, actor: &Actor) -> Result<(), AdminError> {
        actor.check()?;
        self.change_lanes(lanes, actor).await
    }

    async fn rewind(&self, sink: &str, to: RewindTo, actor: &Actor) -> Result<(), AdminError> {
        actor.check()?;
        self.move_back(sink, to, actor).await
    }

    async fn repair(&self, sink: &str, actor: &Actor) -> Result<String, AdminError> {
        actor.check()?;
        self.rebase(sink, actor).await
    }

    fn jobs(&self) -> Option<&dyn JobStore> {
        Some(self)
    }

    async fn doctor(&self) -> Result<Vec<Finding>, AdminError> {
        self.doctor_with(&crate::doctor::Bounds::default()).await
    }
}
