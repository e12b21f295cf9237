//! Steps of a run: contenders are checked, started, connected, measured in slices, restarted on failure, and stopped.
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
//! A contender that fails within a cell is restarted once per cell and pass. If it fails again, it is skipped for the
//! rest of the cell. A contender with wrong replies is not measured in that cell again.
//!
//! All random orders are functions of the seed, the pass and the cell, not of earlier events. A resumed run therefore
//! continues as if it had not been interrupted.

mod affinity;
pub mod checkpoint;
mod cpu_throttle;
mod environment;
pub mod hosts;
pub mod load;
pub mod local;
pub mod machine;
pub mod process;
pub mod progress;
pub(crate) mod record;
pub(crate) mod replace;
pub(crate) mod runner;
mod temporary;
pub mod tls;

use thiserror::Error;

use crate::plan::limits::ConfigError;
use crate::result::Failure;
use crate::run::machine::MachineError;

pub use record::{Difference, ResumeError, check_same_scenario};

/// Reason why a run has no result.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum LabError {
    /// The configuration is invalid.
    #[error("cannot run: {0}")]
    Config(#[from] ConfigError),
    /// The run cannot be resumed from this result.
    #[error("cannot resume the run: {0}")]
    Resume(#[from] ResumeError),
    /// The connection to a host was lost before the measurement, or the host rejected a call.
    #[error("{0}")]
    Machine(String),
    /// A contender could not be started for its check, and [`LabConfig::keep_going`](crate::LabConfig::keep_going) is
    /// not set.
    #[error("contender {} cannot be checked: {}", .0.contender, .0.what)]
    Contender(Failure),
    /// No contender could be started. Contains the failure of each contender.
    #[error("no contender could be started{}", list(.0))]
    NothingStarted(Vec<Failure>),
}

impl From<MachineError> for LabError {
    fn from(error: MachineError) -> LabError {
        LabError::Machine(error.to_string())
    }
}

fn list(failures: &[Failure]) -> String {
    failures.iter().map(|failure| format!("\n  {}: {}", failure.contender, failure.what)).collect()
}
