//! State of one connection, with functions that open it, record replies, close it (after its last response, on EOF or
//! after an error), and handle its unanswered requests.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use anello::time::{Sleep, sleep};

use crate::engine::pacer::SharedPacer;
use crate::engine::shared::{InFlightRequest, Shared};
use crate::engine::slot::{AbortReason, ConnectionSlot};
use crate::model::errors::{ConnectionError, ErrorKind};
use crate::model::tls::HandshakeSummary;
use crate::wire::exchange::ReplyDecoder;
use crate::wire::message::{ReplyCheck, RequestId};
use crate::wire::stream::Stream;

/// Initial and maximum delay between attempts to open a connection.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(10);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Maximum age of a request that is sent again if the server closes the connection. The server is assumed to have
/// received older requests without answering them.
const RETRY_WINDOW: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Connection {
    /// Index among all connections in the load.
    pub index: u64,
    /// Number of the next request.
    pub sequence: u64,
    /// Requests answered in this measurement.
    pub answered: u64,
    pub state: ConnectionState,
    pub decoder: ReplyDecoder,
    /// Oldest first.
    pub in_flight: VecDeque<InFlightRequest>,
    /// Closed loop: first send times of requests that are sent again because the connection closed before their reply.
    pub resend_queue: VecDeque<u64>,
    pub slot: Rc<ConnectionSlot>,
    /// Open loop: the schedule of the thread.
    pub pacer: Rc<SharedPacer>,
    /// The request for which the connection is opened, if each request has its own connection.
    pub reserved_request: Option<InFlightRequest>,
    /// Closed loop: think time before the next request.
    pub think: Option<Sleep>,
    /// Set once a request that counts towards this measurement has been sent.
    pub has_started: bool,
    /// Time from which requests could be sent immediately.
    pub ready_since_ns: u64,
    /// Time of the last clock read; 0 if the clock has not been read in this poll.
    pub now_ns: u64,
    /// Failures since the last reply: failed attempts to connect, and connections that closed without a reply.
    pub consecutive_failures: u32,
    pub was_opened: bool,
    /// Time at which the connection was last opened, and number of the first request since then.
    pub opened_ns: u64,
    pub first_sequence: u64,
    pub last_reply_ns: u64,
}

#[derive(Default)]
pub enum ConnectionState {
    #[default]
    Closed,
    Waiting(Sleep),
    Connecting(Pin<Box<dyn Future<Output = Result<Stream, ConnectionError>>>>),
    Open(Stream),
    AwaitingEof(Stream),
    Broken,
}

impl Connection {
    pub fn open(&mut self, stream: Stream, shared: &Shared) {
        shared.counters.open.set(shared.counters.open.get() + 1);
        if let Some(summary) = stream.handshake_summary() {
            HandshakeSummary::add(&mut shared.handshakes.borrow_mut(), summary);
        }
        if self.was_opened {
            shared.reopened.set(shared.reopened.get() + 1);
        }
        self.was_opened = true;
        (self.opened_ns, self.first_sequence) = (shared.now_ns(), self.sequence);
        self.slot.set_open(stream.transport().shutdown_handle());
        self.state = ConnectionState::Open(stream);
    }

    pub fn mark_broken(&mut self, shared: &Shared) {
        self.state = ConnectionState::Broken;
        self.slot.broken.set(true);
        self.slot.set_closed();
        self.slot.clear_queue(shared);
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, ConnectionState::Open(_))
    }

    /// Returns `true` if a request is reserved for this connection or is waiting to be sent again.
    #[inline]
    pub fn has_unanswered(&self) -> bool {
        self.reserved_request.is_some() || !self.resend_queue.is_empty()
    }

    /// Returns the number of the oldest request in flight, or of the next request if there is none.
    #[inline]
    pub fn oldest_sequence(&self) -> u64 {
        self.sequence - self.in_flight.len() as u64
    }

    #[inline]
    pub fn request_id(&self, sequence: u64) -> RequestId {
        RequestId { connection: self.index, sequence }
    }

    /// Records the reply to the oldest request in flight.
    #[inline(always)]
    pub fn record_reply(&mut self, check: ReplyCheck, shared: &Shared) {
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
                if shared.counts(request.due_ns) {
                    self.answered += 1;
                    shared.counters.record_reply(request, now_ns);
                }
            }
            ReplyCheck::Invalid(error) => shared.counters.record_error(1, *error),
        }
    }

    /// Returns the current time. The clock is read at most once per poll, plus once for every received chunk.
    #[inline]
    pub fn now(&mut self, shared: &Shared) -> u64 {
        if self.now_ns == 0 {
            self.now_ns = shared.now_ns();
        }
        self.now_ns
    }

    /// Starts to close the connection after its last response.
    pub(super) fn begin_close(&mut self, shared: &Shared) {
        self.requeue_in_flight(shared);
        match std::mem::replace(&mut self.state, ConnectionState::Closed) {
            // The side that closes first keeps the port in TIME_WAIT for a minute. The server has announced that it
            // will close the connection, so wait until it does.
            ConnectionState::Open(stream) if self.decoder.closes_connection() => {
                self.state = ConnectionState::AwaitingEof(stream);
                self.slot.set_oldest_sent(self.now_ns);
            }
            state => {
                self.state = state;
                self.close(shared);
            }
        }
    }

    /// Queues the requests in flight to be sent again on another connection.
    fn requeue_in_flight(&mut self, shared: &Shared) {
        self.sequence -= self.in_flight.len() as u64;
        while let Some(request) = self.in_flight.pop_back() {
            if !shared.open_loop {
                self.resend_queue.push_front(request.due_ns);
                continue;
            }
            if shared.queues_closed.get() {
                shared.counters.add_unsent(u64::from(shared.counts(request.due_ns)));
            } else {
                self.slot.due_queue.borrow_mut().push_front(request.due_ns);
                self.slot.resend_count.set(self.slot.resend_count.get() + 1);
            }
        }
        self.slot.set_idle();
    }

    /// Handles the end of an open connection: EOF, or the error with which it ended. A server that closes a connection
    /// with unread data resets it.
    #[cold]
    pub(super) fn handle_close(&mut self, error: Option<ConnectionError>, shared: &Shared) {
        self.now_ns = shared.now_ns();
        let id = self.request_id(self.oldest_sequence());
        let is_aborted = self.slot.abort_reason.get().is_some();
        let is_truncated = matches!(&self.state, ConnectionState::Open(stream) if stream.is_truncated());
        if !is_aborted
            && !is_truncated
            && error.is_none()
            && !self.in_flight.is_empty()
            && let Some(check) = self.decoder.finish_at_eof(&shared.exchange, id)
        {
            shared.counters.add_received_bytes(0, self.now_ns);
            self.record_reply(check, shared);
            self.requeue_in_flight(shared);
            self.close(shared);
            return;
        }
        let is_closed = error.as_ref().is_none_or(|error| error.kind == ErrorKind::Reset);
        if is_closed && !is_aborted && shared.server_may_close && self.reserved_request.is_none() {
            let has_answered = self.oldest_sequence() > self.first_sequence;
            if self.in_flight.is_empty() {
                self.close(shared);
                // Closing an idle connection is not a failure, so no delay is needed if it was open for a while.
                let open_ns = self.now_ns.saturating_sub(self.opened_ns);
                if !has_answered && open_ns < MAX_RECONNECT_DELAY.as_nanos() as u64 {
                    self.schedule_reconnect();
                }
                return;
            }
            // The server closed the idle connection while the next request was in flight, so the request is sent again.
            // This cannot repeat forever, because each connection must receive a reply before its requests are resent.
            let sent_ns = self.in_flight.front().map_or(0, |request| request.sent_ns);
            let idle_ns = self.now_ns.saturating_sub(sent_ns.max(self.last_reply_ns));
            let is_in_retry_window = idle_ns < RETRY_WINDOW.as_nanos() as u64;
            if has_answered && is_in_retry_window && self.decoder.progress(&shared.exchange).is_none() {
                self.requeue_in_flight(shared);
                self.close(shared);
                return;
            }
        }
        if let Some(error) = error {
            self.fail_connection(error, shared);
            return;
        }
        let suffix = if is_truncated { ", without a TLS close_notify" } else { "" };
        match self.decoder.progress(&shared.exchange) {
            None => self.fail(ErrorKind::ClosedEarly, "server closed the connection without a reply", shared),
            Some(progress) => {
                let text = format!("server closed the connection after {progress}{suffix}");
                self.fail(ErrorKind::TruncatedReply, text, shared);
            }
        }
    }

    /// Closes the connection. It can be opened again.
    pub(super) fn close(&mut self, shared: &Shared) {
        self.state = ConnectionState::Closed;
        // The next connection starts with a new decoder. Dropping the old decoder also stops any recording of a body.
        self.decoder = ReplyDecoder::default();
        // Only connections with a shutdown handle have been counted as open.
        if self.slot.is_open() {
            shared.counters.open.set(shared.counters.open.get() - 1);
        }
        self.slot.set_closed();
        // Requests that became due before now were delayed by the connection, not by the load generator.
        self.ready_since_ns = self.now(shared);
    }

    /// Delays the next attempt to open the connection, because the last one failed.
    fn schedule_reconnect(&mut self) {
        let delay = MIN_RECONNECT_DELAY
            .saturating_mul(1 << self.consecutive_failures.min(10))
            .min(MAX_RECONNECT_DELAY);
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        self.state = ConnectionState::Waiting(sleep(delay));
    }

    #[cold]
    pub(super) fn fail(&mut self, kind: ErrorKind, text: impl Into<String>, shared: &Shared) {
        self.fail_connection(ConnectionError::new(kind, text), shared);
    }

    /// Records the error for every lost request and closes the connection.
    #[cold]
    pub(super) fn fail_connection(&mut self, error: ConnectionError, shared: &Shared) {
        let now_ns = self.now(shared);
        let counters = &shared.counters;
        let requests = self.in_flight.drain(..).chain(self.reserved_request.take());
        let lost_ns: Vec<u64> =
            requests.map(|request| request.due_ns).chain(self.resend_queue.drain(..)).collect();
        let (lost, kind) = ((lost_ns.len() as u64).max(1), error.kind);
        match self.slot.abort_reason.get() {
            Some(AbortReason::Interrupted) => {
                counters.update(|counts| counts.abandoned += shared.counted(lost_ns))
            }
            Some(AbortReason::TimedOut) => {
                let text = format!("connection {}: timed out waiting for a reply", self.index);
                counters.record_error(lost, ConnectionError::new(ErrorKind::Timeout, text));
            }
            None => counters.record_error(lost, error),
        }
        counters.last_ns.set(now_ns);
        // A server that hangs would otherwise keep the sockets of its failed connections busy.
        if let ConnectionState::Open(stream) = std::mem::replace(&mut self.state, ConnectionState::Closed) {
            stream.abort();
        }
        self.close(shared);
        if !shared.reconnect {
            self.mark_broken(shared);
        } else if self.consecutive_failures > 0 || kind == ErrorKind::Refused {
            self.schedule_reconnect();
        } else {
            self.consecutive_failures = 1;
        }
    }
}
