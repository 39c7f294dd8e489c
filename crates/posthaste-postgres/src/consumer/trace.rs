//! What is written to mapped tables, beside our own and in the same transactions.

use super::PostgresInbox;
use super::columns::{Copy, Places, error_text, stack_text, text};
use super::failure::OwnError;
use crate::error::{describe, is_refusal_of_data};
use crate::mapped::{NAME_CHARS_MAX, too_long};
use crate::session::{LentTransaction, Param, SqlResult, params};
use posthaste::consumer::store::{Burial, InboxError, Work};
use posthaste::source::Partition;
use uuid::Uuid;

/// The header with the saga that a message belongs to.
const SAGA_HEADER: &str = "saga-id";

/// What became of a message, in the words of the table.
#[derive(Debug, Clone, Copy)]
pub(super) enum TraceStatus {
    Processed,
    Duplicate,
    Dead,
    Skipped,
}

impl TraceStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Processed => "PROCESSED",
            Self::Duplicate => "DUPLICATE",
            Self::Dead => "DLQ",
            Self::Skipped => "SKIPPED",
        }
    }
}

/// What became of a letter, in the words of the table.
pub(crate) const REPLAYED: &str = "REPLAYED";
pub(crate) const ARCHIVED: &str = "ARCHIVED";

/// The saga of a message, if it names one.
pub(super) fn saga(work: &Work) -> Option<Uuid> {
    work.delivery.message.header(SAGA_HEADER).and_then(|saga| Uuid::try_parse(saga).ok())
}

impl PostgresInbox {
    /// Refuses partitions whose topic the tables cannot hold, before they are taken.
    pub(super) fn check_topics(&self, partitions: &[Partition]) -> Result<(), InboxError> {
        let is_short = self.mapped.as_ref().is_none_or(|mapped| !mapped.mapping.has_names());
        let is_long = |partition: &&Partition| partition.topic.chars().count() > NAME_CHARS_MAX;
        match partitions.iter().find(is_long).filter(|_| !is_short) {
            None => Ok(()),
            Some(partition) => Err(InboxError::Broken(too_long("topic", &partition.topic))),
        }
    }

    /// Writes rows of messages, where there is a table for them.
    pub(super) async fn traced(
        &self,
        tx: &mut LentTransaction<'_>,
        works: &[&Work],
        status: TraceStatus,
    ) -> SqlResult<()> {
        let Some(sql) = self.mapped.as_ref().and_then(|mapped| mapped.traced.as_ref()) else { return Ok(()) };
        if works.is_empty() {
            return Ok(());
        }
        let places = Places::of(works.iter().copied());
        let sagas: Vec<Option<Uuid>> = works.iter().map(|work| saga(work)).collect();
        let params = params![
            TEXT_ARRAY places.ids, TEXT_ARRAY places.topics, INT4_ARRAY places.partitions,
            INT8_ARRAY places.positions, UUID_ARRAY sagas, TEXT status.word(),
        ];
        tx.query(sql, params).await.map(drop)
    }

    /// A message that is given up: its row, and its letter for people. Of a repeat the row stays as it is.
    pub(super) async fn trace_death(
        &self,
        tx: &mut LentTransaction<'_>,
        work: &Work,
        burial: &Burial,
        repeat: bool,
    ) -> Result<(), OwnError> {
        if !repeat {
            self.traced(tx, &[work], TraceStatus::Dead).await?;
        }
        let Some(sql) = self.mapped.as_ref().and_then(|mapped| mapped.letter.as_ref()) else { return Ok(()) };
        let (partition, copy, failure) = (work.delivery.partition(), Copy::of(work), &burial.failure);
        let mut error = error_text(&failure.message);
        if let Some(stack) = stack_text(failure.stack.as_deref()) {
            error = format!("{error}\n{stack}");
        }
        let why = match copy.payload {
            Some(payload) => why_no_json(tx, payload).await?,
            None => None,
        };
        let params = params![
            UUID burial.letter, TEXT &*partition.topic, INT4 partition.number, INT8 work.delivery.position,
            TEXT text(&failure.code, usize::MAX), TEXT error, BYTEA copy.payload, TEXT why, TEXT copy.headers,
        ];
        tx.query(sql, params).await?;
        Ok(())
    }

    /// Letters that are no longer open.
    pub(super) async fn trace_letter(
        &self,
        tx: &mut LentTransaction<'_>,
        letter: Uuid,
        status: &str,
    ) -> Result<(), OwnError> {
        if let Some(sql) = self.mapped.as_ref().and_then(|mapped| mapped.letter_status.as_ref()) {
            tx.query(sql, params![UUID_ARRAY vec![letter], TEXT status]).await?;
        }
        Ok(())
    }

    /// Saved positions, as our own table has them.
    pub(super) async fn trace_positions(
        &self,
        tx: &mut LentTransaction<'_>,
        places: &[Param<'_>],
    ) -> Result<(), OwnError> {
        if let Some(sql) = self.mapped.as_ref().and_then(|mapped| mapped.offsets.as_ref()) {
            tx.query(sql, places).await?;
        }
        Ok(())
    }
}

/// Why PostgreSQL does not take these bytes for JSON. It is asked behind a savepoint: a refusal must not cost
/// the transaction that gives the message up. The question writes nothing, so no server is slowed down by it.
async fn why_no_json(tx: &mut LentTransaction<'_>, payload: &[u8]) -> Result<Option<String>, OwnError> {
    tx.tx.batch_execute("savepoint posthaste_json").await?;
    let sql = "select convert_from($1::bytea, 'UTF8')::jsonb is null";
    let (end, why) = match tx.query(sql, params![BYTEA payload]).await {
        Ok(_) => ("release savepoint posthaste_json", None),
        Err(error) if is_refusal_of_data(&error) => {
            let why = error.as_db_error().map_or_else(|| describe(&error), |db| db.message().to_owned());
            ("rollback to savepoint posthaste_json", Some(text(&why, 200)))
        }
        Err(error) => return Err(error.into()),
    };
    tx.tx.batch_execute(end).await?;
    Ok(why)
}
