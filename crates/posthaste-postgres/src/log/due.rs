//! Looking for deferred events whose time has come.

use crate::error::store_error;
use crate::log::lease::LogLease;
use crate::row::{self, WIDTH, event_sql};
use crate::session::Param;
use posthaste::store::{DueBatch, DueEvent, DueQuery, Reason, StoreError};
use std::time::Duration;
use tokio_postgres::types::Type;

impl LogLease {
    pub(crate) async fn read_due(&self, query: DueQuery) -> Result<DueBatch, StoreError> {
        let generation = self.held_generation();
        let mut session = self.session().await?;
        let sink: &str = &self.id.sink;
        let (events, bytes) = (query.events as i64, query.bytes as i64);
        let params: [Param<'_>; 8] = [
            (&sink, Type::TEXT),
            (&self.slots.0, Type::INT2),
            (&self.slots.1, Type::INT2),
            (&events, Type::INT8),
            (&query.closed_destinations, Type::TEXT_ARRAY),
            (&query.paused_routes, Type::TEXT_ARRAY),
            (&query.only_destination, Type::TEXT),
            (&bytes, Type::INT8),
        ];
        let sql = self.sql(event_sql!("../../sql/log/due.sql"));
        let rows = session.query_anew(&sql, &params).await.map_err(store_error)?;
        let events = rows.iter().map(due_event).collect::<Result<Vec<_>, _>>().map_err(store_error)?;
        if !events.is_empty() {
            return Ok(DueBatch { events, next_in: None });
        }
        let sql = self.sql(include_str!("../../sql/log/next_due.sql"));
        let rows = session.query_anew(&sql, &params[..1]).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(DueBatch::default()) };
        if !row.get::<_, bool>(1) {
            self.clear_holding(generation);
        }
        let next_in = row.get::<_, Option<f64>>(0).map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1_000.0));
        Ok(DueBatch { events, next_in })
    }
}

fn due_event(row: &tokio_postgres::Row) -> Result<DueEvent, tokio_postgres::Error> {
    let reason: &str = row.try_get(WIDTH + 1)?;
    Ok(DueEvent {
        stored: row::event(row)?,
        attempts: row.try_get::<_, i32>(WIDTH)?.unsigned_abs(),
        reason: reason_of(reason),
    })
}

fn reason_of(word: &str) -> Reason {
    let all = [
        Reason::Retry,
        Reason::Unknown,
        Reason::Scheduled,
        Reason::Held,
        Reason::Outage,
        Reason::Paused,
        Reason::Drained,
        Reason::Replayed,
    ];
    all.into_iter().find(|reason| reason.as_str() == word).unwrap_or(Reason::Retry)
}
