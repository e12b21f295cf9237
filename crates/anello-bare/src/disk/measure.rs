//! The loop that keeps so many requests in flight for so long, checks what they bring, and counts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};

use super::block::Block;
use super::command::{Command, Outcome};
use super::engine::{Ended, Engine, Request};
use super::pattern;

/// Significant digits of the histogram of latencies.
const DIGITS: u8 = 3;

/// Does what a valid command says.
pub(super) fn measure(engine: Engine, file: File, file_bytes: u64, command: &Command) -> io::Result<Outcome> {
    try_direct(&file, command)?;
    let depth = engine.depth(command.depth);
    let writes = command.operation.writes();
    let mut blocks: Vec<Block> = (0..depth).map(|_| Block::new(command.block_bytes)).collect();
    let mut requests = engine.start(file, &mut blocks)?;
    let mut idle: Vec<(usize, Block)> = blocks.into_iter().enumerate().collect();
    let mut places = Places::new(command, file_bytes, depth);
    let mut tally = Tally::new()?;
    let mut ended = Vec::new();
    let duration = Duration::from_nanos(command.duration_ns);
    let begin = Instant::now();
    let mut now = begin;
    loop {
        while now - begin < duration
            && let Some((slot, mut block)) = idle.pop()
        {
            let (offset, generation) = places.next(slot);
            if writes {
                pattern::fill(block.bytes_mut(), offset, generation);
            }
            now = Instant::now();
            places.started[slot] = now;
            requests.start(Request { slot, writes, offset, block })?;
        }
        if idle.len() == depth {
            break;
        }
        requests.wait(&mut ended)?;
        now = Instant::now();
        for Ended { slot, block, result } in ended.drain(..) {
            let offset = places.free(slot);
            tally.count(result, writes, &block, offset, now - places.started[slot])?;
            idle.push((slot, block));
        }
    }
    tally.outcome(now - begin)
}

/// Direct I/O has rules of its own for each disk; whoever breaks them is told before anything is counted.
fn try_direct(file: &File, command: &Command) -> io::Result<()> {
    if !command.direct {
        return Ok(());
    }
    let mut block = Block::new(command.block_bytes);
    match rustix::io::pread(file, block.bytes_mut(), 0) {
        Err(rustix::io::Errno::INVAL) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "direct I/O refuses blocks of {} bytes: they must be a multiple of the disk's block, mostly 4096",
                command.block_bytes
            ),
        )),
        Err(errno) => Err(errno.into()),
        Ok(_) => Ok(()),
    }
}

/// Which block is next, and which are in flight: no two requests have the same one at once, for what a read would find
/// in the middle of a write is nobody's promise.
struct Places {
    random: bool,
    block_bytes: u64,
    blocks: u64,
    state: u64,
    next: u64,
    /// The block of each slot's request; `u64::MAX` if it has none.
    in_flight: Vec<u64>,
    started: Vec<Instant>,
}

impl Places {
    fn new(command: &Command, file_bytes: u64, depth: usize) -> Places {
        let block_bytes = command.block_bytes as u64;
        let blocks = file_bytes / block_bytes;
        Places {
            random: command.operation.is_random(),
            block_bytes,
            blocks,
            state: command.seed,
            next: command.seed % blocks,
            in_flight: vec![u64::MAX; depth],
            started: vec![Instant::now(); depth],
        }
    }

    /// An offset for a slot, and a number for a write there.
    fn next(&mut self, slot: usize) -> (u64, u64) {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let drawn = pattern::mix(self.state);
        if self.random {
            self.next = ((u128::from(drawn) * u128::from(self.blocks)) >> 64) as u64;
        }
        // There are more blocks than slots, so one is free.
        while self.in_flight.contains(&self.next) {
            self.next = (self.next + 1) % self.blocks;
        }
        self.in_flight[slot] = self.next;
        let offset = self.next * self.block_bytes;
        self.next = (self.next + 1) % self.blocks;
        (offset, drawn)
    }

    /// The offset of a request that has ended.
    fn free(&mut self, slot: usize) -> u64 {
        std::mem::replace(&mut self.in_flight[slot], u64::MAX) * self.block_bytes
    }
}

struct Tally {
    latency: Histogram<u64>,
    errors: BTreeMap<String, u64>,
    wrong_blocks: u64,
}

impl Tally {
    fn new() -> io::Result<Tally> {
        let latency = Histogram::new(DIGITS).map_err(io::Error::other)?;
        Ok(Tally { latency, errors: BTreeMap::new(), wrong_blocks: 0 })
    }

    fn count(
        &mut self,
        result: io::Result<usize>,
        writes: bool,
        block: &Block,
        offset: u64,
        latency: Duration,
    ) -> io::Result<()> {
        let kind = if writes { "write" } else { "read" };
        match result {
            Ok(bytes) if bytes == block.len() => {
                let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                self.latency.record(nanoseconds.max(1)).map_err(io::Error::other)?;
                if !writes && !pattern::is_right(block.bytes(), offset) {
                    self.wrong_blocks += 1;
                }
            }
            Ok(_) => *self.errors.entry(format!("short {kind}")).or_default() += 1,
            Err(error) => *self.errors.entry(format!("{kind}: {error}")).or_default() += 1,
        }
        Ok(())
    }

    fn outcome(self, elapsed: Duration) -> io::Result<Outcome> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.latency, &mut bytes).map_err(io::Error::other)?;
        Ok(Outcome {
            operations: self.latency.len(),
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            latency: STANDARD.encode(bytes),
            errors: self.errors.into_iter().collect(),
            wrong_blocks: self.wrong_blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::command::Operation;

    fn places(operation: Operation, depth: usize) -> Places {
        let command = Command {
            operation,
            direct: false,
            block_bytes: 4096,
            depth,
            duration_ns: 1,
            seed: 3,
            sync: None,
        };
        Places::new(&command, 10 * 4096, depth)
    }

    #[test]
    fn a_sequence_begins_at_the_seed_and_goes_round() {
        let mut places = places(Operation::SequentialRead, 1);
        let offsets = (0..12).map(|_| {
            let (offset, _) = places.next(0);
            assert_eq!(places.free(0), offset);
            offset / 4096
        });
        assert_eq!(offsets.collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn no_block_is_in_flight_twice_and_every_block_is_reached() {
        let mut places = places(Operation::RandomWrite, 9);
        let mut reached = std::collections::BTreeSet::new();
        for round in 0..1000 {
            let offsets: std::collections::BTreeSet<u64> = (0..9).map(|slot| places.next(slot).0).collect();
            assert_eq!(offsets.len(), 9, "round {round}");
            reached.extend(offsets);
            (0..9).for_each(|slot| assert!(places.free(slot) < 10 * 4096));
        }
        assert_eq!(reached.len(), 10);
    }
}
