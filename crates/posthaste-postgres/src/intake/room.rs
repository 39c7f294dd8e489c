//! Where requests wait for a commit.
//!
//! Everything here is bounded and short: a request is counted ([`IntakeRoom`]) and put into a queue under a
//! lock that is held for some hundred nanoseconds. A place belongs to whoever waits for the answer, so it is
//! free again when that future ends, however it ends. What it leaves in the queue is swept out when it is
//! half of it.

use posthaste::intake::{
    Admitted, IngestRequest, IntakeBounds, IntakeError, IntakeFigures, IntakePlace, IntakeRoom, Ticket,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// Events and bytes of one commit. Beyond some hundred events the commit's own cost no longer counts, and
/// whoever comes next should not wait for longer. A single request that is larger goes alone.
const GROUP_EVENTS_MAX: usize = 512;
const GROUP_BYTES_MAX: usize = 4 << 20;

/// For how long a tenant goes alone whose request the database refused. It may well send more of them.
const ALONE: Duration = Duration::from_secs(10);

/// What a request that was taken in its last moment is still waited for. A commit takes milliseconds.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Steps in which that wait looks whether the request was given back meanwhile.
const LAST_LOOK: Duration = Duration::from_millis(25);

/// Whoever has less than this part of its time left is not taken any more.
const LAST_PART: u32 = 10;

pub(super) type AppendOutcome = Result<Admitted, IntakeError>;

/// Tenant, topic and idempotency key.
type HeldKey = (Arc<str>, Arc<str>, Arc<str>);

/// A request that waits.
pub(super) struct QueuedRequest {
    pub(super) request: IngestRequest,
    pub(super) ticket: Ticket,
    /// From then on nobody waits for it.
    pub(super) deadline: Instant,
    bytes: usize,
    reply: oneshot::Sender<AppendOutcome>,
    /// Its key is in flight elsewhere.
    held: Option<KeyHold>,
}

impl QueuedRequest {
    pub(super) fn answer(self, outcome: AppendOutcome) {
        // Nobody waits for it any more: that is the client's affair.
        let _ = self.reply.send(outcome);
    }
}

/// While it lives, its key is known to be in flight elsewhere.
struct KeyHold {
    key: HeldKey,
    room: Arc<Room>,
}

impl Drop for KeyHold {
    fn drop(&mut self) {
        let mut held = lock(&self.room.held);
        if let Some(count) = held.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.key);
            }
        }
        self.room.held_keys.store(held.len(), Ordering::Release);
    }
}

#[derive(Default)]
struct Queues {
    together: VecDeque<QueuedRequest>,
    /// Of tenants that go alone.
    alone: VecDeque<QueuedRequest>,
    /// Tenants that go alone, and until when.
    tenants: FxHashMap<Arc<str>, Instant>,
    /// Whose turn is next, where both wait.
    alone_next: bool,
    /// How many were withdrawn since the last sweep.
    withdrawn: usize,
}

/// The room, its bounds and its figures.
pub(super) struct Room {
    counted: IntakeRoom,
    commits: AtomicU64,
    committed_events: AtomicU64,
    queues: Mutex<Queues>,
    pub(super) arrived: Notify,
    /// Keys that are in flight elsewhere, and how many of ours wait for each.
    held: Mutex<FxHashMap<HeldKey, usize>>,
    held_keys: AtomicUsize,
    holding: mpsc::UnboundedSender<QueuedRequest>,
    /// What the database said last when it was away.
    trouble: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a request holds of the room.
struct InRoom<'a> {
    room: &'a Room,
    place: IntakePlace<'a>,
    ticket: Ticket,
}

impl Drop for InRoom<'_> {
    fn drop(&mut self) {
        // Whoever hung up withdraws what is queued, and cancels nothing that was taken.
        if self.ticket.withdraw() {
            self.room.sweep();
        }
    }
}

impl Room {
    pub(super) fn new(bounds: IntakeBounds, holding: mpsc::UnboundedSender<QueuedRequest>) -> Self {
        Self {
            counted: IntakeRoom::new(bounds),
            commits: AtomicU64::new(0),
            committed_events: AtomicU64::new(0),
            queues: Mutex::default(),
            arrived: Notify::new(),
            held: Mutex::default(),
            held_keys: AtomicUsize::new(0),
            holding,
            trouble: Mutex::default(),
        }
    }

    pub(super) fn figures(&self) -> IntakeFigures {
        IntakeFigures {
            queued_events: self.counted.events(),
            commits: self.commits.load(Ordering::Relaxed),
            committed_events: self.committed_events.load(Ordering::Relaxed),
        }
    }

    pub(super) fn committed(&self, events: usize) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.committed_events.fetch_add(events as u64, Ordering::Relaxed);
    }

    /// Waits until a request is stored, or its time is up.
    pub(super) async fn store(self: &Arc<Self>, request: IngestRequest) -> AppendOutcome {
        let place = InRoom { room: self, place: self.counted.enter(&request)?, ticket: Ticket::new() };
        let append_timeout = self.counted.bounds().append_timeout;
        let (reply, mut answer) = oneshot::channel();
        let deadline = Instant::now() + append_timeout;
        let key = request.idempotency.as_ref().map(|idempotency| {
            (Arc::clone(&request.tenant), Arc::clone(&request.topic), Arc::clone(&idempotency.key))
        });
        let (ticket, bytes) = (place.ticket.clone(), place.place.bytes);
        self.queue(QueuedRequest { request, ticket, deadline, bytes, reply, held: None }, key.as_ref());
        let mut wait = append_timeout;
        loop {
            if let Ok(Ok(answered)) = timeout(wait, &mut answer).await {
                return answered;
            }
            // Its time is up, or the task that had it is gone.
            let is_held = key.as_ref().is_some_and(|key| self.is_held(key));
            if place.ticket.withdraw() {
                self.sweep();
                return Err(self.too_late(is_held));
            }
            if answer.is_terminated() || Instant::now() > deadline + LAST_WAIT {
                return Err(IntakeError::OutcomeUnknown(self.why()));
            }
            wait = LAST_LOOK;
        }
    }

    /// Withdraws a request that there is no time for any more: whoever is taken in the last moment may learn
    /// nothing. `None`: that was done.
    pub(super) fn in_time(&self, queued: QueuedRequest) -> Option<QueuedRequest> {
        if Instant::now() + self.counted.bounds().append_timeout / LAST_PART < queued.deadline {
            return Some(queued);
        }
        if queued.ticket.withdraw() {
            let answer = self.too_late(queued.held.is_some());
            queued.answer(Err(answer));
        }
        None
    }

    fn too_late(&self, is_held: bool) -> IntakeError {
        if is_held { IntakeError::InFlight } else { IntakeError::Unavailable(self.why()) }
    }

    fn queue(self: &Arc<Self>, waiting: QueuedRequest, key: Option<&HeldKey>) {
        if self.held_keys.load(Ordering::Acquire) > 0 && key.is_some_and(|key| self.is_held(key)) {
            return self.hold(waiting);
        }
        let mut queues = lock(&self.queues);
        let until = queues.tenants.get(&waiting.request.tenant);
        let alone = until.is_some_and(|until| Instant::now() < *until);
        let queue = if alone { &mut queues.alone } else { &mut queues.together };
        queue.push_back(waiting);
        drop(queues);
        self.arrived.notify_one();
    }

    /// Takes what has gathered, as much as one commit should hold.
    pub(super) fn take(&self) -> Option<Vec<QueuedRequest>> {
        let mut queues = lock(&self.queues);
        let turn = std::mem::replace(&mut queues.alone_next, true);
        if (turn || queues.together.is_empty())
            && let Some(alone) = next(&mut queues.alone)
        {
            queues.alone_next = false;
            return Some(vec![alone]);
        }
        let first = next(&mut queues.together)?;
        let (mut events, mut bytes) = (first.request.events.len(), first.bytes);
        let mut group = Vec::with_capacity(queues.together.len().clamp(1, GROUP_EVENTS_MAX));
        group.push(first);
        while let Some(waiting) = queues.together.front() {
            events += waiting.request.events.len();
            bytes += waiting.bytes;
            if events > GROUP_EVENTS_MAX || bytes > GROUP_BYTES_MAX {
                break;
            }
            group.extend(queues.together.pop_front().filter(|waiting| !waiting.ticket.is_withdrawn()));
        }
        Some(group)
    }

    /// Something was withdrawn. What of it still waits is swept out when it is half of the queue.
    fn sweep(&self) {
        let mut queues = lock(&self.queues);
        queues.withdrawn += 1;
        if queues.withdrawn * 2 >= queues.together.len() + queues.alone.len() {
            queues.withdrawn = 0;
            queues.together.retain(|waiting| !waiting.ticket.is_withdrawn());
            queues.alone.retain(|waiting| !waiting.ticket.is_withdrawn());
        }
    }

    /// From now on the requests of a tenant go alone, for a while.
    pub(super) fn set_apart(&self, tenant: &Arc<str>) {
        let now = Instant::now();
        let mut queues = lock(&self.queues);
        queues.tenants.retain(|_, until| now < *until);
        queues.tenants.insert(Arc::clone(tenant), now + ALONE);
    }

    /// Hands a request to the task of those whose key is in flight elsewhere.
    pub(super) fn hold(self: &Arc<Self>, mut waiting: QueuedRequest) {
        if waiting.held.is_none()
            && let Some(idempotency) = &waiting.request.idempotency
        {
            let request = &waiting.request;
            let key = (Arc::clone(&request.tenant), Arc::clone(&request.topic), Arc::clone(&idempotency.key));
            let mut held = lock(&self.held);
            *held.entry(key.clone()).or_default() += 1;
            self.held_keys.store(held.len(), Ordering::Release);
            drop(held);
            waiting.held = Some(KeyHold { key, room: Arc::clone(self) });
        }
        // The task lives as long as the room does; a request that it will not take is answered so.
        let _ = self.holding.send(waiting);
    }

    fn is_held(&self, key: &HeldKey) -> bool {
        lock(&self.held).contains_key(key)
    }

    /// The database is away: this is why.
    pub(super) fn trouble(&self, why: &str) {
        *lock(&self.trouble) = Some(why.to_owned());
    }

    /// It answers again.
    pub(super) fn no_trouble(&self) {
        *lock(&self.trouble) = None;
    }

    /// Why it was away the last time, if it was.
    pub(super) fn last_trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    fn why(&self) -> String {
        self.last_trouble()
            .unwrap_or_else(|| format!("no commit within {:?}", self.counted.bounds().append_timeout))
    }
}

/// The next one that somebody still waits for.
fn next(queue: &mut VecDeque<QueuedRequest>) -> Option<QueuedRequest> {
    std::iter::from_fn(|| queue.pop_front()).find(|waiting| !waiting.ticket.is_withdrawn())
}
