//! Sockets that belong to no driver.

use std::any::Any;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{RefUnwindSafe, UnwindSafe};

use super::linger::stop_lingering_if_set;

/// An owned socket of any kernel, which belongs to no table of a driver.
#[derive(Debug)]
pub(crate) struct AnySocket(Box<dyn Any>);

impl AnySocket {
    pub fn new<S: 'static>(socket: S) -> Self {
        Self(Box::new(socket))
    }

    /// Returns the socket, or `None` if it is of another kernel.
    pub fn get<S: 'static>(&self) -> Option<&S> {
        self.0.downcast_ref()
    }

    /// Returns the descriptor. Sockets of simulated kernels return an error.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.get::<OwnedFd>().map(AsFd::as_fd).ok_or_else(no_descriptors)
    }

    /// Returns the socket, or `None` if it is of another kernel.
    pub fn into<S: 'static>(self) -> Option<S> {
        self.0.downcast().ok().map(|socket| *socket)
    }
}

/// An owned socket that belongs to no driver. Any thread can own it, and a driver of the same kernel can attach it.
#[derive(Debug)]
pub(crate) enum DetachedSocket {
    /// A connection is in blocking mode.
    Os(OwnedFd),
    Simulated(Box<dyn Detached>),
}

/// A detached socket of a simulated kernel.
pub(crate) trait Detached: Any + fmt::Debug + Send + Sync {
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn try_clone(&self) -> io::Result<DetachedSocket>;
    /// Accepts one connection. Returns `WouldBlock` if no connection is pending.
    fn try_accept(&self) -> io::Result<DetachedSocket>;
}

/// An owned connection that belongs to no driver. Like a driver, it closes the connection without blocking.
#[derive(Debug)]
pub(crate) struct DetachedConnection(Option<DetachedSocket>);

impl DetachedConnection {
    pub fn new(connection: impl Into<DetachedSocket>) -> Self {
        Self(Some(connection.into()))
    }

    pub fn into_socket(mut self) -> DetachedSocket {
        self.0.take().expect("the socket is taken only here and in the destructor")
    }
}

/// Code of the application, which may panic, never runs while the state is being changed.
impl UnwindSafe for DetachedConnection {}
impl RefUnwindSafe for DetachedConnection {}

impl Drop for DetachedConnection {
    fn drop(&mut self) {
        if let Some(DetachedSocket::Os(descriptor)) = &self.0 {
            stop_lingering_if_set(descriptor);
        }
    }
}

impl<T: Into<OwnedFd>> From<T> for DetachedSocket {
    fn from(descriptor: T) -> Self {
        Self::Os(descriptor.into())
    }
}

impl DetachedSocket {
    /// Returns the socket if it is of a simulated kernel.
    pub fn get<S: 'static>(&self) -> Option<&S> {
        match self {
            Self::Os(_) => None,
            Self::Simulated(socket) => (&**socket as &dyn Any).downcast_ref(),
        }
    }

    /// Returns the descriptor. Simulated sockets return an error.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Self::Os(descriptor) => Ok(descriptor.as_fd()),
            Self::Simulated(_) => Err(no_descriptors()),
        }
    }

    /// Returns the descriptor. Simulated sockets return an error, and are closed.
    pub fn into_descriptor(self) -> io::Result<OwnedFd> {
        match self {
            Self::Os(descriptor) => Ok(descriptor),
            Self::Simulated(_) => Err(no_descriptors()),
        }
    }

    /// Returns the address to which an IP socket is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Os(descriptor) => Ok(rustix::net::getsockname(descriptor)?.try_into()?),
            Self::Simulated(socket) => socket.local_addr(),
        }
    }

    /// Returns another owner of the same socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Os(descriptor) => descriptor.try_clone().map(Self::Os),
            Self::Simulated(socket) => socket.try_clone(),
        }
    }
}

/// Returns the error for operations that need the descriptor of a simulated socket.
#[cold]
pub(in crate::driver) fn no_descriptors() -> io::Error {
    let message = "file descriptors (pipes, AsyncFd, imported and exported sockets) are unsupported on the simulated \
         driver (use its sockets or io::duplex, or the uring or epoll driver)";
    io::Error::new(io::ErrorKind::Unsupported, message)
}
