//! A load generator for echo servers: closed loop, every byte checked if asked for, on the anello runtime.
//!
//! *Closed loop* means that every connection has exactly one request in flight: it sends a message, waits for all of
//! the reply, and sends the next. That finds the most a server can do. It does not show how a server fares at a given
//! rate: a server that pauses is asked less, so few requests see the pause.
//!
//! ```text
//!  TcpLoad ─► Session::connect ─► run_slice ─► run_slice ─► …      the lab: slices over the same connections
//!     │                              │
//!     └──────► run(progress) ────────┴──► Report                    the command: warm-up, one long slice
//! ```
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use anello_load::{TcpLoad, run};
//!
//! let load = TcpLoad { connections: 300, verify: true, ..TcpLoad::new(([127, 0, 0, 1], 7000).into()) };
//! let runtime = anello::Runtime::new()?;
//! let report = runtime.block_on(run(&load, |_progress| ControlFlow::Continue(())))?;
//! println!("{} requests/s, errors: {:?}", report.requests_per_second, report.errors);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`Session`] is the engine: a task per connection, all on the calling thread. [`run()`] is one whole measurement with
//! CPU times, warm-up and progress. The crate prints nothing and starts no threads.
//!
//! Invariants:
//! - whatever the server does, everything ends: connecting and every request have a deadline, and a connection that
//!   broke is counted and not opened again;
//! - between slices nothing is in flight;
//! - a reply counts as a request only if it is whole and, when verified, right.
#![forbid(unsafe_code)]

mod config;
mod connection;
mod cpu;
mod errors;
mod message;
mod report;
mod run;
mod session;
mod source;

pub use config::TcpLoad;
pub use cpu::process_cpu_ns;
pub use errors::{ErrorCount, ErrorKind, Errors};
pub use report::{Latency, Report, SCHEMA, SCHEMA_VERSION, ServerCpu, Spread};
pub use run::{Phase, Progress, run};
pub use session::{Session, Slice, latency_histogram};
