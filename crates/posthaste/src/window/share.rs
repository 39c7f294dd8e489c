//! How partitions share the window: none of them can fill it.
//!
//! A partition has at most a quarter of what is free and what it has itself. So however many of them stand
//! still, each next one finds room. One that has its share is not read from until it has less. If that takes
//! long, it is paused at the source, and the others go on without it. A partition that is alone has all.

use super::partition::PartitionState;
use crate::source::Limit;
use std::time::Duration;
use tokio::time::Instant;

/// A partition that has its share for so long is paused.
const CROWDS_FOR: Duration = Duration::from_secs(1);

/// What is free of the window, and for how many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
    /// Whether several partitions share it, or may with the next answer of the source.
    pub(crate) is_shared: bool,
}

/// What is left for one that has so much already, of which so much is free.
fn left(free: usize, has: usize) -> usize {
    let most = free.saturating_sub(has.saturating_mul(3));
    if most == 0 { 0 } else { (most / 4).max(1) }
}

impl Share {
    pub(crate) fn is_full(self) -> bool {
        self.events == 0 || self.bytes == 0
    }

    /// What one call of the source may bring: no partition gets more than its share by it.
    pub(crate) fn room<'a>(self, partitions: impl Iterator<Item = &'a PartitionState> + Clone) -> Limit {
        let Self { mut events, mut bytes, is_shared } = self;
        if is_shared {
            // One counts until the source has paused it.
            let read =
                partitions.filter(|state| state.is_reading() && (!state.is_paused || state.is_pausing));
            // Large messages of paused partitions fill it, perhaps for hours. Whoever has nothing gets one.
            let has_nothing = |state: &PartitionState| state.hand.open() == 0;
            if bytes == 0 && events > 0 && read.clone().next().is_some() && read.clone().all(has_nothing) {
                return Limit { events: 1, bytes: 1 };
            }
            let most =
                read.fold((0, 0), |(open, own), state| (state.hand.open().max(open), state.bytes.max(own)));
            (events, bytes) = (left(events, most.0), left(bytes, most.1));
        }
        Limit { events: if bytes == 0 { 0 } else { events }, bytes }
    }

    /// Messages that a partition may have.
    pub(crate) fn of(self, state: &PartitionState) -> usize {
        let all = self.events + state.hand.open();
        if self.is_shared { all / 4 } else { all }
    }

    /// Notes whether a partition has its share for long.
    pub(crate) fn note(self, state: &mut PartitionState, now: Instant) {
        let (open, own) = (state.hand.open(), state.bytes);
        // It comes back with half of its share.
        let times = if state.is_crowding { 6 } else { 3 };
        let has_share =
            (open > 0 && open * times >= self.events) || (own > 0 && own.saturating_mul(times) >= self.bytes);
        if !self.is_shared || !state.is_reading() || !has_share {
            (state.crowds_since, state.is_crowding) = (None, false);
            return;
        }
        let since = *state.crowds_since.get_or_insert(now);
        state.is_crowding |= now.saturating_duration_since(since) >= CROWDS_FOR;
    }
}

#[cfg(test)]
mod tests {
    use super::left;

    #[test]
    fn however_many_stand_still_the_next_one_finds_room() {
        let mut free = 8_192;
        for _ in 0..20 {
            let mut has = 0;
            while let more @ 1.. = left(free, has) {
                (free, has) = (free - more, has + more);
            }
            assert!(has > 0 && free > 0, "{has} of {free}");
        }
        assert_eq!((left(1, 0), left(0, 0)), (1, 0));
    }
}
