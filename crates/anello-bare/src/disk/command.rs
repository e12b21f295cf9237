//! Commands to a worker and their outcomes, in JSON.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pattern::GRANULE_BYTES;
use crate::errors::invalid_input;

/// Maximum number of bytes in one block.
pub const MAX_BLOCK_BYTES: usize = 16 << 20;
/// Maximum number of requests in flight.
pub const MAX_DEPTH: usize = 256;
const MAX_MEMORY_BYTES: usize = 1 << 30;
const MAX_DURATION: Duration = Duration::from_secs(3600);

/// Workload that a worker executes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Access pattern.
    pub operation: Operation,
    /// Whether requests bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Size of each request in bytes: a multiple of [`GRANULE_BYTES`], at most [`MAX_BLOCK_BYTES`].
    pub block_bytes: usize,
    /// Number of requests in flight, 1 to [`MAX_DEPTH`].
    pub depth: usize,
    /// Time during which requests are started, at most an hour. The worker then waits for the requests in flight.
    pub duration_ns: u64,
    /// Seed for random offsets. For sequential operations, index of the first block.
    #[serde(default)]
    pub seed: u64,
    /// Whether a write completes only when the data is on the disk (O_DSYNC). The default is `true` for direct I/O
    /// and `false` for buffered I/O.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<bool>,
}

/// Access pattern: reads or writes, random or sequential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operation {
    /// Reads blocks chosen uniformly at random.
    RandomRead,
    /// Writes blocks chosen uniformly at random.
    RandomWrite,
    /// Reads consecutive blocks. At the end of the file, continues from its start.
    SequentialRead,
    /// Writes consecutive blocks in the same order as `SequentialRead`.
    SequentialWrite,
}

impl Operation {
    pub(super) fn writes(self) -> bool {
        matches!(self, Operation::RandomWrite | Operation::SequentialWrite)
    }

    pub(super) fn is_random(self) -> bool {
        matches!(self, Operation::RandomRead | Operation::RandomWrite)
    }
}

impl Command {
    pub(super) fn is_synced(&self) -> bool {
        self.operation.writes() && self.sync.unwrap_or(self.direct)
    }

    /// Returns an error if a parameter is out of bounds for a file of this length.
    pub(super) fn validate(&self, file_bytes: u64) -> io::Result<()> {
        let (bytes, depth) = (self.block_bytes, self.depth);
        let blocks = file_bytes / bytes.max(1) as u64;
        let problem = if bytes == 0 || !bytes.is_multiple_of(GRANULE_BYTES) {
            format!("invalid block_bytes {bytes}: must be a multiple of {GRANULE_BYTES} and not 0")
        } else if bytes > MAX_BLOCK_BYTES {
            format!("invalid block_bytes {bytes}: must be at most {MAX_BLOCK_BYTES}")
        } else if !(1..=MAX_DEPTH).contains(&depth) {
            format!("invalid depth {depth}: must be 1 to {MAX_DEPTH}")
        } else if depth.saturating_mul(bytes) > MAX_MEMORY_BYTES {
            format!("invalid depth {depth}: depth times {bytes} bytes must be at most 1 GiB")
        } else if Duration::from_nanos(self.duration_ns) > MAX_DURATION {
            format!("invalid duration_ns {}: must be at most an hour", self.duration_ns)
        } else if blocks <= depth as u64 {
            format!(
                "file too small: {blocks} blocks of {bytes} bytes, but more than {depth} are required (enlarge the \
                 file)"
            )
        } else {
            return Ok(());
        };
        Err(invalid_input(problem))
    }
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of requests that transferred all of their bytes, including reads that returned wrong data.
    pub operations: u64,
    /// Time from the start of the first request to the last completion, in nanoseconds.
    pub elapsed_ns: u64,
    /// Latencies of the completed requests, each from its start until its completion was processed, in nanoseconds: an
    /// HdrHistogram with 3 significant digits, V2 encoding, base64.
    pub latency: String,
    /// Number of failed requests by cause.
    pub errors: Vec<(String, u64)>,
    /// Number of complete reads that returned anything other than the data written at their offset.
    pub wrong_blocks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_defaults_to_direct_writes() {
        for (operation, direct, sync, is_synced) in [
            (Operation::SequentialWrite, true, None, true),
            (Operation::SequentialWrite, false, None, false),
            (Operation::SequentialWrite, false, Some(true), true),
            (Operation::SequentialWrite, true, Some(false), false),
            (Operation::RandomRead, true, None, false),
        ] {
            let (block_bytes, depth, duration_ns, seed) = (4096, 16, 64_000_000, 1);
            let command = Command { operation, direct, block_bytes, depth, duration_ns, seed, sync };
            assert_eq!(command.is_synced(), is_synced, "{command:?}");
        }
    }
}
