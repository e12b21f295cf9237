//! State of one connection, and the transitions shared by polling and closing.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use anello::time::{Sleep, sleep};

use crate::engine::shared::{InFlightRequest, Shared};
use crate::engine::slot::ConnectionSlot;
use crate::model::errors::ConnectionError;
use crate::model::tls::HandshakeSummary;
use crate::wire::exchange::ReplyDecoder;
use crate::wire::message::{ReplyCheck, RequestId};
use crate::wire::stream::Stream;

/// A connection in the load, open or closed.
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
    /// Set if the connection has ever been open.
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

    /// Marks the connection as broken. It is not opened again.
    pub fn mark_broken(&mut self, shared: &Shared) {
        self.state = ConnectionState::Broken;
        self.slot.broken.set(true);
        self.slot.set_closed();
        self.slot.clear_queue(shared);
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, ConnectionState::Open(_))
    }

    /// Returns `true` if a request has started but is neither in flight nor answered.
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

    /// Returns the current time. The clock is read at most once per poll, and once more for every received chunk.
    #[inline]
    pub fn now(&mut self, shared: &Shared) -> u64 {
        if self.now_ns == 0 {
            self.now_ns = shared.now_ns();
        }
        self.now_ns
    }
}
