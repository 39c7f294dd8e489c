//! Room for requests and for their bodies (G7).
//!
//! Both are bounded, for all and for each tenant: one tenant has an eighth. Whoever finds no room is told so
//! at once, and nothing of theirs is kept.

use super::roll::{KnownTenant, Load};
use super::section::BoundsSection;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What one tenant may take of everything.
const SHARE: usize = 8;

/// How much is under way.
#[derive(Default)]
pub(super) struct Room {
    all: Arc<Load>,
}

/// A place, until it is dropped.
pub(super) struct Reserved {
    all: Arc<Load>,
    own: Arc<Load>,
    bytes: usize,
}

impl Room {
    /// A place for a request of this tenant.
    pub(super) fn enter(&self, tenant: &KnownTenant, bounds: &BoundsSection) -> Option<Reserved> {
        let (all, own) = (&self.all, &tenant.load);
        if !Load::add(&own.requests, 1, bounds.requests_max / SHARE) {
            return None;
        }
        if !Load::add(&all.requests, 1, bounds.requests_max) {
            own.requests.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Reserved { all: Arc::clone(all), own: Arc::clone(own), bytes: 0 })
    }
}

impl Reserved {
    /// Room for more bytes of its body.
    pub(super) fn grow(&mut self, bytes: usize, bounds: &BoundsSection) -> bool {
        if !Load::add(&self.own.bytes, bytes, bounds.inflight_bytes_max / SHARE) {
            return false;
        }
        if !Load::add(&self.all.bytes, bytes, bounds.inflight_bytes_max) {
            self.own.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        for load in [&self.all, &self.own] {
            load.requests.fetch_sub(1, Ordering::AcqRel);
            load.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}
