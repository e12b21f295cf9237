//! Interface between the lab and its load generator.
//!
//! A [`Load`] opens the connections of one contender in one cell. The [`LoadSession`] keeps them open and runs one
//! slice at a time. No request may be in flight between slices, so that idle contenders sleep.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::cell::Cell;
use crate::plan::site::SupportedTargets;
pub use crate::result::latency::latency_histogram;
use crate::result::latency::{self, CodecError};

/// A load generator.
pub trait Load {
    /// Opens the connections of `cell` to the contender at `target`: for echo and HTTP cells, connections that later
    /// carry requests (none if each request opens its own connection); for idle cells, connections that exchange one
    /// message and then stay idle; for disk cells, the control connection of the worker.
    ///
    /// # Errors
    /// Returns an error, and closes all connections, if a connection cannot be opened in reasonable time.
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, LoadError>;

    /// Runs a functional check of the server at `target`. Returns a line of text for each verified property.
    ///
    /// The check must finish in bounded time. When `stop` becomes true, it must return promptly, with an error if it is
    /// incomplete.
    ///
    /// # Errors
    /// Returns an error that describes the incorrect behaviour.
    fn check(
        &mut self,
        target: SocketAddr,
        check: Check,
        stop: &AtomicBool,
    ) -> Result<Vec<String>, LoadError>;

    /// Returns notes for readers of the report, after the run.
    ///
    /// # Errors
    /// Returns an error if the load generator is on another host, and the connection to it was lost.
    fn notes(&mut self) -> Result<Vec<String>, LoadError> {
        Ok(Vec::new())
    }
}

/// Functional check of a contender. Checks precede the measurement because the speed of an incorrect server is
/// meaningless. Contains the resources that an HTTP server supports, or `None` for an echo server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Check {
    /// Messages of unusual sizes up to 1 MiB are echoed completely and correctly. An HTTP server sends every resource
    /// completely and correctly on a keep-alive connection, for GET and for HEAD.
    CompleteBytes(Option<SupportedTargets>),
    /// A client sends several MiB, or requests the largest resource, without reading for some time, and then receives
    /// all bytes correctly. In the meantime, other clients are served.
    StalledReader(Option<SupportedTargets>),
    /// This many connections are open at the same time, each with one message or request.
    ManyConnections(Option<SupportedTargets>, usize),
}

impl fmt::Display for Check {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::CompleteBytes(_) => formatter.write_str("complete bytes"),
            Check::StalledReader(_) => formatter.write_str("stalled reader"),
            Check::ManyConnections(_, count) => write!(formatter, "{count} connections"),
        }
    }
}

/// Open connections of one contender in one cell. Dropping the session closes the connections.
pub trait LoadSession {
    /// Keeps every connection busy for about `duration`, then waits for the outstanding replies. Implementations must
    /// return in bounded time, with an error if the server has stalled.
    ///
    /// # Errors
    /// Returns an error if the slice cannot be completed. Errors that do not invalidate the slice are counted in
    /// [`SliceLoad::errors`] instead.
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError>;

    /// Waits for work deferred by a measured slice, such as the writeback of dirty pages, so that it does not disturb
    /// the next contender's slice.
    ///
    /// # Errors
    /// Returns an error if the work fails.
    fn settle(&mut self) -> Result<(), LoadError> {
        Ok(())
    }
}

/// Failure of the load generator, or of a server under load.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An I/O operation failed, or a disk worker closed its connection or sent an invalid reply.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A disk worker replied with invalid latencies.
    #[error(transparent)]
    Latency(#[from] CodecError),
    /// A check was interrupted by the stop flag.
    #[error("interrupted")]
    Interrupted,
    /// A connection, a check or a slice failed for the described reason.
    #[error("{0}")]
    Failed(String),
}

/// Results of one slice of load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SliceLoad {
    /// Number of requests with a correct reply.
    pub requests: u64,
    /// Time from the first request to the last reply, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time from each request to the end of its reply, in nanoseconds.
    #[serde(with = "latency::text")]
    pub latency: Histogram<u64>,
    /// Errors by kind (connection reset, closed early, timeout), with the number of occurrences.
    pub errors: Vec<(String, u64)>,
    /// Number of complete replies with wrong contents.
    pub wrong_replies: u64,
    /// Description of one reply that had an error other than wrong bytes, if there was one.
    pub wrong_example: Option<String>,
    /// Time from actually sending a request to the end of its reply; open loop only. `latency` starts at the
    /// scheduled time instead.
    #[serde(with = "latency::optional_text")]
    pub uncorrected: Option<Histogram<u64>>,
    /// Number of scheduled requests; open loop only.
    pub offered: Option<u64>,
    /// Number of requests sent more than 1 ms after their scheduled time; open loop only.
    pub late: u64,
    /// Number of scheduled requests that were never sent; open loop only.
    pub unsent: u64,
    /// Number of connections that were reopened during the slice.
    pub reopened: u64,
}

impl SliceLoad {
    /// Returns the result of a slice without requests.
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
