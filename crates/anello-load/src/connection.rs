//! One connection: requests go out when they may, replies are judged and timed, until the stretch of load is over or
//! something breaks.
//!
//! ```text
//!              due, or wanted              made                   all of a response that ends it
//!   Closed ───────────────────► Connecting ──────► Open ──────────────────────────────────► AwaitingEof
//!     ▲  ▲                          │               │  ▲ requests out, replies in               │ EOF of the server
//!     │  └── Waiting ◄── failed, retried            │  └┘                                       │
//!     │                                             └──► Broken (not reconnected)               │
//!     └─────────────────────────────────────────────────────────────────────────────────────────┘
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
use crate::errors::{ConnectionError, ErrorKind};
use crate::exchange::{ReplyCheck, ReplyDecoder};
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
    state: ConnectionState,
    decoder: ReplyDecoder,
    /// Sent and not answered, the oldest first.
    in_flight: VecDeque<InFlightRequest>,
    /// Closed loop: when requests that were sent in vain, and go out once more, were sent first.
    resend_queue: VecDeque<u64>,
    pub slot: Rc<ConnectionSlot>,
    /// The request that the connection is opened for, where each has its own.
    reserved_request: Option<InFlightRequest>,
    /// Closed loop: until the next request.
    think: Option<Sleep>,
    /// A request was sent in this stretch that counts.
    has_started: bool,
    /// Since when requests could be sent at once.
    ready_since_ns: u64,
    /// The last look at the clock; 0 if there was none in this poll.
    now_ns: u64,
    /// Times in a row that opening it failed, or brought nothing.
    consecutive_failures: u32,
    was_opened: bool,
    /// When it was opened last, and the number of the first request on it.
    opened_ns: u64,
    first_sequence: u64,
    /// When a reply was whole last.
    last_reply_ns: u64,
}

enum ConnectionState {
    Closed,
    Waiting(Sleep),
    Connecting(Pin<Box<dyn Future<Output = Result<Stream, ConnectionError>>>>),
    Open(Stream),
    AwaitingEof(Stream),
    Broken,
}

/// What became of an open connection.
enum PollOutcome {
    /// Everything of this stretch is done.
    Done,
    /// The link has changed.
    StateChanged,
}

impl Connection {
    /// A connection that is not open.
    pub fn new(index: u64, decoder: ReplyDecoder, slot: Rc<ConnectionSlot>) -> Self {
        Self {
            index,
            sequence: 0,
            answered: 0,
            state: ConnectionState::Closed,
            decoder,
            in_flight: VecDeque::new(),
            resend_queue: VecDeque::new(),
            slot,
            reserved_request: None,
            think: None,
            has_started: false,
            ready_since_ns: 0,
            now_ns: 0,
            consecutive_failures: 0,
            was_opened: false,
            opened_ns: 0,
            first_sequence: 0,
            last_reply_ns: 0,
        }
    }

    /// Takes an open stream.
    pub fn open(&mut self, stream: Stream, shared: &Shared) {
        shared.counters.open.set(shared.counters.open.get() + 1);
        if let Some(negotiated) = stream.negotiated() {
            shared.handshakes.borrow_mut().count(negotiated);
        }
        if self.was_opened {
            shared.reopened.set(shared.reopened.get() + 1);
        }
        self.was_opened = true;
        (self.opened_ns, self.first_sequence) = (shared.now_ns(), self.sequence);
        self.slot.set_open(stream.shutdown_handle());
        self.state = ConnectionState::Open(stream);
    }

    /// Tells a server under TLS that nothing more will come, as far as that can be sent at once.
    pub fn send_close_notify(&mut self) {
        if let ConnectionState::Open(stream) = &mut self.state {
            stream.send_close_notify();
        }
    }

    /// Nobody opens it any more.
    pub fn mark_broken(&mut self, shared: &Shared) {
        self.state = ConnectionState::Broken;
        self.slot.broken.set(true);
        self.slot.set_closed();
        self.slot.clear_queue(shared);
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, ConnectionState::Open(_))
    }

    pub fn is_broken(&self) -> bool {
        matches!(self.state, ConnectionState::Broken)
    }

    /// Whether it was ever open.
    pub fn was_opened(&self) -> bool {
        self.was_opened
    }

    /// Works until the stretch is over; gives the connection back with nothing in flight.
    pub fn run(mut self, shared: Rc<Shared>) -> impl Future<Output = Self> {
        self.answered = 0;
        self.has_started = false;
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
            if let ConnectionState::Open(_) = self.state {
                match ready!(self.poll_open(shared, context)) {
                    PollOutcome::Done => return Poll::Ready(()),
                    PollOutcome::StateChanged => {}
                }
            } else if ready!(self.poll_disconnected(shared, context)) {
                return Poll::Ready(());
            }
        }
    }

    /// Sends what may be sent and receives what comes.
    #[inline]
    fn poll_open(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<PollOutcome> {
        loop {
            if let Err(error) = self.send(shared, context) {
                return Poll::Ready(
                    self.fail_connection(ConnectionError::from_exchange_error(&error), shared),
                );
            }
            if self.in_flight.is_empty() && !self.has_unanswered() && self.is_finished(shared) {
                return Poll::Ready(PollOutcome::Done);
            }
            let ConnectionState::Open(stream) = &mut self.state else {
                return Poll::Ready(PollOutcome::StateChanged);
            };
            let Poll::Ready(received) = stream.poll_receive(context) else {
                // Who waits for a reply alone is woken by the socket.
                if shared.open_loop || self.in_flight.is_empty() {
                    self.slot.register_waker(context.waker(), self.in_flight.len() < shared.max_in_flight);
                }
                return Poll::Pending;
            };
            let outcome = match received {
                Ok(Some(Received::Chunk(chunk))) => self.receive(&chunk, shared),
                Ok(Some(Received::Plaintext(plaintext))) => self.receive_plaintext(plaintext, shared),
                Ok(None) => return Poll::Ready(self.handle_eof(shared)),
                Err(error) => Err(ConnectionError::from_exchange_error(&error)),
            };
            match outcome {
                Ok(false) => {}
                Ok(true) => return Poll::Ready(self.begin_close(shared)),
                Err(error) => return Poll::Ready(self.fail_connection(error, shared)),
            }
        }
    }

    /// Everything but an open connection; whether all of this stretch is done.
    #[cold]
    fn poll_disconnected(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<bool> {
        self.slot.register_waker(context.waker(), true);
        match &mut self.state {
            ConnectionState::Broken => return Poll::Ready(true),
            ConnectionState::Closed => {
                if self.is_finished(shared) && (!self.has_unanswered() || shared.stopping.get()) {
                    let (resend_queue, from_ns) =
                        (std::mem::take(&mut self.resend_queue), shared.count_from_ns.get());
                    let abandoned =
                        resend_queue.into_iter().filter(|&first_due_ns| first_due_ns >= from_ns).count();
                    shared.counters.add_abandoned(abandoned as u64);
                    return Poll::Ready(true);
                }
                let delay_ns = self.slot.open_at_ns.get().saturating_sub(self.now(shared));
                if delay_ns > 0 {
                    self.state = ConnectionState::Waiting(sleep(Duration::from_nanos(delay_ns)));
                    return Poll::Ready(false);
                }
                ready!(self.poll_reserve_request(shared, context));
                let (source, target) = (shared.source_address(self.index), shared.target.clone());
                let (connect_timeout, tls) = (shared.connect_timeout, shared.tls.clone());
                self.state = ConnectionState::Connecting(Box::pin(async move {
                    match timeout(connect_timeout, connect::connect(&target, source, tls.as_ref())).await {
                        Ok(Ok(stream)) => Ok(stream),
                        Ok(Err(error)) => Err(ConnectionError::from_connect_error(&error)),
                        Err(_) => Err(ConnectionError {
                            kind: ErrorKind::ConnectTimeout,
                            text: format!("{target}: not connected within {connect_timeout:?}"),
                        }),
                    }
                }));
            }
            ConnectionState::Waiting(delay) => {
                if is_sleep_elapsed(delay, context) || self.is_finished(shared) {
                    self.state = ConnectionState::Closed;
                    // Until its turn it was the load that waited.
                    if self.consecutive_failures > 0 {
                        self.ready_since_ns = self.now(shared);
                    }
                } else {
                    return Poll::Pending;
                }
            }
            ConnectionState::Connecting(connecting) => match connecting.as_mut().poll(context) {
                Poll::Ready(Ok(stream)) => {
                    self.open(stream, shared);
                    self.ready_since_ns = self.now(shared);
                }
                Poll::Ready(Err(error)) => {
                    self.fail_connection(error, shared);
                }
                Poll::Pending if self.slot.abort_reason().is_some() => {
                    let text = "the connection for a request took too long".to_owned();
                    self.fail_connection(ConnectionError { kind: ErrorKind::Timeout, text }, shared);
                }
                // Nothing waits for it.
                Poll::Pending
                    if (!self.has_unanswered() || shared.stopping.get()) && self.is_finished(shared) =>
                {
                    self.state = ConnectionState::Closed;
                }
                Poll::Pending => return Poll::Pending,
            },
            ConnectionState::AwaitingEof(stream) => match ready!(stream.poll_eof(context)) {
                Ok(Some(bytes)) => {
                    let text = format!("at least {bytes} bytes came after the last response");
                    self.fail_connection(ConnectionError { kind: ErrorKind::ExcessData, text }, shared);
                }
                _ if self.slot.abort_reason() == Some(AbortReason::TimedOut) => {
                    let text = "the server did not close the connection as it had said".to_owned();
                    self.fail_connection(ConnectionError { kind: ErrorKind::Timeout, text }, shared);
                }
                Ok(None) | Err(_) => self.close(shared),
            },
            ConnectionState::Open(_) => {}
        }
        Poll::Ready(false)
    }

    /// Where each request has its own connection: until one is due that it is opened for.
    fn poll_reserve_request(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<()> {
        if shared.keep_alive || self.reserved_request.is_some() {
            return Poll::Ready(());
        }
        let now_ns = self.now(shared);
        let due_ns = match shared.open_loop {
            true => self.slot.due_queue.borrow_mut().pop_front(),
            false => self.is_think_time_elapsed(context).then_some(now_ns),
        };
        let Some(due_ns) = due_ns else { return Poll::Pending };
        let request = InFlightRequest { due_ns, sent_ns: now_ns };
        self.record_send_time(request, shared);
        self.reserved_request = Some(request);
        self.slot.set_oldest_sent(now_ns);
        Poll::Ready(())
    }

    /// Closed loop: whether the time between a reply and the next request is over.
    fn is_think_time_elapsed(&mut self, context: &mut Context<'_>) -> bool {
        let is_elapsed = self.think.as_mut().is_none_or(|think| is_sleep_elapsed(think, context));
        if is_elapsed {
            self.think = None;
        }
        is_elapsed
    }

    /// Whether no more requests begin in this stretch.
    #[inline]
    fn is_finished(&mut self, shared: &Shared) -> bool {
        if shared.open_loop {
            return shared.schedule_finished.get() && self.slot.due_queue.borrow().is_empty();
        }
        let deadline_ns = shared.deadline_ns.get();
        // Every connection makes at least one request, unless it cannot, or its turn does not come.
        self.now(shared) >= deadline_ns
            && (self.has_started
                || self.consecutive_failures > 0
                || self.slot.open_at_ns.get() > deadline_ns
                || shared.stopping.get())
    }

    /// Sends as many requests as may be in flight and are due.
    #[inline]
    fn send(&mut self, shared: &Shared, context: &mut Context<'_>) -> io::Result<()> {
        let capacity = shared.max_in_flight - self.in_flight.len();
        if capacity == 0 {
            return Ok(());
        }
        let count = self.due_count(capacity, shared, context);
        if count == 0 {
            return Ok(());
        }
        let bytes = shared.exchange.requests(self.index, self.sequence, count);
        let byte_count = bytes.len();
        // Before they are sent: epoll does that at once, and others may have the core before it returns.
        self.now(shared);
        let ConnectionState::Open(stream) = &mut self.state else { return Ok(()) };
        let Poll::Ready(sent) = stream.poll_send(bytes, context) else { return Ok(()) };
        sent?;
        self.record_sent(count, byte_count, shared);
        Ok(())
    }

    /// Whether a request that has begun is neither answered nor in flight.
    #[inline]
    fn has_unanswered(&self) -> bool {
        self.reserved_request.is_some() || !self.resend_queue.is_empty()
    }

    /// How many requests are due, of at most `capacity`.
    #[inline]
    fn due_count(&mut self, capacity: usize, shared: &Shared, context: &mut Context<'_>) -> usize {
        if !shared.keep_alive {
            return usize::from(self.reserved_request.is_some());
        }
        if shared.open_loop {
            return capacity.min(self.slot.due_queue.borrow().len());
        }
        if (self.think.is_some() && !self.is_think_time_elapsed(context)) || self.is_finished(shared) {
            // Nothing new; what was sent in vain is owed its answer all the same.
            return capacity.min(self.resend_queue.len());
        }
        capacity
    }

    /// So many requests were accepted for sending.
    #[inline]
    fn record_sent(&mut self, count: usize, bytes: usize, shared: &Shared) {
        let now_ns = self.now(shared);
        self.has_started |= now_ns >= shared.count_from_ns.get();
        self.sequence += count as u64;
        shared.counters.add_sent_bytes(bytes);
        if self.in_flight.is_empty() {
            self.slot.set_oldest_sent(now_ns);
        }
        for _ in 0..count {
            let mut request = InFlightRequest { due_ns: now_ns, sent_ns: now_ns };
            if let Some(reserved) = self.reserved_request.take() {
                request = reserved;
            } else if shared.open_loop {
                request.due_ns = self.slot.due_queue.borrow_mut().pop_front().unwrap_or(now_ns);
                self.record_send_time(request, shared);
            } else if let Some(first_due_ns) = self.resend_queue.pop_front() {
                request.due_ns = first_due_ns;
            }
            self.in_flight.push_back(request);
        }
    }

    fn record_send_time(&mut self, request: InFlightRequest, shared: &Shared) {
        self.has_started |= request.sent_ns >= shared.count_from_ns.get();
        // How late it was sent is told by the first time.
        let resend_count = self.slot.resend_count.get();
        if resend_count > 0 {
            self.slot.resend_count.set(resend_count - 1);
            return;
        }
        if shared.open_loop && request.due_ns >= shared.count_from_ns.get() {
            shared.counters.record_schedule_error(request, request.due_ns >= self.ready_since_ns);
        }
    }

    /// Judges what came; whether the connection ends here.
    #[inline]
    fn receive(&mut self, bytes: &[u8], shared: &Shared) -> Result<bool, ConnectionError> {
        self.now_ns = shared.now_ns();
        shared.counters.add_received_bytes(bytes.len(), self.now_ns);
        let mut rest = bytes;
        loop {
            if self.in_flight.is_empty() {
                return Err(excess_data_error(bytes.len()));
            }
            let sequence = self.sequence - self.in_flight.len() as u64;
            let check = self.decoder.receive(&shared.exchange, self.index, sequence, &mut rest)?;
            let Some(check) = check else { return Ok(false) };
            if self.in_flight.len() == 1 && !rest.is_empty() {
                return Err(excess_data_error(bytes.len()));
            }
            self.record_reply(&check, shared);
            if self.decoder.closes_connection() || !shared.keep_alive {
                return Ok(true);
            }
            if rest.is_empty() {
                return Ok(false);
            }
        }
    }

    /// The same of what TLS has decrypted.
    #[inline(never)]
    fn receive_plaintext(&mut self, plaintext: Vec<u8>, shared: &Shared) -> Result<bool, ConnectionError> {
        let is_closing = self.receive(&plaintext, shared);
        if let ConnectionState::Open(stream) = &self.state {
            stream.recycle(plaintext);
        }
        is_closing
    }

    /// The oldest request in flight has its reply.
    #[inline(always)]
    fn record_reply(&mut self, check: &ReplyCheck, shared: &Shared) {
        let now_ns = self.now_ns;
        if self.in_flight.len() == shared.max_in_flight {
            self.ready_since_ns = now_ns;
        }
        let Some(request) = self.in_flight.pop_front() else { return };
        self.last_reply_ns = now_ns;
        match self.in_flight.front() {
            None => self.slot.set_idle(),
            Some(next) => self.slot.set_oldest_sent(next.sent_ns),
        }
        self.consecutive_failures = 0;
        if !shared.think_time.is_zero() {
            self.think = Some(sleep(shared.think_time));
        }
        match check {
            ReplyCheck::Valid => {
                if request.due_ns >= shared.count_from_ns.get() {
                    self.answered += 1;
                    shared.counters.record_reply(request, now_ns);
                }
            }
            ReplyCheck::Invalid(error) => shared.counters.record_error(error.kind, 1, || error.text.clone()),
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

fn is_sleep_elapsed(sleep: &mut Sleep, context: &mut Context<'_>) -> bool {
    Pin::new(sleep).poll(context).is_ready()
}

#[cold]
fn excess_data_error(bytes: usize) -> ConnectionError {
    let text = format!("more came than was asked for, within a piece of {bytes} bytes");
    ConnectionError { kind: ErrorKind::ExcessData, text }
}

impl std::fmt::Debug for ConnectionState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Closed => "Closed",
            Self::Waiting(_) => "Waiting",
            Self::Connecting(_) => "Connecting",
            Self::Open(_) => "Open",
            Self::AwaitingEof(_) => "AwaitingEof",
            Self::Broken => "Broken",
        })
    }
}
