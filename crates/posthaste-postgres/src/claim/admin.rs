//! Looking at an adopted table, and acting on its dead rows.
//!
//! The table's columns decide what is possible. There is no log to list, no lane to move, and no place for a
//! pause; such an act is refused in words. An act on dead rows and its line in the audit are one transaction
//! ([`super::audit`]).

use super::audit;
use super::check;
use super::doctor;
use super::layout::Layout;
use super::row::Moment;
use super::session::ClaimSession;
use super::statements::Statements;
use crate::config::PostgresConfig;
use crate::dead_rows::{CausesAtReading, RowPlace, cause, in_two};
use crate::error::{commit_error, is_refusal_of_data, store_error};
use crate::lacks::{LACKS, missing_for};
use crate::row::Micros;
use crate::session::{Param, SqlResult};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, Admin, AdminError, AuditFilter, AuditLine, Control, ControlTarget, Count, DeadAct, DeadCauses,
    DeadFilter, DeadLetter, DeferredCause, DeferredEvent, DeferredFilter, Ends, EventFilter, EventLife,
    EventName, EventPage, History, IDS_AUDITED, LOOKED_MAX, Lack, LogEvent, OutboxStatus, ROWS_MAX,
    ReplayChunk, RewindTo, SinkStatus, TailPlace, TuneAct, Tuned, Where,
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

    fn letter(&self, row: &Row) -> SqlResult<DeadLetter> {
        let place = RowPlace { at: row.try_get::<_, Moment>("place")?.0, id: row.try_get("place_id")? };
        let class = row.try_get::<_, Option<String>>("class")?.unwrap_or_default();
        let error: String = row.try_get::<_, Option<String>>("error")?.unwrap_or_default();
        let (code, text) = in_two(&error);
        Ok(DeadLetter {
            cursor: place.write(),
            sink: self.sink.to_string(),
            seq: 0,
            id: row.try_get("event_id")?,
            topic: row.try_get::<_, Option<String>>("topic")?.unwrap_or_default(),
            key: row.try_get("key")?,
            headers: None,
            content_type: self.statements.content_type(),
            payload_bytes: row.try_get("payload_bytes")?,
            payload: row.try_get("payload")?,
            appended_at: Timestamp(row.try_get::<_, Micros>("created")?.0),
            dead_at: Timestamp(row.try_get::<_, Micros>("died")?.0),
            attempts: row.try_get("attempts")?,
            replays: 0,
            error_code: code.to_owned(),
            error: text.to_owned(),
            holds_key: false,
            fingerprint: Some(cause(&self.sink, &class, &error)),
            error_class: class,
            history: History::default(),
        })
    }

    /// Refuses what is on the list.
    fn impossible<T>(&self, of: &str) -> Result<T, AdminError> {
        let why = LACKS.iter().find(|lack| lack.of == of).map_or("it cannot do that", |lack| lack.why);
        Err(AdminError::adopted(&self.statements.layout().table.to_string(), why))
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

    /// A page of dead rows behind a place.
    async fn page(
        &self,
        filter: &DeadFilter,
        newest: bool,
        place: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        self.check(filter)?;
        let place = match place {
            Some(text) => Some(self.place(text).await?),
            None => None,
        };
        if self.is_elsewhere(filter) {
            return Ok(Vec::new());
        }
        let (asked, limit) = (Asked::new(filter), limit.clamp(1, ROWS_MAX));
        let (at, id) = place.map(|place| (Moment(place.at), place.id)).unzip();
        let mut params = asked.params();
        params.extend([(&at as _, Type::TIMESTAMPTZ), (&id as _, Type::TEXT), (&limit as _, Type::INT8)]);
        let rows = self.ask(&self.statements.dead_page(newest), &params).await?;
        Ok(rows.iter().map(|row| self.letter(row)).collect::<Result<_, _>>().map_err(store_error)?)
    }

    /// A place of this table, or why it is none. The server reads it once by itself: an error about data is
    /// about nothing else then.
    async fn place(&self, text: &str) -> Result<RowPlace, AdminError> {
        let place = RowPlace::read(text).ok_or_else(|| AdminError::bad_place(text))?;
        let params: [Param<'_>; 2] = [(&Moment(place.at), Type::TIMESTAMPTZ), (&place.id, Type::TEXT)];
        let asked = self.session.lock().await.query(&self.statements.dead_place(), &params).await;
        match asked {
            Err(error) if is_refusal_of_data(&error) => Err(AdminError::bad_place(text)),
            Err(error) => Err(store_error(error).into()),
            Ok(_) => Ok(place),
        }
    }

    /// Refuses a filter that the table cannot answer. Left out, it would mean more rows than were asked for.
    fn check(&self, filter: &DeadFilter) -> Result<(), AdminError> {
        missing_for(filter).map_or(Ok(()), |of| self.impossible(of))
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
            delivered_per_second: 0.0,
            paused: false,
            rate_limit: None,
            set_by: None,
            waiting: Vec::new(),
            retired: false,
            lanes: Vec::new(),
        };
        Ok(OutboxStatus {
            now: Timestamp(now),
            relays: Vec::new(),
            reports: Vec::new(),
            schema_version: 0,
            sinks: vec![sink],
            segments: Vec::new(),
            paused_routes: Vec::new(),
            jobs_wait: false,
            unread: None,
        })
    }

    fn lacks(&self) -> &'static [Lack] {
        &LACKS
    }

    async fn dead_list(
        &self,
        filter: &DeadFilter,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        self.page(filter, false, after, limit).await
    }

    async fn dead_newest(
        &self,
        filter: &DeadFilter,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        self.page(filter, true, before, limit).await
    }

    async fn dead_causes(&self, filter: &DeadFilter, limit: i64) -> Result<DeadCauses, AdminError> {
        self.check(filter)?;
        let mut causes = CausesAtReading::default();
        if !self.is_elsewhere(filter) {
            let asked = Asked::new(filter);
            let mut params = asked.params();
            params.push((&LOOKED_MAX, Type::INT8));
            let take = |row: Row| self.letter(&row).map(|letter| causes.add(letter));
            let mut session = self.session.lock().await;
            session.each(None, &self.statements.dead_reasons(), &params, take).await.map_err(store_error)?;
        }
        Ok(causes.most_frequent(limit.clamp(1, ROWS_MAX) as usize))
    }

    async fn deferred_list(
        &self,
        _: &DeferredFilter,
        _: Option<(&str, i64)>,
        _: i64,
    ) -> Result<Vec<DeferredEvent>, AdminError> {
        self.impossible("deferred")
    }

    async fn deferred_causes(&self, _: &DeferredFilter, _: i64) -> Result<Vec<DeferredCause>, AdminError> {
        self.impossible("deferred")
    }

    async fn deferred_retry(&self, _: &DeferredFilter, _: &Actor, _: i64) -> Result<u64, AdminError> {
        self.impossible("deferred")
    }

    async fn audit_lines(
        &self,
        _: &AuditFilter,
        _: Option<i64>,
        _: i64,
    ) -> Result<Vec<AuditLine>, AdminError> {
        self.impossible("audit")
    }

    async fn audit_denied(&self, _: &Actor, _: &str, _: &serde_json::Value) -> Result<(), AdminError> {
        Ok(())
    }

    async fn dead_show(&self, id: Uuid) -> Result<Vec<DeadLetter>, AdminError> {
        let rows = self.ask(&self.statements.dead_show(), &[(&id, Type::UUID)]).await?;
        Ok(rows.iter().map(|row| self.letter(row)).collect::<Result<_, _>>().map_err(store_error)?)
    }

    async fn dead_count(&self, filter: &DeadFilter) -> Result<u64, AdminError> {
        self.check(filter)?;
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
        self.check(filter)?;
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
        self.impossible("events")
    }

    async fn event(&self, _: EventName, _: Where) -> Result<EventLife, AdminError> {
        self.impossible("events")
    }

    async fn events_since(
        &self,
        _: &EventFilter,
        _: Option<&TailPlace>,
    ) -> Result<(Vec<LogEvent>, TailPlace), AdminError> {
        self.impossible("tail")
    }

    async fn events_replay(
        &self,
        _: &str,
        _: &EventFilter,
        _: i64,
        _: i64,
        _: Option<&Actor>,
    ) -> Result<ReplayChunk, AdminError> {
        self.impossible("replay")
    }

    async fn tuning(&self) -> Result<Vec<Tuned>, AdminError> {
        self.impossible("tuning")
    }

    async fn tune(&self, _: &TuneAct, _: &Actor) -> Result<Option<Timestamp>, AdminError> {
        self.impossible("tuning")
    }

    async fn control_until(
        &self,
        _: &ControlTarget,
        _: &Control,
        _: Option<Ends>,
        _: &Actor,
    ) -> Result<(), AdminError> {
        self.impossible("control")
    }

    async fn set_lanes(&self, _: u16, _: &Actor) -> Result<(), AdminError> {
        self.impossible("lanes")
    }

    async fn rewind(&self, _: &str, _: RewindTo, _: &Actor) -> Result<(), AdminError> {
        self.impossible("rewind")
    }

    async fn repair(&self, _: &str, _: &Actor) -> Result<String, AdminError> {
        self.impossible("repair")
    }

    async fn doctor(&self) -> Result<Vec<Finding>, AdminError> {
        let mut session = self.session.lock().await;
        Ok(doctor::examine_on(&mut session, &self.statements, &self.schema).await)
    }
}
