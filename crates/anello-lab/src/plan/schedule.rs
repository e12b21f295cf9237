//! Random but reproducible orderings.
//!
//! With a fixed order, each contender would always run with the caches and CPU frequency left by the same predecessor.
//! [`Random`] implements SplitMix64 instead of using a library, so that the seed of an old report still produces the
//! same run.

/// Pseudorandom number generator.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Creates an independent sequence for one purpose. Additional draws in one sequence do not affect another.
    pub fn stream(seed: u64, purpose: u64) -> Random {
        let mut random = Random::new(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Random::new(random.next_bits())
    }

    /// Creates the random sequence that determines the order within a pass, or within one cell of the pass. The
    /// sequence depends only on the arguments, so a resumed run continues in the same order.
    pub fn for_position(seed: u64, pass: usize, cell: Option<usize>) -> Random {
        let mut random = Random::stream(seed, 1 << 63 | pass as u64);
        Random::stream(random.next_bits(), cell.map_or(0, |cell| cell as u64 + 1))
    }

    fn next_bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a uniformly distributed number below `bound`. Returns 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_bits()) * (bound as u128);
        (wide >> 64) as usize
    }

    /// Returns a number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the indexes 0 to `count` - 1 in random order.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}
