//! Opening all connections of a session before its load begins, a few at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anello::time::timeout;

use crate::connect;
use crate::errors::{ErrorKind, Errors, Fault};
use crate::schedule::Share;
use crate::shared::{ProgressSnapshot, Shared};
use crate::stream::Stream;

/// Connections being opened.
pub(crate) struct Opening {
    shared: Rc<Shared>,
    share: Share,
    limit: Duration,
    deadline: Instant,
    /// Place of the next connection to open.
    next: Cell<usize>,
    /// Those that could be opened, with their places.
    pub streams: RefCell<Vec<(usize, Stream)>>,
    pub errors: RefCell<Errors>,
}

impl Opening {
    pub fn new(shared: Rc<Shared>, share: Share, limit: Duration) -> Self {
        Self {
            shared,
            share,
            limit,
            deadline: Instant::now() + limit,
            next: Cell::new(0),
            streams: RefCell::default(),
            errors: RefCell::default(),
        }
    }

    /// Opens one connection after the other.
    pub async fn work(self: Rc<Self>) {
        while self.next.get() < self.share.count() {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.give_the_rest_up();
            }
            let place = self.next.replace(self.next.get() + 1);
            let from = self.shared.source_address(self.share.number(place) as u64);
            match timeout(left, connect::connect(&self.shared.target, from, self.shared.tls.as_ref())).await {
                Ok(Ok(stream)) => self.streams.borrow_mut().push((place, stream)),
                Ok(Err(error)) => {
                    let fault = Fault::of_connecting(&error);
                    self.errors.borrow_mut().add(fault.kind, || fault.text);
                }
                Err(_) => self.count_late(1),
            }
        }
    }

    fn give_the_rest_up(&self) {
        let rest = self.share.count() - self.next.replace(self.share.count());
        self.count_late(rest as u64);
    }

    fn count_late(&self, count: u64) {
        let (target, limit) = (&self.shared.target, self.limit);
        self.errors.borrow_mut().add_many(ErrorKind::ConnectTimeout, count, || {
            format!("{target}: not connected within {limit:?}")
        });
    }

    pub fn snapshot(&self) -> ProgressSnapshot {
        let open = self.streams.borrow().len();
        ProgressSnapshot { open, requests: 0, errors: self.errors.borrow().total() }
    }
}
