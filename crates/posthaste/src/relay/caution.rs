//! How carefully a lane goes after former owners died in it (F21), and until when.

use super::settings::RelaySettings;
use crate::store::{Care, Lease};
use crate::task::{Task, spawn};
use std::sync::Arc;

/// Page size of a lane whose former owners died, before it goes one by one.
const SMALL_PAGE: usize = 64;

pub(super) struct Caution {
    care: Care,
    /// Events still to be settled before the lane goes back to normal.
    left: usize,
    /// Writing down that nothing is in hand any more.
    forgetting: Option<Task<()>>,
}

impl Caution {
    pub(super) fn new(lease: &dyn Lease, settings: &RelaySettings) -> Self {
        let care = lease.care();
        if care != Care::None {
            tracing::warn!(lane = %lease.id(), ?care, "former owners died here: going carefully");
        }
        Self { care, left: settings.max_unsettled_events, forgetting: None }
    }

    pub(super) fn is_one_by_one(&self) -> bool {
        matches!(self.care, Care::OneByOne { .. })
    }

    /// Events in one page, at most.
    pub(super) fn page_events_max(&self, settings: &RelaySettings) -> usize {
        match self.care {
            Care::None => settings.page_events_max,
            Care::Small => settings.page_events_max.min(SMALL_PAGE),
            Care::OneByOne { .. } => 1,
        }
    }

    /// How often the relay died with this event in hand, if that is too often.
    pub(super) fn deaths_of(&self, seq: i64, settings: &RelaySettings) -> Option<u32> {
        self.charged(seq).filter(|deaths| *deaths >= settings.crash_limit)
    }

    /// Whether the relay's death with this event in hand would be one too many.
    pub(super) fn is_last_chance(&self, seq: i64, settings: &RelaySettings) -> bool {
        self.charged(seq).unwrap_or(0).saturating_add(1) >= settings.crash_limit
    }

    fn charged(&self, seq: i64) -> Option<u32> {
        let Care::OneByOne { suspect: Some((suspect, deaths)) } = self.care else { return None };
        (seq == suspect).then_some(deaths)
    }

    /// Events that are about to be settled.
    pub(super) fn progress(&mut self, events: usize) {
        self.left = self.left.saturating_sub(events);
    }

    /// Nothing is left that could have killed the former owners.
    pub(super) fn all_clear(&mut self) {
        self.left = 0;
    }

    /// Clean progress past the place where former owners died: back to normal. To be asked while nothing is
    /// with the sink.
    pub(super) fn relax(&mut self, lease: &Arc<dyn Lease>) {
        if self.care == Care::None || self.left > 0 {
            return;
        }
        tracing::info!(lane = %lease.id(), "past the dangerous place: back to normal");
        self.care = Care::None;
        let lease = Arc::clone(lease);
        self.forgetting = Some(spawn("in hand", async move {
            // A failure only leaves the lane more careful than it needs to be after the next death.
            let _ = lease.take_in_hand(None).await;
        }));
    }
}
