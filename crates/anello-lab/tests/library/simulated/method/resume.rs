//! Tests for resumed runs.

use std::sync::atomic::AtomicBool;

use anello_lab::result::Outcome;
use anello_lab::{Cell, Difference, LabConfig, LabError, LabResult, echo_cells, run_from};

use super::{CheckpointRecorder, config, servers, simulate, simulate_on};
use crate::simulated::simulation::{Fault, Noise, SimulatedServer, Simulation};

#[test]
fn resumed_run_equals_uninterrupted_run() {
    let cells = echo_cells(&[128, 1024], &[1, 50]);
    let mut config = LabConfig { check: true, ..config(&["one"], cells, 7) };
    (config.timing.passes, config.timing.rounds) = (5, 3);
    let field = servers(&[("one", SimulatedServer::costing(6_000.0))]);
    let whole = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, None).unwrap();
    // Stop in the middle of a cell in the second pass. A cell has 9 slices, and a pass has 4 cells.
    let stop = AtomicBool::new(false);
    let mut recorder =
        CheckpointRecorder { stop_at_slice: Some((50, &stop)), ..CheckpointRecorder::default() };
    let simulation = Simulation::new(7, Noise::NONE, &field);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let part = run_from(&config, None, &mut load, &mut machine, &mut recorder, &stop).unwrap();
    assert!(part.interrupted && part.slices.len() == 50 && part.completed.len() == 5);
    assert!(part.latencies.iter().any(|record| record.unfinished_pass == Some(1)));
    let json = anello_lab::render_json(&part).unwrap();
    let again = LabResult::from_json(&json).unwrap();
    let resumed = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, Some(again)).unwrap();
    assert!(!resumed.interrupted);
    let order = |result: &LabResult| -> Vec<(usize, usize, usize, usize)> {
        let slices = result.slices.iter();
        slices.map(|slice| (slice.pass, slice.cell, slice.round, slice.contender)).collect()
    };
    assert_eq!(order(&resumed), order(&whole));
    assert_eq!(resumed.completed, whole.completed);
    assert_eq!(resumed.checks.len(), whole.checks.len());
    let counts = |result: &LabResult| -> Vec<(Outcome, usize, usize)> {
        let rows = result.cells.iter().flat_map(|cell| &cell.rows);
        rows.map(|row| (row.outcome.clone(), row.clean_slices, row.latency_curve.len())).collect()
    };
    assert_eq!(counts(&resumed), counts(&whole));
    assert_eq!(resumed.latencies, whole.latencies, "identical without noise");
    // Resume from a checkpoint, which contains no figures.
    let checkpoint = recorder.checkpoints.last().unwrap().clone();
    assert!(checkpoint.cells.is_empty() && checkpoint.completed.len() == 5);
    let resumed = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, Some(checkpoint)).unwrap();
    assert_eq!(order(&resumed), order(&whole));
}

#[test]
fn checkpoint_of_crashed_run_is_read_as_interrupted_run() {
    let mut config = config(&["one"], echo_cells(&[128], &[1, 50]), 7);
    config.timing.passes = 5;
    let field = servers(&[("one", SimulatedServer::costing(6_000.0))]);
    let never = AtomicBool::new(false);
    // This run is not stopped; only its checkpoints are used.
    let mut recorder =
        CheckpointRecorder { stop_after: Some((usize::MAX, &never)), ..CheckpointRecorder::default() };
    let simulation = Simulation::new(7, Noise::NONE, &field);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let whole = run_from(&config, None, &mut load, &mut machine, &mut recorder, &never).unwrap();
    assert!(!whole.interrupted);
    assert_eq!(recorder.checkpoints.len(), 10, "one for each cell of each pass");
    let last = LabResult::from_json(&anello_lab::render_json(&recorder.checkpoints[9]).unwrap()).unwrap();
    assert!(last.interrupted && !last.findings.is_empty());
    assert_eq!((&last.slices, &last.cells), (&whole.slices, &whole.cells));
    assert!(anello_lab::render_table(&last).contains("was stopped early"));
    let first = LabResult::from_json(&anello_lab::render_json(&recorder.checkpoints[0]).unwrap()).unwrap();
    assert_eq!((first.cells.len(), first.slices.len()), (2, 3));
    // A checkpoint loaded for resuming is unchanged.
    let directory = tempfile::tempdir().unwrap();
    let path = anello_lab::checkpoint::save(&recorder.checkpoints[0], directory.path()).unwrap();
    assert_eq!(anello_lab::checkpoint::load(&path).unwrap(), recorder.checkpoints[0]);
}

#[test]
fn resumed_complete_run_starts_no_process() {
    let config = config(&[], echo_cells(&[128], &[1, 50]), 7);
    let whole = simulate_on(&Simulation::new(7, Noise::NONE, &servers(&[])), &config, None).unwrap();
    let simulation = Simulation::new(7, Noise::NONE, &servers(&[]));
    let again = simulate_on(&simulation, &config, Some(whole.clone())).unwrap();
    assert_eq!(simulation.processes_started(), 0);
    assert_eq!((again.slices, again.cells), (whole.slices, whole.cells));
}

#[test]
fn resume_rejects_different_plan() {
    let first = config(&["one"], echo_cells(&[128], &[1, 50]), 7);
    let field = [("one", SimulatedServer::costing(6_000.0))];
    let result = simulate(&first, Noise::NONE, &field);
    let rejection = |change: &dyn Fn(&mut LabConfig)| {
        let mut other = first.clone();
        change(&mut other);
        let simulation = Simulation::new(7, Noise::NONE, &servers(&field));
        match simulate_on(&simulation, &other, Some(result.clone())) {
            Err(LabError::Resume(why)) => {
                assert_eq!((simulation.processes_started(), why.difference()), (0, Difference::Plan));
                why.to_string()
            }
            other => panic!("not rejected: {other:?}"),
        }
    };
    assert_eq!(rejection(&|config| config.timing.seed = 8), "seed differs: 7 in the previous run, 8 now");
    let cell = rejection(&|config| config.cells[1] = Cell::echo(128, 51));
    assert_eq!(
        cell,
        "cell 2 differs: \"50 connections, 128 bytes\" in the previous run, \"51 connections, 128 bytes\" now"
    );
    assert!(rejection(&|config| config.contenders[2].name = "two".into()).contains("list of contenders"));
    assert!(rejection(&|config| config.contenders[2].arguments.clear()).contains("command of one"));
    assert!(rejection(&|config| config.timing.rounds += 1).contains("rounds"));
    let driver = rejection(&|config| config.provenance.load_driver = Some("io_uring".into()));
    assert_eq!(driver, "load generator driver differs: None in the previous run, Some(\"io_uring\") now");
    assert!(
        rejection(&|config| config.contenders[2].connections_limit = Some(9))
            .contains("number of connections")
    );
}

#[test]
fn resume_rejects_rebuilt_program() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("server");
    std::fs::write(&program, "one build").unwrap();
    let mut config = config(&["one"], echo_cells(&[128], &[1]), 7);
    config.contenders[2].program.clone_from(&program);
    let field = [("one", SimulatedServer::costing(6_000.0))];
    let result = simulate(&config, Noise::NONE, &field);
    let again =
        || simulate_on(&Simulation::new(7, Noise::NONE, &servers(&field)), &config, Some(result.clone()));
    assert!(again().is_ok());
    std::fs::write(&program, "another build").unwrap();
    match again() {
        Err(LabError::Resume(why)) => {
            assert!(why.to_string().starts_with("program of one (by its hash) differs: "), "{why}");
            assert_eq!(why.difference(), Difference::Environment);
        }
        other => panic!("not rejected: {other:?}"),
    }
}

#[test]
fn resume_rejects_different_congestion_control() {
    let config = config(&[], echo_cells(&[128], &[1]), 7);
    let field = servers(&[]);
    let mut result = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, None).unwrap();
    result.environment.congestion_control = Some("bbr".to_owned());
    let again = simulate_on(&Simulation::new(7, Noise::NONE, &field), &config, Some(result));
    let Err(LabError::Resume(why)) = again else { panic!("not rejected: {again:?}") };
    assert_eq!(why.difference(), Difference::Environment);
    assert_eq!(
        why.to_string(),
        "congestion control differs: Some(\"bbr\") in the previous run, Some(\"cubic\") now"
    );
}

#[test]
fn disqualified_contender_stays_disqualified_after_resume() {
    let config = config(&["liar"], echo_cells(&[128], &[1, 50]), 3);
    let liar = SimulatedServer::costing(3_000.0).with_fault(Fault::WrongBytesFrom(1));
    let field = servers(&[("liar", liar)]);
    let stop = AtomicBool::new(false);
    let mut recorder = CheckpointRecorder { stop_after: Some((2, &stop)), ..CheckpointRecorder::default() };
    let simulation = Simulation::new(3, Noise::NONE, &field);
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    let part = run_from(&config, None, &mut load, &mut machine, &mut recorder, &stop).unwrap();
    assert_eq!(part.failures.len(), 2);
    let whole = simulate_on(&Simulation::new(3, Noise::NONE, &field), &config, Some(part)).unwrap();
    assert_eq!(whole.failures.len(), 2, "not measured again: {:?}", whole.failures);
}
