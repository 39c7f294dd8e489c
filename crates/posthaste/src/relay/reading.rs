//! Reading: when to, how much, and what to do with a page that arrives.

use super::arrival::Fate;
use super::lane::{Lane, ended};
use super::pace::Pace;
use super::settings::RelaySettings;
use crate::event::StoredEvent;
use crate::store::{Lease, Page, PageLimit, Store, StoreError};
use crate::task::{Task, spawn};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct Reading {
    task: Option<Task<Result<Page, StoreError>>>,
    started: Instant,
    /// The newest page that arrived.
    last: u64,
    pace: Pace,
    /// Asking the store for wakeups: whether it can wake us, and for how long.
    dozing: Option<Task<Result<(bool, Duration), StoreError>>>,
    listening: Option<Task<Result<(), StoreError>>>,
}

impl Reading {
    pub(super) fn new() -> Self {
        let pace = Pace::new();
        Self { task: None, started: Instant::now(), last: 0, pace, dozing: None, listening: None }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// The newest page that was sent for.
    pub(super) fn newest(&self) -> u64 {
        self.last + u64::from(self.is_busy())
    }

    fn begin(&mut self, lease: &Arc<dyn Lease>, limit: PageLimit, now: Instant) {
        self.started = now;
        let lease = Arc::clone(lease);
        self.task = Some(spawn("read", async move { lease.read(limit).await }));
    }

    /// The longest pause may have become shorter meanwhile.
    pub(super) fn hurry(&mut self, now: Instant, settings: &RelaySettings) {
        self.pace.hurry(now, settings);
    }

    /// The next page; or `None` when the store said something about wakeups.
    pub(super) async fn next(&mut self, settings: &RelaySettings) -> Option<Result<Page, StoreError>> {
        tokio::select! {
            biased;
            page = ended(&mut self.task) => return Some(page),
            answer = ended(&mut self.dozing) => match answer {
                Ok((true, length)) => self.pace.flagged(Instant::now(), length),
                Ok((false, _)) => self.pace.cannot_wake(),
                // A hint that could not be asked for: polling goes on.
                Err(_) => {}
            },
            _ = ended(&mut self.listening) => self.pace.woken(Instant::now(), settings),
        }
        None
    }

    fn listen(&mut self, store: &Arc<dyn Store>) {
        if self.listening.is_none() {
            let store = Arc::clone(store);
            self.listening = Some(spawn("wakeup", async move {
                store.wakeup().await;
                Ok(())
            }));
        }
    }

    /// Asks the store for wakeups before a long pause.
    fn doze(&mut self, store: &Arc<dyn Store>) {
        let is_idle = self.task.is_none() && self.dozing.is_none();
        if let Some(length) = self.pace.wants_doze(Instant::now()).filter(|_| is_idle) {
            let store = Arc::clone(store);
            let asked = async move { Ok((store.doze(length).await?, length)) };
            self.dozing = Some(spawn("doze", asked));
        }
    }
}

impl Lane {
    /// How much may be read now. Tiny pages are not worth a round trip, unless nothing is in hand.
    fn room(&self) -> Option<PageLimit> {
        let settings = &self.terms.settings;
        let most = self.caution.page_events_max(settings).min(settings.max_unsettled_events);
        let events = settings.max_unsettled_events.saturating_sub(self.window.events()).min(most);
        let bytes =
            settings.max_unsettled_bytes.saturating_sub(self.window.bytes()).min(settings.page_bytes_max);
        let empty_handed = self.window.events() == 0;
        let roomy = events * 2 >= most && bytes * 2 >= settings.page_bytes_max;
        let alone = self.caution.is_one_by_one() && !self.window.is_empty();
        let one_page_per_bound = events.max(1);
        (!alone && (roomy || empty_handed))
            .then_some(PageLimit { events: one_page_per_bound, bytes: bytes.max(1) })
    }

    /// How much is to be read next, and when.
    fn next_read(&self, now: Instant) -> Option<(PageLimit, Instant)> {
        let may_read = !self.reading.is_busy() && self.is_open() && self.may_fetch(now);
        let limit = may_read.then(|| self.room()).flatten()?;
        Some((limit, self.reading.pace.next_read()))
    }

    pub(super) fn reads_at(&self, now: Instant) -> Option<Instant> {
        self.next_read(now).map(|(_, at)| at)
    }

    pub(super) fn start_read(&mut self) {
        let now = Instant::now();
        if let Some((limit, _)) = self.next_read(now).filter(|(_, at)| now >= *at) {
            self.reading.begin(&self.lease, limit, now);
        }
    }

    pub(super) fn start_doze(&mut self) {
        if self.tenure.is_draining() {
            return;
        }
        self.reading.listen(&self.context.store);
        if self.calls.are_over() && !self.terms.are_paused() && self.breaker.is_closed() {
            self.reading.doze(&self.context.store);
        }
    }

    pub(super) fn on_read(&mut self, page: Option<Result<Page, StoreError>>) -> Result<(), StoreError> {
        let now = Instant::now();
        let page = match page {
            None => return Ok(()),
            Some(Ok(page)) => page,
            Some(Err(error)) => {
                self.tolerate(error, "reading")?;
                self.reading.pace.failed(now);
                return Ok(());
            }
        };
        if self.tenure.is_draining() {
            // Pages before it may have been given up, and settling it would settle them too (G2). Nobody has
            // touched it: the next owner reads it.
            return Ok(());
        }
        self.metrics.read.record(self.reading.started.elapsed().as_secs_f64());
        self.reading.last = page.number;
        self.window.forget_blocked_before(page.number);
        let settings = &self.terms.settings;
        if page.more || !page.events.is_empty() {
            self.reading.pace.found(now, page.more, settings);
        } else {
            self.reading.pace.found_nothing(now, settings);
        }
        if !page.events.is_empty() {
            self.metrics.page_events.record(page.events.len() as f64);
            self.ingest(page);
            return Ok(());
        }
        if !page.more {
            self.relax_when_drained();
        }
        if page.moved {
            self.window.arrive(page.number, 0, 0);
        }
        Ok(())
    }

    /// Nothing more to read, and nothing deferred: whatever killed the former owners is behind us.
    fn relax_when_drained(&mut self) {
        let empty_handed = self.window.is_empty() && self.window.due_in_hand() == 0;
        if empty_handed && self.deferred.are_none() {
            self.caution.all_clear();
            self.relax();
        }
    }

    fn ingest(&mut self, page: Page) {
        let (number, bytes) = (page.number, page.events.iter().map(StoredEvent::bytes).sum());
        self.window.arrive(number, page.events.len(), bytes);
        let mut detained = page.detained.into_iter().peekable();
        for (index, stored) in page.events.into_iter().enumerate() {
            let why = detained.next_if(|(at, _)| *at == index).map(|(_, why)| why);
            match self.receive(stored, number, index as u32, why) {
                Fate::Publish(pending) => self.window.line_up(pending),
                Fate::Defer(stored, deferral) => self.window.defer_fresh(number, stored, deferral),
                Fate::Dead(stored, death) => {
                    self.died(&stored.event, &death);
                    self.window.bury_fresh(number, stored, death);
                }
            }
        }
        self.metrics.unsettled.set(self.window.events() as f64);
    }
}
