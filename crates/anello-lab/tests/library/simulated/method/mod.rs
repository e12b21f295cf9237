//! Tests for the measurement method on a simulated machine: phases, checks, limits, offered rates, idle connections,
//! HTTP, comparisons with bases, resumed runs, and verdicts on equal servers in a hundred cells.

mod bases;
mod cells;
mod contenders;
mod http;
mod lost;
mod peaks;
mod phases;
mod resume;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anello_lab::result::{CellResult, FindingKind, Row, Verdict};
use anello_lab::{Cell, Contender, LabConfig, LabError, LabResult, Observer, Progress, Role, run_from};

use crate::simulated::lab::{checks_of, config_of};
use crate::simulated::simulation::{Noise, SimulatedServer, Simulation};

const REFERENCE: &str = "bare epoll";
const TWIN: &str = "bare epoll again";

fn contender(name: &str) -> Contender {
    Contender::new(name, Path::new("server"), &["--name", name, "--cores", "{cores}"])
}

/// Returns a configuration with the reference, its twin and `others`.
fn config(others: &[&str], cells: Vec<Cell>, seed: u64) -> LabConfig {
    let mut contenders = vec![contender(REFERENCE), contender(REFERENCE).twin()];
    contenders.iter_mut().for_each(|contender| contender.role = Role::Baseline);
    contenders.extend(others.iter().map(|name| contender(name)));
    config_of(contenders, cells, seed)
}

fn servers(others: &[(&'static str, SimulatedServer)]) -> Vec<(&'static str, SimulatedServer)> {
    let reference = SimulatedServer::costing(6_000.0);
    let mut servers = vec![(REFERENCE, reference.clone()), (TWIN, reference)];
    servers.extend_from_slice(others);
    servers
}

/// Records all checkpoints, and optionally stops the run after a number of checkpoints or slices.
#[derive(Default)]
struct CheckpointRecorder<'a> {
    checkpoints: Vec<LabResult>,
    stop_after: Option<(usize, &'a AtomicBool)>,
    stop_at_slice: Option<(usize, &'a AtomicBool)>,
}

impl Observer for CheckpointRecorder<'_> {
    fn keeps_checkpoints(&self) -> bool {
        self.stop_after.is_some() || self.stop_at_slice.is_some()
    }

    fn progress(&mut self, progress: Progress) {
        if let (Progress::Slices { done }, Some((at, stop))) = (progress, self.stop_at_slice) {
            stop.store(done >= at, Ordering::Relaxed);
        }
    }

    fn checkpoint(&mut self, result: &LabResult) {
        self.checkpoints.push(result.clone());
        if let Some((after, stop)) = self.stop_after {
            stop.store(self.checkpoints.len() >= after, Ordering::Relaxed);
        }
    }
}

fn simulate_on(
    simulation: &Simulation,
    config: &LabConfig,
    previous: Option<LabResult>,
) -> Result<LabResult, LabError> {
    let stop = AtomicBool::new(false);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    run_from(config, previous, &mut load, &mut machine, &mut CheckpointRecorder::default(), &stop)
}

fn simulate(config: &LabConfig, noise: Noise, others: &[(&'static str, SimulatedServer)]) -> LabResult {
    simulate_on(&Simulation::new(config.timing.seed, noise, &servers(others)), config, None).unwrap()
}

fn row<'a>(cell: &'a CellResult, name: &str) -> &'a Row {
    cell.rows.iter().find(|row| row.contender == name).expect("the row exists")
}

fn claims(cell: &CellResult, name: &str) -> usize {
    let row = row(cell, name);
    let verdicts = [row.comparison.rate_verdict, row.comparison.cpu_verdict];
    verdicts.into_iter().filter(|verdict| matches!(verdict, Verdict::More | Verdict::Less)).count()
}

fn texts(result: &LabResult, kind: FindingKind) -> Vec<&str> {
    let findings = result.findings.iter().filter(|finding| finding.kind == kind);
    findings.map(|finding| finding.text.as_str()).collect()
}
