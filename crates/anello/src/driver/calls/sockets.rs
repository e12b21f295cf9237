//! Calls on sockets of any kind: their options, addresses and descriptors, and TCP sockets that are configured before
//! they are connected or listen.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use socket2::SockAddr;

use crate::driver::Driver;
use crate::driver::backend::{dispatch, dispatch_by_model};
use crate::driver::kernel::Kernel;
use crate::driver::memory::key::Key;
use crate::driver::sockets::detached::AnySocket;
use crate::driver::sockets::options::{PeerCredentials, SocketOption};
use crate::driver::sockets::{End, Sockets, Target, check_linger, gone};

/// Evaluates an expression with the kernel's sockets and a socket of the active state machine.
macro_rules! with_socket {
    ($driver:expr, $target:expr, ($sockets:ident, $socket:ident) => $call:expr) => {
        dispatch!(&*$driver.backend, machine => {
            let socket = match $target {
                Target::Stream(key) => machine.stream(key),
                Target::Listener(key) => machine.listener(key),
                Target::Unattached(socket) => socket.get(),
            };
            let ($sockets, $socket) = (machine.kernel.sockets(), socket.ok_or_else(gone)?);
            $call
        })
    };
}

impl Driver {
    /// Returns `true` if the stream no longer exists, or its peer sends no more bytes.
    pub fn is_peer_closed(&self, key: Key) -> bool {
        dispatch!(&*self.backend, machine => machine.is_peer_closed(key))
    }

    /// Returns `true` if the stream no longer exists, or its connection is broken or closed in both directions.
    pub fn is_broken(&self, key: Key) -> bool {
        dispatch!(&*self.backend, machine => machine.is_broken(key))
    }

    pub fn shutdown(&self, key: Key, how: Shutdown) -> io::Result<()> {
        with_socket!(self, Target::Stream(key), (sockets, socket) => sockets.shutdown(socket, how))
    }

    pub fn set_option(&self, target: Target<'_>, option: SocketOption, value: i32) -> io::Result<()> {
        with_socket!(self, target, (sockets, socket) => sockets.set_option(socket, option, value))
    }

    pub fn option(&self, target: Target<'_>, option: SocketOption) -> io::Result<i32> {
        with_socket!(self, target, (sockets, socket) => sockets.option(socket, option))
    }

    pub fn bind_device(&self, target: Target<'_>, device: Option<&[u8]>) -> io::Result<()> {
        with_socket!(self, target, (sockets, socket) => sockets.bind_device(socket, device))
    }

    pub fn device(&self, target: Target<'_>) -> io::Result<Option<Vec<u8>>> {
        with_socket!(self, target, (sockets, socket) => sockets.device(socket))
    }

    /// Returns the pending error of a socket. Clears it, unless a receive of the driver has already reported it.
    pub fn take_error(&self, target: Target<'_>) -> io::Result<Option<io::Error>> {
        let pending = with_socket!(self, target, (sockets, socket) => sockets.take_error(socket))?;
        let Target::Stream(key) = target else { return Ok(pending) };
        Ok(pending.or_else(|| {
            dispatch_by_model!(
                &*self.backend,
                completion machine => machine.receive_error(key),
                // A reactor receives only when a task polls, which returns the error.
                readiness _ => None
            )
        }))
    }

    pub fn address(&self, target: Target<'_>, end: End) -> io::Result<SockAddr> {
        with_socket!(self, target, (sockets, socket) => sockets.address(socket, end))
    }

    pub fn peer_credentials(&self, key: Key) -> io::Result<PeerCredentials> {
        with_socket!(self, Target::Stream(key), (sockets, socket) => sockets.peer_credentials(socket))
    }

    pub fn peer_pidfd(&self, key: Key) -> io::Result<OwnedFd> {
        with_socket!(self, Target::Stream(key), (sockets, socket) => sockets.peer_pidfd(socket))
    }

    /// Returns a new descriptor of a socket.
    pub fn duplicate(&mut self, target: Target<'_>) -> io::Result<OwnedFd> {
        let duplicate = with_socket!(self, target, (sockets, socket) => sockets.duplicate(socket))?;
        if let Target::Stream(key) = target {
            dispatch_by_model!(
                &mut *self.backend,
                completion _ => {},
                readiness machine => machine.mark_shared(key)
            );
        }
        Ok(duplicate)
    }

    /// Returns the descriptor of a socket, or an error if it has been released or the kernel is simulated.
    pub fn descriptor<'a>(&'a self, target: Target<'a>) -> io::Result<BorrowedFd<'a>> {
        if let Target::Stream(key) = target
            && dispatch!(&*self.backend, machine => machine.is_released(key))
        {
            return Err(gone());
        }
        with_socket!(self, target, (sockets, socket) => sockets.descriptor(socket))
    }

    /// Returns the number of a socket's descriptor, or -1 on simulated kernels.
    pub fn raw_fd(&self, target: Target<'_>) -> io::Result<RawFd> {
        with_socket!(self, target, (sockets, socket) => Ok(sockets.raw_fd(socket)))
    }

    /// Opens a TCP socket that is neither bound nor connected.
    pub fn open_tcp(&mut self, is_ipv6: bool) -> io::Result<AnySocket> {
        dispatch!(self.open_backend()?, machine => {
            machine.kernel.sockets_mut().open(is_ipv6).map(AnySocket::new)
        })
    }

    /// Takes ownership of a socket of the operating system.
    pub fn import_tcp(&mut self, descriptor: OwnedFd) -> io::Result<AnySocket> {
        dispatch!(self.open_backend()?, machine => {
            check_linger(&descriptor);
            let (socket, _) = machine.kernel.sockets_mut().import(descriptor.into())?;
            Ok(AnySocket::new(socket))
        })
    }

    pub fn bind(&mut self, socket: &AnySocket, address: SocketAddr) -> io::Result<()> {
        dispatch!(self.open_backend()?, machine => {
            let socket = socket.get().ok_or_else(gone)?;
            machine.kernel.sockets_mut().bind(socket, address)
        })
    }

    /// Starts to connect a socket.
    pub fn connect_socket(&mut self, socket: AnySocket, peer: SocketAddr) -> io::Result<Key> {
        dispatch!(self.open_backend()?, machine => {
            let socket = socket.into().ok_or_else(gone)?;
            machine.connect_socket(socket, peer)
        })
    }
}
