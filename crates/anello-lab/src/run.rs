//! A run from beginning to end: check, start, connect, load in slices, restart what broke, stop everything.
//!
//! ```text
//!  check every contender (complete bytes, a stalled reader, many connections); who fails is not timed
//!  for each pass:
//!    for each number of server cores:   start all contenders
//!      for each cell, in random order:   connect all contenders, warm each up
//!        for each round:   one slice for each contender, in random order
//!        checkpoint
//!      stop all contenders
//! ```
//!
//! A contender that breaks within a cell is started again once in that cell of that pass; if it breaks there again it
//! sits out the rest of the cell. One that answers with wrong bytes is not asked again in that cell at all: how fast
//! it is wrong is of no interest.
//!
//! Every order is a function of the seed, the pass and the cell alone, not of what happened before. So a run that was
//! stopped can be taken up again ([`run_from`]) and goes through the rest as it would have done.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::analysis;
use crate::cell::Cell;
use crate::load::Load;
use crate::machine::Machine;
use crate::record;
use crate::result::{CheckRecord, Failure, LabResult};
use crate::runner::Runner;
use crate::scenario::LabConfig;

/// What the run is doing, for a progress bar or a log.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The run begins; so many slices lie ahead, of which some may be behind already.
    Begin {
        /// Slices, if nothing fails.
        slices: usize,
    },
    /// A contender is being checked.
    Checking {
        /// Its name.
        contender: String,
        /// Which check.
        what: String,
    },
    /// A contender has been checked.
    Checked(CheckRecord),
    /// A contender is ready.
    Ready {
        /// Its name.
        contender: String,
        /// What it said.
        ready_line: String,
    },
    /// A cell begins.
    Cell {
        /// Which.
        cell: Cell,
        /// Pass, from 0.
        pass: usize,
    },
    /// So many of the slices are behind, measured or skipped.
    Slices {
        /// Slices behind.
        done: usize,
    },
    /// Something went wrong; the run goes on.
    Failed(Failure),
    /// The load is over; the statistics are made.
    Analysis,
}

/// Who follows a run.
pub trait Observer {
    /// Something happened.
    fn progress(&mut self, progress: Progress);

    /// A cell has been gone through. This is what a run that ends now could be taken up from: raw, without figures.
    fn checkpoint(&mut self, result: &LabResult);

    /// Whether it does anything with checkpoints: making one takes some milliseconds.
    fn keeps_checkpoints(&self) -> bool {
        true
    }
}

/// An observer that wants progress only.
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

/// Why there is no result at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabError {
    /// The configuration makes no sense; the text says why and what to change.
    Config(String),
    /// The run cannot be taken up from this result; the text says what differs.
    Resume(String),
    /// Not one contender could be started. What each of them did.
    NothingStarted(Vec<Failure>),
}

impl fmt::Display for LabError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::Config(why) => formatter.write_str(why),
            LabError::Resume(why) => write!(formatter, "cannot take the run up again: {why}"),
            LabError::NothingStarted(failures) => {
                formatter.write_str("not one contender could be started, so there is nothing to compare")?;
                failures
                    .iter()
                    .try_for_each(|failure| write!(formatter, "\n  {}: {}", failure.contender, failure.what))
            }
        }
    }
}

impl std::error::Error for LabError {}

/// Runs the lab. When `stop` becomes true, it finishes the slice under way, or leaves the check or warm-up under way, and
/// returns what there is.
///
/// All contenders that it started have ended when it returns.
///
/// # Errors
/// [`LabError`] if the configuration is unusable or nothing could be started. Whatever befalls single contenders is
/// part of the result.
pub fn run(
    config: &LabConfig,
    load: &mut dyn Load,
    machine: &mut dyn Machine,
    progress: &mut dyn FnMut(Progress),
    stop: &AtomicBool,
) -> Result<LabResult, LabError> {
    run_from(config, None, load, machine, &mut ProgressOnly(progress), stop)
}

/// As [`run`], with checkpoints, and taking up where `previous` ended: cells that it has gone through are not gone
/// through again, what it has of unfinished ones is dropped.
///
/// # Errors
/// As [`run`], and [`LabError::Resume`] if `previous` is of another plan, other contenders or another machine.
pub fn run_from(
    config: &LabConfig,
    previous: Option<LabResult>,
    load: &mut dyn Load,
    machine: &mut dyn Machine,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<LabResult, LabError> {
    config.validate().map_err(LabError::Config)?;
    let mut result = record::new_result(config, machine);
    if let Some(previous) = previous {
        result = record::resume(previous, result).map_err(LabError::Resume)?;
    }
    for note in machine.prepare(config) {
        if !result.notes.contains(&note) {
            result.notes.push(note);
        }
    }
    let cores = config.all_cores();
    let (earlier_ns, earlier_foreign) = (result.elapsed_ns, result.foreign_fraction);
    let began_ns = machine.now_ns();
    let foreign_before_ns = machine.other_cpu_ns(&cores);
    observer.progress(Progress::Begin { slices: config.slice_count() });
    let mut runner = Runner::new(config, load, machine, observer, stop, &mut result);
    runner.check_all();
    for pass in 0..config.passes {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        runner.run_pass(pass);
    }
    let ever_started = runner.finish();
    result.elapsed_ns = earlier_ns + machine.now_ns().saturating_sub(began_ns);
    if let (Some(before_ns), Some(after_ns)) = (foreign_before_ns, machine.other_cpu_ns(&cores)) {
        let other_cpu_ns = after_ns.saturating_sub(before_ns) as f64 / cores.len() as f64;
        let earlier_ns = earlier_foreign.map_or(0.0, |fraction| fraction * earlier_ns as f64);
        result.foreign_fraction = Some((other_cpu_ns + earlier_ns) / result.elapsed_ns.max(1) as f64);
    }
    result.environment_after = machine.environment(config);
    result.interrupted = stop.load(Ordering::Relaxed);
    if !ever_started && !result.interrupted {
        return Err(LabError::NothingStarted(result.failures));
    }
    observer.progress(Progress::Analysis);
    analysis::analyse(&mut result);
    Ok(result)
}
