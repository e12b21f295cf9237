//! Benchmark harness: determines which server is fastest on this machine, by how much, and how certain the result is.
//!
//! The lab starts every contender as a child process on one core and runs the load generator on another core.
//! Contenders are measured in short slices, in random order, and each is compared with a reference contender in paired
//! rounds. One contender is a second instance of the reference (its *twin*). The difference between these two runs of
//! the same program is the noise floor: smaller differences cannot be resolved on this machine.
//!
//! ```text
//!  LabConfig ─► run ──► slices ──► analysis ──► LabResult ─► report (table, JSON, HTML)
//!                │  ▲
//!                │  └─ Machine: clock, stolen time, CPU time, processes
//!                └──── Load:    connections and requests
//! ```
//!
//! Invariants:
//! - The lab interacts with the system only through [`Machine`] and [`Load`]. The tests implement both without sockets,
//!   processes or clocks.
//! - Across hosts ([`hosts`]), both are implemented by agents that the lab starts with ssh.
//! - If a contender fails, the results of the other contenders are kept.
//! - Every child process is killed and reaped before [`run_from`] returns, even if it returns an error or panics.
//! - The same seed gives the same order of slices and the same confidence intervals.
//!
//! ```no_run
//! use anello_lab::LabConfig;
//!
//! let config = LabConfig::preset("quick", "target/release/anello".into()).expect("the preset fits this machine");
//! println!("{} contenders, {} cells", config.contenders.len(), config.cells.len());
//! ```
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("anello-lab requires Linux: it uses io_uring and epoll (build for a Linux target)");

pub mod compare;
mod judge;
mod lab;
mod plan;
pub mod report;
pub mod result;
mod run;

pub use judge::{analysis, findings, pairs, peak, published, statistics, verdict};
pub use lab::run_from;
pub use plan::cell::{self, Cell, DiskOperation, Group, Workload};
pub use plan::config::{CoreLayout, LabConfig, Provenance, ScenarioRecord, Startup, Timing, echo_cells};
pub use plan::contender::{self, Contender, Role};
pub use plan::instructions::Instructions;
pub use plan::limits::{CellError, ConfigError};
pub use plan::method::{Method, UnknownMethod};
pub use plan::network::{Endpoint, Interface, NetworkPath};
pub use plan::scenario::{PRESETS, Resources, ScenarioError, drop_cells_over_limit, preset, resolve};
pub use plan::site::{self, Target};
pub use plan::{commit, peers, schedule};
pub use report::{
    ReportPaths, check_outputs, raw, render_html, render_json, render_markdown, render_page, render_plots,
    render_table, write_html, write_json, write_reports,
};
pub use result::executable::{self, Executable};
pub use result::{Environment, LabResult, latency, measure};
pub use run::hosts::{self, Hosts};
pub use run::load::{self, Check, Load, LoadError, LoadSession, SliceLoad};
pub use run::local::LocalMachine;
pub use run::machine::{self, Machine, MachineError, Running, Usage};
pub use run::process::ServerProcess;
pub use run::progress::{Observer, Progress};
pub use run::{Difference, LabError, ResumeError, check_same_scenario, checkpoint, tls};
