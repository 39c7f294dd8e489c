//! Statements over a small pool of connections, named where the connection is ours and unnamed behind a
//! pooler in transaction mode.
//!
//! SQL lives in `sql/`, written for the schema `posthaste`; [`Sessions::sql`] puts the configured
//! name in. The pool is our own few lines because every connect must read the password file again.

use crate::config::PostgresConfig;
use crate::connect::{Connection, open};
use crate::error::store_error;
use futures_util::TryStreamExt;
use posthaste::store::{StoreCode, StoreError};
use rustc_hash::FxHashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};

/// What a statement answers.
pub(crate) type SqlResult<T> = Result<T, tokio_postgres::Error>;

/// A parameter and its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// What a direct connection is set to. Commits must be durable whatever the database's default (F7);
/// and a read of the log must walk its index in order: a plan that sorts is never right.
const SESSION: &str = "set synchronous_commit = on; set enable_seqscan = off; set enable_bitmapscan = off; \
                       set enable_sort = off; set max_parallel_workers_per_gather = 0; set jit = off; \
                       set default_transaction_isolation = 'read committed'; set idle_in_transaction_session_timeout = '10s'; \
                       set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3; \
                       set plan_cache_mode = force_generic_plan";

/// The same within a transaction behind a pooler.
const SESSION_LOCAL: &str = "set local synchronous_commit = on; set local enable_seqscan = off; \
                             set local enable_bitmapscan = off; set local enable_sort = off; \
                             set local max_parallel_workers_per_gather = 0; set local jit = off; \
                             set local idle_in_transaction_session_timeout = '10s'";

/// The pool.
pub(crate) struct Sessions {
    config: PostgresConfig,
    quoted: String,
    idle: Mutex<Vec<OpenConnection>>,
    room: Arc<Semaphore>,
    /// Longest wait for an answer in milliseconds; 0: however long it takes.
    answer_max_ms: AtomicU64,
}

struct OpenConnection {
    connection: Connection,
    statements: FxHashMap<String, Statement>,
}

/// A connection in hand.
pub(crate) struct Session {
    live: Option<OpenConnection>,
    /// In a transaction. Dropped in this state (its task was aborted), the connection is not used again.
    in_transaction: bool,
    /// Longest wait for an answer; `None`: however long it takes.
    answer_max: Option<Duration>,
    sessions: Arc<Sessions>,
    _permit: OwnedSemaphorePermit,
}

impl Sessions {
    pub(crate) fn new(config: PostgresConfig) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(config.connections_max.max(2)));
        let quoted = quote(&config.schema);
        Arc::new(Self { config, quoted, idle: Mutex::default(), room, answer_max_ms: AtomicU64::new(0) })
    }

    /// From now on a session that waits longer than this for an answer loses its connection. Tools, whose
    /// statements may take long, set none.
    pub(crate) fn answer_within(&self, limit: Duration) {
        self.answer_max_ms.store(limit.as_millis() as u64, Ordering::Relaxed);
    }

    fn answer_max(&self) -> Option<Duration> {
        let limit = self.answer_max_ms.load(Ordering::Relaxed);
        (limit > 0).then(|| Duration::from_millis(limit))
    }

    pub(crate) fn config(&self) -> &PostgresConfig {
        &self.config
    }

    /// Puts the schema's name into a statement.
    pub(crate) fn sql(&self, text: &str) -> String {
        text.replace("posthaste.", &format!("{}.", self.quoted))
    }

    /// A connection, an idle one if there is any.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Session, StoreError> {
        let closed = |_| StoreError::broken(StoreCode::Closed, "the store is closed");
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(closed)?;
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(live) if live.connection.client.is_closed() => {}
                Some(live) => {
                    return Ok(Session {
                        live: Some(live),
                        in_transaction: false,
                        answer_max: self.answer_max(),
                        sessions: Arc::clone(self),
                        _permit: permit,
                    });
                }
                None => break,
            }
        }
        let connection = open(&self.config, None).await?;
        if !self.config.pooled {
            let set = connection.client.batch_execute(SESSION);
            connection.within(self.answer_max(), set).await.map_err(store_error)?;
        }
        let live = OpenConnection { connection, statements: FxHashMap::default() };
        Ok(Session {
            live: Some(live),
            in_transaction: false,
            answer_max: self.answer_max(),
            sessions: Arc::clone(self),
            _permit: permit,
        })
    }
}

/// Quotes an identifier.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Session {
    fn live(&mut self) -> &mut OpenConnection {
        // Invariant: `live` is only taken in Drop.
        self.live.as_mut().expect("a session has its connection until it is dropped")
    }

    /// Another bound for this session alone.
    pub(crate) fn answer_within(&mut self, limit: Duration) {
        self.answer_max = Some(limit);
    }

    pub(crate) fn client(&mut self) -> &tokio_postgres::Client {
        &self.live().connection.client
    }

    /// Runs one statement.
    pub(crate) async fn query(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        if self.sessions.config.pooled {
            return self.query_unnamed(sql, params).await;
        }
        let statement = self.statement(sql, params).await?;
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        let limit = self.answer_max;
        let connection = &self.live().connection;
        connection.within(limit, connection.client.query(&statement, &values)).await
    }

    /// Runs one statement like [`Session::query_alone`], and hands each row over while the server still
    /// sends: nothing but what is made of them is kept. A statement that will not come again soon is not
    /// `lasting`, and not kept prepared.
    pub(crate) async fn each(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        lasting: bool,
        on_row: impl FnMut(&Row) -> SqlResult<()>,
    ) -> SqlResult<()> {
        if !self.sessions.config.pooled || self.in_transaction {
            return self.each_here(sql, params, lasting, on_row).await;
        }
        self.begin().await?;
        match self.each_here(sql, params, lasting, on_row).await {
            Ok(()) => self.commit().await,
            Err(error) => {
                self.rollback().await;
                Err(error)
            }
        }
    }

    async fn each_here(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        lasting: bool,
        mut on_row: impl FnMut(&Row) -> SqlResult<()>,
    ) -> SqlResult<()> {
        let statement = match lasting && !self.sessions.config.pooled {
            true => Some(self.statement(sql, params).await?),
            false => None,
        };
        let limit = self.answer_max;
        let connection = &self.live().connection;
        let call = async {
            let rows = match &statement {
                Some(statement) => {
                    connection.client.query_raw(statement, params.iter().map(|(value, _)| *value)).await?
                }
                None => {
                    let typed = params.iter().map(|(value, kind)| (*value, kind.clone()));
                    connection.client.query_typed_raw(sql, typed).await?
                }
            };
            let mut rows = pin!(rows);
            while let Some(row) = rows.try_next().await? {
                on_row(&row)?;
            }
            Ok(())
        };
        connection.within(limit, call).await
    }

    async fn query_unnamed(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        let limit = self.answer_max;
        let connection = &self.live().connection;
        connection.within(limit, connection.client.query_typed(sql, params)).await
    }

    /// Runs statements without parameters.
    pub(crate) async fn batch(&mut self, sql: &str) -> SqlResult<()> {
        let limit = self.answer_max;
        let connection = &self.live().connection;
        connection.within(limit, connection.client.batch_execute(sql)).await
    }

    async fn statement(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Statement> {
        if let Some(statement) = self.live().statements.get(sql) {
            return Ok(statement.clone());
        }
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        let limit = self.answer_max;
        let connection = &self.live().connection;
        let statement = connection.within(limit, connection.client.prepare_typed(sql, &types)).await?;
        self.live().statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Begins a transaction with our settings.
    pub(crate) async fn begin(&mut self) -> SqlResult<()> {
        self.in_transaction = true;
        if self.sessions.config.pooled {
            self.batch(&format!("begin isolation level read committed; {SESSION_LOCAL}")).await
        } else {
            self.batch("begin").await
        }
    }

    /// Runs one statement with our settings: by itself, behind a pooler in a transaction of its own, or in
    /// the transaction that is open.
    pub(crate) async fn query_alone(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        if !self.sessions.config.pooled || self.in_transaction {
            return self.query(sql, params).await;
        }
        self.begin().await?;
        let result = self.query(sql, params).await;
        match result {
            Ok(rows) => {
                self.commit().await?;
                Ok(rows)
            }
            Err(error) => {
                self.rollback().await;
                Err(error)
            }
        }
    }

    pub(crate) async fn commit(&mut self) -> SqlResult<()> {
        self.batch("commit").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Ends a transaction that failed. If that fails too, the connection is not used again.
    pub(crate) async fn rollback(&mut self) {
        self.in_transaction = self.batch("rollback").await.is_err();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(live) = self.live.take() else { return };
        let mut idle = self.sessions.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if live.connection.client.is_closed() {
            // What ended it, or kept it silent for too long, has done so to those that rest, too. Each of
            // them would be waited for as long again, one after the other (G7); a new connection is quick.
            let others = std::mem::take(&mut *idle);
            drop(idle);
            drop(others);
        } else if !self.in_transaction {
            idle.push(live);
        }
    }
}
