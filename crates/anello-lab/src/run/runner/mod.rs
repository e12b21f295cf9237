//! State of a run, and the functions that run its passes, cells and slices.
//!
//! Invariant: dropping a [`Runner`] stops every contender that it has started.

mod checks;
mod idle;
mod idle_cpu;
mod slices;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::plan::cell::Workload;
use crate::plan::config::LabConfig;
use crate::plan::limits::supports;
use crate::plan::schedule::Random;
use crate::result::latency;
use crate::result::{Completed, Consequence, Failure, LabResult, LatencyRecord, Quality};
use crate::run::load::{Load, LoadError, LoadSession, SliceLoad, latency_histogram};
use crate::run::machine::{Machine, MachineError, Running};
use crate::run::progress::{Observer, Progress};

/// Number of retries for a slice with stolen or throttled time. After that, the round continues without a valid slice.
const STOLEN_RETRIES: usize = 1;

/// Maximum duration of one step of a contender's own warm-up. The stop flag is checked between steps.
const WARM_UP_STEP: Duration = Duration::from_millis(250);

/// Indices of a contender and of a cell that it serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct CellOfContender {
    contender: usize,
    cell: usize,
}

type Latencies = HashMap<CellOfContender, Histogram<u64>>;

/// Latencies of the cell in progress.
#[derive(Default)]
struct PendingLatencies {
    pass: usize,
    latencies: Latencies,
}

pub struct Runner<'a> {
    config: &'a LabConfig,
    load: &'a mut dyn Load,
    machine: &'a mut dyn Machine,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
    result: &'a mut LabResult,
    /// Cores whose stolen time is measured.
    cores: Vec<usize>,
    running: Vec<Option<Running>>,
    /// Contenders that have completed their own warm-up since they were started.
    warmed_up: HashSet<usize>,
    busy_when_idle: HashSet<usize>,
    /// The cells in which contenders sent wrong bytes.
    disqualified: HashSet<CellOfContender>,
    failed_check: HashSet<usize>,
    /// Contenders that could not be started for this group of cells. They are skipped until the next group.
    skipped: HashSet<usize>,
    /// Latencies of completed cells.
    latencies: Latencies,
    pending: PendingLatencies,
    /// Value that is added to the machine's clock to obtain the time since the start of the run. In a resumed run, this
    /// time includes the parts before the interruption.
    clock_offset_ns: i128,
    /// Number of slices measured or skipped so far.
    done: usize,
    ever_started: bool,
}

#[derive(Clone, Copy)]
struct SlicePosition {
    pass: usize,
    cell: usize,
    round: usize,
}

/// Connections of a contender in a cell.
struct ContenderSession {
    /// `None` between slices if the connections of all contenders cannot be open at the same time.
    session: Option<Box<dyn LoadSession>>,
    restarted: bool,
}

impl<'a> Runner<'a> {
    /// Creates a runner that continues from the state in `result`.
    pub fn new(
        config: &'a LabConfig,
        load: &'a mut dyn Load,
        machine: &'a mut dyn Machine,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
        result: &'a mut LabResult,
    ) -> Runner<'a> {
        let contender = |name: &str| config.contenders.iter().position(|contender| contender.name == name);
        let disqualified = result.failures.iter().filter_map(|failure| {
            let cell = config.cells.iter().position(|&cell| Some(cell) == failure.cell)?;
            (failure.consequence == Consequence::Disqualified)
                .then(|| Some(CellOfContender { contender: contender(&failure.contender)?, cell }))?
        });
        let failed_check = result.checks.iter().filter(|check| !check.passed);
        let latencies = result.latencies.iter().filter_map(|record| {
            let LatencyRecord { contender, cell, .. } = *record;
            Some((CellOfContender { contender, cell }, latency::decode(&record.histogram).ok()?))
        });
        Runner {
            cores: config.all_cores(),
            running: vec![None; config.contenders.len()],
            warmed_up: HashSet::new(),
            busy_when_idle: HashSet::new(),
            disqualified: disqualified.collect(),
            failed_check: failed_check.filter_map(|check| contender(&check.contender)).collect(),
            skipped: HashSet::new(),
            latencies: latencies.collect(),
            pending: PendingLatencies::default(),
            clock_offset_ns: i128::from(result.elapsed_ns) - i128::from(machine.now_ns()),
            done: 0,
            ever_started: !result.slices.is_empty(),
            config,
            load,
            machine,
            observer,
            stop,
            result,
        }
    }

    /// Checks the contenders and runs all passes, until the stop flag is set.
    ///
    /// # Errors
    /// Returns an error, which ends the run, if the machine is lost; the results so far are kept. Also returns an error
    /// if a contender cannot be started for its check, unless the run keeps going.
    pub fn run(&mut self) -> Result<(), RunError> {
        self.check_all()?;
        for pass in 0..self.config.timing.passes {
            if self.stopped() {
                break;
            }
            self.run_pass(pass)?;
        }
        Ok(())
    }

    /// Runs all cells of this pass that are not complete yet.
    fn run_pass(&mut self, pass: usize) -> Result<(), MachineError> {
        let core_counts: BTreeSet<usize> = self.config.cells.iter().map(|cell| cell.server_cores).collect();
        let core_counts: Vec<usize> = core_counts.into_iter().collect();
        let mut random = Random::for_position(self.config.timing.seed, pass, None);
        for index in random.order(core_counts.len()) {
            let server_cores = core_counts[index];
            let with_cores = |&cell: &usize| self.config.cells[cell].server_cores == server_cores;
            let cells: Vec<usize> =
                random.order(self.config.cells.len()).into_iter().filter(with_cores).collect();
            self.run_cells(pass, &cells, server_cores)?;
        }
        Ok(())
    }

    /// Writes the latencies to the result. Returns whether any contender has ever become ready.
    pub fn finish(self) -> bool {
        let unfinished = Some(self.pending.pass);
        let finished = self.latencies.iter();
        let finished = finished.filter_map(|(key, histogram)| latency_record(key, histogram, None));
        let pending = self.pending.latencies.iter();
        let pending = pending.filter_map(|(key, histogram)| latency_record(key, histogram, unfinished));
        self.result.latencies = finished.chain(pending).collect();
        self.result.latencies.sort_by_key(|record| (record.cell, record.contender, record.unfinished_pass));
        self.ever_started
    }

    fn run_cells(&mut self, pass: usize, cells: &[usize], server_cores: usize) -> Result<(), MachineError> {
        let is_pending =
            |runner: &Self, cell: usize| !runner.result.completed.contains(&Completed { pass, cell });
        if cells.iter().any(|&cell| is_pending(self, cell)) {
            self.start_all(pass, server_cores)?;
        }
        for &cell in cells {
            if self.stopped() {
                break;
            }
            let done_before = self.done;
            if is_pending(self, cell) {
                if self.config.cells[cell].workload == Workload::Idle {
                    self.run_idle_cell(pass, cell)?;
                } else {
                    self.run_cell(pass, cell)?;
                }
                if self.stopped() {
                    break;
                }
                self.complete(pass, cell);
            }
            // Skipped slices count as completed.
            self.done = done_before + self.config.slices_in(&self.config.cells[cell]);
            self.observer.progress(Progress::Slices { done: self.done });
        }
        self.stop_all()
    }

    /// Marks a cell as completed and makes its latencies final. Passes a checkpoint to an observer that keeps them.
    fn complete(&mut self, pass: usize, cell: usize) {
        for (key, histogram) in std::mem::take(&mut self.pending.latencies) {
            merge_latencies(&mut self.latencies, key, &histogram);
        }
        self.result.completed.push(Completed { pass, cell });
        if !self.observer.keeps_checkpoints() {
            return;
        }
        // Only the histograms of this cell have changed. Re-encoding all histograms would take seconds in large runs.
        self.result.latencies.retain(|record| record.cell != cell);
        let of_cell = self.latencies.iter().filter(|(key, _)| key.cell == cell);
        let records = of_cell.filter_map(|(key, histogram)| latency_record(key, histogram, None));
        self.result.latencies.extend(records);
        self.result.elapsed_ns = self.since_start_ns();
        // If no other checkpoint follows, this file describes an interrupted run.
        self.result.interrupted = true;
        self.observer.checkpoint(self.result);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn since_start_ns(&mut self) -> u64 {
        u64::try_from(i128::from(self.machine.now_ns()) + self.clock_offset_ns).unwrap_or(0)
    }

    fn start_all(&mut self, pass: usize, server_cores: usize) -> Result<(), MachineError> {
        if self.config.cells.iter().all(|cell| cell.workload == Workload::Idle) {
            return Ok(()); // Idle cells start one contender at a time.
        }
        self.skipped.clear();
        let mut random = Random::for_position(self.config.timing.seed, pass, Some(usize::MAX - server_cores));
        for index in random.order(self.config.contenders.len()) {
            if self.stopped() {
                return Ok(());
            }
            if self.failed_check.contains(&index)
                || (server_cores > 1 && !self.config.contenders[index].takes_cores())
            {
                continue;
            }
            match self.start(index, &self.config.cores.server[..server_cores]) {
                Ok(_) => {}
                Err(lost @ MachineError::Lost(_)) => return Err(lost),
                Err(error) => {
                    self.skipped.insert(index);
                    self.report(index, None, pass, error.to_string(), Consequence::SkippedPass);
                }
            }
        }
        Ok(())
    }

    fn run_cell(&mut self, pass: usize, cell: usize) -> Result<(), MachineError> {
        self.start_cell(pass, cell);
        let count = self.config.contenders.len();
        let mut random = Random::for_position(self.config.timing.seed, pass, Some(cell));
        let participants = (0..count).filter(|&index| self.participates(index, cell)).count();
        let keep_open =
            self.config.cells[cell].connections * participants <= self.machine.max_open_connections()?;
        let close =
            |open: ContenderSession| ContenderSession { session: open.session.filter(|_| keep_open), ..open };
        let mut contender_sessions: Vec<Option<ContenderSession>> = (0..count).map(|_| None).collect();
        for index in random.order(count) {
            if self.stopped() {
                return Ok(());
            }
            contender_sessions[index] = self.connect_contender(index, pass, cell)?.map(close);
        }
        for round in 0..self.config.timing.rounds {
            for index in random.order(count) {
                if self.stopped() {
                    return Ok(());
                }
                if let Some(contender_session) = contender_sessions[index].take() {
                    let position = SlicePosition { pass, cell, round };
                    self.set_paused(index, false)?;
                    // A restart also opens connections.
                    contender_sessions[index] =
                        self.run_contender(index, contender_session, position)?.map(close);
                    self.set_paused(index, true)?;
                    self.done += 1;
                    self.observer.progress(Progress::Slices { done: self.done });
                }
            }
        }
        Ok(())
    }

    fn start_cell(&mut self, pass: usize, cell: usize) {
        self.pending = PendingLatencies { pass, latencies: HashMap::new() };
        self.observer.progress(Progress::Cell { cell: self.config.cells[cell], pass });
    }

    fn participates(&self, index: usize, cell: usize) -> bool {
        !self.disqualified.contains(&CellOfContender { contender: index, cell })
            && !self.failed_check.contains(&index)
            && supports(&self.config.contenders[index], &self.config.cells[cell])
    }

    /// Connects a contender for a cell and warms it up. Restarts it once on failure.
    fn connect_contender(
        &mut self,
        index: usize,
        pass: usize,
        cell: usize,
    ) -> Result<Option<ContenderSession>, MachineError> {
        if !self.participates(index, cell) || self.skipped.contains(&index) {
            // The process may still be running even though the contender does not participate. It must not disturb
            // the other contenders.
            self.measure_idle_cpu(index)?;
            self.set_paused(index, true)?;
            return Ok(None);
        }
        self.set_paused(index, false)?;
        let contender_session = match self.connect(index, cell) {
            Ok(session) => Some(ContenderSession { session: Some(session), restarted: false }),
            Err(error) => self.restart_or_skip(index, pass, cell, error, false)?,
        };
        self.measure_idle_cpu(index)?;
        self.set_paused(index, true)?;
        Ok(contender_session)
    }

    fn connect(&mut self, index: usize, cell: usize) -> Result<Box<dyn LoadSession>, SliceError> {
        let cell = &self.config.cells[cell];
        let address = match &self.running[index] {
            Some(running) => running.address,
            None => self.start(index, self.config.cores_of(cell))?,
        };
        let mut session = self
            .load
            .connect(address, cell)
            .map_err(|error| SliceError::Broken(format!("cannot connect: {error}")))?;
        let own_warm_up = self.config.contenders[index].warm_up;
        if !own_warm_up.is_zero() && self.warmed_up.insert(index) {
            self.warm_up(session.as_mut(), own_warm_up)?;
        }
        if !self.config.timing.warm_up.is_zero() {
            check(&session.run_slice(self.config.timing.warm_up)?)?;
        }
        session.settle()?;
        Ok(session)
    }

    /// Runs a contender's own warm-up, which may be long, in steps. Stops between steps if the stop flag is set.
    fn warm_up(&self, session: &mut dyn LoadSession, mut remaining: Duration) -> Result<(), SliceError> {
        while !remaining.is_zero() && !self.stopped() {
            let step = remaining.min(WARM_UP_STEP);
            check(&session.run_slice(step)?)?;
            remaining -= step;
        }
        Ok(())
    }

    /// Runs one slice for a contender. Returns `None` if the contender is left out of the cell or the run is stopped.
    fn run_contender(
        &mut self,
        index: usize,
        contender_session: ContenderSession,
        position: SlicePosition,
    ) -> Result<Option<ContenderSession>, MachineError> {
        let ContenderSession { session, restarted } = contender_session;
        match self.run_slice_with_retries(index, session, position) {
            Ok(session) => Ok(session.map(|session| ContenderSession { session: Some(session), restarted })),
            Err(error) => self.restart_or_skip(index, position.pass, position.cell, error, restarted),
        }
    }

    /// Opens a session if `session` is `None`, runs one slice, and repeats the slice if CPU time was lost. Returns
    /// `None` if the run was stopped before the slice.
    fn run_slice_with_retries(
        &mut self,
        index: usize,
        session: Option<Box<dyn LoadSession>>,
        position: SlicePosition,
    ) -> Result<Option<Box<dyn LoadSession>>, SliceError> {
        let mut session = session.map_or_else(|| self.connect(index, position.cell), Ok)?;
        if self.stopped() {
            return Ok(None); // The warm-up may be incomplete.
        }
        for _ in 0..=STOLEN_RETRIES {
            let quality = self.measure(index, session.as_mut(), position)?;
            if !matches!(quality, Quality::Stolen | Quality::Throttled) || self.stopped() {
                break;
            }
        }
        Ok(Some(session))
    }

    fn pid(&self, index: usize) -> Result<u32, SliceError> {
        let running = self.running[index].as_ref();
        Ok(running.ok_or_else(|| SliceError::Broken("is not running".to_owned()))?.pid)
    }

    fn restart_or_skip(
        &mut self,
        index: usize,
        pass: usize,
        cell: usize,
        error: SliceError,
        restarted: bool,
    ) -> Result<Option<ContenderSession>, MachineError> {
        let what = match error {
            SliceError::WrongReply(what) => {
                self.disqualified.insert(CellOfContender { contender: index, cell });
                self.report(index, Some(cell), pass, what, Consequence::Disqualified);
                return Ok(None);
            }
            SliceError::Broken(what) => self.root_cause(index, what)?,
            SliceError::Lost(error) => return Err(error),
        };
        self.stop_contender(index)?;
        if restarted || self.stopped() {
            self.report(index, Some(cell), pass, what, Consequence::LeftOut);
            return Ok(None);
        }
        self.report(index, Some(cell), pass, what, Consequence::Restarted);
        match self.connect(index, cell) {
            Ok(session) => Ok(Some(ContenderSession { session: Some(session), restarted: true })),
            Err(error) => self.restart_or_skip(index, pass, cell, error, true),
        }
    }

    /// Waits for the process to exit and adds its exit description to `what`. The load generator usually detects a
    /// broken connection before the lab can observe its cause, the exit of the server.
    fn root_cause(&mut self, index: usize, what: String) -> Result<String, MachineError> {
        let Some(running) = &self.running[index] else { return Ok(what) };
        let timeout = self.config.startup.exit_timeout;
        Ok(match self.machine.exit_description(running.pid, timeout)? {
            Some(exit) => format!("{exit} (load generator error: {what})"),
            None => format!("{what} (server still running after {} s)", timeout.as_secs_f64()),
        })
    }

    fn start(&mut self, index: usize, cores: &[usize]) -> Result<SocketAddr, MachineError> {
        let contender = &self.config.contenders[index];
        let running = self.machine.start(contender, self.config, cores)?;
        self.ever_started = true;
        let record = &mut self.result.contenders[index];
        if record.ready_line.is_none() {
            record.ready_line = Some(running.ready_line.clone());
            // The server's ready line is more reliable than the driver declared in the scenario.
            if let Some(driver) = ready_line_value(&running.ready_line, "driver") {
                record.driver = Some(if driver == "uring" { "io_uring" } else { driver }.to_owned());
            }
            if let Some(version) = ready_line_value(&running.ready_line, "version") {
                record.version = Some(version.to_owned());
            }
            self.observer.progress(Progress::Ready {
                contender: contender.name.clone(),
                ready_line: running.ready_line.clone(),
            });
        }
        let address = running.address;
        self.running[index] = Some(running);
        self.warmed_up.remove(&index);
        Ok(address)
    }

    fn report(
        &mut self,
        index: usize,
        cell: Option<usize>,
        pass: usize,
        what: String,
        consequence: Consequence,
    ) {
        let contender = self.config.contenders[index].name.clone();
        let cell = cell.map(|cell| self.config.cells[cell]);
        let failure = Failure { contender, cell, pass, what, consequence };
        // A resumed run may repeat a failure that is already recorded.
        if cell.is_none() && self.result.failures.contains(&failure) {
            return;
        }
        self.observer.progress(Progress::Failed(failure.clone()));
        self.result.failures.push(failure);
    }

    fn stop_contender(&mut self, index: usize) -> Result<(), MachineError> {
        self.running[index].take().map_or(Ok(()), |running| self.machine.stop(&[running.pid]))
    }

    fn stop_all(&mut self) -> Result<(), MachineError> {
        let pids: Vec<u32> =
            self.running.iter_mut().filter_map(Option::take).map(|running| running.pid).collect();
        self.machine.stop(&pids)
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        // On a machine that is lost, the agent stops them.
        self.stop_all().ok();
    }
}

fn latency_record(
    &CellOfContender { contender, cell }: &CellOfContender,
    histogram: &Histogram<u64>,
    unfinished_pass: Option<usize>,
) -> Option<LatencyRecord> {
    Some(LatencyRecord { contender, cell, unfinished_pass, histogram: latency::encode(histogram).ok()? })
}

fn merge_latencies(latencies: &mut Latencies, key: CellOfContender, histogram: &Histogram<u64>) {
    latency::add(latencies.entry(key).or_insert_with(latency_histogram), histogram);
}

fn ready_line_value<'a>(ready_line: &'a str, name: &str) -> Option<&'a str> {
    let words = ready_line.split_whitespace();
    words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).find(|value| !value.is_empty())
}

/// Reason why a run has ended early.
pub enum RunError {
    Machine(MachineError),
    /// The contender cannot be started for its check.
    Contender(Failure),
}

impl From<MachineError> for RunError {
    fn from(error: MachineError) -> RunError {
        RunError::Machine(error)
    }
}

/// Failure of a slice or a connection.
enum SliceError {
    /// The server or its connections failed. A restart may help.
    Broken(String),
    /// The server sends wrong responses. A restart does not help.
    WrongReply(String),
    /// The machine is lost. The run ends.
    Lost(MachineError),
}

impl From<MachineError> for SliceError {
    fn from(error: MachineError) -> SliceError {
        match error {
            MachineError::Lost(_) => SliceError::Lost(error),
            _ => SliceError::Broken(error.to_string()),
        }
    }
}

impl From<LoadError> for SliceError {
    fn from(error: LoadError) -> SliceError {
        SliceError::Broken(error.to_string())
    }
}

/// Returns an error if a slice has wrong replies or broken connections. Such a slice is not a measurement.
fn check(load: &SliceLoad) -> Result<(), SliceError> {
    if load.wrong_replies > 0 {
        let count = format!("{} of {} replies", load.wrong_replies, load.requests + load.wrong_replies);
        return Err(SliceError::WrongReply(match &load.wrong_example {
            Some(example) => format!("wrong replies: {count}; {example}"),
            None => format!("wrong bytes in {count}"),
        }));
    }
    let errors: Vec<String> =
        load.errors.iter().map(|(kind, count)| format!("{kind} ({count} times)")).collect();
    if errors.is_empty() { Ok(()) } else { Err(SliceError::Broken(errors.join(", "))) }
}
