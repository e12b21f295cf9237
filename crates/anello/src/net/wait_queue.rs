//! Several futures that wait for one socket, of which the driver knows the last one's waker alone: who has got something,
//! or waits no longer, wakes the next.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use crate::driver::wake_all;

/// Who waits, the longest first. Whomever the driver knows is one of them, or one of them was woken and will ask again.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    last_ticket_id: Cell<u64>,
}

/// One future's place, once it has had to wait.
pub(super) struct WaitTicket<'a> {
    wait_queue: &'a WaitQueue,
    number: Option<u64>,
}

impl WaitQueue {
    pub fn ticket(&self) -> WaitTicket<'_> {
        WaitTicket { wait_queue: self, number: None }
    }
}

impl WaitTicket<'_> {
    /// Polls for what is waited for.
    pub fn poll<T>(&mut self, context: &Context<'_>, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        let polled = poll();
        match polled.is_pending() {
            true => self.wait(context.waker()),
            false => self.leave(),
        }
        polled
    }

    fn wait(&mut self, waker: &Waker) {
        let number = *self.number.get_or_insert_with(|| {
            self.wait_queue.last_ticket_id.set(self.wait_queue.last_ticket_id.get() + 1);
            self.wait_queue.last_ticket_id.get()
        });
        let mut waiting = self.wait_queue.waiting.borrow_mut();
        let before = match waiting.iter_mut().find(|(known, _)| *known == number) {
            Some((_, known)) if known.will_wake(waker) => None,
            Some((_, known)) => Some(std::mem::replace(known, waker.clone())),
            None => {
                waiting.push_back((number, waker.clone()));
                None
            }
        };
        // Dropping a waker may run any code.
        drop(waiting);
        drop(before);
    }

    fn leave(&mut self) {
        let number = self.number.take();
        let mut waiting = self.wait_queue.waiting.borrow_mut();
        let index = waiting.iter().position(|(known, _)| Some(*known) == number);
        let own = index.and_then(|index| waiting.remove(index));
        // Also by who has got something without having waited: it has left its waker in the others' place.
        let next = waiting.front().map(|(_, waker)| waker.clone());
        drop(waiting);
        drop(own);
        wake_all(next);
    }
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        if self.number.is_some() {
            self.leave();
        }
    }
}
