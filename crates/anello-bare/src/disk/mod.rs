//! Disk workers: for each Linux I/O interface, the smallest loop that reads and writes one file.
//!
//! A worker sleeps until a command arrives on its control connection, keeps the requested number of I/O requests in
//! flight for the requested time, and returns the measurements. Several workers can use the same file; the lab
//! activates them in turn.
//!
//! ```text
//!   control ── a line of JSON ──▶ measure ──▶ engine: start, start, wait ──▶ kernel
//!           ◀─ a line of JSON ──         ◀── blocks with their results
//! ```
//!
//! Each 512-byte unit of the file contains its offset and a number that identifies the write (`pattern.rs`). Reads that
//! return anything else are counted. A worker never overwrites a file that does not contain the pattern.
//!
//! Files for direct writes are opened with O_DSYNC: a write completes when the data is on the disk. Buffered writes
//! complete when the data is in the page cache. [`Command::sync`] overrides both defaults.

mod blocking;
mod command;
mod engine;
#[allow(unsafe_code)]
mod linux_aio;
mod measure;
mod pattern;
#[allow(unsafe_code)]
mod posix_aio;
mod request;
#[allow(unsafe_code)]
mod uring;
mod worker;

pub use command::{Command, MAX_BLOCK_BYTES, MAX_DEPTH, Operation, Outcome};
pub use engine::Engine;
pub use pattern::GRANULE_BYTES;
pub use worker::Worker;
