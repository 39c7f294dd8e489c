//! Consumers of this file: who reads what, their dead letters, seeks, and what is known of a message.
//!
//! They are code in a service, which has the file open. An act waits its turn for the write lock, as the
//! service's own transactions do, so none of them needs a lock by key.

use super::dead::Clause;
use super::letters::{LetterPage, clause, letter, list};
use super::{SqliteAdmin, audit, failed, messages};
use crate::clock::{NEVER, now};
use crate::consumer::operator;
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::job::JobStore;
use posthaste::admin::{
    Actor, AdminError, Beside, Count, DISORDER_MICROS, DeadAct, DeadFilter, DeferredFilter, ROWS_MAX,
};
use posthaste::consumer::admin::{
    CausedEvent, ConsumerAdmin, ConsumerLetter, ConsumerPartition, ConsumerProcess, ConsumerStatus,
    DeferredMessage, DeferredTrace, LetterCause, MessageCause, MessageTrace,
};
use posthaste::consumer::store::Work;
use posthaste::inbox::kept::KeptHeaders;
use posthaste::source::Partition;
use rusqlite::types::FromSql;
use rusqlite::{Connection, Params, Row, params, params_from_iter};
use serde_json::json;
use uuid::Uuid;

/// Waiting and dead messages are counted up to this many.
const COUNT_MAX: i64 = 10_000;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/consumer/", $name, ".sql"))
    };
}

pub(super) fn rows<T>(
    tx: &Connection,
    sql: &str,
    params: impl Params,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    tx.prepare(sql)?.query_map(params, read)?.collect()
}

pub(super) fn time(row: &Row<'_>, name: &str) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(name)?.map(Timestamp))
}

/// A text of ours that is a UUID, or a JSON document. What somebody else put there is left out.
pub(super) fn parsed<T: FromSql, U: Default>(
    row: &Row<'_>,
    name: &str,
    parse: fn(T) -> Option<U>,
) -> rusqlite::Result<U> {
    Ok(row.get::<_, Option<T>>(name)?.and_then(parse).unwrap_or_default())
}

pub(super) fn uuid(text: String) -> Option<Uuid> {
    text.parse().ok()
}

pub(super) fn document(text: String) -> Option<serde_json::Value> {
    serde_json::from_str(&text).ok()
}

fn cause(row: &Row<'_>) -> rusqlite::Result<LetterCause> {
    Ok(LetterCause {
        fingerprint: row.get("fingerprint")?,
        count: row.get("count")?,
        disposition: row.get("disposition")?,
        error_code: row.get("error_code")?,
        error: row.get("error")?,
        first_at: time(row, "first_at")?.unwrap_or_default(),
        last_at: time(row, "last_at")?.unwrap_or_default(),
        letter: parsed(row, "letter", uuid)?,
    })
}

fn partition(row: &Row<'_>) -> rusqlite::Result<ConsumerPartition> {
    let clean: bool = row.get("clean")?;
    Ok(ConsumerPartition {
        topic: row.get("topic")?,
        partition: row.get("partition")?,
        position: row.get("position")?,
        position_time: time(row, "position_time")?,
        saved_at: time(row, "saved_at")?,
        log_id: row.get("log_id")?,
        seeks: row.get("seeks")?,
        // Here the name stays when the partition is given back.
        owner: row.get::<_, Option<String>>("owner")?.filter(|_| !clean),
        clean,
        unclean: row.get("unclean")?,
    })
}

fn process(row: &Row<'_>) -> rusqlite::Result<ConsumerProcess> {
    Ok(ConsumerProcess {
        process: row.get("process")?,
        version: row.get("version")?,
        host: row.get("host")?,
        started_at: time(row, "started_at")?.unwrap_or_default(),
        seen_at: time(row, "seen_at")?.unwrap_or_default(),
        report: parsed(row, "report", document)?,
    })
}

fn status(tx: &Connection, consumer: String) -> rusqlite::Result<ConsumerStatus> {
    let name = [&consumer];
    let count = |table: &str| -> rusqlite::Result<Count> {
        let sql = format!("select count(*) from (select 1 from {table} where consumer = ?1 limit ?2)");
        let found: i64 = tx.query_row(&sql, params![consumer, COUNT_MAX + 1], |row| row.get(0))?;
        Ok(Count { count: found.min(COUNT_MAX).unsigned_abs(), exact: found <= COUNT_MAX })
    };
    let oldest = "select min(deferred_at) from posthaste_inbox_deferred where consumer = ?1";
    let oldest: Option<i64> = tx.query_row(oldest, name, |row| row.get(0))?;
    let set = super::control::of_kind(tx, "consumer")?.into_iter().find(|set| set.name == consumer);
    let Beside { paused, rate: rate_limit, .. } = set.as_ref().map(|set| set.beside).unwrap_or_default();
    // Of what was lifted again nobody needs to know who it was.
    let set_by = set.and_then(|set| set.set_by).filter(|_| paused || rate_limit.is_some());
    let now = Timestamp(now());
    let partitions = "select * from posthaste_inbox_partitions where consumer = ?1 order by topic, partition";
    let processes = include_str!("../../sql/consumer/processes.sql");
    Ok(ConsumerStatus {
        partitions: rows(tx, partitions, name, partition)?,
        processes: rows(tx, processes, name, process)?,
        deferred: count("posthaste_inbox_deferred")?,
        oldest_deferred_seconds: oldest.map(|at| now.seconds_since(Timestamp(at))),
        dead: count("posthaste_inbox_dead_letters")?,
        now,
        paused,
        rate_limit,
        set_by,
        consumer,
    })
}

fn trace(row: &Row<'_>) -> rusqlite::Result<MessageTrace> {
    let deferred = match row.get::<_, Option<String>>("reason")? {
        None => None,
        Some(reason) => Some(DeferredTrace {
            reason,
            attempts: row.get("attempts")?,
            due_at: time(row, "due_at")?.filter(|at| at.0 != NEVER),
            last_error: row.get("last_error")?,
        }),
    };
    Ok(MessageTrace {
        consumer: row.get("consumer")?,
        outcome: row.get("outcome")?,
        place: row.get("place")?,
        marked_at: time(row, "marked_at")?,
        xid: None,
        deferred,
        letters: Vec::new(),
        appended: Vec::new(),
    })
}

fn traces(tx: &Connection, id: &str) -> rusqlite::Result<Vec<MessageTrace>> {
    let mut traces = rows(tx, sql!("trace"), [id], trace)?;
    for trace in &mut traces {
        let letters =
            "select letter from posthaste_inbox_dead_letters where consumer = ?1 and message_id = ?2";
        trace.letters = rows(tx, letters, [trace.consumer.as_str(), id], |row| parsed(row, "letter", uuid))?;
        let Some(at) = trace.marked_at else { continue };
        trace.appended = rows(tx, sql!("caused"), params![id, at.0, DISORDER_MICROS], |row| {
            let appended_at = time(row, "appended_at")?.unwrap_or_default();
            Ok(CausedEvent { id: parsed(row, "id", uuid)?, topic: row.get("topic")?, appended_at })
        })?;
    }
    Ok(traces)
}

#[async_trait]
impl ConsumerAdmin for SqliteAdmin {
    async fn consumers(&self, consumer: Option<&str>) -> Result<Vec<ConsumerStatus>, AdminError> {
        let only = consumer.map(str::to_owned);
        let look = move |tx: &Connection| {
            let known: Vec<String> = rows(tx, sql!("known"), [only], |row| row.get(0))?;
            known.into_iter().map(|name| status(tx, name)).collect::<rusqlite::Result<Vec<_>>>()
        };
        self.look(move |tx| look(tx).map_err(failed)).await
    }

    async fn letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ConsumerLetter>, AdminError> {
        let (consumer, filter) = (consumer.to_owned(), filter.clone());
        self.look(move |tx| list(tx, &consumer, &filter, LetterPage::After(after), limit).map_err(failed))
            .await
    }

    async fn letters_newest(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ConsumerLetter>, AdminError> {
        let (consumer, filter) = (consumer.to_owned(), filter.clone());
        self.look(move |tx| list(tx, &consumer, &filter, LetterPage::Before(before), limit).map_err(failed))
            .await
    }

    async fn letter(&self, consumer: &str, id: &str) -> Result<Vec<ConsumerLetter>, AdminError> {
        let mut clause = clause(consumer, &DeadFilter::default());
        clause.and("", id.to_owned(), " in (letter, message_id)");
        let of = "select *, length(payload) as payload_bytes from posthaste_inbox_dead_letters where";
        let sql = format!("{of} {} order by letter", clause.sql);
        self.look_by(clause, sql, letter).await
    }

    async fn letter_count(&self, consumer: &str, filter: &DeadFilter) -> Result<u64, AdminError> {
        let clause = clause(consumer, filter);
        let sql = format!("select count(*) from posthaste_inbox_dead_letters where {}", clause.sql);
        let counted: Vec<i64> = self.look_by(clause, sql, |row| row.get(0)).await?;
        Ok(counted.first().map_or(0, |count| count.unsigned_abs()))
    }

    async fn letter_causes(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        limit: i64,
    ) -> Result<Vec<LetterCause>, AdminError> {
        let clause = clause(consumer, filter);
        let sql = sql!("letter_causes").replace("/*condition*/", &clause.sql);
        let sql = format!("{sql} limit {}", limit.clamp(1, ROWS_MAX));
        self.look_by(clause, sql, cause).await
    }

    async fn deferred_messages(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<DeferredMessage>, AdminError> {
        let (consumer, filter) = (consumer.to_owned(), filter.clone());
        self.look(move |tx| messages::list(tx, &consumer, &filter, after, limit).map_err(failed)).await
    }

    async fn message_causes(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<MessageCause>, AdminError> {
        let (consumer, filter) = (consumer.to_owned(), filter.clone());
        self.look(move |tx| messages::causes(tx, &consumer, &filter, limit).map_err(failed)).await
    }

    async fn letter_act(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        act: DeadAct,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        self.act_on_letters(consumer, filter, (act, KeptHeaders::default()), actor, chunk).await
    }

    async fn replay_letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        headers: &KeptHeaders,
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        self.act_on_letters(consumer, filter, (DeadAct::Replay, headers.clone()), actor, chunk).await
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
        let (consumer, partition, actor) = (consumer.to_owned(), partition.clone(), actor.clone());
        let log_id = log_id.map(str::to_owned);
        self.act(move |tx| {
            let params = params![consumer, &*partition.topic, partition.number, to, log_id, now()];
            tx.execute(sql!("seek"), params).map_err(failed)?;
            let detail = json!({ "consumer": consumer, "partition": partition.to_string(), "to": to });
            audit(tx, &actor, "seek", &detail)
        })
        .await
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
        let (consumer, range, actor) =
            (consumer.to_owned(), headers.works(range).into_owned(), actor.clone());
        let headers = headers.audited();
        self.act(move |tx| {
            let copied = operator::copy_range(tx, &consumer, &range, repeat).map_err(failed)?;
            if copied > 0 {
                let place = |work: &Work| work.delivery.place();
                let (first, last) = (range.first().and_then(place), range.last().and_then(place));
                let mut detail = json!({ "consumer": consumer, "count": copied, "repeat": repeat, "first": first, "last": last });
                if let Some(headers) = headers {
                    detail["headers"] = headers;
                }
                audit(tx, &actor, "replay range", &detail)?;
            }
            Ok(copied)
        })
        .await
    }

    fn jobs(&self) -> Option<&dyn JobStore> {
        Some(self)
    }

    async fn trace(&self, id: &str) -> Result<Vec<MessageTrace>, AdminError> {
        let id = id.to_owned();
        self.look(move |tx| traces(tx, &id).map_err(failed)).await
    }
}

impl SqliteAdmin {
    /// One statement with a filter.
    async fn look_by<T: Send + 'static>(
        &self,
        clause: Clause,
        sql: String,
        read: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, AdminError> {
        self.look(move |tx| rows(tx, &sql, params_from_iter(clause.values()), read).map_err(failed)).await
    }
}
