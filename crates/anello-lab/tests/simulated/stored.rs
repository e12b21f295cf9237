//! Results that were edited, truncated or merged by hand are rejected with a reason.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anello_lab::{Contender, Executable, LabConfig, LabResult, render_json};

use crate::lab::run;
use crate::simulation::{Noise, SimulatedServer, Simulation};

fn result() -> LabResult {
    let simulation = Simulation::new(1, Noise::NONE, &[("one", SimulatedServer::costing(6_000.0))]);
    let config = LabConfig {
        contenders: vec![Contender::new("one", Path::new("one"), &[])],
        reference: "one".to_owned(),
        ..LabConfig::preset("smoke", PathBuf::from("anello")).unwrap()
    };
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    run(&config, &mut load, &mut machine, &mut |_| {}, &AtomicBool::new(false)).unwrap()
}

#[test]
fn rejects_inconsistent_results_with_reason() {
    let valid = result();
    let read = |result: &LabResult| LabResult::from_json(&render_json(result).unwrap());
    assert_eq!(read(&valid).as_ref().map(|read| read.slices.len()), Ok(valid.slices.len()));
    type Change = fn(&mut LabResult);
    fn program(result: &mut LabResult, sha256: &str) {
        let program = Executable { file: "one".to_owned(), sha256: sha256.to_owned() };
        result.contenders[0].executables = vec![program];
    }
    let mut hashed = valid.clone();
    program(&mut hashed, &"0aF9".repeat(16));
    assert!(read(&hashed).is_ok());
    let changes: [(Change, &str); 14] = [
        (|result| program(result, &"0aF".repeat(21)), "is not 64 hexadecimal digits: \"0aF0aF"),
        (|result| program(result, &"0aG9".repeat(16)), "is not 64 hexadecimal digits"),
        (|result| result.contenders.clear(), "no contenders"),
        (|result| result.plan.cells.clear(), "no cells"),
        (|result| result.plan.reference = "two".to_owned(), "\"two\" is not among"),
        (|result| result.plan.passes = 1 << 60, "passes"),
        (|result| result.plan.rounds = 0, "rounds"),
        (|result| result.plan.cells[0].connections = 1 << 60, "at most"),
        (|result| drop(result.cells.pop()), "are planned"),
        (|result| result.cells[0].rows.clear(), "do not match the contenders"),
        (|result| result.slices[0].contender = 1, "contender of a slice has index 1, but the count is 1"),
        (|result| result.slices[0].cell = 1000, "cell of a slice"),
        (|result| result.latencies[0].cell = 1000, "cell of a histogram"),
        (|result| result.completed[0].pass = 1000, "pass of a completed entry"),
    ];
    for (change, expected) in changes {
        let mut inconsistent = valid.clone();
        change(&mut inconsistent);
        let error = read(&inconsistent).unwrap_err().to_string();
        assert!(error.starts_with("damaged result: ") && error.contains(expected), "{error}");
    }
}
