//! Streams that accept no more bytes and are still sending those that they have accepted, because they were released or
//! shut down by a handle. A stream that makes no progress for too long is aborted.

use std::time::Duration;

use crate::driver::memory::key::Key;
use crate::driver::wake::queue::WakeQueue;

/// Number of checks without progress in the minimum time.
const IDLE_CHECKS: u32 = 30;

/// Streams that may still be sending.
#[derive(Debug)]
pub(crate) struct Lingering {
    interval_ns: u64,
    next_check_ns: u64,
    streams: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    /// Number of unsent bytes at the last check.
    unsent_bytes: usize,
    /// Number of checks since the kernel has last taken bytes.
    idle_checks: u32,
}

/// The streams of a driver.
pub(crate) trait Sending {
    /// Returns the number of accepted bytes that the kernel is not known to have taken.
    fn unsent_bytes(&self, key: Key) -> usize;

    /// Sends as many bytes as the kernel has room for, in this turn and the next ones. The driver itself sends again once
    /// a large part of the socket buffer is free, and an operation that waits for this does not report how much it has
    /// sent: it is interrupted.
    fn send_again(&mut self, key: Key, wakes: &mut WakeQueue);

    /// Discards the unsent bytes, and wakes the tasks that wait for the stream.
    fn abort(&mut self, key: Key, wakes: &mut WakeQueue);
}

impl Lingering {
    /// `limit` is the minimum time without progress after which a stream is aborted. The maximum is a tenth longer.
    pub fn new(limit: Duration) -> Self {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self { interval_ns: limit_ns / u64::from(IDLE_CHECKS), next_check_ns: 0, streams: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub fn push(&mut self, key: Key, driver: &impl Sending, now_ns: u64) {
        if self.streams.len() == self.streams.capacity() {
            // Nearly every stream has sent everything by the next turn.
            self.streams.retain(|entry| driver.unsent_bytes(entry.key) > 0);
        }
        if self.streams.is_empty() {
            self.next_check_ns = now_ns.saturating_add(self.interval_ns);
        }
        self.streams.push(Entry { key, unsent_bytes: driver.unsent_bytes(key), idle_checks: 0 });
    }

    /// Returns the time of the next check, or `None` if there are no streams.
    pub fn next_check_ns(&self) -> Option<u64> {
        (!self.streams.is_empty()).then_some(self.next_check_ns)
    }

    /// Removes the streams that have sent everything, and aborts those without progress. Does nothing before
    /// [`next_check_ns`](Self::next_check_ns). The caller must call the wakers in `wakes` once the driver is no longer
    /// borrowed.
    pub fn check(&mut self, driver: &mut impl Sending, now_ns: u64, wakes: &mut WakeQueue) {
        if now_ns < self.next_check_ns {
            return;
        }
        self.next_check_ns = now_ns.saturating_add(self.interval_ns);
        self.streams.retain_mut(|entry| {
            let unsent_bytes = driver.unsent_bytes(entry.key);
            let has_progress = unsent_bytes < entry.unsent_bytes;
            entry.idle_checks = if has_progress { 0 } else { entry.idle_checks + 1 };
            entry.unsent_bytes = unsent_bytes;
            if unsent_bytes == 0 {
                return false;
            }
            if entry.idle_checks == IDLE_CHECKS + 1 {
                driver.send_again(entry.key, wakes);
            } else if entry.idle_checks > IDLE_CHECKS + 1 {
                driver.abort(entry.key, wakes);
                return false;
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_nanos(30);

    /// A driver with one stream, and an operation whose sent bytes are counted when it is interrupted.
    #[derive(Debug, Default)]
    struct Stream {
        unsent_bytes: usize,
        sent_by_operation: usize,
        attempts: u32,
        is_aborted: bool,
    }

    const KEY: Key = Key { index: 0, generation: 0 };

    impl Sending for Stream {
        fn unsent_bytes(&self, _: Key) -> usize {
            self.unsent_bytes
        }

        fn send_again(&mut self, _: Key, _: &mut WakeQueue) {
            self.attempts += 1;
            self.unsent_bytes -= std::mem::take(&mut self.sent_by_operation);
        }

        fn abort(&mut self, _: Key, _: &mut WakeQueue) {
            self.is_aborted = true;
        }
    }

    /// Checks after each nanosecond until the stream is no longer lingering. `turn` is called before each check.
    fn linger(stream: &mut Stream, mut turn: impl FnMut(u64, &mut Stream)) -> u64 {
        let mut lingering = Lingering::new(LIMIT);
        lingering.push(KEY, stream, 0);
        for now_ns in 1.. {
            turn(now_ns, stream);
            lingering.check(stream, now_ns, &mut WakeQueue::default());
            if lingering.is_empty() {
                assert_eq!(lingering.next_check_ns(), None);
                return now_ns;
            }
        }
        unreachable!()
    }

    #[test]
    fn stream_without_progress_is_aborted_after_the_limit() {
        let mut stream = Stream { unsent_bytes: 5, ..Stream::default() };
        assert_eq!(linger(&mut stream, |_, _| {}), 32);
        assert!(stream.is_aborted && stream.attempts == 1);
    }

    #[test]
    fn limit_restarts_with_each_byte() {
        let mut stream = Stream { unsent_bytes: 5, ..Stream::default() };
        let turn = |now_ns, stream: &mut Stream| stream.unsent_bytes -= usize::from(now_ns % 30 == 0);
        assert_eq!(linger(&mut stream, turn), 150);
        assert!(!stream.is_aborted && stream.attempts == 0);
    }

    #[test]
    fn bytes_of_an_operation_in_flight_are_progress() {
        let mut stream = Stream { unsent_bytes: 5, ..Stream::default() };
        let turn = |_, stream: &mut Stream| stream.sent_by_operation = 1;
        linger(&mut stream, turn);
        assert!(!stream.is_aborted && stream.attempts == 5);
    }

    #[test]
    fn streams_that_have_sent_everything_are_removed_before_the_list_grows() {
        let (mut lingering, stream) = (Lingering::new(LIMIT), Stream::default());
        for _ in 0..1000 {
            lingering.push(KEY, &stream, 0);
        }
        assert!(lingering.streams.capacity() < 10, "{}", lingering.streams.capacity());
    }
}
