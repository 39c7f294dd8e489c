//! What waits of a consumer, and for what.

use super::{of_deferred, sql, time};
use crate::admin::PostgresAdmin;
use crate::admin::dead::Clause;
use crate::session::params;
use posthaste::admin::{AdminError, DeferredFilter, History, ROWS_MAX};
use posthaste::consumer::admin::{DeferredMessage, MessageCause};
use tokio_postgres::Row;

impl PostgresAdmin {
    pub(crate) async fn list_messages(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<DeferredMessage>, AdminError> {
        self.list_messages_of(consumer, &of_deferred(filter, 4), after, limit).await
    }

    /// A page of what a clause means; its parameters begin with the fourth.
    pub(crate) async fn list_messages_of(
        &self,
        consumer: &str,
        clause: &Clause,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<DeferredMessage>, AdminError> {
        let limit = limit.clamp(1, ROWS_MAX);
        let params = clause.params(params![TEXT consumer, INT8 after, INT8 limit]);
        let rows = self.look_freely(&clause.put_into(sql!("messages")), &params).await?;
        Ok(rows.iter().map(message).collect())
    }

    pub(super) async fn causes_of_messages(
        &self,
        consumer: &str,
        filter: &DeferredFilter,
        limit: i64,
    ) -> Result<Vec<MessageCause>, AdminError> {
        let (clause, limit) = (of_deferred(filter, 3), limit.clamp(1, ROWS_MAX));
        let params = clause.params(params![TEXT consumer, INT8 limit]);
        let rows = self.look_freely(&clause.put_into(sql!("message_causes")), &params).await?;
        let cause = |row: &Row| MessageCause {
            consumer: consumer.to_owned(),
            reason: row.get("reason"),
            error_code: row.get("error_code"),
            error: row.get("error"),
            count: row.get("count"),
            oldest_at: time(row, "oldest_at").unwrap_or_default(),
            due_at: time(row, "due_at"),
        };
        Ok(rows.iter().map(cause).collect())
    }
}

fn message(row: &Row) -> DeferredMessage {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    DeferredMessage {
        consumer: row.get("consumer"),
        seq: row.get("seq"),
        id: row.get("message_id"),
        topic: row.get("topic"),
        partition: row.get("partition"),
        position: row.get("position"),
        key: row.get::<_, Option<Vec<u8>>>("key").map(text),
        reason: row.get("reason"),
        due_at: time(row, "due_at"),
        attempts: row.get("attempts"),
        replays: row.get("replays"),
        error_code: row.get("error_code"),
        last_error: row.get("last_error"),
        last_error_at: time(row, "last_error_at"),
        history: row.get::<_, Option<&str>>("history").map(History::from_json).unwrap_or_default(),
        repeat: row.get("repeat"),
        published_at: time(row, "published_at"),
        deferred_at: time(row, "deferred_at").unwrap_or_default(),
    }
}
