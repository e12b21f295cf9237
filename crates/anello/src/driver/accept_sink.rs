//! What becomes of connections that the kernel accepts for a listener that was given up.

use std::fmt;
use std::os::fd::OwnedFd;
use std::task::Waker;

/// Who gets them: a multishot accept goes on until its cancellation has come to an end, whoever has lost interest.
///
/// Called while the driver is borrowed: it must not use it, nor call wakers.
pub(crate) trait AcceptSink: fmt::Debug + Send + Sync {
    /// Takes a connection, in blocking mode.
    fn accept(&self, connection: OwnedFd);

    /// Called once: the kernel does nothing for the listener any more.
    fn listener_released(&self);

    /// Who is to be told of the one or the other, when the driver is not borrowed any more.
    fn wakers(&self) -> Vec<Waker>;
}
