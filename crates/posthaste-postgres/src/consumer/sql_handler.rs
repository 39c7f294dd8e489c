//! A handler that is a function in the database.

use super::handler::{Failed, Handler};
use crate::error::{describe, is_code, store_error};
use crate::session::{Session, params, quote};
use async_trait::async_trait;
use futures_util::future::join_all;
use posthaste::consumer::{HandlerError, Message, headers};
use posthaste::store::{StoreCode, StoreError};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Transaction};
use tracing::Instrument;

/// Calls `create function billing.on_event(m posthaste.message) returns void` for each message.
///
/// An error of SQLSTATE `PH001` rejects the message. `PH002` says that a dependency is away, and names it as
/// its DETAIL. Any other error is tried again.
#[derive(Debug, Clone)]
pub struct SqlHandler {
    sql: String,
    /// As SQL, with its arguments.
    function: String,
}

impl SqlHandler {
    /// The function by its name, `function` or `schema.function`, for the inbox in this schema.
    #[must_use]
    pub fn new(schema: &str, function: &str) -> Self {
        let name = function.split('.').map(quote).collect::<Vec<_>>().join(".");
        let sql = include_str!("../../sql/consumer/call.sql");
        let sql = sql.replace("posthaste.", &format!("{}.", quote(schema)));
        let sql = sql.replace("/*function*/", &name);
        Self { sql, function: format!("{name}({}.message)", quote(schema)) }
    }

    /// Its types are declared: one round trip, and nothing that a pooler could mix up.
    async fn call(&self, tx: &Transaction<'_>, message: &Message<'_>) -> Result<(), Error> {
        let (partition, received) = (message.partition(), &message.message);
        let stored_headers = headers::to_json(&received.headers);
        let attempt = i32::try_from(message.attempt()).unwrap_or(i32::MAX);
        let published_at = message.published_at.map(|at| at.0);
        let params: [(&(dyn ToSql + Sync), Type); 13] = [
            (&message.id(), Type::TEXT),
            (&message.consumer(), Type::TEXT),
            (&&*partition.topic, Type::TEXT),
            (&partition.number, Type::INT4),
            (&message.position, Type::INT8),
            (&message.address, Type::TEXT),
            (&received.key.as_deref(), Type::BYTEA),
            (&received.event_type(), Type::TEXT),
            (&stored_headers, Type::TEXT),
            (&received.content_type(), Type::TEXT),
            (&received.payload.as_deref(), Type::BYTEA),
            (&published_at, Type::INT8),
            (&attempt, Type::INT4),
        ];
        tx.execute_typed(&self.sql, &params).await.map(drop)
    }
}

impl SqlHandler {
    /// Whether it is there, and this login may call it.
    pub(crate) async fn check(&self, session: &mut Session) -> Result<(), StoreError> {
        check(session, &self.function).await
    }
}

#[async_trait]
impl Handler for SqlHandler {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        Ok(self.call(tx, message).await?)
    }

    fn function(&self) -> Option<&str> {
        Some(&self.function)
    }

    /// All calls are sent before the first answer comes. After one that fails the transaction is aborted, so
    /// the first error is its own, and all others follow from it.
    async fn handle_all(&self, tx: &mut Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Failed> {
        let tx = &*tx;
        let calls = batch.iter().map(|message| self.call(tx, message).instrument(message.span()));
        let answers = join_all(calls).await;
        for (at, answer) in answers.into_iter().enumerate() {
            answer.map_err(|error| Failed::At(at, error.into()))?;
        }
        Ok(())
    }
}

/// A function that is not there, or that this login may not call, would be the death of every message.
pub(super) async fn check(session: &mut Session, function: &str) -> Result<(), StoreError> {
    let sql = "select has_function_privilege(to_regprocedure($1)::oid, 'execute'), current_user::text";
    let (code, advice) = (StoreCode::Rights, "Nothing was taken");
    let (may_call, login): (Option<bool>, String) = match session.query(sql, params![TEXT function]).await {
        Ok(rows) => rows.first().map_or_else(Default::default, |row| (row.get(0), row.get(1))),
        // Whoever may not look into its schema may not call it.
        Err(error) if is_code(&error, &SqlState::INSUFFICIENT_PRIVILEGE) => {
            let why = format!("{}: the handler {function} cannot be called. {advice}", describe(&error));
            return Err(StoreError::fatal(code, why));
        }
        Err(error) => return Err(store_error(error)),
    };
    match may_call {
        Some(true) => Ok(()),
        Some(false) => {
            let why = format!("{login} may not call the handler {function}: grant it EXECUTE. {advice}");
            Err(StoreError::fatal(code, why))
        }
        None => {
            let why = format!("there is no function {function} here, which is to handle messages. {advice}");
            Err(StoreError::fatal(StoreCode::SchemaOther, why))
        }
    }
}
