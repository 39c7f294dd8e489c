//! The SQLite store: one file, one host, several processes.
//!
//! Three kinds of connection. The [`Writer`] makes all changes of this process, many in one transaction. A
//! few [`Readers`] give pages and looks. The [`Watch`] sees what other processes commit. A relay's life is
//! told by its heart, a locked file ([`crate::log::heart`]), and by expiry.
//!
//! # Why the cursor is a number
//!
//! On PostgreSQL a number is drawn before its transaction commits, others commit in between, and a reader
//! that remembers the last number skips what comes late. Most of `posthaste::cursor` is about that. Here:
//!
//! 1. A number is drawn by an INSERT, and an INSERT needs the write lock, which one transaction holds until
//!    it ends. So whoever draws a number is the only writer from then to its commit.
//! 2. `AUTOINCREMENT` draws above the highest number that was ever committed. (A transaction that is rolled
//!    back gives its numbers back; nobody has seen them.)
//! 3. So transactions commit in the order of their numbers, and every snapshot shows a prefix of the log: if
//!    it shows number n, it shows every committed number below n, and whatever commits later is above.
//!
//! Therefore *everything up to the position is handled* is a complete description of a cursor, there are no
//! late rows, and nothing is skipped (G2). An INSERT that supplies a `seq` of its own breaks rule 2; there is
//! no right in SQLite that could forbid it, so `doctor` says it and the documentation does.

use crate::config::SqliteConfig;
use crate::connect::{canonical, check_wal, open_writer};
use crate::log::heart::Heart;
use crate::log::lease::LogLease;
use crate::migrate;
use crate::readers::Readers;
use crate::watch::Watch;
use crate::writer::Writer;
use async_trait::async_trait;
use posthaste::store::{HandAct, JoinPlan, LaneId, Lease, ProcessReport, Roll, Store, StoreError, Swept};
use rusqlite::Transaction;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The store.
pub struct SqliteStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: SqliteConfig,
    pub(crate) writer: Writer,
    pub(crate) readers: Readers,
    watch: Watch,
    heart: Mutex<Option<Heart>>,
    plan: Mutex<Option<Arc<JoinPlan>>>,
}

impl SqliteStore {
    /// Opens the database: it must be there, in WAL mode, with an outbox we understand.
    pub async fn connect(config: SqliteConfig) -> Result<Self, StoreError> {
        let opened = tokio::task::spawn_blocking(move || Inner::open(config)).await;
        let inner = opened.map_err(|error| StoreError::Transient {
            message: format!("the database could not be opened: {error}"),
            outcome_known: true,
        })??;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The writer, for whoever writes to the same file from this process: two writers would only queue for
    /// one lock.
    #[must_use]
    pub fn writer(&self) -> &Writer {
        &self.inner.writer
    }
}

impl Inner {
    fn open(config: SqliteConfig) -> Result<Self, StoreError> {
        let connection = open_writer(&config.path, config.synchronous)?;
        check_wal(&connection)?;
        migrate::check_version(&connection)?;
        let path = canonical(&config.path);
        Ok(Self {
            writer: Writer::on(connection),
            watch: Watch::start(&path, config.watch_interval)?,
            readers: Readers::new(path, config.readers_max),
            config,
            heart: Mutex::default(),
            plan: Mutex::default(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.readers.path()
    }

    pub(crate) fn plan(&self) -> Result<Arc<JoinPlan>, StoreError> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        plan.ok_or_else(|| transient("the relay has not joined yet"))
    }

    /// The name of this relay's heart, if it has one.
    pub(crate) fn heart(&self) -> Option<String> {
        let heart = self.heart.lock().unwrap_or_else(PoisonError::into_inner);
        heart.as_ref().map(|heart| heart.name.clone())
    }

    fn set_heart(&self, heart: Option<Heart>) {
        *self.heart.lock().unwrap_or_else(PoisonError::into_inner) = heart;
    }

    /// Writes, and lets the watch see it at once.
    pub(crate) async fn write<T, F>(&self, job: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let answer = self.writer.run(job).await;
        self.watch.look_now();
        answer
    }
}

pub(crate) fn transient(message: impl Into<String>) -> StoreError {
    StoreError::Transient { message: message.into(), outcome_known: true }
}

/// Counts that a lane became free: other processes' watches look at it.
pub(crate) fn note_freed(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.prepare_cached(include_str!("../../sql/log/freed.sql"))?.execute([])?;
    Ok(())
}

/// Writes down what a process says about itself.
pub(crate) fn write_report(tx: &Transaction<'_>, report: &ProcessReport) -> rusqlite::Result<()> {
    let ProcessReport { process, role, name, version, host, started_at, report } = report;
    let params =
        rusqlite::params![process, role, name, version, host, started_at.0, crate::clock::now(), report];
    tx.prepare_cached(include_str!("../../sql/consumer/report.sql"))?.execute(params)?;
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    async fn join(&self, plan: &JoinPlan) -> Result<(), StoreError> {
        let inner = &self.inner;
        let path = inner.path().to_owned();
        let started = tokio::task::spawn_blocking(move || Heart::start(&path)).await;
        let heart = started
            .map_err(|error| transient(error.to_string()))?
            .map_err(|error| transient(format!("no file can be made next to the database: {error}")))?;
        let name = heart.as_ref().map(|heart| heart.name.clone());
        let joining = plan.clone();
        inner.write(move |tx| crate::log::join::agree(tx, &joining, name.as_deref())).await?;
        *inner.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(plan.clone()));
        inner.set_heart(heart);
        Ok(())
    }

    async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        crate::log::roll::roll(&self.inner, held).await
    }

    async fn take(&self, lane: &LaneId) -> Result<Option<Arc<dyn Lease>>, StoreError> {
        let inner = &self.inner;
        let (plan, heart) = (inner.plan()?, inner.heart());
        let (id, path) = (lane.clone(), inner.path().to_owned());
        let asker = Arc::clone(&plan);
        let taken =
            inner.write(move |tx| crate::log::take::take(tx, &path, &id, &asker, heart.as_deref())).await?;
        // CRASH(sqlite.take.committed): the lane is ours by the table and nobody serves it. The heart's lock
        // is gone with the process, so the next relay takes it at once (G2).
        posthaste::crash_point!("sqlite.take.committed");
        Ok(taken.map(|taken| Arc::new(LogLease::new(Arc::clone(inner), &plan, taken)) as Arc<dyn Lease>))
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        crate::log::sweep::sweep(&self.inner).await
    }

    async fn doze(&self, at_most: Duration) -> Result<bool, StoreError> {
        self.inner.watch.doze(at_most);
        Ok(true)
    }

    async fn wakeup(&self) {
        self.inner.watch.hints.wakeups.notified().await;
    }

    async fn lanes_changed(&self) {
        self.inner.watch.hints.lane_changes.notified().await;
    }

    async fn taken_by_hand(&self, lane: &LaneId, epoch: i64) -> Result<Option<HandAct>, StoreError> {
        let lane = lane.clone();
        let look = move |tx: &Transaction<'_>| crate::log::roll::taken_by_hand(tx, &lane, epoch);
        self.inner.readers.read(move |tx| look(tx).map_err(crate::error::store_error)).await
    }

    async fn report(&self, report: &ProcessReport) -> Result<(), StoreError> {
        let report = report.clone();
        let written =
            move |tx: &Transaction<'_>| write_report(tx, &report).map_err(crate::error::store_error);
        self.inner.write(written).await
    }

    async fn leave(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let Ok(plan) = inner.plan() else { return Ok(()) };
        let relay = plan.relay.to_string();
        inner
            .write(move |tx| {
                let left = tx.execute("delete from posthaste_relays where relay = ?1", [&relay]);
                let report = "delete from posthaste_processes where process = ?1 and role = 'relay'";
                let left = left.and_then(|_| tx.execute(report, [&relay]));
                left.and_then(|_| note_freed(tx)).map_err(crate::error::store_error)
            })
            .await?;
        inner.set_heart(None);
        Ok(())
    }
}
