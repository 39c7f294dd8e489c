//! The terms of a lane's work, as of this turn of its loop: settings, routes, and what operators set; and for
//! how long it may go on.

use super::settings::RelaySettings;
use crate::route::{Route, RouteTable};
use crate::store::Controls;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

pub(super) struct Terms {
    pub(super) settings: Current<RelaySettings>,
    routes: Current<RouteTable>,
    controls: Current<Controls>,
    sink: Arc<str>,
}

impl Terms {
    pub(super) fn new(
        settings: watch::Receiver<RelaySettings>,
        routes: watch::Receiver<RouteTable>,
        controls: watch::Receiver<Controls>,
        sink: Arc<str>,
    ) -> Self {
        let (settings, routes) = (Current::new(settings), Current::new(routes));
        Self { settings, routes, controls: Current::new(controls), sink }
    }

    /// As they are now. Answers whether operators set something new.
    pub(super) fn refresh(&mut self) -> bool {
        self.settings.refresh();
        self.routes.refresh();
        self.controls.refresh()
    }

    /// The route of a topic to the sink.
    pub(super) fn route(&self, topic: &str) -> Option<&Arc<Route>> {
        self.routes.find(&self.sink, topic)
    }

    /// Whether the sink is paused.
    pub(super) fn are_paused(&self) -> bool {
        self.controls.paused_sinks.iter().any(|name| **name == *self.sink)
    }

    pub(super) fn is_route_paused(&self, route: &Route) -> bool {
        self.controls.paused_routes.iter().any(|name| **name == *route.name)
    }

    pub(super) fn paused_routes(&self) -> &[String] {
        &self.controls.paused_routes
    }

    /// The sink's rate limit, over all its lanes.
    pub(super) fn rate_limit(&self) -> Option<f64> {
        self.controls.rate_limits.iter().find(|(name, _)| **name == *self.sink).map(|(_, rate)| *rate)
    }
}

/// A value that somebody else sets, as of the last look.
pub(super) struct Current<T> {
    value: T,
    newest: watch::Receiver<T>,
}

impl<T: Clone> Current<T> {
    fn new(mut newest: watch::Receiver<T>) -> Self {
        let value = newest.borrow_and_update().clone();
        Self { value, newest }
    }

    /// Answers whether there is a new one.
    fn refresh(&mut self) -> bool {
        let newest = self.newest.borrow_and_update();
        if newest.has_changed() {
            self.value.clone_from(&newest);
        }
        newest.has_changed()
    }
}

impl<T> Deref for Current<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// For how long a lane may go on.
pub(super) struct Tenure {
    /// The lease is trusted until then.
    trust: watch::Receiver<Instant>,
    stop: watch::Receiver<bool>,
    is_draining: bool,
}

impl Tenure {
    pub(super) fn new(trust: watch::Receiver<Instant>, stop: watch::Receiver<bool>) -> Self {
        Self { trust, stop, is_draining: false }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(super) fn trust(&self) -> &watch::Receiver<Instant> {
        &self.trust
    }

    /// Whether a publish may start: the lease outlives its timeout (F22).
    pub(super) fn is_trusted(&self, now: Instant, settings: &RelaySettings) -> bool {
        now + settings.publish_timeout() <= *self.trust.borrow()
    }

    /// Resolves when the lease is trusted for longer, or the lane is to stop.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            biased;
            _ = self.trust.changed() => {}
            stopped = self.stop.changed(), if !self.is_draining => {
                // A supervisor that vanished means the same as one that says stop.
                self.is_draining = stopped.is_err() || *self.stop.borrow();
            }
        }
    }
}
