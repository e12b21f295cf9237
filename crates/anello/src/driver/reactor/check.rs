//! Checks of all tables, queues and counters, in debug builds. `turn` calls them, so that every test does.

use super::accept::MAX_ACCEPT_BATCH;
use super::{Listener, Reactor, Stream};
use crate::driver::errors::impossible::is_check_due;
use crate::driver::kernel::{ReadinessKernel, Socket};
use crate::driver::memory::buffer::Pools;
use crate::driver::memory::key::Key;
use crate::driver::stream::direct_read::ReadState;

impl<K: ReadinessKernel> Reactor<K> {
    pub(super) fn check_sometimes(&self) {
        let entries = self.streams.len() + self.listeners.len() + self.sources.len();
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
        for (key, stream) in self.streams.iter() {
            self.check_stream(key, stream);
        }
        let is_stored =
            |key: &Key| self.streams.get(*key).is_some_and(|stream| stream.reads.state == ReadState::Stored);
        assert!(
            self.stored.keys().all(is_stored),
            "invariant 2: bytes are stored for a stream that is not in its table"
        );
        let stored_chunks: usize = self.stored.values().map(|stored| stored.chunks.len()).sum();
        let leased = Pools::leased(&self.pools, 1);
        assert!(leased >= stored_chunks as u64, "invariant 5: {stored_chunks} of {leased} chunks are stored");
        self.listeners.values().for_each(check_listener);
        self.sources.values().for_each(|source| source.readiness.check());
    }

    fn check_stream(&self, key: Key, stream: &Stream<Socket<K>>) {
        stream.sends.check_invariants();
        stream.reads.check();
        let is_empty = stream.sends.queue.is_empty();
        assert!(
            is_empty || !stream.writable || stream.connecting || self.deferred_streams.contains(&key),
            "invariant 9: bytes are queued, but the socket is writable"
        );
        assert!(!(stream.connecting && stream.writable), "invariant 9: a socket that connects is writable");
        assert!(is_empty || stream.sends.error.is_none(), "invariant 3: bytes are queued after an error");
        assert!(!stream.released || !is_empty, "invariant 2: a released stream is not removed");
        assert!(
            !(stream.reads.readable && stream.receive_waker.is_waiting()),
            "invariant 9: a task waits for a stream that is readable"
        );
        assert!(
            !(stream.writable && is_empty && stream.sends.waker.is_waiting()),
            "invariant 9: a task waits for a stream that is writable"
        );
        if stream.reads.state == ReadState::Stored {
            let stored = self.stored.get(&key);
            assert!(
                stored.is_some_and(|stored| !stored.chunks.is_empty() || stored.error.is_some()),
                "invariant 9: nothing is stored for a stream whose state is `Stored`"
            );
        }
    }
}

fn check_listener<S>(listener: &Listener<S>) {
    assert!((1..=MAX_ACCEPT_BATCH).contains(&listener.batch), "batch of {} connections", listener.batch);
    assert!(listener.remaining <= listener.batch, "more connections are accepted than the batch");
    assert!(
        listener.is_watched || !listener.waker.is_waiting(),
        "invariant 9: a task waits for a listener that is not watched"
    );
}
