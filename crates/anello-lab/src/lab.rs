//! A complete run: measurement and analysis.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::judge::analysis;
use crate::plan::config::LabConfig;
use crate::result::LabResult;
use crate::run::load::Load;
use crate::run::machine::Machine;
use crate::run::progress::{Observer, Progress};
use crate::run::runner::{RunError, Runner};
use crate::run::{LabError, record};

/// Runs the lab. If `previous` is given, resumes that run: its complete cells are not repeated, and the data from its
/// incomplete cells is discarded. When `stop` becomes true, the run finishes the current slice, aborts any check or
/// warm-up in progress, and returns the results so far. All started contenders have exited when this function returns.
///
/// # Errors
/// Returns [`LabError`] if the configuration is invalid, if the machine is lost before the measurement, if a contender
/// cannot be started for its check and [`LabConfig::keep_going`] is not set, if no contender could be started, or if
/// the plan, the contenders or the machine differ from those in `previous`. Other failures of contenders are part of
/// the result.
pub fn run_from(
    config: &LabConfig,
    previous: Option<LabResult>,
    load: &mut dyn Load,
    machine: &mut dyn Machine,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<LabResult, LabError> {
    config.validate()?;
    let mut result = record::new_result(config, machine)?;
    if let Some(previous) = previous {
        result = record::resume(previous, result)?;
    }
    for note in machine.prepare(config)? {
        if !result.notes.contains(&note) {
            result.notes.push(note);
        }
    }
    let cores = config.all_cores();
    let (earlier_ns, earlier_fraction) = (result.elapsed_ns, result.other_cpu_fraction);
    let start_ns = machine.now_ns();
    let other_before_ns = machine.other_cpu_ns(&cores)?;
    observer.progress(Progress::Begin { slices: config.slice_count() });
    let mut runner = Runner::new(config, load, machine, observer, stop, &mut result);
    let run = match runner.run() {
        Ok(()) => Ok(()),
        Err(RunError::Machine(error)) => Err(error),
        Err(RunError::Contender(failure)) => return Err(LabError::Contender(failure)),
    };
    let ever_started = runner.finish();
    result.elapsed_ns = earlier_ns + machine.now_ns().saturating_sub(start_ns);
    let run = run.and_then(|()| {
        if let Some((before_ns, after_ns)) = other_before_ns.zip(machine.other_cpu_ns(&cores)?) {
            let other_ns = after_ns.saturating_sub(before_ns) as f64 / cores.len() as f64;
            let earlier_ns = earlier_fraction.map_or(0.0, |fraction| fraction * earlier_ns as f64);
            result.other_cpu_fraction = Some((other_ns + earlier_ns) / result.elapsed_ns.max(1) as f64);
        }
        result.environment_after = machine.environment(config)?;
        Ok(())
    });
    result.interrupted = run.is_err() || stop.load(Ordering::Relaxed);
    if let Err(error) = run {
        result.notes.push(format!("The run was stopped early: {error}."));
    }
    if !ever_started && !result.interrupted {
        return Err(LabError::NothingStarted(result.failures));
    }
    observer.progress(Progress::Analysis);
    analysis::analyse(&mut result);
    Ok(result)
}
