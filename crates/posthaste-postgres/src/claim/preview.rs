//! What would be claimed now, in a transaction that is rolled back.

use super::check;
use super::layout::Layout;
use super::row::{self, Shape};
use super::session::ClaimSession;
use crate::config::PostgresConfig;
use crate::error::store_error;
use crate::session::Param;
use posthaste::event::StoredEvent;
use posthaste::route::Filter;
use posthaste::store::StoreError;
use tokio_postgres::types::Type;

/// The next batch, as a relay would get it: events, and the attempts each has spent. Nothing is changed, and
/// rows that are locked elsewhere are passed over.
pub async fn preview(
    config: &PostgresConfig,
    layout: &Layout,
    filter: &Filter,
) -> Result<Vec<(StoredEvent, u32)>, StoreError> {
    let mut session = ClaimSession::open(config, layout).await?;
    let statements = check::statements(&mut session, layout.clone()).await?;
    let shape = Shape {
        content_type: statements.content_type(),
        header_names: statements.layout().header_columns.iter().map(|(header, _)| header.clone()).collect(),
        limits: config.limits,
    };
    let payload_max = i32::try_from(config.limits.payload_bytes_max).unwrap_or(i32::MAX);
    let (none, only, relay): (Vec<String>, Option<String>, &str) = (Vec::new(), None, "preview");
    // As much as a relay takes at once.
    let bytes = 4_i64 << 20;
    let params: [Param<'_>; 6] = [
        (&payload_max, Type::INT4),
        (&none, Type::TEXT_ARRAY),
        (&none, Type::TEXT_ARRAY),
        (&only, Type::TEXT),
        (&relay, Type::TEXT),
        (&bytes, Type::INT8),
    ];
    session.begin().await.map_err(store_error)?;
    let rows = session.query(&statements.claim(layout.batch, filter), &params).await.map_err(store_error)?;
    session.rollback().await.map_err(store_error)?;
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        let (stored, claimed) = row::read(row, &shape, 0).map_err(store_error)?;
        events.push((claimed.n, stored, claimed.attempts.unwrap_or(0)));
    }
    events.sort_by_key(|(n, ..)| *n);
    Ok(events.into_iter().map(|(_, stored, attempts)| (stored, attempts)).collect())
}
