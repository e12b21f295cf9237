//! What a run of the lab does: who competes, in which cells, for how long.
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

/// How long a server that shows signs of death is waited for until it counts as alive.
///
/// The kernel closes the descriptors of a dying process before it can be reaped: peers see the end of their streams
/// while the last threads have still to run their own exits. What is missing then is a little work of the kernel for
/// each thread, but each must get a turn on a core to do it: with 300 threads and a few milliseconds of others before
/// each of them, that is about a second, and on a machine that is starved of time two have been seen. This is as
/// patient as the load is with a reply. A server that hangs up and lives costs it once for each failure.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a start of a contender, its checks, its turn to connect in a cell (the look at whether it rests among it), a
/// connection, a handshake of TLS, and reading the counters around a slice take: for the estimate, from the times in runs.
const SERVER_START_TIME: Duration = Duration::from_millis(60);
const CHECK_TIME: Duration = Duration::from_millis(1300);
const CONNECT_TURN_TIME: Duration = Duration::from_millis(12);
const CONNECT_TIME: Duration = Duration::from_micros(55);
const HANDSHAKE_TIME: Duration = Duration::from_micros(200);
const SLICE_OVERHEAD_TIME: Duration = Duration::from_millis(2);

/// By how much each request in flight makes a slice longer, since it is waited for at the end: of messages, and over HTTP.
const IN_FLIGHT_MESSAGE_TIME: Duration = Duration::from_micros(10);
const IN_FLIGHT_RESPONSE_TIME: Duration = Duration::from_micros(25);

/// What a core takes in, copies and compares in a second, roughly: for the estimate.
const BYTES_PER_SECOND: f64 = 2.5e9;

/// The same where TLS encrypts them.
const TLS_BYTES_PER_SECOND: f64 = 2e9;

/// Bounds of a run, far beyond what anybody waits for: a number that is larger is a slip.
const MAX_PASSES: usize = 100_000;
const MAX_ROUNDS: usize = 100_000;
const MAX_SLICES: usize = 100_000_000;
const MAX_SLICE_DURATION: Duration = Duration::from_secs(3600);
/// The same for connections, bytes and depths, and for a rate per second.
const MAX_COUNT: usize = 1 << 30;
/// The same for requests in flight on one connection.
const MAX_PIPELINING: usize = 1024;

/// What of their cores servers have in crowded closed loops unless a scenario says otherwise. Measured with small
/// messages over 50 and 300 connections: enough for requests to wait always, while the load's core is 80 to 85 % busy.
pub const DEFAULT_SERVER_CPU_SHARE: f64 = 0.8;

/// A server that has less of its core does little but wait for it.
const MIN_SERVER_CPU_SHARE: f64 = 0.1;

/// A run of the lab.
///
/// The run is made of `passes`; each starts every contender anew and walks through all cells in random order. In a
/// cell every contender's connections are open at once and the idle ones sleep, while `rounds` rounds give each of
/// them one slice of load, in random order.
#[derive(Debug, Clone)]
pub struct LabConfig {
    /// Who competes. One of them is the reference; one may be its twin.
    pub contenders: Vec<Contender>,
    /// The scenario it follows, for the report.
    pub scenario: ScenarioRecord,
    /// What to measure, in the order of the report.
    pub cells: Vec<Cell>,
    /// Whether every contender is checked before it is timed.
    pub check: bool,
    /// Length of one slice of load.
    pub slice: Duration,
    /// Load that is not counted, once after connecting.
    pub warm_up: Duration,
    /// How often all contenders are started anew.
    pub passes: usize,
    /// Rounds in each cell of each pass.
    pub rounds: usize,
    /// Decides the order of everything, and the bootstrap.
    pub seed: u64,
    /// Cores that contenders may run on, one contender at a time awake; a cell uses as many of the first as it says.
    pub server_cores: Vec<usize>,
    /// Cores that the load runs on. The same as those of the servers where there is only one.
    pub load_cores: Vec<usize>,
    /// The part of their cores, of 1, that servers have in crowded closed loops ([`Cell::is_saturated`]): the rest is
    /// taken away in short pieces, so that the load has the lead and a server shows what it costs when it is busy.
    pub server_share: f64,
    /// What the load runs on, in a word: "epoll", "io_uring"; none if it does not tell.
    pub load_driver: Option<String>,
    /// The file that disk workers read and write; none where there are none, or where its path is no UTF-8.
    pub disk_file: Option<String>,
    /// Instructions per request that were counted elsewhere, for the report.
    pub instructions: Option<Instructions>,
    /// A core of its own for contenders that ask for one (`{further_core}`), where there is one beyond these.
    pub further_core: Option<usize>,
    /// Name of the contender that the others are compared with.
    pub reference: String,
    /// A slice is dropped if the hypervisor took more than this fraction of it, or if a CPU limit held the lab back for
    /// as long.
    pub stolen_fraction_limit: f64,
    /// Words put before every contender's command when it is started, but not when it is shown: a program that makes
    /// the process ready and then becomes the contender (`execve(2)`). Empty: contenders are started directly.
    pub launcher: Vec<String>,
    /// How long a contender may take to print its ready line.
    pub start_timeout: Duration,
    /// How long a server whose connections broke is waited for until it counts as alive; see [`EXIT_TIMEOUT`].
    pub exit_timeout: Duration,
    /// The command line that repeats this run, for the report.
    pub repeat_command: String,
    /// Version of the program under test, for the report.
    pub version: String,
    /// Where the reports go.
    pub output_directory: PathBuf,
}

impl LabConfig {
    /// The preset of this name on this machine, without peers. `executable` is the `anello` command.
    ///
    /// # Errors
    /// There is no such preset, or nothing of it is left on this machine.
    pub fn preset(name: &str, executable: PathBuf) -> Result<LabConfig, String> {
        let text = preset(name).ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
            format!("no preset is called \"{name}\": choose one of {}", names.join(", "))
        })?;
        let resources = Resources::of_this_machine(executable, std::env::temp_dir().join("anello-lab.disk"));
        resolve(&format!("{name}.toml"), text, &resources).map_err(|error| error.to_string())
    }

    /// About a minute: anello on both drivers and the bare servers, at 1, 50 and 300 connections with 128 and 1024
    /// bytes. `executable` is the `anello` command.
    ///
    /// # Panics
    /// Never: a test reads the preset.
    #[must_use]
    pub fn quick(executable: PathBuf) -> LabConfig {
        LabConfig::preset("quick", executable).expect("a preset that fits any machine")
    }

    /// A few seconds, to see that everything works; too short for fine differences.
    ///
    /// # Panics
    /// Never: a test reads the preset.
    #[must_use]
    pub fn smoke(executable: PathBuf) -> LabConfig {
        LabConfig::preset("smoke", executable).expect("a preset that fits any machine")
    }

    /// A configuration in which everything that a scenario says is still missing.
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

    /// The cores that a contender has in a cell.
    #[must_use]
    pub fn cores_of(&self, cell: &Cell) -> &[usize] {
        &self.server_cores[..cell.server_cores.min(self.server_cores.len())]
    }

    /// All cores that the run uses, lowest first.
    #[must_use]
    pub fn all_cores(&self) -> Vec<usize> {
        let further_core = self.further_core.as_slice();
        let mut cores = [self.server_cores.as_slice(), &self.load_cores, further_core].concat();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// The part of their cores that servers have in a cell.
    #[must_use]
    pub fn server_share_in(&self, cell: &Cell) -> f64 {
        cell.server_share(self.server_share, &self.server_cores, &self.load_cores)
    }

    /// The largest number of connections that every contender has open at once in any cell.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        let at_once = self.cells.iter().filter(|cell| cell.workload.has_loops());
        at_once.map(|cell| cell.connections).max().unwrap_or(0)
    }

    /// Slices in the whole run if nothing fails or is repeated.
    #[must_use]
    pub fn slice_count(&self) -> usize {
        self.cells.iter().map(|cell| self.slices_in(cell)).sum::<usize>() * self.passes
    }

    /// The same in one cell of one pass: a turn in each round of all that have an answer for it and are made for it.
    pub(crate) fn slices_in(&self, cell: &Cell) -> usize {
        self.participants_in(cell) * self.rounds
    }

    /// How many contenders have something to do in a cell.
    fn participants_in(&self, cell: &Cell) -> usize {
        let participates = |contender: &&Contender| {
            unsupported_reason(&contender.serves, cell).is_none()
                && limit_reason(contender.connections_limit, contender.takes_cores(), cell).is_none()
        };
        self.contenders.iter().filter(participates).count()
    }

    /// The sum over all turns that contenders have to connect in cells of what `time_of_cell` says of one.
    fn sum_over_participants(&self, time_of_cell: impl Fn(&Cell) -> Duration) -> Duration {
        let participants =
            |cell: &Cell| saturating_u32(self.participants_in(cell).saturating_mul(self.passes));
        self.cells.iter().map(|cell| time_of_cell(cell).saturating_mul(participants(cell))).sum()
    }

    /// Time that the slices and warm-ups will take, those that contenders need for themselves among them, without
    /// starting and connecting.
    #[must_use]
    pub fn load_time(&self) -> Duration {
        let own: Duration = self.contenders.iter().map(|contender| contender.warm_up).sum();
        let slices = saturating_u32(self.rounds + 1);
        self.slice * saturating_u32(self.slice_count())
            + self.sum_over_participants(|cell| self.warm_up + in_flight_bytes_time(cell) * slices)
            + own * saturating_u32(self.passes * self.core_counts())
    }

    /// How many numbers of server cores the cells have that are timed: all contenders start anew for each of them.
    fn core_counts(&self) -> usize {
        let timed = self.cells.iter().filter(|cell| cell.workload != Workload::Idle);
        timed.map(|cell| cell.server_cores).collect::<BTreeSet<_>>().len()
    }

    /// About how long the whole run will take: slices, warm-ups, checks, starting and connecting.
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

    /// Where the reference stands among the contenders.
    #[must_use]
    pub fn reference_index(&self) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == self.reference)
    }

    /// Says what is wrong with this configuration.
    ///
    /// # Errors
    /// The first fault found, with the remedy.
    pub fn validate(&self) -> Result<(), String> {
        if self.reference_index().is_none() {
            let names: Vec<&str> = self.contenders.iter().map(|contender| contender.name.as_str()).collect();
            return Err(format!(
                "the reference \"{}\" is not among the contenders: choose one of {}",
                self.reference,
                names.join(", ")
            ));
        }
        for (index, contender) in self.contenders.iter().enumerate() {
            if self.contenders[..index].iter().any(|earlier| earlier.name == contender.name) {
                return Err(format!("two contenders are called \"{}\": rename one", contender.name));
            }
        }
        let names = names_without_twins(&self.contenders);
        for contender in &self.contenders {
            contender.base.iter().try_for_each(|base| check_base(&contender.name, base, &names))?;
        }
        check_extent(self.passes, self.rounds, self.cells.len(), self.contenders.len())?;
        if self.slice.is_zero() {
            return Err("the slice must be longer than 0".to_owned());
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
            return Err("the limit of stolen time must be a fraction, 0 or more".to_owned());
        }
        if self.server_cores.is_empty() || self.load_cores.is_empty() {
            return Err("servers and load need at least one core each".to_owned());
        }
        if self.cells.is_empty() {
            return Err("there is nothing to measure: give at least one cell".to_owned());
        }
        for (index, cell) in self.cells.iter().enumerate() {
            check_cell(cell, self.server_cores.len()).map_err(|why| format!("{cell}: {why}"))?;
            if self.cells[..index].contains(cell) {
                return Err(format!("the cell \"{cell}\" is there twice: name it once"));
            }
        }
        Ok(())
    }
}

/// Echo cells for all pairs, by message size and then connections.
#[must_use]
pub fn echo_cells(message_bytes: &[usize], connections: &[usize]) -> Vec<Cell> {
    let cells = |&bytes: &usize| connections.iter().map(move |&connections| Cell::echo(bytes, connections));
    message_bytes.iter().flat_map(cells).collect()
}

/// Whether a run of these numbers has something to do and may end.
pub(crate) fn check_extent(
    passes: usize,
    rounds: usize,
    cells: usize,
    contenders: usize,
) -> Result<(), String> {
    for (name, number, most) in [("passes", passes, MAX_PASSES), ("rounds", rounds, MAX_ROUNDS)] {
        if !(1..=most).contains(&number) {
            return Err(format!("{name} must be at least 1 and at most {most}, not {number}"));
        }
    }
    let slices = [passes, rounds, cells, contenders].into_iter().try_fold(1usize, usize::checked_mul);
    match slices {
        Some(..=MAX_SLICES) => Ok(()),
        _ => Err(format!("there would be more than {MAX_SLICES} slices: give fewer passes, rounds or cells")),
    }
}

/// How long a contender's turn to connect takes in a cell, without its warm-up.
fn time_to_connect(cell: &Cell) -> Duration {
    let each = match cell.workload {
        Workload::Disk { .. } => Duration::ZERO,
        workload if workload.cipher().is_some() => CONNECT_TIME + HANDSHAKE_TIME,
        _ => CONNECT_TIME,
    };
    CONNECT_TURN_TIME + each.saturating_mul(saturating_u32(cell.connections))
}

/// How long a slice of a closed loop goes on after its end because requests are in flight, however small their answers are.
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

/// How long a slice goes on after its end in a cell because of the bytes of what is owed then. Little but where answers are
/// large.
fn in_flight_bytes_time(cell: &Cell) -> Duration {
    let Workload::Http { target, pipelining, cipher, .. } = cell.workload else { return Duration::ZERO };
    let requests = cell.connections.saturating_mul(pipelining);
    let rate = if cipher.is_some() { TLS_BYTES_PER_SECOND } else { BYTES_PER_SECOND };
    Duration::from_secs_f64(requests as f64 * target.bytes() as f64 / rate)
}

/// The names of all but twins, which are compared with nobody but the one that they are a second time.
fn names_without_twins(contenders: &[Contender]) -> Vec<&str> {
    let others = contenders.iter().filter(|contender| contender.twin_of.is_none());
    others.map(|contender| contender.name.as_str()).collect()
}

/// Whether `base`, which the contender called `name` is to be set against, is another one of `names`.
fn check_base(name: &str, base: &str, names: &[&str]) -> Result<(), String> {
    let others: Vec<&str> = names.iter().copied().filter(|other| *other != name).collect();
    if others.contains(&base) {
        return Ok(());
    }
    let why = if base == name { "which is itself" } else { "which is not among the contenders" };
    Err(format!(
        "\"{name}\" is to be set against \"{base}\", {why}: name the one that differs from it in nothing else, one of \
         {}, or leave the key out",
        others.join(", ")
    ))
}

pub(crate) fn check_cell(cell: &Cell, server_cores: usize) -> Result<(), String> {
    if cell.connections == 0 {
        return Err("a cell needs at least 1 connection (disk: depth 1)".to_owned());
    }
    let bytes = match cell.workload {
        Workload::Echo { message_bytes } => message_bytes,
        Workload::Disk { block_bytes, .. } => block_bytes,
        Workload::Http { pipelining, .. } => pipelining.saturating_mul(cell.connections),
        Workload::Idle => 0,
    };
    if cell.connections.max(bytes) > MAX_COUNT || cell.offered_per_second > Some(MAX_COUNT as u64) {
        return Err(format!(
            "connections, depth, bytes, requests in flight and rate are at most {MAX_COUNT}"
        ));
    }
    if !(1..=server_cores).contains(&cell.server_cores) {
        return Err(format!("servers have 1 to {server_cores} cores here, not {}", cell.server_cores));
    }
    match cell.workload {
        Workload::Echo { message_bytes: 0 } => Err("the message size must be at least 1 byte".to_owned()),
        Workload::Disk { block_bytes: 0, .. } => Err("the block size must be at least 1 byte".to_owned()),
        Workload::Http { pipelining, .. } if !(1..=MAX_PIPELINING).contains(&pipelining) => {
            Err(format!("pipelining is from 1, for none, to {MAX_PIPELINING}"))
        }
        Workload::Http { pipelining: 2.., reconnect: true, .. } => Err(
            "a connection that takes one request cannot have several in flight: give reconnect or pipelining, and cells of \
             both kinds as single [[cells]]"
                .to_owned(),
        ),
        Workload::Idle | Workload::Disk { .. } if cell.offered_per_second.is_some() => {
            Err("only echo and http can be offered a rate".to_owned())
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
