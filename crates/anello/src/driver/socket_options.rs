//! Socket options for which no safe call is at hand.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The user and process at the other end of a Unix stream, as the kernel saw them when it was connected (for the
/// connecting side: when the listener began to listen).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The number of the process; `None` when it cannot be seen from here (another PID namespace). It may have ended, and
    /// its number may be another's by now.
    pub pid: Option<u32>,
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
}

/// Who is at the other end of a Unix stream (`SO_PEERCRED`).
pub(super) fn peer_credentials(socket: &impl AsFd) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `found`, which has as many, and only during the call; any bytes
    // are valid numbers.
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

/// Leaves the choice of the port to `connect(2)` when an address is bound (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2).
pub(super) fn bind_address_no_port(socket: &impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one number, during the call only.
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
