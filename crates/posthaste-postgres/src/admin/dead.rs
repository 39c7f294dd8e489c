//! Dead letters: list, count, replay, discard.
//!
//! A bulk act means its filter, not a page of it (F58). It runs in chunks, each a transaction of its own
//! with its own line in the audit, so it can be stopped and resumed at any time, and no lock is held for
//! longer than a chunk takes.
//!
//! Two acts on one letter: one wins. Whoever names letters by id reads first which of them are there, then
//! locks them, and learns it as a conflict (F59) if one is gone by then: "done" would be a lie about who
//! did it. For a filter it is just one letter less.
//!
//! A replayed event goes back to its place among the deferred: same number, so that what waits of its key
//! goes after it (F57). Who is first of a key is decided while no settlement changes what waits, see
//! `lock_keys.sql`.

use super::{PostgresAdmin, failed, finish};
use crate::row::{self, Micros, event_sql};
use crate::session::{Param, Session};
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, AdminError, DeadAct, DeadFilter, DeadLetter, IDS_AUDITED, ROWS_MAX, audited_filter,
};
use posthaste::route::Pattern;
use serde_json::json;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Headers of an event, as rows.
const SINK_HEADERS: &str =
    "jsonb_each_text(case jsonb_typeof(headers) when 'object' then headers end) h (name, value)";

/// A filter as SQL: conditions with their parameters, numbered from a given place on.
pub(crate) struct Clause {
    sql: String,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
    first: usize,
}

impl Clause {
    pub(crate) fn new(first: usize) -> Self {
        Self { sql: String::new(), values: Vec::new(), first }
    }

    pub(crate) fn of(filter: &DeadFilter, first: usize) -> Self {
        let mut clause = Self::new(first);
        if !filter.ids.is_empty() {
            clause.and("id = any (", filter.ids.clone(), Type::UUID_ARRAY, ")");
        }
        clause.and_texts(&[("sink = ", &filter.sink), ("key = ", &filter.key), ("route = ", &filter.route)]);
        clause.and_common(filter, SINK_HEADERS);
        clause
    }

    /// What letters of sinks and of consumers have in common. `headers`: their names and values, as rows.
    pub(crate) fn and_common(&mut self, filter: &DeadFilter, headers: &str) {
        self.and_texts(&[("error_code = ", &filter.code), ("error_class = ", &filter.class)]);
        // No pattern: what people look for has `%` and `_` in it.
        if let Some(text) = &filter.error {
            self.and("strpos(error, ", text.clone(), Type::TEXT, ") > 0");
        }
        if let Some(fingerprint) = filter.fingerprint {
            self.and("fingerprint = ", fingerprint, Type::INT8, "");
        }
        if let Some(topic) = &filter.topic {
            self.and("topic like ", Pattern::new(topic).to_like(), Type::TEXT, "");
        }
        if filter.header.is_some() || filter.header_value.is_some() {
            self.sql.push_str(&format!(" and exists (select from {headers} where true"));
            self.and_texts(&[("h.name = ", &filter.header), ("h.value = ", &filter.header_value)]);
            self.sql.push(')');
        }
        for (condition, wanted) in [("holds_key = ", filter.holds_key), ("(replays > 0) = ", filter.replayed)]
        {
            if let Some(wanted) = wanted {
                self.and(condition, wanted, Type::BOOL, "");
            }
        }
        for (condition, instant) in [("dead_at >= ", filter.since), ("dead_at < ", filter.until)] {
            if let Some(instant) = instant {
                self.and_time(condition, instant);
            }
        }
    }

    pub(crate) fn and_texts(&mut self, texts: &[(&str, &Option<String>)]) {
        for (condition, value) in texts {
            if let Some(value) = value {
                self.and(condition, value.clone(), Type::TEXT, "");
            }
        }
    }

    /// Letters of a consumer between two ids, by their order.
    pub(crate) fn and_letters(&mut self, after: Uuid, upto: Uuid) {
        self.and("letter > ", after, Type::UUID, "");
        self.and("letter <= ", upto, Type::UUID, "");
    }

    pub(crate) fn and_time(&mut self, condition: &str, instant: Timestamp) {
        let condition = format!("{condition}timestamptz 'epoch' + interval '1 microsecond' * ");
        self.and(&condition, instant.0, Type::INT8, "");
    }

    /// A condition without a value.
    pub(crate) fn and_sql(&mut self, condition: &str) {
        self.sql.push_str(&format!(" and ({condition})"));
    }

    pub(crate) fn and(
        &mut self,
        before: &str,
        value: impl ToSql + Sync + Send + 'static,
        kind: Type,
        after: &str,
    ) {
        let number = self.first + self.values.len();
        self.sql.push_str(&format!(" and {before}${number}{after}"));
        self.values.push((Box::new(value), kind));
    }

    pub(crate) fn put_into(&self, sql: &str) -> String {
        sql.replace("/*filter*/", &self.sql)
    }

    pub(crate) fn params<'a>(&'a self, before: &[Param<'a>]) -> Vec<Param<'a>> {
        let own = self.values.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()));
        before.iter().cloned().chain(own).collect()
    }
}

/// What is done to letters, and by whom: the audit has it.
pub(crate) struct DeadChunk<'a> {
    pub(crate) filter: &'a DeadFilter,
    pub(crate) act: DeadAct,
    pub(crate) actor: &'a Actor,
    /// The job that it is part of.
    pub(crate) job: Option<i64>,
}

impl PostgresAdmin {
    pub(crate) async fn list_dead(
        &self,
        filter: &DeadFilter,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        self.list_dead_of(&Clause::of(filter, 3), after, limit).await
    }

    /// A page of what a clause means; its parameters begin with the third.
    pub(crate) async fn list_dead_of(
        &self,
        clause: &Clause,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, AdminError> {
        let sql = clause.put_into(event_sql!("../../sql/admin/dead_list.sql"));
        let limit = limit.clamp(1, ROWS_MAX);
        let params = clause.params(&[(&after, Type::INT8), (&limit, Type::INT8)]);
        let rows = self.look_freely(&sql, &params).await?;
        rows.iter().map(letter).collect::<Result<_, _>>().map_err(failed)
    }

    pub(crate) async fn show_dead(&self, id: Uuid) -> Result<Vec<DeadLetter>, AdminError> {
        let sql = event_sql!("../../sql/admin/dead_show.sql");
        let rows = self.look_freely(sql, &[(&id, Type::UUID)]).await?;
        rows.iter().map(letter).collect::<Result<_, _>>().map_err(failed)
    }

    pub(crate) async fn count_dead(&self, filter: &DeadFilter) -> Result<u64, AdminError> {
        let clause = Clause::of(filter, 1);
        let sql = clause.put_into(include_str!("../../sql/admin/dead_count.sql"));
        let rows = self.look_freely(&sql, &clause.params(&[])).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    pub(crate) async fn act_on_dead(
        &self,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        filter.check()?;
        let mut session = self.begin_freely().await?;
        let done = self.act_on_chunk(&mut session, filter, act, actor, chunk).await;
        finish(&mut session, done).await
    }

    async fn act_on_chunk(
        &self,
        session: &mut Session,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        let mut named = Vec::new();
        if !filter.ids.is_empty() {
            // Before the lock: whoever comes second must know what it came for.
            named =
                self.letters(session, include_str!("../../sql/admin/dead_pick.sql"), filter, chunk).await?;
        }
        self.lock_deferred(session).await?;
        let locked =
            self.letters(session, include_str!("../../sql/admin/dead_lock.sql"), filter, chunk).await?;
        AdminError::check_taken(&named, &locked)?;
        if !locked.is_empty() {
            self.settle_letters(session, &DeadChunk { filter, act, actor, job: None }, &locked).await?;
        }
        Ok(locked.len() as u64)
    }

    async fn letters(
        &self,
        session: &mut Session,
        sql: &str,
        filter: &DeadFilter,
        chunk: i64,
    ) -> Result<Vec<i64>, AdminError> {
        let clause = Clause::of(filter, 2);
        let chunk = chunk.clamp(1, ROWS_MAX);
        let rows =
            self.query(session, &clause.put_into(sql), &clause.params(&[(&chunk, Type::INT8)])).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// See `lock_keys.sql`.
    pub(crate) async fn lock_deferred(&self, session: &mut Session) -> Result<(), AdminError> {
        let lock = self.sessions.sql(include_str!("../../sql/admin/lock_keys.sql"));
        let lock = format!("set local lock_timeout = '10s'; {lock}");
        session.batch(&lock).await.map_err(failed)
    }

    /// Moves or removes locked letters, puts their keys in order, writes the audit.
    pub(crate) async fn settle_letters(
        &self,
        session: &mut Session,
        chunk: &DeadChunk<'_>,
        letters: &[i64],
    ) -> Result<(), AdminError> {
        let DeadChunk { filter, act, actor, job } = *chunk;
        let sql = match act {
            DeadAct::Replay => event_sql!("../../sql/admin/replay.sql"),
            DeadAct::Discard => include_str!("../../sql/admin/discard.sql"),
        };
        if act == DeadAct::Replay {
            self.check_takers(session, letters).await?;
        }
        let gone = self.query(session, sql, &[(&letters, Type::INT8_ARRAY)]).await?;
        self.order_keys(session, &gone).await?;
        let ids: Vec<Uuid> = gone.iter().take(IDS_AUDITED).map(|row| row.get("id")).collect();
        let topics = super::aside::topics(&gone);
        let filter = audited_filter(filter, gone.len(), job);
        let mut detail = json!({ "filter": filter, "count": gone.len(), "ids": ids, "topics": topics });
        if let Some(job) = job {
            detail["job"] = job.into();
        }
        self.audit(session, actor, act.action(), &detail).await?;
        self.wake(session, "").await
    }

    /// Refuses letters that nobody would deliver.
    async fn check_takers(&self, session: &mut Session, letters: &[i64]) -> Result<(), AdminError> {
        let params: [Param<'_>; 1] = [(&letters, Type::INT8_ARRAY)];
        let unroutable = include_str!("../../sql/admin/unroutable.sql");
        if let Some(row) = self.query(session, unroutable, &params).await?.first() {
            return Err(AdminError::no_route(row.get(0)));
        }
        let retired =
            self.query(session, include_str!("../../sql/admin/retired_letters.sql"), &params).await?;
        let retired: Vec<String> = retired.iter().map(|row| row.get(0)).collect();
        AdminError::check_letters_served(&retired)
    }

    /// Whoever is first of its key now comes due, everybody behind it waits.
    pub(crate) async fn order_keys(&self, session: &mut Session, gone: &[Row]) -> Result<(), AdminError> {
        let keyed =
            |row: &Row| row.get::<_, Option<String>>("key").map(|key| (row.get::<_, String>("sink"), key));
        let (sinks, keys): (Vec<String>, Vec<String>) = gone.iter().filter_map(keyed).unzip();
        if keys.is_empty() {
            return Ok(());
        }
        let params: [Param<'_>; 2] = [(&sinks, Type::TEXT_ARRAY), (&keys, Type::TEXT_ARRAY)];
        self.query(session, include_str!("../../sql/admin/wait_behind.sql"), &params).await?;
        self.query(session, include_str!("../../sql/admin/come_due.sql"), &params).await?;
        Ok(())
    }
}

pub(crate) fn letter(row: &Row) -> Result<DeadLetter, tokio_postgres::Error> {
    let event = row::shown(row)?;
    Ok(DeadLetter {
        cursor: row.get::<_, i64>("letter").to_string(),
        sink: row.get("sink"),
        seq: event.seq,
        id: event.id,
        topic: event.topic,
        key: event.key,
        headers: event.headers,
        content_type: event.content_type,
        payload_bytes: event.payload_bytes,
        payload: event.payload,
        appended_at: event.appended_at,
        dead_at: Timestamp(row.get::<_, Micros>("dead_at").0),
        attempts: row.get("attempts"),
        replays: row.get("replays"),
        error_class: row.get("error_class"),
        error_code: row.get("error_code"),
        error: row.get("error"),
        holds_key: row.get("holds_key"),
        fingerprint: row.get("fingerprint"),
        history: super::aside::history(row),
    })
}
