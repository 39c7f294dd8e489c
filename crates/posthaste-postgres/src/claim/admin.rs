//! Looking at an adopted table, and acting on its dead rows.
//!
//! The table's columns decide what is possible. There is no log to list, no lane to move, and no place for a
//! pause; such an act is refused in words. An act on dead rows and its line in the audit are one transaction
//! ([`super::audit`]).

use super::audit;
use super::check;
use super::doctor;
use super::layout::Layout;
use super::session::ClaimSession;
use super::statements::Statements;
use crate::config::PostgresConfig;
use crate::error::{commit_error, store_error};
use crate::row::Micros;
use crate::session::{Param, SqlResult};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, Admin, AdminError, Control, ControlTarget, Count, DeadAct, DeadFilter, DeadLetter, EventFilter,
    EventLife, EventName, EventPage, IDS_AUDITED, LogEvent, OutboxStatus, ROWS_MAX, ReplayChunk, RewindTo,
    SinkStatus, TailPlace, Where,
};
use posthaste::route::Pattern;
use posthaste::sink::Finding;
use posthaste::store::StoreError;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Bound of a count.
const COUNT_MAX: u64 = 100_000;

/// Looking and acting.
pub struct ClaimAdmin {
    session: Mutex<ClaimSession>,
    statements: Statements,
    sink: Arc<str>,
    /// Where our own log would be.
    schema: String,
}

impl ClaimAdmin {
    /// Connects, and checks the layout against the table.
    pub async fn connect(config: PostgresConfig, layout: Layout, sink: Arc<str>) -> Result<Self, StoreError> {
        let mut session = ClaimSession::open(&config, &layout).await?;
        let statements = check::statements(&mut session, layout).await?;
        Ok(Self { session: Mutex::new(session), statements, sink, schema: config.schema })
    }

    async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, AdminError> {
        let mut session = self.session.lock().await;
        Ok(session.query(sql, params).await.map_err(store_error)?)
    }

    fn letter(&self, row: &Row, cursor: i64, whole: bool) -> SqlResult<DeadLetter> {
        let payload: Option<Vec<u8>> = row.try_get("payload")?;
        let error: String = row.try_get::<_, Option<String>>("error")?.unwrap_or_default();
        let (code, text) = error.split_once(": ").unwrap_or(("", &error));
        Ok(DeadLetter {
            cursor,
            sink: self.sink.to_string(),
            seq: 0,
            id: row.try_get("event_id")?,
            topic: row.try_get::<_, Option<String>>("topic")?.unwrap_or_default(),
            key: row.try_get("key")?,
            headers: None,
            content_type: self.statements.content_type(),
            payload_bytes: payload.as_ref().map(|payload| payload.len() as i64),
            payload: payload.filter(|_| whole),
            appended_at: Timestamp(row.try_get::<_, Micros>("created")?.0),
            dead_at: Timestamp(row.try_get::<_, Micros>("died")?.0),
            attempts: row.try_get("attempts")?,
            replays: 0,
            error_class: row.try_get::<_, Option<String>>("class")?.unwrap_or_default(),
            error_code: code.to_owned(),
            error: text.to_owned(),
            holds_key: false,
        })
    }

    fn impossible<T>(&self, what: &str) -> Result<T, AdminError> {
        Err(AdminError::adopted(&self.statements.layout().table.to_string(), what))
    }

    /// Acts on a chunk of dead rows and writes it down, in the transaction that is open.
    async fn act(
        &self,
        session: &mut ClaimSession,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        let layout = self.statements.layout();
        let Some(table) = audit::place(session, layout, &self.schema).await? else {
            return Err(AdminError::audit_missing(&audit::missing(layout)));
        };
        let sql = match act {
            DeadAct::Replay => self.statements.dead_replay(),
            DeadAct::Discard => self.statements.dead_discard(),
        };
        let (asked, chunk) = (Asked::new(filter), chunk.clamp(1, ROWS_MAX));
        let mut params = asked.params();
        params.push((&chunk, Type::INT8));
        let done = session.query(&sql, &params).await.map_err(store_error)?;
        if !done.is_empty() {
            let rows: Vec<&str> = done.iter().take(IDS_AUDITED).map(|row| row.get(0)).collect();
            let detail = json!({
                "table": layout.table.to_string(), "filter": filter, "count": done.len(), "rows": rows,
            });
            audit::write(session, &table, actor, act.action(), &detail).await?;
        }
        Ok(done.len() as u64)
    }

    /// Whether a filter names another sink than the only one.
    fn is_elsewhere(&self, filter: &DeadFilter) -> bool {
        filter.sink.as_deref().is_some_and(|sink| sink != &*self.sink)
    }
}

/// A filter as parameters.
struct Asked {
    ids: Option<Vec<Uuid>>,
    topic: Option<String>,
    key: Option<String>,
    code: Option<String>,
    since: Option<f64>,
    until: Option<f64>,
}

impl Asked {
    fn new(filter: &DeadFilter) -> Self {
        let seconds = |at: Option<Timestamp>| at.map(|at| at.0 as f64 / 1e6);
        Self {
            ids: (!filter.ids.is_empty()).then(|| filter.ids.clone()),
            topic: filter.topic.as_ref().map(|topic| Pattern::new(topic.as_str()).to_like()),
            key: filter.key.clone(),
            code: filter.code.clone(),
            since: seconds(filter.since),
            until: seconds(filter.until),
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.ids, Type::UUID_ARRAY),
            (&self.topic, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.code, Type::TEXT),
            (&self.since, Type::FLOAT8),
            (&self.until, Type::FLOAT8),
        ]
    }
}

#[async_trait]
impl Admin for ClaimAdmin {
    async fn status(&self) -> Result<OutboxStatus, AdminError> {
        let rows = self.ask(&self.statements.gauges(), &[]).await?;
        let clock = self.ask("select clock_timestamp()", &[]).await?;
        let now = clock.first().map_or(0, |row| row.get::<_, Micros>(0).0);
        let row = rows.first().ok_or_else(StoreError::no_answer)?;
        let count = |at: usize| {
            let count = row.get::<_, i64>(at).unsigned_abs();
            Count { count, exact: count < COUNT_MAX }
        };
        let sink = SinkStatus {
            sink: self.sink.to_string(),
            backlog: count(0),
            deferred: count(1),
            dead: count(2),
            oldest_age_seconds: row.get(3),
            average_age_seconds: row.get(4),
            settled_per_second: 0.0,
            paused: false,
            rate_limit: None,
            lanes: Vec::new(),
        };
        Ok(OutboxStatus {
            now: Timestamp(now),
            relays: Vec::new(),
            schema_version: 0,
            sinks: vec![sink],
            segments: Vec::new(),
            paused_routes: Vec::new(),
        })
    }

    async fn dead_list(
        &self,
        filter: &DeadFilter,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        if self.is_elsewhere(filter) {
            return Ok(Vec::new());
        }
        let asked = Asked::new(filter);
        let mut params = asked.params();
        params.extend([(&after as _, Type::INT8), (&limit as _, Type::INT8)]);
        let rows = self.ask(&self.statements.dead_list(), &params).await?;
        let letters = rows.iter().zip(after + 1..).map(|(row, cursor)| self.letter(row, cursor, false));
        Ok(letters.collect::<Result<_, _>>().map_err(store_error)?)
    }

    async fn dead_show(&self, id: Uuid) -> Result<Vec<DeadLetter>, AdminError> {
        let asked = Asked::new(&DeadFilter { ids: vec![id], ..DeadFilter::default() });
        let mut params = asked.params();
        params.extend([(&0_i64 as _, Type::INT8), (&10_i64 as _, Type::INT8)]);
        let rows = self.ask(&self.statements.dead_list(), &params).await?;
        Ok(rows.iter().map(|row| self.letter(row, 1, true)).collect::<Result<_, _>>().map_err(store_error)?)
    }

    async fn dead_count(&self, filter: &DeadFilter) -> Result<u64, AdminError> {
        if self.is_elsewhere(filter) {
            return Ok(0);
        }
        let asked = Asked::new(filter);
        let rows = self.ask(&self.statements.dead_count(), &asked.params()).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    async fn dead_act(
        &self,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        filter.check()?;
        if self.is_elsewhere(filter) {
            return Ok(0);
        }
        actor.check()?;
        let mut session = self.session.lock().await;
        session.begin().await.map_err(store_error)?;
        match self.act(&mut session, filter, act, actor, chunk).await {
            Ok(done) => {
                // CRASH: before this commit nothing is done and nothing written down; after it both are (G6).
                session.commit().await.map_err(commit_error)?;
                Ok(done)
            }
            Err(error) => {
                // A connection that is gone has rolled back by itself.
                let _ = session.rollback().await;
                Err(error)
            }
        }
    }

    async fn events(&self, _: &EventFilter, _: i64, _: i64) -> Result<EventPage, AdminError> {
        self.impossible("there is no log to list; ask it in SQL")
    }

    async fn event(&self, _: EventName, _: Where) -> Result<EventLife, AdminError> {
        self.impossible("there is no log to look into; ask it in SQL")
    }

    async fn events_since(
        &self,
        _: &EventFilter,
        _: Option<&TailPlace>,
    ) -> Result<(Vec<LogEvent>, TailPlace), AdminError> {
        self.impossible("there is no log to follow")
    }

    async fn events_replay(
        &self,
        _: &str,
        _: &EventFilter,
        _: i64,
        _: i64,
        _: Option<&Actor>,
    ) -> Result<ReplayChunk, AdminError> {
        self.impossible("only dead rows are replayed; set others back in SQL")
    }

    async fn control(&self, _: &ControlTarget, _: &Control, _: &Actor) -> Result<(), AdminError> {
        self.impossible(
            "it has no place for a pause or a rate; stop the relay, or set rate_limit_per_s of the sink",
        )
    }

    async fn set_lanes(&self, _: u16, _: &Actor) -> Result<(), AdminError> {
        self.impossible("it has no lanes: relays share its rows")
    }

    async fn rewind(&self, _: &str, _: RewindTo, _: &Actor) -> Result<(), AdminError> {
        self.impossible("it has no cursor to move")
    }

    async fn repair(&self, _: &str, _: &Actor) -> Result<String, AdminError> {
        self.impossible("it has no cursor to repair")
    }

    async fn doctor(&self) -> Result<Vec<Finding>, AdminError> {
        let mut session = self.session.lock().await;
        Ok(doctor::examine_on(&mut session, &self.statements, &self.schema).await)
    }
}
