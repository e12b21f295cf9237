//! The complete result of a run.

use serde::{Deserialize, Serialize};

use crate::plan::cell::{Cell, Group, Workload};
use crate::plan::contender::{Kind, Role, Serves};
use crate::plan::instructions::Instructions;
use crate::result::environment::Environment;
use crate::result::executable::Executable;
use crate::result::finding::{Failure, Finding};
use crate::result::measure::Measure;
use crate::result::plan::Plan;
use crate::result::row::{CellResult, PairComparison};
use crate::result::slice::Slice;
use crate::result::time;
use crate::result::unique::unique;

/// Name of the format.
pub const SCHEMA: &str = "anello-lab";

/// Version of the format.
pub const SCHEMA_VERSION: u32 = 3;

/// Complete result of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LabResult {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`] of the program that wrote the result.
    pub schema_version: u32,
    /// Start of the run, in seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// Duration of the run, in nanoseconds.
    pub elapsed_ns: u64,
    /// `true` if the run was stopped before it was complete. Always `true` in a checkpoint.
    pub interrupted: bool,
    /// Plan of the run.
    pub plan: Plan,
    /// Findings as sentences, most important first.
    pub findings: Vec<Finding>,
    /// Contenders of the run.
    pub contenders: Vec<ContenderRecord>,
    /// Results of the checks that ran before the measurements; empty if the contenders were not checked.
    pub checks: Vec<CheckRecord>,
    /// Cell results, in the order of [`Plan::cells`].
    pub cells: Vec<CellResult>,
    /// Comparisons between the anello contenders and the peers that use the same kind of I/O, cell by cell.
    pub peer_comparisons: Vec<PairComparison>,
    /// Comparisons between the anello contenders and async runtimes that use a different kind of I/O, cell by cell.
    #[serde(default)]
    pub runtime_comparisons: Vec<PairComparison>,
    /// Comparisons between the anello contenders and the other peers that use a different kind of I/O, cell by cell.
    /// The kind of I/O causes part of each difference. The findings include these comparisons only for HTTP servers,
    /// because users choose an HTTP server regardless of its kind of I/O.
    #[serde(default)]
    pub other_comparisons: Vec<PairComparison>,
    /// Comparisons of each contender that names a base ([`ContenderRecord::base`]) with that base, cell by cell.
    #[serde(default)]
    pub base_comparisons: Vec<PairComparison>,
    /// All failures, in the order in which they occurred.
    pub failures: Vec<Failure>,
    /// Other notes about the run.
    pub notes: Vec<String>,
    /// Fraction of the cores' time that other processes used during the run; `None` if the kernel does not report it.
    pub other_cpu_fraction: Option<f64>,
    /// State of the machine before the run.
    pub environment: Environment,
    /// State of the machine after the run.
    pub environment_after: Environment,
    /// Completed cells with their passes, in the order of completion.
    pub completed: Vec<Completed>,
    /// All slices, in the order in which they were measured.
    pub slices: Vec<Slice>,
    /// Latency histograms of all clean slices.
    pub latencies: Vec<LatencyRecord>,
    /// Instructions per request, counted in a separate run and passed to this one; `None` if no counts were passed.
    pub instructions: Option<Instructions>,
}

impl LabResult {
    /// Returns the base name of the run's files, without an extension: "lab-20261121T210703Z".
    pub(crate) fn file_stem(&self) -> String {
        format!("lab-{}", time::rfc3339(self.started_unix_s).replace(['-', ':'], ""))
    }

    /// Returns the groups of cells in the order of their first appearance. In reports, each group has its own charts.
    pub fn groups(&self) -> Vec<Group> {
        unique(self.plan.cells.iter().map(Cell::group))
    }

    /// Returns the results for the cells in a group, in plan order.
    pub(crate) fn cells_of(&self, group: &Group) -> Vec<&CellResult> {
        self.cells.iter().filter(|cell| cell.cell.group() == *group).collect()
    }

    /// Returns the measures that are compared in a group. Empty if the group has no results.
    pub(crate) fn measures_of(&self, group: &Group) -> &'static [Measure] {
        self.cells_of(group).first().map_or(&[], |cell| Measure::of_cell(&cell.cell))
    }

    /// Returns the comparisons between the anello contenders and all peers: first peers with the same kind of I/O, then
    /// async runtimes with a different kind, then all other servers.
    pub fn all_pair_comparisons(&self) -> impl Iterator<Item = &PairComparison> {
        self.peer_comparisons.iter().chain(&self.runtime_comparisons).chain(&self.other_comparisons)
    }

    /// Returns the lists of all pair comparisons.
    pub(crate) fn pair_lists_mut(&mut self) -> [&mut Vec<PairComparison>; 4] {
        let (same_io, runtimes) = (&mut self.peer_comparisons, &mut self.runtime_comparisons);
        [same_io, runtimes, &mut self.other_comparisons, &mut self.base_comparisons]
    }

    /// Describes the methods, for example "whole core; saturated: server limited to 80 % of its core". Empty if the run
    /// has neither echo nor HTTP cells.
    pub(crate) fn methods(&self) -> String {
        let cells = self.cells.iter().map(|cell| &cell.cell).filter(|cell| cell.workload.has_loops());
        unique(cells.map(|cell| self.plan.method_description(cell))).join("; ")
    }

    /// Returns the index of the contender with this name that is not a twin.
    pub(crate) fn original_index(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|record| record.name == name && record.twin_of.is_none())
    }

    /// Returns the workload whose terms are used in sentences about the whole run: the first workload other than disk,
    /// or the first workload if there are only disk workloads.
    pub(crate) fn workload(&self) -> Workload {
        let all = || self.plan.cells.iter().map(|cell| cell.workload);
        all().find(|workload| !workload.is_disk()).or_else(|| all().next()).unwrap_or(Workload::Idle)
    }
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
    /// Files of the program with their hashes, executable first. Files that could not be read are omitted.
    #[serde(default)]
    pub executables: Vec<Executable>,
    /// Line that the contender printed when it was ready; `None` if it never became ready.
    pub ready_line: Option<String>,
    /// Kind of I/O: "io_uring", "epoll", "poll", "select", "threads", or the engine of a disk worker. Taken from the
    /// ready line or, if that does not state it, from the contender's declaration; `None` if unknown.
    pub driver: Option<String>,
    /// Version of the contender, or of the library that it represents.
    pub version: Option<String>,
    /// Commit of the contender's sources, or of the library that it represents. The suffix "+changes" ("-dirty" in
    /// older results) marks sources that were modified after the commit. `None` if unknown.
    pub commit: Option<String>,
    /// Checksum of the represented library in the server's lock file: "sha256:…" or "h1:…". `None` if there is none.
    pub library_checksum: Option<String>,
    /// Commit from which a server that wraps a library was built, with the same suffix as `commit`.
    pub server_commit: Option<String>,
    /// Language, toolchain and other declared properties of the build.
    pub built_with: Option<String>,
    /// Other known properties of the contender.
    pub features: Vec<String>,
    /// Maximum number of connections that the contender supports.
    pub connections_limit: Option<usize>,
    /// `true` if the contender can be configured to use several cores.
    pub many_cores: bool,
    /// Fraction of a core that the contender used while idle, if that was enough to disturb other contenders. The
    /// contender was then suspended during their slices.
    pub idle_cpu_fraction: Option<f64>,
    /// If this contender is a twin, the name of the original.
    pub twin_of: Option<String>,
    /// Kind of peer; `None` for other contenders, and for peers that do not declare it.
    pub kind: Option<Kind>,
    /// Resources that an HTTP server declares; empty for other contenders.
    #[serde(default)]
    pub serves: Vec<Serves>,
    /// Contender that differs from this one only in the property under test; `None` if there is no such base.
    pub base: Option<String>,
}

/// Result of one check on one contender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRecord {
    /// Name of the contender.
    pub contender: String,
    /// Description of the check: "complete bytes", "stalled reader", "5000 connections".
    pub what: String,
    /// `true` if the contender passed the check.
    pub passed: bool,
    /// Observed behaviour, line by line, and the parts of the check that were skipped, with reasons.
    pub details: Vec<String>,
    /// Duration of the check, in nanoseconds.
    pub elapsed_ns: u64,
}

/// A cell that was completed in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Completed {
    /// Pass, 0-based.
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
    /// Pass in which the run was stopped before the cell was complete. `None` for the sum over all completed passes.
    pub unfinished_pass: Option<usize>,
    /// Compressed HdrHistogram V2 in base64, with values in nanoseconds. See [`crate::result::latency::decode`].
    pub histogram: String,
}
