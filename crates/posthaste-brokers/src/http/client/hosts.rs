//! The hosts that are being delivered to: slots for each, and the last thing that was wrong with it.
//!
//! A host that does not answer holds as many requests as it has slots, until they time out. Requests that
//! wait for a slot behind them learn of the first failure and give up with it, in every call. Waiting longer
//! would only make their neighbours in the call wait, and the relay knows better when to ask again. Requests
//! for a destination that has just said "not now" give up, too: a receiver that asks for a minute must not
//! get the other two thousand events of the call first.
//!
//! A sender keeps its slot for several requests, because getting a slot costs more than sending a request.
//! Where others wait for a slot it gives its own back after a moment ([`SLICE`]), behind them in the queue.
//!
//! A host that failed is on trial until it answers again: it gets one request at a time. Otherwise a few dead
//! hosts with many destinations would hold most of the slots, one timeout after another.

use crate::lock::locked;
use posthaste::sink::Failure;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Destinations of a host whose trouble is remembered. A destination beyond them is simply tried.
const DESTINATIONS_MAX: usize = 256;

/// Hosts that nobody delivers to now, and that are remembered only for their slots.
const IDLE_MAX: usize = 1_024;

/// How long a slot is kept where others wait. A quick host is sent a dozen messages in this time. The slot of
/// a slow host changes hands after each message.
const SLICE: Duration = Duration::from_millis(10);

/// All hosts.
#[derive(Debug)]
pub(crate) struct Hosts {
    slots: usize,
    window: Arc<SlotWindow>,
    table: Mutex<FxHashMap<String, Arc<Host>>>,
}

/// Slots of all hosts together.
#[derive(Debug)]
struct SlotWindow {
    slots: Arc<Semaphore>,
    /// How many wait for a slot of any host.
    waiting: AtomicUsize,
}

/// A host: scheme, name and port.
#[derive(Debug)]
pub(crate) struct Host {
    slots: Arc<Semaphore>,
    /// There is one permit. Whoever has it may try a host that has failed.
    trial: Arc<Semaphore>,
    window: Arc<SlotWindow>,
    /// Whether there is no trouble at all. That is the usual case, and nobody needs the lock to know it.
    is_calm: AtomicBool,
    trouble: Mutex<HostTrouble>,
    /// Requests that came to an end, good or bad.
    moves: AtomicUsize,
}

/// The right to have one request on its way to a host. Dropping it gives the slot back.
pub(crate) struct Slot {
    trial: Option<OwnedSemaphorePermit>,
    _of_host: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
    since: Instant,
}

/// Counts a waiter, as long as it lives.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl<'a> WaitingGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What went wrong last, and when.
#[derive(Debug, Default)]
struct HostTrouble {
    everywhere: Option<(Instant, Failure)>,
    destinations: FxHashMap<String, (Instant, Failure)>,
}

/// Which requests a host fails for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All of them.
    Everywhere,
    /// Those of one destination.
    Destination,
}

impl Hosts {
    pub(crate) fn new(slots: usize, all: usize) -> Self {
        let window = SlotWindow { slots: Arc::new(Semaphore::new(all)), waiting: AtomicUsize::new(0) };
        Self { slots, window: Arc::new(window), table: Mutex::default() }
    }

    pub(crate) fn host(&self, origin: &str) -> Arc<Host> {
        let mut table = locked(&self.table);
        if let Some(host) = table.get(origin) {
            return Arc::clone(host);
        }
        if table.len() >= IDLE_MAX {
            // A call's hosts are bounded by what the relay has in hand.
            table.retain(|_, host| Arc::strong_count(host) > 1);
        }
        let host = Arc::new(Host {
            slots: Arc::new(Semaphore::new(self.slots)),
            trial: Arc::new(Semaphore::new(1)),
            window: Arc::clone(&self.window),
            is_calm: AtomicBool::new(true),
            trouble: Mutex::default(),
            moves: AtomicUsize::new(0),
        });
        table.insert(origin.to_owned(), Arc::clone(&host));
        host
    }
}

impl Host {
    /// A slot, if there is one now.
    pub(crate) fn try_slot(&self) -> Option<Slot> {
        let take = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        let trial = if self.is_on_trial() { Some(take(&self.trial)?) } else { None };
        Some(Slot {
            trial,
            _of_host: take(&self.slots)?,
            _of_all: take(&self.window.slots)?,
            since: Instant::now(),
        })
    }

    /// Waits for a slot. `None` is never seen, because nobody closes the semaphores.
    pub(crate) async fn slot(&self) -> Option<Slot> {
        let _waiting = WaitingGuard::new(&self.window.waiting);
        let take = |permits: &Arc<Semaphore>| Arc::clone(permits).acquire_owned();
        let trial = if self.is_on_trial() { Some(take(&self.trial).await.ok()?) } else { None };
        let of_host = take(&self.slots).await.ok()?;
        let of_all = take(&self.window.slots).await.ok()?;
        Some(Slot { trial, _of_host: of_host, _of_all: of_all, since: Instant::now() })
    }

    /// Whether the holder of this slot may use it for one more request.
    pub(crate) fn may_stay(&self, slot: &Slot, now: Instant) -> bool {
        let is_alone = self.window.waiting.load(Ordering::Relaxed) == 0;
        slot.trial.is_none() && (is_alone || now < slot.since + SLICE) && !self.is_on_trial()
    }

    fn is_on_trial(&self) -> bool {
        !self.is_calm() && self.trouble().everywhere.is_some()
    }

    /// Whether nothing is wrong with it.
    pub(crate) fn is_calm(&self) -> bool {
        // Others see a change a moment later, as they see answers a moment later.
        self.is_calm.load(Ordering::Acquire)
    }

    fn settle(&self, trouble: &HostTrouble) {
        let is_calm = trouble.everywhere.is_none() && trouble.destinations.is_empty();
        self.is_calm.store(is_calm, Ordering::Release);
    }

    /// The host failed, for all requests or for those of this destination.
    pub(crate) fn failed(&self, reach: Reach, destination: &str, failure: &Failure) {
        let (mut trouble, entry) = (self.trouble(), (Instant::now(), failure.clone()));
        match reach {
            Reach::Everywhere => trouble.everywhere = Some(entry),
            Reach::Destination => {
                trouble.everywhere = None;
                if trouble.destinations.len() >= DESTINATIONS_MAX {
                    trouble.destinations.clear();
                }
                trouble.destinations.insert(destination.to_owned(), entry);
            }
        }
        self.settle(&trouble);
    }

    /// A request came to an end. If something went wrong with it, that was told before.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// How many requests came to an end. If the number is the same later, those who have the slots still
    /// wait.
    pub(crate) fn moves(&self) -> usize {
        self.moves.load(Ordering::Acquire)
    }

    /// The host answered, and this destination works.
    pub(crate) fn answered(&self, destination: &str) {
        if self.is_calm() {
            return;
        }
        let mut trouble = self.trouble();
        trouble.everywhere = None;
        trouble.destinations.remove(destination);
        self.settle(&trouble);
    }

    /// What has gone wrong since then, unless something has worked after it.
    pub(crate) fn failed_since(&self, then: Instant, destination: &str) -> Option<Failure> {
        if self.is_calm() {
            return None;
        }
        let trouble = self.trouble();
        let one = trouble.destinations.get(destination);
        let known = trouble.everywhere.as_ref().filter(|(at, _)| *at >= then);
        known.or_else(|| one.filter(|(at, _)| *at >= then)).map(|(_, failure)| failure.clone())
    }

    fn trouble(&self) -> MutexGuard<'_, HostTrouble> {
        locked(&self.trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        Failure::of_destination("http.unreachable", "refused")
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_counts_until_something_works() {
        let hosts = Hosts::new(1, 1);
        let (host, before) = (hosts.host("https://a"), Instant::now());
        assert_eq!(host.failed_since(before, "x"), None);
        host.failed(Reach::Everywhere, "x", &failure());
        assert_eq!(hosts.host("https://a").failed_since(before, "y"), Some(failure()));
        assert_eq!(hosts.host("https://b").failed_since(before, "x"), None);
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        assert_eq!(host.failed_since(Instant::now(), "x"), None, "that was before this call");
        host.answered("z");
        assert_eq!(host.failed_since(before, "x"), None);
    }

    #[tokio::test]
    async fn a_host_that_failed_is_tried_by_one_at_a_time() {
        let host = Hosts::new(3, 3).host("https://a");
        let all: Vec<_> = (0..4).map(|_| host.try_slot()).collect();
        assert_eq!(all.iter().flatten().count(), 3);
        drop(all);
        host.failed(Reach::Everywhere, "x", &failure());
        let (one, two) = (host.try_slot(), host.try_slot());
        assert!(two.is_none());
        assert!(!host.may_stay(one.as_ref().expect("a slot"), Instant::now()), "one request");
        host.answered("x");
        assert!(host.try_slot().is_some() && host.slot().await.is_some());
        drop(one);
        assert_eq!((host.window.slots.available_permits(), host.slots.available_permits()), (3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_kept_until_somebody_waits_for_it() {
        let host = Hosts::new(1, 1).host("https://a");
        let slot = host.try_slot().expect("a slot");
        tokio::time::advance(2 * SLICE).await;
        assert!(host.may_stay(&slot, Instant::now()), "nobody waits");
        let mut other = Box::pin(host.slot());
        assert!(futures_util::poll!(&mut other).is_pending());
        assert!(!host.may_stay(&slot, Instant::now()) && host.may_stay(&slot, slot.since));
        drop(slot);
        let slot = other.await.expect("a slot");
        assert!(host.may_stay(&slot, Instant::now() + 2 * SLICE), "nobody waits");
        host.failed(Reach::Everywhere, "x", &failure());
        assert!(!host.may_stay(&slot, Instant::now()), "the host is on trial");
    }

    #[tokio::test]
    async fn one_destination_of_a_host_may_fail_alone() {
        let (host, before) = (Hosts::new(1, 1).host("https://a"), Instant::now());
        host.failed(Reach::Destination, "x", &failure());
        host.answered("y");
        assert_eq!((host.failed_since(before, "x"), host.failed_since(before, "y")), (Some(failure()), None));
        host.answered("x");
        assert_eq!(host.failed_since(before, "x"), None);
        (0..3 * DESTINATIONS_MAX).for_each(|n| host.failed(Reach::Destination, &n.to_string(), &failure()));
        assert!(host.trouble().destinations.len() <= DESTINATIONS_MAX);
    }

    #[tokio::test]
    async fn g7_idle_hosts_are_forgotten() {
        let hosts = Hosts::new(1, 1);
        let kept = hosts.host("https://kept");
        for n in 0..3 * IDLE_MAX {
            hosts.host(&format!("https://{n}"));
        }
        assert!(hosts.table.lock().expect("whole").len() <= IDLE_MAX);
        assert!(Arc::ptr_eq(&kept, &hosts.host("https://kept")), "what is in use is not");
    }
}
