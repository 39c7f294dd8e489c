//! Dead letters of consumers: which are meant, and what is done to them.

use super::consumers::{document, parsed, rows, time, uuid};
use super::dead::Clause;
use super::{SqliteAdmin, audit, failed};
use crate::consumer::operator;
use posthaste::admin::{
    Actor, AdminError, DeadAct, DeadFilter, History, IDS_AUDITED, ROWS_MAX, audited_filter,
};
use posthaste::consumer::admin::ConsumerLetter;
use posthaste::inbox::kept::KeptHeaders;
use rusqlite::{Connection, Row, Transaction, params_from_iter};
use serde_json::json;
use uuid::Uuid;

/// A filter of letters.
pub(crate) fn clause(consumer: &str, filter: &DeadFilter) -> Clause {
    let mut clause = Clause::new("true".to_owned());
    clause.and("consumer = ", consumer.to_owned(), "");
    if !filter.ids.is_empty() {
        let ids: Vec<String> = filter.ids.iter().map(Uuid::to_string).collect();
        clause.and("letter in (select value from json_each(", json!(ids).to_string(), "))");
    }
    if let Some(key) = &filter.key {
        clause.and("key = ", key.clone().into_bytes(), "");
    }
    clause.and_common(filter, ["h.value ->> 0 = ", "h.value ->> 1 = "]);
    clause
}

/// What is done to letters of a consumer, and by whom.
pub(crate) struct LetterAct<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) filter: &'a DeadFilter,
    pub(crate) act: DeadAct,
    pub(crate) headers: &'a KeptHeaders,
    pub(crate) actor: &'a Actor,
    /// The job that it is part of.
    pub(crate) job: Option<i64>,
}

/// The next letters of a clause.
pub(crate) fn pick(tx: &Connection, clause: &Clause, chunk: i64) -> rusqlite::Result<Vec<Uuid>> {
    let of = "select letter from posthaste_inbox_dead_letters where";
    let sql = format!("{of} {} order by letter limit {chunk}", clause.sql);
    rows(tx, &sql, params_from_iter(clause.values()), |row| parsed(row, "letter", uuid))
}

/// Acts on letters that are there, and writes the audit.
pub(crate) fn settle(
    tx: &Transaction<'_>,
    letters: &LetterAct<'_>,
    picked: &[Uuid],
) -> Result<(), AdminError> {
    let LetterAct { consumer, filter, act, headers, actor, job } = *letters;
    for letter in picked {
        operator::act(tx, consumer, &letter.to_string(), (act, headers)).map_err(failed)?;
    }
    if picked.is_empty() {
        return Ok(());
    }
    let ids = &picked[..picked.len().min(IDS_AUDITED)];
    let filter = audited_filter(filter, picked.len(), job);
    let mut detail = json!({ "consumer": consumer, "filter": filter, "count": picked.len(), "ids": ids });
    if let Some(headers) = headers.audited() {
        detail["headers"] = headers;
    }
    if let Some(job) = job {
        detail["job"] = job.into();
    }
    audit(tx, actor, act.action(), &detail)
}

/// Where a page of letters begins, and which way it goes.
#[derive(Clone, Copy)]
pub(crate) enum LetterPage {
    /// Oldest first, behind this letter.
    After(Option<Uuid>),
    /// Newest first, before this letter.
    Before(Option<Uuid>),
}

/// A page of letters. Their ids are made of the time.
pub(crate) fn list(
    tx: &Connection,
    consumer: &str,
    filter: &DeadFilter,
    page: LetterPage,
    limit: i64,
) -> rusqlite::Result<Vec<ConsumerLetter>> {
    let mut clause = clause(consumer, filter);
    let order = match page {
        LetterPage::After(after) => {
            clause.and("letter > ", after.unwrap_or_default().to_string(), "");
            "order by letter limit"
        }
        LetterPage::Before(before) => {
            clause.and("letter < ", before.unwrap_or(Uuid::max()).to_string(), "");
            "order by letter desc limit"
        }
    };
    let of = include_str!("../../sql/consumer/letters.sql");
    let sql = format!("{of} where {} {order} {}", clause.sql, limit.clamp(1, ROWS_MAX));
    rows(tx, &sql, params_from_iter(clause.values()), letter)
}

pub(super) fn letter(row: &Row<'_>) -> rusqlite::Result<ConsumerLetter> {
    let key: Option<Vec<u8>> = row.get("key")?;
    let payload: Option<Vec<u8>> = row.get("payload")?;
    Ok(ConsumerLetter {
        letter: parsed(row, "letter", uuid)?,
        consumer: row.get("consumer")?,
        id: row.get("message_id")?,
        topic: row.get("topic")?,
        partition: row.get("partition")?,
        position: row.get("position")?,
        address: row.get("address")?,
        key: key.map(|key| String::from_utf8_lossy(&key).into_owned()),
        headers: parsed(row, "headers", document)?,
        payload_bytes: row.get("payload_bytes")?,
        payload,
        published_at: time(row, "published_at")?,
        dead_at: time(row, "dead_at")?.unwrap_or_default(),
        attempts: row.get("attempts")?,
        replays: row.get("replays")?,
        disposition: row.get("disposition")?,
        error_class: row.get("error_class")?,
        error_code: row.get("error_code")?,
        error: row.get("error")?,
        stack: row.get("stack")?,
        history: parsed(row, "history", |text: String| Some(History::from_json(&text)))?,
        fingerprint: row.get("fingerprint")?,
        holds_key: row.get("holds_key")?,
        repeat: row.get("repeat")?,
    })
}

impl SqliteAdmin {
    pub(super) async fn act_on_letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        (act, headers): (DeadAct, KeptHeaders),
        actor: &Actor,
        chunk: i64,
    ) -> Result<u64, AdminError> {
        actor.check()?;
        filter.check()?;
        let chunk = chunk.clamp(1, ROWS_MAX);
        let (consumer, filter, actor) = (consumer.to_owned(), filter.clone(), actor.clone());
        // Before the lock: whoever comes second must know what it came for.
        let named = match filter.ids.is_empty() {
            true => Vec::new(),
            false => {
                let (consumer, filter) = (consumer.clone(), filter.clone());
                self.look(move |tx| pick(tx, &clause(&consumer, &filter), chunk).map_err(failed)).await?
            }
        };
        self.act(move |tx| {
            let letters = pick(tx, &clause(&consumer, &filter), chunk).map_err(failed)?;
            AdminError::check_taken(&named, &letters)?;
            let (consumer, filter, headers, actor) = (&*consumer, &filter, &headers, &actor);
            settle(tx, &LetterAct { consumer, filter, act, headers, actor, job: None }, &letters)?;
            Ok(letters.len() as u64)
        })
        .await
    }
}
