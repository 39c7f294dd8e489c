//! Letters of consumers: which are meant, and what is done to them.
//!
//! An act takes the locks of their keys before it looks at what it found once more: the store's own
//! transactions take the same ones. Whoever names letters by id learns it as a conflict (F59) if one is gone
//! by then.

use super::{sql, time};
use crate::admin::dead::Clause;
use crate::admin::{PostgresAdmin, failed};
use crate::consumer::trace::{ARCHIVED, REPLAYED};
use crate::mapped::Mapped;
use crate::session::{Session, params};
use posthaste::admin::{
    Actor, AdminError, DeadAct, DeadFilter, DeferredFilter, History, IDS_AUDITED, ROWS_MAX, TOPICS_AUDITED,
    audited_filter,
};
use posthaste::consumer::admin::ConsumerLetter;
use posthaste::inbox::kept::KeptHeaders;
use posthaste::route::Pattern;
use serde_json::json;
use std::collections::BTreeSet;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Letters of one transaction: each may lock a key, and the server has room for some thousand locks.
const CHUNK_MAX: i64 = 500;

/// Headers of a message, as rows.
const HEADERS: &str = "(select p ->> 0 as name, p ->> 1 as value \
    from jsonb_array_elements(case jsonb_typeof(headers) when 'array' then headers end) p) h";

/// A filter of letters. Its parameters are numbered from a given place on.
pub(crate) fn clause(filter: &DeadFilter, first: usize) -> Clause {
    let mut clause = Clause::new(first);
    if !filter.ids.is_empty() {
        clause.and("letter = any (", filter.ids.clone(), Type::UUID_ARRAY, ")");
    }
    if let Some(key) = &filter.key {
        clause.and("key = ", key.clone().into_bytes(), Type::BYTEA, "");
    }
    clause.and_common(filter, HEADERS);
    clause
}

/// A filter of deferred messages. `ids` are message ids; a consumer has no sinks and no destinations.
pub(crate) fn of_deferred(filter: &DeferredFilter, first: usize) -> Clause {
    let mut clause = Clause::new(first);
    if !filter.ids.is_empty() {
        let ids: Vec<String> = filter.ids.iter().map(Uuid::to_string).collect();
        clause.and("message_id = any (", ids, Type::TEXT_ARRAY, ")");
    }
    if let Some(key) = &filter.key {
        clause.and("key = ", key.clone().into_bytes(), Type::BYTEA, "");
    }
    clause.and_texts(&[("reason = ", &filter.reason), ("error_code = ", &filter.code)]);
    if let Some(topic) = &filter.topic {
        clause.and("topic like ", Pattern::new(topic).to_like(), Type::TEXT, "");
    }
    clause
}

/// What is done to letters of a consumer, and by whom.
pub(crate) struct LetterChunk<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) filter: &'a DeadFilter,
    pub(crate) act: DeadAct,
    pub(crate) headers: &'a KeptHeaders,
    pub(crate) actor: &'a Actor,
    /// The job that it is part of.
    pub(crate) job: Option<i64>,
}

/// What became of them.
pub(crate) struct PickedLetters {
    /// How many were there.
    pub(crate) picked: i64,
    /// How many were acted on.
    pub(crate) done: u64,
    /// The last of them.
    pub(crate) last: Option<Uuid>,
}

pub(crate) fn letter(row: &Row) -> ConsumerLetter {
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

impl PostgresAdmin {
    /// The next letters, with what their keys are known by.
    pub(crate) async fn pick_letters(
        &self,
        session: &mut Session,
        consumer: &str,
        found: &Clause,
        chunk: i64,
    ) -> Result<Vec<(Uuid, String, Option<Uuid>)>, AdminError> {
        let chunk = chunk.clamp(1, CHUNK_MAX);
        let params = found.params(params![TEXT consumer, INT8 chunk]);
        let picked = self.query(session, &found.put_into(sql!("letter_pick")), &params).await?;
        Ok(picked.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    /// Acts on the next letters of a clause, whose parameters begin with the third.
    pub(crate) async fn act_on_letters(
        &self,
        session: &mut Session,
        letters: &LetterChunk<'_>,
        found: Clause,
        chunk: i64,
    ) -> Result<PickedLetters, AdminError> {
        let LetterChunk { consumer, filter, act, headers, actor, job } = *letters;
        let picked = self.pick_letters(session, consumer, &found, chunk).await?;
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
                    !self.query(session, sql!("discard_letter"), params).await?.is_empty()
                }
            };
            done.extend(gone.then_some(*letter));
        }
        if let Some(sql) = mapped.as_ref().and_then(|mapped| mapped.letter_status.as_ref()) {
            let status = if act == DeadAct::Replay { REPLAYED } else { ARCHIVED };
            session.query_once(sql, params![UUID_ARRAY done, TEXT status]).await.map_err(failed)?;
        }
        // A job goes on with the others: to it a letter that somebody else took is one less.
        if !filter.ids.is_empty() && job.is_none() {
            let picked: Vec<Uuid> = picked.iter().map(|(letter, ..)| *letter).collect();
            AdminError::check_taken(&picked, &done)?;
        }
        if !done.is_empty() {
            self.promote_keys(session, consumer, &keys).await?;
            let ids = &done[..done.len().min(IDS_AUDITED)];
            let filter = audited_filter(filter, done.len(), job);
            let mut detail =
                json!({ "consumer": consumer, "filter": filter, "count": done.len(), "ids": ids });
            let topics: BTreeSet<&str> = picked.iter().map(|(_, topic, _)| &**topic).collect();
            detail["topics"] = topics.into_iter().take(TOPICS_AUDITED).collect();
            if let Some(headers) = headers.audited() {
                detail["headers"] = headers;
            }
            if let Some(job) = job {
                detail["job"] = job.into();
            }
            self.audit(session, actor, act.action(), &detail).await?;
        }
        let last = picked.last().map(|(letter, ..)| *letter);
        Ok(PickedLetters { picked: picked.len() as i64, done: done.len() as u64, last })
    }

    pub(crate) async fn list_letters(
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

    pub(crate) async fn newest_letters(
        &self,
        consumer: &str,
        filter: &DeadFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ConsumerLetter>, AdminError> {
        let clause = clause(filter, 4);
        // No letter has this id: its version is none.
        let (before, limit) = (before.unwrap_or(Uuid::max()), limit.clamp(1, ROWS_MAX));
        let params = clause.params(params![TEXT consumer, UUID before, INT8 limit]);
        let rows = self.look_freely(&clause.put_into(sql!("letters_newest")), &params).await?;
        Ok(rows.iter().map(letter).collect())
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

    pub(crate) async fn lock_keys(
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

    pub(crate) async fn promote_keys(
        &self,
        session: &mut Session,
        consumer: &str,
        (topics, order_ids): &(Vec<String>, Vec<Uuid>),
    ) -> Result<(), AdminError> {
        let params = params![TEXT consumer, TEXT_ARRAY topics, UUID_ARRAY order_ids];
        self.query(session, sql!("promote"), params).await?;
        Ok(())
    }
}
