//! Statements over a small pool of connections, named where the connection is ours and unnamed behind a
//! pooler in transaction mode.
//!
//! SQL lives in `sql/`, written for the schema `posthaste`; [`Sessions::sql`] puts the configured
//! name in. The pool is our own few lines because every connect must read the password file again.

use crate::config::PostgresConfig;
use crate::connect::{Connection, open, within};
use crate::error::store_error;
use futures_util::TryStreamExt;
use posthaste::store::{StoreCode, StoreError};
use posthaste::task::Task;
use rustc_hash::FxHashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row, SimpleQueryMessage, SimpleQueryStream, Statement, Transaction};

/// What a statement answers.
pub(crate) type SqlResult<T> = Result<T, tokio_postgres::Error>;

/// A parameter and its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Parameters, each behind the name of its type: `params![TEXT consumer, INT8 seq]`.
macro_rules! params {
    ($($kind:ident $value:expr),* $(,)?) => {
        &[$((&$value as &(dyn tokio_postgres::types::ToSql + Sync), tokio_postgres::types::Type::$kind)),*]
    };
}
pub(crate) use params;

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

/// How long a transaction that failed may take to end. A handler that was given up may have left a statement
/// running: then the connection goes, and the server ends the statement by its timeout.
const ROLLBACK_MAX: Duration = Duration::from_secs(1);

/// The pool.
pub(crate) struct Sessions {
    config: PostgresConfig,
    /// What a direct connection is set to.
    settings: &'static str,
    unnamed: bool,
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
    pub(crate) fn new(mut config: PostgresConfig) -> Arc<Self> {
        config.connections_max = config.connections_max.max(2);
        Self::with_settings(config, SESSION, false)
    }

    /// A pool whose sessions are as the database gives them: the handlers of a service live there. `unnamed`:
    /// statements of lent transactions are planned each time, as behind a pooler.
    pub(crate) fn plain(config: PostgresConfig, unnamed: bool) -> Arc<Self> {
        Self::with_settings(config, "", unnamed)
    }

    /// A pool whose sessions are set to this once, if the connections are ours alone.
    pub(crate) fn with_settings(config: PostgresConfig, settings: &'static str, unnamed: bool) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(config.connections_max.max(1)));
        let quoted = quote(&config.schema);
        let (idle, answer_max_ms) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { config, settings, unnamed, quoted, idle, room, answer_max_ms })
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

    /// Whether each session has its settings from the beginning.
    pub(crate) fn is_set(&self) -> bool {
        !self.config.pooled && !self.settings.is_empty()
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
        if self.is_set() {
            let set = connection.client.batch_execute(self.settings);
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

    /// The connection, for questions of others, and how long an answer of it is waited for.
    pub(crate) fn bounded(&mut self) -> (&Connection, Option<Duration>) {
        let longest = self.answer_max;
        (&self.live().connection, longest)
    }

    pub(crate) fn client(&mut self) -> &tokio_postgres::Client {
        &self.live().connection.client
    }

    /// Runs one statement.
    pub(crate) async fn query(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        if self.sessions.config.pooled {
            return self.query_once(sql, params).await;
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

    /// Runs one statement that is planned for this time alone.
    pub(crate) async fn query_once(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        let limit = self.answer_max;
        let connection = &self.live().connection;
        connection.within(limit, connection.client.query_typed(sql, params)).await
    }

    /// Runs one statement with our settings, like [`Session::query_alone`], planned for this time alone: what
    /// touches a table that is empty on most days and full on the day of an outage (F84).
    pub(crate) async fn query_anew(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        match self.sessions.config.pooled {
            true => self.query_alone(sql, params).await,
            false => self.query_once(sql, params).await,
        }
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

    /// Begins a transaction that can be lent to a handler. What waits for an answer in it for longer than
    /// `answer_max` loses the connection.
    pub(crate) async fn lend(&mut self, answer_max: Duration) -> SqlResult<LentTransaction<'_>> {
        self.in_transaction = true;
        let unnamed = self.sessions.config.pooled || self.sessions.unnamed;
        // Invariant: `live` is only taken in Drop.
        let live = self.live.as_mut().expect("a session has its connection until it is dropped");
        let (client, driver) = live.connection.parts();
        let begin = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start();
        let tx = within(driver, Some(answer_max), begin).await?;
        let (statements, in_transaction) = (&mut live.statements, &mut self.in_transaction);
        let (backend, is_spoilt) = (None, false);
        Ok(LentTransaction {
            tx,
            driver,
            statements,
            in_transaction,
            unnamed,
            answer_max,
            backend,
            is_spoilt,
        })
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

/// A transaction whose [`Transaction`] handlers get. Its connection is used again only if it ended in order.
pub(crate) struct LentTransaction<'a> {
    pub(crate) tx: Transaction<'a>,
    driver: &'a Task<()>,
    statements: &'a mut FxHashMap<String, Statement>,
    in_transaction: &'a mut bool,
    unnamed: bool,
    answer_max: Duration,
    /// The process of the server that this transaction runs in, as it said itself: a pooler's client has
    /// another one each time.
    pub(crate) backend: Option<i32>,
    /// A handler left a session behind in which our statements do not work.
    is_spoilt: bool,
}

impl LentTransaction<'_> {
    /// Runs one statement of ours.
    pub(crate) async fn query(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        let answer = self.try_query(sql, params).await;
        self.note_spoilt(answer)
    }

    fn note_spoilt<T>(&mut self, answer: SqlResult<T>) -> SqlResult<T> {
        if let Err(error) = &answer {
            let spoilt = [SqlState::READ_ONLY_SQL_TRANSACTION, SqlState::INVALID_SQL_STATEMENT_NAME];
            self.is_spoilt |= error.code().is_some_and(|code| spoilt.contains(code));
        }
        answer
    }

    /// Runs one statement of ours that is planned for this time alone (F84).
    pub(crate) async fn query_anew(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        let answer = within(self.driver, Some(self.answer_max), self.tx.query_typed(sql, params)).await;
        self.note_spoilt(answer)
    }

    async fn try_query(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        let limit = Some(self.answer_max);
        if self.unnamed {
            return within(self.driver, limit, self.tx.query_typed(sql, params)).await;
        }
        if !self.statements.contains_key(sql) {
            let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
            let statement = within(self.driver, limit, self.tx.prepare_typed(sql, &types)).await?;
            self.statements.insert(sql.to_owned(), statement);
        }
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        within(self.driver, limit, self.tx.query(&self.statements[sql], &values)).await
    }

    /// Sends statements without parameters and does not wait for their answer.
    pub(crate) async fn send(&self, sql: &str) -> SqlResult<SentAhead> {
        Ok(SentAhead(Box::pin(self.tx.client().simple_query_raw(sql).await?)))
    }

    /// The text that what was sent ahead has answered with, if with any.
    pub(crate) async fn answer(&self, sent: SentAhead) -> SqlResult<Option<String>> {
        within(self.driver, Some(self.answer_max), sent.text()).await
    }

    pub(crate) async fn commit(self) -> SqlResult<()> {
        let ended = within(self.driver, Some(self.answer_max), self.tx.commit()).await;
        // An answer of the server, also one that refuses, ends the transaction.
        *self.in_transaction = ended.as_ref().is_err_and(|error| error.as_db_error().is_none());
        ended
    }

    /// Commits, and asks something just before, in one round trip.
    pub(crate) async fn commit_after(self, question: &str) -> (SqlResult<Option<String>>, SqlResult<()>) {
        let sent = match self.send(question).await {
            Ok(sent) => sent,
            Err(error) => return (Err(error), self.commit().await),
        };
        let ended = self.commit().await;
        (sent.text().await, ended)
    }

    /// Ends a transaction that failed. What does not answer soon loses its connection.
    pub(crate) async fn rollback(self) {
        let ended = within(self.driver, Some(ROLLBACK_MAX), self.tx.rollback()).await;
        *self.in_transaction = ended.is_err() || self.is_spoilt;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.tx.client().is_closed()
    }
}

/// Statements that are under way.
pub(crate) struct SentAhead(Pin<Box<SimpleQueryStream>>);

impl SentAhead {
    async fn text(mut self) -> SqlResult<Option<String>> {
        let mut text = None;
        while let Some(message) = self.0.try_next().await? {
            if let SimpleQueryMessage::Row(row) = message {
                text = row.get(0).map(str::to_owned);
            }
        }
        Ok(text)
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
