//! Accepted connections, and the receiver of connections accepted on a released listener.

use std::fmt;
use std::task::Waker;

use crate::driver::memory::key::Key;
use crate::driver::sockets::detached::DetachedSocket;

/// A connection returned by an accept operation.
#[derive(Debug)]
pub(crate) enum Accepted {
    Stream(Key),
    /// A connection that was not attached to this driver.
    Detached(DetachedSocket),
}

/// Receives connections that the kernel accepts on a released listener. A multishot accept continues until its
/// cancellation has completed, even if no task is polling the listener any more.
///
/// The driver is borrowed during these calls: implementations must neither use the driver nor call wakers.
pub(crate) trait AcceptSink: fmt::Debug + Send + Sync {
    /// Takes ownership of a connection.
    fn accept(&self, connection: DetachedSocket);

    /// Called once, when the kernel has ended all operations on the listener.
    fn listener_released(&self);

    /// Returns the wakers of the tasks to notify. They are called when the driver is no longer borrowed.
    fn wakers(&self) -> Vec<Waker>;
}
