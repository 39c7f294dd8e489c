//! The generic cell rate algorithm: a token bucket that is one number.
//!
//! The number is the **theoretical arrival time** (`tat`): when the bucket would be full again. Whoever takes
//! moves it by its cost; whoever would move it further than a whole burst ahead of now waits. One pure
//! function, in Rust here and as a script on Redis: both compute with doubles, so they agree to the last bit.
//!
//! `tat` is never further ahead than one burst. So a limit that was raised is in force at once, and a clock
//! that was an hour ahead costs nobody an hour. A refusal must write that down, too: a `tat` that is only
//! looked at as if it were nearer is a whole burst ahead of every moment at which somebody looks.
//!
//! Refused: a crate. They keep one rate for all keys, and their arithmetic cannot be told to Redis.

/// Microseconds by which an event may be early. Doubles that hold the time since 1970 are this exact and no
/// better, and a burst that was promised must pass.
const GRAIN_US: f64 = 1.0;

/// A rate, as the algorithm computes with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Events in a second, for ever.
    pub per_s: f64,
    /// Events at once.
    pub burst: u32,
}

impl Rate {
    /// Microseconds from one event to the next.
    #[must_use]
    pub fn interval_us(&self) -> f64 {
        1e6 / self.per_s
    }
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Taken {
    /// Taken: this is the next `tat`.
    Now {
        /// To be kept.
        tat_us: f64,
        /// Events that could be taken after it.
        left: u32,
        /// Microseconds until the bucket is full.
        full_in_us: u64,
    },
    /// Nothing was taken.
    Wait {
        /// Microseconds until it could be, if nobody else takes.
        for_us: u64,
        /// Microseconds until a single event could be: whoever comes before that is refused in any case.
        one_us: u64,
        /// Events that could be taken now.
        left: u32,
        /// To be kept, because the one that was kept is further ahead than a burst. Else each look would find
        /// the bucket empty anew, and nobody would pass until that time.
        nearer_us: Option<f64>,
    },
}

/// Takes `cost` events at this moment, out of a bucket with this `tat`; `None`: nobody took yet.
#[must_use]
pub fn take(tat_us: Option<f64>, now_us: f64, rate: Rate, cost: u32) -> Taken {
    let interval = rate.interval_us();
    let room = f64::from(rate.burst) * interval;
    let tat = tat_us.unwrap_or(now_us).max(now_us).min(now_us + room);
    let left = |tat: f64| ((room - (tat - now_us) + GRAIN_US) / interval).floor().max(0.0) as u32;
    let early = |cost: f64| tat + cost * interval - now_us - room;
    let wait = early(f64::from(cost));
    if wait > GRAIN_US {
        let one = early(1.0).max(0.0).ceil() as u64;
        let nearer_us = tat_us.is_some_and(|kept| kept > tat).then_some(tat);
        return Taken::Wait { for_us: wait.ceil() as u64, one_us: one, left: left(tat), nearer_us };
    }
    let tat = tat + f64::from(cost) * interval;
    Taken::Now { tat_us: tat, left: left(tat), full_in_us: (tat - now_us).max(0.0).ceil() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate { per_s: 10.0, burst: 5 };
    /// Of the year 2026: where doubles are as coarse as they get.
    const TODAY: f64 = 1.79e15;

    fn taken(tat: Option<f64>, now: f64, cost: u32) -> Option<f64> {
        match take(tat, now, RATE, cost) {
            Taken::Now { tat_us, .. } => Some(tat_us),
            Taken::Wait { .. } => None,
        }
    }

    #[test]
    fn a_burst_passes_and_the_next_waits_its_turn() {
        let mut tat = None;
        for _ in 0..5 {
            tat = Some(taken(tat, TODAY, 1).expect("within the burst"));
        }
        let Taken::Wait { for_us, one_us, left, nearer_us } = take(tat, TODAY, RATE, 1) else {
            panic!("beyond it")
        };
        assert_eq!((for_us, one_us, left, nearer_us), (100_000, 100_000, 0, None));
        assert!(taken(tat, TODAY + 100_000.0, 1).is_some());
        assert!(taken(tat, TODAY + 99_000.0, 1).is_none());
        let Taken::Now { left, full_in_us, .. } = take(tat, TODAY + 300_000.0, RATE, 2) else { panic!() };
        assert_eq!((left, full_in_us), (1, 400_000));
    }

    #[test]
    fn what_is_larger_than_the_burst_never_passes() {
        assert!(taken(None, TODAY, 6).is_none());
        assert!(taken(None, TODAY, 5).is_some());
    }

    /// Of a clock that was ahead, or of a limit that was lower.
    #[test]
    fn a_time_far_ahead_is_one_burst_ahead() {
        let ahead = Some(TODAY + 3.6e9);
        let Taken::Wait { for_us, nearer_us, .. } = take(ahead, TODAY, RATE, 1) else { panic!() };
        assert_eq!((for_us, nearer_us), (100_000, Some(TODAY + 500_000.0)));
        assert!(taken(nearer_us, TODAY + 100_000.0, 1).is_some(), "whoever obeys passes");
        assert!(taken(nearer_us, TODAY + 500_000.0, 5).is_some());
    }

    #[test]
    fn a_wait_for_many_remembers_only_the_wait_for_one() {
        let tat = taken(None, TODAY, 3);
        let Taken::Wait { for_us, one_us, left, .. } = take(tat, TODAY, RATE, 4) else { panic!() };
        assert_eq!((for_us, one_us, left), (200_000, 0, 2));
    }

    proptest! {
        /// Over every window: rate × time + burst, whoever asks, whenever, for however many.
        #[test]
        fn no_window_has_more_than_rate_and_burst(
            per_s in 0.1f64..100_000.0, burst in 1u32..1_000,
            asks in proptest::collection::vec((0u64..2_000_000, 1u32..50), 1..200),
        ) {
            let rate = Rate { per_s, burst };
            let (mut now, mut tat, mut passed) = (TODAY, None, Vec::new());
            for (pause, cost) in asks {
                now += pause as f64;
                match take(tat, now, rate, cost) {
                    Taken::Now { tat_us, left, .. } => {
                        tat = Some(tat_us);
                        prop_assert!(left < burst);
                        passed.push((now, cost));
                    }
                    Taken::Wait { for_us, one_us, .. } => {
                        prop_assert!(one_us <= for_us);
                        // A client that obeys passes.
                        let later = now + for_us as f64;
                        let obeys = matches!(take(tat, later, rate, cost), Taken::Now { .. });
                        prop_assert!(obeys || cost > burst);
                    }
                }
            }
            for (first, (from, _)) in passed.iter().enumerate() {
                let mut sum = 0.0;
                for (to, cost) in &passed[first..] {
                    sum += f64::from(*cost);
                    let bound = (to - from) / rate.interval_us() + f64::from(burst);
                    let grain = (passed.len() as f64) * 2.0 * GRAIN_US / rate.interval_us();
                    prop_assert!(sum <= bound + grain + 1e-6, "{sum} of {bound}");
                }
            }
        }

        /// Whatever is kept, of whichever clock and limit: who asks again and again has its burst within the
        /// time that a burst takes.
        #[test]
        fn nobody_waits_longer_than_a_burst(
            off in -1e10f64..1e10, per_s in 0.1f64..100_000.0, burst in 1u32..1_000, asks in 1u32..50,
        ) {
            let rate = Rate { per_s, burst };
            let (mut tat, room) = (Some(TODAY + off), f64::from(burst) * rate.interval_us());
            for ask in 0..asks {
                match take(tat, TODAY + room * f64::from(ask) / f64::from(asks), rate, burst) {
                    Taken::Now { .. } => return Ok(()),
                    Taken::Wait { nearer_us, .. } => tat = nearer_us.or(tat),
                }
            }
            let passes = matches!(take(tat, TODAY + room + GRAIN_US, rate, burst), Taken::Now { .. });
            prop_assert!(passes, "{tat:?}");
        }

        /// A bucket that somebody asks without a pause gives its whole rate.
        #[test]
        fn nobody_gets_less_than_the_rate(per_s in 1f64..100_000.0, burst in 1u32..1_000) {
            let rate = Rate { per_s, burst };
            let (mut tat, mut passed) = (None, 0u32);
            let mut now = TODAY;
            let end = TODAY + 200.0 * rate.interval_us();
            while now < end {
                match take(tat, now, rate, 1) {
                    Taken::Now { tat_us, .. } => { tat = Some(tat_us); passed += 1; }
                    Taken::Wait { for_us, .. } => now += (for_us as f64).max(1.0),
                }
            }
            prop_assert!(f64::from(passed) >= 0.9 * 200.0 + f64::from(burst) - 2.0, "{passed}");
        }
    }
}
