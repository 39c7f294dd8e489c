//! T2r: a dead letter is a deferred message again, in its old place.
//!
//! Somebody's tool sent the message back to its topic with its id. Without this the inbox would take the copy
//! for a duplicate and swallow it. Where a letter is open, the copy means: try it again, with these bytes.

use super::columns::Copy;
use super::failure::OwnError;
use super::trace::REPLAYED;
use super::{End, PostgresInbox};
use crate::session::{LentTransaction, params};
use posthaste::admin::trace_of;
use posthaste::consumer::store::{InboxError, MessageOutcome, Work};
use serde_json::json;
use uuid::Uuid;

/// Who acts in the audit when nobody asked for it by name.
const NOBODY: &str = "posthaste";

impl PostgresInbox {
    /// Brings the open letter of this message back, with the bytes of the copy.
    pub(super) async fn redrive(&self, copy: &Work) -> Result<MessageOutcome, InboxError> {
        self.transact(async |tx| {
            let consumer = &*self.consumer;
            let found = tx.query(&self.statements.letter, params![TEXT consumer, TEXT &*copy.id]).await?;
            let Some(row) = found.first() else { return Ok((MessageOutcome::Duplicate, End::Rollback)) };
            let (letter, topic, order_id): (Uuid, &str, Option<Uuid>) = (row.get(0), row.get(1), row.get(2));
            self.lock_key(tx, topic, order_id).await?;
            if !self.bring_back(tx, letter, copy).await? {
                return Ok((MessageOutcome::Duplicate, End::Rollback));
            }
            let topics = [&*copy.delivery.partition().topic];
            let detail = json!({ "consumer": consumer, "letter": letter, "id": &*copy.id, "topics": topics });
            let detail = detail.to_string();
            let trace = trace_of_message(copy);
            let params = params![
                TEXT NOBODY, TEXT "redrive", TEXT "the message was sent to its topic again", TEXT detail, TEXT trace,
            ];
            tx.query(&self.sessions.sql(include_str!("../../sql/admin/audit.sql")), params).await?;
            // CRASH(consume.redriven): the letter is as it was. The copy comes again, and is a redrive again
            // (G6).
            posthaste::crash_point!("consume.redriven");
            Ok((MessageOutcome::Redriven, End::Commit))
        })
        .await
    }

    /// Under the key's lock. `false`: somebody was quicker.
    async fn bring_back(
        &self,
        tx: &mut LentTransaction<'_>,
        letter: Uuid,
        copy: &Work,
    ) -> Result<bool, OwnError> {
        let consumer = &*self.consumer;
        let (partition, rest) = (copy.delivery.partition(), Copy::of(copy));
        let params = params![
            TEXT consumer, UUID letter, BOOL true, TEXT &*partition.topic, INT4 partition.number,
            INT8 copy.delivery.position, TEXT rest.address, BYTEA rest.key, TEXT rest.headers,
            BYTEA rest.payload, INT8 rest.published_at,
        ];
        let rows = tx.query(&self.statements.replay, params).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (topic, order_id): (String, Option<Uuid>) = (row.get(0), row.get(1));
        let keys: Vec<(String, Uuid)> = order_id.map(|order_id| (topic, order_id)).into_iter().collect();
        self.promote(tx, &keys).await?;
        self.trace_letter(tx, letter, REPLAYED).await?;
        Ok(true)
    }

    /// The lock of a key. Messages without one have nothing to lock.
    pub(super) async fn lock_key(
        &self,
        tx: &mut LentTransaction<'_>,
        topic: &str,
        order_id: Option<Uuid>,
    ) -> Result<(), OwnError> {
        let Some(order_id) = order_id else { return Ok(()) };
        let consumer = &*self.consumer;
        tx.query(&self.statements.lock, params![TEXT consumer, TEXT topic, UUID order_id]).await?;
        Ok(())
    }

    /// The first of what waits of these keys comes due, under their locks.
    pub(super) async fn promote(
        &self,
        tx: &mut LentTransaction<'_>,
        keys: &[(String, Uuid)],
    ) -> Result<(), OwnError> {
        if keys.is_empty() {
            return Ok(());
        }
        let consumer = &*self.consumer;
        let (topics, order_ids): (Vec<&str>, Vec<Uuid>) =
            keys.iter().map(|(topic, order_id)| (&**topic, *order_id)).unzip();
        let params = params![TEXT consumer, TEXT_ARRAY topics, UUID_ARRAY order_ids];
        tx.query_anew(&self.statements.promote, params).await?;
        Ok(())
    }
}

/// The trace that a message says it belongs to; without one, a trace of its own.
fn trace_of_message(work: &Work) -> String {
    let said =
        work.delivery.message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("traceparent"));
    let said = said.and_then(|(_, value)| trace_of(std::str::from_utf8(value).ok()?));
    said.map_or_else(|| Uuid::new_v4().simple().to_string(), str::to_owned)
}
