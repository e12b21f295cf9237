//! Tests for `anello lab run` with a server that receives a signal while it is being measured (fault 45): SIGKILL once,
//! SIGKILL after every start, and SIGSTOP.
//!
//! The test waits until connections to the server are open, so the signal arrives during a cell. The exact moment does
//! not matter: the lab notices a dead or stopped server in its next slice, in this cell or the next one. If the signal
//! arrives during the last cell, the test repeats the run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anello_lab::result::{Consequence, Failure, Outcome, Row};
use anello_lab::{LabResult, checkpoint};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Number of connections in the smallest cell. A server that has at least this many open files is being measured.
const CONNECTIONS: usize = 64;

const SCENARIO: &str = r#"
    name = "signalled"
    title = "One of two servers receives a signal"
    message_bytes = [64]
    connections = [64, 65, 66]
    contenders = ["bare epoll", { name = "victim", command = "{anello} echo --driver epoll --addr 127.0.0.1:0" }]
    reference = "bare epoll"
    passes = 1
    rounds = 6
    slice = "20ms"
    warm_up = "20ms"
    server_share = 1
    check = false
"#;

/// Timeout for a run; a run that does not hang takes far less time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Number of cells in the scenario.
const CELLS: usize = 3;

/// Maximum number of runs per test. On a busy machine, the signal may be sent too late in a run.
const MAX_ATTEMPTS: usize = 5;

/// A run in which the victim received a signal.
struct SignalledRun {
    status: ExitStatus,
    /// Whether the last signal was sent before the last cell. In the last cell, the victim may have no further slice in
    /// which the lab would notice the signal.
    in_time: bool,
    /// Standard output, joined into one line.
    stdout: String,
    result: LabResult,
}

/// Repeats the run until `is_suitable` accepts it. Returns the last attempt if it accepts none; the test's assertions
/// then fail.
fn attempt_until(
    signal: Signal,
    max_signals: usize,
    is_suitable: impl Fn(&SignalledRun) -> bool,
) -> SignalledRun {
    let mut attempts = (1..MAX_ATTEMPTS).map(|_| run_and_signal(signal, max_signals));
    attempts.find(is_suitable).unwrap_or_else(|| run_and_signal(signal, max_signals))
}

/// Runs the scenario and sends the signal to the victim while its connections are open, at most `max_signals` times.
fn run_and_signal(signal: Signal, max_signals: usize) -> SignalledRun {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("signalled.toml"), SCENARIO).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["lab", "run", "--scenario"]).arg(path("signalled.toml")).arg("--out").arg(path("reports"));
    command.env_remove("ANELLO_DRIVER").stdout(File::create(path("stdout")).unwrap()).stderr(Stdio::null());
    let mut lab = command.spawn().unwrap();
    let started = Instant::now();
    let (mut signals, mut in_time) = (0, false);
    let status = loop {
        if let Some(status) = lab.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > TIMEOUT {
            lab.kill().unwrap();
            lab.wait().unwrap();
            panic!("the run timed out after {signals} signals");
        }
        if signals < max_signals && send_signal(&lab, signal) {
            signals += 1;
            in_time = completed_cells(&path("reports")) + 1 < CELLS;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let stdout = fs::read_to_string(path("stdout")).unwrap();
    let stdout = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    SignalledRun { status, in_time, stdout, result: result_in(&path("reports")) }
}

/// Sends the signal to the victim if its connections are open. Returns whether the signal was sent.
fn send_signal(lab: &Child, signal: Signal) -> bool {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", lab.id())).unwrap_or_default();
    children.split_whitespace().any(|child| {
        let Some(pid) = child.parse().ok().and_then(Pid::from_raw) else { return false };
        // Opened before the process is examined, because another process could reuse its process ID.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        is_victim_in_cell(child) && pidfd_send_signal(pidfd, signal).is_ok()
    })
}

fn is_victim_in_cell(pid: &str) -> bool {
    let process = Path::new("/proc").join(pid);
    let command = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    let open_files = fs::read_dir(process.join("fd")).map_or(0, Iterator::count);
    command.contains("\0echo\0") && open_files >= CONNECTIONS
}

/// Returns the path of the run's JSON file, which can be a checkpoint, or `None` before the first cell is complete.
fn json_in(directory: &Path) -> Option<PathBuf> {
    let mut paths = fs::read_dir(directory).ok()?.map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|extension| extension == "json"))
}

/// Returns the number of cells that the run has completed.
fn completed_cells(directory: &Path) -> usize {
    json_in(directory).map_or(0, |path| checkpoint::load(&path).unwrap().completed.len())
}

fn result_in(directory: &Path) -> LabResult {
    let json = json_in(directory).expect("the JSON exists");
    LabResult::from_json(&fs::read_to_string(json).unwrap()).unwrap()
}

impl SignalledRun {
    fn rows(&self, name: &str) -> Vec<&Row> {
        let rows = self.result.cells.iter().flat_map(|cell| &cell.rows);
        rows.filter(|row| row.contender == name).collect()
    }

    /// Asserts that the run completed and that no contender other than the victim failed.
    fn assert_run_completed(&self) {
        assert_eq!(self.status.code(), Some(0), "{}", self.stdout);
        assert_eq!((self.result.interrupted, self.result.completed.len()), (false, CELLS));
        let failures = &self.result.failures;
        assert!(failures.iter().all(|failure| failure.contender == "victim"), "{failures:?}");
        for name in ["bare epoll", "bare epoll again"] {
            assert!(self.rows(name).into_iter().all(is_measured), "{:?}", self.rows(name));
        }
    }

    /// Asserts that the victim was restarted once and measured in every cell.
    fn assert_restarted_once(&self) -> &Failure {
        let [failure] = &self.result.failures[..] else { panic!("{:?}", self.result.failures) };
        assert_eq!((failure.consequence, failure.cell.is_some()), (Consequence::Restarted, true));
        let rows = self.rows("victim");
        assert_eq!(rows.iter().map(|row| row.restarts).sum::<usize>(), 1, "{rows:?}");
        assert!(rows.iter().all(|row| is_measured(row)), "{rows:?}");
        assert!(self.stdout.contains("victim: failed and was restarted 1 time"), "{}", self.stdout);
        assert!(self.stdout.contains("; restarted once"), "{}", self.stdout);
        failure
    }
}

/// Returns whether the contender was measured. A row without valid slices counts as measured: on a busy virtual
/// machine, all slices may be invalid because of steal time.
fn is_measured(row: &Row) -> bool {
    let all_stolen = row.outcome == Outcome::NotMeasured && row.stolen_slices + row.throttled_slices > 0;
    row.outcome == Outcome::Measured || all_stolen
}

fn has_failed(row: &Row) -> bool {
    matches!(&row.outcome, Outcome::Failed(reason) if reason.contains("signal 9 (SIGKILL)"))
}

#[test]
fn fault_45_killed_contender_is_restarted() {
    let run = attempt_until(Signal::KILL, 1, |run| run.in_time);
    run.assert_run_completed();
    let what = &run.assert_restarted_once().what;
    assert!(
        what.starts_with("was killed by signal 9 (SIGKILL)") && what.contains("(load generator error: "),
        "{what}"
    );
    assert!(run.stdout.contains("was killed by signal 9 (SIGKILL)"), "{}", run.stdout);
}

#[test]
fn fault_45_repeatedly_killed_contender_fails_and_others_are_measured() {
    let run = attempt_until(Signal::KILL, usize::MAX, |run| run.rows("victim").into_iter().any(has_failed));
    run.assert_run_completed();
    for failure in &run.result.failures {
        assert!(failure.what.starts_with("was killed by signal 9 (SIGKILL)"), "{failure:?}");
        assert!(matches!(failure.consequence, Consequence::Restarted | Consequence::LeftOut), "{failure:?}");
    }
    // In at least one of the three cells, the second signal arrived before the end of the cell.
    let rows = run.rows("victim");
    assert!(rows.iter().copied().any(has_failed), "{rows:?}");
    assert!(run.stdout.contains("victim: failed at "), "{}", run.stdout);
    assert!(run.stdout.contains("; excluded from the rest of this cell"), "{}", run.stdout);
}

/// The stopped process does not exit, so the run waits once until the load generator's reply timeout expires.
#[test]
fn fault_45_stopped_contender_is_restarted() {
    let run = attempt_until(Signal::STOP, 1, |run| run.in_time);
    run.assert_run_completed();
    let what = &run.assert_restarted_once().what;
    assert!(what.starts_with("was stopped by signal 19 (SIGSTOP) (load generator error: "), "{what}");
    assert!(run.stdout.contains("was stopped by signal 19 (SIGSTOP)"), "{}", run.stdout);
}
