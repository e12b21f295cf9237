//! Output of the access log: opens, writes and reopens the target.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::options::LogTarget;

/// Permissions of a newly created file. Log lines contain personal data, so other users have no access.
const MODE: u32 = 0o640;

#[derive(Debug)]
pub(super) struct Output {
    /// An inherited descriptor counts as standard output, which is never reopened.
    target: LogTarget,
    /// `None` if the target is a FIFO that has not had a reader yet.
    file: Option<File>,
}

impl Output {
    /// Opens the target, or duplicates standard output. Does not wait for the reader of a FIFO.
    pub(super) fn open(target: LogTarget) -> io::Result<Self> {
        match target {
            // Uses a separate descriptor, because a blocked write through `io::stdout` would hold the lock on standard
            // output and block all other threads that print.
            LogTarget::Stdout => {
                let file = io::stdout().as_fd().try_clone_to_owned().map_err(|error| {
                    let message = format!("cannot log to standard output: {error} (check that it is open)");
                    io::Error::new(error.kind(), message)
                })?;
                Ok(Self::inherited(file.into()))
            }
            LogTarget::File(path) => {
                let file = match open_to_append(&path) {
                    Ok(file) => Some(file),
                    Err(error) if has_no_reader(&path, &error) => None,
                    Err(error) => return Err(with_path(&path, &error)),
                };
                Ok(Self { target: LogTarget::File(path), file })
            }
        }
    }

    pub(super) fn inherited(file: File) -> Self {
        Self { target: LogTarget::Stdout, file: Some(file) }
    }

    /// Reopens the file by its name. Returns `true` if the name now refers to a different file. After an error, the old
    /// file stays open.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let LogTarget::File(path) = &self.target else { return Ok(false) };
        let file = open_to_append(path).map_err(|error| with_path(path, &error))?;
        let is_unchanged = self.file.as_ref().is_some_and(|old| is_same(old, &file).unwrap_or(false));
        self.file = Some(file);
        Ok(!is_unchanged)
    }

    /// Writes at least one byte with a single `write(2)` and returns the number of bytes written. Returns `WouldBlock` if
    /// a FIFO is full.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.file.is_none() {
            self.reopen()?;
        }
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        match file.write(bytes) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            written => written,
        }
    }

    /// Waits until a FIFO is writable, its reader closes it, or the timeout expires (`poll(2)`).
    pub(super) fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(file, PollFlags::OUT)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            LogTarget::Stdout => f.write_str("standard output"),
            LogTarget::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Opens a file for appending in non-blocking mode, so that opening a FIFO without a reader and writing to a full one
/// do not block.
fn open_to_append(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    OpenOptions::new().append(true).create(true).mode(MODE).custom_flags(flags as i32).open(path)
}

/// Returns `true` if `error` means that the path is a FIFO without a reader. Opening a socket fails with the same
/// error, so the file type is checked as well.
fn has_no_reader(path: &Path, error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NXIO)
        && fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    let remedy = match Errno::from_io_error(error) {
        Some(Errno::NOENT) => " (create its directory)",
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => " (the user of the server needs write permission)",
        Some(Errno::ISDIR) => " (specify a file in it)",
        Some(Errno::NXIO) => " (FIFO without a reader, or a socket)",
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot open access log {}: {error}{remedy}", path.display()))
}

fn is_same(first: &File, second: &File) -> io::Result<bool> {
    let (first, second) = (first.metadata()?, second.metadata()?);
    Ok((first.dev(), first.ino()) == (second.dev(), second.ino()))
}
