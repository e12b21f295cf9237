//! What a worker is told and what it answers, in JSON.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pattern::GRANULE_BYTES;

/// Most bytes of one block.
pub const MAX_BLOCK_BYTES: usize = 16 << 20;
/// Most requests in flight.
pub const MAX_DEPTH: usize = 256;
/// Most memory of all blocks together, bytes.
const MAX_MEMORY_BYTES: usize = 1 << 30;
/// Longest command.
const MAX_DURATION: Duration = Duration::from_secs(3600);

/// What a worker is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Reads or writes, and where.
    pub operation: Operation,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// Bytes of each request: a multiple of [`GRANULE_BYTES`], at most [`MAX_BLOCK_BYTES`].
    pub block_bytes: usize,
    /// Requests in flight, 1 to [`MAX_DEPTH`].
    pub depth: usize,
    /// How long requests are started, at most an hour; those in flight then are waited for.
    pub duration_ns: u64,
    /// Decides the order of random places, or the place where a sequence begins.
    #[serde(default)]
    pub seed: u64,
    /// Whether a write is done only when the disk has it (O_DSYNC). By default those of direct I/O, and no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<bool>,
}

/// Reads or writes, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads blocks that are drawn from all, each as likely as any other.
    RandomRead,
    /// Writes such blocks.
    RandomWrite,
    /// Reads block after block, and begins again at the end of the file.
    SequentialRead,
    /// Writes block after block.
    SequentialWrite,
}

impl Operation {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Operation::RandomWrite | Operation::SequentialWrite)
    }

    /// Whether places are drawn.
    pub fn is_random(self) -> bool {
        matches!(self, Operation::RandomRead | Operation::RandomWrite)
    }
}

impl Command {
    pub(super) fn is_synced(&self) -> bool {
        self.operation.writes() && self.sync.unwrap_or(self.direct)
    }

    /// Refuses what is out of bounds for a file of this length.
    pub(super) fn validate(&self, file_bytes: u64) -> io::Result<()> {
        let blocks = file_bytes / self.block_bytes.max(1) as u64;
        let reason = if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(GRANULE_BYTES) {
            format!("block_bytes {}: must be a multiple of {GRANULE_BYTES}, and not 0", self.block_bytes)
        } else if self.block_bytes > MAX_BLOCK_BYTES {
            format!("block_bytes {}: at most {MAX_BLOCK_BYTES}", self.block_bytes)
        } else if !(1..=MAX_DEPTH).contains(&self.depth) {
            format!("depth {}: 1 to {MAX_DEPTH}", self.depth)
        } else if self.depth * self.block_bytes > MAX_MEMORY_BYTES {
            format!("depth {} of {} bytes: at most 1 GiB together", self.depth, self.block_bytes)
        } else if u128::from(self.duration_ns) > MAX_DURATION.as_nanos() {
            format!("duration_ns {}: at most an hour", self.duration_ns)
        } else if blocks <= self.depth as u64 {
            format!(
                "the file has {blocks} blocks of {} bytes, and {} are to be in flight at once: make it larger",
                self.block_bytes, self.depth
            )
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
    }
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests that ended well: whole, whatever they carried.
    pub operations: u64,
    /// From the first start to the last end, nanoseconds.
    pub elapsed_ns: u64,
    /// Latencies of those requests, from start to the moment when the loop learned of the end, nanoseconds: an
    /// HdrHistogram with 3 significant digits, V2 encoding, base64.
    pub latency: String,
    /// Requests that failed, by cause.
    pub errors: Vec<(String, u64)>,
    /// Reads that ended well and carried something other than what was written there.
    pub wrong_blocks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let line = r#"{"operation":"random_read","direct":true,"block_bytes":4096,"depth":16,"duration_ns":64000000,"seed":1}"#;
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn only_direct_writes_wait_for_the_disk_unless_told_otherwise() {
        let write = Command { operation: Operation::SequentialWrite, ..command() };
        assert!(write.is_synced());
        assert!(!Command { direct: false, ..write.clone() }.is_synced());
        assert!(Command { direct: false, sync: Some(true), ..write.clone() }.is_synced());
        assert!(!Command { sync: Some(false), ..write }.is_synced());
        assert!(!command().is_synced());
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_with_the_bound() {
        command().validate(1 << 20).unwrap();
        let wrong = [
            (Command { block_bytes: 0, ..command() }, "multiple of 512"),
            (Command { block_bytes: 1000, ..command() }, "multiple of 512"),
            (Command { block_bytes: 32 << 20, ..command() }, "16777216"),
            (Command { depth: 0, ..command() }, "1 to 256"),
            (Command { depth: 257, ..command() }, "1 to 256"),
            (Command { depth: 256, block_bytes: 8 << 20, ..command() }, "1 GiB"),
            (Command { duration_ns: u64::MAX, ..command() }, "an hour"),
            (Command { block_bytes: 65536, ..command() }, "make it larger"),
        ];
        for (command, part) in wrong {
            let error = command.validate(1 << 20).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
