//! Instructions per request in kernel and user space, as counted by `bench/instructions/run --json` in an emulated
//! machine. They are not measured during the run; the report shows them as additional data.
//!
//! A contender matches a server in the file if their names are equal when case and non-alphanumeric characters are
//! ignored and "io_uring" is treated as "uring": `anello-uring` matches "anello io_uring". A twin has the count of its
//! original. Counts apply only to echo cells on one core without an offered rate, with the same number of connections
//! and bytes.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::cell::{Cell, Workload};

/// Contents of an instruction count file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// Kernel release of the emulated machine.
    pub kernel: String,
    pub(crate) cells: Vec<InstructionCount>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InstructionCount {
    server: String,
    /// Number of connections, each with one request in flight.
    connections: usize,
    bytes: usize,
    #[serde(default)]
    requests: Option<u64>,
    /// `None` if the measurement failed with `error`.
    #[serde(default)]
    instructions_per_request: Option<f64>,
    #[serde(default)]
    error: Option<String>,
}

/// Reason why an instruction count file cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
#[non_exhaustive]
pub enum InstructionsError {
    #[error("not output of `bench/instructions/run --json`: {0} (use a file written by this command)")]
    Format(String),
    #[error(
        "the number of instructions per request of {server} with {connections} connections and {bytes} bytes is not \
         positive (repeat the measurement)"
    )]
    Count { server: String, connections: usize, bytes: usize },
}

impl Instructions {
    /// Parses the output of `bench/instructions/run --json`.
    ///
    /// # Errors
    /// Returns an error with the remedy if the text has a different format or a count is not positive.
    pub fn from_json(text: &str) -> Result<Instructions, InstructionsError> {
        let counts: Instructions =
            serde_json::from_str(text).map_err(|error| InstructionsError::Format(error.to_string()))?;
        let is_invalid = |count: &&InstructionCount| {
            count.instructions_per_request.is_some_and(|value| !(value.is_finite() && value > 0.0))
        };
        match counts.cells.iter().find(is_invalid).cloned() {
            Some(InstructionCount { server, connections, bytes, .. }) => {
                Err(InstructionsError::Count { server, connections, bytes })
            }
            None => Ok(counts),
        }
    }

    /// Returns the instructions per request of a contender in a cell. `None` if there is no count.
    pub fn of(&self, contender: &str, cell: &Cell) -> Option<f64> {
        let Workload::Echo { message_bytes } = cell.workload else { return None };
        if cell.offered_per_second.is_some() || cell.server_cores != 1 {
            return None;
        }
        let name = normalized(contender);
        let count = self.cells.iter().find(|count| {
            (count.connections, count.bytes) == (cell.connections, message_bytes)
                && normalized(&count.server) == name
        });
        count?.instructions_per_request
    }

    /// Returns whether there is any count for this contender.
    pub fn know(&self, contender: &str) -> bool {
        self.cells.iter().any(|count| normalized(&count.server) == normalized(contender))
    }
}

fn normalized(name: &str) -> String {
    let plain: String =
        name.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    plain.replace("iouring", "uring")
}
