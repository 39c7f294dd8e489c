//! Wakeups over processes: a thread that asks `pragma data_version` whether anybody has committed.
//!
//! The answer costs some microseconds and no lock. While a consumer waits, the thread asks every two
//! milliseconds; while nobody waits, not at all. It is a hint: who never hears one is slower, not wrong.

use crate::connect::open_reader;
use posthaste::store::StoreError;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;
use tokio::sync::Notify;

/// Between two looks: a small part of what a commit with its sync takes.
const INTERVAL: Duration = Duration::from_millis(2);

#[derive(Default)]
struct WatchSignals {
    commits: Notify,
    waiting: AtomicUsize,
    ended: AtomicBool,
}

/// The thread. It ends when this is dropped.
pub(super) struct CommitWatch {
    shared: Arc<WatchSignals>,
    thread: Thread,
}

impl CommitWatch {
    pub(super) fn start(path: &Path) -> Result<Self, StoreError> {
        let connection = open_reader(path)?;
        let shared = Arc::<WatchSignals>::default();
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("posthaste-local-watch".to_owned());
        let handle =
            thread.spawn(move || look_on(&connection, &seen)).map_err(|error| StoreError::Transient {
                message: format!("no thread for the watch: {error}"),
                outcome_known: true,
            })?;
        Ok(Self { shared, thread: handle.thread().clone() })
    }

    /// Resolves when somebody has committed since the last look. Looking begins now: ask before you look
    /// yourself.
    pub(super) async fn committed(&self) {
        let _waiting = Waiter::new(&self.shared);
        self.thread.unpark();
        self.shared.commits.notified().await;
    }
}

impl Drop for CommitWatch {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

struct Waiter<'a>(&'a WatchSignals);

impl<'a> Waiter<'a> {
    fn new(shared: &'a WatchSignals) -> Self {
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

fn look_on(connection: &rusqlite::Connection, shared: &WatchSignals) {
    let mut last = None;
    while !shared.ended.load(Ordering::SeqCst) {
        let version = connection
            .prepare_cached("pragma data_version")
            .and_then(|mut ask| ask.query_row([], |row| row.get::<_, i64>(0)));
        match version {
            Ok(version) => {
                if last.replace(version).is_some_and(|last| last != version) {
                    shared.commits.notify_one();
                }
            }
            Err(error) => tracing::debug!(%error, "the watch could not look; it tries again"),
        }
        if shared.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::park_timeout(INTERVAL);
        } else {
            // The next one who waits unparks it; what was committed meanwhile is seen then.
            std::thread::park();
        }
    }
}
