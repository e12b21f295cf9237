//! The order of things, random but repeatable.
//!
//! A fixed order would hand every contender the same neighbour, and whatever that neighbour leaves behind in caches
//! and frequency governors. [`Random`] is SplitMix64: small, well mixed, and its sequence will never change under us,
//! so a seed in an old report still means the same run.

/// A seeded source of random numbers. Not for secrets.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// An independent sequence for one purpose, so that more draws in one place do not shift another.
    #[must_use]
    pub fn stream(seed: u64, purpose: u64) -> Random {
        let mut random = Random::new(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Random::new(random.next_bits())
    }

    /// The sequence that decides the order of things in a cell of a pass, or in the pass itself. It depends on nothing
    /// else, so that a run that is taken up again goes on in the same order.
    #[must_use]
    pub fn for_position(seed: u64, pass: usize, cell: Option<usize>) -> Random {
        let mut random = Random::stream(seed, 1 << 63 | pass as u64);
        Random::stream(random.next_bits(), cell.map_or(0, |cell| cell as u64 + 1))
    }

    /// The next 64 random bits.
    pub fn next_bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, evenly; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_bits()) * (bound as u128);
        (wide >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The indexes 0 to `count` - 1 in random order.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_holds_every_index_once() {
        for seed in 0..200 {
            let mut order = Random::new(seed).order(9);
            order.sort_unstable();
            assert_eq!(order, (0..9).collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_order_and_another_seed_another() {
        assert_eq!(Random::new(7).order(20), Random::new(7).order(20));
        assert_ne!(Random::new(7).order(20), Random::new(8).order(20));
    }

    #[test]
    fn every_place_is_reached_about_equally_often() {
        let mut random = Random::new(1);
        let mut first = [0u32; 8];
        for _ in 0..8000 {
            first[random.order(8)[0]] += 1;
        }
        assert!(first.iter().all(|&count| (850..1150).contains(&count)), "{first:?}");
    }

    #[test]
    fn every_place_has_an_order_of_its_own() {
        let order = |pass, cell| Random::for_position(3, pass, cell).order(20);
        assert_eq!(order(1, Some(2)), order(1, Some(2)));
        let all = [order(0, None), order(1, None), order(0, Some(0)), order(0, Some(1)), order(1, Some(0))];
        assert!((0..all.len()).all(|left| (0..left).all(|right| all[left] != all[right])));
    }

    #[test]
    fn below_zero_bound_is_zero_and_unit_stays_under_one() {
        let mut random = Random::new(3);
        assert_eq!(random.below(0), 0);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
