//! `anello lab run` with a real server that is struck from outside while it is measured (fault 45): killed once, killed
//! every time, halted.
//!
//! Whoever strikes looks for the server whose connections are open, so it hits within a cell. When exactly does not
//! matter: a server that is dead or halted shows at its next turn, in this cell or the next. A run whose last cell was
//! under way already is made again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anello_lab::result::{Consequence, Failure, Outcome, Row};
use anello_lab::{LabResult, checkpoint};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Connections of the smaller cell: a server with so many files open is under way in a cell.
const CONNECTIONS: usize = 64;

const SCENARIO: &str = r#"
    name = "struck"
    title = "One of two servers is struck"
    message_bytes = [64]
    connections = [64, 65, 66]
    contenders = ["bare epoll", { name = "victim", command = "{anello} echo --driver epoll --addr 127.0.0.1:0" }]
    reference = "bare epoll"
    passes = 1
    rounds = 10
    slice = "20ms"
    warm_up = "20ms"
    server_share = 1
    check = false
"#;

/// What is long over in every run that does not hang.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Cells of the scenario.
const CELLS: usize = 3;

/// Runs until one was struck as a test needs it: when whoever strikes gets to run is up to the machine.
const ATTEMPTS: usize = 5;

/// A run in which the victim was struck.
struct SignalledRun {
    status: ExitStatus,
    /// Whether the last strike came before the last cell: later, there may be no turn left in which it shows.
    in_time: bool,
    /// What the terminal showed, in one line.
    shown: String,
    result: LabResult,
}

/// A run that was struck as it should be; the last one if none was, whose assertions then tell.
fn attempt_until(signal: Signal, most: usize, is_right: impl Fn(&SignalledRun) -> bool) -> SignalledRun {
    let mut attempts = (1..ATTEMPTS).map(|_| run_and_signal(signal, most));
    attempts.find(is_right).unwrap_or_else(|| run_and_signal(signal, most))
}

/// Runs the scenario and sends the signal to the victim while its connections are open, so often at most.
fn run_and_signal(signal: Signal, most: usize) -> SignalledRun {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("struck.toml"), SCENARIO).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["lab", "run", "--scenario"]).arg(path("struck.toml")).arg("--out").arg(path("reports"));
    command.env_remove("ANELLO_DRIVER").stdout(File::create(path("shown")).unwrap()).stderr(Stdio::null());
    let mut lab = command.spawn().unwrap();
    let began = Instant::now();
    let (mut strikes, mut in_time) = (0, false);
    let status = loop {
        if let Some(status) = lab.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > TIMEOUT {
            lab.kill().unwrap();
            lab.wait().unwrap();
            panic!("the run has not ended after {strikes} strikes");
        }
        if strikes < most && send_signal(&lab, signal) {
            strikes += 1;
            in_time = cells_behind(&path("reports")) + 1 < CELLS;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let shown = fs::read_to_string(path("shown")).unwrap();
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    SignalledRun { status, in_time, shown, result: result_in(&path("reports")) }
}

/// Sends the signal to the lab's victim if that has its connections open; whether it did.
fn send_signal(lab: &Child, signal: Signal) -> bool {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", lab.id())).unwrap_or_default();
    children.split_whitespace().any(|child| {
        let Some(pid) = child.parse().ok().and_then(Pid::from_raw) else { return false };
        // Held before it is looked at: by its number, another could be hit in its place.
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        is_victim_in_a_cell(child) && pidfd_send_signal(held, signal).is_ok()
    })
}

fn is_victim_in_a_cell(pid: &str) -> bool {
    let process = Path::new("/proc").join(pid);
    let command = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    let open_files = fs::read_dir(process.join("fd")).map_or(0, Iterator::count);
    command.contains("\0echo\0") && open_files >= CONNECTIONS
}

/// The JSON of the run, whole or so far; none before the end of the first cell.
fn json_in(directory: &Path) -> Option<PathBuf> {
    let mut paths = fs::read_dir(directory).ok()?.map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|end| end == "json"))
}

/// Cells that the run has gone through to their end.
fn cells_behind(directory: &Path) -> usize {
    json_in(directory).map_or(0, |path| checkpoint::load(&path).unwrap().completed.len())
}

fn result_in(directory: &Path) -> LabResult {
    let json = json_in(directory).expect("the JSON is there");
    LabResult::from_json(&fs::read_to_string(json).unwrap()).unwrap()
}

impl SignalledRun {
    fn rows(&self, name: &str) -> Vec<&Row> {
        let rows = self.result.cells.iter().flat_map(|cell| &cell.rows);
        rows.filter(|row| row.contender == name).collect()
    }

    /// The run went to its end and counts as done, and all that failed was the victim.
    fn assert_run_completed(&self) {
        assert_eq!(self.status.code(), Some(0), "{}", self.shown);
        assert_eq!((self.result.interrupted, self.result.completed.len()), (false, CELLS));
        let failures = &self.result.failures;
        assert!(failures.iter().all(|failure| failure.contender == "victim"), "{failures:?}");
        for name in ["bare epoll", "bare epoll again"] {
            assert!(self.rows(name).into_iter().all(is_measured), "{:?}", self.rows(name));
        }
    }

    /// The victim was started again once, and measured in every cell.
    fn assert_restarted_once(&self) -> &Failure {
        let [failure] = &self.result.failures[..] else { panic!("{:?}", self.result.failures) };
        assert_eq!((failure.consequence, failure.cell.is_some()), (Consequence::Restarted, true));
        let rows = self.rows("victim");
        assert_eq!(rows.iter().map(|row| row.restarts).sum::<usize>(), 1, "{rows:?}");
        assert!(rows.iter().all(|row| is_measured(row)), "{rows:?}");
        assert!(self.shown.contains("victim failed and was restarted once"), "{}", self.shown);
        assert!(self.shown.contains("; restarted once"), "{}", self.shown);
        failure
    }
}

/// Whether it was; on a machine that steals all the time no slice of it may be clean.
fn is_measured(row: &Row) -> bool {
    let all_stolen = row.outcome == Outcome::NotMeasured && row.stolen_slices + row.throttled_slices > 0;
    row.outcome == Outcome::Measured || all_stolen
}

fn has_failed(row: &Row) -> bool {
    matches!(&row.outcome, Outcome::Failed(why) if why.contains("signal 9 (SIGKILL)"))
}

#[test]
fn fault_45_a_contender_killed_within_a_cell_is_started_again_and_the_run_goes_on() {
    let struck = attempt_until(Signal::KILL, 1, |struck| struck.in_time);
    struck.assert_run_completed();
    let what = &struck.assert_restarted_once().what;
    assert!(what.starts_with("was killed by signal 9 (SIGKILL)") && what.contains("(load error: "), "{what}");
    assert!(struck.shown.contains("was killed by signal 9 (SIGKILL)"), "{}", struck.shown);
}

#[test]
fn fault_45_a_contender_killed_every_time_fails_and_the_others_are_measured() {
    let struck =
        attempt_until(Signal::KILL, usize::MAX, |struck| struck.rows("victim").into_iter().any(has_failed));
    struck.assert_run_completed();
    for failure in &struck.result.failures {
        assert!(failure.what.starts_with("was killed by signal 9 (SIGKILL)"), "{failure:?}");
        assert!(matches!(failure.consequence, Consequence::Restarted | Consequence::LeftOut), "{failure:?}");
    }
    // Of three cells one at least in which the second strike came in time, too.
    let rows = struck.rows("victim");
    assert!(rows.iter().copied().any(has_failed), "{rows:?}");
    assert!(struck.shown.contains("victim failed at "), "{}", struck.shown);
    assert!(struck.shown.contains("; excluded from the rest of this cell"), "{}", struck.shown);
}

/// It does not end, so that the load's patience with a reply is waited for, once.
#[test]
fn fault_45_a_contender_halted_within_a_cell_is_started_again_and_the_run_goes_on() {
    let struck = attempt_until(Signal::STOP, 1, |struck| struck.in_time);
    struck.assert_run_completed();
    let what = &struck.assert_restarted_once().what;
    assert!(what.starts_with("is stopped by signal 19 (SIGSTOP) (load error: "), "{what}");
    assert!(struck.shown.contains("is stopped by signal 19 (SIGSTOP)"), "{}", struck.shown);
}
