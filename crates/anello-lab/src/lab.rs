//! A complete run: measurement and analysis.

use std::sync::atomic::AtomicBool;

use crate::judge::analysis;
use crate::plan::config::LabConfig;
use crate::result::LabResult;
use crate::run::load::Load;
use crate::run::machine::Machine;
use crate::run::participants::Participants;
use crate::run::progress::{Observer, Progress};
use crate::run::{LabError, measure};

/// Runs the lab. When `stop` becomes true, the run finishes the current slice, aborts any check or warm-up in progress,
/// and returns the results so far.
///
/// All started contenders have exited when this function returns.
///
/// # Errors
/// Returns [`LabError`] if the configuration is invalid or no contender could be started. Failures of individual
/// contenders are part of the result.
pub fn run(
    config: &LabConfig,
    load: &mut dyn Load,
    machine: &mut dyn Machine,
    progress: &mut dyn FnMut(Progress),
    stop: &AtomicBool,
) -> Result<LabResult, LabError> {
    run_from(config, None, load, machine, &mut ProgressOnly(progress), stop)
}

/// Runs the lab like [`run`], writes checkpoints, and resumes `previous` if given. Cells that are complete in
/// `previous` are not repeated. Data from its incomplete cells is discarded.
///
/// # Errors
/// Returns the errors of [`run`], and [`LabError::Resume`] if the plan, the contenders or the machine differ from those
/// in `previous`.
pub fn run_from(
    config: &LabConfig,
    previous: Option<LabResult>,
    load: &mut dyn Load,
    machine: &mut dyn Machine,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<LabResult, LabError> {
    let participants = Participants { config, load, machine, observer: &mut *observer, stop };
    let mut result = measure(participants, previous)?;
    observer.progress(Progress::Analysis);
    analysis::analyse(&mut result);
    Ok(result)
}

/// Observer that ignores checkpoints.
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
