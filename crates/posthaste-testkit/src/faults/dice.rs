//! Chance under a seed.

use std::time::Duration;

/// A small random generator (splitmix64): the same seed gives the same throws on every machine.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Dice of their own, for somebody whose throws must not depend on others'.
    pub fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high.max(low) - low + 1)
    }

    /// An index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.bits() % length.max(1) as u64).expect("below a length")
    }

    /// Whether something with this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        ((self.bits() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }

    /// A duration up to `max`.
    pub fn up_to(&mut self, max: Duration) -> Duration {
        Duration::from_micros(self.between(0, u64::try_from(max.as_micros()).unwrap_or(u64::MAX - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        assert!((0..100).all(|_| a.bits() == b.bits()));
        assert_ne!(Dice::new(1).bits(), Dice::new(2).bits());
    }

    #[test]
    fn ranges_include_both_ends() {
        let mut dice = Dice::new(1);
        let throws: Vec<u64> = (0..200).map(|_| dice.between(3, 5)).collect();
        assert!([3, 4, 5].iter().all(|n| throws.contains(n)) && throws.iter().all(|n| (3..=5).contains(n)));
    }
}
