//! What a run found: the form in which it is kept, read again and reported.
//!
//! The JSON report is a [`LabResult`] as it stands here. [`SCHEMA_VERSION`] goes up with every change that an old
//! reader would misunderstand; fields that are only added do not count.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::scenario::Cell;
use crate::statistics::{Estimate, Ratio};

/// Name of the format.
pub const SCHEMA: &str = "anello-lab";

/// Version of the format.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabResult {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The [`SCHEMA_VERSION`] it was written by.
    pub schema_version: u32,
    /// Start of the run, seconds since 1970.
    pub started_unix_s: u64,
    /// Length of the run.
    pub elapsed_ns: u64,
    /// Whether the run was stopped before its end.
    pub interrupted: bool,
    /// What the run set out to do.
    pub plan: Plan,
    /// The verdicts in sentences, the most important first.
    pub findings: Vec<Finding>,
    /// Who competed.
    pub contenders: Vec<ContenderRecord>,
    /// What was found in each cell, by message size and then connections.
    pub cells: Vec<CellResult>,
    /// Everything that went wrong, in order.
    pub failures: Vec<Failure>,
    /// What else the reader should know about the run.
    pub notes: Vec<String>,
    /// Part of the cores' time that other programs took during the run; none if the kernel does not tell.
    pub foreign_fraction: Option<f64>,
    /// The machine before the run.
    pub environment: Environment,
    /// The machine after it.
    pub environment_after: Environment,
    /// Every slice of load, in the order they ran.
    pub slices: Vec<Slice>,
}

/// What the run set out to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of the program under test.
    pub version: String,
    /// The command line that repeats the run.
    pub repeat_command: String,
    /// The seed of order and bootstrap.
    pub seed: u64,
    /// Length of a slice.
    pub slice_ns: u64,
    /// How often all contenders were to start anew.
    pub passes: usize,
    /// Rounds in each cell of each pass.
    pub rounds: usize,
    /// Numbers of connections.
    pub connections: Vec<usize>,
    /// Message sizes.
    pub message_bytes: Vec<usize>,
    /// Core of the contenders.
    pub server_core: usize,
    /// Core of the load.
    pub load_core: usize,
    /// Name of the contender the others are compared with.
    pub reference: String,
    /// A slice was dropped if more than this fraction of it was stolen.
    pub stolen_fraction_limit: f64,
}

/// One competitor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContenderRecord {
    /// Its name.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// What it said when it was ready; none if it never was.
    pub ready_line: Option<String>,
    /// Set if it is the named contender a second time.
    pub twin_of: Option<String>,
}

/// What was found in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// Which cell.
    pub cell: Cell,
    /// What two equal servers differ by here, in requests/s, as a fraction; none if the twin was not measured.
    pub rate_resolution: Option<f64>,
    /// The same in server CPU per request.
    pub cpu_resolution: Option<f64>,
    /// One row for each contender, in their order.
    pub rows: Vec<Row>,
}

/// What was found about one contender in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The contender.
    pub contender: String,
    /// Whether it was measured, and if not, why.
    pub outcome: Outcome,
    /// Slices that count.
    pub clean_slices: usize,
    /// Slices dropped because of stolen time.
    pub stolen_slices: usize,
    /// Slices dropped for other reasons.
    pub spoilt_slices: usize,
    /// How often it had to be started again in this cell.
    pub restarts: usize,
    /// The figures; none if it was not measured or its answers were wrong.
    pub figures: Option<Figures>,
    /// Requests/s as a multiple of the reference's.
    pub rate_ratio: Option<Ratio>,
    /// Server CPU per request as a multiple of the reference's.
    pub cpu_ratio: Option<Ratio>,
    /// What can be said about the rate.
    pub rate_verdict: Verdict,
    /// What can be said about the CPU per request.
    pub cpu_verdict: Verdict,
}

/// Whether a contender was measured in a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "why", rename_all = "snake_case")]
pub enum Outcome {
    /// It was.
    Measured,
    /// It could not be started, for this reason.
    Skipped(String),
    /// It broke in this way, and its figures do not count.
    Failed(String),
    /// The run ended before its turn came, or no slice was clean.
    NotMeasured,
}

/// The figures of one contender in one cell, over its clean slices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests answered per second.
    pub requests_per_second: Estimate,
    /// Median time to a reply, in nanoseconds.
    pub p50_ns: Estimate,
    /// 99th percentile of the time to a reply, in nanoseconds.
    pub p99_ns: Estimate,
    /// CPU time of the server per request, in nanoseconds.
    pub cpu_ns: Estimate,
    /// A tenth of the slices cost the server less than this, in nanoseconds per request.
    pub cpu_low_decile_ns: f64,
    /// Part of the time that the server was on its core, 0 to 1 (more with several cores).
    pub server_busy: f64,
}

/// What can be said about one figure of one contender against the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// This is the reference.
    Reference,
    /// More than the reference's, beyond doubt.
    More,
    /// Less than the reference's, beyond doubt.
    Less,
    /// The interval includes equality, or the difference is one that two equal servers show here too.
    NoDifference,
    /// Two equal servers differ so much here, or there are so few clean slices, that nothing can be said.
    TooNoisy,
    /// One of the two was not measured.
    NotComparable,
}

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Whom it befell.
    pub contender: String,
    /// Where; none if it was at the start of a pass.
    pub cell: Option<Cell>,
    /// In which pass, from 0.
    pub pass: usize,
    /// What it did.
    pub what: String,
    /// What the lab did about it.
    pub consequence: Consequence,
}

/// What the lab did about a contender that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consequence {
    /// It could not be started and does not take part in this pass.
    SkippedPass,
    /// It was started again, once, and goes on.
    Restarted,
    /// It broke a second time and does not take part in the rest of the cell.
    LeftOut,
    /// It answered wrongly and is not measured in this cell again.
    Disqualified,
}

impl fmt::Display for Consequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Consequence::SkippedPass => "skipped in this pass",
            Consequence::Restarted => "started again once",
            Consequence::LeftOut => "left out for the rest of this cell",
            Consequence::Disqualified => "not measured in this cell again",
        })
    }
}

/// One verdict in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// One or two sentences.
    pub text: String,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The answer to the question that the lab was asked.
    Headline,
    /// One contender.
    Contender,
    /// What the machine can resolve, and where it cannot.
    Resolution,
    /// Something to keep in mind when reading the figures.
    Caution,
    /// A contender that failed.
    Failure,
}

/// One slice of load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Index of the contender.
    pub contender: usize,
    /// The cell.
    pub cell: Cell,
    /// Pass, from 0.
    pub pass: usize,
    /// Round within cell and pass, from 0.
    pub round: usize,
    /// Requests answered.
    pub requests: u64,
    /// From the first request to the last reply.
    pub elapsed_ns: u64,
    /// CPU time of the server.
    pub cpu_ns: u64,
    /// Time stolen from the cores used.
    pub stolen_ns: u64,
    /// Median time to a reply.
    pub p50_ns: u64,
    /// 99th percentile of the time to a reply.
    pub p99_ns: u64,
    /// Whether it counts.
    pub quality: Quality,
}

impl Slice {
    /// Requests answered per second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// CPU time of the server per request, in nanoseconds.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> f64 {
        self.cpu_ns as f64 / self.requests.max(1) as f64
    }
}

/// Whether a slice counts, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// It counts.
    Clean,
    /// The hypervisor took part of it.
    Stolen,
    /// There were errors, no requests, or the server's CPU time could not be told.
    Spoilt,
}
