//! Per-worker counters, summed and rendered on each scrape (Prometheus text format 0.0.4).
//!
//! ```text
//!   worker 0 ── WorkerMetrics ──▶ block 0 ┐
//!   worker 1 ── WorkerMetrics ──▶ block 1 ├── ServerMetrics::render ──▶ text
//!   driver, cache, log, /proc/self ──────┘
//! ```
//!
//! Each worker owns a block of counters with its own cache lines. The worker is the only writer of its block, so an
//! increment is a load, an addition and a store. A scrape can run on any thread and reads all blocks. Because the
//! workers keep counting meanwhile, the sums are not an atomic snapshot.
//!
//! The page `docs/reference/http-metrics.md` lists the metrics. Label values, except those of `anello_build_info`, are
//! fixed at compile time: input from a peer cannot create a new time series.
//!
//! Requests rejected with a parse error are included in `requests_total` and have no duration. `sent_bytes_total`
//! counts response bodies only; `received_bytes_total` counts request heads and bodies.

mod kinds;
mod render;
mod worker;

use std::sync::Arc;
use std::thread;

pub use anello::exposition::CONTENT_TYPE;
pub use kinds::{CloseReason, ParseErrorKind, RejectReason};
pub use worker::WorkerMetrics;

use anello::exposition::ProcessFiles;

use super::access_log::LogStats;
use worker::Block;

/// Options of [`ServerMetrics`].
///
/// ```
/// use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
///
/// let options = MetricsOptions::default().workers(2).build_labels(vec![("driver", "epoll".to_owned())]);
/// let mut text = Vec::new();
/// ServerMetrics::new(options).render(None, &mut text);
/// assert!(String::from_utf8_lossy(&text).contains("driver=\"epoll\""));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MetricsOptions {
    /// Maximum number of concurrent workers, which have the indices 0 to `workers - 1`. Each worker takes 0.9 KiB of
    /// memory. Default: [`available_parallelism`](thread::available_parallelism).
    pub workers: usize,
    /// Name-value pairs of the labels of `anello_build_info` other than `version`, such as the selected driver. A name
    /// consists of ASCII letters, digits and underscores and does not start with a digit; labels with an invalid name
    /// are omitted.
    pub build_labels: Vec<(&'static str, String)>,
}

setters!(MetricsOptions {
    workers: usize = 4,
    build_labels: Vec<(&'static str, String)> = vec![("driver", "epoll".to_owned())],
});

impl Default for MetricsOptions {
    fn default() -> Self {
        Self { workers: thread::available_parallelism().map_or(1, usize::from), build_labels: Vec::new() }
    }
}

/// The metrics of a server. Clones are cheap and share the same counters.
///
/// ```
#[doc = metrics!()]
/// worker.record_request(Method::Get, 200, 750_000);
/// assert!(scrape().contains("anello_http_requests_total{method=\"GET\",status=\"2xx\"} 1\n"));
/// ```
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    blocks: Vec<Arc<Block>>,
    build_labels: Vec<(&'static str, String)>,
    process: ProcessFiles,
}

impl ServerMetrics {
    /// Creates metrics with all counters at zero, and opens the `/proc` files that a scrape reads. A scrape then works
    /// inside a sandbox that allows `pread64`, `prlimit64`, and either `fstat` or `statx`. Create the metrics before
    /// entering the sandbox. Before Linux 6.2 a scrape also opens `/proc/self/fd`; if that is denied, it omits
    /// `process_open_fds`.
    ///
    /// ```
    /// use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
    ///
    /// let metrics = ServerMetrics::new(MetricsOptions::default().workers(2));
    /// assert!(metrics.worker(1).is_some());
    /// assert!(metrics.worker(2).is_none());
    /// ```
    pub fn new(options: MetricsOptions) -> Self {
        let blocks = (0..options.workers).map(|_| Arc::new(Block::default())).collect();
        let inner = Inner { blocks, build_labels: options.build_labels, process: ProcessFiles::open() };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the counters of the worker with this index, or `None` if the index is out of range or another
    /// [`WorkerMetrics`] for it exists. A worker that replaces another one continues from the existing values.
    ///
    /// ```
    /// use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
    ///
    /// let metrics = ServerMetrics::new(MetricsOptions::default());
    /// let worker = metrics.worker(0).expect("not in use");
    /// assert!(metrics.worker(0).is_none(), "there is one writer at a time");
    /// drop(worker);
    /// assert!(metrics.worker(0).is_some());
    /// ```
    pub fn worker(&self, index: usize) -> Option<WorkerMetrics> {
        self.inner.blocks.get(index).and_then(WorkerMetrics::claim)
    }

    /// Appends all metrics to `text` (about 10 KiB, plus 0.5 KiB per worker) in the format of the media type
    /// [`CONTENT_TYPE`]. Reads three `/proc` files. `log` contains the counts of the access log, if there is one.
    ///
    /// ```
    /// use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
    ///
    /// let metrics = ServerMetrics::new(MetricsOptions::default());
    /// metrics.worker(0).expect("not in use").add_sent_bytes(5);
    /// let mut text = Vec::new();
    /// metrics.render(None, &mut text);
    /// assert!(String::from_utf8_lossy(&text).contains("anello_http_sent_bytes_total 5\n"));
    /// ```
    pub fn render(&self, log: Option<&LogStats>, text: &mut Vec<u8>) {
        let Inner { blocks, build_labels, process } = &*self.inner;
        render::render(blocks, build_labels, log, process, text);
    }
}
