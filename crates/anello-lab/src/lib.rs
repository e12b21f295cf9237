//! The lab: which server is fastest on this machine, by how much, and how sure can one be of it?
//!
//! It starts every contender as a child process on one core, loads them from another, one short slice at a time and
//! in random order, and compares each with a reference by paired rounds. One of the contenders is the reference a
//! second time (its *twin*): the difference between two runs of the same program is what this machine cannot resolve.
//!
//! ```text
//!  LabConfig ─► run ──► slices ──► analysis ──► LabResult ─► report (table, JSON, HTML)
//!                │  ▲
//!                │  └─ Machine: clock, stolen time, CPU time, processes
//!                └──── Load:    connections and requests
//! ```
//!
//! Invariants:
//! - the lab touches the world only through [`Machine`] and [`Load`]; with [`simulation`] in their place the whole of
//!   it runs without a socket, a process or a clock;
//! - a contender that fails costs its own cells and no other's;
//! - every child process is killed and reaped before [`run()`] returns, also when it returns an error or panics;
//! - with the same seed the order of the slices and every interval are the same.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod contender;
pub mod environment;
pub mod load;
pub mod machine;
pub mod report;
pub mod result;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod simulation;
pub mod statistics;
pub mod verdict;

pub use contender::Contender;
pub use environment::Environment;
pub use load::{Load, LoadSession, SliceLoad};
pub use machine::{LocalMachine, Machine, Running};
pub use report::{ReportPaths, render_html, render_json, render_table, write_reports};
pub use result::LabResult;
pub use run::{LabError, Progress, run};
pub use scenario::{Cell, LabConfig};
