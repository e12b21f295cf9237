//! System calls on Unix datagram sockets.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr as UnixAddress;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix};
use socket2::{Domain, Socket, Type};

use super::address::kernel_address;

/// Opens a socket in non-blocking mode.
pub(crate) fn open() -> io::Result<OwnedFd> {
    Ok(Socket::new(Domain::UNIX, Type::DGRAM.nonblocking(), None)?.into())
}

pub(crate) fn bind(socket: BorrowedFd<'_>, address: &UnixAddress) -> io::Result<()> {
    Ok(rustix::net::bind(socket, &kernel_address(address)?)?)
}

pub(crate) fn connect(socket: BorrowedFd<'_>, address: &UnixAddress) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &kernel_address(address)?)?)
}

pub(crate) fn send_to(socket: BorrowedFd<'_>, payload: &[u8], to: &UnixAddress) -> io::Result<usize> {
    let to = kernel_address(to)?;
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| rustix::net::sendto(socket, payload, flags, &to))?)
}

pub(crate) fn recv_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, UnixAddress)> {
    let received = retry_on_intr(|| rustix::net::recvfrom(socket, &mut *buffer, flags | RecvFlags::DONTWAIT));
    let (bytes, _, source) = received?;
    Ok((bytes, source_address(source)?))
}

/// Converts the address of a sender. A socket that is not bound has an unnamed address, which the standard library
/// represents by an empty path.
fn source_address(source: Option<SocketAddrAny>) -> io::Result<UnixAddress> {
    let source = source.and_then(|source| SocketAddrUnix::try_from(source).ok());
    let path = source.as_ref().and_then(SocketAddrUnix::path_bytes);
    let name = source.as_ref().and_then(SocketAddrUnix::abstract_name);
    match (path, name) {
        (Some(path), _) => UnixAddress::from_pathname(OsStr::from_bytes(path)),
        (None, Some(name)) => UnixAddress::from_abstract_name(name),
        (None, None) => unnamed(),
    }
}

/// Converts the name of a received message.
pub(crate) fn named_address(name: &[u8]) -> io::Result<UnixAddress> {
    match name {
        [] => unnamed(),
        [0, name @ ..] => UnixAddress::from_abstract_name(name),
        path => {
            let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
            UnixAddress::from_pathname(OsStr::from_bytes(path))
        }
    }
}

pub(crate) fn unnamed() -> io::Result<UnixAddress> {
    UnixAddress::from_pathname("")
}
