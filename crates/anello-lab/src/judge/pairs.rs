//! Comparison of any two contenders of a run: ratios of a measure in the rounds of both.
//!
//! The result contains the ratio of every contender to the reference. Reports and comparisons also need other
//! pairs, for example the io_uring and epoll servers of one runtime. They are computed here from the stored slices
//! by the same rules: only clean slices of the same round, in the same phase of the machine.

use std::collections::HashMap;

use crate::judge::analysis::by_process;
use crate::plan::schedule::Random;
use crate::result::Ratio;
use crate::result::measure::Measure;
use crate::result::{LabResult, Quality, Slice};

/// Clean slices of a run, by position.
#[derive(Debug)]
pub struct CleanSlices<'a> {
    /// By cell, contender, pass and round.
    slices: HashMap<(usize, usize, usize, usize), &'a Slice>,
    result: &'a LabResult,
}

impl<'a> CleanSlices<'a> {
    /// Collects the clean slices of `result`.
    #[must_use]
    pub fn of(result: &'a LabResult) -> CleanSlices<'a> {
        let mut slices = HashMap::new();
        for slice in result.slices.iter().filter(|slice| slice.quality == Quality::Clean) {
            slices.entry((slice.cell, slice.contender, slice.pass, slice.round)).or_insert(slice);
        }
        CleanSlices { slices, result }
    }

    /// Returns the values of one contender in one cell, by process.
    #[must_use]
    pub fn values(&self, cell: usize, contender: usize, measure: Measure) -> Vec<Vec<f64>> {
        let value = |pass, round| {
            let slice = self.slices.get(&(cell, contender, pass, round))?;
            measure.of(slice, &self.result.plan.cells[cell])
        };
        self.by_process(cell, value)
    }

    /// Returns the ratios of one contender to another in one cell, by process: one for each round in which both
    /// have a clean slice in the same phase of the machine.
    #[must_use]
    pub fn ratios(&self, cell: usize, contender: usize, other: usize, measure: Measure) -> Vec<Vec<f64>> {
        let ratio = |pass, round| {
            let slice = self.slices.get(&(cell, contender, pass, round))?;
            let other = self.slices.get(&(cell, other, pass, round))?;
            let is_same_phase = slice.phase.is_none() || other.phase.is_none() || slice.phase == other.phase;
            let cell = &self.result.plan.cells[cell];
            let ratio = measure.of(slice, cell)? / measure.of(other, cell)?;
            (is_same_phase && ratio.is_finite()).then_some(ratio)
        };
        self.by_process(cell, ratio)
    }

    /// Returns the ratio of one contender to another in one cell, with its confidence interval. `None` if they have
    /// no round in common.
    #[must_use]
    pub fn ratio(&self, cell: usize, contender: usize, other: usize, measure: Measure) -> Option<Ratio> {
        // Each comparison has its own random stream, so that it does not depend on other comparisons.
        let purpose = ((cell as u64 * 4096 + contender as u64) * 4096 + other as u64) * 8 + measure as u64;
        let mut random = Random::stream(self.result.plan.seed, 1 << 48 | purpose);
        Ratio::of(&self.ratios(cell, contender, other, measure), &mut random)
    }

    /// Returns the values of all rounds, by pass. If every round starts its own process, each value is separate.
    fn by_process(&self, cell: usize, value: impl Fn(usize, usize) -> Option<f64>) -> Vec<Vec<f64>> {
        let plan = &self.result.plan;
        let passes = (0..plan.passes)
            .map(|pass| (0..plan.rounds).filter_map(|round| value(pass, round)).collect())
            .collect();
        by_process(passes, &plan.cells[cell])
    }
}
