//! `anello lab run` as a command, with real servers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anello_lab::LabResult;
use anello_lab::result::{Outcome, Row};

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["lab", "run"]).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

/// One of them is missing (fault 45): the report says so, and the others are measured.
#[test]
fn the_smoke_run_compares_all_servers_and_writes_its_reports() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let broken = "broken=/nonexistent/server --addr 127.0.0.1:0";
    let arguments =
        ["--smoke", "--rounds", "2", "--seed", "7", "--contender", broken, "--out", out.to_str().unwrap()];
    let Output { status, stdout, stderr } = lab(&arguments).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("bare epoll") && stdout.contains("20 connections, 128 bytes"), "{stdout}");
    let reports = reports_in(&out);
    let extensions: Vec<&str> =
        reports.iter().map(|path| path.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(extensions, ["html", "json", "txt"]);
    assert!(
        reports[..2].iter().all(|path| stdout.contains(path.to_str().unwrap())),
        "says where they are: {stdout}"
    );
    let result = read(&reports[1]);
    assert_eq!((result.plan.seed, result.plan.rounds, result.interrupted), (7, 2, false));
    assert!(
        result
            .plan
            .repeat_command
            .starts_with("anello lab run --smoke --rounds 2 --seed 7 --contender 'broken")
    );
    assert!(!result.plan.repeat_command.contains("--out"), "{}", result.plan.repeat_command);
    // io_uring where it may be used, epoll elsewhere.
    let driver = result.plan.load_driver.as_deref().expect("the plan names the load's driver");
    assert!(["epoll", "io_uring"].contains(&driver), "{driver}");
    let note = format!("The load ran on anello's {driver} driver.");
    assert!(result.notes.contains(&note), "{:?}", result.notes);
    let version = Command::new(env!("CARGO_BIN_EXE_anello")).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    for own in result.contenders.iter().filter(|contender| contender.name != "broken") {
        // The whole line, or a report might leave out the mark of changes.
        let known = own.commit.as_ref().map(|commit| format!("\ncommit {commit}\n"));
        let line = known.unwrap_or_else(|| "\ncommit unknown: ".to_owned());
        assert!(version.contains(&line), "{line}: {version}");
        let tools = own.built_with.as_deref().unwrap().strip_prefix("Rust (").unwrap().strip_suffix(')');
        assert!(version.contains(&format!("\nbuilt with {}\n", tools.unwrap())), "{tools:?}: {version}");
    }
    assert_eq!(result.cells.len(), 2);
    assert_plots(&reports[1].with_extension(""), &result);
    for row in result.cells.iter().flat_map(|cell| &cell.rows) {
        let uring_is_forbidden =
            row.contender.contains("io_uring") && matches!(row.outcome, Outcome::Skipped(_));
        match row.contender.as_str() {
            "broken" => {
                let named = |why: &str| why.contains("cannot start /nonexistent/server: No such file");
                assert!(matches!(&row.outcome, Outcome::Skipped(why) if named(why)), "{row:?}");
            }
            // On a machine that steals all the time no slice may be clean.
            _ => assert!(
                matches!(row.outcome, Outcome::Measured | Outcome::NotMeasured) || uring_is_forbidden,
                "{row:?}"
            ),
        }
    }
}

/// Beside the reports called `stem` lie the plots of this result, each a file of its own.
fn assert_plots(stem: &Path, result: &LabResult) {
    let mut folder = stem.as_os_str().to_owned();
    folder.push("-plots");
    let plots: BTreeMap<String, String> = anello_lab::render_plots(result).into_iter().collect();
    let measured = |row: &Row| row.outcome == Outcome::Measured;
    // On a machine that steals all the time there is nothing to draw.
    if result.cells.iter().flat_map(|cell| &cell.rows).any(measured) {
        for name in ["echo-128-bytes-requests-s.svg", "echo-128-bytes-server-cpu-per-request.svg"] {
            assert!(plots.contains_key(name), "{name} is not among {:?}", plots.keys());
        }
    }
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files: BTreeMap<String, String> =
        files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect();
    assert_eq!(files.keys().collect::<Vec<_>>(), plots.keys().collect::<Vec<_>>());
    assert!(files == plots && files.values().all(|svg| svg.starts_with("<svg ")), "as the result is drawn");
}

/// A scenario of one cell that is gone through in a moment.
fn moment(directory: &Path) -> PathBuf {
    let scenario = directory.join("moment.toml");
    let text = r#"
        name = "moment"
        title = "One server"
        message_bytes = [64]
        connections = [1]
        contenders = ["bare epoll"]
        reference = "bare epoll"
        passes = 1
        rounds = 1
        slice = "10ms"
        warm_up = "1ms"
        check = false
    "#;
    fs::write(&scenario, text).unwrap();
    scenario
}

#[test]
fn a_reader_that_has_gone_costs_nobody_the_report() {
    let directory = tempfile::tempdir().unwrap();
    let (scenario, out) = (moment(directory.path()), directory.path().join("reports"));
    // One that fails is spoken of while the run goes on.
    let broken = "broken=/nonexistent/server";
    let mut command = lab(&[
        "--scenario",
        scenario.to_str().unwrap(),
        "--contender",
        broken,
        "--out",
        out.to_str().unwrap(),
    ]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let reports = reports_in(&out);
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert_eq!(read(&reports[1]).failures.len(), 1);
}

#[test]
fn a_word_that_is_no_unicode_may_stand_in_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let (scenario, out) = (moment(directory.path()), directory.path().join(OsStr::from_bytes(b"r\xff")));
    let mut command = lab(&["--scenario", scenario.to_str().unwrap()]);
    let Output { status, stderr, .. } = command.arg("--out").arg(&out).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let reports = reports_in(&out);
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert!(read(&reports[1]).plan.repeat_command.starts_with("anello lab run --scenario "));
}

#[test]
fn ctrl_c_ends_the_run_with_what_there_is_and_leaves_no_server_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = lab(&["--load-time", "10m", "--out", directory.path().to_str().unwrap()]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let children = PathBuf::from(format!("/proc/{0}/task/{0}/children", child.id()));
    // The first children ask for versions; servers are told where to listen.
    let is_server = |child: &&str| {
        let command = fs::read_to_string(format!("/proc/{child}/cmdline"));
        command.is_ok_and(|command| command.contains("--addr"))
    };
    let servers = loop {
        let children = fs::read_to_string(&children).unwrap();
        let servers: Vec<String> = children.split_whitespace().filter(is_server).map(str::to_owned).collect();
        if !servers.is_empty() {
            break servers;
        }
        thread::sleep(Duration::from_millis(1));
    };
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("was stopped early"));
    let result = read(&reports_in(directory.path())[1]);
    assert!(result.interrupted);
    for server in servers {
        assert!(!Path::new("/proc").join(&server).exists(), "{server} has ended");
    }
}

#[test]
fn a_lab_that_is_killed_leaves_no_server_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (alive, script) = (directory.path().join("alive"), directory.path().join("server.sh"));
    assert!(Command::new("mkfifo").arg(&alive).status().unwrap().success());
    // Says nothing to the lab, so that no broken pipe ends it.
    fs::write(&script, format!("exec 9>{}; echo started >&9; exec sleep 300", alive.display())).unwrap();
    let with = format!("watched=/bin/sh {}", script.display());
    let mut command =
        lab(&["--load-time", "10m", "--contender", &with, "--out", directory.path().to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    // Open for writing only in the server: the end of the stream is the end of the server.
    let mut alive = BufReader::new(File::open(alive).unwrap());
    let mut line = String::new();
    alive.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child.kill().unwrap();
    child.wait().unwrap();
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(alive.read_line(&mut String::new()).unwrap()));
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(0), "the server outlives the lab");
}

#[test]
fn a_lab_that_makes_no_sense_is_refused() {
    let Output { status, stderr, .. } = lab(&["--smoke"]).env("ANELLO_DRIVER", "epoll").output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stderr).contains("unset"));
    for wrong in [
        ["--contender", "tokio"],
        ["--seed", "x"],
        ["--load-time", "5"],
        ["--connections", "1,x"],
        ["--rounds", "0"],
    ] {
        assert_eq!(lab(&wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_run_that_was_stopped_is_taken_up_again() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let out = out.to_str().unwrap();
    let scenario = directory.path().join("mine.toml");
    let text = r#"
        name = "mine"
        title = "Two servers"
        message_bytes = [64]
        connections = [1, 3]
        contenders = ["anello epoll", "bare epoll"]
        reference = "bare epoll"
        passes = 40
        rounds = 3
        slice = "10ms"
        warm_up = "1ms"
    "#;
    fs::write(&scenario, text).unwrap();
    let child = lab(&["--scenario", scenario.to_str().unwrap(), "--out", out]);
    let json = stop_after_a_cell(child, Path::new(out));
    let part = read(&json);
    assert!(part.interrupted && !part.completed.is_empty() && part.completed.len() < 80);
    // 2 cells in each of 40 passes.
    let Output { status, stderr, .. } =
        lab(&["--resume", json.to_str().unwrap(), "--out", out]).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let whole = read(&json);
    assert!(!whole.interrupted);
    assert_eq!((whole.completed.len(), whole.started_unix_s), (80, part.started_unix_s));
    assert_eq!(whole.checks.len(), 2 * 3);
    assert!(whole.checks.iter().all(|check| check.passed), "{:?}", whole.checks);
    assert_eq!(whole.plan.scenario.text, text);
    assert!(whole.slices.len() >= 80 * 3 * 3);
    let other = ["--resume", json.to_str().unwrap(), "--contender", "x=/bin/true"];
    let Output { status, stderr, .. } = lab(&other).output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stderr).contains("list of contenders"), "{other:?}");
}

#[test]
fn a_disk_run_is_taken_up_again_with_the_file_that_it_had() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let (out, scenario) = (out.to_str().unwrap(), directory.path().join("disk.toml"));
    let worker = "{anello} bare disk --file {file} --create-bytes 65536 --addr 127.0.0.1:0 --engine";
    let text = format!(
        r#"
        name = "disk"
        title = "Two workers"
        protocol = "disk"
        operations = ["random_read"]
        direct = [false]
        block_bytes = [4096]
        depth = [1, 2]
        contenders = [
            {{ name = "one", command = "{worker} pread" }},
            {{ name = "other", command = "{worker} threads" }},
        ]
        reference = "one"
        passes = 40
        rounds = 3
        slice = "10ms"
        warm_up = "1ms"
    "#
    );
    fs::write(&scenario, text).unwrap();
    let child = lab(&["--scenario", scenario.to_str().unwrap(), "--out", out]);
    let json = stop_after_a_cell(child, Path::new(out));
    let part = read(&json);
    assert!(part.interrupted && part.completed.len() < 80);
    let file = part.plan.disk_file.clone().expect("the plan names the file");
    // Commands are told without the directory.
    let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
    let word = format!(" --file {name} ");
    assert!(part.contenders.iter().all(|contender| contender.command.contains(&word)), "{file}");
    let disk = part.environment.disk.as_ref().expect("what the file lies on");
    assert!(!disk.file_system.is_empty(), "{disk}");
    assert!(!Path::new(&file).exists(), "what the lab has made goes with it");
    let other = ["--resume", json.to_str().unwrap(), "--disk-file", "/nowhere/blocks", "--out", out];
    let Output { status, stderr, .. } = lab(&other).output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stderr).contains("file of the disk workers (--disk-file) differs: "));
    create_stale_file(&file);
    let again = lab(&["--resume", json.to_str().unwrap(), "--out", out]).output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let whole = read(&json);
    assert_eq!((whole.interrupted, whole.completed.len()), (false, 80));
    assert_eq!(whole.plan.disk_file, Some(file.clone()));
    assert!(whole.failures.is_empty(), "{:?}", whole.failures);
    assert!(!Path::new(&file).exists(), "what a crash has left is the lab's, too");
}

/// Leaves the file of disk workers behind, as a lab does that crashed.
fn create_stale_file(file: &str) {
    let worker = ["bare", "disk", "--engine", "pread", "--file", file, "--create-bytes", "65536"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(worker).args(["--addr", "127.0.0.1:0"]).env_remove("ANELLO_DRIVER");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("addr=")), "not ready");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(Path::new(file).exists());
}

#[test]
fn a_scenario_that_is_wrong_is_shown_where() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = directory.path().join("wrong.toml");
    fs::write(&scenario, "name = \"x\"\ntitle = 5\n").unwrap();
    let Output { status, stderr, .. } = lab(&["--scenario", scenario.to_str().unwrap()]).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("wrong.toml:2:9: ") && stderr.contains("2 | title = 5"), "{stderr}");
    let Output { status, stderr, .. } = lab(&["--preset", "nginx"]).output().unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stderr).contains("frevib"));
}

/// Starts a run and stops it once a cell is behind, when the first checkpoint is there; returns the path of that.
fn stop_after_a_cell(mut command: Command, out: &Path) -> PathBuf {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let json = loop {
        let names = fs::read_dir(out).into_iter().flatten().map(|entry| entry.unwrap().path());
        if let Some(json) = names.into_iter().find(|path| path.extension().is_some_and(|end| end == "json")) {
            break json;
        }
        assert_eq!(child.try_wait().unwrap(), None, "the run has ended before a cell was behind");
        thread::sleep(Duration::from_millis(1));
    };
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("lab run --resume"), "{output:?}");
    json
}

/// HTML, JSON and text, in this order.
fn reports_in(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> LabResult {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
