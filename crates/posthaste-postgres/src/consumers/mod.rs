//! Consumers as people see them: who reads what, their dead letters, seeks, and what is known of a message.

mod letters;
mod messages;
mod trace;

use letters::letter;
pub(crate) use letters::{LetterChunk, clause, of_deferred};

use crate::admin::control::set_by;
use crate::admin::{PostgresAdmin, failed, finish};
use crate::consumer::columns::{Copy, Places};
use crate::mapped::{self, Access, InboxTables, Mapped};
use crate::row::Micros;
use crate::session::{Param, Session, params};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::job::JobStore;
use posthaste::admin::{Actor, AdminError, Count, DeadAct, DeadFilter, DeferredFilter, ROWS_MAX};
use posthaste::consumer::admin::{
    ConsumerAdmin, ConsumerLetter, ConsumerPartition, ConsumerProcess, ConsumerStatus, DeferredMessage,
    LetterCause, MessageCause, MessageTrace,
};
use posthaste::consumer::store::Work;
use posthaste::inbox::kept::KeptHeaders;
use posthaste::source::Partition;
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

/// Waiting and dead messages are counted up to this many.
const COUNT_MAX: i64 = 10_000;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/consumer/", $name, ".sql"))
    };
}
pub(crate) use sql;

pub(crate) fn time(row: &Row, name: &str) -> Option<Timestamp> {
    row.get::<_, Option<Micros>>(name).map(|at| Timestamp(at.0))
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

    pub(crate) async fn mapped(
        &self,
        session: &mut Session,
        consumer: &str,
    ) -> Result<Option<Mapped>, AdminError> {
        let Some((group, tables)) = self.tables.get(consumer) else { return Ok(None) };
        Ok(mapped::open(session, &self.sessions, tables, (consumer, group), Access::Operator).await?)
    }

    /// One statement of a file, for the tables of a consumer.
    pub(crate) async fn query_of(
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
        let (paused, rate_limit): (bool, Option<f64>) = (row.get("paused"), row.get("rate_limit"));
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
            // Of what was lifted again nobody needs to know who it was.
            set_by: set_by(row).filter(|_| paused || rate_limit.is_some()),
            now: time(row, "now").unwrap_or_default(),
            paused,
            rate_limit,
            consumer,
        })
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
        self.list_letters(consumer, filter, after, limit).await
    }

    async fn letters_newest(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ConsumerLetter>, AdminError> {
        self.newest_letters(consumer, filter, before, limit).await
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

    async fn deferred_messages(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<DeferredMessage>, AdminError> {
        self.list_messages(consumer, filter, after, limit).await
    }

    async fn message_causes(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<MessageCause>, AdminError> {
        self.causes_of_messages(consumer, filter, limit).await
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
        let headers = &KeptHeaders::default();
        let letters = LetterChunk { consumer, filter, act, headers, actor, job: None };
        let done = self.act_on_letters(&mut session, &letters, clause(filter, 3), chunk).await;
        finish(&mut session, done.map(|picked| picked.done)).await
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
        let letters = LetterChunk { consumer, filter, act: DeadAct::Replay, headers, actor, job: None };
        let done = self.act_on_letters(&mut session, &letters, clause(filter, 3), chunk).await;
        finish(&mut session, done.map(|picked| picked.done)).await
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

    fn jobs(&self) -> Option<&dyn JobStore> {
        Some(self)
    }

    async fn trace(&self, id: &str) -> Result<Vec<MessageTrace>, AdminError> {
        self.trace_message(id).await
    }
}
