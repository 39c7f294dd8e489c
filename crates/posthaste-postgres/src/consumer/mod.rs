//! The inbox on PostgreSQL: marks, handlers and outgoing events in one transaction.
//!
//! [`PostgresInbox`] is an [`InboxStore`]: a verb a file, the statements in `sql/consumer/`. `apply` runs
//! fresh messages, `aside` sets them aside, `redrive` brings a dead letter back, `due` runs what was
//! deferred, `partitions` takes and saves positions, `leases` shares plain logs, `sweep` cleans up. `run`
//! calls the handlers, `outside` asks those in other processes before, `failure` says whose fault it was.
//!
//! Handlers run in our transaction and we in their session. So nothing is set there but for the transaction,
//! and what our own statements need (short waits for locks, no plan that reads a whole table) is put back
//! before a handler runs. Refused: savepoints around handlers. More than 64 of them slow the whole server
//! down.

mod apply;
mod aside;
pub(crate) mod columns;
mod due;
mod due_outside;
pub(crate) mod failure;
mod leases;
mod outside;
mod partitions;
mod redrive;
mod run;
mod statements;
mod sweep;
pub(crate) mod trace;

pub use crate::handler::{CheckedHandler, Failed, Handler, OutsideHandler, SqlFunction, SqlHandler};
pub use crate::mapped::{self, InboxTables, TableMapping, TablePreset};

use crate::append::Outbox;
use crate::config::PostgresConfig;
use crate::log::store::check_server;
use crate::mapped::{Access, Mapped};
use crate::row::Micros;
use crate::session::{LentTransaction, Param, SentAhead, Session, Sessions, SqlResult};
use crate::{migrate, pooler};
use async_trait::async_trait;
use failure::{OwnError, inbox_error, store_failed};
use posthaste::consumer::Filter;
use posthaste::consumer::letter::DeadLetterTopic;
use posthaste::consumer::store::{
    ApplyError, Applying, ConsumerRetention, DeferOrBury, Deferring, DueHeads, DueOutcome, InboxError,
    InboxStore, InboxSwept, ProcessReport, SavedPosition, Saving, Taking, Witness, Work,
};
use posthaste::event::Timestamp;
use posthaste::source::{Delivery, Partition};
use posthaste::store::{StoreCode, StoreError};
use statements::Statements;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio_postgres::Row;
use trace::TraceStatus;

/// A connection for what is due, beside those of the transactions.
const CONNECTIONS_BESIDE: usize = 1;
/// For positions, housekeeping and looks. No handler is ever here.
const OWN_CONNECTIONS: usize = 1;
/// How much longer than its handlers a transaction may take. A frozen process holds nobody up for longer.
const SLACK: Duration = Duration::from_secs(5);
/// For a transaction without handlers.
const OWN_TIME_MAX: Duration = Duration::from_secs(10);

/// What an inbox is made with.
#[derive(Debug, Clone)]
pub struct InboxOptions {
    /// The consumer's name in the inbox, for ever.
    pub consumer: String,
    /// Transactions at once. There are two connections more.
    pub transactions_max: usize,
    /// Where the events of dead letters go.
    pub dead_letters: Option<DeadLetterTopic>,
    /// Its group at the broker, for mapped tables; its own name by default.
    pub group: Option<String>,
    /// Which tables are written.
    pub tables: InboxTables,
}

impl InboxOptions {
    /// The inbox of this consumer.
    #[must_use]
    pub fn new(consumer: impl Into<String>) -> Self {
        let (consumer, tables) = (consumer.into(), InboxTables::default());
        Self { consumer, transactions_max: 4, dead_letters: None, group: None, tables }
    }
}

/// Handlers, with what each of them takes. The first that takes a message gets it.
pub type Handlers = Vec<(Filter, Arc<dyn Handler>)>;

/// A consumer's inbox, with the handlers that run in its transactions.
pub struct PostgresInbox {
    sessions: Arc<Sessions>,
    /// Sessions that no handler sees, set to what our statements need.
    own: Arc<Sessions>,
    consumer: Arc<str>,
    handlers: Handlers,
    statements: Statements,
    mapped: Option<Mapped>,
    outbox: Outbox,
    dead_letters: Option<DeadLetterTopic>,
    has_outside: bool,
    askings: Arc<crate::handler::replies::Askings>,
    /// What the handler of a deferred message took in the last look, in nanoseconds; 0: not known.
    due_each: AtomicU64,
}

/// The inbox of one consumer with one handler for everything.
pub async fn inbox(
    config: PostgresConfig,
    consumer: &str,
    handler: impl Handler,
) -> Result<PostgresInbox, StoreError> {
    let handlers: Handlers = vec![(Filter::default(), Arc::new(handler))];
    PostgresInbox::connect(config, InboxOptions::new(consumer), handlers).await
}

impl PostgresInbox {
    /// Connects once to see that the database is there, is a primary, and has an inbox that we understand.
    pub async fn connect(
        config: PostgresConfig,
        options: InboxOptions,
        handlers: Handlers,
    ) -> Result<Self, StoreError> {
        pooler::refuse_undeclared(&config).await?;
        let is_by_app = options.tables == InboxTables::MarkedByApp;
        if is_by_app && handlers.iter().any(|(_, handler)| handler.outside().is_none()) {
            let why = "the application keeps the marks, so all handlers must be the application's: one of them runs here";
            return Err(StoreError::fatal(StoreCode::SchemaOther, why));
        }
        let connections_max = options.transactions_max + CONNECTIONS_BESIDE;
        let outbox = Outbox::new(&config.schema);
        let unnamed = options.tables.mapping().is_some() || is_by_app;
        let own = PostgresConfig { connections_max: OWN_CONNECTIONS, ..config.clone() };
        let own = Sessions::with_settings(own, OWN_SESSION, unnamed);
        // There is one of them. A server that is silent while it is opened would hold up every save.
        own.answer_within(OWN_TIME_MAX + SLACK);
        let sessions = Sessions::plain(PostgresConfig { connections_max, ..config }, unnamed);
        let mut session = sessions.session().await?;
        session.answer_within(sessions.config().connect_timeout * 2);
        check_server(&mut session).await?;
        migrate::check_version(&mut session, &sessions).await?;
        for function in handlers.iter().filter_map(|(_, handler)| handler.function()) {
            function.find(&mut session).await?;
        }
        let names = (&*options.consumer, options.group.as_deref().unwrap_or(&options.consumer));
        let mapped = mapped::open(&mut session, &sessions, &options.tables, names, Access::Consumer).await?;
        if let Some(mapped) = &mapped {
            mapped::reserve(&mut session, &sessions, mapped, &options.consumer).await?;
        }
        drop(session);
        let statements = Statements::of(mapped.as_ref(), &sessions);
        let (consumer, dead_letters) = (options.consumer.into(), options.dead_letters);
        let due_each = AtomicU64::new(0);
        let has_outside = handlers.iter().any(|(_, handler)| handler.outside().is_some());
        Ok(Self {
            sessions,
            own,
            consumer,
            handlers,
            statements,
            mapped,
            outbox,
            dead_letters,
            has_outside,
            askings: Arc::default(),
            due_each,
        })
    }

    fn handler(&self, delivery: &Delivery) -> Option<usize> {
        self.handlers.iter().position(|(filter, _)| filter.takes_delivery(delivery))
    }

    async fn session(&self) -> Result<Session, InboxError> {
        self.sessions.session().await.map_err(store_failed)
    }
}

/// What our own statements need in a transaction, and what bounds it.
///
/// Commits must be durable (F7): `synchronous_commit` is raised where it is off or local and left alone
/// elsewhere, for `on` is less than `remote_apply`. A role that a handler left behind in the session is not
/// ours. The answer is which process of the server it is.
fn settings(time_max: Duration) -> String {
    let ms = (time_max + SLACK).as_millis().min(i32::MAX as u128);
    format!(
        "set local role to default; set local statement_timeout = {ms}; \
         set local idle_in_transaction_session_timeout = {ms}; {OURS}; \
         select pg_backend_pid(), case when current_setting('synchronous_commit') in ('off', 'local') \
         then set_config('synchronous_commit', 'on', true) end"
    )
}

/// The same for a session that is ours alone.
const OWN_SESSION: &str = "set lock_timeout = '1s'; set enable_seqscan = off; set enable_bitmapscan = off; set jit = off; \
     set statement_timeout = '15s'; set idle_in_transaction_session_timeout = '15s'; \
     select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') in ('off', 'local')";

/// Short waits, and no plan that reads a whole table because it was empty once (F84).
const OURS: &str = "set local lock_timeout = '1s'; set local enable_seqscan = off; set local enable_bitmapscan = off; \
     set local jit = off";
/// The same put back, for handlers.
const THEIRS: &str = "set local lock_timeout to default; set local enable_seqscan to default; \
                      set local enable_bitmapscan to default; set local jit to default";

/// How a transaction of ours ends.
enum End {
    Commit,
    Rollback,
}

impl PostgresInbox {
    /// A transaction of ours, without handlers, beside those with handlers.
    async fn transact<T>(
        &self,
        body: impl AsyncFnOnce(&mut LentTransaction<'_>) -> Result<(T, End), OwnError>,
    ) -> Result<T, InboxError> {
        transact_in(&self.sessions, body).await
    }

    /// One of those of which one is under way at a time. While nothing happens, these are all that there is.
    async fn transact_alone<T>(
        &self,
        body: impl AsyncFnOnce(&mut LentTransaction<'_>) -> Result<(T, End), OwnError>,
    ) -> Result<T, InboxError> {
        transact_in(&self.own, body).await
    }

    /// One statement of ours that only reads.
    async fn look(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, InboxError> {
        if !self.own.is_set() {
            return self.transact_alone(async |tx| Ok((tx.query(sql, params).await?, End::Commit))).await;
        }
        let mut session = self.own.session().await.map_err(store_failed)?;
        session.answer_within(OWN_TIME_MAX + SLACK);
        session.query(sql, params).await.map_err(inbox_error)
    }
}

async fn transact_in<T>(
    sessions: &Arc<Sessions>,
    body: impl AsyncFnOnce(&mut LentTransaction<'_>) -> Result<(T, End), OwnError>,
) -> Result<T, InboxError> {
    let mut session = sessions.session().await.map_err(store_failed)?;
    let mut tx = session.lend(OWN_TIME_MAX + SLACK).await.map_err(inbox_error)?;
    let begun = if sessions.is_set() { Ok(()) } else { tx.begin_ours(OWN_TIME_MAX).await };
    let done = match begun {
        Ok(()) => body(&mut tx).await,
        Err(error) => Err(error.into()),
    };
    match done {
        Ok((answer, End::Commit)) => tx.commit().await.map_err(inbox_error).map(|()| answer),
        Ok((answer, End::Rollback)) => {
            tx.rollback().await;
            Ok(answer)
        }
        Err(OwnError(error)) => {
            tx.rollback().await;
            Err(error)
        }
    }
}

impl LentTransaction<'_> {
    /// Sets what our own statements need.
    async fn begin_ours(&mut self, time_max: Duration) -> SqlResult<()> {
        let sent = self.send(&settings(time_max)).await?;
        self.hear_settings(sent).await
    }

    /// The answer to [`settings`] that were sent ahead.
    async fn hear_settings(&mut self, sent: SentAhead) -> SqlResult<()> {
        let said = self.answer(sent).await?;
        self.backend = said.and_then(|backend| backend.parse().ok());
        Ok(())
    }
}

/// Which life of the database a row comes from.
fn witness(row: &Row) -> Witness {
    Witness(Some(Timestamp(row.get::<_, Micros>("witness").0)))
}

#[async_trait]
impl InboxStore for PostgresInbox {
    fn takes(&self, delivery: &Delivery) -> bool {
        self.handler(delivery).is_some()
    }

    async fn take(&self, partitions: &[Partition], member: &str) -> Result<Taking, InboxError> {
        self.take_partitions(partitions, member).await
    }

    async fn apply(
        &self,
        witness: Option<Witness>,
        batch: &[Work],
        handler_timeout: Duration,
    ) -> Result<Applying, ApplyError> {
        self.apply_batch(witness, batch, handler_timeout).await
    }

    async fn defer(
        &self,
        witness: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        self.set_aside(witness, key, how).await
    }

    async fn apply_deferred(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
        self.apply_due(heads).await
    }

    fn traces_skipped(&self) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.mapping.traceability.is_some())
    }

    async fn trace_skipped(&self, skipped: &[Work]) -> Result<(), InboxError> {
        let works: Vec<&Work> = skipped.iter().collect();
        self.transact(async |tx| Ok((self.traced(tx, &works, TraceStatus::Skipped).await?, End::Commit)))
            .await
    }

    async fn save(
        &self,
        member: &str,
        witness: Witness,
        positions: &[SavedPosition],
        report: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError> {
        self.save_positions(member, witness, positions, report).await
    }

    async fn sweep(&self, retention: ConsumerRetention, deferred_max: u64) -> Result<InboxSwept, InboxError> {
        self.clean_up(retention, deferred_max).await
    }
}
