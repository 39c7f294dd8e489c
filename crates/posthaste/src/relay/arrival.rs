//! An event arrives, from the log or from among the deferred: what becomes of it under the routes of now.

use super::batch::{Origin, Pending, Tag};
use super::lane::Lane;
use crate::event::StoredEvent;
use crate::retry::Permanent;
use crate::route::{Refused, Route};
use crate::sink::Failure;
use crate::store::{Death, Deferral, Detained, Due, ErrorClass, Reason};
use std::sync::Arc;

/// What becomes of an event on arrival.
pub(super) enum Fate {
    Publish(Pending),
    Defer(StoredEvent, Deferral),
    Dead(StoredEvent, Death),
}

impl Lane {
    /// An event of a page. `why` is what the store saw against publishing it at once.
    pub(super) fn receive(&self, stored: StoredEvent, page: u64, index: u32, why: Option<Detained>) -> Fate {
        let fate = self.encode(stored, Origin::Page(page), index, 0);
        let Fate::Publish(pending) = fate else { return fate };
        match self.must_wait(&pending, why) {
            Some((reason, due)) => {
                let deferral = pending.waits(reason, due);
                Fate::Defer(pending.message.stored, deferral)
            }
            None => Fate::Publish(pending),
        }
    }

    fn must_wait(&self, pending: &Pending, why: Option<Detained>) -> Option<(Reason, Due)> {
        let is_behind = |key| why == Some(Detained::Behind) || self.window.is_blocked(key);
        match why {
            Some(Detained::Scheduled) => Some((Reason::Scheduled, Due::AtDelivery)),
            _ if pending.message.order_key().is_some_and(is_behind) => Some((Reason::Held, Due::Behind)),
            _ if self.terms.is_route_paused(&pending.tag.route) => Some((Reason::Paused, pending.in_turn())),
            _ if self.destinations.is_closed(&pending.message.destination) => {
                Some((Reason::Outage, pending.in_turn()))
            }
            _ => None,
        }
    }

    /// Makes a message of an event, if it can be one.
    pub(super) fn encode(&self, stored: StoredEvent, origin: Origin, index: u32, attempts: u32) -> Fate {
        let dead = |stored, route, attempts, failure| {
            Fate::Dead(stored, Death::new(route, attempts, ErrorClass::Permanent, failure))
        };
        // A topic that no route takes: of a log, or of an adopted table, where nobody takes the event either.
        let Some(route) = self.terms.route(&stored.event.topic) else {
            let failure = Failure::of_event("route.none", "no route matches the topic; add one and replay");
            return dead(stored, None, attempts, failure);
        };
        // An event that was in hand each time the relay died is given up.
        if let Some(deaths) = self.caution.deaths_of(stored.seq, &self.terms.settings) {
            let error = format!("the relay died {deaths} times with this event in hand");
            return dead(stored, Some(route), deaths, Failure::of_event("relay.crashed", error));
        }
        match route.encode(stored, &self.context.service, &self.context.limits) {
            Ok(message) => Fate::Publish(Pending {
                tag: Tag { origin, index, attempts, route: Arc::clone(route) },
                message,
            }),
            Err(refused) => self.refused(route, attempts, *refused),
        }
    }

    /// An event that cannot be published as it is. It dies, unless its route counts that as an attempt like
    /// any other.
    fn refused(&self, route: &Route, attempts: u32, refused: Refused) -> Fate {
        let Refused { stored, failure } = refused;
        let attempts = attempts.saturating_add(u32::from(route.retry.permanent == Permanent::Retry));
        if !route.retry.outlives_permanent(attempts) {
            return Fate::Dead(stored, Death::new(Some(route), attempts, ErrorClass::Permanent, failure));
        }
        self.metrics.failures.increment(1);
        self.metrics.retries.increment(1);
        let due = Due::In(route.retry.delay(attempts, self.context.clock.chance()));
        let deferral = Deferral::new(route, String::new(), attempts, Reason::Retry, due);
        Fate::Defer(stored, deferral.after(ErrorClass::Permanent, &failure))
    }
}
