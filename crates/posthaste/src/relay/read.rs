//! Reading: when to, how much, and what to do with a page that arrives.

use super::lane::{Lane, alive};
use super::window::{Arrival, Origin, Pending};
use crate::event::StoredEvent;
use crate::route::{OnDead, Order, Refused, Route, UNROUTED};
use crate::sink::{Failure, Message};
use crate::store::{Care, Death, Deferral, Detained, Due, ErrorClass, Page, PageLimit, Reason, StoreError};
use crate::task::{TaskDied, spawn};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Page size of a lane whose former owners died (F21), before it goes one by one.
const SMALL_PAGE: usize = 64;

/// What becomes of an event on arrival.
enum Fate {
    Publish(Pending),
    Defer(StoredEvent, Deferral),
    Dead(StoredEvent, Death),
}

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
                self.window.arrive(Arrival {
                    number: page.number,
                    events: 0,
                    bytes: 0,
                    waiting: Vec::new(),
                    deferred: Vec::new(),
                    dead: Vec::new(),
                });
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
        let number = page.number;
        let events = page.events.len();
        let bytes = page.events.iter().map(StoredEvent::bytes).sum();
        let mut arrival = Arrival {
            number,
            events,
            bytes,
            waiting: Vec::with_capacity(events),
            deferred: Vec::new(),
            dead: Vec::new(),
        };
        let mut detained = page.detained.into_iter().peekable();
        for (index, stored) in page.events.into_iter().enumerate() {
            let why = detained.next_if(|(at, _)| *at == index).map(|(_, why)| why);
            match self.fate(stored, number, index as u32, why) {
                Fate::Publish(pending) => arrival.waiting.push(pending),
                Fate::Defer(stored, deferral) => {
                    if deferral.holds
                        && let Some(key) = &stored.event.key
                    {
                        self.window.block(key, number);
                    }
                    arrival.deferred.push((stored, deferral));
                }
                Fate::Dead(stored, death) => {
                    self.died(&stored.event, &death);
                    if death.holds
                        && let Some(key) = &stored.event.key
                    {
                        self.window.block(key, number);
                    }
                    arrival.dead.push((stored, death));
                }
            }
        }
        self.window.arrive(arrival);
        self.metrics.unsettled.set(self.window.events() as f64);
    }

    fn fate(&self, stored: StoredEvent, page: u64, index: u32, why: Option<Detained>) -> Fate {
        let Some(route) = self.routes.find(&self.lease.id().sink, &stored.event.topic) else {
            return Fate::Dead(stored, no_route(0));
        };
        if let Some(death) = self.killer(&stored, route) {
            return Fate::Dead(stored, death);
        }
        let message = match route.encode(stored, &self.context.service, &self.context.limits) {
            Ok(message) => message,
            Err(refusal) => {
                let Refused { stored, failure } = *refusal;
                return match self.refused_again(route, 0, &failure) {
                    Some(deferral) => Fate::Defer(stored, deferral),
                    None => Fate::Dead(stored, refused(route, failure)),
                };
            }
        };
        let behind = route.order == Order::Key
            && message
                .stored
                .event
                .key
                .as_deref()
                .is_some_and(|key| why == Some(Detained::Behind) || self.window.is_blocked(key));
        let wait = match why {
            Some(Detained::Scheduled) => Some((Reason::Scheduled, Due::AtDelivery)),
            _ if behind => Some((Reason::Held, Due::Behind)),
            _ if self.is_route_paused(route) => Some((Reason::Paused, in_turn(&message))),
            _ if self.destinations.contains_key(&message.destination) => {
                Some((Reason::Outage, in_turn(&message)))
            }
            _ => None,
        };
        match wait {
            Some((reason, due)) => {
                let deferral = self.waiting(route, message.destination, reason, due);
                Fate::Defer(message.stored, deferral)
            }
            None => Fate::Publish(Pending {
                origin: Origin::Page(page),
                index,
                attempts: 0,
                message,
                route: Arc::clone(route),
            }),
        }
    }

    /// An event that was in hand each time the relay died is given up.
    pub(super) fn killer(&self, stored: &StoredEvent, route: &Route) -> Option<Death> {
        let Care::OneByOne { suspect: Some((seq, deaths)) } = self.care else { return None };
        (seq == stored.seq && deaths >= self.settings.crash_limit).then(|| Death {
            attempts: deaths,
            class: ErrorClass::Permanent,
            code: "relay.crashed".to_owned(),
            error: format!("the relay died {deaths} times with this event in hand"),
            route: Arc::clone(&route.name),
            holds: route.on_dead == OnDead::Hold && route.order == Order::Key && stored.event.key.is_some(),
        })
    }

    pub(super) fn is_route_paused(&self, route: &Route) -> bool {
        self.controls.paused_routes.iter().any(|name| **name == *route.name)
    }

    /// A deferral without a failed attempt.
    pub(super) fn waiting(
        &self,
        route: &Arc<Route>,
        destination: String,
        reason: Reason,
        due: Due,
    ) -> Deferral {
        Deferral {
            reason,
            due,
            attempts: 0,
            class: None,
            error: None,
            route: Arc::clone(&route.name),
            destination,
            holds: route.order == Order::Key && reason.holds(),
            holds_when_dead: route.order == Order::Key && route.on_dead == OnDead::Hold,
        }
    }
}

/// At once, but not before what is earlier in its key: such an event may still be in flight, undecided,
/// while this one is put aside. By the time it is settled, so are they.
pub(super) fn in_turn(message: &Message) -> Due {
    if message.order_key().is_some() { Due::Behind } else { Due::In(Duration::ZERO) }
}

/// A topic that no route takes: of a log, or of an adopted table, where nobody takes the event either.
pub(super) fn no_route(attempts: u32) -> Death {
    Death {
        attempts,
        class: ErrorClass::Permanent,
        code: "route.none".to_owned(),
        error: "no route matches the topic; add one and replay".to_owned(),
        route: UNROUTED.into(),
        holds: false,
    }
}

fn refused(route: &Route, failure: Failure) -> Death {
    Death {
        attempts: 0,
        class: ErrorClass::Permanent,
        code: failure.code.into_owned(),
        error: failure.message,
        route: Arc::clone(&route.name),
        holds: route.on_dead == OnDead::Hold && route.order == Order::Key,
    }
}
