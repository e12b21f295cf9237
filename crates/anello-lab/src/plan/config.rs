//! Configuration of a run: contenders, cells and durations.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::cell::{Cell, Workload};
use crate::plan::contender::Contender;
use crate::plan::instructions::Instructions;
use crate::plan::limits::{
    ConfigError, MAX_SLICE_DURATION, MIN_SERVER_CPU_SHARE, check_base, check_cell, check_extent,
    names_without_twins,
};
use crate::plan::method::Method;
use crate::plan::network::{NetworkPath, shares_cores};
use crate::plan::site::Target;

/// Default time to wait for a server with broken connections to exit. The kernel closes the descriptors of an exiting
/// process before the process can be reaped. With 300 threads, the exit takes about one second, or two seconds on a
/// machine that is short of CPU time. If a server closes connections but keeps running, the lab waits this long after
/// each failure.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Default CPU share of servers in saturated closed loops. In measurements with this share and small messages on 50 and
/// 300 connections, requests were always queued, and the load generator's core was 80 to 85 % busy.
pub(crate) const DEFAULT_SERVER_CPU_SHARE: f64 = 0.8;

/// The scenario of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioRecord {
    /// Short name of the preset or scenario file.
    pub name: String,
    /// One-line title of the scenario.
    pub title: String,
    /// Purpose of the scenario, in a few sentences.
    pub description: String,
    /// Publication whose comparison the scenario reproduces, if any.
    pub source: Option<String>,
    /// Contents of the scenario file; empty if the run was configured only by flags.
    pub text: String,
    /// Values that were scaled down for this machine, and values that flags changed.
    pub scaling: Vec<String>,
}

/// Configuration of a run.
///
/// A run consists of `passes`. Each pass restarts every contender and measures all cells in random order. In a cell,
/// the connections of all contenders stay open. Each of `rounds` rounds gives every contender one slice of load, in
/// random order, while the other contenders sleep.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LabConfig {
    /// Scenario on which the configuration is based, for the report.
    pub scenario: ScenarioRecord,
    /// Contenders. One is the reference, and one may be the twin of the reference.
    pub contenders: Vec<Contender>,
    /// Name of the reference, with which the other contenders are compared.
    pub reference: String,
    /// Cells to measure, in report order.
    pub cells: Vec<Cell>,
    /// `true` if every contender is checked before the measurement.
    pub check: bool,
    /// `true` if a contender that cannot be started for its check is skipped. Otherwise, it ends the run.
    pub keep_going: bool,
    /// Durations and repetitions.
    pub timing: Timing,
    /// Cores for the servers and the load generator.
    pub cores: CoreLayout,
    /// How contenders are started, and the time limits for start and exit.
    pub startup: Startup,
    /// File that disk workers read and write. `None` if there are no disk workers, or if the path is not UTF-8.
    pub disk_file: Option<String>,
    /// Network path between the servers and the load generator. `None` if both are on this machine.
    pub network: Option<NetworkPath>,
    /// Facts about the run for the report.
    pub provenance: Provenance,
}

/// Durations and repetitions of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Timing {
    /// Length of one slice of load.
    pub slice: Duration,
    /// Duration of the warm-up after connecting, which is not measured.
    pub warm_up: Duration,
    /// Number of passes. Every pass restarts all contenders.
    pub passes: usize,
    /// Number of rounds per cell and pass.
    pub rounds: usize,
    /// Seed for all random orders and the bootstrap.
    pub seed: u64,
    /// Maximum fraction of stolen or throttled time in a slice. Slices above this limit are excluded.
    pub stolen_fraction_limit: f64,
}

/// Cores for the servers and the load generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CoreLayout {
    /// Cores for the contenders. Only one contender is active at a time. A cell uses the first `server_cores` of them.
    pub server: Vec<usize>,
    /// Cores for the load generator. Equal to the server cores on a machine with a single core.
    pub load: Vec<usize>,
    /// Additional core for contenders that use `{further_core}`, if the machine has one.
    pub further: Option<usize>,
    /// CPU share of servers in saturated closed loops (0 to 1, see [`Cell::is_saturated`]). The lab uses up the rest of
    /// the CPU time so that the load generator is not the bottleneck.
    pub server_share: f64,
}

/// How contenders are started, and the time limits for start and exit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Startup {
    /// Command prefix for starting contenders, hidden in reports. It prepares the process and executes the contender.
    pub launcher: Vec<String>,
    /// Maximum time from the start of a contender until it prints its ready line.
    pub start_timeout: Duration,
    /// Time to wait for a server to exit after a connection breaks. Then the server is reported as still running.
    pub exit_timeout: Duration,
}

/// Facts about a run that do not affect its measurements.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Provenance {
    /// Command line to repeat this run.
    pub repeat_command: String,
    /// Version of anello.
    pub version: String,
    /// I/O driver of the load generator, either "epoll" or "io_uring". `None` if it is unknown.
    pub load_driver: Option<String>,
    /// Instructions per request from a separate measurement.
    pub instructions: Option<Instructions>,
}

impl Default for Startup {
    fn default() -> Startup {
        Startup { launcher: Vec::new(), start_timeout: Duration::from_secs(10), exit_timeout: EXIT_TIMEOUT }
    }
}

impl Default for Provenance {
    fn default() -> Provenance {
        Provenance {
            repeat_command: "anello lab run".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            load_driver: None,
            instructions: None,
        }
    }
}

impl CoreLayout {
    /// Returns a layout with these cores and the default CPU share of servers.
    pub fn new(server: Vec<usize>, load: Vec<usize>) -> CoreLayout {
        CoreLayout { server, load, further: None, server_share: DEFAULT_SERVER_CPU_SHARE }
    }
}

impl LabConfig {
    pub(crate) fn cores_of(&self, cell: &Cell) -> &[usize] {
        &self.cores.server[..cell.server_cores.min(self.cores.server.len())]
    }

    /// Returns all cores that the run uses, in ascending order. Across hosts, returns the cores of the servers' host
    /// followed by those of the load generator's host.
    pub(crate) fn all_cores(&self) -> Vec<usize> {
        let CoreLayout { server, load, further, .. } = &self.cores;
        if self.network.is_some() {
            return server.iter().chain(further).chain(load).copied().collect();
        }
        let cores: BTreeSet<usize> = server.iter().chain(load).chain(further).copied().collect();
        cores.into_iter().collect()
    }

    /// Selects the measurement method. [`Method::Saturated`] keeps the share of the scenario if it is below 1, and
    /// otherwise sets the default share. Returns a note if the method has changed.
    pub fn set_method(&mut self, method: Method) -> Option<String> {
        let previous = Method::of_share(self.cores.server_share);
        (method != previous).then(|| {
            self.cores.server_share = match method {
                Method::Saturated => DEFAULT_SERVER_CPU_SHARE,
                Method::WholeCore => 1.0,
            };
            format!("Method {method} instead of {previous} (--method).")
        })
    }

    /// Replaces the connection counts (disk: queue depths) and the message sizes of the cells. An empty list leaves the
    /// existing values unchanged.
    pub fn override_cells(&mut self, connections: &[usize], message_bytes: &[usize]) {
        let mut overridden: Vec<Cell> = Vec::new();
        for &cell in &self.cells {
            let workloads = match cell.workload {
                Workload::Echo { .. } if !message_bytes.is_empty() => {
                    message_bytes.iter().map(|&message_bytes| Workload::Echo { message_bytes }).collect()
                }
                workload => vec![workload],
            };
            let counts = if connections.is_empty() { &[cell.connections] } else { connections };
            for workload in workloads {
                overridden.extend(counts.iter().map(|&connections| Cell { workload, connections, ..cell }));
            }
        }
        overridden.sort();
        overridden.dedup();
        self.cells = overridden;
    }

    /// Removes the cells whose target is not in the list. An empty list leaves the cells unchanged.
    pub fn keep_targets(&mut self, targets: &[Target]) {
        let is_kept = |cell: &Cell| cell.workload.target().is_some_and(|target| targets.contains(&target));
        self.cells.retain(|cell| targets.is_empty() || is_kept(cell));
    }

    /// Sets the number of passes such that their slices and warm-ups take about `time`.
    pub fn fit_passes(&mut self, time: Duration) {
        self.timing.passes = 1;
        let passes = time.as_secs_f64() / self.load_time().as_secs_f64().max(1e-3);
        self.timing.passes = (passes.round() as usize).clamp(1, 100_000);
    }

    /// Adds contenders, configured for the protocol of the cells.
    ///
    /// # Errors
    /// Returns [`ConfigError::NoTls`] if a cell uses TLS but the command of a contender has no certificate or key.
    pub fn add_contenders(&mut self, contenders: &[Contender]) -> Result<(), ConfigError> {
        let is_http = self.cells.iter().any(|cell| cell.workload.target().is_some());
        let is_secure = self.cells.iter().any(|cell| cell.workload.cipher().is_some());
        if let Some(plain) = contenders.iter().find(|contender| is_secure && !contender.serves_tls()) {
            return Err(ConfigError::NoTls(plain.name.clone()));
        }
        let contenders = contenders.iter().cloned();
        self.contenders.extend(
            contenders.map(|contender| if is_http { contender.serving_by_command() } else { contender }),
        );
        Ok(())
    }

    pub(crate) fn server_share_in(&self, cell: &Cell) -> f64 {
        cell.server_share_beside(self.cores.server_share, self.cores.load.len(), self.shares_cores())
    }

    /// Returns whether the servers and the load generator run on the same cores.
    pub(crate) fn shares_cores(&self) -> bool {
        shares_cores(self.network.as_ref(), &self.cores.server, &self.cores.load)
    }

    /// Sets the network path of a run across hosts. Servers whose command contains `127.0.0.1` listen on the address of
    /// their host instead.
    ///
    /// # Errors
    /// Returns [`ConfigError::DiskAcrossHosts`] if a cell measures a disk.
    pub fn set_network(&mut self, path: NetworkPath) -> Result<(), ConfigError> {
        if self.cells.iter().any(|cell| cell.workload.is_disk()) {
            return Err(ConfigError::DiskAcrossHosts);
        }
        let address = match path.server.interface.address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        for contender in &mut self.contenders {
            *contender = std::mem::take(contender).replacing("127.0.0.1", &address);
        }
        self.network = Some(path);
        Ok(())
    }

    /// Validates this configuration.
    ///
    /// # Errors
    /// Returns the first problem found, with its remedy.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.contenders.iter().any(|contender| contender.name == self.reference) {
            let names = self.contenders.iter().map(|contender| contender.name.clone()).collect();
            return Err(ConfigError::UnknownReference(self.reference.clone(), names));
        }
        let mut names = HashSet::new();
        if let Some(duplicate) = self.contenders.iter().find(|contender| !names.insert(&contender.name)) {
            return Err(ConfigError::DuplicateContender(duplicate.name.clone()));
        }
        let names = names_without_twins(&self.contenders);
        for contender in &self.contenders {
            contender.base.iter().try_for_each(|base| check_base(&contender.name, base, &names))?;
        }
        let Timing { slice, warm_up, passes, rounds, .. } = self.timing;
        check_extent(passes, rounds, self.cells.len(), self.contenders.len())?;
        let CoreLayout { server, load, server_share, .. } = &self.cores;
        let problems = [
            (slice.is_zero(), ConfigError::EmptySlice),
            (slice.max(warm_up) > MAX_SLICE_DURATION, ConfigError::LongSlice),
            (!(MIN_SERVER_CPU_SHARE..=1.0).contains(server_share), ConfigError::ServerShare(*server_share)),
            (!(0.0..=1e9).contains(&self.timing.stolen_fraction_limit), ConfigError::StolenLimit),
            (server.is_empty() || load.is_empty(), ConfigError::NoCores),
            (self.cells.is_empty(), ConfigError::NoCells),
        ];
        if let Some((_, error)) = problems.into_iter().find(|(is_present, _)| *is_present) {
            return Err(error);
        }
        for (index, cell) in self.cells.iter().enumerate() {
            check_cell(cell, self.cores.server.len()).map_err(|error| ConfigError::Cell(*cell, error))?;
            if self.cells[..index].contains(cell) {
                return Err(ConfigError::DuplicateCell(*cell));
            }
        }
        Ok(())
    }
}

/// Returns echo cells for all combinations, ordered by message size, then by connections.
pub fn echo_cells(message_bytes: &[usize], connections: &[usize]) -> Vec<Cell> {
    let cells = |&bytes: &usize| connections.iter().map(move |&connections| Cell::echo(bytes, connections));
    message_bytes.iter().flat_map(cells).collect()
}
