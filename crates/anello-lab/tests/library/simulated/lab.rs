//! Functions that configure, run and compare simulated runs, and that list their checks.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anello_lab::compare::{Comparison, Counted, compare_counting};
use anello_lab::{
    Cell, Contender, CoreLayout, LabConfig, LabError, LabResult, Load, Machine, Observer, Progress, run_from,
};

/// Returns the number of runs with which a test measures a probability: `long` if `ANELLO_LONG` is set.
pub fn run_count(short: usize, long: usize) -> usize {
    if std::env::var_os("ANELLO_LONG").is_some() { long } else { short }
}

/// Returns the quick preset with these contenders and cells, on two cores and without checks. With checks, a contender
/// that fails to start is not measured at all.
pub fn config_of(contenders: Vec<Contender>, cells: Vec<Cell>, seed: u64) -> LabConfig {
    let mut config = LabConfig {
        contenders,
        cells,
        check: false,
        cores: CoreLayout::new(vec![0], vec![1]),
        ..LabConfig::preset("quick", PathBuf::from("server")).unwrap()
    };
    config.timing.slice = Duration::from_millis(50);
    config.timing.seed = seed;
    config
}

/// Returns the contender and the name of each check in a run, and whether the check passed.
pub fn checks_of(result: &LabResult) -> Vec<(&str, &str, bool)> {
    let checks = result.checks.iter();
    checks.map(|check| (check.contender.as_str(), check.what.as_str(), check.passed)).collect()
}

/// Runs the lab without checkpoints.
pub fn run(
    config: &LabConfig,
    load: &mut dyn Load,
    machine: &mut dyn Machine,
    progress: &mut dyn FnMut(Progress),
    stop: &AtomicBool,
) -> Result<LabResult, LabError> {
    run_from(config, None, load, machine, &mut ProgressOnly(progress), stop)
}

struct ProgressOnly<'a>(&'a mut dyn FnMut(Progress));

impl Observer for ProgressOnly<'_> {
    fn progress(&mut self, progress: Progress) {
        (self.0)(progress);
    }

    fn checkpoint(&mut self, _result: &LabResult) {}

    fn keeps_checkpoints(&self) -> bool {
        false
    }
}

/// Compares two runs and counts the regressions in the anello contenders.
pub fn compare(before: &LabResult, after: &LabResult, threshold: f64) -> Comparison {
    compare_counting(before, after, threshold, &[Counted::Anello])
}
