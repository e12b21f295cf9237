//! Tests for `anello doctor`, run as a child process, including with io_uring unavailable.

use std::process::{Command, Output};

const ANELLO: &str = env!("CARGO_BIN_EXE_anello");

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(ANELLO);
    command.arg("doctor").args(arguments).env_remove("ANELLO_DRIVER").env_remove("ANELLO_LOG");
    command
}

/// Runs the command under strace, which makes `io_uring_setup(2)` fail with this error. Returns `None` if strace is not
/// installed or not permitted to trace.
fn doctor_refused(error: &str, arguments: &[&str]) -> Option<Output> {
    let works = Command::new("strace").args(["-f", "-qq", "-e", "trace=none", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: strace is not available");
        return None;
    }
    let inject = format!("inject=io_uring_setup:error={error}");
    let mut command = Command::new("strace");
    command.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=io_uring_setup",
        "-e",
        &inject,
        ANELLO,
        "doctor",
    ]);
    Some(command.args(arguments).env_remove("ANELLO_DRIVER").env_remove("ANELLO_LOG").output().unwrap())
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn report_has_all_sections_and_fits_100_columns() {
    let text = text(&doctor(&[]).output().unwrap());
    for word in [
        "Kernel",
        "io_uring",
        "Limits",
        "open files",
        "Network",
        "Processor",
        "Topology",
        "Driver",
        "auto selects",
    ] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
    // Only lines that contain commands may exceed 100 characters, because users copy the commands.
    let is_command = |line: &str| line.starts_with("          ");
    assert!(text.lines().all(|line| line.chars().count() <= 100 || is_command(line)), "{text}");
}

#[test]
fn json_has_schema_version() {
    let text = text(&doctor(&["--json"]).output().unwrap());
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], "anello.doctor/1");
    assert_eq!(document["works"], true);
    assert!(document["facts"]["kernel_release"].is_string());
    assert!(document["sections"].as_array().is_some_and(|sections| sections.len() == 6));
    assert!(document["advice"].is_array() && document["verdict"].is_array());
}

#[test]
fn fault_07_unavailable_io_uring_falls_back_to_epoll_with_advice() {
    for error in ["EPERM", "ENOSYS", "ENOMEM"] {
        let Some(output) = doctor_refused(error, &[]) else { return };
        let text = text(&output);
        assert!(text.contains("auto selects epoll"), "{error}:\n{text}");
        assert!(text.contains("Recommendations"), "{error}:\n{text}");
    }
    let Some(output) = doctor_refused("EPERM", &["--json"]) else { return };
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["facts"]["uring"]["refusal"]["cause"], "forbidden");
    assert_eq!(document["facts"]["choice"]["auto"]["driver"], "epoll");
}

#[test]
fn reports_driver_from_environment_variable() {
    let output = doctor(&["--json"]).env("ANELLO_DRIVER", "epoll").output().unwrap();
    let document: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(document["facts"]["choice"]["overridden"]["Ok"]["driver"], "epoll");
    let output = doctor(&[]).env("ANELLO_DRIVER", "kqueue").output().unwrap();
    let text = text(&output);
    assert!(text.contains("ANELLO_DRIVER=kqueue") && text.contains("unset ANELLO_DRIVER"), "{text}");
}

#[test]
fn unknown_flag_exits_2() {
    let output = doctor(&["--frobnicate"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--frobnicate"));
}
