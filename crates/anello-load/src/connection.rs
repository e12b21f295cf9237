//! One connection: requests go out when they may, replies are judged and timed, until the stretch of load is over or
//! something breaks.
//!
//! ```text
//!              due, or wanted            made                  all of a response that ends it
//!   Closed ───────────────────► Opening ──────► Open ─────────────────────────────────────────► Ending
//!     ▲  ▲                         │             │  ▲ requests out, replies in                    │ the server's end
//!     │  └── Pausing ◄─ failed, to be tried again┤  └┘                                            │
//!     │                                          └──► Broken (nobody opens it again)              │
//!     └────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A future by hand, not an `async fn`: it has to look at its line, the clock and the socket in one poll.
//!
//! The clock is read once for each piece that arrives: that moment is the end of all replies in it, and in a closed loop
//! the beginning of the requests that follow.

mod closing;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anello::time::{Sleep, sleep, timeout};

use crate::connect;
use crate::connection_slot::{AbortReason, ConnectionSlot};
use crate::errors::{ErrorKind, Fault};
use crate::exchange::{Verdict, Wire};
use crate::shared::{InFlightRequest, Shared};
use crate::stream::{Received, Stream};

/// A connection in its lane, open or not.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Its number among all connections of the load.
    index: u64,
    /// The number of the next request.
    sequence: u64,
    /// Requests answered in this stretch.
    pub answered: u64,
    link: Link,
    wire: Wire,
    /// Sent and not answered, the oldest first.
    in_flight: VecDeque<InFlightRequest>,
    /// Closed loop: when requests that were sent in vain, and go out once more, were sent first.
    again: VecDeque<u64>,
    pub slot: Rc<ConnectionSlot>,
    /// The request that the connection is opened for, where each has its own.
    held: Option<InFlightRequest>,
    /// Closed loop: until the next request.
    think: Option<Sleep>,
    /// A request was sent in this stretch that counts.
    began: bool,
    /// Since when requests could be sent at once.
    free_since_ns: u64,
    /// The last look at the clock; 0 if there was none in this poll.
    now_ns: u64,
    /// Times in a row that opening it failed, or brought nothing.
    failures: u32,
    opened_before: bool,
    /// When it was opened last, and the number of the first request on it.
    opened_ns: u64,
    first_sequence: u64,
    /// When a reply was whole last.
    answered_ns: u64,
}

enum Link {
    Closed,
    Pausing(Sleep),
    Opening(Pin<Box<dyn Future<Output = Result<Stream, Fault>>>>),
    Open(Stream),
    Ending(Stream),
    Broken,
}

/// What became of an open connection.
enum Next {
    /// Everything of this stretch is done.
    Done,
    /// The link has changed.
    Changed,
}

impl Connection {
    /// A connection that is not open.
    pub fn new(index: u64, wire: Wire, slot: Rc<ConnectionSlot>) -> Self {
        Self {
            index,
            sequence: 0,
            answered: 0,
            link: Link::Closed,
            wire,
            in_flight: VecDeque::new(),
            again: VecDeque::new(),
            slot,
            held: None,
            think: None,
            began: false,
            free_since_ns: 0,
            now_ns: 0,
            failures: 0,
            opened_before: false,
            opened_ns: 0,
            first_sequence: 0,
            answered_ns: 0,
        }
    }

    /// Takes an open stream.
    pub fn open(&mut self, stream: Stream, shared: &Shared) {
        shared.counters.open.set(shared.counters.open.get() + 1);
        if let Some(negotiated) = stream.negotiated() {
            shared.handshakes.borrow_mut().count(negotiated);
        }
        if self.opened_before {
            shared.reopened.set(shared.reopened.get() + 1);
        }
        self.opened_before = true;
        (self.opened_ns, self.first_sequence) = (shared.now_ns(), self.sequence);
        self.slot.set_open(stream.shutdown_handle());
        self.link = Link::Open(stream);
    }

    /// Tells a server under TLS that nothing more will come, as far as that can be sent at once.
    pub fn say_goodbye(&mut self) {
        if let Link::Open(stream) = &mut self.link {
            stream.say_goodbye();
        }
    }

    /// Nobody opens it any more.
    pub fn give_up(&mut self, shared: &Shared) {
        self.link = Link::Broken;
        self.slot.broken.set(true);
        self.slot.set_closed();
        self.slot.clear_queue(shared);
    }

    pub fn is_open(&self) -> bool {
        matches!(self.link, Link::Open(_))
    }

    pub fn is_broken(&self) -> bool {
        matches!(self.link, Link::Broken)
    }

    /// Whether it was ever open.
    pub fn was_opened(&self) -> bool {
        self.opened_before
    }

    /// Works until the stretch is over; gives the connection back with nothing in flight.
    pub fn run(mut self, shared: Rc<Shared>) -> impl Future<Output = Self> {
        self.answered = 0;
        self.began = false;
        let mut running = Some(self);
        std::future::poll_fn(move |context| {
            let Some(connection) = &mut running else { return Poll::Pending };
            ready!(connection.poll(&shared, context));
            connection.think = None;
            connection.slot.clear_waker();
            running.take().map_or(Poll::Pending, Poll::Ready)
        })
    }

    #[inline]
    fn poll(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<()> {
        shared.polls.set(shared.polls.get() + 1);
        self.now_ns = 0;
        loop {
            if let Link::Open(_) = self.link {
                match ready!(self.poll_open(shared, context)) {
                    Next::Done => return Poll::Ready(()),
                    Next::Changed => {}
                }
            } else if ready!(self.poll_not_open(shared, context)) {
                return Poll::Ready(());
            }
        }
    }

    /// Sends what may be sent and receives what comes.
    #[inline]
    fn poll_open(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<Next> {
        loop {
            if let Err(error) = self.send(shared, context) {
                return Poll::Ready(self.bury(Fault::of_exchange(&error), shared));
            }
            if self.in_flight.is_empty() && !self.owes() && self.is_over(shared) {
                return Poll::Ready(Next::Done);
            }
            let Link::Open(stream) = &mut self.link else { return Poll::Ready(Next::Changed) };
            let Poll::Ready(received) = stream.poll_receive(context) else {
                // Who waits for a reply alone is woken by the socket.
                if shared.open_loop || self.in_flight.is_empty() {
                    self.slot.register_waker(context.waker(), self.in_flight.len() < shared.max_in_flight);
                }
                return Poll::Pending;
            };
            let judged = match received {
                Ok(Some(Received::Chunk(chunk))) => self.receive(&chunk, shared),
                Ok(Some(Received::Plaintext(plaintext))) => self.receive_plaintext(plaintext, shared),
                Ok(None) => return Poll::Ready(self.ended(shared)),
                Err(error) => Err(Fault::of_exchange(&error)),
            };
            match judged {
                Ok(false) => {}
                Ok(true) => return Poll::Ready(self.end(shared)),
                Err(fault) => return Poll::Ready(self.bury(fault, shared)),
            }
        }
    }

    /// Everything but an open connection; whether all of this stretch is done.
    #[cold]
    fn poll_not_open(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<bool> {
        self.slot.register_waker(context.waker(), true);
        match &mut self.link {
            Link::Broken => return Poll::Ready(true),
            Link::Closed => {
                if self.is_over(shared) && (!self.owes() || shared.stopping.get()) {
                    let (again, from_ns) = (std::mem::take(&mut self.again), shared.count_from_ns.get());
                    let abandoned = again.into_iter().filter(|&first_ns| first_ns >= from_ns).count();
                    shared.counters.add_abandoned(abandoned as u64);
                    return Poll::Ready(true);
                }
                let early_ns = self.slot.open_at_ns.get().saturating_sub(self.now(shared));
                if early_ns > 0 {
                    self.link = Link::Pausing(sleep(Duration::from_nanos(early_ns)));
                    return Poll::Ready(false);
                }
                ready!(self.poll_held(shared, context));
                let (source, target) = (shared.source_address(self.index), shared.target.clone());
                let (limit, tls) = (shared.connect_timeout, shared.tls.clone());
                self.link = Link::Opening(Box::pin(async move {
                    match timeout(limit, connect::connect(&target, source, tls.as_ref())).await {
                        Ok(Ok(stream)) => Ok(stream),
                        Ok(Err(error)) => Err(Fault::of_connecting(&error)),
                        Err(_) => Err(Fault {
                            kind: ErrorKind::ConnectTimeout,
                            text: format!("{target}: not connected within {limit:?}"),
                        }),
                    }
                }));
            }
            Link::Pausing(pause) => {
                if pause_is_over(pause, context) || self.is_over(shared) {
                    self.link = Link::Closed;
                    // Until its turn it was the load that waited.
                    if self.failures > 0 {
                        self.free_since_ns = self.now(shared);
                    }
                } else {
                    return Poll::Pending;
                }
            }
            Link::Opening(opening) => match opening.as_mut().poll(context) {
                Poll::Ready(Ok(stream)) => {
                    self.open(stream, shared);
                    self.free_since_ns = self.now(shared);
                }
                Poll::Ready(Err(fault)) => {
                    self.bury(fault, shared);
                }
                Poll::Pending if self.slot.abort_reason().is_some() => {
                    let text = "the connection for a request took too long".to_owned();
                    self.bury(Fault { kind: ErrorKind::Timeout, text }, shared);
                }
                // Nothing waits for it.
                Poll::Pending if (!self.owes() || shared.stopping.get()) && self.is_over(shared) => {
                    self.link = Link::Closed;
                }
                Poll::Pending => return Poll::Pending,
            },
            Link::Ending(stream) => match ready!(stream.poll_end(context)) {
                Ok(Some(bytes)) => {
                    let text = format!("at least {bytes} bytes came after the last response");
                    self.bury(Fault { kind: ErrorKind::ExcessData, text }, shared);
                }
                _ if self.slot.abort_reason() == Some(AbortReason::TimedOut) => {
                    let text = "the server did not close the connection as it had said".to_owned();
                    self.bury(Fault { kind: ErrorKind::Timeout, text }, shared);
                }
                Ok(None) | Err(_) => self.close(shared),
            },
            Link::Open(_) => {}
        }
        Poll::Ready(false)
    }

    /// Where each request has its own connection: until one is due that it is opened for.
    fn poll_held(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<()> {
        if shared.keep_alive || self.held.is_some() {
            return Poll::Ready(());
        }
        let now_ns = self.now(shared);
        let due_ns = match shared.open_loop {
            true => self.slot.due_queue.borrow_mut().pop_front(),
            false => self.thought(context).then_some(now_ns),
        };
        let Some(due_ns) = due_ns else { return Poll::Pending };
        let flight = InFlightRequest { due_ns, sent_ns: now_ns };
        self.note_sending(flight, shared);
        self.held = Some(flight);
        self.slot.set_oldest_sent(now_ns);
        Poll::Ready(())
    }

    /// Closed loop: whether the time between a reply and the next request is over.
    fn thought(&mut self, context: &mut Context<'_>) -> bool {
        let thought = self.think.as_mut().is_none_or(|think| pause_is_over(think, context));
        if thought {
            self.think = None;
        }
        thought
    }

    /// Whether no more requests begin in this stretch.
    #[inline]
    fn is_over(&mut self, shared: &Shared) -> bool {
        if shared.open_loop {
            return shared.schedule_finished.get() && self.slot.due_queue.borrow().is_empty();
        }
        let deadline_ns = shared.deadline_ns.get();
        // Every connection makes at least one request, unless it cannot, or its turn does not come.
        self.now(shared) >= deadline_ns
            && (self.began
                || self.failures > 0
                || self.slot.open_at_ns.get() > deadline_ns
                || shared.stopping.get())
    }

    /// Sends as many requests as may be in flight and are due.
    #[inline]
    fn send(&mut self, shared: &Shared, context: &mut Context<'_>) -> io::Result<()> {
        let room = shared.max_in_flight - self.in_flight.len();
        if room == 0 {
            return Ok(());
        }
        let count = self.due(room, shared, context);
        if count == 0 {
            return Ok(());
        }
        let bytes = shared.exchange.requests(self.index, self.sequence, count);
        let bytes_count = bytes.len();
        // Before they are sent: epoll does that at once, and others may have the core before it returns.
        self.now(shared);
        let Link::Open(stream) = &mut self.link else { return Ok(()) };
        let Poll::Ready(sent) = stream.poll_send(bytes, context) else { return Ok(()) };
        sent?;
        self.sent(count, bytes_count, shared);
        Ok(())
    }

    /// Whether a request that has begun is neither answered nor in flight.
    #[inline]
    fn owes(&self) -> bool {
        self.held.is_some() || !self.again.is_empty()
    }

    /// How many requests are due, of at most `room`.
    #[inline]
    fn due(&mut self, room: usize, shared: &Shared, context: &mut Context<'_>) -> usize {
        if !shared.keep_alive {
            return usize::from(self.held.is_some());
        }
        if shared.open_loop {
            return room.min(self.slot.due_queue.borrow().len());
        }
        if (self.think.is_some() && !self.thought(context)) || self.is_over(shared) {
            // Nothing new; what was sent in vain is owed its answer all the same.
            return room.min(self.again.len());
        }
        room
    }

    /// So many requests were accepted for sending.
    #[inline]
    fn sent(&mut self, count: usize, bytes: usize, shared: &Shared) {
        let now_ns = self.now(shared);
        self.began |= now_ns >= shared.count_from_ns.get();
        self.sequence += count as u64;
        shared.counters.add_sent_bytes(bytes);
        if self.in_flight.is_empty() {
            self.slot.set_oldest_sent(now_ns);
        }
        for _ in 0..count {
            let mut flight = InFlightRequest { due_ns: now_ns, sent_ns: now_ns };
            if let Some(held) = self.held.take() {
                flight = held;
            } else if shared.open_loop {
                flight.due_ns = self.slot.due_queue.borrow_mut().pop_front().unwrap_or(now_ns);
                self.note_sending(flight, shared);
            } else if let Some(first_ns) = self.again.pop_front() {
                flight.due_ns = first_ns;
            }
            self.in_flight.push_back(flight);
        }
    }

    fn note_sending(&mut self, flight: InFlightRequest, shared: &Shared) {
        self.began |= flight.sent_ns >= shared.count_from_ns.get();
        // How late it was sent is told by the first time.
        let resend_count = self.slot.resend_count.get();
        if resend_count > 0 {
            self.slot.resend_count.set(resend_count - 1);
            return;
        }
        if shared.open_loop && flight.due_ns >= shared.count_from_ns.get() {
            shared.counters.record_schedule_error(flight, flight.due_ns >= self.free_since_ns);
        }
    }

    /// Judges what came; whether the connection ends here.
    #[inline]
    fn receive(&mut self, bytes: &[u8], shared: &Shared) -> Result<bool, Fault> {
        self.now_ns = shared.now_ns();
        shared.counters.add_received_bytes(bytes.len(), self.now_ns);
        let mut rest = bytes;
        loop {
            if self.in_flight.is_empty() {
                return Err(too_long(bytes.len()));
            }
            let sequence = self.sequence - self.in_flight.len() as u64;
            let verdict = self.wire.receive(&shared.exchange, self.index, sequence, &mut rest)?;
            let Some(verdict) = verdict else { return Ok(false) };
            if self.in_flight.len() == 1 && !rest.is_empty() {
                return Err(too_long(bytes.len()));
            }
            self.answered(&verdict, shared);
            if self.wire.closes() || !shared.keep_alive {
                return Ok(true);
            }
            if rest.is_empty() {
                return Ok(false);
            }
        }
    }

    /// The same of what TLS has decrypted.
    #[inline(never)]
    fn receive_plaintext(&mut self, plaintext: Vec<u8>, shared: &Shared) -> Result<bool, Fault> {
        let judged = self.receive(&plaintext, shared);
        if let Link::Open(stream) = &self.link {
            stream.give_back(plaintext);
        }
        judged
    }

    /// The oldest request in flight has its reply.
    #[inline(always)]
    fn answered(&mut self, verdict: &Verdict, shared: &Shared) {
        let now_ns = self.now_ns;
        if self.in_flight.len() == shared.max_in_flight {
            self.free_since_ns = now_ns;
        }
        let Some(flight) = self.in_flight.pop_front() else { return };
        self.answered_ns = now_ns;
        match self.in_flight.front() {
            None => self.slot.set_idle(),
            Some(next) => self.slot.set_oldest_sent(next.sent_ns),
        }
        self.failures = 0;
        if !shared.think_time.is_zero() {
            self.think = Some(sleep(shared.think_time));
        }
        match verdict {
            Verdict::Right => {
                if flight.due_ns >= shared.count_from_ns.get() {
                    self.answered += 1;
                    shared.counters.record_reply(flight, now_ns);
                }
            }
            Verdict::Wrong(fault) => shared.counters.record_error(fault.kind, 1, || fault.text.clone()),
        }
    }

    /// The time, read at most once a poll unless something came.
    #[inline]
    fn now(&mut self, shared: &Shared) -> u64 {
        if self.now_ns == 0 {
            self.now_ns = shared.now_ns();
        }
        self.now_ns
    }
}

fn pause_is_over(pause: &mut Sleep, context: &mut Context<'_>) -> bool {
    Pin::new(pause).poll(context).is_ready()
}

#[cold]
fn too_long(bytes: usize) -> Fault {
    let text = format!("more came than was asked for, within a piece of {bytes} bytes");
    Fault { kind: ErrorKind::ExcessData, text }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Closed => "Closed",
            Self::Pausing(_) => "Pausing",
            Self::Opening(_) => "Opening",
            Self::Open(_) => "Open",
            Self::Ending(_) => "Ending",
            Self::Broken => "Broken",
        })
    }
}
