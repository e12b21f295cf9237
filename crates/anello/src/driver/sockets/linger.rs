//! Positive values of `SO_LINGER`, with which closing a socket would block.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::options::{self, SocketOption};
use crate::driver::errors::log::log_event;

/// Set once a socket of this process may have a positive `SO_LINGER`. Connections inherit it from their listener, and can
/// change drivers.
static MAY_LINGER: AtomicBool = AtomicBool::new(false);

/// Checks the options of a socket that another part of the application has configured.
pub(crate) fn check_linger(socket: &impl AsFd) {
    if lingers(socket) {
        set_may_linger();
    }
}

/// Called before a socket gets a positive `SO_LINGER`.
pub(super) fn set_may_linger() {
    MAY_LINGER.store(true, Ordering::Relaxed);
}

fn lingers(socket: &impl AsFd) -> bool {
    matches!(options::get(socket, SocketOption::Linger), Ok(1..))
}

/// Removes a positive `SO_LINGER` from a socket that is about to be closed. With the option, `close(2)` blocks the worker
/// until the peer has acknowledged all bytes, even if the socket is non-blocking. Without it, the kernel sends them in the
/// same way after the call.
#[inline]
pub(super) fn stop_lingering_if_set(socket: &OwnedFd) {
    if MAY_LINGER.load(Ordering::Relaxed) {
        stop_lingering(socket);
    }
}

#[cold]
fn stop_lingering(socket: &OwnedFd) {
    if lingers(socket)
        && let Err(error) = options::set(socket, SocketOption::Linger, -1)
    {
        log_event!(DEBUG, %error, "cannot remove SO_LINGER; closing the socket may block");
    }
}
