//! The watch: wakeups without a server.
//!
//! Nobody notifies anybody across processes here. But `pragma data_version` says in some microseconds whether
//! anybody else has committed since the last look. So a thread looks: every few milliseconds while a relay
//! dozes, rarely otherwise. Only if something was committed does it ask what: a higher number in the log is a
//! wakeup, a lane that became free a change of lanes. Commits of this process's own writer are looked at at
//! once.
//!
//! Both are hints. A relay that never hears one is slower, not wrong.
//!
//! Refused: watching the file with the system's notifications. A write to the -wal is no commit,
//! memory-mapped parts are not seen, and it is another thing on every system.

use crate::connect::open_reader;
use posthaste::store::StoreError;
use rusqlite::{Connection, OptionalExtension};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often to look while nobody dozes: for lanes that became free.
const RARELY: Duration = Duration::from_millis(200);

/// Who waits for what.
#[derive(Default)]
pub(crate) struct Hints {
    pub(crate) wakeups: Notify,
    pub(crate) lane_changes: Notify,
    dozing_until: Mutex<Option<Instant>>,
    ended: AtomicBool,
}

impl Hints {
    fn is_dozing(&self) -> bool {
        let until = *self.dozing_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| until > Instant::now())
    }
}

/// The thread. It ends when this is dropped.
pub(crate) struct Watch {
    pub(crate) hints: Arc<Hints>,
    thread: Thread,
}

impl Watch {
    pub(crate) fn start(path: &Path, interval: Duration) -> Result<Self, StoreError> {
        let hints = Arc::<Hints>::default();
        let seen = LastLook::new(open_reader(path)?)?;
        let shared = Arc::clone(&hints);
        let thread = std::thread::Builder::new().name("posthaste-watch".to_owned());
        let handle = thread.spawn(move || look_on(seen, &shared, interval)).map_err(|error| {
            StoreError::Transient {
                message: format!("no thread for the watch: {error}"),
                outcome_known: true,
            }
        })?;
        Ok(Self { hints, thread: handle.thread().clone() })
    }

    /// Looks often for this long.
    pub(crate) fn doze(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut dozing = self.hints.dozing_until.lock().unwrap_or_else(PoisonError::into_inner);
        *dozing = Some(dozing.map_or(until, |before| before.max(until)));
        drop(dozing);
        self.thread.unpark();
    }

    /// Something was committed here: look now.
    pub(crate) fn look_now(&self) {
        self.thread.unpark();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hints.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

fn look_on(mut seen: LastLook, hints: &Hints, interval: Duration) {
    while !hints.ended.load(Ordering::SeqCst) {
        match seen.look() {
            Ok((appended, freed)) => {
                // Everybody who waits, and the next one who asks: a spurious wakeup is only a look too many.
                for (changed, hint) in [(appended, &hints.wakeups), (freed, &hints.lane_changes)] {
                    if changed {
                        hint.notify_waiters();
                        hint.notify_one();
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the watch could not look; it tries again"),
        }
        let pause = if hints.is_dozing() { interval } else { RARELY };
        std::thread::park_timeout(pause);
    }
}

/// What the last look saw.
struct LastLook {
    connection: Connection,
    version: i64,
    last_seq: i64,
    freed: Option<String>,
}

impl LastLook {
    fn new(connection: Connection) -> Result<Self, StoreError> {
        Ok(Self { connection, version: -1, last_seq: 0, freed: None })
    }

    /// Whether something was appended, and whether a lane became free.
    fn look(&mut self) -> rusqlite::Result<(bool, bool)> {
        let version: i64 =
            self.connection.prepare_cached("pragma data_version")?.query_row([], |row| row.get(0))?;
        if version == self.version {
            return Ok((false, false));
        }
        let last_seq = last_seq(&self.connection)?;
        let sql = "select value from posthaste_state where name = 'freed'";
        let freed: Option<String> =
            self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
        let changes = (last_seq > self.last_seq, freed != self.freed);
        (self.version, self.last_seq, self.freed) = (version, last_seq, freed);
        Ok(changes)
    }
}

/// The highest number that was drawn and committed.
pub(crate) fn last_seq(connection: &Connection) -> rusqlite::Result<i64> {
    let sql = "select seq from sqlite_sequence where name = 'posthaste_outbox'";
    let last = connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(last.unwrap_or(0))
}
