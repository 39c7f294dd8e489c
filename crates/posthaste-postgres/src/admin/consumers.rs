//! Consumers: who reads what, their dead letters, seeks, and what is known of a message.
//!
//! An act on letters takes the locks of their keys before it looks at what it found once more: the store's
//! own transactions take the same ones. Whoever names letters by id learns it as a conflict (F59) if one is
//! gone by then.

use super::dead::Clause;
use super::{PostgresAdmin, failed, finish};
use crate::consumer::columns::{Copy, Places};
use crate::consumer::trace::{ARCHIVED, REPLAYED};
use crate::mapped::{self, Access, InboxTables, Mapped};
use crate::row::Micros;
use crate::session::{Param, Session, params};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::{Actor, AdminError, Count, DeadAct, DeadFilter, History, IDS_AUDITED, ROWS_MAX};
use posthaste::consumer::admin::{
    ConsumerAdmin, ConsumerLetter, ConsumerPartition, ConsumerProcess, ConsumerStatus, LetterCause,
    MessageTrace,
};
use posthaste::consumer::store::Work;
use posthaste::inbox::kept::KeptHeaders;
use posthaste::route::Pattern;
use posthaste::source::Partition;
use serde_json::json;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Waiting and dead messages are counted up to this many.
const COUNT_MAX: i64 = 10_000;
/// Letters of one transaction: each may lock a key, and the server has room for some thousand locks.
const CHUNK_MAX: i64 = 500;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/consumer/", $name, ".sql"))
    };
}

/// A filter of letters. Its parameters are numbered from a given place on.
fn clause(filter: &DeadFilter, first: usize) -> Clause {
    let mut clause = Clause::new(first);
    if !filter.ids.is_empty() {
        clause.and("letter = any (", filter.ids.clone(), Type::UUID_ARRAY, ")");
    }
    if let Some(key) = &filter.key {
        clause.and("key = ", key.clone().into_bytes(), Type::BYTEA, "");
    }
    if let Some(code) = &filter.code {
        clause.and("error_code = ", code.clone(), Type::TEXT, "");
    }
    if let Some(topic) = &filter.topic {
        clause.and("topic like ", Pattern::new(topic).to_like(), Type::TEXT, "");
    }
    for (condition, instant) in [("dead_at >= ", filter.since), ("dead_at < ", filter.until)] {
        if let Some(instant) = instant {
            clause.and_time(condition, instant);
        }
    }
    clause
}

pub(super) fn time(row: &Row, name: &str) -> Option<Timestamp> {
    row.get::<_, Option<Micros>>(name).map(|at| Timestamp(at.0))
}

fn letter(row: &Row) -> ConsumerLetter {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    ConsumerLetter {
        letter: row.get("letter"),
        consumer: row.get("consumer"),
        id: row.get("message_id"),
        topic: row.get("topic"),
        partition: row.get("partition"),
        position: row.get("position"),
        address: row.get("address"),
        key: row.get::<_, Option<Vec<u8>>>("key").map(text),
        headers: row.get("headers"),
        payload_bytes: row.get("payload_bytes"),
        payload: row.get("payload"),
        published_at: time(row, "published_at"),
        dead_at: time(row, "dead_at").unwrap_or_default(),
        attempts: row.get("attempts"),
        replays: row.get("replays"),
        disposition: row.get("disposition"),
        error_class: row.get("error_class"),
        error_code: row.get("error_code"),
        error: row.get("error"),
        stack: row.get("stack"),
        history: row.get::<_, Option<&str>>("history").map(History::from_json).unwrap_or_default(),
        fingerprint: row.get("fingerprint"),
        holds_key: row.get("holds_key"),
        repeat: row.get("repeat"),
    }
}

fn partition(row: &Row) -> ConsumerPartition {
    ConsumerPartition {
        topic: row.get("topic"),
        partition: row.get("partition"),
        position: row.get("position"),
        position_time: time(row, "position_time"),
        saved_at: time(row, "saved_at"),
        log_id: row.get("log_id"),
        seeks: row.get("seeks"),
        owner: row.get("owner"),
        clean: row.get("clean"),
        unclean: row.get("unclean"),
    }
}

fn process(row: &Row) -> ConsumerProcess {
    ConsumerProcess {
        process: row.get("process"),
        version: row.get("version"),
        host: row.get("host"),
        started_at: time(row, "started_at").unwrap_or_default(),
        seen_at: time(row, "seen_at").unwrap_or_default(),
        report: row.get("report"),
    }
}

impl PostgresAdmin {
    /// From now on what concerns this consumer goes by its tables. They are looked at when they are needed.
    pub fn map_tables(&mut self, consumer: &str, group: &str, tables: &InboxTables) {
        self.tables.insert(consumer.to_owned(), (group.to_owned(), tables.clone()));
    }

    pub(super) async fn mapped(
        &self,
        session: &mut Session,
        consumer: &str,
    ) -> Result<Option<Mapped>, AdminError> {
        let Some((group, tables)) = self.tables.get(consumer) else { return Ok(None) };
        Ok(mapped::open(session, &self.sessions, tables, (consumer, group), Access::Operator).await?)
    }

    /// One statement of a file, for the tables of a consumer.
    pub(super) async fn query_of(
        &self,
        session: &mut Session,
        mapped: Option<&Mapped>,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, AdminError> {
        let Some(mapped) = mapped else { return self.query(session, sql, params).await };
        session.query_once(&mapped.fill(&self.sessions.sql(sql)), params).await.map_err(failed)
    }

    async fn consumer_status(&self, row: &Row) -> Result<ConsumerStatus, AdminError> {
        let consumer: String = row.get("consumer");
        let named = params![TEXT consumer];
        let partitions = self.look_freely(sql!("partitions"), named).await?;
        let processes = self.look_freely(sql!("processes"), named).await?;
        let counted = params![TEXT consumer, INT8 (COUNT_MAX + 1)];
        let counts = self.look_freely(sql!("count"), counted).await?;
        let count = |name| {
            let found = counts.first().map_or(0, |row| row.get::<_, i64>(name));
            Count { count: found.min(COUNT_MAX).unsigned_abs(), exact: found <= COUNT_MAX }
        };
        Ok(ConsumerStatus {
            partitions: partitions.iter().map(partition).collect(),
            processes: processes.iter().map(process).collect(),
            deferred: count("deferred"),
            oldest_deferred_seconds: counts.first().and_then(|row| row.get("oldest_deferred")),
            dead: count("dead_letters"),
            paused: row.get("paused"),
            rate_limit: row.get("rate_limit"),
            consumer,
        })
    }

    async fn act_on_letters(
        &self,
        session: &mut Session,
        consumer: &str,
        filter: &DeadFilter,
        (act, headers): (DeadAct, &KeptHeaders),
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        let found = clause(filter, 3);
        let chunk = chunk.clamp(1, CHUNK_MAX);
        let params = found.params(params![TEXT consumer, INT8 chunk]);
        let picked = self.query(session, &found.put_into(sql!("letter_pick")), &params).await?;
        let picked: Vec<(Uuid, String, Option<Uuid>)> =
            picked.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        let keys = picked.iter().filter_map(|(_, topic, order_id)| Some((topic.clone(), (*order_id)?)));
        let keys: (Vec<String>, Vec<Uuid>) = keys.unzip();
        self.lock_keys(session, consumer, &keys).await?;
        let mapped = self.mapped(session, consumer).await?;
        let mut done = Vec::new();
        for (letter, ..) in &picked {
            let gone = match act {
                DeadAct::Replay => {
                    self.replay_letter(session, mapped.as_ref(), consumer, *letter, headers).await?
                }
                DeadAct::Discard => {
                    let params = params![TEXT consumer, UUID letter];
                    !self.query(session, sql!("drop_letter"), params).await?.is_empty()
                }
            };
            done.extend(gone.then_some(*letter));
        }
        if let Some(sql) = mapped.as_ref().and_then(|mapped| mapped.letter_status.as_ref()) {
            let status = if act == DeadAct::Replay { REPLAYED } else { ARCHIVED };
            session.query_once(sql, params![UUID_ARRAY done, TEXT status]).await.map_err(failed)?;
        }
        if !filter.ids.is_empty() {
            let picked: Vec<Uuid> = picked.iter().map(|(letter, ..)| *letter).collect();
            AdminError::check_taken(&picked, &done)?;
        }
        if !done.is_empty() {
            self.promote_keys(session, consumer, &keys).await?;
            let ids = &done[..done.len().min(IDS_AUDITED)];
            let mut detail =
                json!({ "consumer": consumer, "filter": filter, "count": done.len(), "ids": ids });
            if let Some(headers) = headers.audited() {
                detail["headers"] = headers;
            }
            self.audit(session, actor, act.action(), &detail).await?;
        }
        Ok(done.len() as u64)
    }

    /// T2r, for a person. `false`: somebody was quicker.
    async fn replay_letter(
        &self,
        session: &mut Session,
        mapped: Option<&Mapped>,
        consumer: &str,
        letter: Uuid,
        headers: &KeptHeaders,
    ) -> Result<bool, AdminError> {
        let (text, bytes, number) = (None::<&str>, None::<&[u8]>, None::<i64>);
        let kept = match headers.is_all() {
            true => None,
            false => {
                let sql = "select headers::text from posthaste.inbox_dead_letters where consumer = $1 and letter = $2";
                let found = self.query(session, sql, params![TEXT consumer, UUID letter]).await?;
                found.first().map(|row| headers.stored(row.get(0)))
            }
        };
        let params = params![
            TEXT consumer, UUID letter, BOOL false, TEXT text, INT4 None::<i32>, INT8 number, TEXT text,
            BYTEA bytes, TEXT kept, BYTEA bytes, INT8 number,
        ];
        Ok(!self.query_of(session, mapped, sql!("replay"), params).await?.is_empty())
    }

    async fn lock_keys(
        &self,
        session: &mut Session,
        consumer: &str,
        (topics, order_ids): &(Vec<String>, Vec<Uuid>),
    ) -> Result<(), AdminError> {
        session.batch("set local lock_timeout = '10s'").await.map_err(failed)?;
        let params = params![TEXT consumer, TEXT_ARRAY topics, UUID_ARRAY order_ids];
        self.query(session, sql!("lock_all"), params).await?;
        Ok(())
    }

    async fn promote_keys(
        &self,
        session: &mut Session,
        consumer: &str,
        (topics, order_ids): &(Vec<String>, Vec<Uuid>),
    ) -> Result<(), AdminError> {
        let params = params![TEXT consumer, TEXT_ARRAY topics, UUID_ARRAY order_ids];
        self.query(session, sql!("promote"), params).await?;
        Ok(())
    }

    async fn copy_works(
        &self,
        session: &mut Session,
        consumer: &str,
        range: &[Work],
        (repeat, headers): (bool, &KeptHeaders),
        actor: &Actor,
    ) -> Result<u64, AdminError> {
        let range = &*headers.works(range);
        let places = Places::of(range);
        let keys = range
            .iter()
            .filter_map(|work| Some((work.delivery.partition().topic.to_string(), work.order_id?)));
        let keys: (Vec<String>, Vec<Uuid>) = keys.unzip();
        self.lock_keys(session, consumer, &keys).await?;
        let copies: Vec<Copy<'_>> = range.iter().map(Copy::of).collect();
        let params = params![
            TEXT consumer, TEXT_ARRAY places.ids, TEXT_ARRAY places.topics, INT4_ARRAY places.partitions,
            INT8_ARRAY places.positions,
            TEXT_ARRAY copies.iter().map(|copy| copy.address.as_deref()).collect::<Vec<_>>(),
            BYTEA_ARRAY copies.iter().map(|copy| copy.key).collect::<Vec<_>>(),
            UUID_ARRAY places.order_ids,
            TEXT_ARRAY copies.iter().map(|copy| &*copy.headers).collect::<Vec<_>>(),
            BYTEA_ARRAY copies.iter().map(|copy| copy.payload).collect::<Vec<_>>(),
            INT8_ARRAY copies.iter().map(|copy| copy.published_at).collect::<Vec<_>>(), BOOL repeat,
        ];
        let mapped = self.mapped(session, consumer).await?;
        let copied = self.query_of(session, mapped.as_ref(), sql!("copy"), params).await?.len();
        self.promote_keys(session, consumer, &keys).await?;
        if copied > 0 {
            let place = |work: &Work| work.delivery.place();
            let (from, to) = (range.first().and_then(place), range.last().and_then(place));
            let mut detail =
                json!({ "consumer": consumer, "count": copied, "repeat": repeat, "first": from, "last": to });
            if let Some(headers) = headers.audited() {
                detail["headers"] = headers;
            }
            self.audit(session, actor, "replay range", &detail).await?;
        }
        Ok(copied as u64)
    }
}

#[async_trait]
impl ConsumerAdmin for PostgresAdmin {
    async fn consumers(&self, consumer: Option<&str>) -> Result<Vec<ConsumerStatus>, AdminError> {
        let known = self.look_freely(sql!("known"), params![TEXT consumer]).await?;
        let mut all = Vec::new();
        for row in &known {
            all.push(self.consumer_status(row).await?);
        }
        Ok(all)
    }

    async fn letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ConsumerLetter>, AdminError> {
        let clause = clause(filter, 4);
        let (after, limit) = (after.unwrap_or_default(), limit.clamp(1, ROWS_MAX));
        let params = clause.params(params![TEXT consumer, UUID after, INT8 limit]);
        let rows = self.look_freely(&clause.put_into(sql!("letters")), &params).await?;
        Ok(rows.iter().map(letter).collect())
    }

    async fn letter(&self, consumer: &str, id: &str) -> Result<Vec<ConsumerLetter>, AdminError> {
        let letter_id = Uuid::try_parse(id).ok();
        let params = params![TEXT consumer, TEXT id, UUID letter_id];
        let rows = self.look_freely(sql!("letter_show"), params).await?;
        Ok(rows.iter().map(letter).collect())
    }

    async fn letter_count(&self, consumer: &str, filter: &DeadFilter) -> Result<u64, AdminError> {
        let clause = clause(filter, 2);
        let params = clause.params(params![TEXT consumer]);
        let rows = self.look_freely(&clause.put_into(sql!("letter_count")), &params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    async fn letter_causes(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        limit: i64,
    ) -> Result<Vec<LetterCause>, AdminError> {
        let clause = clause(filter, 3);
        let limit = limit.clamp(1, ROWS_MAX);
        let params = clause.params(params![TEXT consumer, INT8 limit]);
        let rows = self.look_freely(&clause.put_into(sql!("letter_causes")), &params).await?;
        let cause = |row: &Row| LetterCause {
            fingerprint: row.get("fingerprint"),
            count: row.get("count"),
            disposition: row.get("disposition"),
            error_code: row.get("error_code"),
            error: row.get("error"),
            first_at: time(row, "first_at").unwrap_or_default(),
            last_at: time(row, "last_at").unwrap_or_default(),
            letter: row.get("letter"),
        };
        Ok(rows.iter().map(cause).collect())
    }

    async fn letter_act(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        filter.check()?;
        let mut session = self.begin().await?;
        let how = (act, &KeptHeaders::default());
        let done = self.act_on_letters(&mut session, consumer, filter, how, actor, chunk).await;
        finish(&mut session, done).await
    }

    async fn replay_letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        headers: &KeptHeaders,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        filter.check()?;
        let mut session = self.begin().await?;
        let how = (DeadAct::Replay, headers);
        let done = self.act_on_letters(&mut session, consumer, filter, how, actor, chunk).await;
        finish(&mut session, done).await
    }

    async fn seek(
        &self,
        consumer: &str,
        partition: &Partition,
        to: i64,
        log_id: Option<&str>,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        actor.check()?;
        let mut session = self.begin().await?;
        let params = params![
            TEXT consumer, TEXT &*partition.topic, INT4 partition.number, INT8 to, TEXT log_id,
        ];
        let moved = async {
            self.query(&mut session, sql!("seek"), params).await?;
            let mapped = self.mapped(&mut session, consumer).await?;
            if let Some(sql) = mapped.as_ref().and_then(|mapped| mapped.offsets.as_ref()) {
                let (topics, numbers) = (vec![&*partition.topic], vec![partition.number]);
                let place = params![TEXT consumer, TEXT_ARRAY topics, INT4_ARRAY numbers];
                session.query_once(sql, place).await.map_err(failed)?;
            }
            let detail = json!({ "consumer": consumer, "partition": partition.to_string(), "to": to });
            self.audit(&mut session, actor, "seek", &detail).await
        };
        let moved = moved.await;
        finish(&mut session, moved).await
    }

    async fn copy_range(
        &self,
        consumer: &str,
        range: &[Work],
        repeat: bool,
        headers: &KeptHeaders,
        actor: &Actor,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        let mut session = self.begin().await?;
        let copied = self.copy_works(&mut session, consumer, range, (repeat, headers), actor).await;
        finish(&mut session, copied).await
    }

    async fn trace(&self, id: &str) -> Result<Vec<MessageTrace>, AdminError> {
        self.trace_message(id).await
    }
}
