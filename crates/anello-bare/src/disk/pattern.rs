//! Contents of the file: each 512-byte granule contains its offset and a number that identifies the write.
//!
//! ```text
//!   granule of 512 bytes:  | offset in the file | generation | word 2 | word 3 | ... | word 63 |
//!                            8 bytes              8 bytes      seed + 2 * STEP, seed + 3 * STEP, ...
//! ```
//!
//! The seed is a hash of offset and generation, so a granule that is torn, partly stale or misplaced is detected. A
//! complete granule from an earlier write is not detected. Disks write 512 bytes atomically, and blocks of every size
//! consist of whole granules, so a file written with one block size can be read with another.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Size of the smallest verified unit, in bytes. Every block size is a multiple of it.
pub const GRANULE_BYTES: usize = 512;
const WORD_BYTES: usize = 8;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const CHUNK_BYTES: usize = 1 << 20;

/// Mixes the bits of a number (the splitmix64 finalizer).
fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn seed(offset: u64, generation: u64) -> u64 {
    mix(mix(offset.wrapping_add(STEP)) ^ generation)
}

/// Writes the pattern for file offset `offset` into `bytes`, which must consist of whole granules.
pub(super) fn fill(bytes: &mut [u8], offset: u64, generation: u64) {
    for (granule, offset) in bytes.chunks_exact_mut(GRANULE_BYTES).zip((offset..).step_by(GRANULE_BYTES)) {
        let mut word = seed(offset, generation).wrapping_add(STEP);
        let (head, body) = granule.split_at_mut(2 * WORD_BYTES);
        head[..WORD_BYTES].copy_from_slice(&offset.to_le_bytes());
        head[WORD_BYTES..].copy_from_slice(&generation.to_le_bytes());
        for slot in body.chunks_exact_mut(WORD_BYTES) {
            word = word.wrapping_add(STEP);
            slot.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Returns `true` if `bytes`, which must consist of whole granules, contain the pattern for this offset.
pub(super) fn is_valid(bytes: &[u8], offset: u64) -> bool {
    let mut granules = bytes.chunks_exact(GRANULE_BYTES).zip((offset..).step_by(GRANULE_BYTES));
    granules.all(|(granule, offset)| {
        let mut words = granule.chunks_exact(WORD_BYTES).map(|word| {
            let mut bytes = [0; WORD_BYTES];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let (stored_offset, generation) = (words.next(), words.next().unwrap_or(0));
        let mut expected = seed(offset, generation).wrapping_add(STEP);
        // Without an early exit, the compiler can compare several words at once.
        let difference = words.fold(0, |difference, word| {
            expected = expected.wrapping_add(STEP);
            difference | (word ^ expected)
        });
        stored_offset == Some(offset) && difference == 0
    })
}

/// Returns `true` if the first and the last granule of a file contain the pattern.
pub(super) fn has_pattern(file: &File, length: u64) -> io::Result<bool> {
    let mut granule = [0; GRANULE_BYTES];
    let granules_end = length - length % GRANULE_BYTES as u64;
    for offset in [0, granules_end.saturating_sub(GRANULE_BYTES as u64)] {
        match file.read_exact_at(&mut granule, offset) {
            Ok(()) if is_valid(&granule, offset) => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Creates a file of `bytes` bytes, which must be a multiple of the granule size, and syncs it to the disk.
pub(super) fn create(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        let length = (bytes - offset).min(CHUNK_BYTES as u64) as usize;
        fill(&mut chunk[..length], offset, 0);
        file.write_all(&chunk[..length])?;
    }
    file.sync_all()
}
