//! What a connection has accepted and delivered, as the test counts it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use super::hostile::Hostility;

/// One connection of a program: both directions, and whether anything may break it.
#[derive(Debug)]
pub struct Connection {
    /// The direction from the client to the server, and the other.
    pub directions: [Direction; 2],
    /// Something happened for which TCP resets a connection: a socket was closed with unread data, or the program aborted
    /// it, or the simulated network loses connections. From then on an error is a report, not a fault.
    pub may_break: Cell<bool>,
}

/// The bytes of one direction: each has a value that follows from its position.
#[derive(Debug)]
pub struct Direction {
    salt: u64,
    /// Bytes of sends and writes that were ready.
    accepted: Cell<u64>,
    received: Cell<u64>,
    /// The sender has shut its side down, or dropped it.
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

    /// The next bytes to send.
    pub fn next_bytes(&self, length: usize) -> Vec<u8> {
        let start = self.accepted.get();
        (start..start + length as u64).map(|position| self.byte_at(position)).collect()
    }

    fn byte_at(&self, position: u64) -> u8 {
        (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.salt).wrapping_shr(32) as u8 ^ position as u8
    }

    pub fn accept(&self, count: usize) {
        assert!(!self.ended.get(), "bytes were accepted behind the end");
        self.accepted.set(self.accepted.get() + count as u64);
    }

    /// Checks bytes that have arrived: each once, and in order.
    pub fn receive(&self, bytes: &[u8]) {
        let start = self.received.get();
        for (position, byte) in (start..).zip(bytes) {
            assert_eq!(*byte, self.byte_at(position), "byte {position} is another one");
        }
        self.received.set(start + bytes.len() as u64);
        let (received, accepted) = (self.received.get(), self.accepted.get());
        assert!(received <= accepted, "{received} bytes arrived, and {accepted} were accepted");
    }

    pub fn end(&self) {
        self.ended.set(true);
    }

    /// Checks the end of the stream: every accepted byte came before it, unless the connection was broken.
    pub fn check_end(&self, may_break: bool) {
        if may_break {
            return;
        }
        assert!(self.ended.get(), "the stream ends though its sender has not ended it");
        assert_eq!(self.received.get(), self.accepted.get(), "accepted bytes were lost without an error");
    }
}

/// What one program shares among its tasks.
pub struct World {
    pub connections: RefCell<Vec<Rc<Connection>>>,
    /// Objects that live longer than the runtime.
    pub survivors: RefCell<Vec<super::Survivor>>,
    /// The program ends before its connections have.
    pub ends_early: bool,
    /// Something was forgotten: descriptors and memory stay.
    pub has_leaked: Cell<bool>,
    pub hostility: Hostility,
    /// A thread that calls and drops wakers, and spawns tasks on the runtime; none on the simulated kernels, whose runs
    /// replay exactly.
    pub elsewhere: RefCell<Option<Sender<Waker>>>,
    /// What happened, in order: equal for equal seeds on the simulated kernels.
    pub trace: RefCell<Vec<(&'static str, u64)>>,
}

impl World {
    pub fn new(ends_early: bool, hostility: Hostility, elsewhere: Option<Sender<Waker>>) -> Self {
        Self {
            connections: RefCell::default(),
            survivors: RefCell::default(),
            ends_early,
            has_leaked: Cell::new(false),
            hostility,
            elsewhere: RefCell::new(elsewhere),
            trace: RefCell::default(),
        }
    }

    /// Forgets something, as `mem::forget` does, but so that a leak checker still finds it.
    pub fn forget<T>(&self, forgotten: T) {
        static FORGOTTEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        self.has_leaked.set(true);
        let address = std::ptr::from_mut(Box::leak(Box::new(forgotten))).expose_provenance();
        FORGOTTEN.lock().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    /// Whether other threads take part.
    pub fn has_threads(&self) -> bool {
        self.elsewhere.borrow().is_some()
    }

    /// Has a waker called by another thread.
    pub fn call_elsewhere(&self, waker: Waker) {
        match &*self.elsewhere.borrow() {
            Some(elsewhere) => elsewhere.send(waker).expect("the thread listens until the program ends"),
            None => waker.wake(),
        }
    }

    pub fn note(&self, event: &'static str, value: u64) {
        self.trace.borrow_mut().push((event, value));
    }
}
