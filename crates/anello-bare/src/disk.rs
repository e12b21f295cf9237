//! Disk workers: the smallest loop that reads and writes one file, for each way that Linux offers.
//!
//! A worker has one file and one engine. It sleeps until a command comes over its control connection, does I/O for as
//! long as it says with so many requests in flight, and answers with what it measured. So several workers can be up at
//! once on the same file, and a lab can give the machine to one after the other.
//!
//! ```text
//!   control ── a line of JSON ──▶ measure ──▶ engine: start, start, wait ──▶ kernel
//!           ◀─ a line of JSON ──         ◀── blocks with their results
//! ```
//!
//! Every 512 bytes of the file say where they belong and which write they are of (`pattern.rs`). A read that finds
//! something else is counted. A worker refuses a file that does not carry the pattern, so it overwrites nobody's data.
//!
//! Direct writes are opened with O_DSYNC: a write is done when the disk has it. Buffered writes are done when the page
//! cache has them, and nobody waits for the disk; [`Command::sync`] chooses otherwise.

mod block;
mod command;
mod control;
mod engine;
#[allow(unsafe_code)]
mod linux_aio;
mod measure;
mod pattern;
#[allow(unsafe_code)]
mod posix_aio;
mod pread;
mod threads;
#[allow(unsafe_code)]
mod uring;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use command::{Command, MAX_BLOCK_BYTES, MAX_DEPTH, Operation, Outcome};
pub use engine::Engine;
pub use pattern::GRANULE_BYTES;

/// A file and the way in which it is read and written.
#[derive(Debug)]
pub struct Worker {
    engine: Engine,
    path: PathBuf,
    bytes: u64,
}

impl Worker {
    /// Takes the file at `path`, which must carry the pattern, and finds out whether `engine` is to be had.
    ///
    /// With `create_bytes` the file is made first: filled with the pattern, synced to the disk and only then given its
    /// name. One that is there, carries the pattern and is as long is kept.
    ///
    /// # Errors
    /// The engine is forbidden or not in this kernel; `create_bytes` is no multiple of 4096; the file is missing, no
    /// regular file, empty, or was not made by a worker. The text names the remedy.
    pub fn open(engine: Engine, path: &Path, create_bytes: Option<u64>) -> io::Result<Worker> {
        engine.check()?;
        let with_path =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if let Some(bytes) = create_bytes {
            create_file(path, bytes).map_err(with_path)?;
        }
        let bytes = validate_file(path).map_err(with_path)?;
        Ok(Worker { engine, path: path.to_owned(), bytes })
    }

    /// The engine.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Length of the file, bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// Does what `command` says, on the calling thread, and returns what came of it.
    ///
    /// # Errors
    /// The command is out of its bounds, or the engine cannot do it here: no direct I/O on this file system, no memory
    /// that may be locked. Requests that fail are no error; they are counted in the outcome.
    pub fn perform(&self, command: &Command) -> io::Result<Outcome> {
        command.validate(self.bytes)?;
        let file = open_file(&self.path, command)?;
        measure::measure(self.engine, file, self.bytes, command)
    }

    /// Serves control connections, one after the other: each line is a [`Command`] in JSON, and is answered by a line
    /// with its [`Outcome`], or with `{"error":"..."}`. Sleeps in between. Returns errors of the listener only.
    ///
    /// # Errors
    /// The listener is broken.
    pub fn serve(&self, listener: &TcpListener) -> io::Result<()> {
        control::serve(self, listener)
    }
}

/// Opens the file as a command wants it: for direct I/O, for writes that reach the disk.
fn open_file(path: &Path, command: &Command) -> io::Result<File> {
    let direct = if command.direct { libc::O_DIRECT } else { 0 };
    let sync = if command.is_synced() { libc::O_DSYNC } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(command.operation.writes()).custom_flags(direct | sync);
    options.open(path).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::InvalidInput if command.direct => {
                " (this file system takes no O_DIRECT: use a file on a disk, or \"direct\":false)"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("{}: {error}{remedy}", path.display()))
    })
}

/// The length of a file that a worker may write to.
fn validate_file(path: &Path) -> io::Result<u64> {
    let invalid = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    let file = File::open(path).map_err(|error| {
        let remedy = if error.kind() == io::ErrorKind::NotFound { " (--create-bytes makes it)" } else { "" };
        io::Error::new(error.kind(), format!("{error}{remedy}"))
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return invalid("not a regular file; a worker writes to regular files only");
    }
    if metadata.len() == 0 || !pattern::has_pattern(&file, metadata.len())? {
        return invalid(
            "its beginning or end does not carry the pattern of disk workers, so it is not written to: remove it and \
             let --create-bytes make it",
        );
    }
    Ok(metadata.len())
}

/// Makes the file, unless it is there as it should be.
fn create_file(path: &Path, bytes: u64) -> io::Result<()> {
    let invalid = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    if bytes == 0 || !bytes.is_multiple_of(4096) {
        return invalid("--create-bytes takes a multiple of 4096, and not 0");
    }
    if fs::exists(path)? && validate_file(path)? == bytes {
        return Ok(());
    }
    let mut partial_name = path.file_name().unwrap_or_default().to_owned();
    partial_name.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial_name);
    let result = pattern::create(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    if result.is_err() && fs::exists(&partial)? {
        fs::remove_file(&partial)?;
    }
    result
}
