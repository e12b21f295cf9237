//! Deadlines of connections, for next to nothing: a connection notes what it waits for and since when, in ticks of a clock
//! that is read now and then; whoever reads the clock looks at all of them and ends those that are late.
//!
//! So a request costs no timer and no look at the clock. The task of a late connection is woken by what its socket then
//! does: its receiving side ends, and it may still answer; or all of it breaks. One that waits for a handler instead is
//! woken by its [`Ending`].

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anello::net::ShutdownHandle;
use anello::time;
use slab::Slab;

use super::ending::{End, Ending};
use super::options::ServerOptions;
use crate::h1::HttpDate;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: its handler has the word.
    Handling,
    /// The first byte of its first request.
    Fresh,
    /// The first byte of another request.
    Idle,
    /// The rest of a head.
    Head,
    /// More of a body.
    Body,
    /// Room to send, which may be waited for beside all others: it has a time of its own.
    Write,
    /// The client's end, after the server's own.
    Linger,
}

/// One connection's deadline.
#[derive(Debug)]
pub(crate) struct Watch {
    phase: Cell<Phase>,
    /// When the phase began, in ticks.
    since: Cell<u64>,
    /// When that between requests began, while what may be a head is received.
    idle_since: Cell<u64>,
    /// Of the body that is being received, and for how long it was waited for before this phase, in ticks: while its
    /// handler does something else, the client may have no room to send.
    body_bytes: Cell<u64>,
    body_ticks: Cell<u64>,
    /// When the request began, while there is one and it has a deadline.
    request_since: Cell<Option<u64>>,
    /// Since when room to send is waited for, if it is. A body may be received meanwhile.
    room_since: Cell<Option<u64>>,
    late: Cell<Option<Phase>>,
    /// Whether a body is under way that an orderly end would make whole.
    is_ended_by_close: Cell<bool>,
    is_evicted: Cell<bool>,
    /// Its place in the order in which the worker's connections were accepted.
    number: u64,
    /// Whether all of it was ended.
    pub ending: Ending,
    shutdown_handle: ShutdownHandle,
    clock: Rc<Clock>,
}

/// The worker's clock. Its ticks go by the time of the runtime's sleeps, which is simulated with them.
#[derive(Debug)]
pub(crate) struct Clock {
    tick: Duration,
    ticks: Cell<u64>,
    date: Cell<HttpDate>,
    /// Connections that were watched.
    watched: Cell<u64>,
}

impl Clock {
    pub fn new(tick: Duration) -> Rc<Self> {
        // Shorter ones would be all that a worker does.
        let tick = tick.max(Duration::from_millis(1));
        Rc::new(Self { tick, ticks: Cell::new(0), date: Cell::new(date_now()), watched: Cell::new(0) })
    }

    /// Reads the time. To be called before anything counts from it, and now and then.
    pub fn read(&self) {
        let ticks = time::monotonic_now().as_nanos() / self.tick.as_nanos();
        self.ticks.set(u64::try_from(ticks).unwrap_or(u64::MAX));
        self.date.set(date_now());
    }

    #[inline]
    pub fn date(&self) -> HttpDate {
        self.date.get()
    }

    /// So long, in ticks that have wholly gone by.
    fn ticks_of(&self, duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos().div_ceil(self.tick.as_nanos()) + 1).unwrap_or(u64::MAX)
    }
}

fn date_now() -> HttpDate {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    HttpDate::from_unix(since_1970.as_secs())
}

impl Watch {
    pub fn new(shutdown_handle: ShutdownHandle, clock: &Rc<Clock>) -> Rc<Self> {
        let (now, number) = (clock.ticks.get(), clock.watched.get());
        clock.watched.set(number + 1);
        Rc::new(Self {
            phase: Cell::new(Phase::Fresh),
            since: Cell::new(now),
            idle_since: Cell::new(now),
            body_bytes: Cell::new(0),
            body_ticks: Cell::new(0),
            request_since: Cell::new(None),
            room_since: Cell::new(None),
            late: Cell::new(None),
            is_ended_by_close: Cell::new(false),
            is_evicted: Cell::new(false),
            number,
            ending: Ending::default(),
            shutdown_handle,
            clock: Rc::clone(clock),
        })
    }

    /// The address of the client; none on a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.shutdown_handle.peer_addr().ok()
    }

    /// The connection waits for this; for how long counts from when it began to.
    #[inline]
    pub fn wait_for(&self, phase: Phase) {
        let before = self.phase.replace(phase);
        if before != phase {
            let since = self.since.replace(self.clock.ticks.get());
            if before == Phase::Head || phase == Phase::Head {
                self.wait_around_head(before, phase, since);
            }
        }
    }

    /// A head begins, or what has come of one was an empty line, which comes cut in two from whoever wants more time: the
    /// phase around it goes on then, that began so long ago.
    #[cold]
    fn wait_around_head(&self, before: Phase, phase: Phase, since: u64) {
        match (before, phase) {
            // The first head has its time from the beginning of the connection.
            (Phase::Fresh, Phase::Head) | (Phase::Head, Phase::Fresh) => self.since.set(since),
            (Phase::Idle, Phase::Head) => self.idle_since.set(since),
            // Its beginning has come together with the end of the request before.
            (_, Phase::Head) => self.idle_since.set(self.since.get()),
            (Phase::Head, Phase::Idle) => self.since.set(self.idle_since.get()),
            _ => {}
        }
    }

    /// Room to send is waited for, from now on if it was not before.
    #[inline]
    pub fn wait_for_room(&self) {
        if self.room_since.get().is_none() {
            self.room_since.set(Some(self.clock.ticks.get()));
        }
    }

    /// There was room: the time for the next counts anew.
    #[inline]
    pub fn has_room(&self) {
        self.room_since.set(None);
    }

    /// What is spoken from now on is not HTTP, and has no deadlines.
    pub fn go_over(&self) {
        self.phase.set(Phase::Handling);
    }

    /// A request has come.
    #[inline]
    pub fn begin_request(&self, has_deadline: bool) {
        self.phase.set(Phase::Handling);
        if has_deadline {
            self.request_since.set(Some(self.clock.ticks.get()));
        }
    }

    /// Its answer has gone.
    #[inline]
    pub fn end_request(&self) {
        self.request_since.set(None);
    }

    pub fn begin_body(&self) {
        self.body_bytes.set(0);
        self.body_ticks.set(0);
    }

    pub fn received_body(&self, bytes: usize) {
        self.body_bytes.set(self.body_bytes.get() + bytes as u64);
    }

    /// Something of the body has come, or nobody waits for it any more.
    pub fn rest_from_body(&self) {
        if self.phase.get() == Phase::Body {
            self.phase.set(Phase::Handling);
            self.body_ticks.set(self.body_ticks.get() + self.waited_ticks());
        }
    }

    /// How long the phase has lasted.
    fn waited_ticks(&self) -> u64 {
        self.clock.ticks.get().saturating_sub(self.since.get())
    }

    /// A body begins, or has gone whole, which only the end of the connection delimits: until then, that must not be an
    /// orderly one.
    pub fn set_ended_by_close(&self, is_under_way: bool) {
        self.is_ended_by_close.set(is_under_way);
    }

    /// Resets the connection.
    pub fn reset(&self) {
        self.shutdown_handle.reset();
    }

    /// What the connection was ended for.
    pub fn late(&self) -> Option<Phase> {
        self.late.get()
    }

    /// Ends the connection if it is late.
    fn look(&self, options: &ServerOptions) {
        let clock = &*self.clock;
        if self.late.get() == Some(Phase::Handling) {
            return;
        }
        if let (Some(since), Some(limit)) = (self.request_since.get(), options.request_timeout)
            && clock.ticks.get().saturating_sub(since) > clock.ticks_of(limit)
        {
            return self.strike(Phase::Handling);
        }
        if let Some(since) = self.room_since.get()
            && clock.ticks.get().saturating_sub(since) > clock.ticks_of(options.send_timeout)
        {
            return self.strike(Phase::Write);
        }
        let waited = self.waited_ticks();
        let (waited, limit) = match self.phase.get() {
            Phase::Handling | Phase::Write => return self.end_if_gone(),
            Phase::Idle => (waited, options.keep_alive_timeout),
            // The first head has to come as soon as any.
            Phase::Fresh | Phase::Head => (waited, options.header_timeout),
            Phase::Body => {
                let milliseconds =
                    self.body_bytes.get().saturating_mul(1000) / options.min_body_bytes_per_second.max(1);
                let limit = options.body_timeout.saturating_add(Duration::from_millis(milliseconds));
                (self.body_ticks.get() + waited, limit)
            }
            Phase::Linger => (waited, options.linger_timeout),
        };
        if waited > clock.ticks_of(limit) {
            self.strike(self.phase.get());
        }
    }

    fn strike(&self, phase: Phase) {
        if self.late.replace(Some(phase)) == Some(phase) {
            // It was told before, and has not ended.
            return self.end(End::Deadline);
        }
        match phase {
            // It may still answer.
            Phase::Fresh | Phase::Idle | Phase::Head | Phase::Body => {
                self.since.set(self.clock.ticks.get());
                self.body_ticks.set(0);
                self.shutdown_handle.shutdown_read();
            }
            Phase::Handling | Phase::Write | Phase::Linger => self.end(End::Deadline),
        }
    }

    /// Breaks the connection, and has its task give up a handler that it waits for.
    fn end(&self, end: End) {
        // Behind an orderly end, the kernel would keep megabytes for a client that takes nothing, for minutes, and for as
        // many as come again: they count no more. The answer is cut anyway.
        if self.room_since.get().is_some() || self.is_ended_by_close.get() {
            self.shutdown_handle.reset();
        } else {
            self.shutdown_handle.shutdown();
        }
        self.ending.set(end);
    }

    /// Ends the connection if its client has reset it while a handler is waited for: nothing else looks at the socket. One
    /// that has only ended its side still has a peer, and gets its answer.
    fn end_if_gone(&self) {
        if self.ending.is_awaited()
            && self
                .shutdown_handle
                .peer_addr()
                .is_err_and(|error| error.kind() == io::ErrorKind::NotConnected)
        {
            self.end(End::Client);
        }
    }

    /// Since when the connection waits for its client, if it may be evicted: while it is idle, or in whatever it waits for.
    fn waits_since(&self, is_stalled_enough: bool) -> Option<u64> {
        // One that was struck ends by itself, unless what it is told does not fit the connection.
        let ends = self.late.get().is_some() && !(is_stalled_enough && self.room_since.get().is_some());
        if self.is_evicted.get() || ends {
            return None;
        }
        match (self.room_since.get(), self.phase.get()) {
            (None, Phase::Fresh | Phase::Idle) => Some(self.since.get()),
            _ if !is_stalled_enough => None,
            (Some(since), _) => Some(since),
            (None, Phase::Handling) => None,
            (None, _) => Some(self.since.get()),
        }
    }

    /// Closes the connection to make room.
    fn evict(&self) {
        self.is_evicted.set(true);
        match (self.room_since.get(), self.phase.get()) {
            // A request that is on its way is still answered, and is the last.
            (None, phase @ (Phase::Fresh | Phase::Idle)) => self.strike(phase),
            _ => self.end(End::Server),
        }
    }

    /// Whether it was closed to make room.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted.get()
    }

    /// Ends the connection if it has waited so long for a request.
    fn end_if_idle(&self, idle: Duration) {
        if matches!(self.phase.get(), Phase::Fresh | Phase::Idle)
            && self.waited_ticks() >= self.clock.ticks_of(idle)
        {
            self.shutdown_handle.shutdown_read();
        }
    }
}

/// Resets the connection if this is dropped within a body that an orderly end would make whole: to be dropped before what
/// sends, with the task, or by a program that gives the connection up.
pub(crate) struct Cut(pub Rc<Watch>);

impl Drop for Cut {
    fn drop(&mut self) {
        if self.0.is_ended_by_close.get() {
            self.0.reset();
        }
    }
}

/// The connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    slab: RefCell<Slab<Rc<Watch>>>,
}

/// A place among them, given back when dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    watches: Rc<Watches>,
    place: usize,
}

impl Watches {
    pub fn add(self: &Rc<Self>, watch: Rc<Watch>) -> Watched {
        Watched { watches: Rc::clone(self), place: self.slab.borrow_mut().insert(watch) }
    }

    pub fn count(&self) -> usize {
        self.slab.borrow().len()
    }

    /// Ends those that are late.
    pub fn look(&self, options: &ServerOptions) {
        self.each(|watch| watch.look(options));
    }

    /// Ends those that have waited so long for a request.
    pub fn end_idle(&self, idle: Duration) {
        self.each(|watch| watch.end_if_idle(idle));
    }

    /// Closes those that have waited longest for their clients, at most so many; how many those are. Of those that began to
    /// wait in the same tick, idle ones go first, and then those that were accepted first.
    #[cold]
    pub fn evict(&self, count: usize, is_stalled_enough: bool) -> usize {
        let waiting = |watch: &Rc<Watch>| {
            let since = watch.waits_since(is_stalled_enough)?;
            Some(((since, watch.phase.get() != Phase::Idle, watch.number), Rc::clone(watch)))
        };
        let mut longest: Vec<_> = self.slab.borrow().iter().filter_map(|(_, watch)| waiting(watch)).collect();
        if longest.len() > count && count > 0 {
            longest.select_nth_unstable_by_key(count - 1, |(order, _)| *order);
            longest.truncate(count);
        }
        // Not borrowed meanwhile: a waker may do anything, such as dropping a connection.
        longest.iter().for_each(|(_, watch)| watch.evict());
        longest.len()
    }

    /// Breaks all.
    pub fn abort_and_wait(&self) {
        self.each(|watch| watch.end(End::Server));
    }

    fn each(&self, act: impl Fn(&Watch)) {
        let places = self.slab.borrow().capacity();
        for place in 0..places {
            let watch = self.slab.borrow().get(place).map(Rc::clone);
            // Not borrowed meanwhile: a waker may do anything, such as dropping a connection.
            if let Some(watch) = watch {
                act(&watch);
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watches.slab.borrow_mut().try_remove(self.place);
    }
}
