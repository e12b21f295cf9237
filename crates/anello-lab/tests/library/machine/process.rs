//! Child processes of contenders.

use std::path::Path;

use std::thread;
use std::time::{Duration, Instant};

use anello_lab::machine::allowed_cores;
use anello_lab::{Contender, MachineError, Running, ServerProcess};
use rustix::process::Signal;

fn shell(script: &str) -> Contender {
    Contender::new("shell", Path::new("/bin/sh"), &["-c", script])
}

fn start(script: &str) -> Result<(ServerProcess, Running), String> {
    let core = allowed_cores()[0];
    let started = ServerProcess::start(&shell(script), &[], &[core], Duration::from_secs(20));
    started.map_err(|error| error.to_string())
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn dropping_ready_server_terminates_and_reaps_it() {
    let (process, running) =
        start("echo hello; echo 'ready addr=127.0.0.1:4711 driver=none'; exec sleep 60").unwrap();
    assert_eq!(running.address, "127.0.0.1:4711".parse().unwrap());
    assert_eq!(running.ready_line, "ready addr=127.0.0.1:4711 driver=none");
    assert!(exists(running.pid));
    drop(process);
    assert!(!exists(running.pid), "the child is not reaped");
}

#[test]
fn server_ignoring_sigterm_is_killed() {
    let (process, running) =
        start("trap '' TERM; echo addr=127.0.0.1:1; while true; do sleep 0.05; done").unwrap();
    drop(process);
    assert!(!exists(running.pid));
}

/// Returns whether a process has exited or is a zombie. Here, an orphan may have no parent that reaps it.
fn has_ended(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    !status.is_ok_and(|status| status.lines().all(|line| !line.starts_with("State:\tZ")))
}

#[test]
fn descendants_of_server_are_killed_on_every_exit() {
    let orphan = "(trap '' TERM; exec sleep 300) & child=$!";
    for end in ["wait", "trap '' TERM; while true; do wait; done", "kill -9 $$", "exit 3"] {
        let (mut process, running) =
            start(&format!("{orphan}; echo addr=127.0.0.1:1 child=$child; {end}")).unwrap();
        let (_, child) = running.ready_line.split_once("child=").unwrap();
        if end.starts_with(['k', 'e']) {
            assert!(process.exit_description(Duration::from_secs(20)).is_some(), "{end}");
        } else {
            assert!(!has_ended(child), "{end}");
        }
        drop(process);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !has_ended(child) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        assert!(has_ended(child), "{end}: the server's child still runs");
    }
}

#[test]
fn signal_stops_server_and_its_children() {
    let (mut process, running) = start("sleep 300 & echo addr=127.0.0.1:1 child=$!; wait").unwrap();
    let (_, child) = running.ready_line.split_once("child=").unwrap();
    let is_stopped = || {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    for (signal, stopped) in [(Signal::STOP, true), (Signal::CONT, false)] {
        process.signal(signal);
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_stopped() != stopped && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(is_stopped(), stopped, "{signal:?}");
    }
}

#[test]
fn fault_45_failed_start_reports_stderr_tail() {
    let error = start("echo 'io_uring_setup: Operation not permitted' >&2; exit 1").unwrap_err();
    assert_eq!(error, "exited with status 1: io_uring_setup: Operation not permitted");
}

#[test]
fn server_keeps_affinity_within_its_cores() {
    let cores = allowed_cores();
    let last = cores[cores.len() - 1];
    let script = format!("taskset -p -c {last} $$ >&2; echo addr=127.0.0.1:1; exec sleep 60");
    let (_process, running) =
        ServerProcess::start(&shell(&script), &[], &cores, Duration::from_secs(20)).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid)).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(allowed.trim(), last.to_string());
}

#[test]
fn fault_45_missing_program_is_named() {
    let missing = Contender::new("missing", Path::new("/nonexistent/server"), &[]);
    let error = ServerProcess::start(&missing, &[], &[0], Duration::from_secs(1)).unwrap_err();
    assert!(matches!(&error, MachineError::Start { program, .. } if *program == missing.program), "{error}");
}

#[test]
fn distinguishes_missing_and_invalid_ready_line() {
    let core = allowed_cores()[0];
    let silent =
        ServerProcess::start(&shell("exec sleep 60"), &[], &[core], Duration::from_millis(50)).unwrap_err();
    assert!(silent.to_string().contains("no ready line"), "{silent}");
    let nonsense = start("echo addr=somewhere; exec sleep 60").unwrap_err();
    assert!(nonsense.contains("addr=somewhere"), "{nonsense}");
}

#[test]
fn fault_45_killed_server_reports_signal() {
    let (mut process, _) = start("echo addr=127.0.0.1:1; kill -9 $$").unwrap();
    let end = process.exit_description(Duration::from_secs(20));
    assert_eq!(end.as_deref(), Some("was killed by signal 9 (SIGKILL)"));
}

#[test]
fn fault_45_stopped_server_is_reported_before_timeout() {
    let (mut process, running) = start("echo addr=127.0.0.1:1; kill -STOP $$; exec sleep 60").unwrap();
    // The timeout is far longer than the test. The wait ends sooner only if the stopped process is detected.
    let end = process.exit_description(Duration::from_secs(600));
    assert_eq!(end.as_deref(), Some("was stopped by signal 19 (SIGSTOP)"));
    drop(process);
    assert!(!exists(running.pid), "the stopped child is not terminated");
}
