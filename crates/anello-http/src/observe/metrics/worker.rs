//! Counters of one worker: a block of memory that only the worker writes and every scrape reads.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anello::MetricEntry;
use anello::exposition::{Counter, PublishedEntries};

use super::kinds::{CloseReason, METHODS, ParseErrorKind, RejectReason, STATUS_CLASSES};
use crate::h1::Method;

/// Aligned to two cache lines, because processors prefetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Block {
    pub(super) requests: [[Counter; STATUS_CLASSES.len()]; METHODS.len()],
    pub(super) durations: Histogram,
    pub(super) received_bytes: Counter,
    pub(super) sent_bytes: Counter,
    pub(super) cache_hits: Counter,
    pub(super) cache_misses: Counter,
    pub(super) cache_bytes: Counter,
    pub(super) accepted: Counter,
    pub(super) moved: Counter,
    pub(super) closed: [Counter; CloseReason::COUNT],
    pub(super) rejected: [Counter; RejectReason::COUNT],
    pub(super) parse_errors: [Counter; ParseErrorKind::COUNT],
    pub(super) published: PublishedEntries,
    is_claimed: AtomicBool,
}

/// Handle with which one worker updates its counters. Each call takes a few instructions. No method blocks, and only
/// [`publish`](Self::publish) allocates or uses a lock.
///
/// ```
#[doc = metrics!()]
/// worker.connection_accepted();
/// worker.record_request(Method::Get, 200, 750_000);
/// worker.connection_closed(CloseReason::Complete);
/// assert!(scrape().contains("anello_http_connections_accepted_total 1\n"));
/// ```
#[derive(Debug)]
pub struct WorkerMetrics {
    block: Arc<Block>,
    /// Makes the type `Send` but not `Sync`: the handle can move to another thread, but there is only one writer.
    not_sync: PhantomData<Cell<()>>,
}

impl WorkerMetrics {
    /// Returns `None` if the block already has a handle.
    pub(super) fn claim(block: &Arc<Block>) -> Option<Self> {
        // Acquire pairs with the release in `drop`: a new handle sees the counts of its predecessor.
        let was_claimed = block.is_claimed.swap(true, Ordering::AcqRel);
        (!was_claimed).then(|| Self { block: Arc::clone(block), not_sync: PhantomData })
    }

    /// Records a completed or aborted request. [`Server`](crate::Server) measures the duration from the end of the
    /// request head until the response has been queued for sending.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.record_request(Method::Get, 404, 750_000);
    /// assert!(scrape().contains("anello_http_requests_total{method=\"GET\",status=\"4xx\"} 1\n"));
    /// assert!(scrape().contains("anello_http_request_duration_seconds_count 1\n"));
    /// ```
    pub fn record_request(&self, method: Method, status: u16, duration_ns: u64) {
        self.record_untimed_request(method, status);
        self.block.durations.record(duration_ns);
    }

    /// Records a request that is not part of the duration histogram, such as one that could not be parsed.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.record_untimed_request(Method::Other, 400);
    /// assert!(scrape().contains("anello_http_requests_total{method=\"other\",status=\"4xx\"} 1\n"));
    /// assert!(scrape().contains("anello_http_request_duration_seconds_count 0\n"));
    /// ```
    pub fn record_untimed_request(&self, method: Method, status: u16) {
        let method = (method as usize).min(METHODS.len() - 1);
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        self.block.requests[method][class].add(1);
    }

    /// Adds bytes received from a peer: request heads, bodies and any other data. With TLS, the plaintext is counted.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.add_received_bytes(64);
    /// assert!(scrape().contains("anello_http_received_bytes_total 64\n"));
    /// ```
    pub fn add_received_bytes(&self, bytes: u64) {
        self.block.received_bytes.add(bytes);
    }

    /// Adds response body bytes sent to a peer.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.add_sent_bytes(5);
    /// assert!(scrape().contains("anello_http_sent_bytes_total 5\n"));
    /// ```
    pub fn add_sent_bytes(&self, bytes: u64) {
        self.block.sent_bytes.add(bytes);
    }

    /// Records an accepted connection. Call [`connection_closed`](Self::connection_closed) when it closes, on this
    /// worker or another.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.connection_accepted();
    /// assert!(scrape().contains("anello_http_connections_accepted_total 1\n"));
    /// ```
    pub fn connection_accepted(&self) {
        self.block.accepted.add(1);
    }

    /// Records that a connection moves to another worker. It stays open, and is not counted as accepted again.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.connection_accepted();
    /// worker.connection_moved();
    /// assert!(scrape().contains("anello_http_connections_moved_total 1\n"));
    /// assert!(scrape().contains("anello_http_connections_open 1\n"));
    /// ```
    pub fn connection_moved(&self) {
        self.block.moved.add(1);
    }

    /// Records a rejected connection. It is counted neither as accepted nor as closed.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.connection_rejected(RejectReason::MaxConnections);
    /// assert!(scrape().contains("anello_http_connections_rejected_total{reason=\"max_connections\"} 1\n"));
    /// ```
    pub fn connection_rejected(&self, reason: RejectReason) {
        self.block.rejected[reason as usize].add(1);
    }

    /// Records that an accepted connection was closed.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.connection_accepted();
    /// worker.connection_closed(CloseReason::Peer);
    /// assert!(scrape().contains("anello_http_connections_closed_total{reason=\"peer\"} 1\n"));
    /// ```
    pub fn connection_closed(&self, reason: CloseReason) {
        self.block.closed[reason as usize].add(1);
    }

    /// Records a request that was rejected with a parse error. If a response was sent, also call
    /// [`record_untimed_request`](Self::record_untimed_request).
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.parse_error(ParseErrorKind::of(431));
    /// assert!(scrape().contains("anello_http_parse_errors_total{kind=\"fields_too_large\"} 1\n"));
    /// ```
    pub fn parse_error(&self, kind: ParseErrorKind) {
        self.block.parse_errors[kind as usize].add(1);
    }

    /// Records a file served from the cache: the entry was fresh or was revalidated successfully.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.cache_hit();
    /// assert!(scrape().contains("anello_http_cache_hits_total 1\n"));
    /// ```
    pub fn cache_hit(&self) {
        self.block.cache_hits.add(1);
    }

    /// Records a cacheable file that was not in the cache, or whose entry was outdated.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.cache_miss();
    /// assert!(scrape().contains("anello_http_cache_misses_total 1\n"));
    /// ```
    pub fn cache_miss(&self) {
        self.block.cache_misses.add(1);
    }

    /// Sets the current size of the worker's cache.
    ///
    /// ```
    #[doc = metrics!()]
    /// worker.set_cache_bytes(4096);
    /// assert!(scrape().contains("anello_http_cache_bytes 4096\n"));
    /// ```
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.block.cache_bytes.set(bytes);
    }

    /// Publishes entries for the worker, such as the counters of its driver. They replace the previous ones. Entries beyond
    /// [`MAX_PUBLISHED_ENTRIES`](anello::exposition::MAX_PUBLISHED_ENTRIES) are ignored. A scrape reports the last
    /// published entries, so call this periodically, for example once per second.
    ///
    /// Never blocks: returns `false` without publishing if a scrape is reading the entries. Allocates on the first call.
    ///
    /// ```
    #[doc = metrics!()]
    /// assert!(worker.publish([anello::MetricEntry::counter("errors", "Errors of the back end.", 3)]));
    /// assert!(scrape().contains("anello_driver_errors_total{worker=\"0\"} 3\n"));
    /// ```
    pub fn publish(&self, entries: impl IntoIterator<Item = MetricEntry>) -> bool {
        self.block.published.publish(entries)
    }

    /// Publishes the counters of the driver of the current runtime, as [`publish`](Self::publish) does. If a scrape is
    /// reading the published entries, logs this and keeps them. Does nothing outside a runtime.
    ///
    /// ```
    #[doc = metrics!()]
    /// # anello::example! {
    /// worker.publish_driver();
    /// assert!(scrape().contains("anello_driver_sockets{worker=\"0\"} 0\n"));
    /// # }
    /// ```
    pub fn publish_driver(&self) {
        self.block.published.publish_driver();
    }
}

impl Drop for WorkerMetrics {
    fn drop(&mut self) {
        self.block.is_claimed.store(false, Ordering::Release);
    }
}

const LOWEST_EXPONENT: u32 = 10;
/// Number of buckets with a finite bound. An unbounded bucket follows them.
pub(super) const BOUNDS: usize = 25;

/// Latency histogram whose bucket bounds are powers of two, so the bucket index can be computed from the number of
/// leading zeros.
///
/// ```text
///   bucket     0         1         2       …    24        25
///   up to   1024 ns   2048 ns   4096 ns    …  17.2 s   infinity
///             2^10      2^11      2^12          2^34
/// ```
///
/// Upper bounds are inclusive, as in Prometheus. Adjacent bounds differ by a factor of two, so a quantile estimated
/// from the buckets is accurate within that factor. This is sufficient for monitoring; use a load generator for exact
/// latencies.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// Count of each bucket, not cumulative.
    pub(super) buckets: [Counter; BOUNDS + 1],
    pub(super) sum_ns: Counter,
}

impl Histogram {
    pub(super) fn record(&self, value_ns: u64) {
        self.buckets[bucket(value_ns)].add(1);
        self.sum_ns.add(value_ns);
    }
}

pub(super) fn bound_ns(bucket: usize) -> u64 {
    1 << (LOWEST_EXPONENT as usize + bucket)
}

fn bucket(value_ns: u64) -> usize {
    // Subtracting one makes the bound inclusive: a power of two falls into the bucket that it bounds.
    let bits = u64::BITS - value_ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(LOWEST_EXPONENT) as usize).min(BOUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_aligned_to_two_cache_lines() {
        assert_eq!((align_of::<Block>(), size_of::<Block>()), (128, 896));
    }
}
