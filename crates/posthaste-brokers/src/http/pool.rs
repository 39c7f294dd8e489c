//! Connections that wait for their next request.
//!
//! A courier takes one when it sets out and brings it back when it has nothing more to carry, so this is asked once for
//! many requests. The last one that came back goes first; the others grow old and are closed. There are never more of a
//! host's than it has slots, and of all hosts together no more than the sink may have requests in flight.

use super::link::{Link, Many};
use super::wire::Wire;
use posthaste::task::{Task, spawn};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Shorter than the 5 s after which some servers (Node's among them) close an idle connection: a request
/// that meets such a close has an unknown end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// How often the old ones are looked for, while there are any.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The idle connections of all hosts.
pub(super) struct Pool {
    idle_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    hosts: FxHashMap<Arc<str>, Shelf>,
    idle: usize,
    sweeper: Option<Task<()>>,
}

/// Those of a host.
#[derive(Default)]
struct Shelf {
    ones: Vec<(Instant, Box<Wire>)>,
    many: Option<(Instant, Many)>,
}

impl Shelf {
    /// Whether there is one more now.
    fn put(&mut self, link: Link, now: Instant) -> bool {
        match (link, &mut self.many) {
            (Link::One(one), _) => self.ones.push((now, one)),
            (Link::Many(many), Some(place)) => {
                // All requests of a host need one of them.
                let kept = if place.1.is_closed() { many } else { place.1.clone() };
                *place = (now, kept);
                return false;
            }
            (Link::Many(many), place @ None) => *place = Some((now, many)),
        }
        true
    }

    fn len(&self) -> usize {
        self.ones.len() + usize::from(self.many.is_some())
    }
}

impl Pool {
    pub(super) fn new(idle_max: usize) -> Arc<Self> {
        Arc::new(Self { idle_max, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to this host. It may have been closed by the other side.
    pub(super) fn take(&self, origin: &str) -> Option<Link> {
        let mut state = self.state();
        let shelf = state.hosts.get_mut(origin)?;
        let now = Instant::now();
        if let Some((used, many)) = shelf.many.as_mut().filter(|(_, many)| !many.is_closed()) {
            *used = now;
            return Some(Link::Many(many.clone()));
        }
        let (used, one) = shelf.ones.pop()?;
        state.idle -= 1;
        (now < used + IDLE_TIMEOUT).then_some(Link::One(one))
    }

    /// Keeps a connection for the next one who needs it.
    pub(super) fn put(self: &Arc<Self>, origin: &Arc<str>, link: Link) {
        let (mut state, now) = (self.state(), Instant::now());
        if state.idle >= self.idle_max {
            return;
        }
        let shelf = state.hosts.entry(Arc::clone(origin)).or_default();
        state.idle += usize::from(shelf.put(link, now));
        if state.sweeper.is_none() {
            state.sweeper = Some(spawn("http idle", sweep(Arc::downgrade(self))));
        }
    }

    /// Nobody takes this connection any more: it may have died without a word. Those who have it go on.
    pub(super) fn forget(&self, origin: &str, gone: &Link) {
        let Link::Many(gone) = gone else { return };
        let mut state = self.state();
        let taken =
            state.hosts.get_mut(origin).and_then(|shelf| shelf.many.take_if(|(_, many)| many.is(gone)));
        state.idle -= usize::from(taken.is_some());
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
        state.idle = state.hosts.values().map(Shelf::len).sum();
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
