//! The seam to the load generator: what the lab needs of one, and nothing more.
//!
//! A [`Load`] opens the connections of one contender in one cell; the [`LoadSession`] keeps them open and drives them
//! for one slice at a time. Between slices nothing may be in flight, so that an idle contender sleeps.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::cell::Cell;
use crate::site::SupportedTargets;

/// A load generator.
pub trait Load {
    /// Opens what `cell` asks for to the contender at `target`: connections over which messages or HTTP requests will be
    /// sent, as fast as they are answered or at a rate (where each request has its own, none yet); connections that
    /// exchange one message and are then idle; the control connection of a disk worker.
    ///
    /// # Errors
    /// The cause in words, when not all of the connections could be opened in reasonable time. None stay open then.
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, String>;

    /// Tries whether the server at `target` does what a server must. Returns what was tried, line by line.
    ///
    /// Must return in bounded time whatever the server does, and soon after `stop` has become true: then with an error,
    /// unless all had been tried.
    ///
    /// # Errors
    /// What the server did instead.
    fn check(&mut self, target: SocketAddr, check: Check, stop: &AtomicBool) -> Result<Vec<String>, String>;
}

/// What is tried before a contender is timed. How fast a server loses bytes is of no interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Messages of odd sizes up to 1 MiB come back whole and right.
    CompleteBytes,
    /// Several MiB are sent by a client that does not read for a while; then all come back right, and others are served
    /// in the meantime.
    StalledReader,
    /// So many connections at once, each with one message.
    ManyConnections(usize),
    /// Of an HTTP server that serves these: every target that it has, whole and right over one connection that is kept, by
    /// GET and by HEAD.
    CompleteAnswers(SupportedTargets),
    /// Of an HTTP server that serves these: its largest file is asked for by a client that does not read for a while; then
    /// all comes right, and others are served in the meantime.
    StalledDownload(SupportedTargets),
    /// Of an HTTP server that serves these: so many connections at once, each with one request.
    ManyRequests(SupportedTargets, usize),
}

impl fmt::Display for Check {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::CompleteBytes | Check::CompleteAnswers(_) => formatter.write_str("complete bytes"),
            Check::StalledReader | Check::StalledDownload(_) => formatter.write_str("stalled reader"),
            Check::ManyConnections(count) | Check::ManyRequests(_, count) => {
                write!(formatter, "{count} connections")
            }
        }
    }
}

/// The open connections of one contender in one cell. Dropping it closes them.
pub trait LoadSession {
    /// Keeps every connection busy for about `duration`, with one request at a time unless the cell says more, then waits
    /// for the replies that are still owed, so that nothing is in flight when it returns.
    ///
    /// Must return in bounded time whatever the server does: a server that stalls is an error, not a hang.
    ///
    /// # Errors
    /// The cause in words, when the slice could not be finished. Troubles that leave the slice meaningful are counted
    /// in [`SliceLoad::errors`] instead.
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, String>;

    /// Waits, after a slice has been measured, for what it has left to others to do, so that this does not run in the
    /// next contender's slice: data in the page cache that the kernel has still to write. Most slices leave nothing.
    ///
    /// # Errors
    /// The cause in words.
    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }
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
    /// Replies that came whole and were not the right ones.
    pub wrong_replies: u64,
    /// What was wrong with one of them, if it was something else than its bytes.
    pub wrong_example: Option<String>,
    /// With an offered rate: time from sending to whole reply, where `latency` counts from the scheduled time.
    pub uncorrected: Option<Histogram<u64>>,
    /// With an offered rate: requests that the schedule held.
    pub offered: Option<u64>,
    /// With an offered rate: requests sent later than 1 ms after their time.
    pub late: u64,
    /// With an offered rate: requests never sent.
    pub unsent: u64,
    /// Connections that were opened again meanwhile.
    pub reopened: u64,
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
            wrong_example: None,
            uncorrected: None,
            offered: None,
            late: 0,
            unsent: 0,
            reopened: 0,
        }
    }
}

/// A histogram for latencies of 1 ns to 60 s at three significant digits; larger values are clamped by
/// `saturating_record`.
#[must_use]
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}
