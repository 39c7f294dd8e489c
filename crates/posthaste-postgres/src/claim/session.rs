//! A connection to the database of an adopted table, with settings of its own.
//!
//! The table's owners do not know us. So a statement that waits for a lock gives up soon, one that runs long
//! is cut, and a transaction that we leave open ends by itself even if this process is stopped. `UTC` (or
//! what the layout says) makes columns without a time zone mean what their owners mean. Indexes go before
//! scans, because a table that was empty when it was analyzed has misleading statistics (F84).

use super::layout::Layout;
use crate::config::PostgresConfig;
use crate::connect::{Connection, open};
use crate::error::store_error;
use crate::session::{Param, SqlResult};
use futures_util::TryStreamExt;
use futures_util::future::join;
use posthaste::store::StoreError;
use rustc_hash::FxHashMap;
use std::pin::pin;
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

/// Longest wait for somebody's lock.
const LOCK_WAIT_MS: u32 = 2_000;
/// Longest statement.
const STATEMENT_MS: u32 = 15_000;
/// A transaction in which nothing happens for this long ends, and its row locks with it. That is longer than
/// a publish may take by default (10 s), and short enough that a stopped relay does not keep an application
/// waiting.
pub(super) const IDLE: Duration = Duration::from_secs(30);

/// One connection.
pub(super) struct ClaimSession {
    connection: Connection,
    statements: FxHashMap<String, Statement>,
    in_transaction: bool,
    answer_max: Duration,
}

impl ClaimSession {
    pub(super) async fn open(config: &PostgresConfig, layout: &Layout) -> Result<Self, StoreError> {
        Self::open_patient(config, layout, IDLE).await
    }

    /// The same, with another bound for transactions in which nothing happens.
    pub(super) async fn open_patient(
        config: &PostgresConfig,
        layout: &Layout,
        idle: Duration,
    ) -> Result<Self, StoreError> {
        let idle = idle.as_millis();
        let connection = open(config, None).await?;
        let zone = layout.time_zone.replace('\'', "''");
        let settings = format!(
            "set timezone = '{zone}'; set datestyle = 'ISO, YMD'; set standard_conforming_strings = on; \
             set synchronous_commit = on; set default_transaction_isolation = 'read committed'; \
             set lock_timeout = {LOCK_WAIT_MS}; set statement_timeout = {STATEMENT_MS}; \
             set idle_in_transaction_session_timeout = {idle}; \
             set enable_seqscan = off; set enable_bitmapscan = off; set max_parallel_workers_per_gather = 0; set jit = off; \
             set plan_cache_mode = force_custom_plan; \
             set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3"
        );
        let answer_max = Duration::from_millis(u64::from(STATEMENT_MS)) + config.connect_timeout;
        connection
            .within(Some(answer_max), connection.client.batch_execute(&settings))
            .await
            .map_err(store_error)?;
        Ok(Self { connection, statements: FxHashMap::default(), in_transaction: false, answer_max })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.client.is_closed()
    }

    pub(super) fn client(&self) -> &Client {
        &self.connection.client
    }

    pub(super) fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    pub(super) async fn query(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Vec<Row>> {
        let mut rows = Vec::new();
        self.each(None, sql, params, |row| {
            rows.push(row);
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Hands every row to `take` as it arrives, so that nobody has to hold all of them. `first` goes before
    /// the statement in the same round trip.
    pub(super) async fn each(
        &mut self,
        first: Option<&str>,
        sql: &str,
        params: &[Param<'_>],
        mut take: impl FnMut(Row) -> SqlResult<()>,
    ) -> SqlResult<()> {
        let statement = self.prepared(sql, params).await?;
        let client = &self.connection.client;
        let rows = async {
            let values = params.iter().map(|(value, _)| *value);
            let (before, rows) = join(self.before(first), client.query_raw(&statement, values)).await;
            before?;
            let mut rows = pin!(rows?);
            while let Some(row) = rows.try_next().await? {
                take(row)?;
            }
            Ok(())
        };
        self.connection.within(Some(self.answer_max), rows).await
    }

    /// How many rows a statement touched. `first` goes before it in the same round trip.
    pub(super) async fn execute(
        &mut self,
        first: Option<&str>,
        sql: &str,
        params: &[Param<'_>],
    ) -> SqlResult<u64> {
        let statement = self.prepared(sql, params).await?;
        let client = &self.connection.client;
        let touched = async {
            let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            let (before, touched) = join(self.before(first), client.execute(&statement, &values)).await;
            before?;
            touched
        };
        self.connection.within(Some(self.answer_max), touched).await
    }

    async fn before(&self, sql: Option<&str>) -> SqlResult<()> {
        match sql {
            Some(sql) => self.connection.client.batch_execute(sql).await,
            None => Ok(()),
        }
    }

    async fn prepared(&mut self, sql: &str, params: &[Param<'_>]) -> SqlResult<Statement> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        let prepared = self.connection.client.prepare_typed(sql, &types);
        let statement = self.connection.within(Some(self.answer_max), prepared).await?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(super) async fn batch(&mut self, sql: &str) -> SqlResult<()> {
        self.connection.within(Some(self.answer_max), self.connection.client.batch_execute(sql)).await
    }

    /// What has to go before the first statement of a transaction. `None` means that one is open. It counts
    /// as open from here on.
    pub(super) fn opening(&mut self) -> Option<&'static str> {
        let closed = !std::mem::replace(&mut self.in_transaction, true);
        closed.then_some("begin")
    }

    pub(super) async fn begin(&mut self) -> SqlResult<()> {
        if !self.in_transaction {
            self.batch("begin").await?;
            self.in_transaction = true;
        }
        Ok(())
    }

    pub(super) async fn commit(&mut self) -> SqlResult<()> {
        if self.in_transaction {
            self.batch("commit").await?;
            self.in_transaction = false;
        }
        Ok(())
    }

    pub(super) async fn rollback(&mut self) -> SqlResult<()> {
        if self.in_transaction {
            self.batch("rollback").await?;
            self.in_transaction = false;
        }
        Ok(())
    }
}
