//! Care: an event that kills its relay must not do so for ever (F21).
//!
//! A log writes nothing when an event is read, so such an event would be attempt 1 for ever. What can be seen
//! is an owner that died without giving its lane back, and where the lane stood then. A few deaths at one
//! **place** make the next owner careful: small pages first, then one event at a time, each written down
//! before it is published. The event that is in hand at a death is charged with it.
//!
//! A place is a stretch, not a number. An owner holds up to [`WINDOW`] events behind the cursor in hand, and
//! any of them may be the one that kills. What it settles before it dies moves the cursor, but not out of
//! that stretch: if every step started the count again, an event in front of which there is always something
//! left to settle would kill hundreds of relays before anybody became careful.

use std::time::Duration;

/// What one owner may hold between its cursor and the event that kills it: the default of
/// `max_unsettled_events`.
const WINDOW: i64 = 8_192;
/// Deaths at one place before pages get small, and before events are taken one by one.
const SMALL_PAGES_AFTER: u32 = 2;
const ONE_BY_ONE_AFTER: u32 = 3;
/// Whoever held a partition for this long and lives has met what kills there.
const PROVEN_AFTER: Duration = Duration::from_secs(600);

/// How carefully the owner of a lane must go, after former owners died at this place (F21).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Care {
    /// As usual.
    #[default]
    None,
    /// Small pages.
    Small,
    /// One event at a time, written down before it is published.
    OneByOne {
        /// The event that was in hand when the last owner died, and how often that happened.
        suspect: Option<(i64, u32)>,
    },
}

impl Care {
    /// In words.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self {
            Self::None => "as usual",
            Self::Small => "little at a time",
            Self::OneByOne { .. } => "one by one",
        }
    }
}

/// How far a lane's numbers may move and still be at one place. A sink's lanes share the log's numbers.
#[must_use]
pub fn reach(lanes_of_sink: i64) -> i64 {
    WINDOW.saturating_mul(lanes_of_sink.max(1))
}

/// What a store remembers of the owners that died in a lane, or in a consumer's partition. A lane that is
/// given back forgets it; a partition by [`Deaths::given_back`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deaths {
    /// Owners that died at this place.
    pub unclean: u32,
    /// Where the first of them died: the position of the lane then.
    pub place: Option<i64>,
    /// The event that was in hand at a death, and the deaths charged to it.
    pub suspect: Option<(i64, u32)>,
}

impl Deaths {
    /// One more owner died, with the lane standing at `place`, and this event written down as in hand.
    #[must_use]
    pub fn and_one(&self, place: i64, in_hand: Option<i64>, reach: i64) -> Self {
        let first = self.place.filter(|first| (0..=reach).contains(&place.saturating_sub(*first)));
        let suspect = match (in_hand, self.suspect) {
            (Some(seq), Some((suspect, deaths))) if seq == suspect => Some((seq, deaths.saturating_add(1))),
            (Some(seq), _) => Some((seq, 1)),
            (None, suspect) => suspect,
        };
        let same_place = first.is_some() || in_hand.is_some();
        Self {
            unclean: if same_place { self.unclean.saturating_add(1) } else { 1 },
            place: first.or(Some(place)),
            suspect,
        }
    }

    /// A consumer's partition was given back at `place`, by an owner that held it for so long. Each member
    /// that dies and joins again moves partitions to and fro. One that was held for a moment has not passed
    /// the place: its deaths count on.
    #[must_use]
    pub fn given_back(self, place: i64, held: Duration, reach: i64) -> Self {
        let is_here = self.place.is_some_and(|first| (0..=reach).contains(&place.saturating_sub(first)));
        if is_here && held < PROVEN_AFTER { self } else { Self::default() }
    }

    /// How the next owner must go. Whoever died one by one is followed by one who goes on one by one,
    /// whatever progress came before.
    #[must_use]
    pub fn care(&self, in_hand: Option<i64>) -> Care {
        if in_hand.is_some() || self.unclean > ONE_BY_ONE_AFTER {
            return Care::OneByOne { suspect: self.suspect };
        }
        if self.unclean > SMALL_PAGES_AFTER { Care::Small } else { Care::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Owners that die at these places, nothing in hand.
    fn died_at(places: impl IntoIterator<Item = i64>) -> Deaths {
        places.into_iter().fold(Deaths::default(), |deaths, place| deaths.and_one(place, None, reach(1)))
    }

    #[test]
    fn deaths_at_one_number_add_up() {
        let cares: Vec<Care> = (1..=5).map(|n| died_at(std::iter::repeat_n(700, n)).care(None)).collect();
        let one_by_one = Care::OneByOne { suspect: None };
        assert_eq!(cares, [Care::None, Care::None, Care::Small, one_by_one.clone(), one_by_one]);
    }

    #[test]
    fn small_steps_do_not_start_the_count_again() {
        // Something is always settled before the event kills: pages of 200, then of 64.
        assert_eq!(died_at([0, 200, 400, 464]).care(None), Care::OneByOne { suspect: None });
    }

    #[test]
    fn whoever_left_the_stretch_left_the_place() {
        let far = reach(1) + 1;
        let deaths = died_at([0, 0, 0, far]);
        assert_eq!((deaths.unclean, deaths.place), (1, Some(far)));
        // Steps are counted from the first death: creeping along is progress in the end.
        let deaths = died_at([0, reach(1), reach(1) + 1]);
        assert_eq!(deaths.unclean, 1);
    }

    #[test]
    fn a_lane_that_was_put_back_starts_again() {
        assert_eq!(died_at([500, 500, 500, 10]).unclean, 1, "a rewind");
    }

    #[test]
    fn a_partition_that_was_held_for_a_moment_keeps_its_deaths() {
        let deaths = died_at([500, 500]);
        let given_back = |place, held| deaths.clone().given_back(place, held, reach(1)).unclean;
        assert_eq!(given_back(510, Duration::from_secs(5)), 2);
        assert_eq!(given_back(510, PROVEN_AFTER), 0, "nobody dies there");
        assert_eq!(given_back(501 + reach(1), Duration::from_secs(5)), 0, "the place was left");
        assert_eq!(given_back(10, Duration::from_secs(5)), 0, "a seek");
    }

    #[test]
    fn lanes_share_the_numbers() {
        let eight = Deaths::default().and_one(0, None, reach(8)).and_one(60_000, None, reach(8));
        assert_eq!(eight.unclean, 2);
    }

    #[test]
    fn the_event_in_hand_is_charged() {
        let deaths = died_at([0]).and_one(5, Some(6), reach(1)).and_one(5, Some(6), reach(1));
        assert_eq!(deaths.care(Some(6)), Care::OneByOne { suspect: Some((6, 2)) });
        let other = deaths.and_one(9, Some(10), reach(1));
        assert_eq!(other.suspect, Some((10, 1)));
        assert_eq!(
            other.and_one(9, None, reach(1)).suspect,
            Some((10, 1)),
            "nothing in hand, nothing charged"
        );
    }
}
