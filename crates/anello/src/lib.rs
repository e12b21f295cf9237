//! anello: a thread-per-core network runtime for Linux, with two I/O drivers behind one API.
//!
//! The driver is selected when a runtime is built: io_uring where the kernel and the container allow it, epoll
//! otherwise. Applications need no type parameter, cargo feature or `unsafe` code to support both. A complete echo
//! server:
//!
//! ```no_run
//! use anello::net::TcpListener;
//!
//! fn main() -> std::io::Result<()> {
//!     anello::Runtime::new()?.block_on(async {
//!         let listener = TcpListener::bind("127.0.0.1:7000")?;
//!         loop {
//!             let mut stream = listener.accept().await?;
//!             anello::spawn(async move {
//!                 while let Some(chunk) = stream.recv().await? {
//!                     stream.send(chunk).await?;
//!                 }
//!                 Ok::<_, std::io::Error>(())
//!             })
//!             .detach();
//!         }
//!     })
//! }
//! ```
//!
//! A [`Runtime`] runs tasks on one thread; [`Workers`] starts one runtime per core. `ARCHITECTURE.md` describes the
//! modules, and `docs/internals/how-it-works.md` traces a request through them.
//!
//! # Guides
//!
//! The directory `docs` of the repository is a book. To begin: `getting-started.md`, and the tutorial, which builds an echo
//! server, a proxy and a web service, and tests them on a simulated network. For a decision or a task: `guides/`
//! `choose-a-driver.md`, `from-tokio.md`, `ecosystem.md` (crates that work), `axum.md`, `simulate.md`, `scale.md` and
//! `operate.md`.
//!
//! # Features
//!
//! None is enabled by default.
//!
//! | feature | effect |
//! |---|---|
//! | `backtrace` | warnings about [blocked](RuntimeBuilder::blocked_poll_threshold) polls contain a backtrace of the worker |
//! | `compat-tokio` | streams implement the traits of `tokio::io` |
//! | `compat-futures-io` | streams implement the traits of `futures-io` |
//! | `compat-hyper` | streams implement the traits of hyper 1, which has an executor and a timer ([`compat`]) |
//! | `compat-rustls` | sessions of rustls over streams ([`compat`]) |
//! | `metrics` | [`RuntimeMetrics`] are passed to the crate `metrics` |
//! | `sim` | the simulated driver, for tests ([`DriverKind`]) |
//!
//! # Tracing
//!
//! The runtime sends these spans and events to the subscriber of [`tracing`](https://docs.rs/tracing), if there is one:
//!
//! | level | spans | events |
//! |---|---|---|
//! | warning, error | | [slow](RuntimeBuilder::slow_poll_threshold) and [blocked](RuntimeBuilder::blocked_poll_threshold) polls, exhausted descriptors, fallbacks, failures in the background |
//! | info | | a runtime starts, with its driver |
//! | debug | `worker` (`index`, `core`), `task` (`name`, `id`, `spawned_at`; only [named](task::Builder) tasks), `connect` (`peer`), `blocking` (`spawned_at`) | a connection is accepted or established, a runtime stops, a thread of a pool starts or exits |
//!
//! Receiving and sending produce none, so that they cost nothing.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("anello requires Linux: it uses io_uring and epoll (build for a Linux target)");

#[macro_use]
mod setters;
mod example;

pub mod compat;
pub mod doctor;
#[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "the simulated kernels alone use some items"))]
mod driver;
pub mod event_loop;
mod executor;
pub mod exposition;
pub mod fs;
pub mod io;
pub mod net;
pub mod process;
mod readiness;
pub mod server;
pub mod signal;
#[cfg(feature = "sim")]
#[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
pub mod sim;
pub mod sync;
pub mod task;
pub mod time;

#[doc(hidden)]
pub use driver::{DisabledFeatures, TestOptions, catch_and_log_panic, log_guarded, tracing, wake_all};
pub use driver::{
    DriverInfo, DriverKind, DriverMetrics, DriverOptions, MetricEntry, SubmissionPolling, TaskWork, ZeroCopy,
};
pub use executor::{
    EnterGuard, Handle, JoinError, JoinHandle, Runtime, RuntimeBuilder, RuntimeMetrics, TryCurrentError,
    WorkerContext, Workers, WorkersBuilder, current_driver, current_driver_metrics, fill_random, spawn,
    spawn_blocking, yield_now,
};

/// Documents whose examples run as doctests of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/getting-started.md")]
#[doc = include_str!("../../../docs/guides/choose-a-driver.md")]
#[doc = include_str!("../../../docs/guides/from-tokio.md")]
#[doc = include_str!("../../../docs/guides/operate.md")]
#[doc = include_str!("../../../docs/guides/simulate.md")]
struct Documents;
