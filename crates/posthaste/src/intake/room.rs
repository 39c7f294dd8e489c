//! How much is in an intake (G7).

use super::{IngestRequest, IntakeBounds, IntakeError};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What an event costs beside its payload and headers.
const EVENT_BYTES: usize = 200;

/// Counts what is in an intake, and lets in no more than its bounds say.
#[derive(Debug)]
pub struct IntakeRoom {
    bounds: IntakeBounds,
    requests: AtomicUsize,
    bytes: AtomicUsize,
    events: AtomicU64,
}

/// What one request takes of it, until it is dropped.
#[derive(Debug)]
pub struct IntakePlace<'a> {
    room: &'a IntakeRoom,
    /// Of its events.
    pub bytes: usize,
    /// How many it has.
    pub events: u64,
}

impl IntakeRoom {
    /// Of these bounds.
    #[must_use]
    pub fn new(bounds: IntakeBounds) -> Self {
        Self { bounds, requests: AtomicUsize::new(0), bytes: AtomicUsize::new(0), events: AtomicU64::new(0) }
    }

    /// How much may be in it, and for how long.
    #[must_use]
    pub fn bounds(&self) -> &IntakeBounds {
        &self.bounds
    }

    /// Events that are in it.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// A place for a request, or [`IntakeError::Busy`].
    pub fn enter(&self, request: &IngestRequest) -> Result<IntakePlace<'_>, IntakeError> {
        let (bytes, events) = (bytes_of(request), request.events.len() as u64);
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        let others = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.events.fetch_add(events, Ordering::Relaxed);
        let place = IntakePlace { room: self, bytes, events };
        // A request that is larger than the whole room is let in when nobody else is there.
        let is_full = requests >= self.bounds.requests_max
            || (others > 0 && others.saturating_add(bytes) > self.bounds.bytes_max);
        if is_full { Err(IntakeError::Busy) } else { Ok(place) }
    }
}

impl Drop for IntakePlace<'_> {
    fn drop(&mut self) {
        self.room.requests.fetch_sub(1, Ordering::Relaxed);
        self.room.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.room.events.fetch_sub(self.events, Ordering::Relaxed);
    }
}

fn bytes_of(request: &IngestRequest) -> usize {
    let of = |event: &crate::Event| {
        let headers: usize = event.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        event.payload.as_ref().map_or(0, bytes::Bytes::len) + headers + EVENT_BYTES
    };
    request.events.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Event;

    fn request(bytes: usize) -> IngestRequest {
        let events = vec![Event::new("t", vec![0; bytes])];
        IngestRequest { tenant: "acme".into(), topic: "t".into(), events, idempotency: None }
    }

    #[test]
    fn no_more_is_let_in_than_the_bounds_say_and_a_place_is_given_back() {
        let bounds = IntakeBounds { requests_max: 2, bytes_max: 1_000, ..IntakeBounds::default() };
        let room = IntakeRoom::new(bounds);
        let large = room.enter(&request(5_000)).expect("nobody else is there");
        assert!(room.enter(&request(1)).is_err(), "its bytes are all of them");
        drop(large);
        let (first, second) =
            (room.enter(&request(1)).expect("room"), room.enter(&request(1)).expect("room"));
        assert_eq!(room.events(), 2);
        assert!(room.enter(&request(1)).is_err(), "two requests");
        drop(first);
        assert!(room.enter(&request(900)).is_err(), "too many bytes");
        let third = room.enter(&request(1)).expect("room");
        drop((second, third));
        assert_eq!((room.events(), room.enter(&request(1)).is_ok()), (0, true));
    }
}
