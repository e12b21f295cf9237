//! Any two contenders of a run side by side: the ratio of a figure in rounds that both went through.
//!
//! The result holds every contender's ratio to the reference. Readers ask for other pairs too (one system's io_uring
//! against its own epoll, this run against that one); these are made here from the slices that the result keeps, by
//! the same rules: only clean slices, within one round, in the same phase of the machine.

use std::collections::HashMap;

use crate::analysis::by_process;
use crate::measure::Measure;
use crate::result::{LabResult, Quality, Slice};
use crate::schedule::Random;
use crate::statistics::Ratio;

/// The clean slices of a run, by where they belong.
#[derive(Debug)]
pub struct CleanSlices<'a> {
    /// By cell, contender, pass and round.
    slices: HashMap<(usize, usize, usize, usize), &'a Slice>,
    result: &'a LabResult,
}

impl<'a> CleanSlices<'a> {
    /// Those of `result`.
    #[must_use]
    pub fn of(result: &'a LabResult) -> CleanSlices<'a> {
        let mut slices = HashMap::new();
        for slice in result.slices.iter().filter(|slice| slice.quality == Quality::Clean) {
            slices.entry((slice.cell, slice.contender, slice.pass, slice.round)).or_insert(slice);
        }
        CleanSlices { slices, result }
    }

    /// The values of one contender in one cell, by pass.
    #[must_use]
    pub fn values(&self, cell: usize, contender: usize, measure: Measure) -> Vec<Vec<f64>> {
        let value = |pass, round| {
            let slice = self.slices.get(&(cell, contender, pass, round))?;
            measure.of(slice, &self.result.plan.cells[cell])
        };
        self.by_process(cell, value)
    }

    /// The ratios of one contender to another in one cell, by pass: one for each round that both went through in the
    /// same phase of the machine.
    #[must_use]
    pub fn ratios(&self, cell: usize, contender: usize, other: usize, measure: Measure) -> Vec<Vec<f64>> {
        let ratio = |pass, round| {
            let slice = self.slices.get(&(cell, contender, pass, round))?;
            let other = self.slices.get(&(cell, other, pass, round))?;
            let same_phase = slice.phase.is_none() || other.phase.is_none() || slice.phase == other.phase;
            let of = &self.result.plan.cells[cell];
            let ratio = measure.of(slice, of)? / measure.of(other, of)?;
            (same_phase && ratio.is_finite()).then_some(ratio)
        };
        self.by_process(cell, ratio)
    }

    /// The ratio of one contender to another in one cell with its interval; none if there is no round that both went
    /// through.
    #[must_use]
    pub fn ratio(&self, cell: usize, contender: usize, other: usize, measure: Measure) -> Option<Ratio> {
        // A stream of its own for every question, so that the answer does not depend on what else is asked.
        let purpose = ((cell as u64 * 4096 + contender as u64) * 4096 + other as u64) * 8 + measure as u64;
        let mut random = Random::stream(self.result.plan.seed, 1 << 48 | purpose);
        Ratio::of(&self.ratios(cell, contender, other, measure), &mut random)
    }

    /// The values of all rounds, by pass; where every round has a process of its own, each by itself.
    fn by_process(&self, cell: usize, value: impl Fn(usize, usize) -> Option<f64>) -> Vec<Vec<f64>> {
        let plan = &self.result.plan;
        let passes = (0..plan.passes)
            .map(|pass| (0..plan.rounds).filter_map(|round| value(pass, round)).collect())
            .collect();
        by_process(passes, &plan.cells[cell])
    }
}
