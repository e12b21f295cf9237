//! Counters of each worker, added up and rendered when somebody asks (Prometheus text format 0.0.4).
//!
//! ```text
//!   worker 0 ── WorkerMetrics ──▶ block 0 ┐
//!   worker 1 ── WorkerMetrics ──▶ block 1 ├── ServerMetrics::render ──▶ text
//!   driver, cache, log, /proc/self ──────┘
//! ```
//!
//! Each worker has a block of counts with cache lines of its own and is the only one to write there, so that counting is
//! a load, an addition and a store. A scrape reads all blocks, from whichever thread; its sums are not one moment's, as
//! the workers go on while it reads.
//!
//! | metric | type | labels |
//! |---|---|---|
//! | `anello_http_requests_total` | counter | `method`: seven methods and `other`; `status`: `1xx` to `5xx` |
//! | `anello_http_request_duration_seconds` | histogram | `le`: powers of two from 1024 ns to 17.2 s |
//! | `anello_http_connections_accepted_total` | counter | |
//! | `anello_http_connections_open` | gauge | |
//! | `anello_http_connections_refused_total` | counter | `reason`: [`RejectReason`] |
//! | `anello_http_connections_closed_total` | counter | `reason`: [`CloseReason`] |
//! | `anello_http_received_bytes_total`, `anello_http_sent_bytes_total` | counter | |
//! | `anello_http_parse_refusals_total` | counter | `kind`: [`ParseErrorKind`] |
//! | `anello_http_cache_hits_total`, `anello_http_cache_misses_total` | counter | |
//! | `anello_http_cache_bytes` | gauge | |
//! | `anello_http_log_lines_written_total`, `anello_http_log_lines_dropped_total` | counter | |
//! | `anello_http_log_bytes_written_total`, `anello_http_log_errors_total`, `anello_http_log_reopens_total` | counter | |
//! | `anello_driver_…` | both | `worker`; what [`WorkerMetrics::publish`] was given |
//! | `anello_build_info` | gauge, 1 | `version`, and [`MetricsOptions::build_labels`] |
//! | `process_start_time_seconds`, `process_open_fds`, `process_max_fds` | gauge | |
//! | `process_resident_memory_bytes`, `process_virtual_memory_bytes` | gauge | |
//! | `process_cpu_seconds_total` | counter | |
//!
//! Requests that the protocol refused are among `requests_total` and have no duration. `sent_bytes_total` is of bodies,
//! `received_bytes_total` of heads and bodies.
//!
//! All labels are known from the start but those of `anello_build_info`: nothing that a peer sends makes a new series.

mod exposition;
mod histogram;
mod kinds;
mod process;
mod render;
mod sample;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;

pub use kinds::{CloseReason, MethodClass, ParseErrorKind, RejectReason};
pub use sample::{Sample, SampleKind, driver_samples};
pub use worker::{MAX_SAMPLES, WorkerMetrics};

use super::access_log::LogStats;
use process::Process;
use worker::Block;

/// The media type of what [`ServerMetrics::render`] writes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How many workers there may be, and what is told about the program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MetricsOptions {
    /// Most workers at a time, numbered from 0. Each has 0.9 KiB of counts. By default as many as there are cores
    /// that the process may use.
    pub workers: usize,
    /// Labels of `anello_build_info` beside `version`, such as the driver that was chosen: name (letters, digits and
    /// underscores, the first no digit; others are left out) and value.
    pub build_labels: Vec<(&'static str, String)>,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self { workers: thread::available_parallelism().map_or(1, usize::from), build_labels: Vec::new() }
    }
}

/// The counts of a server. Clones are cheap, all of them the same counts.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    blocks: Vec<Arc<Block>>,
    build_labels: Vec<(&'static str, String)>,
    process: Process,
}

impl ServerMetrics {
    /// Counts that are all zero. Opens the files of `/proc` that a scrape reads, so that it may do so inside a sandbox that
    /// allows `pread64`, `fstat` or `statx`, and `prlimit64`: make it before entering one. Before Linux 6.2 a scrape opens
    /// `/proc/self/fd`, too, and leaves `process_open_fds` out where it may not.
    #[must_use]
    pub fn new(options: MetricsOptions) -> Self {
        let blocks = (0..options.workers).map(|_| Arc::new(Block::default())).collect();
        let inner = Inner { blocks, build_labels: options.build_labels, process: Process::open() };
        Self { inner: Arc::new(inner) }
    }

    /// The counts of one worker, for it to raise. A worker that takes another's place goes on from its counts. None if
    /// there is no worker of that number, or another has its counts now.
    #[must_use]
    pub fn worker(&self, number: usize) -> Option<WorkerMetrics> {
        self.inner.blocks.get(number).and_then(WorkerMetrics::take)
    }

    /// Appends all metrics as they are now, some 10 KiB and half a KiB more for each worker, with media type [`CONTENT_TYPE`].
    /// `log` is what the access log has counted, if there is one. Reads three files of `/proc`.
    pub fn render(&self, log: Option<&LogStats>, text: &mut Vec<u8>) {
        render::render(
            &self.inner.blocks,
            &self.inner.build_labels,
            log,
            &self.inner.process.snapshot(),
            text,
        );
    }
}
