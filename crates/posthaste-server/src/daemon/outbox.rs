//! The life of one outbox in the daemon: connect, relay, and again after a failure.
//!
//! A database that is down is waited for. A failure that no waiting mends (wrong password, no schema, other
//! routes in force) is put on the board; with several outboxes the others go on, and this one is tried again
//! now and then, because somebody may have mended it meanwhile.

use super::board::Board;
use super::rates::{RatedStore, Rates};
use crate::cli::explain;
use crate::config::{Outbox, scrub};
use posthaste::clock::SystemClock;
use posthaste::relay::{
    self, DrainOutcome, Health, News, Outage, RelayHandle, RelayPlan, RelaySettings, SinkEntry,
};
use posthaste::route::RouteTable;
use posthaste::sink::Sink;
use posthaste::store::{StartAt, Store, StoreError};
use posthaste_postgres::claim::ClaimPace;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// First and longest pause between two attempts to reach a database.
pub(super) const CONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Pause after a failure that needs somebody's help.
pub(super) const FAILURE_PAUSE: Duration = Duration::from_secs(30);
/// How often health goes on the board.
pub(super) const REPORT: Duration = Duration::from_millis(250);

/// One sink of the outbox, as often as a relay must be started.
pub(crate) struct SinkPart {
    pub(crate) name: Arc<str>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) start_at: StartAt,
    pub(crate) classes: posthaste::lifecycle::ClassOverrides,
}

/// Everything one outbox needs.
pub(crate) struct OutboxLife {
    pub(crate) outbox: Outbox,
    pub(crate) relay: Arc<str>,
    pub(crate) process: relay::Process,
    pub(crate) sinks: Vec<SinkPart>,
    pub(crate) settings: watch::Receiver<RelaySettings>,
    pub(crate) routes: watch::Receiver<RouteTable>,
    pub(crate) rates: watch::Receiver<Rates>,
    /// How an adopted table is claimed from.
    pub(crate) pace: Option<watch::Receiver<ClaimPace>>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) board: Arc<Board>,
    pub(crate) seat: usize,
}

/// What the log hears of a database that is out of reach: once, after a minute, then at intervals that
/// double.
#[derive(Default)]
pub(super) struct Unreached {
    outage: Outage,
    failures: u64,
    next_word: Duration,
}

impl Unreached {
    /// One more failure. How long they have lasted, if the log is to hear of it.
    pub(super) fn failed(&mut self, now: Instant) -> Option<Duration> {
        self.failures += 1;
        let long = match self.outage.failed(now) {
            News::Down => Duration::ZERO,
            News::StillDown(long) => long,
            News::Known => return None,
        };
        if long < self.next_word {
            return None;
        }
        self.next_word = long * 2;
        Some(long)
    }
}

/// How a running relay ended.
enum RelayEnd {
    Stopped,
    Failed(String),
}

impl OutboxLife {
    /// Runs until it is told to stop.
    pub(crate) async fn run(mut self) -> DrainOutcome {
        loop {
            let failure = match self.connect().await {
                None => return DrainOutcome::Clean,
                Some(Err(error)) => explain(&self.outbox, error).to_string(),
                Some(Ok(store)) => {
                    let mut handle = self.start(store);
                    match self.attend(&mut handle).await {
                        RelayEnd::Stopped => {
                            let why = "draining".to_owned();
                            self.board.tell(self.seat, Health::new(false, why, 0));
                            return handle.drain().await;
                        }
                        RelayEnd::Failed(why) => format!("outbox `{}`: {why}", self.outbox.name),
                    }
                }
            };
            let failure = scrub(&failure);
            if self.board.is_shared() {
                tracing::error!(
                    "{failure}\n  The other outboxes go on; this one is tried again in {} s.",
                    FAILURE_PAUSE.as_secs()
                );
            }
            self.board.fail(self.seat, &failure);
            if self.stopped_within(FAILURE_PAUSE).await {
                return DrainOutcome::Clean;
            }
        }
    }

    /// Connects, however long that takes. `None`: told to stop first.
    async fn connect(&mut self) -> Option<Result<Arc<dyn Store>, StoreError>> {
        let (mut pause, longest) = CONNECT_PAUSE;
        let mut outage = Unreached::default();
        loop {
            let begun = Instant::now();
            let attempt = self.outbox.database.store(self.pace.as_ref());
            let connected = tokio::select! {
                connected = attempt => connected,
                _ = self.stop.wait_for(|stop| *stop) => return None,
            };
            match connected {
                Err(error) if error.is_transient() => {
                    let error = scrub(&error.to_string());
                    let outbox = &self.outbox.name;
                    match outage.failed(Instant::now()) {
                        Some(Duration::ZERO) => {
                            tracing::warn!(%outbox, error, "the database is out of reach; events wait in it and it is tried again");
                        }
                        Some(long) => {
                            let (seconds, failures) = (long.as_secs(), outage.failures);
                            tracing::warn!(%outbox, seconds, failures, error, "the database is still out of reach");
                        }
                        None => {}
                    }
                    // What the server said is in the log. Anybody may ask for the health page.
                    self.board.tell(self.seat, Health::new(false, "waiting for the database".to_owned(), 0));
                }
                settled => {
                    if let Some(long) = outage.outage.succeeded(begun, Instant::now()) {
                        tracing::info!(outbox = %self.outbox.name, seconds = long.as_secs(), "the database is back");
                    }
                    return Some(settled);
                }
            }
            if self.stopped_within(pause).await {
                return None;
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn start(&self, store: Arc<dyn Store>) -> RelayHandle {
        let entry = |part: &SinkPart| SinkEntry {
            name: Arc::clone(&part.name),
            sink: Arc::clone(&part.sink),
            start_at: part.start_at,
            classes: part.classes.clone(),
        };
        let plan = RelayPlan {
            host: crate::output::host().into(),
            outbox: Arc::clone(&self.outbox.name),
            service: Arc::clone(&self.outbox.service),
            relay: Arc::clone(&self.relay),
            store: Arc::new(RatedStore::new(store, self.rates.clone())),
            sinks: self.sinks.iter().map(entry).collect(),
            routes: self.routes.borrow().clone(),
            limits: self.outbox.database.limits(),
            lanes: self.outbox.lanes,
        };
        let (settings, routes) = (self.settings.clone(), self.routes.clone());
        relay::start_in(&self.process, plan, settings, routes, Arc::new(SystemClock))
    }

    /// Reports health until the relay is stopped or fails.
    async fn attend(&mut self, handle: &mut RelayHandle) -> RelayEnd {
        loop {
            self.board.tell(self.seat, handle.health());
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return RelayEnd::Stopped,
                why = handle.failed() => return RelayEnd::Failed(why),
                () = tokio::time::sleep(REPORT) => {}
            }
        }
    }

    async fn stopped_within(&mut self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.stop.wait_for(|stop| *stop)).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_an_outage_less_and_less_often() {
        let (mut outage, began) = (Unreached::default(), Instant::now());
        let mut told = Vec::new();
        for second in (0..=3_600).step_by(5) {
            let long = outage.failed(began + Duration::from_secs(second));
            told.extend(long.map(|long| (long.as_secs(), outage.failures)));
        }
        assert_eq!(told, [(0, 1), (60, 13), (120, 25), (240, 49), (480, 97), (960, 193), (1_920, 385)]);
    }
}
