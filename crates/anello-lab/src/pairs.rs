//! Any two contenders of a run side by side: the ratio of a figure in rounds that both went through.
//!
//! The result holds every contender's ratio to the reference. Readers ask for other pairs too (one system's io_uring
//! against its own epoll, this run against that one); these are made here from the slices that the result keeps, by
//! the same rules: only clean slices, within one round, in the same phase of the machine.

use std::collections::HashMap;

use crate::analysis::by_process;
use crate::cell::{Cell, Workload};
use crate::result::{LabResult, Quality, Slice};
use crate::schedule::Random;
use crate::statistics::Ratio;

/// A figure that every slice has a value of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Requests (disk: operations) per second: more is better.
    Rate,
    /// Server CPU time per request (disk: per operation), in nanoseconds: less is better.
    Cpu,
    /// Median latency in nanoseconds: less is better.
    P50,
    /// 99th percentile of the latency in nanoseconds: less is better.
    P99,
    /// Memory of the process for each idle connection, in bytes: less is better.
    Memory,
}

impl Measure {
    /// The value of a slice in `cell`; none if the slice cannot tell, or the value makes no ratio.
    #[must_use]
    pub fn of(self, slice: &Slice, cell: &Cell) -> Option<f64> {
        let value = match self {
            Measure::Rate => slice.requests_per_second(),
            Measure::Cpu => slice.cpu_ns_per_request(),
            Measure::P50 => slice.p50_ns as f64,
            Measure::P99 => slice.p99_ns as f64,
            Measure::Memory => slice.memory_per_connection(cell.connections)?,
        };
        (value.is_finite() && value > 0.0).then_some(value)
    }

    /// What is worth comparing in a cell, the most telling first.
    #[must_use]
    pub fn of_cell(cell: &Cell) -> &'static [Measure] {
        match (cell.workload, cell.offered_per_second) {
            (Workload::Idle, _) => &[Measure::Memory],
            (_, Some(_)) => &[Measure::Cpu, Measure::P99, Measure::P50],
            (_, None) => &[Measure::Cpu, Measure::Rate],
        }
    }

    /// Whether more of it is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        self == Measure::Rate
    }

    /// Its name in a sentence about such a workload: disks do operations, and what does them is no server.
    #[must_use]
    pub fn name(self, workload: Workload) -> &'static str {
        match (self, workload.is_disk()) {
            (Measure::Rate, true) => "operations/s",
            (Measure::Rate, false) => "requests/s",
            (Measure::Cpu, true) => "CPU per operation",
            (Measure::Cpu, false) => "server CPU per request",
            (Measure::P50, _) => "median latency",
            (Measure::P99, _) => "p99 latency",
            (Measure::Memory, _) => "memory per connection",
        }
    }
}

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
