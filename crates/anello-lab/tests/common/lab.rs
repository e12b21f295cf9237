//! Configurations for simulated runs, and their checks.

use std::path::PathBuf;
use std::time::Duration;

use anello_lab::{Cell, Contender, CoreLayout, LabConfig, LabResult};

/// Returns the quick preset with these contenders and cells, on two cores and without checks. With checks, a contender
/// that fails to start is not measured at all.
pub fn config_of(contenders: Vec<Contender>, cells: Vec<Cell>, seed: u64) -> LabConfig {
    let mut config = LabConfig {
        contenders,
        cells,
        check: false,
        cores: CoreLayout::new(vec![0], vec![1]),
        ..LabConfig::quick(PathBuf::from("server"))
    };
    config.timing.slice = Duration::from_millis(50);
    config.timing.seed = seed;
    config
}

/// Returns the checks of a run: contender, check, and whether it passed.
#[allow(dead_code, reason = "not used by every test program")]
pub fn checks_of(result: &LabResult) -> Vec<(&str, &str, bool)> {
    let checks = result.checks.iter();
    checks.map(|check| (check.contender.as_str(), check.what.as_str(), check.passed)).collect()
}
