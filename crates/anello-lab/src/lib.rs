//! Benchmark harness: finds the fastest server on this machine, by how much it is faster, and how certain the
//! result is.
//!
//! The lab starts every contender as a child process on one core and loads it from another core. Contenders are
//! measured in short slices, in random order, and each is compared with a reference contender by paired rounds. One
//! contender is a second instance of the reference (its *twin*). The difference between these two runs of the same
//! program is the noise floor: smaller differences cannot be resolved on this machine.
//!
//! ```text
//!  LabConfig ─► run ──► slices ──► analysis ──► LabResult ─► report (table, JSON, HTML)
//!                │  ▲
//!                │  └─ Machine: clock, stolen time, CPU time, processes
//!                └──── Load:    connections and requests
//! ```
//!
//! Invariants:
//! - The lab interacts with the system only through [`Machine`] and [`Load`]. With the implementations in
//!   [`simulation`], the whole lab runs without sockets, processes or clocks.
//! - A contender that fails loses only its own cells.
//! - Every child process is killed and reaped before [`run()`] returns, even if it returns an error or panics.
//! - The same seed gives the same order of slices and the same confidence intervals.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod cell;
pub mod checkpoint;
pub mod commit;
pub mod compare;
pub mod contender;
mod cpu_throttle;
pub mod environment;
pub mod executable;
mod findings;
pub mod instructions;
pub mod latency;
pub mod load;
pub mod machine;
pub mod measure;
pub mod pairs;
pub mod peak;
pub mod peers;
pub mod published;
pub mod raw;
mod record;
mod replace;
pub mod report;
pub mod result;
pub mod run;
mod runner;
pub mod scenario;
pub mod schedule;
pub mod simulation;
pub mod site;
pub mod statistics;
pub mod tls;
pub mod validity;
mod verdict;

pub use cell::{Cell, DiskOperation, Group, Workload};
pub use contender::{Contender, Role};
pub use environment::Environment;
pub use executable::Executable;
pub use instructions::Instructions;
pub use load::{Check, Load, LoadSession, SliceLoad};
pub use machine::{LocalMachine, Machine, Running, Usage};
pub use report::{
    ReportPaths, render_html, render_json, render_markdown, render_page, render_plots, render_table,
    write_html, write_reports,
};
pub use result::LabResult;
pub use run::{LabError, Observer, Progress, run, run_from};
pub use scenario::{
    LabConfig, PRESETS, Resources, ScenarioError, drop_cells_over_limit, echo_cells, preset, resolve,
};
pub use site::Target;
