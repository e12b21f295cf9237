//! Result of a run: the types that are stored, read back and reported.
//!
//! The JSON report is a serialized [`LabResult`]. [`SCHEMA_VERSION`] is incremented with every change that an older
//! reader would misinterpret. Adding a field does not change the version.

pub mod environment;
mod estimate;
pub mod executable;
mod figures;
mod finding;
pub mod latency;
pub mod measure;
mod slice;
pub(crate) mod time;
mod validity;

use serde::{Deserialize, Serialize};

use crate::plan::cell::{Cell, Group, Workload};
use crate::plan::config::ScenarioRecord;
use crate::plan::contender::Role;
use crate::plan::contender::{Kind, Serves};
use crate::plan::instructions::Instructions;
use executable::Executable;

pub use environment::{Disk, Environment};
pub use estimate::{Estimate, Ratio};
pub use figures::Figures;
pub use finding::{Consequence, Failure, Finding, FindingKind, Verdict};
pub use slice::{Quality, Slice};

/// Name of the format.
pub const SCHEMA: &str = "anello-lab";

/// Version of the format.
pub const SCHEMA_VERSION: u32 = 2;

/// Complete result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabResult {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The [`SCHEMA_VERSION`] with which the result was written.
    pub schema_version: u32,
    /// Start of the run, in seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// Duration of the run, in nanoseconds.
    pub elapsed_ns: u64,
    /// `true` if the run was stopped before it was complete. Always `true` in a checkpoint.
    pub interrupted: bool,
    /// Plan of the run.
    pub plan: Plan,
    /// Findings in sentences, the most important first.
    pub findings: Vec<Finding>,
    /// Contenders of the run.
    pub contenders: Vec<ContenderRecord>,
    /// Results of the checks that ran before the measurements; empty if the contenders were not checked.
    pub checks: Vec<CheckRecord>,
    /// Results of the cells, in the order of [`Plan::cells`].
    pub cells: Vec<CellResult>,
    /// Comparisons of the anello contenders with the peers that use the same kind of I/O, cell by cell.
    pub versus: Vec<PairComparison>,
    /// Comparisons of the anello contenders with async runtimes that use a different kind of I/O, cell by cell.
    #[serde(default)]
    pub runtime_versus: Vec<PairComparison>,
    /// Comparisons of the anello contenders with the other peers that use a different kind of I/O, cell by cell. Part
    /// of each difference is due to the kind of I/O. The findings include these comparisons only for HTTP servers,
    /// which users choose regardless of the kind of I/O.
    #[serde(default)]
    pub other_versus: Vec<PairComparison>,
    /// Comparisons of the contenders that name a base ([`ContenderRecord::base`]) with that base, cell by cell.
    #[serde(default)]
    pub base_versus: Vec<PairComparison>,
    /// All failures, in the order in which they occurred.
    pub failures: Vec<Failure>,
    /// Further notes on the run.
    pub notes: Vec<String>,
    /// Fraction of the cores' time used by other processes during the run; `None` if the kernel does not report it.
    pub foreign_fraction: Option<f64>,
    /// State of the machine before the run.
    pub environment: Environment,
    /// State of the machine after the run.
    pub environment_after: Environment,
    /// Completed cells with their passes, in the order of completion.
    pub completed: Vec<Completed>,
    /// All slices of load, in the order in which they ran.
    pub slices: Vec<Slice>,
    /// Latency histograms of all clean slices.
    pub latencies: Vec<LatencyRecord>,
    /// Instructions per request, counted in a separate run and passed to this one; `None` if there are none.
    #[serde(default)]
    pub instructions: Option<Instructions>,
}

impl LabResult {
    /// Returns the name of the run's files without extension.
    pub(crate) fn file_stem(&self) -> String {
        format!("lab-{}", time::compact_time(self.started_unix_s))
    }

    /// Returns the groups of cells in the order of their first appearance. Each group has one chart.
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

    /// Returns the results of the cells of a group, in the order of the plan.
    #[must_use]
    pub fn cells_of(&self, group: &Group) -> Vec<&CellResult> {
        self.cells.iter().filter(|cell| cell.cell.group() == *group).collect()
    }

    /// Returns the comparisons of the anello contenders with all peers: first those with the same kind of I/O, then the
    /// other runtimes, then the other servers.
    pub fn all_pair_comparisons(&self) -> impl Iterator<Item = &PairComparison> {
        self.versus.iter().chain(&self.runtime_versus).chain(&self.other_versus)
    }

    /// Returns the workload whose terms are used in sentences about the whole run: the first workload other than disk,
    /// or the first workload if there are only disk workloads.
    pub(crate) fn workload(&self) -> Workload {
        let all = || self.plan.cells.iter().map(|cell| cell.workload);
        let representative = all().find(|workload| !workload.is_disk()).or_else(|| all().next());
        representative.unwrap_or(Workload::Idle)
    }

    /// Parses a result or a checkpoint without computing missing figures. Used to resume a run.
    ///
    /// # Errors
    /// Returns the same errors as [`from_json`](Self::from_json).
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
                    "unsupported version {version} of the {SCHEMA} format: this program reads version \
                     {SCHEMA_VERSION} (use the anello that wrote it, or repeat the run)"
                ));
            }
            _ => return Err(format!("not a lab result: \"schema\" is not \"{SCHEMA}\"")),
        }
        let damaged = |why: String| format!("damaged result: {why}");
        let mut result: LabResult = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        // Older results use the short name of the same driver.
        if result.plan.load_driver.as_deref() == Some("uring") {
            result.plan.load_driver = Some("io_uring".to_owned());
        }
        validity::check(&result).map_err(damaged)?;
        Ok(result)
    }
}

/// Server share of results that were written before the field existed.
fn default_server_share() -> f64 {
    1.0
}

/// Plan of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Scenario of the run.
    pub scenario: ScenarioRecord,
    /// Version of anello under test.
    pub version: String,
    /// Command line that repeats the run.
    pub repeat_command: String,
    /// Seed of the order of slices and of the bootstrap.
    pub seed: u64,
    /// Duration of a slice, in nanoseconds.
    pub slice_ns: u64,
    /// Duration of the warm-up before the first slice of a cell, in nanoseconds. Requests of the warm-up are not
    /// counted.
    pub warm_up_ns: u64,
    /// Number of passes. Each pass starts new processes of all contenders.
    pub passes: usize,
    /// Number of rounds in each cell of each pass.
    pub rounds: usize,
    /// Cells, grouped by chart and in the order of the chart.
    pub cells: Vec<Cell>,
    /// Cores that contenders may use. A cell uses the first [`Cell::server_cores`] of them.
    pub server_cores: Vec<usize>,
    /// Cores of the load generator.
    pub load_cores: Vec<usize>,
    /// Driver of the load generator, "epoll" or "io_uring"; `None` if it did not report one.
    #[serde(default)]
    pub load_driver: Option<String>,
    /// Fraction of their cores' time that servers could use in saturated closed loops, see
    /// [`LabConfig`](crate::LabConfig).
    #[serde(default = "default_server_share")]
    pub server_share: f64,
    /// File that the disk workers read and wrote; `None` if there were no disk workers or if the path is not valid
    /// UTF-8. A resumed run must use the same file, because its path is part of the workers' commands.
    #[serde(default)]
    pub disk_file: Option<String>,
    /// Name of the reference, with which the other contenders are compared.
    pub reference: String,
    /// Fraction of a slice that may be stolen or throttled. A slice above this limit is excluded.
    pub stolen_fraction_limit: f64,
    /// `true` if the contenders were checked before the measurements.
    pub checked: bool,
}

/// One contender of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContenderRecord {
    /// Unique name of the contender in this run.
    pub name: String,
    /// Role of the contender in the comparison.
    pub role: Role,
    /// Command line that starts the contender.
    pub command: String,
    /// Files of the program with their hashes, the executable first. Files that could not be read are missing.
    #[serde(default)]
    pub executables: Vec<Executable>,
    /// Line that the contender printed when it was ready; `None` if it never became ready.
    pub ready_line: Option<String>,
    /// Kind of I/O: "io_uring", "epoll", "poll", "select", "threads", or the engine of a disk worker. Taken from the
    /// ready line, otherwise from the declaration of the contender; `None` if unknown.
    pub driver: Option<String>,
    /// Version of the contender, or of the library that it represents.
    pub version: Option<String>,
    /// Commit of the contender's sources, or of the library that it represents. The suffix "+changes" ("-dirty" in
    /// older results) marks sources that were modified after the commit. `None` if unknown.
    #[serde(default)]
    pub commit: Option<String>,
    /// Checksum of the represented library from its lock file: "sha256:…" or "h1:…". `None` if there is no library or
    /// lock file, or if the checksum is unknown.
    #[serde(default)]
    pub library_checksum: Option<String>,
    /// Commit from which a server that wraps a library was built, with the same suffix as `commit`. `None` for other
    /// contenders, or if unknown.
    #[serde(default)]
    pub server_commit: Option<String>,
    /// Language, toolchain and other declared properties of the build.
    pub built_with: Option<String>,
    /// Other known properties of the contender.
    pub features: Vec<String>,
    /// Maximum number of connections that the contender supports.
    pub connections_limit: Option<usize>,
    /// `true` if the contender can be configured to use several cores.
    pub many_cores: bool,
    /// Fraction of a core that the contender used while idle. Set only if this was enough to disturb other contenders.
    /// In that case it was suspended during their slices.
    #[serde(default, rename = "idle_use")]
    pub idle_cpu_fraction: Option<f64>,
    /// Name of the contender of which this one is the twin, if any.
    pub twin_of: Option<String>,
    /// Kind of peer; `None` for other contenders, and for peers that do not declare it.
    #[serde(default)]
    pub kind: Option<Kind>,
    /// Requests that an HTTP server supports; empty for other contenders.
    #[serde(default)]
    pub serves: Vec<Serves>,
    /// Contender from which this one differs only in the property it is named after; `None` if it has no base.
    #[serde(default, rename = "against")]
    pub base: Option<String>,
}

/// Result of one check of one contender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRecord {
    /// Name of the contender.
    pub contender: String,
    /// Description of the check: "complete bytes", "stalled reader", "5000 connections".
    pub what: String,
    /// `true` if the contender passed the check.
    pub passed: bool,
    /// Observed behaviour, line by line, and the parts of the check that were skipped, with the reasons.
    pub details: Vec<String>,
    /// Duration of the check, in nanoseconds.
    pub elapsed_ns: u64,
}

/// A cell that was completed in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Completed {
    /// The pass, from 0.
    pub pass: usize,
    /// Index of the cell in [`Plan::cells`].
    pub cell: usize,
}

/// Latencies of one contender in one cell, over all clean slices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyRecord {
    /// Index of the contender.
    pub contender: usize,
    /// Index of the cell in [`Plan::cells`].
    pub cell: usize,
    /// Pass in which the run was stopped within this cell. `None` for the record with the latencies of all completed
    /// passes.
    pub unfinished_pass: Option<usize>,
    /// Compressed HdrHistogram V2 in base64, with values in nanoseconds. See [`crate::result::latency::decode`].
    pub histogram: String,
}

/// Result of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The measured cell.
    pub cell: Cell,
    /// Resolution in requests/s: the difference between two identical servers, as a fraction; `None` if unknown.
    pub rate_resolution: Option<f64>,
    /// Resolution in server CPU time per request.
    pub cpu_resolution: Option<f64>,
    /// Resolution in median latency; only at an offered rate.
    pub p50_resolution: Option<f64>,
    /// Resolution in p99 latency; only where latencies are compared (see
    /// [`Measure::of_cell`](crate::result::measure::Measure::of_cell)).
    pub p99_resolution: Option<f64>,
    /// Resolution in memory per connection; only for idle connections.
    pub memory_resolution: Option<f64>,
    /// Resolution in the combined CPU time of server and load per request; only for HTTP.
    #[serde(default)]
    pub cpu_of_both_resolution: Option<f64>,
    /// Slow and fast phases of the machine, if they were detected in this cell.
    pub phases: Option<PhaseSummary>,
    /// Rows in the order of the contenders.
    pub rows: Vec<Row>,
}

/// Slow and fast phases of the machine while a cell was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PhaseSummary {
    /// CPU cost of a request in a slow phase as a multiple of the cost in a fast phase.
    pub slow_factor: f64,
    /// Fraction of the slices that ran in a slow phase.
    pub slow_fraction: f64,
    /// Number of phase changes between consecutive slices.
    pub changes: usize,
}

/// Result of one contender in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the contender.
    pub contender: String,
    /// Outcome in this cell: measured, or the reason why not.
    pub outcome: Outcome,
    /// Number of clean slices. Only these count.
    pub clean_slices: usize,
    /// Number of slices excluded because of stolen CPU time.
    pub stolen_slices: usize,
    /// Number of slices excluded because the control group of the contender or of the lab was throttled.
    pub throttled_slices: usize,
    /// Number of slices excluded for other reasons.
    pub spoilt_slices: usize,
    /// Number of rounds without a ratio because the contender and the reference ran in different phases of the machine.
    pub mixed_phase_rounds: usize,
    /// Number of restarts of the contender in this cell.
    pub restarts: usize,
    /// Figures of the contender; `None` if it was not measured or if its responses were wrong.
    pub figures: Option<Figures>,
    /// Requests/s as a multiple of the reference.
    pub rate_ratio: Option<Ratio>,
    /// Server CPU time per request as a multiple of the reference.
    pub cpu_ratio: Option<Ratio>,
    /// Low decile of the server CPU time per request as a multiple of the reference: the difference when the machine is
    /// at its fastest.
    pub cpu_low_ratio: Option<Ratio>,
    /// Median latency as a multiple of the reference; only at an offered rate.
    pub p50_ratio: Option<Ratio>,
    /// p99 latency as a multiple of the reference; only where latencies are compared (see
    /// [`Measure::of_cell`](crate::result::measure::Measure::of_cell)).
    pub p99_ratio: Option<Ratio>,
    /// Memory per connection as a multiple of the reference; only for idle connections.
    pub memory_ratio: Option<Ratio>,
    /// Combined CPU time of server and load per request as a multiple of the reference; only for HTTP.
    #[serde(default)]
    pub cpu_of_both_ratio: Option<Ratio>,
    /// Verdict on the rate.
    pub rate_verdict: Verdict,
    /// Verdict on the server CPU time per request.
    pub cpu_verdict: Verdict,
    /// Verdict on the median latency.
    pub p50_verdict: Verdict,
    /// Verdict on the p99 latency.
    pub p99_verdict: Verdict,
    /// Verdict on the memory per connection.
    pub memory_verdict: Verdict,
    /// Verdict on the combined CPU time of server and load per request.
    #[serde(default)]
    pub cpu_of_both_verdict: Verdict,
    /// Memory of the server process per idle connection, in bytes, excluding kernel memory; only for idle connections.
    pub memory_per_connection_bytes: Option<Estimate>,
    /// Server instructions per request in kernel and user mode, from [`LabResult::instructions`]; `None` if they were
    /// not counted.
    #[serde(default)]
    pub instructions_per_request: Option<f64>,
    /// Points of the latency distribution over all clean slices: quantile and latency in nanoseconds. Empty if the
    /// contender was not measured.
    pub latency_curve: Vec<(f64, u64)>,
}

/// Comparison of two contenders in one cell: an anello contender with a peer, or a contender with its base. The fields
/// call the first one the contender and the second one the peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairComparison {
    /// Name of the anello contender, or of the contender that names a base.
    pub contender: String,
    /// Name of the peer, or of the base.
    pub peer: String,
    /// Cell in which the two are compared.
    pub cell: Cell,
    /// Number of rounds without a ratio because the two ran in different phases of the machine.
    pub mixed_phase_rounds: usize,
    /// Requests/s of the contender as a multiple of the peer.
    pub rate_ratio: Option<Ratio>,
    /// Server CPU time per request of the contender as a multiple of the peer.
    pub cpu_ratio: Option<Ratio>,
    /// p99 latency of the contender as a multiple of the peer; only where latencies are compared (see
    /// [`Measure::of_cell`](crate::result::measure::Measure::of_cell)).
    pub p99_ratio: Option<Ratio>,
    /// Memory per connection of the contender as a multiple of the peer; only for idle connections.
    pub memory_ratio: Option<Ratio>,
    /// Combined CPU time of server and load per request as a multiple of that with the peer; only for HTTP.
    #[serde(default)]
    pub cpu_of_both_ratio: Option<Ratio>,
    /// Verdict on the rate. [`Verdict::More`]: the rate of the contender is higher.
    pub rate_verdict: Verdict,
    /// Verdict on the server CPU time per request. [`Verdict::Less`]: the contender uses less.
    pub cpu_verdict: Verdict,
    /// Verdict on the p99 latency.
    pub p99_verdict: Verdict,
    /// Verdict on the memory per connection.
    pub memory_verdict: Verdict,
    /// Verdict on the combined CPU time of server and load per request.
    #[serde(default)]
    pub cpu_of_both_verdict: Verdict,
}

/// Outcome of one contender in one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "why", rename_all = "snake_case")]
pub enum Outcome {
    /// The contender was measured.
    Measured,
    /// The contender could not be started, for this reason.
    Skipped(String),
    /// The contender failed for this reason, and its figures are excluded.
    Failed(String),
    /// The contender failed a check for this reason and was not measured.
    CheckFailed(String),
    /// The cell exceeds a limit of the contender.
    BeyondLimit(String),
    /// The contender does not support the request target of the cell.
    NotServed(String),
    /// The run was stopped before this contender was measured, or no slice was clean.
    NotMeasured,
}
