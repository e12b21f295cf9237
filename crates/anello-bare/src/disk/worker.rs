//! Disk worker: creates or opens its file, and executes commands.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::command::{Command, Outcome};
use super::control::serve_connection;
use super::engine::Engine;
use super::measure::measure;
use super::pattern;
use crate::accept::accept_blocking;
use crate::errors::{invalid_input, with_message};

/// A file and the engine that reads and writes it.
#[derive(Debug)]
pub struct Worker {
    engine: Engine,
    path: PathBuf,
    bytes: u64,
}

impl Worker {
    /// Opens the file at `path`, which must contain the pattern, and checks that `engine` is available.
    ///
    /// With `create_bytes`, the file is created first: it is filled with the pattern, synced to the disk and then
    /// renamed to `path`. An existing file of the same length that contains the pattern is kept.
    ///
    /// # Errors
    /// - The engine is forbidden, or not supported by this kernel.
    /// - `create_bytes` is not a multiple of 4096.
    /// - The file is missing, empty, not a regular file, or was not created by a worker.
    ///
    /// The message contains a remedy.
    pub fn open(engine: Engine, path: &Path, create_bytes: Option<u64>) -> io::Result<Worker> {
        engine.check()?;
        let with_path = |error: io::Error| with_message(&error, format!("{}: {error}", path.display()));
        if let Some(bytes) = create_bytes {
            create_file(path, bytes).map_err(with_path)?;
        }
        let bytes = validate_file(path).map_err(with_path)?;
        Ok(Worker { engine, path: path.to_owned(), bytes })
    }

    /// Returns the engine.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns the length of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// Executes `command` on the calling thread and returns the measurements.
    ///
    /// # Errors
    /// - The command is out of bounds.
    /// - The engine cannot execute it on this system: the file system does not support direct I/O, or the locked-memory
    ///   limit is reached.
    ///
    /// Failed I/O requests are not errors; they are counted in the outcome.
    pub fn perform(&self, command: &Command) -> io::Result<Outcome> {
        command.validate(self.bytes)?;
        let file = open_file(&self.path, command)?;
        measure(self.engine, file, self.bytes, command)
    }

    /// Serves control connections one after another. Each line received is a [`Command`] in JSON; the response is a
    /// line with its [`Outcome`] or with `{"error":"..."}`. Sleeps between commands and returns only on listener
    /// errors.
    ///
    /// # Errors
    /// Returns an error if the listener is unusable.
    pub fn serve(&self, listener: &TcpListener) -> io::Result<()> {
        accept_blocking(listener, |stream| {
            // If a control connection is aborted, the next one is served.
            serve_connection(&stream, |command| self.perform(command)).unwrap_or_default();
        })
    }
}

/// Opens the file with the flags that a command needs: O_DIRECT and O_DSYNC.
fn open_file(path: &Path, command: &Command) -> io::Result<File> {
    let direct = if command.direct { libc::O_DIRECT } else { 0 };
    let sync = if command.is_synced() { libc::O_DSYNC } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(command.operation.writes()).custom_flags(direct | sync);
    options.open(path).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::InvalidInput if command.direct => {
                " (O_DIRECT not supported by this file system: use a file on a disk, or \"direct\":false)"
            }
            _ => "",
        };
        with_message(&error, format!("{}: {error}{remedy}", path.display()))
    })
}

/// Checks that a worker may write to the file, and returns its length.
fn validate_file(path: &Path) -> io::Result<u64> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => with_message(&error, format!("{error} (create it with --create-bytes)")),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(invalid_input("not a regular file (workers write only to regular files)"));
    }
    if metadata.len() == 0 || !pattern::has_pattern(&file, metadata.len())? {
        return Err(invalid_input(
            "disk worker pattern missing at its start or end, refusing to write (remove the file and \
             recreate it with --create-bytes)",
        ));
    }
    Ok(metadata.len())
}

/// Creates the file unless a file of this length with the pattern exists.
fn create_file(path: &Path, bytes: u64) -> io::Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(4096) {
        return Err(invalid_input("invalid --create-bytes: must be a multiple of 4096 and greater than 0"));
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
