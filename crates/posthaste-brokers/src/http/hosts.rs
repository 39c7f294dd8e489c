//! The hosts that are being delivered to: slots for each, and the last thing that was wrong with it.
//!
//! A host that does not answer holds as many requests as it has slots, until they time out. Those that wait
//! for a slot behind them learn of the first failure and give up with it, in every call: waiting longer
//! would only make their neighbours in the call wait, and the relay knows better when to ask again.

use posthaste::sink::Failure;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Hosts that nobody delivers to now and that are remembered for their slots alone.
const IDLE_MAX: usize = 1_024;

/// All of them.
#[derive(Debug)]
pub(super) struct Hosts {
    slots: usize,
    table: Mutex<FxHashMap<String, Arc<Host>>>,
}

/// One of them: scheme, name and port.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) slots: Arc<Semaphore>,
    trouble: Mutex<Option<(Instant, Failure)>>,
}

impl Hosts {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots, table: Mutex::default() }
    }

    pub(super) fn host(&self, origin: &str) -> Arc<Host> {
        // Nothing under the lock panics half way.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = table.get(origin) {
            return Arc::clone(host);
        }
        if table.len() >= IDLE_MAX {
            // What a call holds is bounded by what the relay has in hand.
            table.retain(|_, host| Arc::strong_count(host) > 1);
        }
        let host = Arc::new(Host { slots: Arc::new(Semaphore::new(self.slots)), trouble: Mutex::default() });
        table.insert(origin.to_owned(), Arc::clone(&host));
        host
    }
}

impl Host {
    /// It does not work for anybody.
    pub(super) fn failed(&self, failure: &Failure) {
        *self.trouble() = Some((Instant::now(), failure.clone()));
    }

    /// It answered something.
    pub(super) fn answered(&self) {
        *self.trouble() = None;
    }

    /// What went wrong since then, if nothing has worked after it.
    pub(super) fn failed_since(&self, then: Instant) -> Option<Failure> {
        self.trouble().as_ref().filter(|(at, _)| *at >= then).map(|(_, failure)| failure.clone())
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<(Instant, Failure)>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_counts_until_something_works() {
        let hosts = Hosts::new(1);
        let (host, before) = (hosts.host("https://a"), Instant::now());
        assert_eq!(host.failed_since(before), None);
        let failure = Failure::of_destination("http.unreachable", "refused");
        host.failed(&failure);
        assert_eq!(hosts.host("https://a").failed_since(before), Some(failure));
        assert_eq!(hosts.host("https://b").failed_since(before), None);
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        assert_eq!(host.failed_since(Instant::now()), None, "that was before this call");
        host.answered();
        assert_eq!(host.failed_since(before), None);
    }

    #[tokio::test]
    async fn g7_idle_hosts_are_forgotten() {
        let hosts = Hosts::new(1);
        let kept = hosts.host("https://kept");
        for n in 0..3 * IDLE_MAX {
            hosts.host(&format!("https://{n}"));
        }
        assert!(hosts.table.lock().expect("whole").len() <= IDLE_MAX);
        assert!(Arc::ptr_eq(&kept, &hosts.host("https://kept")), "what is in use is not");
    }
}
