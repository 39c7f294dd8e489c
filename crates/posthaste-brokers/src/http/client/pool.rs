//! Connections that wait for their next request.
//!
//! A sender takes one when it begins and brings it back when it has nothing more to send, so this is asked
//! once for many requests. The connection that came back last is taken first, and the others grow old and are
//! closed. A host never has more of them than slots, and all hosts together no more than the sink may have
//! requests in flight.

use super::connection::{Connection, Http1, Http2, ResponseHead};
use crate::lock::locked;
use posthaste::task::{Task, spawn};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// Some servers (Node's among them) close an idle connection after 5 s, and a request that meets such a close
/// has an unknown end. So this is shorter.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// How often old connections are looked for, while there are idle ones.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Connections that may still write what is left. A connection beyond them is closed at once.
const CLOSING_MAX: usize = 64;

/// The idle connections of all hosts.
pub(crate) struct Pool {
    idle_max: usize,
    closing: Arc<Semaphore>,
    state: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    hosts: FxHashMap<Arc<str>, HostConnections>,
    idle: usize,
    sweeper: Option<Task<()>>,
}

/// The idle connections of one host.
#[derive(Default)]
struct HostConnections {
    ones: Vec<(Instant, Box<Http1>)>,
    many: Option<(Instant, Http2)>,
}

impl HostConnections {
    /// Keeps a connection, and answers whether there is one more now.
    fn put(&mut self, connection: Connection, now: Instant) -> bool {
        match (connection, &mut self.many) {
            (Connection::One(one), _) => self.ones.push((now, one)),
            (Connection::Many(many), Some(kept)) => {
                // One connection of HTTP/2 is enough for all requests of a host.
                *kept = (now, if kept.1.is_closed() { many } else { kept.1.clone() });
                return false;
            }
            (Connection::Many(many), kept @ None) => *kept = Some((now, many)),
        }
        true
    }

    fn len(&self) -> usize {
        self.ones.len() + usize::from(self.many.is_some())
    }
}

impl Pool {
    pub(crate) fn new(idle_max: usize) -> Arc<Self> {
        Arc::new(Self { idle_max, closing: Arc::new(Semaphore::new(CLOSING_MAX)), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, IdleConnections> {
        locked(&self.state)
    }

    /// A connection to this host. It may have been closed by the other side.
    pub(crate) fn take(&self, origin: &str) -> Option<Connection> {
        let mut state = self.state();
        let shelf = state.hosts.get_mut(origin)?;
        let now = Instant::now();
        if let Some((used, many)) = shelf.many.as_mut().filter(|(_, many)| !many.is_closed()) {
            *used = now;
            return Some(Connection::Many(many.clone()));
        }
        let (used, one) = shelf.ones.pop()?;
        state.idle -= 1;
        (now < used + IDLE_TIMEOUT).then_some(Connection::One(one))
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(self: &Arc<Self>, origin: &Arc<str>, connection: Connection) {
        let (mut state, now) = (self.state(), Instant::now());
        if state.idle >= self.idle_max {
            return;
        }
        let shelf = state.hosts.entry(Arc::clone(origin)).or_default();
        state.idle += usize::from(shelf.put(connection, now));
        if state.sweeper.is_none() {
            state.sweeper = Some(spawn("http idle", sweep(Arc::downgrade(self))));
        }
    }

    /// Makes sure that nobody takes this connection any more, because it may have died silently. Its present
    /// users go on.
    pub(crate) fn forget(&self, origin: &str, gone: &Connection) {
        let Connection::Many(gone) = gone else { return };
        let mut state = self.state();
        let taken =
            state.hosts.get_mut(origin).and_then(|shelf| shelf.many.take_if(|(_, many)| many.is(gone)));
        state.idle -= usize::from(taken.is_some());
    }

    /// Closes a connection after a response that counts although not all of it was read.
    pub(crate) fn close(&self, connection: Connection, answer: ResponseHead) {
        let Ok(permit) = Arc::clone(&self.closing).try_acquire_owned() else { return };
        let task = spawn("http close", async move {
            connection.close(answer).await;
            drop(permit);
        });
        // The time of the task is bounded.
        task.detach();
    }

    /// Closes what is too old, and says whether there is something left.
    fn expire(&self) -> bool {
        let (mut state, now) = (self.state(), Instant::now());
        let is_young = |used: Instant| now < used + IDLE_TIMEOUT;
        state.hosts.retain(|_, shelf| {
            shelf.ones.retain(|(used, _)| is_young(*used));
            shelf.many.take_if(|(used, many)| many.is_closed() || !is_young(*used));
            !shelf.ones.is_empty() || shelf.many.is_some()
        });
        state.idle = state.hosts.values().map(HostConnections::len).sum();
        let any = !state.hosts.is_empty();
        if !any {
            state.sweeper = None;
        }
        any
    }
}

async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.expire() {
            return;
        }
    }
}
