//! What the connections of one thread share: options, clock, deadlines, and whether the end is near.

use std::cell::Cell;
use std::rc::Rc;

use anello::net::Closer;
use anello::spawn;
use anello::time::sleep;

use super::observer::Observer;
use super::options::Options;
use super::watch::{Clock, Watch, Watched, Watches};

/// The state of one thread's server.
#[derive(Debug)]
pub(crate) struct Worker {
    pub options: Options,
    pub clock: Rc<Clock>,
    pub observer: Observer,
    watches: Rc<Watches>,
    /// Connections whose task has not begun: they count.
    starting: Cell<usize>,
    is_draining: Cell<bool>,
    /// Whether a task reads the clock: while there are connections.
    is_ticking: Cell<bool>,
}

impl Worker {
    pub fn new(options: Options, observer: Observer) -> Rc<Self> {
        Rc::new(Self {
            clock: Clock::new(options.tick),
            options,
            observer,
            watches: Rc::new(Watches::default()),
            starting: Cell::new(0),
            is_draining: Cell::new(false),
            is_ticking: Cell::new(false),
        })
    }

    /// Looks after a connection until what is returned is dropped.
    pub fn watch(self: &Rc<Self>, closer: Closer) -> (Rc<Watch>, Watched) {
        if !self.is_ticking.replace(true) {
            // Before anything counts from it: it has stood still while there was nobody.
            self.clock.read();
            spawn(Rc::clone(self).tick()).detach();
        }
        let watch = Watch::new(closer, &self.clock);
        (Rc::clone(&watch), self.watches.add(watch))
    }

    /// A connection is given a task.
    pub fn starts(&self) {
        self.starting.set(self.starting.get() + 1);
    }

    /// The task has begun, and is about to have the connection looked after.
    pub fn started(&self) {
        self.starting.set(self.starting.get() - 1);
    }

    /// Reads the clock and strikes at the late ones, while there are connections.
    async fn tick(self: Rc<Self>) {
        while self.watches.count() > 0 {
            sleep(self.options.tick).await;
            self.clock.read();
            self.observer.tick();
            self.watches.look(&self.options);
            if self.is_draining() {
                self.watches.end_idle(self.options.drain_idle);
            }
        }
        self.observer.rest();
        self.is_ticking.set(false);
    }

    pub fn connections(&self) -> usize {
        self.watches.count() + self.starting.get()
    }

    /// Whether every answer is to be the last of its connection.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    pub fn begin_draining(&self) {
        self.is_draining.set(true);
        self.watches.end_idle(self.options.drain_idle);
    }

    /// Breaks every connection.
    pub fn end_all(&self) {
        self.watches.end_all();
    }
}
