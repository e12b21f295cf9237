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
use super::timer::{Clock, ConnectionTimer, TimerEntry, TimerRegistry};

/// The state of one thread's server.
#[derive(Debug)]
pub(crate) struct Worker {
    pub options: ServerOptions,
    pub clock: Rc<Clock>,
    pub observer: Observer,
    /// Connections of all servers that count together, where several do.
    pub shared_count: Option<Arc<AtomicUsize>>,
    timers: Rc<TimerRegistry>,
    /// Connections whose task has not begun: they count.
    unstarted_tasks: Cell<usize>,
    is_draining: Cell<bool>,
    /// Whether a task reads the clock: while there are connections.
    is_ticking: Cell<bool>,
}

impl Worker {
    pub fn new(
        options: ServerOptions,
        observer: Observer,
        shared_count: Option<Arc<AtomicUsize>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            clock: Clock::new(options.timer_resolution),
            options,
            observer,
            shared_count,
            timers: Rc::new(TimerRegistry::default()),
            unstarted_tasks: Cell::new(0),
            is_draining: Cell::new(false),
            is_ticking: Cell::new(false),
        })
    }

    /// Looks after a connection until what is returned is dropped.
    pub fn register_timer(
        self: &Rc<Self>,
        shutdown_handle: ShutdownHandle,
    ) -> (Rc<ConnectionTimer>, TimerEntry) {
        if !self.is_ticking.replace(true) {
            // Before anything counts from it: it has stood still while there was nobody.
            self.clock.read();
            spawn(Rc::clone(self).tick()).detach();
        }
        let timer = ConnectionTimer::new(shutdown_handle, &self.clock);
        (Rc::clone(&timer), self.timers.add(timer))
    }

    /// A connection is given a task.
    pub fn task_spawned(&self) {
        self.unstarted_tasks.set(self.unstarted_tasks.get() + 1);
    }

    /// The task has begun, and is about to have the connection looked after.
    pub fn task_started(&self) {
        self.unstarted_tasks.set(self.unstarted_tasks.get() - 1);
    }

    /// Whether there are connections whose task has not begun.
    pub fn has_unstarted_tasks(&self) -> bool {
        self.unstarted_tasks.get() > 0
    }

    /// Reads the clock and strikes at the late ones, while there are connections.
    async fn tick(self: Rc<Self>) {
        while self.timers.count() > 0 {
            sleep(self.options.timer_resolution).await;
            self.clock.read();
            self.observer.tick();
            self.timers.check_deadlines(&self.options);
            self.evict_for_other_workers();
            if self.is_draining() {
                self.timers.close_idle(self.options.drain_min_idle);
            }
        }
        self.observer.flush();
        self.is_ticking.set(false);
    }

    pub fn connections(&self) -> usize {
        self.timers.count() + self.unstarted_tasks.get()
    }

    /// Connections that are open, of all servers that count together.
    pub fn total_connections(&self) -> usize {
        self.shared_count.as_ref().map_or_else(|| self.connections(), |open| open.load(Ordering::Relaxed))
    }

    /// Closes the connections that have waited longest for their clients, some at a time where there are many: each look at
    /// all of them is to serve several newcomers. How many those are.
    pub fn evict_batch(&self) -> usize {
        let include_stalled = matches!(self.options.eviction, Eviction::Stalled { .. });
        self.timers.evict(self.connections().div_ceil(64), include_stalled)
    }

    /// Another worker may have clients to serve and none to evict.
    fn evict_for_other_workers(&self) {
        if let (Some(threshold), Some(open)) = (self.options.eviction.threshold(), &self.shared_count)
            && open.load(Ordering::Relaxed) >= threshold
        {
            self.evict_batch();
        }
    }

    /// Whether every answer is to be the last of its connection.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    pub fn begin_draining(&self) {
        self.is_draining.set(true);
        self.timers.close_idle(self.options.drain_min_idle);
    }

    /// Breaks every connection.
    pub fn abort_all(&self) {
        self.timers.abort_all();
    }
}
