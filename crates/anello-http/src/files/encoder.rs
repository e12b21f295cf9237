//! Encoders, and the memory that they take together.
//!
//! The memory of an encoder depends on its window, and therefore on the size of the file. All encoders of the process
//! share one limit. Memory is reserved before the head of a response is sent, because the head names the coding.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::negotiate::Coding;

// The levels are those at which compression costs little more than sending.
const GZIP_LEVEL: u32 = 5;
const BROTLI_QUALITY: i32 = 4;
const ZSTD_LEVEL: i32 = 3;

/// The largest window: 256 KiB. The window of gzip always has 32 KiB.
const MAX_WINDOW_BITS: u32 = 18;
/// The smallest window of Brotli and Zstandard.
const MIN_WINDOW_BITS: u32 = 10;

/// Memory of an encoder between two slices in KiB, for files of up to 32, 64, 128 and 256 KiB, and larger ones. Measured
/// with `mallinfo2(3)` and as resident memory, which includes what the allocator keeps, and rounded up.
const BROTLI_KIB: [usize; 5] = [256, 1664, 1920, 2432, 4096];
const GZIP_KIB: [usize; 5] = [384; 5];
const ZSTD_KIB: [usize; 5] = [704, 960, 1344, 1600, 1856];

/// Returns the memory of an encoder for a file of this size, in bytes.
pub(super) fn encoder_bytes(coding: Coding, size_bytes: u64) -> usize {
    let kib = match coding {
        Coding::Brotli => BROTLI_KIB,
        Coding::Gzip => GZIP_KIB,
        Coding::Zstandard => ZSTD_KIB,
    };
    let class = (15..=MAX_WINDOW_BITS).position(|bits| size_bytes <= 1 << bits);
    kib[class.unwrap_or(kib.len() - 1)] << 10
}

/// Memory of the process that is reserved for encoders, in bytes.
static RESERVED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Memory that is reserved for one encoder.
#[derive(Debug)]
pub(super) struct Reservation(usize);

impl Reservation {
    /// Returns `None` if the reservations of the process would exceed `max_bytes`.
    pub fn new(bytes: usize, max_bytes: usize) -> Option<Self> {
        let add = |reserved: usize| reserved.checked_add(bytes).filter(|sum| *sum <= max_bytes);
        // Relaxed, because the counter protects no other data.
        RESERVED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|_| Self(bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

pub(super) enum Encoder {
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Gzip(GzEncoder<Vec<u8>>),
    Zstandard(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    /// Creates an encoder for a file of this size.
    pub fn new(coding: Coding, size_bytes: u64) -> io::Result<Self> {
        let max_window = 1 << MAX_WINDOW_BITS;
        let window_bits = size_bytes.min(max_window).next_power_of_two().ilog2().max(MIN_WINDOW_BITS);
        Ok(match coding {
            Coding::Brotli => {
                let parameters = BrotliEncoderParams {
                    quality: BROTLI_QUALITY,
                    lgwin: window_bits as i32,
                    ..BrotliEncoderParams::default()
                };
                Self::Brotli(Box::new(CompressorWriter::with_params(Vec::new(), 4096, &parameters)))
            }
            Coding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL))),
            Coding::Zstandard => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(window_bits)?;
                // The tables of the encoder become smaller as well.
                encoder.set_pledged_src_size(Some(size_bytes))?;
                Self::Zstandard(encoder)
            }
        })
    }

    /// Compresses a slice. Returns the output so far, which may be empty.
    pub fn encode(&mut self, slice: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Brotli(encoder) => encoder.write_all(slice)?,
            Self::Gzip(encoder) => encoder.write_all(slice)?,
            Self::Zstandard(encoder) => encoder.write_all(slice)?,
        }
        Ok(std::mem::take(match self {
            Self::Brotli(encoder) => encoder.get_mut(),
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Zstandard(encoder) => encoder.get_mut(),
        }))
    }

    /// Returns the rest of the output.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Brotli(encoder) => Ok(encoder.into_inner()),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstandard(encoder) => encoder.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use anello_test::in_own_process;

    use super::*;

    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("read status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS field");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("integer") << 10
    }

    #[test]
    fn encoders_take_at_most_the_reserved_memory() {
        const COUNT: usize = 4;
        in_own_process(|| {
            let text: String =
                (0..300_000_u64).map(|line| format!("{line} {}\n", line * 7919 % 1009)).collect();
            let new_encoder = |coding, size: usize| {
                let mut encoder = Encoder::new(coding, size as u64).expect("encoder");
                // Without the last byte, because the encoder must not be complete.
                for slice in text.as_bytes()[..size - 1].chunks(16 << 10) {
                    encoder.encode(slice).expect("compressed");
                }
                encoder
            };
            // The allocator would reuse the memory of dropped encoders.
            let mut encoders = Vec::new();
            for coding in [Coding::Brotli, Coding::Gzip, Coding::Zstandard] {
                // The tables of the library, which all encoders share.
                encoders.push(new_encoder(coding, 1 << 16));
                for size in [20_000, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 20, 2 << 20] {
                    let before = resident_bytes();
                    encoders.extend((0..COUNT).map(|_| new_encoder(coding, size)));
                    let per_encoder = resident_bytes().saturating_sub(before) / COUNT;
                    let reserved = encoder_bytes(coding, size as u64);
                    eprintln!("{coding:?}, {size} bytes: {} KiB of {}", per_encoder >> 10, reserved >> 10);
                    // The allocator keeps part of the memory.
                    assert!(per_encoder <= reserved + (128 << 10), "{coding:?} {size}: {per_encoder} bytes");
                }
            }
        });
    }

    #[test]
    fn reservations_are_limited_and_released() {
        in_own_process(|| {
            let reserve = |bytes| Reservation::new(bytes, 1000);
            let first = reserve(600).expect("below the limit");
            assert!(reserve(401).is_none() && reserve(usize::MAX).is_none());
            let second = reserve(400).expect("exactly the limit");
            assert!(reserve(1).is_none() && reserve(0).is_some());
            drop(first);
            assert!(reserve(600).is_some());
            drop(second);
            assert!(reserve(1000).is_some());
        });
    }
}
