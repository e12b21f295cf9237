//! Unix addresses in the form that system calls take, and in messages.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;

use rustix::net::SocketAddrUnix;

pub(super) fn kernel_address(address: &UnixAddress) -> io::Result<SocketAddrUnix> {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => Ok(SocketAddrUnix::new(path)?),
        (None, Some(name)) => Ok(SocketAddrUnix::new_abstract_name(name)?),
        (None, None) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "cannot use an unnamed Unix address (expected a path or an abstract name)",
        )),
    }
}

/// Returns the address for messages: a path, or `@` and an abstract name.
pub(crate) fn unix_name(address: &UnixAddress) -> String {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(name)) => format!("@{}", name.escape_ascii()),
        (None, None) => "unnamed socket".to_owned(),
    }
}
