//! Checks of all tables, queues and counters, in debug builds. `turn` calls them, so that every test does.

use super::Proactor;
use super::stream::{Connect, HangupPoll, Listener, Receiving, Sending, Source, SourcePoll, Stream};
use crate::driver::errors::impossible::is_check_due;
use crate::driver::file::operation::Transfer;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{CompletionKernel, InFlight, Socket};
use crate::driver::memory::buffer::Pools;
use crate::driver::memory::key::Key;
use crate::driver::source::interest::Direction;
use crate::driver::stream::direct_read::ReadState;

/// An operation that is in flight according to a table.
#[derive(Clone, Copy, Debug)]
struct Expected {
    token: Token,
    /// Address of the bytes of a send.
    data: Option<*const u8>,
    /// False if the operation may have ended: an inline send posts no completion, and the completion of any operation can
    /// have been dropped.
    is_certain: bool,
}

impl Expected {
    fn new(token: Token, is_certain: bool) -> Self {
        Self { token, data: None, is_certain }
    }
}

impl<K: CompletionKernel> Proactor<K> {
    pub(super) fn check_sometimes(&self) {
        let entries = self.streams.len()
            + self.listeners.len()
            + self.sources.len()
            + self.zero_copy_sends.len()
            + self.files.len();
        if is_check_due(entries, self.metrics.turns, K::IS_SIMULATED) {
            self.check();
        }
    }

    /// Checks the state machine as a whole.
    ///
    /// # Panics
    /// Panics if an invariant is broken.
    pub fn check(&self) {
        self.streams.check();
        self.listeners.check();
        self.sources.check();
        self.zero_copy_sends.check();
        self.files.check();
        let mut received_chunks = 0;
        for (key, stream) in self.streams.iter() {
            self.check_stream(key, stream);
            received_chunks += stream.received.count() as u64;
        }
        self.listeners.values().for_each(check_listener);
        self.sources.values().for_each(check_source);
        self.check_zero_copy_sends();
        self.check_files();
        self.check_unconfirmed_sends();
        let leased = Pools::leased(&self.pools, 2);
        assert!(leased >= received_chunks, "invariant 5: {received_chunks} of {leased} chunks are queued");
        let in_flight = self.kernel.in_flight();
        if let Some(ring) = &self.pools.ring
            && is_check_due(ring.len() as usize, self.metrics.turns, K::IS_SIMULATED)
        {
            ring.check(in_flight.as_ref().and_then(|_| self.kernel.receive_ring_head()));
        }
        if let Some(in_flight) = in_flight {
            self.check_in_flight(&in_flight);
        }
    }

    fn check_stream(&self, key: Key, stream: &Stream<Socket<K>>) {
        let has_ended = stream.receive_error.is_some() || stream.reads.state != ReadState::Open;
        stream.sends.check_invariants();
        assert!(
            stream.sending != Sending::Idle || stream.sends.queue.is_empty(),
            "invariant 3: bytes are queued, but no send is in flight"
        );
        if matches!(stream.sending, Sending::Inline(_) | Sending::Async | Sending::ZeroCopy(_)) {
            assert!(
                !stream.sends.queue.is_empty(),
                "invariant 3: the front of the send queue was removed in flight"
            );
        }
        match stream.receiving {
            Receiving::Ring => {
                assert!(!has_ended, "invariant 4: a receive is armed after an error or EOF");
                assert!(!stream.direct, "invariant 4: a receive into the ring is armed on a direct stream");
            }
            Receiving::Polling => {
                assert!(stream.direct, "invariant 4: a stream that uses the ring is polled")
            }
            Receiving::Idle | Receiving::Cancelling(_) | Receiving::InDoubt(_) => {}
        }
        if stream.released {
            let has_unsent = !stream.sends.queue.is_empty() && stream.sends.error.is_none();
            assert!(
                !stream.is_idle() || has_unsent,
                "invariant 2: a released stream without operations is not removed"
            );
            assert!(stream.received.is_empty(), "invariant 5: a released stream keeps received chunks");
        }
        if let Sending::ZeroCopy(send_key) = stream.sending {
            let send = self.zero_copy_sends.get(send_key);
            assert!(
                send.is_some_and(|send| send.stream == key && send.memory.is_none()),
                "invariant 3: the zero-copy send of a stream is not in its table"
            );
        }
        if let Sending::Inline(index) = stream.sending {
            let listed = self.unconfirmed_sends.iter().filter(|send| **send == (key.index, index)).count();
            assert_eq!(listed, 1, "invariant 3: an inline send is never confirmed");
        }
    }

    fn check_zero_copy_sends(&self) {
        for (send_key, send) in self.zero_copy_sends.iter() {
            if send.memory.is_none() {
                let stream = self.streams.get(send.stream);
                assert!(
                    stream.is_some_and(|stream| stream.sending == Sending::ZeroCopy(send_key)),
                    "invariant 3: the memory of a zero-copy send belongs to no stream"
                );
            }
        }
    }

    fn check_files(&self) {
        let is_incomplete = |key: &Key| self.files.get(*key).is_some_and(|file| file.result.is_none());
        assert!(self.queued_writes.iter().all(is_incomplete), "invariant 8: a queued write has ended");
        let mut queued: Vec<_> = self.queued_writes.iter().collect();
        queued.sort_unstable();
        assert!(queued.windows(2).all(|pair| pair[0] != pair[1]), "invariant 8: a write is queued twice");
        let mut incomplete_writes = 0;
        for file in self.files.values() {
            assert!(
                file.result.is_none() || !(file.released || file.in_doubt),
                "invariant 2: a file operation that has ended is released or in doubt, but not removed"
            );
            let is_write = file.transfer() == Transfer::BufferedWrite;
            incomplete_writes += usize::from(is_write && file.result.is_none() && !file.in_doubt);
        }
        assert_eq!(
            self.incomplete_writes, incomplete_writes,
            "invariant 8: the number of incomplete writes is wrong"
        );
    }

    fn check_unconfirmed_sends(&self) {
        assert!(
            self.unconfirmed_sends
                .is_sorted_by(|(_, index), (_, next)| next.wrapping_sub(*index).cast_signed() > 0),
            "invariant 6: sends are not in the order of their submission"
        );
    }

    /// Compares the tables with the operations of a simulated kernel.
    fn check_in_flight(&self, in_flight: &InFlight) {
        let mut expected = self.expected();
        expected.sort_unstable_by_key(|expected| expected.token.0);
        let mut tokens: Vec<_> = in_flight.operations.iter().map(|(token, _)| token.0).collect();
        tokens.sort_unstable();
        assert!(
            tokens.windows(2).all(|pair| pair[0] != pair[1]),
            "invariant 8: two operations with the same token are in flight"
        );
        for &(token, data) in &in_flight.operations {
            let Ok(index) = expected.binary_search_by_key(&token.0, |expected| expected.token.0) else {
                panic!("invariant 2: {:?} of {:?} is in flight, but in no table", token.kind(), token.key());
            };
            let expected = expected[index];
            assert!(
                data == expected.data || expected.data.is_none(),
                "invariant 1: the bytes of a send have moved while it was in flight"
            );
        }
        if in_flight.has_dropped {
            return;
        }
        for expected in expected.iter().filter(|expected| expected.is_certain) {
            let token = expected.token;
            assert!(
                tokens.binary_search(&token.0).is_ok() || in_flight.completions.contains(&token),
                "invariant 8: {:?} of {:?} has ended without a terminal completion",
                token.kind(),
                token.key()
            );
        }
    }

    /// Returns the operations that are in flight according to the tables.
    fn expected(&self) -> Vec<Expected> {
        let mut expected = Vec::new();
        for (key, stream) in self.streams.iter() {
            let operations = self.expected_of_stream(key, stream);
            operations.into_iter().for_each(|operation| expected.extend(operation));
        }
        for (key, listener) in self.listeners.iter() {
            if listener.armed {
                expected.push(Expected::new(Token::new(Kind::Accept, key), !listener.in_doubt));
            }
        }
        for (key, source) in self.sources.iter() {
            for direction in Direction::ALL {
                let poll = source.polls[direction as usize];
                if poll != SourcePoll::Idle {
                    let token = Token::source(key, direction);
                    expected.push(Expected::new(token, poll != SourcePoll::InDoubt));
                }
            }
        }
        expected
    }

    fn expected_of_stream(&self, key: Key, stream: &Stream<Socket<K>>) -> [Option<Expected>; 4] {
        let of = |kind, is_certain| Some(Expected::new(Token::new(kind, key), is_certain));
        let receiving = match stream.receiving {
            Receiving::Idle => None,
            Receiving::Ring => of(Kind::Receive, true),
            Receiving::Polling => of(Kind::Readable, true),
            Receiving::Cancelling(kind) => of(kind, true),
            Receiving::InDoubt(kind) => of(kind, false),
        };
        let hangup_poll = match stream.hangup_poll {
            HangupPoll::Idle | HangupPoll::Fired => None,
            HangupPoll::Armed | HangupPoll::Cancelling => of(Kind::Hangup, true),
            HangupPoll::InDoubt => of(Kind::Hangup, false),
        };
        // The completion of an operation of a failed stream may have been dropped.
        let is_certain = stream.sends.error.is_none();
        let connect = if stream.connect == Connect::InFlight { of(Kind::Connect, is_certain) } else { None };
        let sending = match stream.sending {
            Sending::Idle => None,
            Sending::Inline(_) => of(Kind::Send, false),
            Sending::Async => of(Kind::Send, is_certain),
            Sending::ZeroCopy(send_key) => {
                Some(Expected::new(Token::new(Kind::SendZeroCopy, send_key), is_certain))
            }
            Sending::Polling => of(Kind::Writable, true),
            Sending::PollInDoubt => of(Kind::Writable, false),
        };
        let data = stream.sends.queue.pending().map(<[u8]>::as_ptr);
        let is_poll = matches!(stream.sending, Sending::Polling | Sending::PollInDoubt);
        let sending = sending.map(|expected| Expected { data: data.filter(|_| !is_poll), ..expected });
        [receiving, hangup_poll, connect, sending]
    }
}

fn check_listener<S>(listener: &Listener<S>) {
    assert!(
        listener.armed || !(listener.cancelling || listener.in_doubt),
        "invariant 8: an accept that is not in flight is being cancelled"
    );
    assert!(listener.armed || !listener.released, "invariant 2: a released listener is not removed");
    assert!(
        !listener.released || listener.queue.is_empty(),
        "invariant 2: a released listener keeps accepted connections"
    );
}

fn check_source<S>(source: &Source<S>) {
    source.readiness.check();
    assert!(!source.released || !source.is_idle(), "invariant 2: a released source is not removed");
    for direction in Direction::ALL {
        assert!(
            source.polls[direction as usize] != SourcePoll::Idle || !source.readiness.is_waiting(direction),
            "invariant 8: a task waits for a poll that is not in flight"
        );
    }
}
