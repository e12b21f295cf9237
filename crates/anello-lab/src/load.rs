//! The seam to the load generator: what the lab needs of one, and nothing more.
//!
//! A [`Load`] opens the connections of one contender in one cell; the [`LoadSession`] keeps them open and drives them
//! for one slice at a time. Between slices nothing may be in flight, so that an idle contender sleeps.

use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;

/// A load generator for echo servers.
pub trait Load {
    /// Opens `connections` connections to `target`, over which messages of `message_bytes` will be sent.
    ///
    /// # Errors
    /// The cause in words, when not all of the connections could be opened in reasonable time. None stay open then.
    fn connect(
        &mut self,
        target: SocketAddr,
        connections: usize,
        message_bytes: usize,
    ) -> Result<Box<dyn LoadSession>, String>;
}

/// The open connections of one contender in one cell. Dropping it closes them.
pub trait LoadSession {
    /// Keeps every connection busy with one request at a time for about `duration`, then waits for the replies that
    /// are still owed, so that nothing is in flight when it returns.
    ///
    /// Must return in bounded time whatever the server does: a server that stalls is an error, not a hang.
    ///
    /// # Errors
    /// The cause in words, when the slice could not be finished. Troubles that leave the slice meaningful are counted
    /// in [`SliceLoad::errors`] instead.
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, String>;
}

/// What one slice of load saw.
#[derive(Debug, Clone)]
pub struct SliceLoad {
    /// Requests answered, with the right bytes.
    pub requests: u64,
    /// From the first request to the last reply.
    pub elapsed_ns: u64,
    /// Time from request to whole reply, in nanoseconds, one value for each request.
    pub latency: Histogram<u64>,
    /// Troubles by kind, with how often each happened (connection reset, closed early, timed out).
    pub errors: Vec<(String, u64)>,
    /// Replies whose bytes were not the ones sent.
    pub wrong_replies: u64,
}

impl SliceLoad {
    /// An empty slice, with a histogram that holds 1 ns to 60 s at three digits.
    #[must_use]
    pub fn empty() -> SliceLoad {
        SliceLoad {
            requests: 0,
            elapsed_ns: 0,
            latency: latency_histogram(),
            errors: Vec::new(),
            wrong_replies: 0,
        }
    }
}

/// A histogram for latencies of 1 ns to 60 s at three significant digits; larger values are clamped by
/// `saturating_record`.
#[must_use]
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}
