//! What a run found: the form in which it is kept, read again and reported.
//!
//! The JSON report is a [`LabResult`] as it stands here. [`SCHEMA_VERSION`] goes up with every change that an old
//! reader would misunderstand; fields that are only added do not count.

mod figures;
mod finding;
mod slice;

use serde::{Deserialize, Serialize};

use crate::analysis;
use crate::cell::{Cell, Group, Workload};
use crate::contender::Role;
use crate::environment::Environment;
use crate::executable::Executable;
use crate::instructions::Instructions;
use crate::peers::{Kind, Serves};
use crate::statistics::{Estimate, Ratio};
use crate::validity;

pub use figures::Figures;
pub use finding::{Consequence, Failure, Finding, FindingKind, Verdict};
pub use slice::{Quality, Slice};

/// Name of the format.
pub const SCHEMA: &str = "anello-lab";

/// Version of the format.
pub const SCHEMA_VERSION: u32 = 2;

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
    /// Whether the run was stopped before its end; so it is in every checkpoint.
    pub interrupted: bool,
    /// What the run set out to do.
    pub plan: Plan,
    /// The verdicts in sentences, the most important first.
    pub findings: Vec<Finding>,
    /// Who competed.
    pub contenders: Vec<ContenderRecord>,
    /// What the contenders did when they were checked, before anything was timed; empty if they were not.
    pub checks: Vec<CheckRecord>,
    /// What was found in each cell, in the order of [`Plan::cells`].
    pub cells: Vec<CellResult>,
    /// Anello against each peer on the same kind of driver, cell by cell.
    pub versus: Vec<PairComparison>,
    /// Anello against each peer that is an async runtime and does I/O in another way, cell by cell.
    #[serde(default)]
    pub runtime_versus: Vec<PairComparison>,
    /// Anello against each peer that does I/O in another way and is no async runtime, cell by cell. Findings speak of them
    /// where they are HTTP servers, among which people choose whatever their way; else part of each difference is that way.
    #[serde(default)]
    pub other_versus: Vec<PairComparison>,
    /// Each contender that names one which differs from it in nothing but what it is named for
    /// ([`ContenderRecord::base`]) against that one, cell by cell.
    #[serde(default)]
    pub base_versus: Vec<PairComparison>,
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
    /// The passes and cells that were gone through to their end, in this order.
    pub completed: Vec<Completed>,
    /// Every slice of load, in the order they ran.
    pub slices: Vec<Slice>,
    /// The latencies of all clean slices.
    pub latencies: Vec<LatencyRecord>,
    /// Instructions per request that were counted elsewhere and given to the run; none if none were.
    #[serde(default)]
    pub instructions: Option<Instructions>,
}

impl LabResult {
    /// The groups of cells, in the order in which they first appear: one chart for each.
    #[must_use]
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for group in self.plan.cells.iter().map(Cell::group) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// The cells of a group as they were found, in the order of the plan.
    #[must_use]
    pub fn cells_of(&self, group: &Group) -> Vec<&CellResult> {
        self.cells.iter().filter(|cell| cell.cell.group() == *group).collect()
    }

    /// Anello against every peer, cell by cell: those that do I/O the same way first, then the runtimes among the others,
    /// then the rest of them.
    pub fn all_pair_comparisons(&self) -> impl Iterator<Item = &PairComparison> {
        self.versus.iter().chain(&self.runtime_versus).chain(&self.other_versus)
    }

    /// In whose words sentences about the whole run speak: those of its first workload that is no disk, else of disks.
    pub(crate) fn workload(&self) -> Workload {
        let all = || self.plan.cells.iter().map(|cell| cell.workload);
        let spoken = all().find(|workload| !workload.is_disk()).or_else(|| all().next());
        spoken.unwrap_or(Workload::Idle)
    }

    /// Reads a result as [`render_json`](crate::render_json) writes it. A checkpoint has slices and no figures: what a run
    /// that crashed leaves behind is worked out here, like one that was stopped.
    ///
    /// # Errors
    /// What is wrong with the text: another format, another version of it, no JSON, or a result that does not hang
    /// together.
    pub fn from_json(text: &str) -> Result<LabResult, String> {
        let mut result = LabResult::as_written(text)?;
        if result.cells.is_empty() {
            analysis::analyse(&mut result);
        }
        Ok(result)
    }

    /// Reads a result or a checkpoint without working anything out: to go on with.
    pub(crate) fn as_written(text: &str) -> Result<LabResult, String> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
            schema_version: Option<u32>,
        }
        let head: Head =
            serde_json::from_str(text).map_err(|error| format!("not the JSON of a run: {error}"))?;
        match (head.schema.as_deref(), head.schema_version) {
            (Some(SCHEMA), Some(SCHEMA_VERSION)) => {}
            (Some(SCHEMA), Some(version)) => {
                return Err(format!(
                    "this is version {version} of the {SCHEMA} format, and this program reads version \
                     {SCHEMA_VERSION}: use the anello that wrote it, or repeat the run"
                ));
            }
            _ => return Err(format!("not a result of the lab: it does not say \"schema\": \"{SCHEMA}\"")),
        }
        let damaged = |why: String| format!("a result that is damaged: {why}");
        let mut result: LabResult = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        // Runs are kept that call it by its short name: they were not made in another way.
        if result.plan.load_driver.as_deref() == Some("uring") {
            result.plan.load_driver = Some("io_uring".to_owned());
        }
        validity::check(&result).map_err(damaged)?;
        Ok(result)
    }
}

/// What servers had of their cores before runs told it.
fn default_server_share() -> f64 {
    1.0
}

/// What the run set out to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The scenario that it follows.
    pub scenario: ScenarioRecord,
    /// Version of the program under test.
    pub version: String,
    /// The command line that repeats the run.
    pub repeat_command: String,
    /// The seed of order and bootstrap.
    pub seed: u64,
    /// Length of a slice.
    pub slice_ns: u64,
    /// Load before the first slice of a cell, not counted.
    pub warm_up_ns: u64,
    /// How often all contenders were to start anew.
    pub passes: usize,
    /// Rounds in each cell of each pass.
    pub rounds: usize,
    /// The cells, grouped by chart and in the order of their place in it.
    pub cells: Vec<Cell>,
    /// Cores that contenders may use; a cell uses as many of the first as it says.
    pub server_cores: Vec<usize>,
    /// Cores of the load.
    pub load_cores: Vec<usize>,
    /// What the load ran on: "epoll", "io_uring"; none if it did not tell.
    #[serde(default)]
    pub load_driver: Option<String>,
    /// The part of their cores that servers had in crowded closed loops, see [`LabConfig`](crate::LabConfig).
    #[serde(default = "default_server_share")]
    pub server_share: f64,
    /// The file that disk workers read and wrote; none where there were none, or where its path is no UTF-8. Whoever
    /// takes the run up again must name the same, since it stands in the workers' commands.
    #[serde(default)]
    pub disk_file: Option<String>,
    /// Name of the contender the others are compared with.
    pub reference: String,
    /// A slice was dropped if more than this fraction of it was stolen or throttled.
    pub stolen_fraction_limit: f64,
    /// Whether contenders were checked before they were timed.
    pub checked: bool,
}

/// The scenario of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioRecord {
    /// Short name: that of the preset, or of the file.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What it is for, in a few sentences.
    pub description: String,
    /// The publication whose comparison it repeats, if it repeats one.
    pub source: Option<String>,
    /// The file as it was; empty if the run was put together by flags alone.
    pub text: String,
    /// What was scaled down for this machine, and how; what flags changed.
    pub scaling: Vec<String>,
}

/// One competitor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContenderRecord {
    /// Its name.
    pub name: String,
    /// What it is here.
    pub role: Role,
    /// Its command line.
    pub command: String,
    /// The files of its program with their hashes, the program itself first; without those that could not be read.
    #[serde(default)]
    pub executables: Vec<Executable>,
    /// What it said when it was ready; none if it never was.
    pub ready_line: Option<String>,
    /// How it does I/O: "io_uring", "epoll", "poll", "select", "threads", an engine for disks. As it said itself when it
    /// was ready, else as it was declared; none if nobody knows.
    pub driver: Option<String>,
    /// Version of it, or of the library it stands for.
    pub version: Option<String>,
    /// The commit of its sources, or of the library it stands for; "+changes" ("-dirty" in older results) follows where
    /// they were changed since. None if nobody knows.
    #[serde(default)]
    pub commit: Option<String>,
    /// The checksum of the library it stands for, as its lock file has it: "sha256:…", "h1:…". None where there is no
    /// such library or lock file, or nobody knows.
    #[serde(default)]
    pub library_checksum: Option<String>,
    /// Of a server around a library: the commit that its own sources were at when it was built, with the same mark. None
    /// for others, and if nobody knows.
    #[serde(default)]
    pub server_commit: Option<String>,
    /// What it was built with: language, toolchain, and what else was said about the build.
    pub built_with: Option<String>,
    /// What else is known about it.
    pub features: Vec<String>,
    /// Most connections that it is made for.
    pub connections_limit: Option<usize>,
    /// Whether it can be told to use several cores.
    pub many_cores: bool,
    /// Part of a core that it used while it had nothing to do, if that was enough to disturb others: it was halted then
    /// while they had their turns.
    #[serde(default, rename = "idle_use")]
    pub idle_cpu_fraction: Option<f64>,
    /// Set if it is the named contender a second time.
    pub twin_of: Option<String>,
    /// What kind of peer it is; none for others, and for those that do not say.
    #[serde(default)]
    pub kind: Option<Kind>,
    /// What an HTTP server has answers for; empty for others.
    #[serde(default)]
    pub serves: Vec<Serves>,
    /// The contender that differs from it in nothing but what it is named for; none if it names none.
    #[serde(default, rename = "against")]
    pub base: Option<String>,
}

/// What one contender did in one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRecord {
    /// The contender.
    pub contender: String,
    /// Which check, in words: "complete bytes", "stalled reader", "5000 connections".
    pub what: String,
    /// Whether it did what a server must.
    pub passed: bool,
    /// What it did, line by line; what was left out of the check, and why.
    pub details: Vec<String>,
    /// How long the check took.
    pub elapsed_ns: u64,
}

/// A cell that was gone through to its end in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Completed {
    /// The pass, from 0.
    pub pass: usize,
    /// Index of the cell in [`Plan::cells`].
    pub cell: usize,
}

/// The latencies of one contender in one cell, over all clean slices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyRecord {
    /// Index of the contender.
    pub contender: usize,
    /// Index of the cell in [`Plan::cells`].
    pub cell: usize,
    /// The pass, if the run was stopped within this cell of it; else the latencies of all passes that went through.
    pub unfinished_pass: Option<usize>,
    /// HdrHistogram V2, compressed, in base64; in nanoseconds. See [`crate::latency::decode`].
    pub histogram: String,
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
    /// The same in the median latency; only where a rate was offered.
    pub p50_resolution: Option<f64>,
    /// The same in the 99th percentile of the latency; only where a rate was offered.
    pub p99_resolution: Option<f64>,
    /// The same in memory per connection; only for idle connections.
    pub memory_resolution: Option<f64>,
    /// The same in CPU of server and load together per request; only over HTTP.
    #[serde(default)]
    pub cpu_of_both_resolution: Option<f64>,
    /// The machine's slow and fast phases, if it had them here.
    pub phases: Option<PhaseSummary>,
    /// One row for each contender, in their order.
    pub rows: Vec<Row>,
}

/// The machine was slow at times and fast at others while a cell was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PhaseSummary {
    /// A request took so many times as long in a slow phase.
    pub slow_factor: f64,
    /// Part of the slices that ran in a slow phase.
    pub slow_fraction: f64,
    /// How often one phase gave way to the other between two slices.
    pub changes: usize,
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
    /// Slices dropped because the contender's or the lab's group of processes was throttled.
    pub throttled_slices: usize,
    /// Slices dropped for other reasons.
    pub spoilt_slices: usize,
    /// Rounds in which it and the reference ran in different phases of the machine, so that they give no ratio.
    pub mixed_phase_rounds: usize,
    /// How often it had to be started again in this cell.
    pub restarts: usize,
    /// The figures; none if it was not measured or its answers were wrong.
    pub figures: Option<Figures>,
    /// Requests/s as a multiple of the reference's.
    pub rate_ratio: Option<Ratio>,
    /// Server CPU per request as a multiple of the reference's.
    pub cpu_ratio: Option<Ratio>,
    /// The low decile of server CPU per request as a multiple of the reference's: what remains when the machine is at
    /// its best.
    pub cpu_low_ratio: Option<Ratio>,
    /// Median latency as a multiple of the reference's; only where a rate was offered.
    pub p50_ratio: Option<Ratio>,
    /// 99th percentile of the latency as a multiple of the reference's; only where a rate was offered.
    pub p99_ratio: Option<Ratio>,
    /// Memory per connection as a multiple of the reference's; only for idle connections.
    pub memory_ratio: Option<Ratio>,
    /// CPU of server and load together per request as a multiple of the reference's; only over HTTP.
    #[serde(default)]
    pub cpu_of_both_ratio: Option<Ratio>,
    /// What can be said about the rate.
    pub rate_verdict: Verdict,
    /// What can be said about the CPU per request.
    pub cpu_verdict: Verdict,
    /// What can be said about the median latency.
    pub p50_verdict: Verdict,
    /// What can be said about the 99th percentile of the latency.
    pub p99_verdict: Verdict,
    /// What can be said about the memory per connection.
    pub memory_verdict: Verdict,
    /// What can be said about the CPU of server and load together per request.
    #[serde(default)]
    pub cpu_of_both_verdict: Verdict,
    /// Memory of the process for each idle connection, in bytes, without what the kernel keeps for it; only for idle
    /// connections.
    pub memory_per_connection_bytes: Option<Estimate>,
    /// Instructions of the server for each request, kernel and user together, from [`LabResult::instructions`]; none if
    /// they were not counted.
    #[serde(default)]
    pub instructions_per_request: Option<f64>,
    /// Latency in nanoseconds by quantile, over all clean slices together; empty if it was not measured.
    pub latency_curve: Vec<(f64, u64)>,
}

/// One contender against another in one cell: one of anello's drivers against a peer, or one that differs from another in
/// one thing against that one, its base. What is said of anello and the peer below holds for these two as well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairComparison {
    /// Anello on one driver; or who names a base.
    pub contender: String,
    /// The peer; or the base.
    pub peer: String,
    /// The cell.
    pub cell: Cell,
    /// Rounds in which the two ran in different phases of the machine, so that they give no ratio.
    pub mixed_phase_rounds: usize,
    /// Requests/s of anello as a multiple of the peer's.
    pub rate_ratio: Option<Ratio>,
    /// Server CPU per request of anello as a multiple of the peer's.
    pub cpu_ratio: Option<Ratio>,
    /// 99th percentile of anello's latency as a multiple of the peer's; only where a rate was offered.
    pub p99_ratio: Option<Ratio>,
    /// Memory per connection of anello as a multiple of the peer's; only for idle connections.
    pub memory_ratio: Option<Ratio>,
    /// CPU of server and load together per request with anello as a multiple of that with the peer; only over HTTP.
    #[serde(default)]
    pub cpu_of_both_ratio: Option<Ratio>,
    /// What can be said about the rate. More: anello's is higher.
    pub rate_verdict: Verdict,
    /// What can be said about the CPU per request. Less: anello's is lower.
    pub cpu_verdict: Verdict,
    /// What can be said about the 99th percentile of the latency.
    pub p99_verdict: Verdict,
    /// What can be said about the memory per connection.
    pub memory_verdict: Verdict,
    /// What can be said about the CPU of server and load together per request.
    #[serde(default)]
    pub cpu_of_both_verdict: Verdict,
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
    /// It did not do what a server must when it was checked, and was not timed.
    CheckFailed(String),
    /// The cell asks for more than it is made for.
    BeyondLimit(String),
    /// It has no answer for what the cell asks for.
    NotServed(String),
    /// The run ended before its turn came, or no slice was clean.
    NotMeasured,
}
