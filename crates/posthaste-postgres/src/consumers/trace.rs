//! What every consumer of this database knows of one message, and what its handlers appended for it.

use super::time;
use crate::admin::PostgresAdmin;
use crate::session::params;
use posthaste::admin::{AdminError, DISORDER_MICROS};
use posthaste::consumer::admin::{CausedEvent, DeferredTrace, MessageTrace};
use tokio_postgres::Row;

fn trace(row: &Row) -> MessageTrace {
    let deferred = row.get::<_, Option<String>>("reason").map(|reason| DeferredTrace {
        reason,
        attempts: row.get("attempts"),
        due_at: time(row, "due_at"),
        last_error: row.get("last_error"),
    });
    MessageTrace {
        consumer: row.get("consumer"),
        outcome: row.get("outcome"),
        place: row.get("place"),
        marked_at: time(row, "marked_at"),
        xid: row.get("xid"),
        deferred,
        letters: row.get("letters"),
        appended: Vec::new(),
    }
}

impl PostgresAdmin {
    /// By the marks, what waits and what is dead, consumer by consumer.
    pub(super) async fn trace_message(&self, id: &str) -> Result<Vec<MessageTrace>, AdminError> {
        let rows = self
            .look_freely(include_str!("../../sql/consumer/trace.sql"), params![TEXT id, TEXT None::<&str>])
            .await?;
        let mut traces: Vec<MessageTrace> = rows.iter().map(trace).collect();
        for consumer in self.tables.keys() {
            let mut session = self.begin_freely().await?;
            if let Some(mapped) = self.mapped(&mut session, consumer).await? {
                let params = params![TEXT id, TEXT consumer];
                let rows = self
                    .query_of(
                        &mut session,
                        Some(&mapped),
                        include_str!("../../sql/consumer/trace.sql"),
                        params,
                    )
                    .await?;
                // What our own table has of a consumer whose marks are elsewhere is not all.
                traces.retain(|trace| trace.consumer != *consumer);
                traces.extend(rows.iter().map(trace));
            }
            session.rollback().await;
        }
        for trace in &mut traces {
            trace.appended = self.caused(id, trace).await?;
        }
        traces.sort_by(|a, b| a.consumer.cmp(&b.consumer));
        Ok(traces)
    }

    /// What the handler appended for a message. A mark without its transaction has a time at least.
    async fn caused(&self, id: &str, trace: &MessageTrace) -> Result<Vec<CausedEvent>, AdminError> {
        let Some(at) = trace.marked_at else { return Ok(Vec::new()) };
        let mut session = self.begin_freely().await?;
        let sees =
            self.query(&mut session, include_str!("../../sql/consumer/sees_log.sql"), params![]).await?;
        if !sees.first().is_some_and(|row| row.get("sees")) {
            // What it appended is found by whoever reads the log.
            session.rollback().await;
            return Ok(Vec::new());
        }
        let span = match &trace.xid {
            Some(_) => (0, 0),
            None => (
                self.shortly_before(&mut session, at).await?,
                self.shortly_before(&mut session, at.plus_micros(2 * DISORDER_MICROS)).await?,
            ),
        };
        let params =
            params![TEXT &*trace.consumer, TEXT id, TEXT trace.xid.as_deref(), INT8 span.0, INT8 span.1];
        let rows = self.query(&mut session, include_str!("../../sql/consumer/caused.sql"), params).await;
        session.rollback().await;
        let event = |row: &Row| CausedEvent {
            id: row.get("id"),
            topic: row.get("topic"),
            appended_at: time(row, "appended_at").unwrap_or_default(),
        };
        Ok(rows?.iter().map(event).collect())
    }
}
