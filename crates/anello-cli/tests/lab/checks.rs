//! Contenders that cannot be checked.

use std::ffi::OsStr;
use std::fs;
use std::process::Output;

use crate::run::{DISK_WORKER, disk_scenario, lab, short_scenario};

/// Runs the lab with checks, the contender `bare epoll` and this one.
fn run_with_contender(contender: &str, flags: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let scenario = short_scenario(directory.path());
    let text = fs::read_to_string(&scenario).unwrap().replace("check = false", "check = true");
    fs::write(&scenario, text).unwrap();
    let out = directory.path().join("reports");
    let paths = ["--scenario", scenario.to_str().unwrap(), "--out", out.to_str().unwrap()];
    lab(&[&paths[..], &["--contender", contender], flags].concat()).output().unwrap()
}

/// Runs a scenario with a disk worker and another contender with this command.
fn run_disk_with_contender(command: &str, flags: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let scenario = disk_scenario(directory.path(), "1", &format!("{DISK_WORKER} pread"), command);
    let [file, out] = ["blocks", "reports"].map(|name| directory.path().join(name));
    let paths = [("--scenario", scenario), ("--disk-file", file), ("--out", out)];
    let mut command = lab(flags);
    command.args(paths.iter().flat_map(|(flag, path)| [OsStr::new(flag), path.as_os_str()]));
    command.output().unwrap()
}

fn assert_run_ends_before_measurement(contender: &str, expected: &str) {
    assert_ended_before_measurement(run_with_contender(contender, &[]), expected);
}

fn assert_ended_before_measurement(output: Output, expected: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{error}");
    assert!(error.contains("anello: contender other cannot be checked: "), "{error}");
    assert!(error.contains(expected) && error.contains("--keep-going"), "{error}");
}

fn assert_others_are_measured_with_keep_going(contender: &str) {
    let output = run_with_contender(contender, &["--keep-going"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("bare epoll"), "{text}");
}

#[test]
fn contender_that_does_not_start_ends_run() {
    let contender = "other=/nonexistent/server";
    assert_run_ends_before_measurement(contender, "cannot start /nonexistent/server");
    assert_others_are_measured_with_keep_going(contender);
}

/// Contender for whose ready line the lab waits 10 s. Two tests use it, so that they wait at the same time.
const SILENT_CONTENDER: &str = "other=/bin/sleep 1000";

#[test]
fn silent_contender_ends_run() {
    assert_run_ends_before_measurement(SILENT_CONTENDER, "printed no ready line");
}

#[test]
fn silent_contender_is_ignored_with_keep_going() {
    assert_others_are_measured_with_keep_going(SILENT_CONTENDER);
}

#[test]
fn disk_worker_that_does_not_start_ends_run() {
    let output = run_disk_with_contender("/nonexistent/worker", &[]);
    assert_ended_before_measurement(output, "cannot start /nonexistent/worker");
    let output = run_disk_with_contender("/nonexistent/worker", &["--keep-going"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("worker"), "{text}");
}
