//! Metrics of a server in the Prometheus text format (version 0.0.4).
//!
//! Each worker owns [`Counter`]s and [`PublishedEntries`] that only it writes. A scrape, which can run on any thread, reads
//! those of all workers and renders them with an [`Exposition`]. Because the workers keep counting meanwhile, the sums are
//! not an atomic snapshot.
//!
//! ```
//! use anello::exposition::{Counter, Exposition, FamilyKind, ProcessFiles, PublishedEntries, Value};
//!
//! #[derive(Default)]
//! struct Worker {
//!     requests: Counter,
//!     driver: PublishedEntries,
//! }
//!
//! let (workers, process) = ([Worker::default(), Worker::default()], ProcessFiles::open());
//! // On a worker.
//! workers[0].requests.add(1);
//! workers[0].driver.publish_driver();
//! // On each scrape.
//! let mut text = Vec::new();
//! let mut exposition = Exposition::new(&mut text);
//! let requests = workers.iter().map(|worker| worker.requests.get()).sum();
//! exposition.single("example_requests_total", FamilyKind::Counter, "Requests.", Value::Integer(requests));
//! exposition.published(workers.iter().map(|worker| &worker.driver));
//! exposition.process(&process);
//! assert!(String::from_utf8_lossy(&text).contains("\nexample_requests_total 1\n"));
//! ```

mod counter;
mod process;
mod published;
mod text;

pub use counter::Counter;
pub use process::ProcessFiles;
pub use published::{MAX_PUBLISHED_ENTRIES, PublishedEntries};
pub use text::{Exposition, FamilyKind, Value};

/// Media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
