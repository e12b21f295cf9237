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
