//! The state of a run and its steps, from one pass down to one slice.
//!
//! Invariant: dropping a [`Runner`] stops every contender that it has started.

mod checks;
mod idle;
mod idle_cpu;
mod slices;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::cell::{Cell, Workload};
use crate::latency;
use crate::load::{Load, LoadSession, SliceLoad, latency_histogram};
use crate::machine::{Machine, Running};
use crate::peers::Serves;
use crate::result::{Completed, Consequence, Failure, LabResult, LatencyRecord, Quality};
use crate::run::{Observer, Progress};
use crate::scenario::LabConfig;
use crate::schedule::Random;
use crate::site::SupportedTargets;

/// How often a slice with stolen or throttled time is tried again before the round goes on without it.
const STOLEN_RETRIES: usize = 1;

/// Longest stretch of a contender's own warm-up that is not interrupted.
const WARM_UP_STEP: Duration = Duration::from_millis(250);

/// The latencies of contenders in cells.
type Latencies = HashMap<(usize, usize), Histogram<u64>>;

/// The state of a run.
pub struct Runner<'a> {
    config: &'a LabConfig,
    load: &'a mut dyn Load,
    machine: &'a mut dyn Machine,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
    result: &'a mut LabResult,
    /// The cores whose stolen time matters.
    cores: Vec<usize>,
    /// By contender.
    running: Vec<Option<Running>>,
    /// Contenders that have had their own warm-up since they were started.
    warmed_up: HashSet<usize>,
    /// Contenders that use their core while they have nothing to do.
    busy_when_idle: HashSet<usize>,
    /// Contender and cell where wrong bytes came back.
    disqualified: HashSet<(usize, usize)>,
    /// Contenders that failed a check.
    failed_check: HashSet<usize>,
    /// Contenders that could not be started when all were, and are not asked until all are started again.
    skipped: HashSet<usize>,
    /// Of the cells that were gone through.
    latencies: Latencies,
    /// Of the cell under way, with its pass.
    pending: (usize, Latencies),
    /// Moments are told from the beginning of the run, and, when it was taken up again, of its first part.
    clock_offset_ns: i128,
    /// Of all cells that were gone through.
    slices_behind: usize,
    done: usize,
    ever_started: bool,
}

/// Where a slice belongs.
#[derive(Clone, Copy)]
struct SlicePosition {
    pass: usize,
    cell: usize,
    round: usize,
}

/// A contender's place in a cell: its open connections, and whether it has had its second chance.
struct ContenderSession {
    /// None between slices where not all contenders' connections can be open at once.
    session: Option<Box<dyn LoadSession>>,
    restarted: bool,
}

impl<'a> Runner<'a> {
    /// Goes on from what is in `result`.
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
                .then(|| Some((contender(&failure.contender)?, cell)))?
        });
        let failed_check = result.checks.iter().filter(|check| !check.passed);
        let latencies = result.latencies.iter().filter_map(|record| {
            Some(((record.contender, record.cell), latency::decode(&record.histogram).ok()?))
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
            pending: (0, HashMap::new()),
            clock_offset_ns: i128::from(result.elapsed_ns) - i128::from(machine.now_ns()),
            slices_behind: 0,
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

    /// One pass over all cells that have not been gone through in it.
    pub fn run_pass(&mut self, pass: usize) {
        let mut core_counts: Vec<usize> = self.config.cells.iter().map(|cell| cell.server_cores).collect();
        core_counts.sort_unstable();
        core_counts.dedup();
        let mut random = Random::for_position(self.config.seed, pass, None);
        for index in random.order(core_counts.len()) {
            let server_cores = core_counts[index];
            let with_cores = |&cell: &usize| self.config.cells[cell].server_cores == server_cores;
            let cells: Vec<usize> =
                random.order(self.config.cells.len()).into_iter().filter(with_cores).collect();
            self.run_cells(pass, &cells, server_cores);
        }
    }

    /// Gives the result what is still held elsewhere, and tells whether any contender was ever ready.
    pub fn finish(self) -> bool {
        let unfinished = Some(self.pending.0);
        let finished = self.latencies.iter().filter_map(|entry| latency_record(entry, None));
        let pending = self.pending.1.iter().filter_map(|entry| latency_record(entry, unfinished));
        self.result.latencies = finished.chain(pending).collect();
        self.result.latencies.sort_by_key(|record| (record.cell, record.contender, record.unfinished_pass));
        self.ever_started
    }

    fn run_cells(&mut self, pass: usize, cells: &[usize], server_cores: usize) {
        let ahead = |runner: &Self, cell: usize| !runner.result.completed.contains(&Completed { pass, cell });
        if cells.iter().any(|&cell| ahead(self, cell)) {
            self.start_all(pass, server_cores);
        }
        for &cell in cells {
            if self.stopped() {
                break;
            }
            if ahead(self, cell) {
                if self.config.cells[cell].workload == Workload::Idle {
                    self.run_idle_cell(pass, cell);
                } else {
                    self.run_cell(pass, cell);
                }
                if self.stopped() {
                    break;
                }
                self.complete(pass, cell);
            }
            // Turns that nobody took count as behind, too.
            self.slices_behind += self.config.slices_in(&self.config.cells[cell]);
            self.done = self.slices_behind;
            self.observer.progress(Progress::Slices { done: self.done });
        }
        self.stop_all();
    }

    /// A cell is behind: its latencies are final, and the run could go on from here.
    fn complete(&mut self, pass: usize, cell: usize) {
        for (position, histogram) in std::mem::take(&mut self.pending.1) {
            merge_latencies(&mut self.latencies, position, &histogram);
        }
        self.result.completed.push(Completed { pass, cell });
        if !self.observer.keeps_checkpoints() {
            return;
        }
        // Only this cell's have changed: to put them all into words again would take seconds in large runs.
        self.result.latencies.retain(|record| record.cell != cell);
        let of_cell = self.latencies.iter().filter(|((_, of), _)| *of == cell);
        self.result.latencies.extend(of_cell.filter_map(|entry| latency_record(entry, None)));
        self.result.elapsed_ns = self.since_beginning_ns();
        // Read as it is, a checkpoint is a run that did not reach its end.
        self.result.interrupted = true;
        self.observer.checkpoint(self.result);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn since_beginning_ns(&mut self) -> u64 {
        u64::try_from(i128::from(self.machine.now_ns()) + self.clock_offset_ns).unwrap_or(0)
    }

    fn start_all(&mut self, pass: usize, server_cores: usize) {
        let only_idle = self.config.cells.iter().all(|cell| cell.workload == Workload::Idle);
        if only_idle {
            return; // They are started one at a time.
        }
        self.skipped.clear();
        let mut random = Random::for_position(self.config.seed, pass, Some(usize::MAX - server_cores));
        for index in random.order(self.config.contenders.len()) {
            if self.stopped() {
                return;
            }
            if self.failed_check.contains(&index)
                || (server_cores > 1 && !self.config.contenders[index].takes_cores())
            {
                continue;
            }
            if let Err(what) = self.start(index, &self.config.server_cores[..server_cores]) {
                self.skipped.insert(index);
                self.report(index, None, pass, what, Consequence::SkippedPass);
            }
        }
    }

    fn run_cell(&mut self, pass: usize, cell: usize) {
        self.start_cell(pass, cell);
        let count = self.config.contenders.len();
        let mut random = Random::for_position(self.config.seed, pass, Some(cell));
        let taking_part = (0..count).filter(|&index| self.participates(index, cell)).count();
        let keep_open =
            self.config.cells[cell].connections * taking_part <= self.machine.max_open_connections();
        let mut contender_sessions: Vec<Option<ContenderSession>> = (0..count).map(|_| None).collect();
        for index in random.order(count) {
            if self.stopped() {
                return;
            }
            contender_sessions[index] = self.connect_contender(index, pass, cell);
            if let Some(contender_session) = contender_sessions[index].as_mut().filter(|_| !keep_open) {
                contender_session.session = None;
            }
        }
        for round in 0..self.config.rounds {
            for index in random.order(count) {
                if self.stopped() {
                    return;
                }
                if let Some(contender_session) = contender_sessions[index].take() {
                    let position = SlicePosition { pass, cell, round };
                    contender_sessions[index] =
                        self.run_contender(index, contender_session, position, keep_open);
                    self.done += 1;
                    self.observer.progress(Progress::Slices { done: self.done });
                }
            }
        }
    }

    fn start_cell(&mut self, pass: usize, cell: usize) {
        self.pending = (pass, HashMap::new());
        self.observer.progress(Progress::Cell { cell: self.config.cells[cell], pass });
    }

    /// Whether a contender has anything to do in a cell.
    fn participates(&mut self, index: usize, cell: usize) -> bool {
        let contender = &self.config.contenders[index];
        !self.disqualified.contains(&(index, cell))
            && !self.failed_check.contains(&index)
            && unsupported_reason(&contender.serves, &self.config.cells[cell]).is_none()
            && limit_reason(contender.connections_limit, contender.takes_cores(), &self.config.cells[cell])
                .is_none()
    }

    /// Connects and warms up a contender for a cell, with a second try after a restart if that fails.
    fn connect_contender(&mut self, index: usize, pass: usize, cell: usize) -> Option<ContenderSession> {
        if !self.participates(index, cell) || self.skipped.contains(&index) {
            // It may run nevertheless, and is not to disturb those that take part.
            self.measure_idle_cpu(index);
            self.suspend_idle_spinner(index);
            return None;
        }
        self.resume_idle_spinner(index);
        let contender_session = match self.connect(index, cell) {
            Ok(session) => Some(ContenderSession { session: Some(session), restarted: false }),
            Err(error) => self.restart_or_skip(index, pass, cell, error, false),
        };
        self.measure_idle_cpu(index);
        self.suspend_idle_spinner(index);
        contender_session
    }

    fn connect(&mut self, index: usize, cell: usize) -> Result<Box<dyn LoadSession>, SliceError> {
        let cell = &self.config.cells[cell];
        let address = match &self.running[index] {
            Some(running) => running.address,
            None => self.start(index, self.config.cores_of(cell)).map_err(SliceError::Broken)?,
        };
        let mut session = self
            .load
            .connect(address, cell)
            .map_err(|why| SliceError::Broken(format!("could not be connected to: {why}")))?;
        let own = self.config.contenders[index].warm_up;
        if !own.is_zero() && self.warmed_up.insert(index) {
            self.warm_up(session.as_mut(), own)?;
        }
        if !self.config.warm_up.is_zero() {
            let load = session.run_slice(self.config.warm_up).map_err(SliceError::Broken)?;
            check(&load)?;
        }
        session.settle().map_err(SliceError::Broken)?;
        Ok(session)
    }

    /// A contender's own warm-up, which may be long: in steps, of which no more begin when the run is to stop.
    fn warm_up(&self, session: &mut dyn LoadSession, duration: Duration) -> Result<(), SliceError> {
        let mut left = duration;
        while !left.is_zero() && !self.stopped() {
            let step = left.min(WARM_UP_STEP);
            check(&session.run_slice(step).map_err(SliceError::Broken)?)?;
            left -= step;
        }
        Ok(())
    }

    /// One slice for one contender, repeated if time was stolen from it. Gives the seat back if it may stay.
    fn run_contender(
        &mut self,
        index: usize,
        contender_session: ContenderSession,
        position: SlicePosition,
        keep_open: bool,
    ) -> Option<ContenderSession> {
        self.resume_idle_spinner(index);
        let contender_session = self.run_slice_with_retries(index, contender_session, position);
        // A restart has opened connections, too, and they must not cost another its own.
        let contender_session = contender_session.map(|contender_session| ContenderSession {
            session: contender_session.session.filter(|_| keep_open),
            ..contender_session
        });
        self.suspend_idle_spinner(index);
        contender_session
    }

    fn run_slice_with_retries(
        &mut self,
        index: usize,
        contender_session: ContenderSession,
        position: SlicePosition,
    ) -> Option<ContenderSession> {
        let ContenderSession { session, restarted } = contender_session;
        let session = match session {
            Some(session) => Ok(session),
            None => self.connect(index, position.cell),
        };
        let mut session = match session {
            Ok(session) => session,
            Err(error) => {
                return self.restart_or_skip(index, position.pass, position.cell, error, restarted);
            }
        };
        if self.stopped() {
            return None; // Its warm-up may have been left.
        }
        for _ in 0..=STOLEN_RETRIES {
            match self.measure(index, session.as_mut(), position) {
                Ok(quality) => {
                    if !matches!(quality, Quality::Stolen | Quality::Throttled) || self.stopped() {
                        break;
                    }
                }
                Err(error) => {
                    drop(session);
                    return self.restart_or_skip(index, position.pass, position.cell, error, restarted);
                }
            }
        }
        Some(ContenderSession { session: Some(session), restarted })
    }

    fn pid(&self, index: usize) -> Result<u32, SliceError> {
        self.running[index].as_ref().map(|running| running.pid).ok_or_else(SliceError::not_running)
    }

    /// Deals with a contender that broke: starts it again once and connects anew, or lets it sit out the cell.
    fn restart_or_skip(
        &mut self,
        index: usize,
        pass: usize,
        cell: usize,
        error: SliceError,
        restarted: bool,
    ) -> Option<ContenderSession> {
        let what = match error {
            SliceError::WrongReply(what) => {
                self.disqualified.insert((index, cell));
                self.report(index, Some(cell), pass, what, Consequence::Disqualified);
                return None;
            }
            SliceError::Broken(what) => self.root_cause(index, what),
        };
        if restarted || self.stopped() {
            self.report(index, Some(cell), pass, what, Consequence::LeftOut);
            self.stop_contender(index);
            return None;
        }
        self.stop_contender(index);
        self.report(index, Some(cell), pass, what, Consequence::Restarted);
        match self.connect(index, cell) {
            Ok(session) => Some(ContenderSession { session: Some(session), restarted: true }),
            Err(error) => self.restart_or_skip(index, pass, cell, error, true),
        }
    }

    /// A dead server shows as a broken connection first, before its end can be seen; its end is the better
    /// explanation, so it is waited for.
    fn root_cause(&mut self, index: usize, what: String) -> String {
        let Some(running) = &self.running[index] else { return what };
        match self.machine.exit_description(running.pid, self.config.exit_timeout) {
            Some(end) => format!("{end} (the load saw: {what})"),
            None => {
                format!("{what} (it was still running {} s later)", self.config.exit_timeout.as_secs_f64())
            }
        }
    }

    fn start(&mut self, index: usize, cores: &[usize]) -> Result<SocketAddr, String> {
        let contender = &self.config.contenders[index];
        let running = self.machine.start(contender, self.config, cores)?;
        self.ever_started = true;
        let record = &mut self.result.contenders[index];
        if record.ready_line.is_none() {
            record.ready_line = Some(running.ready_line.clone());
            // What it says itself is truer than what was declared.
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
        // A run that is taken up again may meet what it has met already.
        if cell.is_none() && self.result.failures.contains(&failure) {
            return;
        }
        self.observer.progress(Progress::Failed(failure.clone()));
        self.result.failures.push(failure);
    }

    fn stop_contender(&mut self, index: usize) {
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

/// Why a contender is not asked in a cell at all; none if it is.
#[must_use]
pub fn limit_reason(limit: Option<usize>, takes_cores: bool, cell: &Cell) -> Option<String> {
    match limit {
        Some(limit) if cell.connections > limit && !matches!(cell.workload, Workload::Disk { .. }) => {
            Some(format!("it is made for at most {limit} connections"))
        }
        _ if cell.server_cores > 1 && !takes_cores => Some("it runs on one core only".to_owned()),
        _ => None,
    }
}

/// Why a cell's requests have no answer of a contender that serves these; none if they have.
#[must_use]
pub fn unsupported_reason(serves: &[Serves], cell: &Cell) -> Option<String> {
    let target = cell.workload.target()?;
    (!SupportedTargets::of(serves).has(target)).then(|| format!("it does not serve {target}"))
}

fn latency_record(
    (&(contender, cell), histogram): (&(usize, usize), &Histogram<u64>),
    unfinished_pass: Option<usize>,
) -> Option<LatencyRecord> {
    Some(LatencyRecord { contender, cell, unfinished_pass, histogram: latency::encode(histogram).ok()? })
}

fn merge_latencies(latencies: &mut Latencies, position: (usize, usize), histogram: &Histogram<u64>) {
    latency::add(latencies.entry(position).or_insert_with(latency_histogram), histogram);
}

/// The value of `name=value` in a ready line.
fn ready_line_value<'a>(ready_line: &'a str, name: &str) -> Option<&'a str> {
    let words = ready_line.split_whitespace();
    words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).find(|value| !value.is_empty())
}

/// Why a slice or a connection failed.
enum SliceError {
    /// The server or its connections broke; another start may help.
    Broken(String),
    /// The server answers wrongly; another start would not help.
    WrongReply(String),
}

impl SliceError {
    fn not_running() -> SliceError {
        SliceError::Broken("is not running".to_owned())
    }
}

/// A slice with wrong bytes or broken connections is no measurement.
fn check(load: &SliceLoad) -> Result<(), SliceError> {
    if load.wrong_replies > 0 {
        let count = format!("{} of {} replies", load.wrong_replies, load.requests + load.wrong_replies);
        return Err(SliceError::WrongReply(match &load.wrong_example {
            Some(example) => format!("answered wrongly: {count}; {example}"),
            None => format!("answered with wrong bytes: {count}"),
        }));
    }
    let errors: Vec<String> =
        load.errors.iter().map(|(kind, count)| format!("{kind} ({count} times)")).collect();
    if errors.is_empty() { Ok(()) } else { Err(SliceError::Broken(errors.join(", "))) }
}
