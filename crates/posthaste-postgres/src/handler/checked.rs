//! A handler behind schemas: what breaks its schema never reaches it.
//!
//! It stands around the handler, and not in front of the inbox. So fresh messages, deferred ones and replayed
//! dead letters are checked alike, by the schemas of now, and the inbox sees one more handler that refuses. A
//! whole batch is checked before the first of it runs.

use super::{Failed, Handler, SqlFunction};
use async_trait::async_trait;
use posthaste::consumer::{HandlerError, Message};
use posthaste::schema::SchemaChecks;
use std::sync::Arc;
use tokio_postgres::Transaction;

/// Runs the inner handler for messages that keep their schema.
pub struct CheckedHandler {
    checks: Arc<SchemaChecks>,
    inner: Arc<dyn Handler>,
}

impl CheckedHandler {
    /// The handler, behind these schemas.
    pub fn new(checks: Arc<SchemaChecks>, inner: Arc<dyn Handler>) -> Self {
        Self { checks, inner }
    }
}

#[async_trait]
impl Handler for CheckedHandler {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        self.checks.pass(message).await?;
        self.inner.handle(tx, message).await
    }

    async fn handle_all(&self, tx: &mut Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Failed> {
        for (at, message) in batch.iter().enumerate() {
            self.checks.pass(message).await.map_err(|error| Failed::At(at, error))?;
        }
        self.inner.handle_all(tx, batch).await
    }

    fn function(&self) -> Option<&SqlFunction> {
        self.inner.function()
    }
}
