//! How a connection ends: in good order, by the server, or broken; and what becomes of its requests.

use std::time::Duration;

use anello::time::sleep;

use super::{Connection, Link, Next};
use crate::connection_slot::AbortReason;
use crate::errors::{ErrorKind, Fault};
use crate::shared::Shared;

/// How long to wait before a connection that could not be opened is tried again: at first, and at most.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// A server that closes this long after a request was sent has had it, and has not answered.
const JUST_NOW: Duration = Duration::from_secs(1);

impl Connection {
    /// After a response that was the last of the connection.
    pub(super) fn end(&mut self, shared: &Shared) -> Next {
        self.take_back(shared);
        match std::mem::replace(&mut self.link, Link::Closed) {
            // The port stays taken for a minute with the one who closes first. Let that be the server, who said so.
            Link::Open(stream) if self.wire.closes() => {
                self.link = Link::Ending(stream);
                self.slot.set_oldest_sent(self.now_ns);
            }
            Link::Open(stream) => {
                stream.abort();
                self.close(shared);
            }
            other => self.link = other,
        }
        Next::Changed
    }

    /// Requests that were sent in vain are not lost: they are sent again, on another connection.
    fn take_back(&mut self, shared: &Shared) {
        self.sequence -= self.in_flight.len() as u64;
        while let Some(flight) = self.in_flight.pop_back() {
            if !shared.open_loop {
                self.again.push_front(flight.due_ns);
                continue;
            }
            if shared.queues_closed.get() {
                shared.counters.add_unsent(u64::from(flight.due_ns >= shared.count_from_ns.get()));
            } else {
                self.slot.due_queue.borrow_mut().push_front(flight.due_ns);
                self.slot.resend_count.set(self.slot.resend_count.get() + 1);
            }
        }
        self.slot.set_idle();
    }

    /// Whether a request was answered on the connection since it was opened.
    fn has_answered(&self) -> bool {
        self.sequence - self.in_flight.len() as u64 > self.first_sequence
    }

    /// The server has closed an open connection.
    pub(super) fn ended(&mut self, shared: &Shared) -> Next {
        self.now_ns = shared.now_ns();
        let sequence = self.sequence - self.in_flight.len() as u64;
        let abort_reason = self.slot.abort_reason().is_some();
        let is_truncated = matches!(&self.link, Link::Open(stream) if stream.is_truncated());
        if !abort_reason
            && !is_truncated
            && !self.in_flight.is_empty()
            && let Some(verdict) = self.wire.end(&shared.exchange, self.index, sequence)
        {
            shared.counters.add_received_bytes(0, self.now_ns);
            self.answered(&verdict, shared);
            self.take_back(shared);
            self.close(shared);
            return Next::Changed;
        }
        if !abort_reason && shared.server_may_close && self.held.is_none() {
            let answered = self.has_answered();
            if self.in_flight.is_empty() {
                self.close(shared);
                // One that is there for a while only to be closed unused is no trouble.
                let open_ns = self.now_ns.saturating_sub(self.opened_ns);
                if !answered && open_ns < PAUSE_LIMIT.as_nanos() as u64 {
                    self.pause();
                }
                return Next::Changed;
            }
            // Between requests, just when the next was under way: it is asked again. That happens once to a request,
            // since the next connection has to answer something first.
            let asked_ns = self.in_flight.front().map_or(0, |flight| flight.sent_ns).max(self.answered_ns);
            let is_just_now = self.now_ns.saturating_sub(asked_ns) < JUST_NOW.as_nanos() as u64;
            if answered && is_just_now && self.wire.progress(&shared.exchange).is_none() {
                self.take_back(shared);
                self.close(shared);
                return Next::Changed;
            }
        }
        let untold = if is_truncated { ", and without a close_notify of TLS" } else { "" };
        self.bury(
            match self.wire.progress(&shared.exchange) {
                None => Fault {
                    kind: ErrorKind::ClosedEarly,
                    text: "the server closed the connection instead of replying".to_owned(),
                },
                Some(progress) => Fault {
                    kind: ErrorKind::TruncatedReply,
                    text: format!("the server closed the connection after {progress}{untold}"),
                },
            },
            shared,
        )
    }

    /// Closes in good order.
    pub(super) fn close(&mut self, shared: &Shared) {
        self.leave(shared);
        self.link = Link::Closed;
        self.slot.set_closed();
        // What was due before could not be sent because of the connection, not because of the load.
        self.free_since_ns = self.now(shared);
    }

    /// Not opened again at once: it was in vain.
    fn pause(&mut self) {
        let pause = PAUSE.saturating_mul(1 << self.failures.min(10)).min(PAUSE_LIMIT);
        self.failures = self.failures.saturating_add(1);
        self.link = Link::Pausing(sleep(pause));
    }

    /// Closes the stream, if there is one, without sending what is left.
    fn leave(&mut self, shared: &Shared) {
        if let Link::Open(stream) | Link::Ending(stream) = std::mem::replace(&mut self.link, Link::Closed) {
            stream.abort();
        }
        // The next one begins anew; what this one has kept of a body goes.
        self.wire = shared.exchange.wire();
        // The gauge is told by who was open: all that ever had a shutdown handle.
        if self.slot.is_open() {
            shared.counters.open.set(shared.counters.open.get() - 1);
        }
    }

    /// Counts what broke the connection, for each request that is lost by it, and closes it.
    #[cold]
    pub(super) fn bury(&mut self, fault: Fault, shared: &Shared) -> Next {
        let now_ns = self.now(shared);
        let counters = &shared.counters;
        let lost = self.in_flight.len() + self.again.len() + usize::from(self.held.is_some());
        let lost = (lost as u64).max(1);
        match self.slot.abort_reason() {
            Some(AbortReason::Interrupted) => {
                let (from_ns, lost) = (shared.count_from_ns.get(), self.in_flight.iter().chain(&self.held));
                let lost = lost.map(|flight| flight.due_ns).chain(self.again.iter().copied());
                counters.add_abandoned(lost.filter(|&due_ns| due_ns >= from_ns).count() as u64);
            }
            Some(AbortReason::TimedOut) => counters.record_error(ErrorKind::Timeout, lost, || {
                format!("connection {} waited for its reply for too long", self.index)
            }),
            None => counters.record_error(fault.kind, lost, || fault.text),
        }
        counters.last_ns.set(now_ns);
        self.in_flight.clear();
        self.again.clear();
        self.held = None;
        self.close(shared);
        if !shared.reconnect {
            self.give_up(shared);
        } else {
            if self.failures > 0 || fault.kind == ErrorKind::Refused {
                self.pause();
            } else {
                self.failures = 1;
            }
        }
        Next::Changed
    }
}
