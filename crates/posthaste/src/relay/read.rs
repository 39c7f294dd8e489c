//! Reading: when to, how much, and what to do with a page that arrives.

use super::arrival::Fate;
use super::lane::{Lane, alive};
use crate::event::StoredEvent;
use crate::route::Route;
use crate::store::{Care, Page, PageLimit, StoreError};
use crate::task::{TaskDied, spawn};
use std::sync::Arc;
use tokio::time::Instant;

/// Page size of a lane whose former owners died (F21), before it goes one by one.
const SMALL_PAGE: usize = 64;

impl Lane {
    pub(super) fn wants_read(&self) -> bool {
        self.is_open() && self.may_fetch(Instant::now()) && self.room().is_some()
    }

    /// How much may be read now. Tiny pages are not worth a round trip, unless nothing is in hand.
    fn room(&self) -> Option<PageLimit> {
        let settings = &self.settings;
        let most = match self.care {
            Care::None => settings.page_events_max,
            Care::Small => settings.page_events_max.min(SMALL_PAGE),
            Care::OneByOne { .. } => 1,
        };
        let events = settings.max_unsettled_events.saturating_sub(self.window.events()).min(most);
        let bytes =
            settings.max_unsettled_bytes.saturating_sub(self.window.bytes()).min(settings.page_bytes_max);
        let empty_handed = self.window.events() == 0;
        let roomy = events * 2 >= most && bytes * 2 >= settings.page_bytes_max;
        let alone = matches!(self.care, Care::OneByOne { .. }) && !self.window.is_empty();
        let one_page_per_bound = events.max(1);
        (!alone && (roomy || empty_handed))
            .then_some(PageLimit { events: one_page_per_bound, bytes: bytes.max(1) })
    }

    pub(super) fn start_read(&mut self) {
        let now = Instant::now();
        if self.reading.is_some() || !self.wants_read() || !self.pace.is_time(now) {
            return;
        }
        let Some(limit) = self.room() else { return };
        self.read_started = now;
        let lease = Arc::clone(&self.lease);
        self.reading = Some(spawn("read", async move { lease.read(limit).await }));
    }

    pub(super) fn on_read(
        &mut self,
        result: Result<Result<Page, StoreError>, TaskDied>,
    ) -> Result<(), StoreError> {
        let now = Instant::now();
        let page = match alive(result) {
            Ok(page) => page,
            Err(error) => {
                self.tolerate(error, "reading")?;
                self.pace.failed(now);
                return Ok(());
            }
        };
        if self.is_draining() {
            // Pages before it may have been given up, and settling it would settle them too (G2). Nobody has touched
            // it: the next owner reads it.
            return Ok(());
        }
        self.metrics.read.record(self.read_started.elapsed().as_secs_f64());
        self.last_read = page.number;
        self.window.forget_blocked_before(page.number);
        if page.events.is_empty() {
            self.leave_careful_mode_when_drained(page.more);
            if page.more {
                self.pace.found(now, true, &self.settings)
            } else {
                self.pace.found_nothing(now, &self.settings)
            }
            if page.moved {
                self.window.arrive(page.number, 0, 0);
            }
            return Ok(());
        }
        self.metrics.page_events.record(page.events.len() as f64);
        self.pace.found(now, page.more, &self.settings);
        self.ingest(page);
        Ok(())
    }

    /// Nothing more to read, and nothing deferred: whatever killed the former owners is behind us.
    fn leave_careful_mode_when_drained(&mut self, more: bool) {
        let empty_handed = self.window.is_empty() && !self.window.has_due();
        if !more && empty_handed && self.nothing_deferred && self.care != Care::None {
            self.careful_left = 0;
            self.leave_careful_mode();
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

    pub(super) fn is_route_paused(&self, route: &Route) -> bool {
        self.controls.paused_routes.iter().any(|name| **name == *route.name)
    }
}
