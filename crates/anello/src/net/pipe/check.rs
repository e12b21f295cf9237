//! Checks of descriptors.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags};

use crate::driver::with_context;

/// Returns an error if the file is not a pipe or FIFO.
pub(super) fn check_pipe(descriptor: &OwnedFd) -> io::Result<()> {
    match FileType::from_raw_mode(rustix::fs::fstat(descriptor)?.st_mode) {
        FileType::Fifo => Ok(()),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("file type is {other:?} (expected a pipe or a FIFO)"),
        )),
    }
}

/// Returns an error if the descriptor is not that of a pipe or FIFO, or not open for reading or writing, as required by
/// `access`.
pub(super) fn check_descriptor(descriptor: &OwnedFd, access: OFlags) -> io::Result<()> {
    check_pipe(descriptor).map_err(|error| with_context("cannot use the descriptor", error))?;
    let mode = rustix::fs::fcntl_getfl(descriptor)? & OFlags::ACCMODE;
    if mode == access || mode == OFlags::RDWR {
        return Ok(());
    }
    let text = format!("cannot use the descriptor: open with {mode:?} (expected {access:?} or RDWR)");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}
