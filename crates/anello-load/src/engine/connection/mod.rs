//! One connection in a load run: sends requests, and verifies and times replies, until the measurement ends or the
//! connection fails.
//!
//! ```text
//!               request due                connected             last response received
//!    Closed ───────────────────► Connecting ──────► Open ──────────────────────────────────► AwaitingEof
//!      ▲  ▲                          │               │  ▲ requests out, replies in               │ EOF received
//!      │  └── Waiting ◄── failed, retried            │  └┘                                       │
//!      │                                             └──► Broken (not reconnected)               │
//!      └─────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The task is a hand-written future because every poll checks the due queue, the clock and the socket. The clock is
//! read once for each received chunk. That time is the completion time of all replies in the chunk and, in a closed
//! loop, the send time of the requests that follow.

mod state;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anello::time::{Sleep, sleep};

pub(crate) use self::state::{Connection, ConnectionState};
use crate::engine::shared::{InFlightRequest, Shared};
use crate::engine::slot::AbortReason;
use crate::model::errors::{ConnectionError, ErrorKind};
use crate::wire::stream::Received;

impl Connection {
    /// Runs the connection until the measurement ends. Returns the connection, with no request in flight.
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
        shared.set_ready(&self.slot.is_ready, false);
        self.now_ns = 0;
        loop {
            let is_finished = match self.state {
                ConnectionState::Open(_) => ready!(self.poll_open(shared, context)),
                _ => ready!(self.poll_disconnected(shared, context)),
            };
            if is_finished {
                return Poll::Ready(());
            }
        }
    }

    /// Sends the requests that are due and receives replies, until the connection is no longer open. Returns `true` if
    /// it has completed the measurement.
    #[inline]
    fn poll_open(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<bool> {
        loop {
            if let Err(error) = self.send(shared, context) {
                self.handle_close(Some(ConnectionError::from_exchange_error(&error)), shared);
                return Poll::Ready(false);
            }
            if self.in_flight.is_empty() && !self.has_unanswered() && self.is_finished(shared) {
                return Poll::Ready(true);
            }
            let ConnectionState::Open(stream) = &mut self.state else {
                return Poll::Ready(false);
            };
            let Poll::Ready(received) = stream.poll_receive(context) else {
                // In a closed loop, a connection with requests in flight is woken only by its socket.
                if shared.open_loop || self.in_flight.is_empty() {
                    self.slot.register_waker(context.waker());
                    let is_ready = shared.open_loop && self.in_flight.len() < shared.max_in_flight;
                    shared
                        .set_ready(&self.slot.is_ready, is_ready && self.slot.due_queue.borrow().is_empty());
                }
                return Poll::Pending;
            };
            let outcome = match received {
                Ok(Some(Received::Chunk(chunk))) => self.receive(&chunk, shared),
                Ok(Some(Received::Plaintext(plaintext))) => self.receive_plaintext(plaintext, shared),
                Ok(None) => {
                    self.handle_close(None, shared);
                    return Poll::Ready(false);
                }
                Err(error) => {
                    self.handle_close(Some(ConnectionError::from_exchange_error(&error)), shared);
                    return Poll::Ready(false);
                }
            };
            match outcome {
                Ok(false) => continue,
                Ok(true) => self.begin_close(shared),
                Err(error) => self.fail_connection(error, shared),
            }
            return Poll::Ready(false);
        }
    }

    /// Polls a connection that is not open. Returns `true` if it has completed the measurement.
    #[cold]
    fn poll_disconnected(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<bool> {
        self.slot.register_waker(context.waker());
        match &mut self.state {
            ConnectionState::Broken => return Poll::Ready(true),
            ConnectionState::Closed => return self.poll_closed(shared, context),
            ConnectionState::Waiting(delay) => {
                if !is_sleep_elapsed(delay, context) && !self.is_finished(shared) {
                    return Poll::Pending;
                }
                self.state = ConnectionState::Closed;
                // A delay due to the ramp is caused by the load generator itself and does not change `ready_since_ns`.
                if self.consecutive_failures > 0 {
                    self.ready_since_ns = self.now(shared);
                }
            }
            ConnectionState::Connecting(connecting) => match connecting.as_mut().poll(context) {
                Poll::Ready(Ok(stream)) => {
                    self.open(stream, shared);
                    self.ready_since_ns = self.now(shared);
                }
                Poll::Ready(Err(error)) => self.fail_connection(error, shared),
                Poll::Pending if self.slot.abort_reason.get().is_some() => {
                    self.fail(
                        ErrorKind::Timeout,
                        "timed out while opening a connection for a request",
                        shared,
                    );
                }
                // No request is waiting for this connection.
                Poll::Pending
                    if (!self.has_unanswered() || shared.stopping.get()) && self.is_finished(shared) =>
                {
                    self.state = ConnectionState::Closed;
                }
                Poll::Pending => return Poll::Pending,
            },
            ConnectionState::AwaitingEof(stream) => match ready!(stream.poll_eof(context)) {
                Ok(Some(bytes)) => {
                    let text = format!("server sent at least {bytes} bytes after the last response");
                    self.fail(ErrorKind::ExcessData, text, shared);
                }
                _ if self.slot.abort_reason.get() == Some(AbortReason::TimedOut) => {
                    self.fail(
                        ErrorKind::Timeout,
                        "server announced that it would close the connection but kept it open",
                        shared,
                    );
                }
                Ok(None) | Err(_) => self.close(shared),
            },
            ConnectionState::Open(_) => {}
        }
        Poll::Ready(false)
    }

    /// Starts reopening a closed connection if a reconnect is due. Returns `true` if its measurement is complete.
    fn poll_closed(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<bool> {
        if self.is_finished(shared) && (!self.has_unanswered() || shared.stopping.get()) {
            let abandoned = shared.counted(self.resend_queue.drain(..));
            shared.counters.update(|counts| counts.abandoned += abandoned);
            return Poll::Ready(true);
        }
        let delay_ns = self.slot.open_at_ns.get().saturating_sub(self.now(shared));
        self.state = if delay_ns > 0 {
            ConnectionState::Waiting(sleep(Duration::from_nanos(delay_ns)))
        } else {
            ready!(self.poll_reserve_request(shared, context));
            ConnectionState::Connecting(Box::pin(shared.connect(self.index, shared.load.connect_timeout)))
        };
        Poll::Ready(false)
    }

    /// If each request uses its own connection, waits until the request for this connection is due.
    fn poll_reserve_request(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<()> {
        if shared.keep_alive || self.reserved_request.is_some() {
            return Poll::Ready(());
        }
        let now_ns = self.now(shared);
        let due_ns = match shared.open_loop {
            true => {
                self.pacer.dispatch_to(&self.slot, 1, now_ns, shared);
                self.slot.due_queue.borrow_mut().pop_front()
            }
            false => self.is_think_time_elapsed(context).then_some(now_ns),
        };
        let Some(due_ns) = due_ns else {
            shared.set_ready(&self.slot.is_ready, shared.open_loop);
            return Poll::Pending;
        };
        if !shared.open_loop {
            shared.take_request(due_ns);
        }
        let request = InFlightRequest { due_ns, sent_ns: now_ns };
        self.record_send_time(request, shared);
        self.reserved_request = Some(request);
        self.slot.set_oldest_sent(now_ns);
        Poll::Ready(())
    }

    /// Closed loop: returns `true` if the think time before the next request has elapsed.
    fn is_think_time_elapsed(&mut self, context: &mut Context<'_>) -> bool {
        self.think.take_if(|think| is_sleep_elapsed(think, context));
        self.think.is_none()
    }

    /// Returns `true` if no more requests will be started in this measurement.
    #[inline]
    fn is_finished(&mut self, shared: &Shared) -> bool {
        if shared.open_loop {
            return shared.schedule_finished.get() && self.slot.due_queue.borrow().is_empty();
        }
        if shared.remaining_requests.get() == 0 {
            return true;
        }
        let deadline_ns = shared.deadline_ns.get();
        // Every connection sends at least one request, unless it fails to open or is to open after the deadline.
        self.now(shared) >= deadline_ns
            && (self.has_started
                || self.consecutive_failures > 0
                || self.slot.open_at_ns.get() > deadline_ns
                || shared.stopping.get())
    }

    /// Sends the requests that are due, up to the limit of requests in flight.
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
        let bytes = shared.exchange.requests(self.request_id(self.sequence), count);
        let byte_count = bytes.len();
        // Read the clock before sending: on epoll, the data is sent in this call, and other threads may run before it
        // returns.
        self.now(shared);
        let ConnectionState::Open(stream) = &mut self.state else { return Ok(()) };
        let Poll::Ready(result) = stream.poll_send(bytes, context) else { return Ok(()) };
        result?;
        self.record_sent(count, byte_count, shared);
        Ok(())
    }

    /// Returns the number of requests that are due, at most `capacity`.
    #[inline]
    fn due_count(&mut self, capacity: usize, shared: &Shared, context: &mut Context<'_>) -> usize {
        if !shared.keep_alive {
            return usize::from(self.reserved_request.is_some());
        }
        if shared.open_loop {
            let now_ns = self.now(shared);
            self.pacer.dispatch_to(&self.slot, capacity, now_ns, shared);
            return capacity.min(self.slot.due_queue.borrow().len());
        }
        if (self.think.is_some() && !self.is_think_time_elapsed(context)) || self.is_finished(shared) {
            // No new requests are sent, but retried requests still need a reply.
            return capacity.min(self.resend_queue.len());
        }
        let remaining = usize::try_from(shared.remaining_requests.get()).unwrap_or(usize::MAX);
        capacity.min(remaining.saturating_add(self.resend_queue.len()))
    }

    #[inline]
    fn record_sent(&mut self, count: usize, bytes: usize, shared: &Shared) {
        let now_ns = self.now(shared);
        self.has_started |= shared.counts(now_ns);
        self.sequence += count as u64;
        shared.counters.update(|counts| counts.sent_bytes += bytes as u64);
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
            } else {
                shared.take_request(now_ns);
            }
            self.in_flight.push_back(request);
        }
    }

    fn record_send_time(&mut self, request: InFlightRequest, shared: &Shared) {
        self.has_started |= shared.counts(request.sent_ns);
        // The schedule error of a retried request was recorded when it was first sent.
        let resend_count = self.slot.resend_count.get();
        if resend_count > 0 {
            self.slot.resend_count.set(resend_count - 1);
            return;
        }
        if shared.open_loop && shared.counts(request.due_ns) {
            shared.counters.record_schedule_error(request, request.due_ns >= self.ready_since_ns);
        }
    }

    /// Decodes and checks received bytes. Returns `true` if the connection must be closed.
    #[inline]
    fn receive(&mut self, bytes: &[u8], shared: &Shared) -> Result<bool, ConnectionError> {
        self.now_ns = shared.now_ns();
        shared.counters.add_received_bytes(bytes.len(), self.now_ns);
        let mut rest = bytes;
        loop {
            if self.in_flight.is_empty() {
                return Err(excess_data_error(bytes.len()));
            }
            let id = self.request_id(self.oldest_sequence());
            let check = self.decoder.receive(&shared.exchange, id, &mut rest)?;
            let Some(check) = check else { return Ok(false) };
            if self.in_flight.len() == 1 && !rest.is_empty() {
                return Err(excess_data_error(bytes.len()));
            }
            self.record_reply(check, shared);
            if self.decoder.closes_connection() || !shared.keep_alive {
                return Ok(true);
            }
            if rest.is_empty() {
                return Ok(false);
            }
        }
    }

    /// Not inlined, to keep the code for plaintext connections small.
    #[inline(never)]
    fn receive_plaintext(&mut self, plaintext: Vec<u8>, shared: &Shared) -> Result<bool, ConnectionError> {
        let is_closing = self.receive(&plaintext, shared);
        if let ConnectionState::Open(stream) = &self.state {
            stream.recycle(plaintext);
        }
        is_closing
    }
}

fn is_sleep_elapsed(sleep: &mut Sleep, context: &mut Context<'_>) -> bool {
    Pin::new(sleep).poll(context).is_ready()
}

#[cold]
fn excess_data_error(bytes: usize) -> ConnectionError {
    let text = format!("unexpected data after the last reply, in a chunk of {bytes} bytes");
    ConnectionError::new(ErrorKind::ExcessData, text)
}
