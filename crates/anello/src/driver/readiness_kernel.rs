//! Interface between the reactor and a kernel that reports readiness.

use std::io;

use super::notifier::Descriptors;
use super::op::Wait;
use super::sockets::Sockets;
use super::token::Token;

/// A kernel that reports readiness.
pub(crate) trait ReadinessKernel: Sized {
    type Sockets: Sockets;

    fn sockets(&self) -> &Self::Sockets;
    fn sockets_mut(&mut self) -> &mut Self::Sockets;
    /// Registers a socket for edge-triggered events in both directions, until it is closed.
    fn watch(&mut self, socket: &Socket<Self>, token: Token) -> io::Result<()>;
    fn unwatch(&mut self, socket: &Socket<Self>) -> io::Result<()>;
    /// Waits for events as requested. An interrupted or timed-out wait is not an error.
    fn wait(&mut self, wait: Wait) -> io::Result<()>;
    /// Returns the descriptors with which other threads interrupt a wait. Simulated kernels have none.
    fn wake_descriptors(&self) -> io::Result<Option<Descriptors>> {
        Ok(None)
    }
    /// Returns the next event from the last wait.
    fn edge(&mut self) -> Option<Edge>;
}

/// A readiness event on a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub token: Token,
    pub readable: bool,
    pub writable: bool,
    /// Set if a short read does not mean that the socket is drained: the peer has shut down its write side, the
    /// connection is broken, or there is urgent data, before which a read stops.
    pub hung_up: bool,
}

pub(crate) type Socket<K> = <<K as ReadinessKernel>::Sockets as Sockets>::Socket;
