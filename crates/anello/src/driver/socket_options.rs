//! Socket options for which no dependency provides a safe call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Credentials of a Unix stream's peer, as recorded by the kernel when the stream was connected. On the connecting
/// side, these are the credentials of the listener at the time of its `listen(2)` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process ID, or `None` if the peer is in another PID namespace and not visible from this one. By now, the
    /// process may have exited and its ID may belong to another process.
    pub pid: Option<u32>,
    /// The effective user ID.
    pub uid: u32,
    /// The effective group ID.
    pub gid: u32,
}

/// Returns the credentials of a Unix stream's peer (`SO_PEERCRED`).
pub(super) fn peer_credentials(socket: &impl AsFd) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `credentials`, which has that size, and only during the call.
    // All bytes are valid integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials {
        pid: u32::try_from(credentials.pid).ok().filter(|process| *process != 0),
        uid: credentials.uid,
        gid: credentials.gid,
    })
}

/// When an address is bound, defers the choice of the local port to `connect(2)` (`IP_BIND_ADDRESS_NO_PORT`, Linux
/// 4.2).
pub(super) fn bind_address_no_port(socket: &impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one integer, only during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
