//! Tests for the checks before the measurements, and for stopping a run.

use std::cell::Cell as StdCell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anello_lab::result::{Consequence, LabResult, Outcome};
use anello_lab::{
    Cell, Check, Contender, DiskOperation, LabConfig, LabError, Load, LoadError, LoadSession, Observer,
    Progress, SliceLoad, Workload, echo_cells, run_from,
};

use crate::simulated::lab::{checks_of, config_of, run};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

const REFERENCE: &str = "bare epoll";

/// Returns a configuration with checks, the reference, its twin and one other contender.
fn config(other: &str) -> LabConfig {
    let contender = |name: &str| Contender::new(name, Path::new("server"), &["--cores", "{cores}"]);
    let contenders = vec![contender(REFERENCE), contender(REFERENCE).twin(), contender(other)];
    LabConfig { check: true, ..config_of(contenders, echo_cells(&[128], &[1, 50]), 1) }
}

fn simulation(other: &str, fault: Fault) -> Simulation {
    let usual = SimulatedServer::costing(6_000.0);
    let twin = format!("{REFERENCE} again");
    let other = (other, usual.clone().with_fault(fault));
    Simulation::new(1, Noise::NONE, &[(REFERENCE, usual.clone()), (&twin, usual), other])
}

/// Observer that stops the run after a number of checks.
struct StopsAfter<'a>(usize, &'a AtomicBool);

impl Observer for StopsAfter<'_> {
    fn progress(&mut self, progress: Progress) {
        if let Progress::Checked(_) = progress {
            self.0 -= 1;
            self.1.store(self.0 == 0, Ordering::Relaxed);
        }
    }

    fn checkpoint(&mut self, _result: &LabResult) {}
}

fn part(config: &LabConfig, simulation: &Simulation, checks: usize) -> Result<LabResult, LabError> {
    let stop = AtomicBool::new(false);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    run_from(config, None, &mut load, &mut machine, &mut StopsAfter(checks, &stop), &stop)
}

#[test]
fn start_failure_during_check_excludes_contender_from_measurement() {
    let simulation = simulation("late", Fault::CannotStartOnce);
    let stop = AtomicBool::new(false);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let config = LabConfig { keep_going: true, ..config("late") };
    let result = run(&config, &mut load, &mut machine, &mut |_| {}, &stop).unwrap();
    assert!(result.slices.iter().all(|slice| slice.contender != 2));
    let late = result.checks.iter().find(|check| check.contender == "late").unwrap();
    assert_eq!((late.what.as_str(), late.passed), ("start", false));
    assert_eq!(result.failures.len(), 1, "{:?}", result.failures);
    assert_eq!(result.failures[0].consequence, Consequence::SkippedPass);
    for cell in &result.cells {
        assert!(matches!(&cell.rows[2].outcome, Outcome::Skipped(why) if why.contains("first start fails")));
    }
}

#[test]
fn start_failure_during_check_ends_run_unless_it_keeps_going() {
    let simulation = simulation("late", Fault::CannotStartOnce);
    let stop = AtomicBool::new(false);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let mut checked = 0;
    let on_progress = &mut |progress| checked += usize::from(matches!(progress, Progress::Slices { .. }));
    let error = run(&config("late"), &mut load, &mut machine, on_progress, &stop).unwrap_err();
    assert!(matches!(&error, LabError::Contender(failure) if failure.contender == "late"), "{error}");
    assert!(error.to_string().contains("first start fails") && checked == 0, "{error}");
}

/// In a container, for example, the servers on io_uring exit.
#[test]
fn predefined_server_that_exits_does_not_end_run() {
    let mut config = config("late");
    config.contenders[2].is_predefined = true;
    let result = part(&config, &simulation("late", Fault::CannotStartOnce), usize::MAX).unwrap();
    assert!(checks_of(&result).contains(&("late", "start", false)));
    assert!(result.slices.iter().any(|slice| slice.contender == 0));
    assert!(result.slices.iter().all(|slice| slice.contender != 2));
    assert!(result.failures[0].what.contains("first start fails"), "{:?}", result.failures);
}

/// Disk workers have no clients, so that starting them is their only check.
#[test]
fn disk_workers_are_started_before_measurement() {
    let workload = Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
    let disk_config = |other, keep_going| {
        let cells = echo_cells(&[128], &[1, 4]).into_iter().map(|cell| Cell { workload, ..cell }).collect();
        LabConfig { cells, keep_going, ..config(other) }
    };
    let failing = simulation("late", Fault::CannotStartOnce);
    let error = part(&disk_config("late", false), &failing, usize::MAX).unwrap_err();
    assert!(matches!(&error, LabError::Contender(failure) if failure.contender == "late"), "{error}");
    let failing = simulation("late", Fault::CannotStartOnce);
    let others = part(&disk_config("late", true), &failing, usize::MAX).unwrap();
    assert_eq!(checks_of(&others), [(REFERENCE, "start", true), ("late", "start", false)]);
    assert!(others.slices.iter().any(|slice| slice.contender == 0));
    assert!(others.slices.iter().all(|slice| slice.contender != 2));
    let config = disk_config("usual", false);
    let first = part(&config, &simulation("usual", Fault::None), 1).unwrap();
    assert_eq!((checks_of(&first), first.slices.len()), (vec![(REFERENCE, "start", true)], 0));
    let (simulation, stop) = (simulation("usual", Fault::None), AtomicBool::new(false));
    let mut observer = StopsAfter(usize::MAX, &stop);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let all = run_from(&config, Some(first), &mut load, &mut machine, &mut observer, &stop).unwrap();
    assert_eq!(checks_of(&all), [(REFERENCE, "start", true), ("usual", "start", true)]);
    assert!(all.slices.iter().any(|slice| slice.contender == 2) && simulation.processes_left() == 0);
}

#[test]
fn resumed_run_performs_remaining_checks() {
    let config = config("loser");
    for checks in 1..=4 {
        let part = part(&config, &simulation("loser", Fault::LosesBytes), checks).unwrap();
        assert_eq!((part.checks.len(), part.slices.len(), part.interrupted), (checks, 0, true));
        let simulation = simulation("loser", Fault::LosesBytes);
        let stop = AtomicBool::new(false);
        let (mut load, mut machine) = (simulation.load(), simulation.machine());
        let mut observer = StopsAfter(usize::MAX, &stop);
        let result = run_from(&config, Some(part), &mut load, &mut machine, &mut observer, &stop).unwrap();
        let made = checks_of(&result);
        let expected = [
            (REFERENCE, "complete bytes", true),
            (REFERENCE, "stalled reader", true),
            (REFERENCE, "5000 connections", true),
            ("loser", "complete bytes", true),
            ("loser", "stalled reader", false),
        ];
        assert_eq!(made, expected, "stopped after {checks}");
        assert!(result.slices.iter().all(|slice| slice.contender != 2));
    }
}

/// A load generator that counts slices and checks. It stops the run in the first check or in slice number `at`.
struct StopsIn<L> {
    load: L,
    requests: Rc<StdCell<usize>>,
    at: usize,
    stop: Arc<AtomicBool>,
}

struct StopsInSession {
    session: Box<dyn LoadSession>,
    requests: Rc<StdCell<usize>>,
    at: usize,
    stop: Arc<AtomicBool>,
}

impl<L: Load> Load for StopsIn<L> {
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, LoadError> {
        let session = self.load.connect(target, cell)?;
        let (requests, at, stop) = (Rc::clone(&self.requests), self.at, Arc::clone(&self.stop));
        Ok(Box::new(StopsInSession { session, requests, at, stop }))
    }

    fn check(
        &mut self,
        _target: SocketAddr,
        _check: Check,
        stop: &AtomicBool,
    ) -> Result<Vec<String>, LoadError> {
        self.requests.set(self.requests.get() + 1);
        stop.store(true, Ordering::Relaxed);
        Err(LoadError::Interrupted)
    }
}

impl LoadSession for StopsInSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError> {
        self.requests.set(self.requests.get() + 1);
        self.stop.store(self.requests.get() >= self.at, Ordering::Relaxed);
        self.session.run_slice(duration)
    }
}

fn stopped_in(config: &LabConfig, at: usize) -> (LabResult, usize) {
    let simulation = simulation("slow", Fault::None);
    let (requests, stop) = (Rc::new(StdCell::new(0)), Arc::new(AtomicBool::new(false)));
    let mut load =
        StopsIn { load: simulation.load(), requests: Rc::clone(&requests), at, stop: Arc::clone(&stop) };
    let result = run(config, &mut load, &mut simulation.machine(), &mut |_| {}, &stop).unwrap();
    assert_eq!((simulation.processes_left(), simulation.sessions_left()), (0, 0));
    (result, requests.get())
}

#[test]
fn interrupted_check_is_not_a_failure() {
    let (result, requests) = stopped_in(&config("slow"), 1);
    assert!(result.interrupted && result.checks.is_empty() && result.failures.is_empty(), "{result:?}");
    assert_eq!(requests, 1);
}

#[test]
fn stop_interrupts_long_warm_up() {
    let mut config = LabConfig { check: false, ..config("slow") };
    config.timing.passes = 10_000;
    for contender in &mut config.contenders {
        contender.warm_up = Duration::from_secs(3600);
    }
    let (result, requests) = stopped_in(&config, 3);
    assert!(result.interrupted && result.slices.is_empty());
    // Three warm-up steps of the first contender, and possibly the cell's warm-up.
    assert!((3..=4).contains(&requests), "{requests}");
}
