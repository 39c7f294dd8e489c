//! Whether a pooler in transaction mode lies between us and the server.
//!
//! Behind one that nobody has declared, a named statement may be another client's, session locks vanish and
//! notifications get lost. So a relay asks before it joins, and `doctor` asks too.

use crate::config::PostgresConfig;
use crate::connect::open;
use crate::error::store_error;
use posthaste::store::{StoreCode, StoreError};
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

/// A pooler gives connections of the server to whoever needs one, and not always the same ones.
const ROUNDS: usize = 3;

/// Refuses a pooler that was not declared. What cannot be found out in time is no refusal: joining will say
/// why.
pub(crate) async fn refuse_undeclared(config: &PostgresConfig) -> Result<(), StoreError> {
    if config.pooled {
        return Ok(());
    }
    match timeout(config.connect_timeout, is_pooled(config)).await {
        Ok(Ok(true)) => Err(StoreError::fatal(
            StoreCode::Pooler,
            "a pooler in transaction mode lies between, where session locks and named statements do not work. Set \
             `pooled = true`, or connect to the server itself",
        )),
        _ => Ok(()),
    }
}

/// It gives a connection of the server to whoever needs one: while a second client holds a transaction open,
/// the first one finds itself elsewhere, or the second one is where the first one was. A session lock that
/// vanished would prove the same, but with an idle pool it usually does not vanish.
pub(crate) async fn is_pooled(config: &PostgresConfig) -> Result<bool, StoreError> {
    let (first, second) = (open(config, None).await?, open(config, None).await?);
    for _ in 0..ROUNDS {
        let before = backend(&first.client).await?;
        second.client.batch_execute("begin").await.map_err(store_error)?;
        let other = backend(&second.client).await?;
        let after = backend(&first.client).await?;
        second.client.batch_execute("rollback").await.map_err(store_error)?;
        if before != after || other == before {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The simple protocol: a pooler may not know named statements.
async fn backend(client: &Client) -> Result<String, StoreError> {
    let answer = client.simple_query("select pg_backend_pid()").await.map_err(store_error)?;
    let pid = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    pid.ok_or_else(|| StoreError::broken(StoreCode::NoAnswer, "the server did not say who it is"))
}
