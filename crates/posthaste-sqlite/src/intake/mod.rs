//! The intake on SQLite: what tenants hand in, through the one writer of the process.
//!
//! The group commit is the [`Writer`]'s: a job for each request, many jobs in a transaction, and each under a
//! savepoint of its own, so a request that the database refuses costs the others nothing. One transaction
//! writes at a time: nobody waits for anybody's idempotency key.
//!
//! The first thing that a job does is to take its ticket. A request that was withdrawn while it waited for
//! the write lock is not stored.
//!
//! Refused: `synchronous = normal`. A commit that a power cut takes back is no 202.

mod tenants;

pub use tenants::SqliteTenants;

use crate::append::insert;
use crate::clock::{micros, now};
use crate::config::SqliteConfig;
use crate::connect::{Synchronous, check_wal, open_reader};
use crate::migrate;
use crate::writer::{WriteError, Writer};
use async_trait::async_trait;
use posthaste::Limits;
use posthaste::crash_point;
use posthaste::intake::{
    Admitted, Idempotency, IngestRequest, Intake, IntakeBounds, IntakeError, IntakeFigures, IntakeRoom,
    Ticket,
};
use posthaste::store::{StoreCode, StoreError};
use rusqlite::{ErrorCode, Transaction, params};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

/// Rows of one purge, and how many purges one call makes: everybody else waits for the write lock meanwhile.
const PURGE_ROWS: i64 = 500;
const PURGES_MAX: usize = 20;

/// What a request that was taken in its last moment is still waited for.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Stores what tenants hand in.
pub struct SqliteIntake {
    writer: Writer,
    limits: Limits,
    room: IntakeRoom,
    committed_events: AtomicU64,
}

impl SqliteIntake {
    /// Opens the file, with a writer of its own. Refuses a database whose commits may be undone by a power
    /// cut, and one whose schema is too old.
    pub fn start(config: SqliteConfig, bounds: IntakeBounds) -> Result<Self, StoreError> {
        Self::check(&config)?;
        let writer = Writer::open(&config.path, config.synchronous)?;
        Ok(Self {
            writer,
            limits: config.limits,
            room: IntakeRoom::new(bounds),
            committed_events: AtomicU64::new(0),
        })
    }

    /// Whether a gateway can work on this database.
    pub fn check(config: &SqliteConfig) -> Result<(), StoreError> {
        if config.synchronous == Synchronous::Normal {
            return Err(StoreError::fatal(StoreCode::Limits, NOT_DURABLE));
        }
        let connection = open_reader(&config.path)?;
        check_wal(&connection)?;
        migrate::check_version(&connection).map(drop)
    }
}

const NOT_DURABLE: &str = "a gateway answers 202 when an event is durable, and with synchronous=normal a power cut may take it \
     back. Write synchronous=full, or leave it out; nothing was changed";

/// Whoever hung up withdraws what is queued, and cancels nothing that was taken.
struct WithdrawnOnDrop(Ticket);

impl Drop for WithdrawnOnDrop {
    fn drop(&mut self) {
        let _ = self.0.withdraw();
    }
}

/// What a job answers.
enum JobEnd {
    Stored(Admitted),
    Reused,
    /// It was withdrawn before. Nothing was done.
    Withdrawn,
}

/// The whole of a request, inside the group's transaction.
fn store(tx: &Transaction<'_>, request: &IngestRequest, ticket: &Ticket) -> Result<JobEnd, JobError> {
    if !ticket.take() {
        return Ok(JobEnd::Withdrawn);
    }
    if let Some(idempotency) = &request.idempotency
        && let Some((hash, ids)) = remember(tx, request, idempotency)?
    {
        let ids = ids.chunks_exact(16).filter_map(|id| Uuid::from_slice(id).ok()).collect();
        let is_same = hash == idempotency.hash;
        return Ok(if is_same { JobEnd::Stored(Admitted { ids, replayed: true }) } else { JobEnd::Reused });
    }
    for event in &request.events {
        insert(tx, event)?;
    }
    let ids = request.events.iter().map(|event| event.id).collect();
    // CRASH(gateway.before_commit): nothing is stored, and nobody was told otherwise (W1). Clients repeat.
    crash_point!("gateway.before_commit");
    Ok(JobEnd::Stored(Admitted { ids, replayed: false }))
}

/// Remembers the key of a request. If it was there already: what was stored then.
fn remember(
    tx: &Transaction<'_>,
    request: &IngestRequest,
    idempotency: &Idempotency,
) -> rusqlite::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let ids: Vec<u8> = request.events.iter().flat_map(|event| *event.id.as_bytes()).collect();
    let (tenant, topic, key) = (&*request.tenant, &*request.topic, &*idempotency.key);
    let fresh = tx.prepare_cached(include_str!("../../sql/intake/remember.sql"))?.execute(params![
        tenant,
        topic,
        key,
        idempotency.hash,
        ids,
        now()
    ])?;
    if fresh > 0 {
        return Ok(None);
    }
    tx.prepare_cached(include_str!("../../sql/intake/earlier.sql"))?
        .query_row(params![tenant, topic, key], |row| Ok(Some((row.get(0)?, row.get(1)?))))
}

/// Whether the database will never take these values.
fn refuses(error: &rusqlite::Error) -> bool {
    let codes = [ErrorCode::ConstraintViolation, ErrorCode::TypeMismatch, ErrorCode::TooBig];
    error.sqlite_error_code().is_some_and(|code| codes.contains(&code))
}

/// Why a job was not done, or may not have been.
enum JobError {
    Refused(String),
    Write(WriteError),
}

impl From<WriteError> for JobError {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl From<rusqlite::Error> for JobError {
    fn from(error: rusqlite::Error) -> Self {
        if refuses(&error) { Self::Refused(error.to_string()) } else { Self::Write(error.into()) }
    }
}

impl JobError {
    fn in_words(self) -> IntakeError {
        match self {
            Self::Refused(why) => IntakeError::Refused(why),
            Self::Write(WriteError::Panicked(why)) => IntakeError::Refused(why),
            Self::Write(WriteError::Store(error)) if !error.is_outcome_known() => {
                IntakeError::OutcomeUnknown(error.to_string())
            }
            Self::Write(error) => IntakeError::Unavailable(error.to_string()),
        }
    }
}

#[async_trait]
impl Intake for SqliteIntake {
    async fn append(&self, request: IngestRequest) -> Result<Admitted, IntakeError> {
        if request.events.is_empty() {
            return Err(IntakeError::Refused("there are no events in it".to_owned()));
        }
        for event in &request.events {
            self.limits.check(event).map_err(|error| IntakeError::Refused(error.to_string()))?;
        }
        let place = self.room.enter(&request)?;
        let append_timeout = self.room.bounds().append_timeout;
        let ticket = Ticket::new();
        let (_left, taken) = (WithdrawnOnDrop(ticket.clone()), ticket.clone());
        let mut stored = std::pin::pin!(self.writer.run(move |tx| store(tx, &request, &taken)));
        let answered = match timeout(append_timeout, &mut stored).await {
            Ok(answered) => answered,
            Err(_) if ticket.withdraw() => {
                let why = format!("no commit within {append_timeout:?}");
                return Err(IntakeError::Unavailable(why));
            }
            Err(_) => timeout(LAST_WAIT, stored)
                .await
                .map_err(|_| IntakeError::OutcomeUnknown("the commit has not come back yet".to_owned()))?,
        };
        match answered.map_err(JobError::in_words)? {
            JobEnd::Stored(admitted) => {
                // CRASH(gateway.after_commit): it is durable, and nobody was told. A client that repeats its
                // request with its Idempotency-Key gets the same ids; without one, a second event (W4).
                crash_point!("gateway.after_commit");
                if !admitted.replayed {
                    self.committed_events.fetch_add(place.events, Ordering::Relaxed);
                }
                Ok(admitted)
            }
            JobEnd::Reused => Err(IntakeError::KeyReused),
            // Only this future withdraws it, and it did not.
            JobEnd::Withdrawn => Err(IntakeError::Unavailable("it was withdrawn".to_owned())),
        }
    }

    async fn purge(&self, older_than: Duration) -> Result<u64, StoreError> {
        let mut gone = 0;
        for _ in 0..PURGES_MAX {
            let before = now().saturating_sub(micros(older_than));
            let purge = move |tx: &Transaction<'_>| -> Result<usize, WriteError> {
                let mut statement = tx.prepare_cached(include_str!("../../sql/intake/purge.sql"))?;
                Ok(statement.execute(params![before, PURGE_ROWS])?)
            };
            let rows = self.writer.run(purge).await?;
            gone += rows as u64;
            if (rows as i64) < PURGE_ROWS {
                break;
            }
        }
        Ok(gone)
    }

    fn figures(&self) -> IntakeFigures {
        IntakeFigures {
            queued_events: self.room.events(),
            commits: *self.writer.commits().borrow(),
            committed_events: self.committed_events.load(Ordering::Relaxed),
        }
    }
}
