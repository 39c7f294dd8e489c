//! A handler that is a function in the database: of one message, or of a whole batch.
//!
//! Both are one name in the configuration. Which of them is there is asked when the consumer starts, and two
//! functions of one name, one of each kind, are refused: which was meant is nobody's guess. A function of a
//! batch is one statement however many messages there are, and that is what it is for. It fails as a whole,
//! so the message that it failed of is found by halves.

use super::{Failed, Handler};
use crate::error::{describe, is_code, store_error};
use crate::session::{Session, params, quote};
use async_trait::async_trait;
use futures_util::future::join_all;
use posthaste::consumer::{HandlerError, Message, headers};
use posthaste::store::{StoreCode, StoreError};
use std::sync::OnceLock;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Transaction};
use tracing::Instrument;

/// Calls `create function billing.on_event(m posthaste.message) returns void` for each message, or
/// `create function billing.on_events(batch posthaste.message[]) returns void` for all of them at once.
///
/// An error of SQLSTATE `PH001` rejects the message. `PH002` says that a dependency is away, and names it as
/// its DETAIL. Any other error is tried again. An error of a batch is nobody's: the batch is halved until one
/// message is left.
#[derive(Debug, Clone)]
pub struct SqlHandler {
    function: SqlFunction,
    one: String,
    all: String,
}

impl SqlHandler {
    /// The function by its name, `function` or `schema.function`, for the inbox in this schema.
    #[must_use]
    pub fn new(schema: &str, function: &str) -> Self {
        let name = function.split('.').map(quote).collect::<Vec<_>>().join(".");
        let schema = quote(schema);
        let call =
            |sql: &str| sql.replace("posthaste.", &format!("{schema}.")).replace("/*function*/", &name);
        Self {
            one: call(include_str!("../../sql/consumer/call.sql")),
            all: call(include_str!("../../sql/consumer/call_all.sql")),
            function: SqlFunction { message: format!("{schema}.message"), name, takes_all: OnceLock::new() },
        }
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
        tx.execute_typed(&self.one, &params).await.map(drop)
    }

    /// The same for all of them in one call.
    async fn call_all(&self, tx: &Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Error> {
        let consumer = batch.first().map(Message::consumer);
        let params: [(&(dyn ToSql + Sync), Type); 13] = [
            (&of(batch, Message::id), Type::TEXT_ARRAY),
            (&consumer, Type::TEXT),
            (&of(batch, |message| &*message.partition().topic), Type::TEXT_ARRAY),
            (&of(batch, |message| message.partition().number), Type::INT4_ARRAY),
            (&of(batch, |message| message.position), Type::INT8_ARRAY),
            (&of(batch, |message| message.address.as_deref()), Type::TEXT_ARRAY),
            (&of(batch, |message| message.message.key.as_deref()), Type::BYTEA_ARRAY),
            (&of(batch, |message| message.message.event_type()), Type::TEXT_ARRAY),
            (&of(batch, |message| headers::to_json(&message.message.headers)), Type::TEXT_ARRAY),
            (&of(batch, |message| message.message.content_type()), Type::TEXT_ARRAY),
            (&of(batch, |message| message.message.payload.as_deref()), Type::BYTEA_ARRAY),
            (&of(batch, |message| message.published_at.map(|at| at.0)), Type::INT8_ARRAY),
            (&of(batch, |message| i32::try_from(message.attempt()).unwrap_or(i32::MAX)), Type::INT4_ARRAY),
        ];
        tx.execute_typed(&self.all, &params).await.map(drop)
    }

    /// Whether it is there, and this login may call it.
    pub(crate) async fn check(&self, session: &mut Session) -> Result<(), StoreError> {
        self.function.find(session).await
    }
}

/// One column of a batch.
fn of<'a, T>(batch: &'a [Message<'_>], column: impl Fn(&'a Message<'a>) -> T) -> Vec<T> {
    batch.iter().map(column).collect()
}

#[async_trait]
impl Handler for SqlHandler {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        match self.function.takes_all() {
            true => Ok(self.call_all(tx, &[*message]).await?),
            false => Ok(self.call(tx, message).await?),
        }
    }

    fn function(&self) -> Option<&SqlFunction> {
        Some(&self.function)
    }

    /// All calls of one message each are sent before the first answer comes. After one that fails the
    /// transaction is aborted, so the first error is its own, and all others follow from it.
    async fn handle_all(&self, tx: &mut Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Failed> {
        let tx = &*tx;
        if self.function.takes_all() {
            return self.call_all(tx, batch).await.map_err(|error| Failed::Together(error.into()));
        }
        let calls = batch.iter().map(|message| self.call(tx, message).instrument(message.span()));
        let answers = join_all(calls).await;
        for (at, answer) in answers.into_iter().enumerate() {
            answer.map_err(|error| Failed::At(at, error.into()))?;
        }
        Ok(())
    }
}

/// A function of the service that handles messages.
#[derive(Debug, Clone)]
pub struct SqlFunction {
    /// As SQL.
    name: String,
    /// The type of its argument, or of an element of it, as SQL.
    message: String,
    /// Whether it takes a batch. Empty until somebody has looked.
    takes_all: OnceLock<bool>,
}

impl SqlFunction {
    fn takes_all(&self) -> bool {
        self.takes_all.get().copied().unwrap_or_default()
    }

    /// Finds it before anything is taken: one that is not there, or that this login may not call, would be
    /// the death of every message.
    pub(crate) async fn find(&self, session: &mut Session) -> Result<(), StoreError> {
        let one = format!("{}({})", self.name, self.message);
        let all = format!("{}({}[])", self.name, self.message);
        match (may_call(session, &one).await?, may_call(session, &all).await?) {
            (Some(()), Some(())) => {
                let why = format!(
                    "there are two functions to handle messages, {one} and {all}, and which is meant is not said: \
                     drop one of them, or give it another name. {ADVICE}"
                );
                return Err(StoreError::fatal(StoreCode::SchemaOther, why));
            }
            (None, None) => {
                let why = format!(
                    "there is no function {one} here, which is to handle messages, nor {all}, which could take them \
                     in batches. {ADVICE}"
                );
                return Err(StoreError::fatal(StoreCode::SchemaOther, why));
            }
            (one, _) => {
                // It is the same handler: whoever looked first found the same.
                let _ = self.takes_all.set(one.is_none());
            }
        }
        Ok(())
    }
}

const ADVICE: &str = "Nothing was taken";

/// Whether there is such a function. One that this login may not call is an error.
async fn may_call(session: &mut Session, function: &str) -> Result<Option<()>, StoreError> {
    let sql = "select has_function_privilege(to_regprocedure($1)::oid, 'execute'), current_user::text";
    let code = StoreCode::Rights;
    let (may_call, login): (Option<bool>, String) = match session.query(sql, params![TEXT function]).await {
        Ok(rows) => rows.first().map_or_else(Default::default, |row| (row.get(0), row.get(1))),
        // Whoever may not look into its schema may not call it.
        Err(error) if is_code(&error, &SqlState::INSUFFICIENT_PRIVILEGE) => {
            let why = format!("{}: the handler {function} cannot be called. {ADVICE}", describe(&error));
            return Err(StoreError::fatal(code, why));
        }
        Err(error) => return Err(store_error(error)),
    };
    match may_call {
        Some(false) => {
            let why = format!("{login} may not call the handler {function}: grant it EXECUTE. {ADVICE}");
            Err(StoreError::fatal(code, why))
        }
        found => Ok(found.map(drop)),
    }
}
