//! Seeded random numbers (splitmix64).
//!
//! The generator is small, gives the same numbers on every machine, and is good enough to choose faults. A simulated
//! kernel draws all its decisions in order from one generator, so that the same seed gives the same run.

/// A random number generator.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut scrambled = self.state;
        scrambled = (scrambled ^ (scrambled >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        scrambled = (scrambled ^ (scrambled >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        scrambled ^ (scrambled >> 31)
    }

    /// Returns a number below `bound`, or 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the multiplication is below 2^-32 for the small bounds that are used.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns `true` with a probability of `per_mille` / 1000. Draws no number at 0, so that a kernel without faults
    /// is fast.
    pub fn chance(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_numbers() {
        let (mut one, mut other) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| one.next() == other.next()));
        assert_ne!(Random::new(7).next(), Random::new(8).next());
    }

    #[test]
    fn numbers_cover_range_below_bound() {
        let mut random = Random::new(1);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[random.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn chance_matches_given_rate() {
        let mut random = Random::new(1);
        let hits = (0..100_000).filter(|_| random.chance(100)).count();
        assert!((9_000..11_000).contains(&hits), "{hits} of 100000 at 100 per mille");
        assert!(!random.chance(0));
        assert!(random.chance(1000));
    }

    #[test]
    fn shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..50).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
