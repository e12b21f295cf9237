//! Measurement loop: keeps requests in flight for a given time, verifies the data, and records results.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use rustix::io::Errno;

use super::command::{Command, Outcome};
use super::engine::Engine;
use super::pattern;
use super::request::{Block, Completion, Request};
use crate::errors::invalid_input;

/// Executes a command that has already been validated.
pub(super) fn measure(engine: Engine, file: File, file_bytes: u64, command: &Command) -> io::Result<Outcome> {
    if command.direct {
        probe_direct_io(&file, command.block_bytes)?;
    }
    let depth = if engine == Engine::Pread { 1 } else { command.depth };
    let (writes, duration) = (command.operation.writes(), Duration::from_nanos(command.duration_ns));
    let kind = if writes { "write" } else { "read" };
    let mut blocks: Vec<Block> = (0..depth).map(|_| Block::new(command.block_bytes)).collect();
    let mut queue = engine.start(file, &mut blocks)?;
    let mut free_blocks: Vec<(usize, Block)> = blocks.into_iter().enumerate().collect();
    let mut offsets = OffsetGenerator::new(command, file_bytes, depth);
    let mut latency = Histogram::<u64>::new(3).map_err(io::Error::other)?;
    let (mut errors, mut wrong_blocks) = (BTreeMap::<String, u64>::new(), 0);
    let mut completions = Vec::new();
    let start = Instant::now();
    let (mut now, mut start_times) = (start, vec![start; depth]);
    loop {
        while now - start < duration
            && let Some((slot, mut block)) = free_blocks.pop()
        {
            let offset = offsets.next_offset(slot);
            if writes {
                pattern::fill(block.bytes_mut(), offset, offsets.rng.u64(..));
            }
            now = Instant::now();
            start_times[slot] = now;
            queue.start(Request { slot, writes, offset, block })?;
        }
        if free_blocks.len() == depth {
            break;
        }
        queue.wait(&mut completions)?;
        now = Instant::now();
        for Completion { slot, block, result } in completions.drain(..) {
            let offset = offsets.release(slot);
            let error = match result {
                Ok(bytes) if bytes == block.len() => {
                    wrong_blocks += u64::from(!writes && !pattern::is_valid(block.bytes(), offset));
                    let elapsed_ns = nanoseconds(now - start_times[slot]);
                    latency.record(elapsed_ns.max(1)).map_err(io::Error::other)?;
                    None
                }
                Ok(_) => Some(format!("short {kind}")),
                Err(error) => Some(format!("{kind}: {error}")),
            };
            error.into_iter().for_each(|error| *errors.entry(error).or_default() += 1);
            free_blocks.push((slot, block));
        }
    }
    let mut encoded = Vec::new();
    V2Serializer::new().serialize(&latency, &mut encoded).map_err(io::Error::other)?;
    Ok(Outcome {
        operations: latency.len(),
        elapsed_ns: nanoseconds(now - start),
        latency: STANDARD.encode(encoded),
        errors: errors.into_iter().collect(),
        wrong_blocks,
    })
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Performs one direct read to check the block size, because the required alignment differs between disks.
fn probe_direct_io(file: &File, block_bytes: usize) -> io::Result<()> {
    match rustix::io::pread(file, Block::new(block_bytes).bytes_mut(), 0) {
        Err(Errno::INVAL) => {
            let reason = "not a multiple of the disk's block size, usually 4096";
            Err(invalid_input(format!("cannot use direct I/O with blocks of {block_bytes} bytes: {reason}")))
        }
        result => Ok(result.map(drop)?),
    }
}

/// Chooses the block for each request. No two requests use the same block at the same time, because the result of
/// reading a block during a write to it is undefined.
struct OffsetGenerator {
    is_random: bool,
    block_bytes: u64,
    blocks: u64,
    rng: fastrand::Rng,
    next_block: u64,
    /// Block of each slot's request; `u64::MAX` for a free slot.
    blocks_in_flight: Vec<u64>,
}

impl OffsetGenerator {
    fn new(command: &Command, file_bytes: u64, depth: usize) -> OffsetGenerator {
        let block_bytes = command.block_bytes as u64;
        let blocks = file_bytes / block_bytes;
        OffsetGenerator {
            is_random: command.operation.is_random(),
            block_bytes,
            blocks,
            rng: fastrand::Rng::with_seed(command.seed),
            next_block: command.seed % blocks,
            blocks_in_flight: vec![u64::MAX; depth],
        }
    }

    fn next_offset(&mut self, slot: usize) -> u64 {
        if self.is_random {
            self.next_block = self.rng.u64(..self.blocks);
        }
        // There are more blocks than slots, so one is free.
        while self.blocks_in_flight.contains(&self.next_block) {
            self.next_block = (self.next_block + 1) % self.blocks;
        }
        self.blocks_in_flight[slot] = self.next_block;
        let offset = self.next_block * self.block_bytes;
        self.next_block = (self.next_block + 1) % self.blocks;
        offset
    }

    /// Marks the slot's block as free and returns the offset of its request.
    fn release(&mut self, slot: usize) -> u64 {
        std::mem::replace(&mut self.blocks_in_flight[slot], u64::MAX) * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn offset_generator(operation: &str, depth: usize) -> OffsetGenerator {
        let command = serde_json::json!({
            "operation": operation, "direct": false, "block_bytes": 4096, "depth": depth, "duration_ns": 1, "seed": 3
        });
        OffsetGenerator::new(&serde_json::from_value(command).unwrap(), 10 * 4096, depth)
    }

    #[test]
    fn sequence_starts_at_seed_and_wraps_around() {
        let mut offsets = offset_generator("sequential_read", 1);
        let block_numbers = (0..12).map(|_| {
            let offset = offsets.next_offset(0);
            assert_eq!(offsets.release(0), offset);
            offset / 4096
        });
        assert_eq!(block_numbers.collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn random_offsets_are_distinct_in_flight_and_cover_all_blocks() {
        let mut offsets = offset_generator("random_write", 9);
        let mut reached = BTreeSet::new();
        for round in 0..1000 {
            let drawn: BTreeSet<u64> = (0..9).map(|slot| offsets.next_offset(slot)).collect();
            assert_eq!(drawn.len(), 9, "round {round}");
            reached.extend(drawn);
            (0..9).for_each(|slot| assert!(offsets.release(slot) < 10 * 4096));
        }
        assert_eq!(reached.len(), 10);
    }
}
