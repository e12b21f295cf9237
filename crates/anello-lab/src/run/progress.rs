//! Progress events and checkpoints of a run.

use crate::plan::cell::Cell;
use crate::result::{CheckRecord, Failure, LabResult, Slice};

/// Progress event of a run, for a progress bar or a log.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// The run is starting. If it was resumed, some of the slices may already be complete.
    Begin {
        /// Total number of slices if nothing fails.
        slices: usize,
    },
    /// A contender is being checked.
    Checking {
        /// Name of the contender.
        contender: String,
        /// Name of the check.
        what: String,
    },
    /// A contender has been checked.
    Checked(CheckRecord),
    /// A contender is ready.
    Ready {
        /// Name of the contender.
        contender: String,
        /// Its ready line.
        ready_line: String,
    },
    /// The measurement of a cell is starting.
    Cell {
        /// The cell.
        cell: Cell,
        /// Pass, 0-based.
        pass: usize,
    },
    /// A slice of load is starting. No load runs until the observer returns.
    Measuring {
        /// Index of the contender.
        contender: usize,
        /// Index of the cell.
        cell: usize,
        /// Round within the cell and pass, 0-based.
        round: usize,
    },
    /// A slice has been measured.
    Measured(Box<Slice>),
    /// More slices are complete.
    Slices {
        /// Number of slices measured or skipped so far.
        done: usize,
    },
    /// A contender failed. The run continues.
    Failed(Failure),
    /// The measurement is complete and the analysis is starting.
    Analysis,
}

/// Receives the progress events and checkpoints of a run.
pub trait Observer {
    /// Handles a progress event.
    fn progress(&mut self, progress: Progress);

    /// Handles a checkpoint after a completed cell. The run can be resumed from `result`, which has no analysis yet.
    fn checkpoint(&mut self, result: &LabResult);

    /// Returns whether checkpoints are needed. Creating one takes several milliseconds.
    fn keeps_checkpoints(&self) -> bool {
        true
    }
}
