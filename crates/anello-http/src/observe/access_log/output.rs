//! The file that lines go to: opened, written as far as it takes, opened anew.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::LogTarget;

/// Rights of a file that is created: others may not read who visited.
const MODE: u32 = 0o640;

/// Where lines go, open or to be opened.
#[derive(Debug)]
pub(super) struct Output {
    target: Target,
    /// None while a FIFO has no reader.
    file: Option<File>,
}

#[derive(Debug)]
enum Target {
    /// Open from the start, and never opened anew.
    Inherited,
    Path(PathBuf),
}

impl Output {
    /// Opens a target (`dup(2)` of standard output, `open(2)`). Never waits for the reader of a FIFO.
    pub(super) fn open(target: LogTarget) -> io::Result<Self> {
        match target {
            // A descriptor of its own: the standard library's has a lock, which others would wait for while this hangs.
            LogTarget::Stdout => {
                let file = io::stdout().as_fd().try_clone_to_owned().map_err(|error| {
                    io::Error::new(
                        error.kind(),
                        format!("cannot log to standard output: {error}; is it closed?"),
                    )
                })?;
                Ok(Self::inherited(file.into()))
            }
            LogTarget::File(path) => {
                let file = match open_to_append(&path) {
                    Ok(file) => Some(file),
                    Err(error) if has_no_reader(&path, &error) => None,
                    Err(error) => return Err(with_path(&path, &error)),
                };
                Ok(Self { target: Target::Path(path), file })
            }
        }
    }

    /// Lines go to an open file.
    pub(super) fn inherited(file: File) -> Self {
        Self { target: Target::Inherited, file: Some(file) }
    }

    /// Opens the file anew by its name. True if it is another one now. On an error the old one stays.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let Target::Path(path) = &self.target else { return Ok(false) };
        let file = open_to_append(path).map_err(|error| with_path(path, &error))?;
        let same = self.file.as_ref().is_some_and(|old| is_same(old, &file).unwrap_or(false));
        self.file = Some(file);
        Ok(!same)
    }

    /// Writes as much as the file takes (`write(2)`), at least one byte. `WouldBlock` when a FIFO is full.
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

    /// Waits until a FIFO has room, its reader is gone, or some time has passed (`poll(2)`).
    pub(super) fn wait_writable(&self, longest: Duration) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let longest = Timespec::try_from(longest).ok();
        match poll(&mut [PollFd::new(file, PollFlags::OUT)], longest.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Inherited => f.write_str("standard output"),
            Target::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Opens a file without waiting, as opening a FIFO would for a reader; a full FIFO then says so, too.
fn open_to_append(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    OpenOptions::new().append(true).create(true).mode(MODE).custom_flags(flags as i32).open(path)
}

/// Whether a file could not be opened because it is a FIFO that nobody reads yet. Sockets give the same error.
fn has_no_reader(path: &Path, error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NXIO)
        && fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    let remedy = match Errno::from_io_error(error) {
        Some(Errno::NOENT) => ": make its directory",
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            ": give the server's user the right to write there"
        }
        Some(Errno::ISDIR) => ": name a file in it",
        Some(Errno::NXIO) => ": nobody reads it, or it is a socket",
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot open the access log {}: {error}{remedy}", path.display()))
}

fn is_same(file: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (file.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}
