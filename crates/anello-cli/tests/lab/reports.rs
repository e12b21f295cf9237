//! Tests for `anello lab list`, `report` and `compare`, run as child processes, with recorded runs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anello_lab::analysis::analyse;
use anello_lab::raw::read_runs;
use anello_lab::{Cell, LabResult, Role, render_json};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anello")).arg("lab").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes the JSON file of a run with three servers: "bare epoll", "bare epoll again", and "one", which uses `cost`
/// times as much CPU time per request as "anello epoll" in a recorded run. Returns the path.
fn write_run(path: &Path, cost: f64) -> String {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/lab/quick.json.gz");
    let mut result = read_runs(&recorded).unwrap().remove(0);
    let index = |name: &str| result.contenders.iter().position(|contender| contender.name == name).unwrap();
    let kept = ["bare epoll", "bare epoll again", "anello epoll"].map(index);
    let cell = result.plan.cells.iter().position(|cell| *cell == Cell::echo(128, 50)).unwrap();
    result.plan.cells = vec![result.plan.cells[cell]];
    result.contenders = kept.map(|index| result.contenders[index].clone()).to_vec();
    result.contenders.iter_mut().for_each(|contender| contender.role = Role::Peer);
    result.contenders[2].name = "one".to_owned();
    let is_kept = |of_cell: usize, contender: usize| of_cell == cell && kept.contains(&contender);
    let new_index = |contender: usize| kept.iter().position(|&index| index == contender).unwrap();
    result.slices.retain(|slice| is_kept(slice.cell, slice.contender));
    for slice in &mut result.slices {
        (slice.cell, slice.contender) = (0, new_index(slice.contender));
        if slice.contender == 2 {
            slice.cpu_ns = (slice.cpu_ns as f64 * cost) as u64;
        }
    }
    result.latencies.retain(|record| is_kept(record.cell, record.contender));
    for record in &mut result.latencies {
        (record.cell, record.contender) = (0, new_index(record.contender));
    }
    result.completed.clear();
    analyse(&mut result);
    fs::write(path, render_json(&result).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn compare_exit_code_reports_regression() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_run(&directory.path().join("good.json"), 1.0);
    let bad = write_run(&directory.path().join("bad.json"), 1.5);
    let worse = lab(&["compare", &good, &bad]);
    assert_eq!(worse.status.code(), Some(1), "{}", text(&worse.stderr));
    assert!(text(&worse.stdout).contains("WORSE"), "{}", text(&worse.stdout));
    assert_eq!(lab(&["compare", &bad, &good]).status.code(), Some(0));
    assert_eq!(lab(&["compare", &good, &good]).status.code(), Some(0));
    assert_eq!(lab(&["compare", &good, &bad, "--threshold", "300%"]).status.code(), Some(0));
    let json = lab(&["compare", &good, &bad, "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((value["schema"].as_str(), json.status.code()), (Some("anello-lab-compare"), Some(1)));
    assert!(value["regressions"].as_u64().unwrap() >= 1);
    for (threshold, expected) in [("5%", 0.05), ("2.5", 0.025), ("0 %", 0.0)] {
        let json = lab(&["compare", &good, &good, "--json", "--threshold", threshold]);
        let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(value["threshold"], expected);
    }
}

#[test]
fn compare_counts_peers_only_with_fail_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let good = write_run(&path("good.json"), 1.0);
    let bad = write_run(&path("bad.json"), 1.5);
    // Only the first server is an anello contender; the server that became worse remains a peer.
    for run in [&good, &bad] {
        let mut result = LabResult::from_json(&fs::read_to_string(run).unwrap()).unwrap();
        result.contenders[0].role = Role::Anello;
        fs::write(run, render_json(&result).unwrap()).unwrap();
    }
    let output = lab(&["compare", &good, &bad]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("Not counted: "), "{}", text(&output.stdout));
    assert_eq!(lab(&["compare", &good, &bad, "--fail-on", "all"]).status.code(), Some(1));
    let named = ["compare", &good, &bad, "--fail-on", "anello", "--fail-on", "one"];
    assert_eq!(lab(&named).status.code(), Some(1));
    let unknown = lab(&["compare", &good, &bad, "--fail-on", "missing"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("unknown contender missing"), "{}", text(&unknown.stderr));
    let help = text(&lab(&["compare", "--help"]).stdout);
    assert!(help.contains("--fail-on") && help.contains("does not count"), "{help}");
}

#[test]
fn compare_exits_with_2_on_unreadable_file() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_run(&directory.path().join("good.json"), 1.0);
    let other = directory.path().join("other.json");
    fs::write(&other, "{\"schema\": \"something else\"}").unwrap();
    for unreadable in [other.to_str().unwrap(), "/nonexistent.json"] {
        let output = lab(&["compare", &good, unreadable]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(unreadable), "{}", text(&output.stderr));
    }
    for invalid in ["", "%", "-1%", "NaN", "five"] {
        let output = lab(&["compare", &good, &good, &format!("--threshold={invalid}")]);
        assert_eq!(output.status.code(), Some(2), "{invalid}");
        assert!(text(&output.stderr).contains("expected a percentage"), "{}", text(&output.stderr));
    }
}

#[test]
fn report_of_several_runs_has_one_page_and_plot_files() {
    let directory = tempfile::tempdir().unwrap();
    let one = write_run(&directory.path().join("one.json"), 1.0);
    let two = write_run(&directory.path().join("two.json"), 1.2);
    let page = directory.path().join("new/page.html");
    let output = lab(&["report", &one, &two, "--out", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("2 runs on this page") && html.contains("id=\"raw1\""));
    for run in ["1", "2"] {
        let plots = fs::read_dir(directory.path().join("new/plots").join(run)).unwrap();
        assert!(plots.count() >= 4);
    }
    let missing = lab(&["report", "/nonexistent.json"]);
    assert!(!missing.status.success() && text(&missing.stderr).contains("/nonexistent.json"));
}

#[test]
fn list_includes_presets_contenders_peers_and_runs() {
    let directory = tempfile::tempdir().unwrap();
    write_run(&directory.path().join("lab-1.json"), 1.0);
    fs::write(directory.path().join("lab-2.json"), "nothing").unwrap();
    let output = lab(&["list", "--out", directory.path().to_str().unwrap()]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for expected in [
        "frevib",
        "monoio-fixed",
        "chen622",
        "anello io_uring",
        "bare threads",
        "anello epoll       epoll      files",
        "HTTP peers built",
        "lab-1.json",
        "lab-2.json",
    ] {
        assert!(stdout.contains(expected), "{expected} is not in {stdout}");
    }
    assert!(stdout.contains("3 contenders, 1 cells") && stdout.contains("not the JSON of a run"), "{stdout}");
    let empty = lab(&["list", "--out", directory.path().join("none").to_str().unwrap()]);
    assert!(text(&empty.stdout).contains("none yet"));
}

#[test]
fn closed_stdout_is_not_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let run = write_run(&directory.path().join("run.json"), 1.0);
    let out = directory.path().to_str().unwrap();
    for arguments in [
        &["list", "--out", out][..],
        &["compare", &run, &run],
        &["compare", &run, &run, "--json"],
        &["peers", "list", "--peers", concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers")],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("lab").args(arguments).stdout(std::io::pipe().unwrap().1).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{arguments:?}");
    }
}
