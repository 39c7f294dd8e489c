//! The writer: one thread, one connection, many jobs in one transaction.
//!
//! SQLite lets one transaction write at a time, and a durable commit costs a sync of the disk whatever is in
//! it. So all that a process writes goes through one thread. It takes the first job, begins, then takes
//! whatever else is waiting, and commits once: **group commit**. While it commits, the next jobs gather. A
//! lone job waits for nobody.
//!
//! Each job runs under a savepoint of its own. A job that fails, or panics, is rolled back to there, and
//! costs the others nothing. Answers come after the commit, never before: whoever hears `Ok` has it on the
//! disk (with [`Synchronous::Full`]).
//!
//! Bounds (G7): the channel, the jobs and the time of one transaction, the wait for the write lock. A caller
//! waits for room in the channel; that is the backpressure.
//!
//! ```no_run
//! # async fn example() -> Result<(), posthaste_sqlite::writer::WriteError> {
//! use posthaste_sqlite::writer::{WriteError, Writer};
//! let writer = Writer::open("orders.db".as_ref(), Default::default())?;
//! let pay = "update orders set state = 'paid' where id = ?1";
//! let changed = writer.run(|tx| tx.execute(pay, [42]).map_err(WriteError::from)).await?;
//! # Ok(()) }
//! ```
//!
//! Refused: a pool of writing connections. They would only queue for the same lock, by polling, and each
//! would pay for its own sync.

use crate::connect::{self, Synchronous};
use crate::error::judge;
use posthaste::crash_point;
use posthaste::store::{StoreCode, StoreError};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// Jobs that may wait. Some seconds of settlements; beyond that, callers wait for room.
const QUEUE: usize = 256;

/// Jobs of one transaction, and how long it may take jobs in: the write lock is not ours alone.
const GROUP_JOBS_MAX: usize = 128;
const GROUP_TIME_MAX: Duration = Duration::from_millis(50);

/// After this long with hardly a gap, the lock is left alone for a moment. Other processes ask for it every
/// few milliseconds, and would never find it free.
const BUSY_TURN: Duration = Duration::from_millis(40);
const COURTESY: Duration = Duration::from_millis(6);

/// Why a job was not applied, or may not have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The database failed. [`StoreError::is_outcome_known`] says whether it is certain that nothing was
    /// applied.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The job panicked. Nothing of it was applied.
    #[error("a job of the writer panicked: {0}. Nothing of it was applied")]
    Panicked(String),
    /// The writer has ended.
    #[error("the writer has ended; nothing was applied")]
    Closed,
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(judge(&error, true))
    }
}

impl From<crate::AppendError> for WriteError {
    fn from(error: crate::AppendError) -> Self {
        match error {
            crate::AppendError::Database(error) => error.into(),
            refused => Self::Store(StoreError::fatal(StoreCode::Event, refused.to_string())),
        }
    }
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Store(error) => error,
            other => Self::Transient { message: other.to_string(), outcome_known: true },
        }
    }
}

/// A handle to the thread. Cheap to clone; the thread ends when the last handle is gone.
#[derive(Clone)]
pub struct Writer {
    jobs: mpsc::Sender<Errand>,
    commits: watch::Receiver<u64>,
    /// Closed by the thread when it has ended and its connection is closed.
    ended: Arc<tokio::sync::Mutex<Option<oneshot::Receiver<()>>>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("commits", &*self.commits.borrow()).finish_non_exhaustive()
    }
}

impl Writer {
    /// Opens an existing database and starts the thread.
    pub fn open(path: &Path, synchronous: Synchronous) -> Result<Self, WriteError> {
        Ok(Self::on(connect::open_writer(path, synchronous)?))
    }

    /// The same on a connection of the caller's. It must not be inside a transaction.
    #[must_use]
    pub fn on(connection: Connection) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (committed, commits) = watch::channel(0);
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("posthaste-sqlite".to_owned());
        let started = thread.spawn(move || {
            serve(connection, queue, &committed);
            drop(end);
        });
        if let Err(error) = started {
            // The queue is dropped with the closure: every job is answered with `Closed`.
            tracing::error!(%error, "the writer's thread could not be started");
        }
        Self { jobs, commits, ended: Arc::new(tokio::sync::Mutex::new(Some(ended))) }
    }

    /// Runs a job in a transaction and answers when it is committed. What the job answers with an error is
    /// rolled back as a whole. The job must not commit or roll back by itself, and should be short: everybody
    /// waits for it.
    ///
    /// If the answer is dropped, the job is done all the same.
    pub async fn run<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<WriteError> + Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    {
        let (task, answer) = Task::new(job);
        if self.jobs.send(Errand::Job(Box::new(task))).await.is_err() {
            return Err(WriteError::Closed.into());
        }
        answer.await.unwrap_or_else(|_| Err(lost().into()))
    }

    /// The same for a thread outside of any runtime.
    pub fn run_blocking<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<WriteError> + Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    {
        let (task, answer) = Task::new(job);
        if self.jobs.blocking_send(Errand::Job(Box::new(task))).is_err() {
            return Err(WriteError::Closed.into());
        }
        answer.blocking_recv().unwrap_or_else(|_| Err(lost().into()))
    }

    /// Lends the connection to work that makes transactions of its own, with nobody else's jobs in them. It
    /// must leave none open.
    pub(crate) async fn alone<T, F>(&self, work: F) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> T + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let work = move |connection: &mut Connection| {
            let done = catch_unwind(AssertUnwindSafe(|| work(connection)));
            // Nobody waits for it any more: that is the caller's affair.
            let _ = reply.send(done.map_err(|panic| WriteError::Panicked(words(&*panic))));
        };
        self.jobs.send(Errand::Alone(Box::new(work))).await.map_err(|_| WriteError::Closed)?;
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Counts this writer's commits: a hint for whoever reads what it writes. Other processes' commits are
    /// not in it.
    #[must_use]
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.clone()
    }

    /// Lets go of this handle and, if it was the last one, waits until everything is written and the
    /// connection is closed.
    pub async fn close(self) {
        let Self { jobs, ended, .. } = self;
        drop(jobs);
        let Some(ended) = Arc::into_inner(ended) else { return };
        if let Some(ended) = ended.into_inner() {
            // An error means that the sender is gone: the thread has ended.
            let _ = ended.await;
        }
    }
}

/// The thread died with the job in its hands.
fn lost() -> WriteError {
    WriteError::Store(StoreError::Transient {
        message: "the writer ended before it answered; nobody knows whether this was applied".to_owned(),
        outcome_known: false,
    })
}

/// What the thread is asked for.
enum Errand {
    /// A job of a group's transaction.
    Job(Box<dyn Job>),
    /// The connection, for itself.
    Alone(Box<dyn FnOnce(&mut Connection) + Send>),
}

/// A job with its answer, without their types.
trait Job: Send {
    /// Does the work. `false`: roll it back.
    fn run(&mut self, tx: &Transaction<'_>) -> bool;
    /// Answers, after the group has ended.
    fn answer(self: Box<Self>, group: Result<(), WriteError>);
}

struct Task<T, E, F> {
    job: Option<F>,
    outcome: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T, E, F> Task<T, E, F> {
    fn new(job: F) -> (Self, oneshot::Receiver<Result<T, E>>) {
        let (reply, answer) = oneshot::channel();
        (Self { job: Some(job), outcome: None, reply }, answer)
    }
}

impl<T, E, F> Job for Task<T, E, F>
where
    T: Send + 'static,
    E: From<WriteError> + Send + 'static,
    F: FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
{
    fn run(&mut self, tx: &Transaction<'_>) -> bool {
        let Some(job) = self.job.take() else { return false };
        // A panic in a job must not end the thread that everybody writes through (F68).
        let outcome = catch_unwind(AssertUnwindSafe(|| job(tx)));
        let outcome = outcome.unwrap_or_else(|panic| Err(WriteError::Panicked(words(&*panic)).into()));
        let good = outcome.is_ok();
        self.outcome = Some(outcome);
        good
    }

    fn answer(self: Box<Self>, group: Result<(), WriteError>) {
        let outcome = match (self.outcome, group) {
            // Its own error says more than what became of the others.
            (Some(Err(error)), _) => Err(error),
            (_, Err(error)) => Err(error.into()),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(WriteError::Closed.into()),
        };
        // Nobody waits for it any more: that is the caller's affair.
        let _ = self.reply.send(outcome);
    }
}

pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".to_owned())
}

/// The thread's loop: a group at a time, until every handle is gone.
fn serve(mut connection: Connection, mut queue: mpsc::Receiver<Errand>, committed: &watch::Sender<u64>) {
    let mut turn = Instant::now();
    let mut next = None;
    while let Some(errand) = next.take().or_else(|| queue.blocking_recv()) {
        let began = Instant::now();
        match errand {
            Errand::Job(first) => {
                next = serve_group(&mut connection, &mut queue, first, committed);
            }
            Errand::Alone(work) => {
                work(&mut connection);
                committed.send_modify(|count| *count += 1);
            }
        }
        let is_idle = next.is_none() && queue.is_empty();
        if began.duration_since(turn) > BUSY_TURN && !is_idle {
            // pace: others get the lock.
            std::thread::sleep(COURTESY);
            turn = Instant::now();
        } else if is_idle {
            turn = Instant::now();
        }
    }
}

/// Writes and answers a group. What came meanwhile and wants the connection for itself is handed back.
fn serve_group(
    connection: &mut Connection,
    queue: &mut mpsc::Receiver<Errand>,
    first: Box<dyn Job>,
    committed: &watch::Sender<u64>,
) -> Option<Errand> {
    let (mut group, mut next) = (vec![first], None);
    let end = write_group(connection, queue, &mut group, &mut next);
    if end.is_ok() {
        committed.send_modify(|count| *count += 1);
    }
    for job in group {
        job.answer(match &end {
            Ok(()) => Ok(()),
            Err(error) => Err(again(error)),
        });
    }
    next
}

/// One transaction: `group` holds one job, and in the end all that went into it.
fn write_group(
    connection: &mut Connection,
    queue: &mut mpsc::Receiver<Errand>,
    group: &mut Vec<Box<dyn Job>>,
    after: &mut Option<Errand>,
) -> Result<(), WriteError> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let began = Instant::now();
    let mut next = 0;
    while let Some(job) = group.get_mut(next) {
        run_one(&tx, job.as_mut())?;
        next += 1;
        if next < GROUP_JOBS_MAX
            && began.elapsed() < GROUP_TIME_MAX
            && after.is_none()
            && let Ok(errand) = queue.try_recv()
        {
            match errand {
                Errand::Job(job) => group.push(job),
                alone @ Errand::Alone(_) => *after = Some(alone),
            }
        }
    }
    // CRASH(sqlite.group.before_commit): nothing of this group is written. Its settlements are made again by
    // the next owner (G2), its appends never were (G1): nobody was told otherwise.
    crash_point!("sqlite.group.before_commit");
    // From here on an error leaves the outcome open: the last frame may be in the log although its sync
    // failed.
    tx.commit().map_err(|error| WriteError::Store(judge(&error, is_refusal(&error))))?;
    // CRASH(sqlite.group.committed): all of it is durable and nobody was told. A settlement that is repeated
    // finds its receipt and changes nothing; its events are not sent again.
    crash_point!("sqlite.group.committed");
    Ok(())
}

/// Runs a job under its savepoint. An error means that the whole transaction is gone: a full disk, a failed
/// read.
fn run_one(tx: &Transaction<'_>, job: &mut dyn Job) -> Result<(), WriteError> {
    tx.prepare_cached("savepoint posthaste_job")?.execute([])?;
    let good = job.run(tx);
    if tx.is_autocommit() {
        // SQLite rolled everything back by itself, or the job did. Whoever was in this group is told so.
        return Err(WriteError::Store(StoreError::Transient {
            message: "the transaction was rolled back by the database; a full disk, or an error while reading. Nothing \
                      of it was applied"
                .to_owned(),
            outcome_known: true,
        }));
    }
    if !good {
        tx.prepare_cached("rollback to posthaste_job")?.execute([])?;
    }
    tx.prepare_cached("release posthaste_job")?.execute([])?;
    Ok(())
}

/// Commits that were refused before anything was written.
fn is_refusal(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly};
    let refused = [ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly];
    error.sqlite_error_code().is_some_and(|code| refused.contains(&code))
}

/// The group's error once more, for another of its jobs.
fn again(error: &WriteError) -> WriteError {
    WriteError::Store(match error {
        WriteError::Store(error) => error.clone(),
        other => StoreError::Transient { message: other.to_string(), outcome_known: true },
    })
}
