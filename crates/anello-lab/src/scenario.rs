//! Configuration of a run: contenders, cells and durations.
//!
//! ```text
//!  scenario file (TOML) ─► ScenarioFile ─┐
//!                          Resources ────┴─► resolve ─► LabConfig ─► run
//!                          (the machine)
//! ```

mod file;
mod presets;
mod resolve;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::cell::{Cell, Workload};
use crate::contender::Contender;
use crate::instructions::Instructions;
use crate::result::ScenarioRecord;
use crate::runner::{limit_reason, unsupported_reason};

pub use file::ScenarioError;
pub(crate) use file::describe_toml_error;
pub use presets::{PRESETS, preset};
pub use resolve::{Resources, drop_cells_over_limit, resolve};

/// Default time to wait for the exit of a server with broken connections, before it counts as running.
///
/// The kernel closes the descriptors of an exiting process before the process can be reaped. Peers therefore see
/// EOF while the last threads are still exiting. Each thread needs little kernel work, but must be scheduled to do
/// it: with 300 threads and a few milliseconds of other work before each of them, this takes about a second. Two
/// seconds have been observed on a starved machine. The value equals the load's reply timeout. A running server
/// that closes connections costs this time once per failure.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time of a contender start, for the run time estimate. This and the following constants were measured in runs.
const SERVER_START_TIME: Duration = Duration::from_millis(60);
/// Time of the checks of a contender.
const CHECK_TIME: Duration = Duration::from_millis(1300);
/// Time that a contender needs for the setup of a cell, including its idle CPU sample, without its connections.
const CONNECT_TURN_TIME: Duration = Duration::from_millis(12);
/// Time to open a connection.
const CONNECT_TIME: Duration = Duration::from_micros(55);
/// Time of a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_micros(200);
/// Time to read the counters before and after a slice.
const SLICE_OVERHEAD_TIME: Duration = Duration::from_millis(2);

/// Time to complete each echo request that is in flight at the end of a slice.
const IN_FLIGHT_MESSAGE_TIME: Duration = Duration::from_micros(10);
/// Time to complete each HTTP request that is in flight at the end of a slice.
const IN_FLIGHT_RESPONSE_TIME: Duration = Duration::from_micros(25);

/// Approximate throughput of a core that receives and verifies responses, in bytes per second, for the estimate.
const BYTES_PER_SECOND: f64 = 2.5e9;

/// The same throughput with TLS.
const TLS_BYTES_PER_SECOND: f64 = 2e9;

/// Maximum number of passes. This and the following bounds detect typing errors and are far above practical values.
const MAX_PASSES: usize = 100_000;
const MAX_ROUNDS: usize = 100_000;
const MAX_SLICES: usize = 100_000_000;
const MAX_SLICE_DURATION: Duration = Duration::from_secs(3600);
/// Maximum number of connections, bytes, queue depth, and requests per second.
const MAX_COUNT: usize = 1 << 30;
/// Maximum number of requests in flight on one connection.
const MAX_PIPELINING: usize = 1024;

/// Default CPU share of servers in saturated closed loops. Measured with small messages on 50 and 300 connections:
/// requests are always queued, while the load's core is 80 to 85 % busy.
pub const DEFAULT_SERVER_CPU_SHARE: f64 = 0.8;

/// Minimum CPU share of servers. With less, a server mostly waits for its core.
const MIN_SERVER_CPU_SHARE: f64 = 0.1;

/// Configuration of a run.
///
/// A run consists of `passes`. Each pass restarts every contender and measures all cells in random order. In a
/// cell, the connections of every contender stay open and idle contenders sleep, while each of `rounds` rounds
/// gives every contender one slice of load, in random order.
#[derive(Debug, Clone)]
pub struct LabConfig {
    /// Contenders. One is the reference, and one may be the twin of the reference.
    pub contenders: Vec<Contender>,
    /// Scenario on which the configuration is based, for the report.
    pub scenario: ScenarioRecord,
    /// Cells to measure, in the order of the report.
    pub cells: Vec<Cell>,
    /// `true` if every contender is checked before the measurement.
    pub check: bool,
    /// Length of one slice of load.
    pub slice: Duration,
    /// Duration of uncounted load after connecting.
    pub warm_up: Duration,
    /// Number of passes. Every pass restarts all contenders.
    pub passes: usize,
    /// Number of rounds in each cell of each pass.
    pub rounds: usize,
    /// Seed of all random orders and of the bootstrap.
    pub seed: u64,
    /// Cores of the contenders, of which only one is active at a time. A cell uses the first `server_cores` of them.
    pub server_cores: Vec<usize>,
    /// Cores of the load. Equal to the server cores on a machine with a single core.
    pub load_cores: Vec<usize>,
    /// CPU share of servers in saturated closed loops (0 to 1, see [`Cell::is_saturated`]). The rest is taken away
    /// in short intervals so that the load is not the bottleneck and the result shows the cost of a busy server.
    pub server_share: f64,
    /// I/O driver of the load: "epoll", "io_uring". `None` if it is unknown.
    pub load_driver: Option<String>,
    /// File that disk workers read and write. `None` if there are no disk workers, or if the path is not UTF-8.
    pub disk_file: Option<String>,
    /// Instructions per request from a separate measurement, for the report.
    pub instructions: Option<Instructions>,
    /// Additional core for contenders that use `{further_core}`, if the machine has one.
    pub further_core: Option<usize>,
    /// Name of the reference, with which the other contenders are compared.
    pub reference: String,
    /// Maximum fraction of stolen or throttled time in a slice. A slice above the limit is dropped.
    pub stolen_fraction_limit: f64,
    /// Command prefix for starting contenders, hidden in reports. The launcher prepares the process and then
    /// executes the contender (`execve(2)`). If empty, contenders are started directly.
    pub launcher: Vec<String>,
    /// Time limit for the ready line of a contender.
    pub start_timeout: Duration,
    /// Time to wait for the exit of a server with broken connections before it counts as running. See
    /// [`EXIT_TIMEOUT`].
    pub exit_timeout: Duration,
    /// Command line that repeats this run, for the report.
    pub repeat_command: String,
    /// Version of anello, for the report.
    pub version: String,
    /// Output directory of the reports.
    pub output_directory: PathBuf,
}

impl LabConfig {
    /// Returns the named preset for this machine, without peers. `executable` is the `anello` command.
    ///
    /// # Errors
    /// Returns an error if the preset does not exist, or if no part of it can run on this machine.
    pub fn preset(name: &str, executable: PathBuf) -> Result<LabConfig, String> {
        let text = preset(name).ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
            format!("unknown preset \"{name}\" (choose one of {})", names.join(", "))
        })?;
        let resources = Resources::of_this_machine(executable, std::env::temp_dir().join("anello-lab.disk"));
        resolve(&format!("{name}.toml"), text, &resources).map_err(|error| error.to_string())
    }

    /// Returns the `quick` preset, which takes about a minute: anello on both drivers and the baseline servers,
    /// with 1, 50 and 300 connections and messages of 128 and 1024 bytes. `executable` is the `anello` command.
    ///
    /// # Panics
    /// Panics if the embedded preset is invalid. A test excludes this.
    #[must_use]
    pub fn quick(executable: PathBuf) -> LabConfig {
        LabConfig::preset("quick", executable).expect("preset fits any machine")
    }

    /// Returns the `smoke` preset, which takes a few seconds. It shows that everything works; its results are
    /// imprecise.
    ///
    /// # Panics
    /// Panics if the embedded preset is invalid. A test excludes this.
    #[must_use]
    pub fn smoke(executable: PathBuf) -> LabConfig {
        LabConfig::preset("smoke", executable).expect("preset fits any machine")
    }

    /// Returns a configuration without the contents of a scenario.
    fn empty() -> LabConfig {
        LabConfig {
            contenders: Vec::new(),
            scenario: ScenarioRecord::default(),
            cells: Vec::new(),
            check: true,
            slice: Duration::ZERO,
            warm_up: Duration::ZERO,
            passes: 0,
            rounds: 0,
            seed: 1,
            server_cores: Vec::new(),
            load_cores: Vec::new(),
            server_share: DEFAULT_SERVER_CPU_SHARE,
            load_driver: None,
            disk_file: None,
            instructions: None,
            further_core: None,
            reference: String::new(),
            stolen_fraction_limit: 0.01,
            launcher: Vec::new(),
            start_timeout: Duration::from_secs(10),
            exit_timeout: EXIT_TIMEOUT,
            repeat_command: "anello lab run".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            output_directory: PathBuf::from("results"),
        }
    }

    /// Returns the cores that a contender uses in a cell.
    #[must_use]
    pub fn cores_of(&self, cell: &Cell) -> &[usize] {
        &self.server_cores[..cell.server_cores.min(self.server_cores.len())]
    }

    /// Returns all cores that the run uses, in ascending order.
    #[must_use]
    pub fn all_cores(&self) -> Vec<usize> {
        let further_core = self.further_core.as_slice();
        let mut cores = [self.server_cores.as_slice(), &self.load_cores, further_core].concat();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// Returns the CPU share of servers in a cell.
    #[must_use]
    pub fn server_share_in(&self, cell: &Cell) -> f64 {
        cell.server_share(self.server_share, &self.server_cores, &self.load_cores)
    }

    /// Returns the maximum number of connections that every contender has open in any cell.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        let loop_cells = self.cells.iter().filter(|cell| cell.workload.has_loops());
        loop_cells.map(|cell| cell.connections).max().unwrap_or(0)
    }

    /// Returns the number of slices in the whole run if nothing fails or is repeated.
    #[must_use]
    pub fn slice_count(&self) -> usize {
        self.cells.iter().map(|cell| self.slices_in(cell)).sum::<usize>() * self.passes
    }

    /// Returns the number of slices in a cell per pass: one for each participant in each round.
    pub(crate) fn slices_in(&self, cell: &Cell) -> usize {
        self.participants_in(cell) * self.rounds
    }

    /// Returns the number of contenders that can be measured in a cell.
    fn participants_in(&self, cell: &Cell) -> usize {
        let participates = |contender: &&Contender| {
            unsupported_reason(&contender.serves, cell).is_none()
                && limit_reason(contender.connections_limit, contender.takes_cores(), cell).is_none()
        };
        self.contenders.iter().filter(participates).count()
    }

    /// Returns the sum of `time_of_cell` over all cells, participants and passes.
    fn sum_over_participants(&self, time_of_cell: impl Fn(&Cell) -> Duration) -> Duration {
        let participants =
            |cell: &Cell| saturating_u32(self.participants_in(cell).saturating_mul(self.passes));
        self.cells.iter().map(|cell| time_of_cell(cell).saturating_mul(participants(cell))).sum()
    }

    /// Returns the duration of all slices and warm-ups, including the contenders' own warm-ups, without starting
    /// and connecting.
    #[must_use]
    pub fn load_time(&self) -> Duration {
        let own_warm_ups: Duration = self.contenders.iter().map(|contender| contender.warm_up).sum();
        let slices = saturating_u32(self.rounds + 1);
        self.slice * saturating_u32(self.slice_count())
            + self.sum_over_participants(|cell| self.warm_up + in_flight_bytes_time(cell) * slices)
            + own_warm_ups * saturating_u32(self.passes * self.core_counts())
    }

    /// Returns the number of different server core counts among timed cells. All contenders restart for each of them.
    fn core_counts(&self) -> usize {
        let timed = self.cells.iter().filter(|cell| cell.workload != Workload::Idle);
        timed.map(|cell| cell.server_cores).collect::<BTreeSet<_>>().len()
    }

    /// Returns the estimated duration of the whole run: slices, warm-ups, checks, starting and connecting.
    #[must_use]
    pub fn estimated_time(&self) -> Duration {
        let contenders = saturating_u32(self.contenders.len());
        let passes = saturating_u32(self.passes);
        let idle = self.cells.iter().filter(|cell| cell.workload == Workload::Idle).count();
        let disk = self.cells.iter().any(|cell| cell.workload.is_disk());
        let starts_in_pass = saturating_u32(self.core_counts() + idle * self.rounds);
        let starts = starts_in_pass.saturating_mul(contenders).saturating_mul(passes);
        let checks = if self.check && !disk { contenders } else { 0 };
        let slices = saturating_u32(self.rounds + 1);
        self.load_time()
            + SERVER_START_TIME * starts
            + CHECK_TIME * checks
            + self.sum_over_participants(|cell| time_to_connect(cell) + in_flight_request_time(cell) * slices)
            + SLICE_OVERHEAD_TIME * saturating_u32(self.slice_count())
    }

    /// Returns the index of the reference among the contenders.
    #[must_use]
    pub fn reference_index(&self) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == self.reference)
    }

    /// Validates this configuration.
    ///
    /// # Errors
    /// Returns the first problem found, with its remedy.
    pub fn validate(&self) -> Result<(), String> {
        if self.reference_index().is_none() {
            let names: Vec<&str> = self.contenders.iter().map(|contender| contender.name.as_str()).collect();
            return Err(format!(
                "the reference \"{}\" is not among the contenders (choose one of {})",
                self.reference,
                names.join(", ")
            ));
        }
        for (index, contender) in self.contenders.iter().enumerate() {
            if self.contenders[..index].iter().any(|earlier| earlier.name == contender.name) {
                return Err(format!("duplicate contender \"{}\" (rename one)", contender.name));
            }
        }
        let names = names_without_twins(&self.contenders);
        for contender in &self.contenders {
            contender.base.iter().try_for_each(|base| check_base(&contender.name, base, &names))?;
        }
        check_extent(self.passes, self.rounds, self.cells.len(), self.contenders.len())?;
        if self.slice.is_zero() {
            return Err("slice must be longer than 0".to_owned());
        }
        if self.slice.max(self.warm_up) > MAX_SLICE_DURATION {
            return Err("slice and warm_up must be at most 3600s".to_owned());
        }
        if !(MIN_SERVER_CPU_SHARE..=1.0).contains(&self.server_share) {
            return Err(format!(
                "server_share must be from {MIN_SERVER_CPU_SHARE} to 1, not {}",
                self.server_share
            ));
        }
        if !(0.0..=1e9).contains(&self.stolen_fraction_limit) {
            return Err("stolen time limit must be a fraction, 0 or more".to_owned());
        }
        if self.server_cores.is_empty() || self.load_cores.is_empty() {
            return Err("servers and load need at least one core each".to_owned());
        }
        if self.cells.is_empty() {
            return Err("nothing to measure (add at least one cell)".to_owned());
        }
        for (index, cell) in self.cells.iter().enumerate() {
            check_cell(cell, self.server_cores.len()).map_err(|error| format!("{cell}: {error}"))?;
            if self.cells[..index].contains(cell) {
                return Err(format!("duplicate cell \"{cell}\" (remove one)"));
            }
        }
        Ok(())
    }
}

/// Returns echo cells for all pairs, ordered by message size, then by connections.
#[must_use]
pub fn echo_cells(message_bytes: &[usize], connections: &[usize]) -> Vec<Cell> {
    let cells = |&bytes: &usize| connections.iter().map(move |&connections| Cell::echo(bytes, connections));
    message_bytes.iter().flat_map(cells).collect()
}

/// Checks that a run of this size has at least one pass and round, and stays within the upper bounds.
pub(crate) fn check_extent(
    passes: usize,
    rounds: usize,
    cells: usize,
    contenders: usize,
) -> Result<(), String> {
    for (name, number, max) in [("passes", passes, MAX_PASSES), ("rounds", rounds, MAX_ROUNDS)] {
        if !(1..=max).contains(&number) {
            return Err(format!("{name} must be at least 1 and at most {max}, not {number}"));
        }
    }
    let slices = [passes, rounds, cells, contenders].into_iter().try_fold(1usize, usize::checked_mul);
    match slices {
        Some(..=MAX_SLICES) => Ok(()),
        _ => Err(format!("more than {MAX_SLICES} slices (reduce passes, rounds or cells)")),
    }
}

/// Returns how long a contender takes to connect in a cell, without its warm-up.
fn time_to_connect(cell: &Cell) -> Duration {
    let each = match cell.workload {
        Workload::Disk { .. } => Duration::ZERO,
        workload if workload.cipher().is_some() => CONNECT_TIME + HANDSHAKE_TIME,
        _ => CONNECT_TIME,
    };
    CONNECT_TURN_TIME + each.saturating_mul(saturating_u32(cell.connections))
}

/// Returns how long a closed-loop slice is extended to complete the requests in flight, regardless of their size.
fn in_flight_request_time(cell: &Cell) -> Duration {
    let (each, pipelining) = match cell.workload {
        _ if !cell.is_closed_loop() => return Duration::ZERO,
        Workload::Http { pipelining, reconnect, cipher, .. } => {
            let handshake = if reconnect && cipher.is_some() { HANDSHAKE_TIME } else { Duration::ZERO };
            (IN_FLIGHT_RESPONSE_TIME + handshake, pipelining)
        }
        _ => (IN_FLIGHT_MESSAGE_TIME, 1),
    };
    each.saturating_mul(saturating_u32(cell.connections.saturating_mul(pipelining)))
}

/// Returns how long a slice is extended to transfer the responses in flight at its end. Only significant for large
/// responses.
fn in_flight_bytes_time(cell: &Cell) -> Duration {
    let Workload::Http { target, pipelining, cipher, .. } = cell.workload else { return Duration::ZERO };
    let requests = cell.connections.saturating_mul(pipelining);
    let rate = if cipher.is_some() { TLS_BYTES_PER_SECOND } else { BYTES_PER_SECOND };
    Duration::from_secs_f64(requests as f64 * target.bytes() as f64 / rate)
}

/// Returns the names of all contenders except twins, which are compared only with their original.
fn names_without_twins(contenders: &[Contender]) -> Vec<&str> {
    let others = contenders.iter().filter(|contender| contender.twin_of.is_none());
    others.map(|contender| contender.name.as_str()).collect()
}

/// Checks that `base`, the base of the contender called `name`, is a different one of `names`.
fn check_base(name: &str, base: &str, names: &[&str]) -> Result<(), String> {
    let others: Vec<&str> = names.iter().copied().filter(|other| *other != name).collect();
    if others.contains(&base) {
        return Ok(());
    }
    let problem = if base == name { "which is itself" } else { "which is not among the contenders" };
    Err(format!(
        "the base of \"{name}\" is \"{base}\", {problem} (use the contender that differs only in the property under test, \
         one of {}, or remove the key)",
        others.join(", ")
    ))
}

pub(crate) fn check_cell(cell: &Cell, server_cores: usize) -> Result<(), String> {
    if cell.connections == 0 {
        return Err("connections (disk: depth) must be at least 1".to_owned());
    }
    let bytes = match cell.workload {
        Workload::Echo { message_bytes } => message_bytes,
        Workload::Disk { block_bytes, .. } => block_bytes,
        Workload::Http { pipelining, .. } => pipelining.saturating_mul(cell.connections),
        Workload::Idle => 0,
    };
    if cell.connections.max(bytes) > MAX_COUNT || cell.offered_per_second > Some(MAX_COUNT as u64) {
        return Err(format!(
            "connections, depth, bytes, requests in flight and rate must be at most {MAX_COUNT}"
        ));
    }
    if !(1..=server_cores).contains(&cell.server_cores) {
        return Err(format!(
            "server_cores must be from 1 to {server_cores} on this machine, not {}",
            cell.server_cores
        ));
    }
    match cell.workload {
        Workload::Echo { message_bytes: 0 } => Err("the message size must be at least 1 byte".to_owned()),
        Workload::Disk { block_bytes: 0, .. } => Err("the block size must be at least 1 byte".to_owned()),
        Workload::Http { pipelining, .. } if !(1..=MAX_PIPELINING).contains(&pipelining) => {
            Err(format!("pipelining must be from 1 (none) to {MAX_PIPELINING}"))
        }
        Workload::Http { pipelining: 2.., reconnect: true, .. } => Err(
            "reconnect and pipelining cannot be combined: a connection with one request has none to pipeline (list cells of \
             both kinds as single [[cells]])"
                .to_owned(),
        ),
        Workload::Idle | Workload::Disk { .. } if cell.offered_per_second.is_some() => {
            Err("an offered rate requires an echo or http workload".to_owned())
        }
        _ if cell.offered_per_second == Some(0) => Err("the offered rate must be at least 1".to_owned()),
        _ => Ok(()),
    }
}

fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
