//! The values that the view shows. Drawing does not change them.

use std::time::{Duration, Instant};

use anello_lab::result::{Quality, Slice};
use anello_lab::{Cell, LabConfig, Progress};

pub struct LabState {
    pub title: String,
    pub contenders: Vec<String>,
    pub cells: Vec<Cell>,
    /// Slices of each contender in each cell.
    pub slices_per_row: usize,
    /// Slices of the whole run: all, and those measured or skipped so far.
    pub slices: usize,
    pub done: usize,
    pub activity: String,
    /// Contender, cell and round of the slice that runs.
    pub current: Option<(usize, usize, usize)>,
    /// All slices so far.
    pub measured: Vec<Slice>,
    /// Last failure of a contender.
    pub failure: Option<String>,
    pub is_stopping: bool,
    start: Instant,
    estimate: Duration,
    /// Time of the first slice, and the number of slices done before.
    first_slice: Option<(Instant, usize)>,
}

/// A contender in a cell: slices so far, and medians over the clean ones.
#[derive(Debug, PartialEq)]
pub struct RowValues {
    pub slices: usize,
    pub rate: Option<f64>,
    pub cpu_ns: Option<f64>,
    pub p99_ns: Option<f64>,
}

impl LabState {
    /// `measured` are the slices of the run that is resumed.
    pub fn new(config: &LabConfig, measured: Vec<Slice>) -> Self {
        let names = config.contenders.iter().map(|contender| contender.name.clone());
        Self {
            title: config.scenario.name.clone(),
            contenders: names.collect(),
            cells: config.cells.clone(),
            slices_per_row: config.timing.rounds * config.timing.passes,
            slices: config.slice_count(),
            done: 0,
            activity: "starting".to_owned(),
            current: None,
            measured,
            failure: None,
            is_stopping: false,
            start: Instant::now(),
            estimate: config.estimated_time(),
            first_slice: None,
        }
    }

    pub fn update(&mut self, progress: &Progress) {
        match progress {
            Progress::Begin { slices } => self.slices = *slices,
            Progress::Checking { contender, what } => self.activity = format!("checking {contender}: {what}"),
            Progress::Cell { cell, pass } => {
                self.activity = format!("pass {}: opening connections for {cell}", pass + 1);
            }
            &Progress::Measuring { contender, cell, round } => {
                self.first_slice.get_or_insert((Instant::now(), self.done));
                self.current = Some((contender, cell, round));
                self.activity = format!("measuring {}", self.contenders[contender]);
            }
            Progress::Measured(slice) => self.measured.push((**slice).clone()),
            Progress::Slices { done } => self.done = *done,
            Progress::Failed(failure) => {
                let (contender, what) = (&failure.contender, &failure.what);
                self.failure = Some(format!("{contender}: {what} ({})", failure.consequence));
            }
            Progress::Analysis => self.activity = "analyzing".to_owned(),
            _ => {}
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Estimates the remaining time: from the slices so far or, before the first slice, from the configuration.
    pub fn time_left(&self) -> Duration {
        match self.first_slice {
            Some((first, done_before)) if self.done > done_before => {
                let per_slice = first.elapsed().as_secs_f64() / (self.done - done_before) as f64;
                Duration::from_secs_f64(per_slice * self.slices.saturating_sub(self.done) as f64)
            }
            _ => self.estimate.saturating_sub(self.elapsed()),
        }
    }

    pub fn row(&self, cell: usize, contender: usize) -> RowValues {
        let of_row = |slice: &&Slice| slice.cell == cell && slice.contender == contender;
        let slices = self.measured.iter().filter(of_row);
        let clean: Vec<&Slice> = slices.clone().filter(|slice| slice.quality == Quality::Clean).collect();
        let median = |value: &dyn Fn(&Slice) -> f64| {
            let mut values: Vec<f64> = clean.iter().map(|slice| value(slice)).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        RowValues {
            slices: slices.count(),
            rate: median(&requests_per_second),
            cpu_ns: median(&|slice| slice.cpu_ns as f64 / slice.requests.max(1) as f64),
            p99_ns: median(&|slice| slice.p99_ns as f64),
        }
    }

    /// Returns the rates of the slices in the current cell, in the order of measurement.
    pub fn rates_in_cell(&self) -> Vec<u64> {
        let Some((_, cell, _)) = self.current else { return Vec::new() };
        let slices = self.measured.iter().filter(|slice| slice.cell == cell);
        slices.map(|slice| requests_per_second(slice) as u64).collect()
    }
}

pub fn requests_per_second(slice: &Slice) -> f64 {
    slice.requests as f64 * 1e9 / slice.elapsed_ns.max(1) as f64
}
