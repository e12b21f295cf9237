//! The part that both state machines share: adding sockets, and non-blocking calls on sockets.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::task::{Poll, Waker, ready};

use socket2::SockAddr;

use super::counters::DriverMetrics;
use super::sockets::{End, Family, ListenOptions, PeerCredentials, Sockets, StreamOption, gone};
use super::token::Key;
use super::wake::{PollIo, WakerSlot};

pub(crate) type SocketOf<M> = <<M as Machine>::Sockets as Sockets>::Socket;

/// A connection returned by an accept.
#[derive(Debug)]
pub(crate) enum Accepted {
    Stream(Key),
    /// A connection that was not attached to this driver. Its descriptor is in blocking mode.
    Descriptor(OwnedFd),
}

/// A state machine.
pub(crate) trait Machine: Sized {
    type Sockets: Sockets;

    fn sockets(&self) -> &Self::Sockets;
    fn sockets_mut(&mut self) -> &mut Self::Sockets;
    fn stream(&self, key: Key) -> Option<&SocketOf<Self>>;
    fn listener(&self, key: Key) -> Option<&SocketOf<Self>>;
    /// Returns a stream's waker slots for reading and writing.
    fn wakers(&mut self, key: Key) -> Option<[&mut WakerSlot; 2]>;
    /// Returns a listener, and the sockets and metrics needed to reject its connections.
    fn listener_parts(
        &mut self,
        key: Key,
    ) -> Option<(&mut Self::Sockets, &SocketOf<Self>, &mut DriverMetrics)>;
    fn metrics(&self) -> DriverMetrics;

    /// Adds a connected socket that was not created by this driver.
    fn attach(&mut self, socket: SocketOf<Self>, family: Family) -> io::Result<Key>;

    /// Adds a connected socket that was accepted by this driver.
    fn attach_accepted(&mut self, socket: SocketOf<Self>, family: Family) -> io::Result<Key> {
        self.attach(socket, family)
    }

    fn attach_listener(&mut self, socket: SocketOf<Self>, family: Family) -> io::Result<Key>;

    /// Accepts the next connection, without attaching it as a stream.
    fn poll_accepted(&mut self, key: Key, waker: &Waker) -> PollIo<(SocketOf<Self>, Family)>;

    fn poll_accept(&mut self, key: Key, waker: &Waker) -> PollIo<Key> {
        let (socket, family) = ready!(self.poll_accepted(key, waker))?;
        Poll::Ready(self.attach_with_options(socket, family))
    }

    fn attach_with_options(&mut self, socket: SocketOf<Self>, family: Family) -> io::Result<Key> {
        if family == Family::Unix {
            // Unlike a TCP socket, an accepted Unix socket does not inherit the option of its listener.
            self.sockets().set_option(&socket, StreamOption::UrgentInline)?;
        }
        self.attach_accepted(socket, family)
    }

    /// Accepts like [`poll_accept`](Self::poll_accept). If `should_attach` returns `false`, the connection leaves the
    /// driver as a descriptor.
    fn poll_accept_if(
        &mut self,
        key: Key,
        waker: &Waker,
        should_attach: impl FnOnce() -> bool,
    ) -> PollIo<Accepted> {
        let (socket, family) = ready!(self.poll_accepted(key, waker))?;
        Poll::Ready(match should_attach() {
            true => self.attach_with_options(socket, family).map(Accepted::Stream),
            false => self.sockets_mut().export(socket).map(Accepted::Descriptor),
        })
    }

    fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Key> {
        let socket = self.sockets_mut().listen(address, options)?;
        self.attach_listener(socket, Family::Internet)
    }

    fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<Key> {
        let socket = self.sockets_mut().listen_unix(address, backlog)?;
        self.attach_listener(socket, Family::Unix)
    }

    fn connect_unix(&mut self, peer: &UnixAddress) -> io::Result<Key> {
        let socket = self.sockets_mut().connect_unix(peer)?;
        self.attach(socket, Family::Unix)
    }

    fn import_listener(&mut self, descriptor: OwnedFd) -> io::Result<Key> {
        let (socket, family) = self.import(descriptor)?;
        self.attach_listener(socket, family)
    }

    fn import_stream(&mut self, descriptor: OwnedFd) -> io::Result<Key> {
        let (socket, family) = self.import(descriptor)?;
        self.attach(socket, family)
    }

    fn import(&mut self, descriptor: OwnedFd) -> io::Result<(SocketOf<Self>, Family)> {
        let socket = self.sockets_mut().import(descriptor)?;
        let family = self.sockets().family(&socket)?;
        Ok((socket, family))
    }

    /// Rejects a listener's pending connections when no descriptors are left. Returns the number of rejected
    /// connections.
    fn refuse(&mut self, key: Key) -> usize {
        let Some((sockets, listener, metrics)) = self.listener_parts(key) else { return 0 };
        let rejected = sockets.refuse(listener);
        metrics.refused += rejected as u64;
        rejected
    }

    /// Declares that other workers accept connections from the same socket. On kernels that report readiness, each
    /// connection is reported to all of them.
    fn share_listener(&mut self, _key: Key) {}

    /// Sets whether connections may be accepted before the application polls for them. Kernels that report readiness
    /// never accept ahead.
    fn set_accept_ahead(&mut self, _key: Key, _accepts_ahead: bool) {}

    /// Takes the wakers of the tasks waiting to read from or write to a stream.
    fn take_wakers(&mut self, key: Key) -> [Option<Waker>; 2] {
        self.wakers(key).map_or([None, None], |slots| slots.map(WakerSlot::take))
    }

    fn shutdown(&self, key: Key, how: Shutdown) -> io::Result<()> {
        self.sockets().shutdown(self.stream(key).ok_or_else(gone)?, how)
    }

    fn set_option(&self, key: Key, option: StreamOption) -> io::Result<()> {
        self.sockets().set_option(self.stream(key).ok_or_else(gone)?, option)
    }

    fn address(&self, key: Key, end: End) -> io::Result<SockAddr> {
        self.sockets().address(self.stream(key).ok_or_else(gone)?, end)
    }

    fn listener_address(&self, key: Key) -> io::Result<SockAddr> {
        self.sockets().address(self.listener(key).ok_or_else(gone)?, End::Local)
    }

    fn peer_credentials(&self, key: Key) -> io::Result<PeerCredentials> {
        self.sockets().peer_credentials(self.stream(key).ok_or_else(gone)?)
    }
}
