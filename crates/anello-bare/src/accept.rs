//! What an accept that failed means, the same for every model.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;

/// How long no connection is accepted after descriptors or memory ran out. Until then they wait in the
/// listener's backlog; asking again at once would only spin.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why no connection came of an accept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AcceptError {
    /// No connection waits.
    WouldBlock,
    /// That connection is gone; the next may be well.
    Transient,
    /// Descriptors or memory ran out: try again after [`ACCEPT_PAUSE`].
    OutOfResources,
    /// The listener is of no use any more.
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

/// Accepts one connection from a listener that does not block: `accept4(2)`, SOCK_NONBLOCK, Linux 2.6.28.
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
