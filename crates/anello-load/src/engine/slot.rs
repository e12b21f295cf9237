//! State shared by the task of a connection and the runner of the measurement, which passes due requests to the task
//! and aborts the connection when a reply takes too long. This avoids a timer per request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use anello::net::ShutdownHandle;

use crate::engine::shared::Shared;

#[derive(Debug, Default)]
pub(crate) struct ConnectionSlot {
    /// Send time of the oldest request in flight, if any.
    oldest_sent_ns: Cell<Option<u64>>,
    /// Set if the connection has been aborted since it was opened.
    pub abort_reason: Cell<Option<AbortReason>>,
    /// Set while the connection is open or closing.
    shutdown_handle: RefCell<Option<ShutdownHandle>>,
    /// Open loop: due times of the requests waiting to be sent.
    pub due_queue: RefCell<VecDeque<u64>>,
    /// Number of requests at the front of `due_queue` that have been sent before.
    pub resend_count: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// Open loop: set while the task waits until a request is due, and could send it immediately.
    pub is_ready: Cell<bool>,
    /// Time at which the connection is opened in a ramp.
    pub open_at_ns: Cell<u64>,
    /// Set if the connection has failed and is not opened again.
    pub broken: Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortReason {
    TimedOut,
    /// The load was stopped.
    Interrupted,
}

impl ConnectionSlot {
    /// Marks the connection as open. Discards an abort requested before the connection was open, when there was nothing
    /// to close. The timeout is then checked again on the open connection.
    pub fn set_open(&self, shutdown_handle: ShutdownHandle) {
        self.abort_reason.set(None);
        self.shutdown_handle.replace(Some(shutdown_handle));
    }

    pub fn is_open(&self) -> bool {
        self.shutdown_handle.borrow().is_some()
    }

    pub fn set_closed(&self) {
        self.set_idle();
        self.abort_reason.set(None);
        self.shutdown_handle.replace(None);
    }

    #[inline]
    pub fn set_oldest_sent(&self, sent_ns: u64) {
        self.oldest_sent_ns.set(Some(sent_ns));
    }

    #[inline]
    pub fn set_idle(&self) {
        self.oldest_sent_ns.set(None);
    }

    /// Aborts the connection if a request has been in flight for too long. The task then receives EOF.
    #[inline]
    pub fn check_timeout(&self, now_ns: u64, stall_timeout_ns: u64) {
        let is_late = |sent_ns: u64| now_ns.saturating_sub(sent_ns) > stall_timeout_ns;
        if self.oldest_sent_ns.get().is_some_and(is_late) {
            self.abort(AbortReason::TimedOut);
        }
    }

    pub fn is_busy(&self) -> bool {
        self.oldest_sent_ns.get().is_some()
    }

    pub fn abort(&self, reason: AbortReason) {
        if self.abort_reason.get().is_none() {
            self.abort_reason.set(Some(reason));
            if let Some(shutdown_handle) = &*self.shutdown_handle.borrow() {
                shutdown_handle.shutdown();
            }
            self.wake();
        }
    }

    /// Removes all requests from the due queue and counts them as unsent.
    pub fn clear_queue(&self, shared: &Shared) {
        let queued = std::mem::take(&mut *self.due_queue.borrow_mut());
        self.resend_count.set(0);
        shared.counters.add_unsent(shared.counted(queued));
    }

    #[inline]
    pub fn register_waker(&self, waker: &Waker) {
        let mut registered = self.waker.borrow_mut();
        if !registered.as_ref().is_some_and(|registered| registered.will_wake(waker)) {
            *registered = Some(waker.clone());
        }
    }

    #[inline]
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    pub fn clear_waker(&self) {
        self.waker.replace(None);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use anello::net::TcpStream;

    use super::*;

    #[test]
    fn request_timed_out_while_connecting_times_out_on_open_connection() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        anello::Runtime::new().unwrap().block_on(async {
            let slot = ConnectionSlot::default();
            slot.set_oldest_sent(1);
            slot.check_timeout(20, 10);
            assert_eq!(slot.abort_reason.get(), Some(AbortReason::TimedOut));
            // The connection opens before its task has noticed the abort.
            let mut stream = TcpStream::connect(address).await.unwrap();
            slot.set_open(stream.shutdown_handle());
            assert_eq!(slot.abort_reason.get(), None);
            slot.check_timeout(20, 10);
            assert_eq!(slot.abort_reason.get(), Some(AbortReason::TimedOut));
            assert!(!matches!(stream.recv().await, Ok(Some(_))), "the stream is shut down");
        });
    }
}
