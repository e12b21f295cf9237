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
pub(crate) enum AcceptFailure {
    /// No connection waits.
    Empty,
    /// That connection is gone; the next may be well.
    Gone,
    /// Descriptors or memory ran out: try again after [`ACCEPT_PAUSE`].
    Exhausted,
    /// The listener is of no use any more.
    Broken(Errno),
}

impl From<Errno> for AcceptFailure {
    fn from(errno: Errno) -> AcceptFailure {
        match errno {
            Errno::AGAIN => AcceptFailure::Empty,
            Errno::INTR
            | Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::PERM
            | Errno::PROTO
            | Errno::TIMEDOUT
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH => AcceptFailure::Gone,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => AcceptFailure::Exhausted,
            other => AcceptFailure::Broken(other),
        }
    }
}

/// Accepts one connection from a listener that does not block: `accept4(2)`, SOCK_NONBLOCK, Linux 2.6.28.
pub(crate) fn accept(listener: &TcpListener) -> Result<OwnedFd, AcceptFailure> {
    loop {
        match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => return Ok(socket),
            Err(errno) => match AcceptFailure::from(errno) {
                AcceptFailure::Gone => {}
                failure => return Err(failure),
            },
        }
    }
}
