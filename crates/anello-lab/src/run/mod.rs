//! Control flow of a run: check, start, connect, measure in slices, restart failed contenders, stop everything.
//!
//! ```text
//!  check every contender (complete bytes, a stalled reader, many connections); contenders that fail are not timed
//!  for each pass:
//!    for each number of server cores:   start all contenders
//!      for each cell, in random order:   connect all contenders, warm each up
//!        for each round:   one slice for each contender, in random order
//!        checkpoint
//!      stop all contenders
//! ```
//!
//! A contender that fails within a cell is restarted once per cell and pass. If it fails again, it is
//! skipped for the rest of the cell. A contender with wrong replies is not measured in that cell again, because the
//! speed of an incorrect server is meaningless.
//!
//! All random orders are functions of the seed, the pass and the cell, not of earlier events. An interrupted run
//! can therefore be resumed ([`measure`]) and continues as if it had not been interrupted.

mod affinity;
pub mod checkpoint;
mod cpu_throttle;
mod environment;
pub mod load;
pub mod local;
pub mod machine;
pub(crate) mod participants;
pub mod process;
pub mod progress;
mod record;
pub(crate) mod replace;
mod runner;
pub mod simulation;
mod site;
mod temporary;
pub mod tls;

use std::sync::atomic::Ordering;

use thiserror::Error;

use crate::plan::limits::ConfigError;
use crate::result::{Failure, LabResult};
use crate::run::participants::Participants;
use crate::run::progress::Progress;
use crate::run::runner::Runner;

pub use record::ResumeError;

/// Reason why a run has no result.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LabError {
    /// The configuration is invalid.
    #[error("cannot run: {0}")]
    Config(#[from] ConfigError),
    /// The run cannot be resumed from this result.
    #[error("cannot resume the run: {0}")]
    Resume(#[from] ResumeError),
    /// No contender could be started. Contains the failure of each contender.
    #[error("no contender could be started{}", list(.0))]
    NothingStarted(Vec<Failure>),
}

fn list(failures: &[Failure]) -> String {
    failures.iter().map(|failure| format!("\n  {}: {}", failure.contender, failure.what)).collect()
}

/// Measures the cells of `config` that `previous` has not completed. The result has no analysis.
///
/// # Errors
/// Returns [`LabError`] if the configuration is invalid, the run cannot be resumed, or no contender could be started.
pub(crate) fn measure(
    participants: Participants<'_>,
    previous: Option<LabResult>,
) -> Result<LabResult, LabError> {
    let Participants { config, load, machine, observer, stop } = participants;
    config.validate()?;
    let mut result = record::new_result(config, machine);
    if let Some(previous) = previous {
        result = record::resume(previous, result)?;
    }
    for note in machine.prepare(config) {
        if !result.notes.contains(&note) {
            result.notes.push(note);
        }
    }
    let cores = config.all_cores();
    let (earlier_ns, earlier_foreign) = (result.elapsed_ns, result.other_cpu_fraction);
    let start_ns = machine.now_ns();
    let foreign_before_ns = machine.other_cpu_ns(&cores);
    observer.progress(Progress::Begin { slices: config.slice_count() });
    let participants = Participants { config, load, machine: &mut *machine, observer, stop };
    let mut runner = Runner::new(participants, &mut result);
    runner.check_all();
    for pass in 0..config.timing.passes {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        runner.run_pass(pass);
    }
    let ever_started = runner.finish();
    result.elapsed_ns = earlier_ns + machine.now_ns().saturating_sub(start_ns);
    if let (Some(before_ns), Some(after_ns)) = (foreign_before_ns, machine.other_cpu_ns(&cores)) {
        let other_cpu_ns = after_ns.saturating_sub(before_ns) as f64 / cores.len() as f64;
        let earlier_ns = earlier_foreign.map_or(0.0, |fraction| fraction * earlier_ns as f64);
        result.other_cpu_fraction = Some((other_cpu_ns + earlier_ns) / result.elapsed_ns.max(1) as f64);
    }
    result.environment_after = machine.environment(config);
    result.interrupted = stop.load(Ordering::Relaxed);
    if !ever_started && !result.interrupted {
        return Err(LabError::NothingStarted(result.failures));
    }
    Ok(result)
}
