//! A load generator for TCP, Unix and HTTP/1.1 servers: closed loop, open loop and sweeps, every byte checked if asked
//! for, on the anello runtime.
//!
//! ```text
//!             ┌─► thread 0: runtime, Session ─┐ intervals
//!  Load ─► run ─► thread 1: runtime, Session ─┴─► Report, total histograms      the command: one whole measurement
//!     │
//!     └─► Session::connect ─► run_slice ─► run_slice ─► …                       the lab: slices over the same connections
//!
//!  a Session:   MeasurementRunner (when what is due, what is over)
//!                  │ ConnectionSlot  what both sides of a connection's place share: its line, since when it waits
//!               Connection  (one task each) ── Stream (TCP, Unix, TLS) ── ReplyDecoder (messages, HTTP: bytes in, ReplyChecks out)
//!                  └─► Counters  what was counted; cut into Intervals
//! ```
//!
//! **Closed loop.** Every connection sends a request, waits for all of its reply, and sends the next, perhaps after some
//! time to think. That finds the most a server can do. It does not show how a server fares at a given rate: a server
//! that pauses is asked less, so few requests see the pause.
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
//! **Open loop.** Requests are due at moments that are fixed before, spread over the connections in turn, whether replies
//! come or not. Latency counts from the moment a request was due, so that a pause of the server shows in all requests of
//! that time; the figure from the actual sending stands beside it. A request whose connection is still busy waits in
//! that connection's line.
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use std::ops::ControlFlow;
//!
//! use anello_load::{Arrivals, Event, LoadConfig, Mode, run};
//!
//! let server = SocketAddr::from(([127, 0, 0, 1], 8080));
//! let load = LoadConfig {
//!     connections: 100,
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
//! **Sweep.** One open loop after the other at rising rates over the same connections, until the server does not follow.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use std::path::PathBuf;
//! use std::time::Duration;
//!
//! use anello_load::{Arrivals, Knee, LoadConfig, Mode, Sweep, run};
//!
//! let sweep = Sweep {
//!     first: 10_000,
//!     last: 200_000,
//!     step: 10_000,
//!     arrivals: Arrivals::Constant,
//!     seed: 1,
//!     knee: Knee::default(),
//! };
//! let load = LoadConfig {
//!     mode: Mode::Sweep(sweep),
//!     duration: Duration::from_secs(5),
//!     ..LoadConfig::echo(PathBuf::from("/run/echo.sock"), 1024)
//! };
//! let report = run(&load, &anello::Runtime::builder(), |_| ControlFlow::Continue(()))?.report;
//! if let Some(knee) = report.knee {
//!     println!("{} requests/s are too many: {}", knee.per_second, knee.why);
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`run()`] starts the load's threads and waits for them. [`Session`] is the engine of one of them, on the calling
//! thread. The crate prints nothing. [`formats`] writes intervals for other programs, [`merge`] adds those of several
//! machines.
//!
//! Invariants:
//! - whatever the server does, everything ends: connecting and every request have a deadline, and so has what is left of
//!   a schedule;
//! - between slices nothing is in flight;
//! - a reply counts as a request only if it is whole, expected and, when verified, right;
//! - nothing is lost: a request of a schedule is answered, has an error, is unsent, or was given up when the load was
//!   stopped.
#![forbid(unsafe_code)]

pub mod check;
mod config;
mod connect;
mod connect_all;
mod connection;
mod connection_slot;
mod errors;
mod exchange;
pub mod formats;
mod histogram;
mod http;
mod interval;
mod knee;
pub mod machine;
mod measurement;
pub mod merge;
mod message;
mod process;
mod report;
mod run;
mod schedule;
mod series;
mod session;
mod shared;
mod stream;
pub mod tls;
mod worker;

pub use config::{Arrivals, HttpLoad, Knee, LoadConfig, Mode, Protocol, Sweep};
pub use errors::{ErrorCount, ErrorKind, Errors};
pub use interval::Interval;
pub use process::{ProcessMeter, ProcessUsage, process_cpu_ns};
pub use report::{
    KneeReport, Latency, ModeReport, ProtocolReport, Report, SCHEMA, SCHEMA_VERSION, ServerCost, Spread,
    Step, TlsReport,
};
pub use run::{Event, Outcome, Phase, Progress, run};
pub use session::{Session, Slice, latency_histogram};
pub use stream::Address;
pub use tls::{Tls, TlsOptions};
