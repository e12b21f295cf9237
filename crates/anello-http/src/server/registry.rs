//! The connections of a worker: expires those whose deadline has passed, and selects those to evict.
//!
//! An active connection has a [`ConnectionTimer`], which is checked at every tick. A suspended connection only waits for
//! the first byte of a request. Suspended connections are in lists, in the order of their deadlines, so that the cost of
//! a tick does not depend on their number.
//!
//! ```text
//!   slots (one per connection)           idle, first_heads
//!   +-----------------------+            +---------------+
//!   | 0  since 7, next 2    | <--------- | since 7: 0    |   checked first
//!   | 1  active             |            | since 9: 3    |
//!   | 2  since 7            |            +---------------+
//!   | 3  since 9            | <-----------------'
//!   +-----------------------+
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::iter;
use std::rc::Rc;
use std::time::Duration;

use anello::catch_and_log_panic;
use anello::net::ShutdownHandle;
use anello::server::{HeapTrim, PagedSlab};
use anello::task::{has_budget_remaining, yield_now};

use super::deadline::{Action, Deadlines, Phase, SuspendedDeadlines};
use super::options::ServerOptions;
use super::timer::{CancelReason, Clock, ConnectionTimer};

/// The heap is not trimmed after a smaller burst of active connections, each of which takes about 2 KiB.
const MIN_FREED_CONNECTIONS: usize = 128;

#[derive(Debug)]
pub(crate) struct Registry {
    active: RefCell<PagedSlab<Rc<ConnectionTimer>>>,
    connections: RefCell<Connections>,
    /// Returns the memory of active connections.
    heap_trim: HeapTrim,
}

/// The registration of the timer of an active connection, removed on drop.
pub(crate) struct TimerEntry<'a> {
    registry: &'a Registry,
    key: usize,
}

#[derive(Debug, Default)]
struct Connections {
    /// All connections. A slot is kept while its connection is active, so that a suspension allocates no memory.
    slots: PagedSlab<Slot>,
    /// The lists of the suspended connections that wait for their first request, by start of the phase. Contains the key
    /// of the first slot of each list.
    first_heads: BTreeMap<u64, Link>,
    /// The lists of the suspended connections that wait for another request.
    idle: BTreeMap<u64, Link>,
}

#[derive(Debug)]
struct Slot {
    shutdown_handle: ShutdownHandle,
    /// Number of connections that the worker accepted before this one.
    accept_order: u64,
    /// `Some` while the connection is suspended. The slot is then in the list of its phase and the start of the phase.
    deadlines: Option<SuspendedDeadlines>,
    previous: Link,
    next: Link,
}

/// The key of a neighbor in a list, or [`NONE`]. Half the size of a key.
type Link = u32;

/// The end of a list.
const NONE: Link = Link::MAX;

/// A connection that can be evicted.
enum Candidate {
    Active(Rc<ConnectionTimer>),
    Suspended(usize),
}

impl Registry {
    pub fn new() -> Self {
        let heap_trim = HeapTrim::new(MIN_FREED_CONNECTIONS);
        Self { active: RefCell::default(), connections: RefCell::default(), heap_trim }
    }

    /// Registers a suspended connection, and returns its key. `phase` is [`Phase::FirstHead`] or [`Phase::Idle`].
    pub fn insert(&self, phase: Phase, clock: &Clock, shutdown_handle: ShutdownHandle) -> usize {
        let accept_order = clock.next_accept_order();
        let slot = Slot { shutdown_handle, accept_order, deadlines: None, previous: NONE, next: NONE };
        let mut connections = self.connections.borrow_mut();
        let key = connections.slots.insert(slot);
        connections.link(key, SuspendedDeadlines::new(phase, clock.now()));
        key
    }

    /// Creates the timer of a suspended connection, which applies until the entry is dropped.
    pub fn activate(&self, key: usize, clock: &Rc<Clock>) -> Option<(Rc<ConnectionTimer>, TimerEntry<'_>)> {
        let mut connections = self.connections.borrow_mut();
        let deadlines = connections.unlink(key)?;
        let Slot { shutdown_handle, accept_order, .. } = connections.slots.get(key)?;
        let timer = ConnectionTimer::new(shutdown_handle.clone(), clock, *accept_order, deadlines.resume());
        if deadlines.is_aborted {
            timer.cancellation.set(CancelReason::ServerShutdown);
        }
        let key = self.active.borrow_mut().insert(Rc::clone(&timer));
        Some((timer, TimerEntry { registry: self, key }))
    }

    /// Suspends an active connection that has had this timer.
    pub fn suspend(&self, key: usize, timer: &ConnectionTimer) {
        self.connections.borrow_mut().link(key, timer.deadlines.suspend());
    }

    pub fn remove(&self, key: usize) {
        // Dropped after the borrow, because the drop of the last handle of a runtime can run arbitrary code.
        let removed = self.connections.borrow_mut().remove(key);
        drop(removed);
    }

    pub fn count(&self) -> usize {
        self.connections.borrow().slots.len()
    }

    #[cfg(test)]
    pub fn suspended(&self) -> usize {
        self.connections.borrow().slots.iter().filter(|(_, slot)| slot.deadlines.is_some()).count()
    }

    /// Called at every tick. Expires the connections whose deadline has passed, suspends active ones that are idle, and
    /// cancels those whose client is gone.
    pub async fn tick(&self, clock: &Clock, options: &ServerOptions) {
        let without_budget = RefCell::new(Vec::new());
        self.for_each_active(|timer| {
            timer.check_deadlines(options);
            if !has_budget_remaining() {
                without_budget.borrow_mut().push(Rc::clone(timer));
            }
        });
        self.connections.borrow_mut().check_deadlines(clock, options);
        self.heap_trim.update(self.active.borrow().len());
        // These connections may have more to receive, with the budgets of further polls. Their deadlines are not checked
        // again: in the meantime, a connection can be suspended, and its timer be replaced.
        for timer in without_budget.into_inner() {
            let cancel_if_gone = || run_catching_panic(|| timer.cancel_if_gone(options));
            cancel_if_gone();
            if !has_budget_remaining() {
                yield_now().await;
                cancel_if_gone();
            }
        }
    }

    /// Evicts up to `count` connections, longest waiting time first, and returns their number. Ties are resolved in
    /// favor of idle connections, then of connections accepted earlier.
    #[cold]
    pub fn evict(&self, count: usize, include_stalled: bool, now: u64) -> usize {
        let mut candidates = self.connections.borrow().eviction_candidates(count);
        candidates.extend(self.active.borrow().iter().filter_map(|(_, timer)| {
            let since = timer.deadlines.evictable_since(include_stalled)?;
            let order = (since, timer.deadlines.phase.get() != Phase::Idle, timer.accept_order);
            Some((order, Candidate::Active(Rc::clone(timer))))
        }));
        if candidates.len() > count && count > 0 {
            candidates.select_nth_unstable_by_key(count - 1, |(order, _)| *order);
            candidates.truncate(count);
        }
        let evicted = candidates.len();
        for (_, candidate) in candidates {
            match candidate {
                // Nothing is borrowed here: a waker can run arbitrary code, such as dropping a connection.
                Candidate::Active(timer) => run_catching_panic(move || timer.evict()),
                Candidate::Suspended(key) => {
                    self.connections.borrow_mut().update(key, now, |deadlines| Some(deadlines.evict(now)));
                }
            }
        }
        evicted
    }

    /// Closes the connections that have waited for a request for at least `min_idle`.
    pub fn close_idle(&self, clock: &Clock, min_idle: Duration) {
        self.for_each_active(|timer| timer.close_if_idle(min_idle));
        self.connections.borrow().close_idle(clock, min_idle);
    }

    /// Aborts all connections and cancels pending handlers.
    pub fn abort_all(&self) {
        self.for_each_active(|timer| timer.abort(CancelReason::ServerShutdown));
        self.connections.borrow_mut().abort_suspended();
    }

    fn for_each_active(&self, action: impl Fn(&Rc<ConnectionTimer>) + Copy) {
        let timers: Vec<_> = self.active.borrow().iter().map(|(_, timer)| Rc::clone(timer)).collect();
        for timer in timers {
            // Nothing is borrowed here: a waker can run arbitrary code, such as dropping a connection.
            run_catching_panic(move || action(&timer));
        }
    }
}

/// Runs an action on a connection. If it panics, the other connections still have their turn: `wake_all` catches the panics
/// of wakers, but cloning a waker also runs code of the application, and so does logging.
fn run_catching_panic(action: impl FnOnce()) {
    catch_and_log_panic("code of the application panicked while a connection was checked or closed", action);
}

/// The time at which a connection started to wait, whether it has not sent a request yet, and its accept order.
type EvictionOrder = (u64, bool, u64);

impl Connections {
    fn lists(&mut self, phase: Phase) -> &mut BTreeMap<u64, Link> {
        if phase == Phase::Idle { &mut self.idle } else { &mut self.first_heads }
    }

    fn slot(&mut self, link: Link) -> Option<&mut Slot> {
        self.slots.get_mut(link as usize)
    }

    /// Adds a slot to the list that the deadlines select.
    fn link(&mut self, key: usize, deadlines: SuspendedDeadlines) {
        let link = Link::try_from(key).expect("fewer than 2^32 connections");
        let next = self.lists(deadlines.phase).insert(deadlines.since, link).unwrap_or(NONE);
        if let Some(next) = self.slot(next) {
            next.previous = link;
        }
        if let Some(slot) = self.slot(link) {
            (slot.deadlines, slot.previous, slot.next) = (Some(deadlines), NONE, next);
        }
    }

    /// Removes a slot from its list, and returns its deadlines.
    fn unlink(&mut self, key: usize) -> Option<SuspendedDeadlines> {
        let slot = self.slots.get_mut(key)?;
        let deadlines = slot.deadlines.take()?;
        let (previous, next) = (slot.previous, slot.next);
        if let Some(next) = self.slot(next) {
            next.previous = previous;
        }
        match self.slot(previous) {
            Some(previous) => previous.next = next,
            None if next == NONE => drop(self.lists(deadlines.phase).remove(&deadlines.since)),
            None => drop(self.lists(deadlines.phase).insert(deadlines.since, next)),
        }
        Some(deadlines)
    }

    fn remove(&mut self, key: usize) -> Option<Slot> {
        self.unlink(key);
        self.slots.remove(key)
    }

    /// Returns the slots of a list.
    fn list(&self, first: Link) -> impl Iterator<Item = (usize, &Slot)> {
        let get = |link: Link| Some((link as usize, self.slots.get(link as usize)?));
        iter::successors(get(first), move |(_, slot)| get(slot.next))
    }

    /// Passes an event to the deadlines of a suspended connection. If they require an action, performs it, restarts the
    /// phase, and returns `true`.
    fn update(&mut self, key: usize, now: u64, event: impl FnOnce(&Deadlines) -> Option<Action>) -> bool {
        let Some(Slot { deadlines: Some(deadlines), shutdown_handle, .. }) = self.slots.get(key) else {
            return false;
        };
        let deadlines = deadlines.resume();
        let Some(action) = event(&deadlines) else { return false };
        match action {
            Action::ShutdownRead => shutdown_handle.shutdown_read(),
            // Never reset, because it has nothing to send.
            Action::Shutdown | Action::Reset => shutdown_handle.shutdown(),
        }
        self.unlink(key);
        self.link(key, deadlines.suspend().restart(now));
        true
    }

    fn check_deadlines(&mut self, clock: &Clock, options: &ServerOptions) {
        let now = clock.now();
        let check = |deadlines: &Deadlines| Some(deadlines.check(now, options, clock.tick)?.1);
        for phase in [Phase::FirstHead, Phase::Idle] {
            while let Some((_, &first)) = self.lists(phase).first_key_value()
                && self.update(first as usize, now, check)
            {}
        }
    }

    /// Returns at least `count` connections that have waited longest, if there are as many.
    fn eviction_candidates(&self, count: usize) -> Vec<(EvictionOrder, Candidate)> {
        let mut candidates = Vec::new();
        for lists in [&self.first_heads, &self.idle] {
            let needed = candidates.len() + count;
            let mut lists = lists.values();
            while candidates.len() < needed
                && let Some(&first) = lists.next()
            {
                candidates.extend(self.list(first).filter_map(|(key, slot)| {
                    let deadlines = slot.deadlines?;
                    let since = deadlines.resume().evictable_since(false)?;
                    let order = (since, deadlines.phase != Phase::Idle, slot.accept_order);
                    Some((order, Candidate::Suspended(key)))
                }));
            }
        }
        candidates
    }

    /// Aborts the suspended connections. If a connection has already received a request, its task finds it cancelled.
    fn abort_suspended(&mut self) {
        let is_suspended = |(key, slot): (usize, &Slot)| slot.deadlines.map(|_| key);
        let keys: Vec<_> = self.slots.iter().filter_map(is_suspended).collect();
        for key in keys {
            if let Some(Slot { deadlines: Some(deadlines), shutdown_handle, .. }) = self.slots.get_mut(key) {
                deadlines.is_aborted = true;
                shutdown_handle.shutdown();
            }
        }
    }

    fn close_idle(&self, clock: &Clock, min_idle: Duration) {
        for (phase, lists) in [(Phase::FirstHead, &self.first_heads), (Phase::Idle, &self.idle)] {
            let has_idled = |since: u64| {
                SuspendedDeadlines::new(phase, since).resume().is_idle_for(min_idle, clock.now(), clock.tick)
            };
            let idle = lists.iter().take_while(|(since, _)| has_idled(**since));
            idle.flat_map(|(_, first)| self.list(*first))
                .for_each(|(_, slot)| slot.shutdown_handle.shutdown_read());
        }
    }
}

impl Drop for TimerEntry<'_> {
    fn drop(&mut self) {
        // Dropped after the borrow, because the drop of a timer can run arbitrary code.
        let removed = self.registry.active.borrow_mut().remove(self.key);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use anello::net::{StreamSocket, UnixStream};
    use anello::sim::SimOptions;
    use anello::time::sleep;
    use anello::{DriverKind, Runtime};
    use anello_test::PanicsOnWake;
    use futures_util::FutureExt;
    use proptest::collection::vec;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Insert,
        Remove,
        Suspend(Phase, u64),
        Activate,
    }

    fn operation(number: u8, since: u64) -> Operation {
        match number {
            0 => Operation::Insert,
            1 => Operation::Remove,
            2 => Operation::Suspend(Phase::Idle, since),
            3 => Operation::Suspend(Phase::FirstHead, since),
            _ => Operation::Activate,
        }
    }

    /// Checks that the lists contain exactly the suspended connections, which are given by their key.
    fn check_lists(connections: &Connections, suspended: &BTreeMap<usize, (Phase, u64)>) {
        let mut listed = BTreeMap::new();
        for (phase, lists) in [(Phase::Idle, &connections.idle), (Phase::FirstHead, &connections.first_heads)]
        {
            for (since, first) in lists {
                for (key, slot) in connections.list(*first) {
                    let deadlines = slot.deadlines.expect("a suspended connection");
                    assert_eq!((deadlines.phase, deadlines.since), (phase, *since));
                    assert_eq!(listed.insert(key, (phase, *since)), None, "{key} is in two lists");
                }
            }
        }
        assert_eq!(listed, *suspended);
    }

    #[test]
    fn lists_contain_suspended_connections_by_start_of_the_phase() {
        let builder = Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false);
        let runtime = builder.build().expect("a runtime");
        let shutdown_handle = runtime.block_on(async {
            let (stream, _) = UnixStream::pair().expect("a stream");
            StreamSocket::shutdown_handle(&stream)
        });
        // Few connections and few starts, so that lists become long, and empty again.
        let operations = vec((0..5_u8, 0..10_usize, 0..3_u64), 1..200);
        let mut runner = TestRunner::new(Config::with_cases(500));
        let result = runner.run(&operations, |operations| {
            let (mut connections, mut keys, mut suspended) =
                (Connections::default(), Vec::new(), BTreeMap::new());
            for (number, choice, since) in operations {
                let index = choice % keys.len().max(1);
                match (operation(number, since), keys.get(index).copied()) {
                    (Operation::Insert, _) | (_, None) => {
                        let shutdown_handle = shutdown_handle.clone();
                        let slot = Slot {
                            shutdown_handle,
                            accept_order: 0,
                            deadlines: None,
                            previous: NONE,
                            next: NONE,
                        };
                        keys.push(connections.slots.insert(slot));
                    }
                    (Operation::Remove, Some(key)) => {
                        assert!(connections.remove(key).is_some());
                        keys.swap_remove(index);
                        suspended.remove(&key);
                    }
                    (Operation::Suspend(phase, since), Some(key)) => {
                        connections.unlink(key);
                        connections.link(key, SuspendedDeadlines::new(phase, since));
                        suspended.insert(key, (phase, since));
                    }
                    (Operation::Activate, Some(key)) => {
                        let wait =
                            connections.unlink(key).map(|deadlines| (deadlines.phase, deadlines.since));
                        assert_eq!(wait, suspended.remove(&key));
                    }
                }
                check_lists(&connections, &suspended);
            }
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn panicking_waker_does_not_affect_other_connections() {
        type Action = fn(&Registry, &Clock);
        let evict: Action = |registry, clock| assert_eq!(registry.evict(2, true, clock.now()), 2);
        let tick: Action = |registry, clock| {
            let options = ServerOptions::default().request_timeout(Some(Duration::ZERO));
            assert!(registry.tick(clock, &options).now_or_never().is_some());
        };
        let abort: Action = |registry, _| registry.abort_all();
        let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::default())).build();
        runtime.expect("a runtime").block_on(async {
            for action in [evict, tick, abort] {
                let (registry, clock) = (Registry::new(), Clock::new(Duration::from_millis(1)));
                let (one, other) = UnixStream::pair().expect("a pair of streams");
                let waker = Arc::new(PanicsOnWake::default());
                let connections = [&one, &other].map(|stream| {
                    let key =
                        registry.insert(Phase::FirstHead, &clock, StreamSocket::shutdown_handle(stream));
                    let (timer, entry) = registry.activate(key, &clock).expect("a suspended connection");
                    timer.deadlines.begin_request(clock.now(), true);
                    timer.deadlines.enter(Phase::Body, clock.now());
                    timer.cancellation.register(&Waker::from(Arc::clone(&waker)));
                    (timer, entry)
                });
                sleep(Duration::from_secs(1)).await;
                clock.read();
                action(&registry, &clock);
                assert!(connections.iter().all(|(timer, _)| timer.cancellation.reason.get().is_some()));
                assert_eq!(waker.calls(), 2);
            }
        });
    }
}
