//! Model of a connection: the accepted and delivered bytes, as counted by the test.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::task::Waker;

use super::hostile::Hostility;
use crate::common::{forget, poll_at_most};

/// Connection of a program: both directions, and whether the connection may break.
#[derive(Debug)]
pub struct Connection {
    /// The direction from the client to the server, and the reverse direction.
    pub directions: [Direction; 2],
    /// Set once TCP may reset the connection: a socket was closed with unread data, the program aborted the
    /// connection, or the simulated network loses connections. From then on, errors are expected.
    pub may_break: Cell<bool>,
}

/// Bytes sent in one direction. The value of each byte is derived from its position.
#[derive(Debug)]
pub struct Direction {
    salt: u64,
    /// Number of bytes in completed sends and writes.
    accepted: Cell<u64>,
    received: Cell<u64>,
    /// Whether the sender has shut down or dropped its side.
    ended: Cell<bool>,
}

impl Connection {
    pub fn new(salt: u64, may_break: bool) -> Rc<Self> {
        Rc::new(Self {
            directions: [Direction::new(salt), Direction::new(!salt)],
            may_break: Cell::new(may_break),
        })
    }
}

impl Direction {
    fn new(salt: u64) -> Self {
        Self { salt, accepted: Cell::new(0), received: Cell::new(0), ended: Cell::new(false) }
    }

    /// Returns the next bytes to send.
    pub fn next_bytes(&self, length: usize) -> Vec<u8> {
        let start = self.accepted.get();
        (start..start + length as u64).map(|position| self.byte_at(position)).collect()
    }

    fn byte_at(&self, position: u64) -> u8 {
        (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.salt).wrapping_shr(32) as u8 ^ position as u8
    }

    pub fn accept(&self, count: usize) {
        assert!(!self.ended.get(), "bytes were accepted after the shutdown");
        self.accepted.set(self.accepted.get() + count as u64);
    }

    /// Checks bytes that the next receives will return.
    pub fn check_peeked(&self, bytes: &[u8]) {
        for (position, byte) in (self.received.get()..).zip(bytes) {
            assert_eq!(*byte, self.byte_at(position), "peeked byte {position} differs");
        }
        assert!(self.received.get() + bytes.len() as u64 <= self.accepted.get());
    }

    /// Checks that received bytes arrive once and in order.
    pub fn receive(&self, bytes: &[u8]) {
        let start = self.received.get();
        for (position, byte) in (start..).zip(bytes) {
            assert_eq!(*byte, self.byte_at(position), "byte {position} differs");
        }
        self.received.set(start + bytes.len() as u64);
        let (received, accepted) = (self.received.get(), self.accepted.get());
        assert!(received <= accepted, "{received} bytes arrived, but only {accepted} were accepted");
    }

    pub fn end(&self) {
        self.ended.set(true);
    }

    /// Checks EOF: every accepted byte must have arrived before it, unless the connection may be broken.
    pub fn check_end(&self, may_break: bool) {
        if may_break {
            return;
        }
        assert!(self.ended.get(), "EOF although the sender has not shut down");
        assert_eq!(self.received.get(), self.accepted.get(), "accepted bytes were lost without an error");
    }
}

/// What a program has leaked deliberately, and therefore does not return to the baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaked {
    #[default]
    Nothing,
    /// Memory, or the program has used the memory of another thread, which is not counted.
    Memory,
    /// Memory, and perhaps the driver of the runtime, but no socket.
    Driver,
    Everything,
}

/// State shared by the tasks of one program.
pub struct World {
    pub connections: RefCell<Vec<Rc<Connection>>>,
    /// Objects that outlive the runtime.
    pub survivors: RefCell<Vec<super::Survivor>>,
    /// Whether the program ends before its connections are closed.
    pub ends_early: bool,
    /// `true` if the program also leaks pending futures.
    pub forgets: bool,
    pub leaked: Cell<Leaked>,
    /// `true` if child processes are forked.
    pub forks: Cell<bool>,
    pub hostility: Hostility,
    /// Thread that calls and drops wakers, and spawns tasks on the runtime. `None` on the simulated kernels, where runs
    /// must be reproducible.
    pub elsewhere: RefCell<Option<Sender<Waker>>>,
    /// Events in order. On the simulated kernels, the same seed always produces the same events.
    pub trace: RefCell<Vec<(&'static str, u64)>>,
}

impl World {
    pub fn new(
        ends_early: bool,
        forgets: bool,
        hostility: Hostility,
        elsewhere: Option<Sender<Waker>>,
    ) -> Self {
        Self {
            connections: RefCell::default(),
            survivors: RefCell::default(),
            ends_early,
            forgets,
            leaked: Cell::default(),
            forks: Cell::default(),
            hostility,
            elsewhere: RefCell::new(elsewhere),
            trace: RefCell::default(),
        }
    }

    /// Leaks a value that may own any object.
    pub fn forget<T>(&self, forgotten: T) {
        self.leaked.set(Leaked::Everything);
        forget(forgotten);
    }

    /// Polls a future at most `polls` times, possibly never, and leaks it unless it completes. The future must not own a
    /// socket. If it refers to the runtime, the memory and the descriptors of the driver are not released.
    pub async fn forget_pending<F: Future>(&self, polls: usize, future: F) -> Option<F::Output> {
        let mut future = Box::pin(future);
        let output = poll_at_most(polls, &mut future).await;
        if output.is_none() {
            self.leaked.set(self.leaked.get().max(Leaked::Driver));
            forget(future);
        }
        output
    }

    /// Returns whether other threads are involved.
    pub fn has_threads(&self) -> bool {
        self.elsewhere.borrow().is_some()
    }

    /// Calls a waker, on another thread if the program has one.
    pub fn call_elsewhere(&self, waker: Waker) {
        match &*self.elsewhere.borrow() {
            Some(elsewhere) => elsewhere.send(waker).expect("a waker thread"),
            None => waker.wake(),
        }
    }

    pub fn note(&self, event: &'static str, value: u64) {
        self.trace.borrow_mut().push((event, value));
    }
}
