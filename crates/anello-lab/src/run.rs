//! A run from beginning to end: start, connect, load in slices, restart what broke, stop everything.
//!
//! ```text
//!  for each pass:   start all contenders
//!    for each cell, in random order:   connect all contenders, warm each up
//!      for each round:   one slice for each contender, in random order
//!    stop all contenders
//! ```
//!
//! A contender that breaks within a cell is started again once in that cell of that pass; if it breaks there again it
//! sits out the rest of the cell. One that answers with wrong bytes is not asked again in that cell at all: how fast
//! it is wrong is of no interest.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::analysis;
use crate::load::{Load, LoadSession, SliceLoad};
use crate::machine::{Machine, Running};
use crate::result::{
    Consequence, ContenderRecord, Failure, LabResult, Plan, Quality, SCHEMA, SCHEMA_VERSION, Slice,
};
use crate::scenario::{Cell, LabConfig};
use crate::schedule::Random;

/// How often a slice with stolen time is tried again before the round goes on without it.
const STOLEN_RETRIES: usize = 1;

/// What the run is doing, for a progress bar or a log.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The run begins; so many slices lie ahead.
    Begin {
        /// Slices, if nothing fails.
        slices: usize,
    },
    /// A contender is ready.
    Ready {
        /// Its name.
        contender: String,
        /// What it said.
        ready_line: String,
    },
    /// A cell begins.
    Cell {
        /// Which.
        cell: Cell,
        /// Pass, from 0.
        pass: usize,
    },
    /// So many of the slices are behind, measured or skipped.
    Slices {
        /// Slices behind.
        done: usize,
    },
    /// Something went wrong; the run goes on.
    Failed(Failure),
    /// The load is over; the statistics are made.
    Analysis,
}

/// Why there is no result at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabError {
    /// The configuration makes no sense; the text says why and what to change.
    Config(String),
    /// Not one contender could be started. What each of them did.
    NothingStarted(Vec<Failure>),
}

impl fmt::Display for LabError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::Config(why) => formatter.write_str(why),
            LabError::NothingStarted(failures) => {
                formatter.write_str("not one contender could be started, so there is nothing to compare")?;
                failures
                    .iter()
                    .try_for_each(|failure| write!(formatter, "\n  {}: {}", failure.contender, failure.what))
            }
        }
    }
}

impl std::error::Error for LabError {}

/// Runs the lab. When `stop` becomes true, it finishes the slice under way and returns what there is.
///
/// All contenders that it started have ended when it returns.
///
/// # Errors
/// [`LabError`] if the configuration is unusable or nothing could be started. Whatever befalls single contenders is
/// part of the result.
pub fn run(
    config: &LabConfig,
    load: &mut dyn Load,
    machine: &mut dyn Machine,
    progress: &mut dyn FnMut(Progress),
    stop: &AtomicBool,
) -> Result<LabResult, LabError> {
    config.check().map_err(LabError::Config)?;
    let mut result = empty_result(config, machine);
    result.notes.extend(machine.prepare(config));
    let cores = cores_of(config);
    let began_ns = machine.now_ns();
    let foreign_before_ns = machine.foreign_ns(&cores);
    progress(Progress::Begin { slices: config.slice_count() });
    let mut runner = Runner::new(config, load, machine, progress, stop, &mut result);
    for pass in 0..config.passes {
        runner.run_pass(pass);
    }
    let ever_started = runner.ever_started;
    drop(runner);
    result.elapsed_ns = machine.now_ns().saturating_sub(began_ns);
    if let (Some(before_ns), Some(after_ns)) = (foreign_before_ns, machine.foreign_ns(&cores)) {
        let core_ns = result.elapsed_ns.max(1) as f64 * cores.len() as f64;
        result.foreign_fraction = Some(after_ns.saturating_sub(before_ns) as f64 / core_ns);
    }
    result.environment_after = machine.environment();
    result.interrupted = stop.load(Ordering::Relaxed);
    if !ever_started && !result.interrupted {
        return Err(LabError::NothingStarted(result.failures));
    }
    progress(Progress::Analysis);
    analysis::analyse(config, &mut result);
    Ok(result)
}

fn empty_result(config: &LabConfig, machine: &mut dyn Machine) -> LabResult {
    let record = |contender: &crate::Contender| ContenderRecord {
        name: contender.name.clone(),
        command: contender.command_line(),
        ready_line: None,
        twin_of: contender.twin_of.clone(),
    };
    let mut notes = Vec::new();
    if config.server_core == config.load_core {
        notes.push(format!(
            "There is only one core to use: server and load share core {}, so requests/s is what both reach together. \
             Server CPU per request is the figure to read.",
            config.server_core
        ));
    }
    LabResult {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        started_unix_s: machine.unix_time_s(),
        elapsed_ns: 0,
        interrupted: false,
        plan: Plan {
            version: config.version.clone(),
            repeat_command: config.repeat_command.clone(),
            seed: config.seed,
            slice_ns: u64::try_from(config.slice.as_nanos()).unwrap_or(u64::MAX),
            passes: config.passes,
            rounds: config.rounds,
            connections: config.connections.clone(),
            message_bytes: config.message_bytes.clone(),
            server_core: config.server_core,
            load_core: config.load_core,
            reference: config.reference.clone(),
            stolen_fraction_limit: config.stolen_fraction_limit,
        },
        findings: Vec::new(),
        contenders: config.contenders.iter().map(record).collect(),
        cells: Vec::new(),
        failures: Vec::new(),
        notes,
        foreign_fraction: None,
        environment: machine.environment(),
        environment_after: crate::Environment::default(),
        slices: Vec::new(),
    }
}

/// The cores that a run uses.
fn cores_of(config: &LabConfig) -> Vec<usize> {
    let mut cores = vec![config.server_core, config.load_core];
    cores.dedup();
    cores
}

/// A contender's place in a cell: its open connections, and whether it has had its second chance.
struct Seat {
    session: Box<dyn LoadSession>,
    restarted: bool,
}

/// The state of a run. Dropping it stops every contender.
struct Runner<'a> {
    config: &'a LabConfig,
    load: &'a mut dyn Load,
    machine: &'a mut dyn Machine,
    progress: &'a mut dyn FnMut(Progress),
    stop: &'a AtomicBool,
    result: &'a mut LabResult,
    random: Random,
    /// The cores whose stolen time matters.
    cores: Vec<usize>,
    /// By contender.
    running: Vec<Option<Running>>,
    /// Contender and cell where wrong bytes came back.
    disqualified: HashSet<(usize, Cell)>,
    cells_done: usize,
    done: usize,
    ever_started: bool,
}

impl<'a> Runner<'a> {
    fn new(
        config: &'a LabConfig,
        load: &'a mut dyn Load,
        machine: &'a mut dyn Machine,
        progress: &'a mut dyn FnMut(Progress),
        stop: &'a AtomicBool,
        result: &'a mut LabResult,
    ) -> Runner<'a> {
        Runner {
            config,
            load,
            machine,
            progress,
            stop,
            result,
            random: Random::stream(config.seed, 1),
            cores: cores_of(config),
            running: vec![None; config.contenders.len()],
            disqualified: HashSet::new(),
            cells_done: 0,
            done: 0,
            ever_started: false,
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn run_pass(&mut self, pass: usize) {
        for index in self.random.order(self.config.contenders.len()) {
            if self.stopped() {
                return;
            }
            if let Err(what) = self.start(index) {
                self.report(index, None, pass, what, Consequence::SkippedPass);
            }
        }
        let cells = self.config.cells();
        for index in self.random.order(cells.len()) {
            if self.stopped() {
                return;
            }
            self.run_cell(pass, cells[index]);
            // Turns that nobody took count as behind, too.
            self.cells_done += 1;
            self.done = self.cells_done * self.config.contenders.len() * self.config.rounds;
            (self.progress)(Progress::Slices { done: self.done });
        }
        self.stop_all();
    }

    fn run_cell(&mut self, pass: usize, cell: Cell) {
        (self.progress)(Progress::Cell { cell, pass });
        let count = self.config.contenders.len();
        let mut seats: Vec<Option<Seat>> = (0..count).map(|_| None).collect();
        for index in self.random.order(count) {
            if self.stopped() {
                return;
            }
            seats[index] = self.take_seat(index, pass, cell);
        }
        for round in 0..self.config.rounds {
            for index in self.random.order(count) {
                if self.stopped() {
                    return;
                }
                if let Some(seat) = seats[index].take() {
                    seats[index] = self.run_turn(index, seat, pass, cell, round);
                    self.done += 1;
                    (self.progress)(Progress::Slices { done: self.done });
                }
            }
        }
    }

    /// Connects and warms up a contender for a cell, with a second try after a restart if that fails.
    fn take_seat(&mut self, index: usize, pass: usize, cell: Cell) -> Option<Seat> {
        if self.disqualified.contains(&(index, cell))
            || (self.running[index].is_none() && !self.ever_ran(index))
        {
            return None;
        }
        match self.connect(index, cell) {
            Ok(session) => Some(Seat { session, restarted: false }),
            Err(trouble) => self.second_chance(index, pass, cell, trouble, false),
        }
    }

    /// Whether the contender has been ready at least once, so that starting it again makes sense.
    fn ever_ran(&self, index: usize) -> bool {
        self.result.contenders[index].ready_line.is_some()
    }

    fn connect(&mut self, index: usize, cell: Cell) -> Result<Box<dyn LoadSession>, Trouble> {
        let address = match &self.running[index] {
            Some(running) => running.address,
            None => self.start(index).map_err(Trouble::Broken)?,
        };
        let mut session = self
            .load
            .connect(address, cell.connections, cell.message_bytes)
            .map_err(|why| Trouble::Broken(format!("could not be connected to: {why}")))?;
        if !self.config.warm_up.is_zero() {
            let load = session.run_slice(self.config.warm_up).map_err(Trouble::Broken)?;
            check(&load)?;
        }
        Ok(session)
    }

    /// One slice for one contender, repeated if time was stolen from it. Gives the seat back if it may stay.
    fn run_turn(
        &mut self,
        index: usize,
        mut seat: Seat,
        pass: usize,
        cell: Cell,
        round: usize,
    ) -> Option<Seat> {
        for _ in 0..=STOLEN_RETRIES {
            let measured = self.measure(index, seat.session.as_mut(), pass, cell, round);
            match measured {
                Ok(slice) => {
                    let quality = slice.quality;
                    self.result.slices.push(slice);
                    if quality != Quality::Stolen || self.stopped() {
                        break;
                    }
                }
                Err(trouble) => {
                    let restarted = seat.restarted;
                    drop(seat);
                    return self.second_chance(index, pass, cell, trouble, restarted);
                }
            }
        }
        Some(seat)
    }

    fn measure(
        &mut self,
        index: usize,
        session: &mut dyn LoadSession,
        pass: usize,
        cell: Cell,
        round: usize,
    ) -> Result<Slice, Trouble> {
        let pid = self.running[index].as_ref().map(|running| running.pid).ok_or_else(Trouble::gone)?;
        let stolen_before = self.machine.stolen_ns(&self.cores);
        let cpu_before_ns = self.machine.cpu_ns(pid).map_err(Trouble::Broken)?;
        let load = session.run_slice(self.config.slice).map_err(Trouble::Broken)?;
        check(&load)?;
        let cpu_after_ns = self.machine.cpu_ns(pid).map_err(Trouble::Broken)?;
        let stolen_ns = match (stolen_before, self.machine.stolen_ns(&self.cores)) {
            (Ok(before), Ok(after)) => after.saturating_sub(before),
            _ => 0, // A kernel that does not tell is no reason to give up; the environment says so.
        };
        let cpu_ns = cpu_after_ns.checked_sub(cpu_before_ns).filter(|&cpu_ns| cpu_ns > 0);
        let limit_ns = self.config.stolen_fraction_limit * load.elapsed_ns as f64 * self.cores.len() as f64;
        let quality = if load.requests == 0 || cpu_ns.is_none() {
            Quality::Spoilt
        } else if stolen_ns as f64 > limit_ns {
            Quality::Stolen
        } else {
            Quality::Clean
        };
        Ok(Slice {
            contender: index,
            cell,
            pass,
            round,
            requests: load.requests,
            elapsed_ns: load.elapsed_ns,
            cpu_ns: cpu_ns.unwrap_or(0),
            stolen_ns,
            p50_ns: load.latency.value_at_quantile(0.5),
            p99_ns: load.latency.value_at_quantile(0.99),
            quality,
        })
    }

    /// Deals with a contender that broke: starts it again once and connects anew, or lets it sit out the cell.
    fn second_chance(
        &mut self,
        index: usize,
        pass: usize,
        cell: Cell,
        trouble: Trouble,
        restarted: bool,
    ) -> Option<Seat> {
        let what = match trouble {
            Trouble::Wrong(what) => {
                self.disqualified.insert((index, cell));
                self.report(index, Some(cell), pass, what, Consequence::Disqualified);
                return None;
            }
            Trouble::Broken(what) => self.what_really_happened(index, what),
        };
        if restarted || self.stopped() {
            self.report(index, Some(cell), pass, what, Consequence::LeftOut);
            self.stop_one(index);
            return None;
        }
        self.stop_one(index);
        self.report(index, Some(cell), pass, what, Consequence::Restarted);
        match self.connect(index, cell) {
            Ok(session) => Some(Seat { session, restarted: true }),
            Err(trouble) => self.second_chance(index, pass, cell, trouble, true),
        }
    }

    /// A dead server shows as a broken connection first, before its end can be seen; its end is the better
    /// explanation, so it is waited for.
    fn what_really_happened(&mut self, index: usize, what: String) -> String {
        let Some(running) = &self.running[index] else { return what };
        match self.machine.ended(running.pid, self.config.dying_time) {
            Some(end) => format!("{end} (the load saw: {what})"),
            None => format!("{what} (it was still running {} s later)", self.config.dying_time.as_secs_f64()),
        }
    }

    fn start(&mut self, index: usize) -> Result<std::net::SocketAddr, String> {
        let contender = &self.config.contenders[index];
        let running = self.machine.start(contender, self.config)?;
        self.ever_started = true;
        let record = &mut self.result.contenders[index];
        if record.ready_line.is_none() {
            record.ready_line = Some(running.ready_line.clone());
            (self.progress)(Progress::Ready {
                contender: contender.name.clone(),
                ready_line: running.ready_line.clone(),
            });
        }
        let address = running.address;
        self.running[index] = Some(running);
        Ok(address)
    }

    fn report(
        &mut self,
        index: usize,
        cell: Option<Cell>,
        pass: usize,
        what: String,
        consequence: Consequence,
    ) {
        let contender = self.config.contenders[index].name.clone();
        let failure = Failure { contender, cell, pass, what, consequence };
        (self.progress)(Progress::Failed(failure.clone()));
        self.result.failures.push(failure);
    }

    fn stop_one(&mut self, index: usize) {
        if let Some(running) = self.running[index].take() {
            self.machine.stop(&[running.pid]);
        }
    }

    fn stop_all(&mut self) {
        let pids: Vec<u32> =
            self.running.iter_mut().filter_map(Option::take).map(|running| running.pid).collect();
        self.machine.stop(&pids);
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        self.stop_all();
    }
}

/// Why a slice or a connection failed.
enum Trouble {
    /// The server or its connections broke; another start may help.
    Broken(String),
    /// The server answers wrongly; another start would not help.
    Wrong(String),
}

impl Trouble {
    fn gone() -> Trouble {
        Trouble::Broken("is not running".to_owned())
    }
}

/// A slice with wrong bytes or broken connections is no measurement.
fn check(load: &SliceLoad) -> Result<(), Trouble> {
    if load.wrong_replies > 0 {
        return Err(Trouble::Wrong(format!(
            "answered with wrong bytes: {} of {} replies",
            load.wrong_replies,
            load.requests + load.wrong_replies
        )));
    }
    let troubles: Vec<String> =
        load.errors.iter().map(|(kind, count)| format!("{kind} ({count} times)")).collect();
    if troubles.is_empty() { Ok(()) } else { Err(Trouble::Broken(troubles.join(", "))) }
}
