//! Disk worker: creates or opens its file, and executes the commands that it receives on control connections.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::command::{Command, Outcome};
use super::engine::Engine;
use super::measure::measure;
use super::pattern;
use crate::accept::accept_blocking;
use crate::errors::{invalid_input, with_message};

/// Maximum length of a line on a control connection, in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;

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
    /// With `create_bytes`, a multiple of 4096, the file is created first: it is filled with the pattern, synced to the
    /// disk and then renamed to `path`. An existing file of the same length that contains the pattern is kept.
    ///
    /// Returns an error with a remedy if the engine is unavailable ([`Engine::check`]), or if the file is missing, is
    /// empty, is not a regular file, or was not created by a worker.
    pub fn open(engine: Engine, path: &Path, create_bytes: Option<u64>) -> io::Result<Worker> {
        engine.check()?;
        let with_path = |error: io::Error| with_message(&error, format!("{}: {error}", path.display()));
        if let Some(bytes) = create_bytes {
            create_file(path, bytes).map_err(with_path)?;
        }
        let bytes = validate_file(path).map_err(with_path)?;
        Ok(Worker { engine, path: path.to_owned(), bytes })
    }

    /// Returns the length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// Executes `command` on the calling thread and returns the measurements, including the number of failed requests.
    /// Returns an error if the command is out of bounds, if the file system does not support direct I/O, or if the
    /// locked-memory limit is reached.
    pub fn perform(&self, command: &Command) -> io::Result<Outcome> {
        command.validate(self.bytes)?;
        let file = open_file(&self.path, command)?;
        measure(self.engine, file, self.bytes, command)
    }

    /// Serves control connections one after another. Each line received is a [`Command`] in JSON; the response is a
    /// line with its [`Outcome`] or with `{"error":"..."}`. Sleeps between commands. Returns an error if the listener
    /// is unusable.
    pub fn serve(&self, listener: &TcpListener) -> io::Result<()> {
        accept_blocking(listener, |stream| {
            // If a control connection is aborted, the next one is served.
            self.serve_connection(&stream).unwrap_or_default();
        })
    }

    fn serve_connection(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut reader, mut line) = (BufReader::new(stream), Vec::new());
        while reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? > 0 {
            let is_complete = line.ends_with(b"\n");
            let response = if is_complete {
                serde_json::from_slice(&line)
                    .map_err(|error| format!("invalid command: {error}"))
                    .and_then(|command| self.perform(&command).map_err(|error| error.to_string()))
            } else {
                Err(format!("line exceeds {MAX_LINE_BYTES} bytes"))
            };
            let response = response.map_or_else(|error| json!({ "error": error }), |outcome| json!(outcome));
            stream.write_all(format!("{response}\n").as_bytes())?;
            // The start of the next line is unknown.
            if !is_complete {
                break;
            }
            line.clear();
        }
        Ok(())
    }
}

/// Opens the file, with O_DIRECT and O_DSYNC if the command requires them.
fn open_file(path: &Path, command: &Command) -> io::Result<File> {
    let direct = if command.direct { libc::O_DIRECT } else { 0 };
    let sync = if command.is_synced() { libc::O_DSYNC } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(command.operation.writes()).custom_flags(direct | sync);
    options.open(path).map_err(|error| {
        let is_unsupported = command.direct && error.kind() == io::ErrorKind::InvalidInput;
        let remedy = if is_unsupported {
            " (O_DIRECT not supported by this file system: use a file on a disk, or \"direct\":false)"
        } else {
            ""
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
            "file does not start and end with the disk worker pattern; refusing to write (remove it and \
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
