//! What the connections of one thread share: options, clock, deadlines, and whether the end is near.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anello::net::ShutdownHandle;
use anello::spawn;
use anello::time::sleep;

use super::observer::Observer;
use super::options::{Eviction, ServerOptions};
use super::watch::{Clock, Watch, Watched, Watches};

/// The state of one thread's server.
#[derive(Debug)]
pub(crate) struct Worker {
    pub options: ServerOptions,
    pub clock: Rc<Clock>,
    pub observer: Observer,
    /// Connections of all servers that count together, where several do.
    pub counted_with: Option<Arc<AtomicUsize>>,
    watches: Rc<Watches>,
    /// Connections whose task has not begun: they count.
    starting: Cell<usize>,
    is_draining: Cell<bool>,
    /// Whether a task reads the clock: while there are connections.
    is_ticking: Cell<bool>,
}

impl Worker {
    pub fn new(
        options: ServerOptions,
        observer: Observer,
        counted_with: Option<Arc<AtomicUsize>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            clock: Clock::new(options.timer_resolution),
            options,
            observer,
            counted_with,
            watches: Rc::new(Watches::default()),
            starting: Cell::new(0),
            is_draining: Cell::new(false),
            is_ticking: Cell::new(false),
        })
    }

    /// Looks after a connection until what is returned is dropped.
    pub fn watch(self: &Rc<Self>, shutdown_handle: ShutdownHandle) -> (Rc<Watch>, Watched) {
        if !self.is_ticking.replace(true) {
            // Before anything counts from it: it has stood still while there was nobody.
            self.clock.read();
            spawn(Rc::clone(self).tick()).detach();
        }
        let watch = Watch::new(shutdown_handle, &self.clock);
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

    /// Whether there are connections whose task has not begun.
    pub fn is_starting(&self) -> bool {
        self.starting.get() > 0
    }

    /// Reads the clock and strikes at the late ones, while there are connections.
    async fn tick(self: Rc<Self>) {
        while self.watches.count() > 0 {
            sleep(self.options.timer_resolution).await;
            self.clock.read();
            self.observer.tick();
            self.watches.look(&self.options);
            self.evict_for_others();
            if self.is_draining() {
                self.watches.end_idle(self.options.drain_min_idle);
            }
        }
        self.observer.rest();
        self.is_ticking.set(false);
    }

    pub fn connections(&self) -> usize {
        self.watches.count() + self.starting.get()
    }

    /// Connections that are open, of all servers that count together.
    pub fn open_everywhere(&self) -> usize {
        self.counted_with.as_ref().map_or_else(|| self.connections(), |open| open.load(Ordering::Relaxed))
    }

    /// Closes the connections that have waited longest for their clients, some at a time where there are many: each look at
    /// all of them is to serve several newcomers. How many those are.
    pub fn evict_some(&self) -> usize {
        let is_stalled_enough = matches!(self.options.eviction, Eviction::Stalled { .. });
        self.watches.evict(self.connections().div_ceil(64), is_stalled_enough)
    }

    /// Another worker may have clients to serve and none to evict.
    fn evict_for_others(&self) {
        if let (Some(threshold), Some(open)) = (self.options.eviction.threshold(), &self.counted_with)
            && open.load(Ordering::Relaxed) >= threshold
        {
            self.evict_some();
        }
    }

    /// Whether every answer is to be the last of its connection.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    pub fn begin_draining(&self) {
        self.is_draining.set(true);
        self.watches.end_idle(self.options.drain_min_idle);
    }

    /// Breaks every connection.
    pub fn abort_and_wait(&self) {
        self.watches.abort_and_wait();
    }
}
