//! The deadlines of one connection: a state machine without I/O or a clock.
//!
//! Its inputs are events with the current tick; its outputs are deadlines and [`Action`]s. `timer.rs` reads the clock
//! and performs the actions.
//!
//! # Phases
//!
//! A connection is in one [`Phase`], whose deadline is measured from the start of the phase. "kept" means that the new
//! phase keeps the start of the previous one, so that a client cannot gain time by sending empty lines in pieces.
//!
//! | event | from | to | start |
//! |---|---|---|---|
//! | accepted | | `FirstHead` | now |
//! | moved from another worker | | `Idle` | now |
//! | [`suspend`](Deadlines::suspend), [`resume`](SuspendedDeadlines::resume) | `FirstHead`, `Idle` | the same | kept |
//! | [`enter(Head)`](Deadlines::enter) | `FirstHead` | `Head` | kept |
//! | `enter(FirstHead)` | `Head` | `FirstHead` | kept |
//! | `enter(Head)` | `Idle` | `Head` | now; the start of `Idle` is saved |
//! | `enter(Head)` | any other | `Head` | now, which is also the saved start of `Idle` |
//! | `enter(Idle)` | `Head` | `Idle` | the saved start |
//! | `enter(_)` | the same | the same | kept |
//! | `enter(_)` | any other | as given | now |
//! | [`begin_request`](Deadlines::begin_request), [`disable`](Deadlines::disable) | any | `Handling` | no deadline |
//! | [`pause_body`](Deadlines::pause_body) | `Body` | `Handling` | no deadline; the time in `Body` is added up |
//!
//! Two timers are independent of the phase: the request timer runs from `begin_request` to
//! [`end_request`](Deadlines::end_request), the send timer from [`start_send`](Deadlines::start_send) to
//! [`note_send_progress`](Deadlines::note_send_progress). The times of the waits are added up until the client has
//! accepted the minimum amount of data, so that a client that accepts single bytes gains no time.
//!
//! # Expiry
//!
//! | [`Timeout`] | first expiry | second expiry |
//! |---|---|---|
//! | `FirstHead`, `Idle`, `Head`, `Body` | shuts down the read half, and restarts the phase: the connection can still respond | aborts |
//! | `Send`, `Linger` | aborts | aborts |
//! | `Request` | aborts | nothing |
//!
//! An abort closes the connection in an orderly way, with two exceptions. It resets the connection while data is queued
//! for the client, because the kernel would otherwise retain megabytes for a client that does not read. It also resets
//! the connection while sending a body that an orderly close would mark as complete.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use super::options::ServerOptions;

/// The event that a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No event: the handler is running.
    Handling,
    /// The first byte of the first request.
    FirstHead,
    /// The first byte of another request.
    Idle,
    /// The rest of a head.
    Head,
    /// More body data.
    Body,
    /// EOF from the client, after the server has shut down the connection.
    Linger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// The end of the response.
    Request,
    /// Space in the send buffer.
    Send,
    /// The event that a phase is waiting for.
    Phase(Phase),
}

/// Formats the name of the option that sets the timeout.
impl fmt::Display for Timeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            // There is no deadline while a handler is running, except the timeout of the request.
            Self::Request | Self::Phase(Phase::Handling) => "request_timeout",
            Self::Send => "send_timeout",
            Self::Phase(Phase::FirstHead | Phase::Head) => "header_timeout",
            Self::Phase(Phase::Idle) => "keep_alive_timeout",
            Self::Phase(Phase::Body) => "body_timeout",
            Self::Phase(Phase::Linger) => "linger_timeout",
        })
    }
}

/// A change to the connection, which the caller performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    ShutdownRead,
    /// Closes the connection, and cancels a pending handler.
    Shutdown,
    /// Resets the connection, and cancels a pending handler.
    Reset,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TickLength(Duration);

impl TickLength {
    pub fn new(resolution: Duration) -> Self {
        // With a finer resolution, timeout checks would dominate the thread's CPU time.
        Self(resolution.max(Duration::from_millis(1)))
    }

    pub fn ticks_in(self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos() / self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns a number of ticks that spans at least `duration`.
    fn ticks_for(self, duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos().div_ceil(self.0.as_nanos()) + 1).unwrap_or(u64::MAX)
    }
}

/// All times are in ticks.
#[derive(Debug)]
pub(super) struct Deadlines {
    pub phase: Cell<Phase>,
    /// Start of the phase.
    since: Cell<u64>,
    /// Start of the idle phase. Kept while a head is received, because it may turn out to be an empty line.
    idle_since: Cell<u64>,
    /// Number of received bytes of the current body.
    body_bytes: Cell<u64>,
    /// Time spent waiting for the body before the current phase. Time during which the handler is not reading is not
    /// counted, because the client may be unable to send.
    body_ticks: Cell<u64>,
    /// `None` if no request is in progress or there is no request timeout.
    request_since: Cell<Option<u64>>,
    /// Start of the wait for space in the send buffer. A body may be received at the same time.
    send_since: Cell<Option<u64>>,
    /// Time spent waiting for space in the send buffer before the current wait, since the client last accepted the
    /// minimum amount of data.
    send_ticks: Cell<u64>,
    /// Number of bytes that the client has accepted in the same time.
    send_bytes: Cell<u64>,
    pub expired: Cell<Option<Timeout>>,
    /// `true` while the connection is sending a body that an orderly close would mark as complete.
    pub body_ends_at_close: Cell<bool>,
    pub is_evicted: Cell<bool>,
}

/// The deadlines of a connection that only waits for the first byte of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendedDeadlines {
    /// [`Phase::FirstHead`] or [`Phase::Idle`].
    pub phase: Phase,
    pub since: u64,
    expired: Option<Timeout>,
    is_evicted: bool,
    /// Set when the connection is aborted. Its task may already have received a request.
    pub is_aborted: bool,
}

impl SuspendedDeadlines {
    pub fn new(phase: Phase, now: u64) -> Self {
        Self { phase, since: now, expired: None, is_evicted: false, is_aborted: false }
    }

    /// Restarts the phase.
    pub fn restart(mut self, now: u64) -> Self {
        self.since = now;
        self
    }

    pub fn resume(self) -> Deadlines {
        let deadlines = Deadlines::new(self.since);
        deadlines.phase.set(self.phase);
        deadlines.expired.set(self.expired);
        deadlines.is_evicted.set(self.is_evicted);
        deadlines
    }
}

impl Deadlines {
    pub fn new(now: u64) -> Self {
        Self {
            phase: Cell::new(Phase::FirstHead),
            since: Cell::new(now),
            idle_since: Cell::new(now),
            body_bytes: Cell::new(0),
            body_ticks: Cell::new(0),
            request_since: Cell::new(None),
            send_since: Cell::new(None),
            send_ticks: Cell::new(0),
            send_bytes: Cell::new(0),
            expired: Cell::new(None),
            body_ends_at_close: Cell::new(false),
            is_evicted: Cell::new(false),
        }
    }

    /// Returns the start of the phase.
    pub fn since(&self) -> u64 {
        self.since.get()
    }

    /// Returns whether the connection can be [suspended](Self::suspend).
    pub fn can_be_suspended(&self) -> bool {
        self.phase.get() == Phase::Idle && self.send_since.get().is_none() && self.expired.get().is_none()
    }

    /// Returns the deadlines of a connection that only waits for the first byte of a request.
    pub fn suspend(&self) -> SuspendedDeadlines {
        let (expired, is_evicted) = (self.expired.get(), self.is_evicted.get());
        let (phase, since) = (self.phase.get(), self.since.get());
        SuspendedDeadlines { phase, since, expired, is_evicted, is_aborted: false }
    }

    #[inline]
    pub fn enter(&self, phase: Phase, now: u64) {
        let previous = self.phase.replace(phase);
        if previous != phase {
            let since = self.since.replace(now);
            if previous == Phase::Head || phase == Phase::Head {
                self.enter_or_leave_head(previous, phase, since);
            }
        }
    }

    /// Handles the start of a head, or the return to the previous phase if the input turned out to be an empty line.
    #[cold]
    fn enter_or_leave_head(&self, previous: Phase, phase: Phase, since: u64) {
        match (previous, phase) {
            (Phase::FirstHead, Phase::Head) | (Phase::Head, Phase::FirstHead) => self.since.set(since),
            (Phase::Idle, Phase::Head) => self.idle_since.set(since),
            // The start of the head was received together with the end of the previous request.
            (_, Phase::Head) => self.idle_since.set(self.since.get()),
            (Phase::Head, Phase::Idle) => self.since.set(self.idle_since.get()),
            _ => {}
        }
    }

    /// Enters the handling phase, and starts the request timer if there is a request timeout.
    #[inline]
    pub fn begin_request(&self, now: u64, has_timeout: bool) {
        self.phase.set(Phase::Handling);
        self.restart_send_progress();
        if has_timeout {
            self.request_since.set(Some(now));
        }
    }

    #[inline]
    pub fn end_request(&self) {
        self.request_since.set(None);
    }

    pub fn begin_body(&self) {
        self.body_bytes.set(0);
        self.body_ticks.set(0);
    }

    pub fn add_body_bytes(&self, bytes: usize) {
        self.body_bytes.update(|total| total + bytes as u64);
    }

    /// Pauses the body timer, because data has arrived or no task is waiting for it.
    #[inline]
    pub fn pause_body(&self, now: u64) {
        if self.phase.get() == Phase::Body {
            self.phase.set(Phase::Handling);
            self.body_ticks.set(self.body_ticks.get() + now.saturating_sub(self.since.get()));
        }
    }

    #[inline]
    pub fn start_send(&self, now: u64) {
        if self.send_since.get().is_none() {
            self.send_since.set(Some(now));
        }
    }

    /// Stops the send timer, because the client has accepted this number of bytes. The next wait continues it until the
    /// client has accepted the minimum amount of data.
    #[inline]
    pub fn note_send_progress(&self, bytes: u64, now: u64) {
        self.send_bytes.set(self.send_bytes.get().saturating_add(bytes));
        if let Some(since) = self.send_since.take() {
            self.send_ticks.set(self.send_ticks.get() + now.saturating_sub(since));
        }
    }

    fn restart_send_progress(&self) {
        self.send_ticks.set(0);
        self.send_bytes.set(0);
    }

    /// Called when the connection is upgraded.
    pub fn disable(&self) {
        self.phase.set(Phase::Handling);
    }

    /// Returns the deadlines in effect, in the order in which they are checked: request, send, phase. A timeout expires
    /// when the current tick exceeds its deadline.
    fn deadlines(&self, options: &ServerOptions, tick: TickLength) -> [Option<(Timeout, u64)>; 3] {
        let after = |since: u64, timeout| since.saturating_add(tick.ticks_for(timeout));
        let request = self.request_since.get().zip(options.request_timeout);
        let send_deadline = |since| after(since, options.send_timeout).saturating_sub(self.send_ticks.get());
        let send = self.send_since.get().map(|since| (Timeout::Send, send_deadline(since)));
        let (phase, mut earlier_ticks) = (self.phase.get(), 0);
        let timeout = match phase {
            Phase::Handling => None,
            Phase::Idle => Some(options.keep_alive_timeout),
            // The first head has the same timeout as the others.
            Phase::FirstHead | Phase::Head => Some(options.header_timeout),
            Phase::Body => {
                earlier_ticks = self.body_ticks.get();
                let milliseconds =
                    self.body_bytes.get().saturating_mul(1000) / options.min_body_bytes_per_second.max(1);
                Some(options.body_timeout.saturating_add(Duration::from_millis(milliseconds)))
            }
            Phase::Linger => Some(options.linger_timeout),
        };
        let phase_deadline = |timeout| after(self.since.get(), timeout).saturating_sub(earlier_ticks);
        [
            request.map(|(since, timeout)| (Timeout::Request, after(since, timeout))),
            send,
            timeout.map(|timeout| (Timeout::Phase(phase), phase_deadline(timeout))),
        ]
    }

    /// Returns the timeout that has expired, and how to act on it.
    pub fn check(&self, now: u64, options: &ServerOptions, tick: TickLength) -> Option<(Timeout, Action)> {
        if self.expired.get() == Some(Timeout::Request) {
            return None;
        }
        if self.send_bytes.get() >= options.min_send_bytes() {
            self.restart_send_progress();
        }
        let mut deadlines = self.deadlines(options, tick).into_iter().flatten();
        let (timeout, _) = deadlines.find(|(_, deadline)| now > *deadline)?;
        Some((timeout, self.expire(timeout, now)))
    }

    fn expire(&self, timeout: Timeout, now: u64) -> Action {
        if self.expired.replace(Some(timeout)) == Some(timeout) {
            // The connection is still open after the first expiry.
            return self.abort();
        }
        match timeout {
            Timeout::Phase(Phase::FirstHead | Phase::Idle | Phase::Head | Phase::Body) => {
                self.since.set(now);
                self.body_ticks.set(0);
                Action::ShutdownRead
            }
            Timeout::Request | Timeout::Send | Timeout::Phase(Phase::Handling | Phase::Linger) => {
                self.abort()
            }
        }
    }

    /// Returns how the connection must be closed if it is aborted now.
    pub fn abort(&self) -> Action {
        if self.send_since.get().is_some() || self.body_ends_at_close.get() {
            Action::Reset
        } else {
            Action::Shutdown
        }
    }

    /// Returns the tick at which the connection started to wait for its client, if it can be evicted now. It can be
    /// evicted while it is idle or, with `include_stalled`, in any waiting phase.
    pub fn evictable_since(&self, include_stalled: bool) -> Option<u64> {
        // An expired connection closes on its own, unless its response does not fit into the send buffer.
        let is_closing =
            self.expired.get().is_some() && !(include_stalled && self.send_since.get().is_some());
        if self.is_evicted.get() || is_closing {
            return None;
        }
        match (self.send_since.get(), self.phase.get()) {
            (None, Phase::FirstHead | Phase::Idle) => Some(self.since.get()),
            _ if !include_stalled => None,
            (Some(since), _) => Some(since),
            (None, Phase::Handling) => None,
            (None, _) => Some(self.since.get()),
        }
    }

    /// Returns how the connection must be closed to make room for another one.
    pub fn evict(&self, now: u64) -> Action {
        self.is_evicted.set(true);
        match (self.send_since.get(), self.phase.get()) {
            // A request that is being received is still answered, as the last one on the connection.
            (None, phase @ (Phase::FirstHead | Phase::Idle)) => self.expire(Timeout::Phase(phase), now),
            _ => self.abort(),
        }
    }

    pub fn is_idle_for(&self, min_idle: Duration, now: u64, tick: TickLength) -> bool {
        matches!(self.phase.get(), Phase::FirstHead | Phase::Idle)
            && now.saturating_sub(self.since.get()) >= tick.ticks_for(min_idle)
    }
}

#[cfg(test)]
mod tests {
    use super::Phase::{Body, FirstHead, Handling, Head, Idle, Linger};
    use super::*;

    /// An event. In a test case, it is preceded by the tick at which it occurs.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Enter(Phase),
        BeginRequest,
        EndRequest,
        BeginBody,
        BodyBytes(usize),
        PauseBody,
        StartSend,
        SendProgress(u64),
        BodyEndsAtClose,
        Disable,
        Evict,
        Check,
    }
    use Event::*;

    /// Ticks of one second, so that a timeout of n seconds ends after n + 1 ticks.
    const TICK: TickLength = TickLength(Duration::from_secs(1));

    const REQUEST: (u64, Event) = (105, BeginRequest);

    fn options() -> ServerOptions {
        ServerOptions {
            header_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(20),
            min_body_bytes_per_second: 100,
            send_timeout: Duration::from_secs(30),
            min_send_bytes_per_second: 10,
            request_timeout: Some(Duration::from_secs(1000)),
            linger_timeout: Duration::from_secs(2),
            ..ServerOptions::default()
        }
    }

    /// Applies events to a connection accepted at tick 100. Returns the resulting deadlines and the actions.
    fn after(events: &[(u64, Event)]) -> (Deadlines, Vec<Action>) {
        let (state, mut actions) = (Deadlines::new(100), Vec::new());
        for &(now, event) in events {
            match event {
                Enter(phase) => state.enter(phase, now),
                BeginRequest => state.begin_request(now, true),
                EndRequest => state.end_request(),
                BeginBody => state.begin_body(),
                BodyBytes(bytes) => state.add_body_bytes(bytes),
                PauseBody => state.pause_body(now),
                StartSend => state.start_send(now),
                SendProgress(bytes) => state.note_send_progress(bytes, now),
                BodyEndsAtClose => state.body_ends_at_close.set(true),
                Disable => state.disable(),
                Evict => actions.push(state.evict(now)),
                Check => actions.extend(state.check(now, &options(), TICK).map(|(_, action)| action)),
            }
        }
        (state, actions)
    }

    #[test]
    fn deadline_follows_phase() {
        type Case = (&'static [(u64, Event)], Phase, Option<u64>);
        let cases: [Case; 17] = [
            (&[], FirstHead, Some(111)),
            (&[(105, Enter(FirstHead))], FirstHead, Some(111)),
            (&[(105, Enter(Head))], Head, Some(111)),
            (&[(105, Enter(Head)), (107, Enter(FirstHead))], FirstHead, Some(111)),
            (&[REQUEST], Handling, None),
            (&[REQUEST, (110, Enter(Idle))], Idle, Some(171)),
            (&[REQUEST, (110, Enter(Idle)), (150, Enter(Idle))], Idle, Some(171)),
            (&[REQUEST, (110, Enter(Idle)), (150, Enter(Head))], Head, Some(161)),
            (&[REQUEST, (110, Enter(Idle)), (150, Enter(Head)), (155, Enter(Idle))], Idle, Some(171)),
            // The start of a head arrives together with the end of the previous request.
            (&[REQUEST, (110, Enter(Head))], Head, Some(121)),
            (&[REQUEST, (110, Enter(Head)), (115, Enter(Idle))], Idle, Some(171)),
            (&[(105, BeginBody), REQUEST, (110, Enter(Body))], Body, Some(131)),
            (&[(105, BeginBody), (110, Enter(Body)), (115, PauseBody)], Handling, None),
            (&[(105, Enter(Head)), (115, PauseBody)], Head, Some(111)),
            (&[REQUEST, (110, Enter(Linger))], Linger, Some(113)),
            (&[(105, Enter(Head)), (110, Enter(Linger))], Linger, Some(113)),
            (&[(105, Enter(Head)), (110, Disable)], Handling, None),
        ];
        for (events, phase, deadline) in cases {
            let (state, actions) = after(events);
            let [.., of_phase] = state.deadlines(&options(), TICK);
            let expected = deadline.map(|deadline| (Timeout::Phase(phase), deadline));
            assert_eq!((state.phase.get(), of_phase), (phase, expected), "{events:?}");
            assert!(actions.is_empty());
        }
    }

    #[test]
    fn body_has_time_for_its_bytes_and_none_for_pauses() {
        let body = [(105, BeginBody), (105, Enter(Body))];
        for (events, deadline) in [
            // 300 bytes at 100 bytes per second extend the deadline by 3 ticks.
            (&[(110, BodyBytes(300))][..], 129),
            (&[(110, PauseBody), (200, Enter(Body))], 216),
            (&[(110, PauseBody), (120, PauseBody), (200, Enter(Body))], 216),
            (&[(110, BodyBytes(300)), (110, PauseBody), (200, Enter(Body))], 219),
            (&[(110, PauseBody), (200, BeginBody), (200, Enter(Body))], 221),
        ] {
            let (state, _) = after(&[&body, events].concat());
            let [.., of_phase] = state.deadlines(&options(), TICK);
            assert_eq!(of_phase, Some((Timeout::Phase(Body), deadline)), "{events:?}");
        }
    }

    #[test]
    fn timers_of_request_and_sending_are_independent_of_phase() {
        for (events, request, send) in [
            (&[(105, Enter(Head))][..], None, None),
            (&[REQUEST], Some(1106), None),
            (&[REQUEST, (110, Enter(Body)), (120, StartSend)], Some(1106), Some(151)),
            (&[REQUEST, (120, StartSend), (130, StartSend)], Some(1106), Some(151)),
            (&[(120, StartSend), (125, SendProgress(1))], None, None),
            (&[REQUEST, (120, StartSend), (130, EndRequest)], None, Some(151)),
        ] {
            let (state, _) = after(events);
            let [of_request, of_sending, _] = state.deadlines(&options(), TICK);
            assert_eq!(of_request, request.map(|deadline| (Timeout::Request, deadline)), "{events:?}");
            assert_eq!(of_sending, send.map(|deadline| (Timeout::Send, deadline)), "{events:?}");
        }
        let state = Deadlines::new(100);
        state.begin_request(105, false);
        assert_eq!(state.deadlines(&options(), TICK), [None; 3]);
    }

    #[test]
    fn send_timer_continues_until_client_has_accepted_minimum() {
        // 30 seconds at 10 bytes per second.
        for (events, send) in [
            (&[(120, StartSend), (125, SendProgress(299)), (130, Check), (140, StartSend)][..], Some(166)),
            (&[(120, StartSend), (125, SendProgress(300)), (130, Check), (140, StartSend)], Some(171)),
            (&[(120, StartSend), (125, SendProgress(299)), (130, StartSend), (131, SendProgress(1))], None),
            (
                &[
                    (120, StartSend),
                    (125, SendProgress(299)),
                    (130, StartSend),
                    (134, SendProgress(0)),
                    (135, Check),
                    (140, StartSend),
                ],
                Some(162),
            ),
            // Progress without a wait counts as well.
            (
                &[
                    (120, StartSend),
                    (125, SendProgress(1)),
                    (126, SendProgress(299)),
                    (127, Check),
                    (140, StartSend),
                ],
                Some(171),
            ),
            (&[(120, StartSend), (125, SendProgress(1)), REQUEST, (140, StartSend)], Some(171)),
        ] {
            let (state, actions) = after(&[&[REQUEST], events].concat());
            let [_, of_sending, _] = state.deadlines(&options(), TICK);
            assert_eq!(of_sending, send.map(|deadline| (Timeout::Send, deadline)), "{events:?}");
            assert!(actions.is_empty(), "{events:?}");
        }
    }

    #[test]
    fn timeouts_are_named_after_their_options() {
        let options = format!("{:?}", options());
        let phases = [Handling, FirstHead, Head, Idle, Body, Linger].map(Timeout::Phase);
        for timeout in phases.into_iter().chain([Timeout::Request, Timeout::Send]) {
            assert!(options.contains(&format!(" {timeout}: ")), "{timeout}");
        }
    }

    #[test]
    fn late_connection_expires() {
        use Action::{Reset, Shutdown, ShutdownRead};
        let phase = Timeout::Phase;
        type Case = (&'static [(u64, Event)], &'static [Action], Option<Timeout>);
        let cases: [Case; 16] = [
            (&[(111, Check)], &[], None),
            (&[(112, Check)], &[ShutdownRead], Some(phase(FirstHead))),
            // The first expiry restarts the phase.
            (&[(112, Check), (123, Check)], &[ShutdownRead], Some(phase(FirstHead))),
            (&[(112, Check), (124, Check)], &[ShutdownRead, Shutdown], Some(phase(FirstHead))),
            (&[(112, Check), (113, Enter(Head)), (124, Check)], &[ShutdownRead; 2], Some(phase(Head))),
            (&[(105, Enter(Head)), (112, Check)], &[ShutdownRead], Some(phase(Head))),
            (&[REQUEST, (110, Enter(Idle)), (172, Check)], &[ShutdownRead], Some(phase(Idle))),
            (&[(105, BeginBody), (110, Enter(Body)), (132, Check)], &[ShutdownRead], Some(phase(Body))),
            (
                &[(105, Enter(Body)), (120, PauseBody), (130, Enter(Body)), (200, Check), (221, Check)],
                &[ShutdownRead],
                Some(phase(Body)),
            ),
            (&[(110, Enter(Linger)), (114, Check)], &[Shutdown], Some(phase(Linger))),
            (&[REQUEST, (110, StartSend), (142, Check)], &[Reset], Some(Timeout::Send)),
            (&[REQUEST, (110, StartSend), (142, Check), (143, Check)], &[Reset; 2], Some(Timeout::Send)),
            (
                &[(110, StartSend), (130, SendProgress(1)), (130, StartSend), (142, Check)],
                &[Reset],
                Some(Timeout::Send),
            ),
            (&[REQUEST, (1107, Check)], &[Shutdown], Some(Timeout::Request)),
            // The request timer takes precedence over the others, and no further action follows its expiry.
            (&[REQUEST, (110, StartSend), (1107, Check), (2000, Check)], &[Reset], Some(Timeout::Request)),
            (&[REQUEST, (110, BodyEndsAtClose), (1107, Check)], &[Reset], Some(Timeout::Request)),
        ];
        for (events, expected, expired) in cases {
            let (state, actions) = after(events);
            assert_eq!((&actions[..], state.expired.get()), (expected, expired), "{events:?}");
        }
    }

    #[test]
    fn only_waiting_connections_are_evicted() {
        use Action::{Reset, Shutdown, ShutdownRead};
        type Case = (&'static [(u64, Event)], Option<u64>, Option<u64>, Action);
        let cases: [Case; 10] = [
            (&[], Some(100), Some(100), ShutdownRead),
            (&[REQUEST, (110, Enter(Idle))], Some(110), Some(110), ShutdownRead),
            (&[(105, Enter(Head))], None, Some(100), Shutdown),
            (&[(105, Enter(Body))], None, Some(105), Shutdown),
            (&[(105, Enter(Linger))], None, Some(105), Shutdown),
            (&[REQUEST], None, None, Shutdown),
            (&[REQUEST, (110, StartSend)], None, Some(110), Reset),
            (&[(112, Check)], None, None, Shutdown),
            (&[(110, StartSend), (112, Check)], None, Some(110), Reset),
            (&[(105, Evict)], None, None, Shutdown),
        ];
        for (events, idle, stalled, action) in cases {
            let (state, _) = after(events);
            let since = [false, true].map(|include_stalled| state.evictable_since(include_stalled));
            assert_eq!((since, state.evict(120)), ([idle, stalled], action), "{events:?}");
            assert!(state.is_evicted.get());
        }
    }

    #[test]
    fn idle_time_counts_between_requests() {
        for (events, now, is_idle) in [
            (&[][..], 105, false),
            (&[], 106, true),
            (&[(103, Enter(Head))], 200, false),
            (&[(103, BeginRequest)], 200, false),
            (&[(103, BeginRequest), (110, Enter(Idle))], 115, false),
            (&[(103, BeginRequest), (110, Enter(Idle))], 116, true),
        ] {
            let (state, _) = after(events);
            assert_eq!(state.is_idle_for(Duration::from_secs(5), now, TICK), is_idle, "{events:?} {now}");
        }
    }

    #[test]
    fn only_idle_connections_can_be_suspended() {
        const IDLE: [(u64, Event); 2] = [REQUEST, (110, Enter(Idle))];
        for (events, since, can_be_suspended) in [
            (&[][..], 100, false),
            (&[REQUEST], 100, false),
            (&IDLE, 110, true),
            (&[IDLE[0], IDLE[1], (115, StartSend)], 110, false),
            (&[IDLE[0], IDLE[1], (172, Check)], 172, false),
            (&[IDLE[0], IDLE[1], (172, Check), (173, StartSend)], 172, false),
        ] {
            let (state, _) = after(events);
            assert_eq!((state.since(), state.can_be_suspended()), (since, can_be_suspended), "{events:?}");
        }
    }

    #[test]
    fn ticks_cover_durations() {
        let tick = TickLength::new(Duration::ZERO);
        assert_eq!(tick.ticks_in(Duration::from_millis(5)), 5);
        for (duration, ticks) in
            [(Duration::from_millis(5), 6), (Duration::from_micros(5001), 7), (Duration::MAX, u64::MAX)]
        {
            assert_eq!(tick.ticks_for(duration), ticks);
        }
    }
}
