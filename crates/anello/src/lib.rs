//! anello: a thread-per-core network runtime for Linux, with two drivers chosen at run time.
//!
//! The same program runs on io_uring where the kernel and the container allow it, and on epoll where they do not; it
//! has no type parameter, feature or `unsafe` of its own for that. A whole echo server:
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
//! [`Runtime`] polls tasks on one thread; [`Workers`] runs one per core. [`net`] has listeners and streams, [`time`]
//! sleeping and deadlines, [`fs`] files, [`task`] cooperative scheduling, [`signal`] the signals of the process. What is where, and the life of a request, is told in
//! `ARCHITECTURE.md`.

pub mod compat;
mod driver;
mod executor;
pub mod fs;
pub mod net;
pub mod signal;
pub mod task;
pub mod time;

pub use driver::{
    DisabledFeatures, DriverInfo, DriverKind, DriverMetrics, DriverOptions, SendCompletion, SimFaults,
    SimModel, SimOptions, SubmissionPolling, TaskWork, ZeroCopy, probe_uring,
};
pub use executor::{
    BlockingHandle, Handle, JoinError, JoinHandle, MAX_BLOCKING_THREADS, Runtime, RuntimeBuilder,
    WorkerContext, Workers, WorkersBuilder, allowed_cores, current_driver, current_metrics, spawn,
    spawn_blocking, yield_now,
};
