//! A load generator for TCP, Unix socket and HTTP/1.1 servers, based on the anello runtime. Supports closed loops, open
//! loops and sweeps, and optionally verifies every received byte.
//!
//! ```text
//!  LoadConfig ─► run() ─┬─► worker thread 0: runtime, Session ─┐
//!                       └─► worker thread 1: runtime, Session ─┴─► Intervals ─► Report            (anello load)
//!
//!  LoadConfig ─► Session::connect() ─► run_slice() ─► run_slice() ─► …  on the same connections   (anello lab)
//!
//!  Session
//!   ├── MeasurementRunner    phases, intervals and timeouts; dispatches the requests of an open loop when they are due
//!   ├── Connection           one task per connection: sends requests, receives and checks replies
//!   │    ├── Stream          TCP, Unix socket or TLS
//!   │    └── ReplyDecoder    message or HTTP protocol: received bytes in, ReplyCheck out
//!   ├── ConnectionSlot       state shared by the runner and one connection: due queue, send time, waker
//!   └── Counters             results of all connections, cut into Intervals
//! ```
//!
//! # Closed loop
//!
//! Every connection sends a request, waits for the complete reply, and sends the next request, optionally after a think
//! time. This mode measures the maximum throughput of a server, but not latency at a given rate: while the server
//! pauses, the connections send no requests, so the pause affects only the requests in flight.
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use std::ops::ControlFlow;
//!
//! use anello_load::{LoadConfig, run};
//!
//! let server = SocketAddr::from(([127, 0, 0, 1], 7000));
//! let load = LoadConfig { connections: 300, verify: true, ..LoadConfig::echo(server, 128) };
//! let outcome = run(&load, &anello::Runtime::builder(), |_event| ControlFlow::Continue(()))?;
//! println!("{} requests/s, errors: {:?}", outcome.report.requests_per_second, outcome.report.errors);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Open loop
//!
//! The time of every request is fixed in advance. Requests are assigned to the connections in turn, whether or not
//! replies arrive. Latency is measured from the scheduled time, so a server pause is visible in all requests that were
//! due during it. Latency measured from the actual send time is also reported ("uncorrected"). A request whose
//! connection is still busy waits in the queue of that connection.
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use std::ops::ControlFlow;
//!
//! use anello_load::{Arrivals, Event, LoadConfig, Mode, run};
//!
//! let server = SocketAddr::from(([127, 0, 0, 1], 8080));
//! let load = LoadConfig {
//!     threads: 2,
//!     mode: Mode::Open { per_second: 50_000, arrivals: Arrivals::Poisson, seed: 1 },
//!     ..LoadConfig::http(server, "localhost", "/index.html")
//! };
//! let outcome = run(&load, &anello::Runtime::builder(), |event| {
//!     if let Event::Interval(interval) = event {
//!         println!("{:?} {:?}", interval.quantiles(), interval.uncorrected_quantiles());
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! println!("{:?} offered, {} never sent", outcome.report.offered, outcome.report.unsent);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A sweep ([`Mode::Sweep`]) is a sequence of open loops at rising rates over the same connections, until the server no
//! longer keeps up ([`Report::knee`]).
//!
//! # Shards
//!
//! Several processes, usually on different machines, can generate one load without communicating. Each has the
//! configuration of the whole load and its own [`Shard`]. [`LoadConfig::start_at`] starts them at the same time.
//! [`merge`] adds up their reports.
//!
//! # Usage
//!
//! [`run()`] starts the worker threads and waits for them. [`Session`] is the engine of one worker and runs on the
//! calling thread. The crate prints nothing. [`formats`] writes intervals in formats that other programs read.
//! [`merge`] adds up the results from several machines.
//!
//! # Invariants
//!
//! - Every operation completes in bounded time, whatever the server does: connection attempts, requests and the drain
//!   phase at the end of a schedule all have deadlines.
//! - No request is in flight between slices.
//! - A reply is counted only if it is complete and expected and, if verification is enabled, has the expected bytes.
//! - Every scheduled request is accounted for: it is answered, counted as an error, counted as unsent, or abandoned
//!   because the load was stopped.
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("anello-load requires Linux: it uses io_uring and epoll (build for a Linux target)");

pub mod check;
mod engine;
mod model;
mod output;
mod system;
mod wire;

pub use engine::pause::PauseSwitch;
pub use engine::run::{Event, Outcome, Phase, Progress, run, run_with_pause};
pub use engine::schedule::{Schedule, Share};
pub use engine::session::{Session, Slice};
pub use engine::start_time::check as check_start_time;
pub use model::config::{Address, Arrivals, HttpLoad, Knee, LoadConfig, Mode, Protocol, Sweep};
pub use model::errors::{ErrorCount, ErrorKind, Errors};
pub use model::histogram::latency_histogram;
pub use model::interval::{Counts, Interval, Latency};
pub use model::report::{
    ClockReport, Histograms, KneeReport, Pause, ProtocolReport, Report, SCHEMA, SCHEMA_VERSION, ServerCost,
    Spread, Step, TlsReport,
};
pub use model::shard::{RunIdentity, Shard};
pub use model::tls::{self, Tls, TlsOptions};
pub use output::{formats, merge};
pub use system::machine;
pub use system::process::{ProcessMeter, ProcessUsage, process_cpu_ns};

/// The example in README.md runs as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
