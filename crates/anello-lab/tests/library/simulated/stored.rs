//! Tests for stored results: program hashes, old names of fields, and the rejection of inconsistent results.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anello_lab::{Contender, Executable, LabConfig, LabResult, render_json};

use crate::simulated::lab::run;
use crate::simulated::simulation::{Noise, SimulatedServer, Simulation};

fn result() -> LabResult {
    result_of(Contender::new("one", Path::new("one"), &[]))
}

fn result_of(contender: Contender) -> LabResult {
    let simulation = Simulation::new(1, Noise::NONE, &[("one", SimulatedServer::costing(6_000.0))]);
    let config = LabConfig {
        contenders: vec![contender],
        reference: "one".to_owned(),
        ..LabConfig::preset("smoke", PathBuf::from("anello")).unwrap()
    };
    let (mut load, mut machine) = (simulation.load(), simulation.machine());
    run(&config, &mut load, &mut machine, &mut |_| {}, &AtomicBool::new(false)).unwrap()
}

#[test]
fn programs_and_interpreter_scripts_are_hashed() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (start, jar, data) = (path("start"), path("server.jar"), path("data"));
    for (path, text) in [(&start, "abc"), (&jar, ""), (&data, "not a program")] {
        std::fs::write(path, text).unwrap();
    }
    let hashes = |program: &str, arguments: &[&str]| {
        result_of(Contender::new("one", Path::new(program), arguments)).contenders.remove(0).executables
    };
    let executables = hashes(&start, &["--file", &data, &jar, "absent.py"]);
    let names: Vec<&str> = executables.iter().map(|executable| executable.file.as_str()).collect();
    assert_eq!(names, ["start", "server.jar"]);
    // SHA-256 test vectors.
    assert_eq!(executables[0].sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(executables[1].short(), "e3b0c44298fc");
    assert_eq!(hashes("sh", &[])[0].sha256.len(), 64, "found in PATH");
    assert_eq!(hashes("no-such-program-here", &[]), []);
}

#[test]
fn old_names_and_values_are_replaced_at_every_depth() {
    let mut new = result();
    new.contenders[0].idle_cpu_fraction = Some(0.5);
    new.contenders[0].base = Some("one".to_owned());
    new.slices[0].quality = anello_lab::result::Quality::Invalid;
    let renamed = [
        ("\"schema_version\": 3", "\"schema_version\": 2"),
        ("\"peer_comparisons\"", "\"versus\""),
        ("\"runtime_comparisons\"", "\"runtime_versus\""),
        ("\"other_comparisons\"", "\"other_versus\""),
        ("\"base_comparisons\"", "\"base_versus\""),
        ("\"other_cpu_fraction\"", "\"foreign_fraction\""),
        ("\"invalid_slices\"", "\"spoilt_slices\""),
        ("\"idle_cpu_fraction\"", "\"idle_use\""),
        ("\"base\"", "\"against\""),
        ("\"total_cpu_ratio\"", "\"cpu_of_both_ratio\""),
        ("\"total_cpu_verdict\"", "\"cpu_of_both_verdict\""),
        ("\"quality\": \"invalid\"", "\"quality\": \"spoilt\""),
    ];
    let mut old = render_json(&new).unwrap();
    for (new_name, old_name) in renamed {
        assert!(old.contains(new_name), "{new_name}");
        old = old.replace(new_name, old_name);
    }
    assert_eq!(LabResult::from_json(&old), Ok(new));
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
        (
            |result| result.slices[0].contender = 1,
            "index 1 of the contender of a slice is out of range (count: 1)",
        ),
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
