//! Classification of `accept(2)` errors, shared by all models.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;

/// Pause before the next connection is accepted after descriptors or memory have run out. Pending connections wait in
/// the backlog.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Reason why no connection was accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AcceptError {
    /// No connection is pending.
    WouldBlock,
    /// This connection failed; the next one can be accepted.
    Transient,
    /// Descriptors or memory ran out: retry after [`ACCEPT_PAUSE`].
    OutOfResources,
    /// The listener is unusable.
    Fatal(Errno),
}

impl From<Errno> for AcceptError {
    fn from(errno: Errno) -> AcceptError {
        match errno {
            Errno::AGAIN => AcceptError::WouldBlock,
            Errno::INTR
            | Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::PERM
            | Errno::PROTO
            | Errno::TIMEDOUT
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH => AcceptError::Transient,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => AcceptError::OutOfResources,
            other => AcceptError::Fatal(other),
        }
    }
}

/// Accepts one connection from a non-blocking listener: `accept4(2)` with SOCK_NONBLOCK, Linux 2.6.28.
pub(crate) fn accept(listener: &TcpListener) -> Result<OwnedFd, AcceptError> {
    loop {
        match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => return Ok(socket),
            Err(errno) => match AcceptError::from(errno) {
                AcceptError::Transient => {}
                failure => return Err(failure),
            },
        }
    }
}

/// Accepts connections until the listener is unusable.
pub(crate) fn accept_blocking(
    listener: &TcpListener,
    mut on_connection: impl FnMut(TcpStream),
) -> io::Result<()> {
    listener.set_nonblocking(false)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => on_connection(stream),
            Err(error) => match Errno::from_io_error(&error).map(AcceptError::from) {
                Some(AcceptError::WouldBlock | AcceptError::Transient) => {}
                Some(AcceptError::OutOfResources) => thread::sleep(ACCEPT_PAUSE),
                Some(AcceptError::Fatal(_)) | None => return Err(error),
            },
        }
    }
}
