//! Paired ratios of any two contenders in a run, computed from clean slices of the same round and machine phase.
//!
//! The result contains the ratio of every contender to the reference. Reports and comparisons also need other pairs,
//! for example the io_uring and epoll servers of one runtime.

use std::collections::HashMap;

use crate::plan::cell::Workload;
use crate::plan::schedule::Random;
use crate::result::measure::Measure;
use crate::result::{Comparison, LabResult, Quality, Ratio, Slice};

/// Clean slices of a run, by cell and contender.
#[derive(Debug)]
pub struct CleanSlices<'a> {
    /// Slices for each cell and contender, ordered by pass and round.
    slices: HashMap<(usize, usize), Vec<&'a Slice>>,
    pub(super) result: &'a LabResult,
}

impl<'a> CleanSlices<'a> {
    /// Collects the clean slices of `result`.
    pub fn of(result: &'a LabResult) -> CleanSlices<'a> {
        let mut slices: HashMap<_, Vec<&Slice>> = HashMap::new();
        for slice in result.slices.iter().filter(|slice| slice.quality == Quality::Clean) {
            slices.entry((slice.cell, slice.contender)).or_default().push(slice);
        }
        for slices in slices.values_mut() {
            slices.sort_by_key(|slice| (slice.pass, slice.round));
            slices.dedup_by_key(|slice| (slice.pass, slice.round));
        }
        CleanSlices { slices, result }
    }

    pub(super) fn all(&self, cell: usize, contender: usize) -> &[&'a Slice] {
        self.slices.get(&(cell, contender)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn values(&self, cell: usize, contender: usize, measure: Measure) -> Vec<Vec<f64>> {
        let of = &self.result.plan.cells[cell];
        let slices = self.all(cell, contender).iter();
        self.by_process(cell, slices.filter_map(|slice| Some((slice.pass, measure.of(slice, of)?))))
    }

    /// Returns the ratios of one contender to another, grouped by process. There is one ratio for each round in which
    /// both have a clean slice in the same machine phase. Also returns the number of rounds in which the phase changed
    /// between the two slices.
    fn pairs(&self, cell: usize, contender: usize, other: usize, measure: Measure) -> (Vec<Vec<f64>>, usize) {
        let of = &self.result.plan.cells[cell];
        let others = self.all(cell, other);
        let mut mixed_rounds = 0;
        let ratios = self.all(cell, contender).iter().filter_map(|slice| {
            let position = others.binary_search_by_key(&(slice.pass, slice.round), |s| (s.pass, s.round));
            let other = others[position.ok()?];
            if slice.phase.is_some() && other.phase.is_some() && slice.phase != other.phase {
                mixed_rounds += 1;
                return None;
            }
            let ratio = measure.of(slice, of)? / measure.of(other, of)?;
            ratio.is_finite().then_some((slice.pass, ratio))
        });
        (self.by_process(cell, ratios), mixed_rounds)
    }

    pub(crate) fn ratios(
        &self,
        cell: usize,
        contender: usize,
        other: usize,
        measure: Measure,
    ) -> Vec<Vec<f64>> {
        self.pairs(cell, contender, other, measure).0
    }

    /// Returns the ratio of one contender to another in one cell. `None` if they have no round in common.
    pub fn ratio(&self, cell: usize, contender: usize, other: usize, measure: Measure) -> Option<Ratio> {
        // Each comparison has its own random stream, so it does not depend on other comparisons.
        let purpose = ((cell as u64 * 4096 + contender as u64) * 4096 + other as u64) * 8 + measure as u64;
        let mut random = Random::stream(self.result.plan.seed, 1 << 48 | purpose);
        Ratio::of(&self.ratios(cell, contender, other, measure), &mut random)
    }

    /// Compares two contenders by the applicable `measures`. Also returns the number of rounds with a phase change.
    pub(super) fn compare(
        &self,
        cell: usize,
        contender: usize,
        other: usize,
        measures: impl IntoIterator<Item = Measure>,
        random: &mut Random,
    ) -> (Comparison, usize) {
        let (mut comparison, mut mixed_rounds) = (Comparison::default(), 0);
        for measure in measures.into_iter().filter(|measure| measure.applies(&self.result.plan.cells[cell])) {
            *comparison.get_mut(measure).0 = if measure == Measure::TotalCpu {
                // This measure has its own random stream, so it does not affect the intervals of the other measures.
                self.ratio(cell, contender, other, measure)
            } else {
                let (ratios, mixed) = self.pairs(cell, contender, other, measure);
                mixed_rounds = mixed;
                Ratio::of(&ratios, random)
            };
        }
        (comparison, mixed_rounds)
    }

    /// Groups values by server process, which lives for one pass or, for idle connections, for one round.
    fn by_process(&self, cell: usize, values: impl Iterator<Item = (usize, f64)>) -> Vec<Vec<f64>> {
        let plan = &self.result.plan;
        if plan.cells[cell].workload == Workload::Idle {
            return values.map(|(_, value)| vec![value]).collect();
        }
        let mut passes = vec![Vec::new(); plan.passes];
        for (pass, value) in values {
            passes.get_mut(pass).into_iter().for_each(|values| values.push(value));
        }
        passes
    }
}
