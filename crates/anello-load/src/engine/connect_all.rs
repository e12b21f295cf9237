//! Opening all connections of a session before its load starts, a limited number at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anello::time;

use crate::engine::schedule::Share;
use crate::engine::shared::{ProgressSnapshot, Shared};
use crate::model::errors::{ConnectionError, ErrorKind, Errors};
use crate::wire::connect;
use crate::wire::stream::Stream;

/// Connections that are being opened. Shared by the tasks that open them.
pub(crate) struct ConnectBatch {
    shared: Rc<Shared>,
    share: Share,
    timeout: Duration,
    deadline: Instant,
    /// Slot index of the next connection to open.
    next_index: Cell<usize>,
    /// Open connections with their slot indexes.
    pub streams: RefCell<Vec<(usize, Stream)>>,
    pub errors: RefCell<Errors>,
}

impl ConnectBatch {
    pub fn new(shared: Rc<Shared>, share: Share, timeout: Duration) -> Self {
        Self {
            shared,
            share,
            timeout,
            deadline: Instant::now() + timeout,
            next_index: Cell::new(0),
            streams: RefCell::default(),
            errors: RefCell::default(),
        }
    }

    /// Opens connections one at a time until none remain or the deadline has passed. Runs in several tasks
    /// concurrently.
    pub async fn run(self: Rc<Self>) {
        while self.next_index.get() < self.share.count() {
            let remaining = self.deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return self.abort_remaining();
            }
            let slot_index = self.next_index.replace(self.next_index.get() + 1);
            let source_address = self.shared.source_address(self.share.global_index(slot_index) as u64);
            match time::timeout(
                remaining,
                connect::connect(&self.shared.target, source_address, self.shared.tls.as_ref()),
            )
            .await
            {
                Ok(Ok(stream)) => self.streams.borrow_mut().push((slot_index, stream)),
                Ok(Err(error)) => {
                    let error = ConnectionError::from_connect_error(&error);
                    self.errors.borrow_mut().add(error.kind, || error.text);
                }
                Err(_) => self.record_timeouts(1),
            }
        }
    }

    fn abort_remaining(&self) {
        let remaining = self.share.count() - self.next_index.replace(self.share.count());
        self.record_timeouts(remaining as u64);
    }

    fn record_timeouts(&self, count: u64) {
        let (target, timeout) = (&self.shared.target, self.timeout);
        self.errors.borrow_mut().add_many(ErrorKind::ConnectTimeout, count, || {
            format!("cannot connect to {target}: timed out after {timeout:?}")
        });
    }

    pub fn snapshot(&self) -> ProgressSnapshot {
        let open = self.streams.borrow().len();
        ProgressSnapshot { open, requests: 0, errors: self.errors.borrow().total() }
    }
}
