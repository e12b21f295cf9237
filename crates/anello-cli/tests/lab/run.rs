//! Tests for `anello lab run`, run as a child process, with real servers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anello_lab::LabResult;
use anello_lab::result::{Outcome, Row};
use anello_test::{hang_timeout, within};

pub fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["lab", "run"]).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

/// If a contender cannot be started (fault 45 in `docs/internals/faults.md`), the report names it, and the other
/// contenders are measured.
#[test]
fn smoke_run_compares_servers_and_writes_reports() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let broken = "broken=/nonexistent/server --addr 127.0.0.1:0";
    let arguments =
        ["--smoke", "--rounds", "2", "--seed", "7", "--contender", broken, "--out", out.to_str().unwrap()];
    let Output { status, stdout, stderr } = lab(&arguments).arg("--keep-going").output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("bare epoll") && stdout.contains("20 connections, 128 bytes"), "{stdout}");
    let reports = reports_in(&out);
    let extensions: Vec<&str> =
        reports.iter().map(|path| path.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(extensions, ["html", "json", "txt"]);
    assert!(
        reports[..2].iter().all(|path| stdout.contains(path.to_str().unwrap())),
        "prints the paths of the reports: {stdout}"
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
    // io_uring if available, else epoll.
    let driver = result.plan.load_driver.as_deref().expect("the plan contains the load generator's driver");
    assert!(["epoll", "io_uring"].contains(&driver), "{driver}");
    let note = format!("The load generator ran on anello's {driver} driver.");
    assert!(result.notes.contains(&note), "{:?}", result.notes);
    let version = Command::new(env!("CARGO_BIN_EXE_anello")).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    for own in result.contenders.iter().filter(|contender| contender.name != "broken") {
        // Compares the whole line, so that a missing "+changes" suffix is noticed.
        let commit_line = own.commit.as_ref().map(|commit| format!("\ncommit {commit}\n"));
        let line = commit_line.unwrap_or_else(|| "\ncommit unknown: ".to_owned());
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
                let is_expected =
                    |reason: &str| reason.contains("cannot start /nonexistent/server: No such file");
                assert!(matches!(&row.outcome, Outcome::Skipped(reason) if is_expected(reason)), "{row:?}");
            }
            // On a busy virtual machine, steal time can make all measurement slices invalid.
            _ => assert!(
                matches!(row.outcome, Outcome::Measured | Outcome::NotMeasured) || uring_is_forbidden,
                "{row:?}"
            ),
        }
    }
}

/// Asserts that the directory `STEM-plots` contains the plots of this result as SVG files.
fn assert_plots(stem: &Path, result: &LabResult) {
    let mut directory = stem.as_os_str().to_owned();
    directory.push("-plots");
    let plots: BTreeMap<String, String> = anello_lab::render_plots(result).into_iter().collect();
    let measured = |row: &Row| row.outcome == Outcome::Measured;
    // Without a valid measurement slice, there is nothing to plot.
    if result.cells.iter().flat_map(|cell| &cell.rows).any(measured) {
        for name in ["echo-128-bytes-requests-s.svg", "echo-128-bytes-server-cpu-per-request.svg"] {
            assert!(plots.contains_key(name), "{name} is not among {:?}", plots.keys());
        }
    }
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files: BTreeMap<String, String> =
        files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect();
    assert_eq!(files.keys().collect::<Vec<_>>(), plots.keys().collect::<Vec<_>>());
    assert!(
        files == plots && files.values().all(|svg| svg.starts_with("<svg ")),
        "files equal the rendered plots"
    );
}

/// Writes a scenario with one cell that takes a fraction of a second. Returns its path.
pub fn short_scenario(directory: &Path) -> PathBuf {
    let scenario = directory.join("short.toml");
    let text = r#"
        name = "short"
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
fn closed_output_pipes_do_not_prevent_reports() {
    let directory = tempfile::tempdir().unwrap();
    let (scenario, out) = (short_scenario(directory.path()), directory.path().join("reports"));
    // The failure of this contender is printed to standard error during the run.
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
fn non_unicode_argument_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join(OsStr::from_bytes(b"r\xff"));
    let scenario = short_scenario(directory.path());
    let mut command = lab(&["--scenario", scenario.to_str().unwrap()]);
    let Output { status, stderr, .. } = command.arg("--out").arg(&out).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let reports = reports_in(&out);
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert!(read(&reports[1]).plan.repeat_command.starts_with("anello lab run --scenario "));
}

#[test]
fn ctrl_c_writes_partial_result_and_stops_servers() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = lab(&["--load-time", "10m", "--out", directory.path().to_str().unwrap()]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let children = PathBuf::from(format!("/proc/{0}/task/{0}/children", child.id()));
    // The first child processes only print versions. Server processes have an address argument.
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
        assert!(!Path::new("/proc").join(&server).exists(), "server {server} is still running");
    }
}

#[test]
fn servers_exit_when_lab_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (alive, script) = (directory.path().join("alive"), directory.path().join("server.sh"));
    assert!(Command::new("mkfifo").arg(&alive).status().unwrap().success());
    // The server does not write to its standard output, so it cannot have exited because of a broken pipe.
    fs::write(&script, format!("exec 9>{}; echo started >&9; exec sleep 300", alive.display())).unwrap();
    let contender = format!("watched=/bin/sh {}", script.display());
    let scenario = short_scenario(directory.path());
    let arguments = ["--scenario", scenario.to_str().unwrap(), "--contender", &contender];
    let mut command = lab(&[&arguments[..], &["--out", directory.path().to_str().unwrap()]].concat());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    // Only the server has the FIFO open for writing, so EOF means that the server has exited.
    let (line, mut alive) = within(hang_timeout(), "the server starts", || {
        let mut alive = BufReader::new(File::open(alive).unwrap());
        let mut line = String::new();
        alive.read_line(&mut line).unwrap();
        (line, alive)
    });
    assert_eq!(line, "started\n");
    child.kill().unwrap();
    child.wait().unwrap();
    let read_end = move || alive.read_line(&mut String::new()).unwrap();
    assert_eq!(within(hang_timeout(), "the server ends with the lab", read_end), 0);
}

#[test]
fn invalid_arguments_are_rejected() {
    let Output { status, stderr, .. } = lab(&["--smoke"]).env("ANELLO_DRIVER", "epoll").output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stderr).contains("unset"));
    for invalid in [
        ["--contender", ""],
        ["--contender", "tokio"],
        ["--contender", "tokio="],
        ["--contender", "=./echo"],
        ["--seed", "x"],
        ["--load-time", "5"],
        ["--load-time", "0s"],
        ["--connections", "1,x"],
        ["--rounds", "0"],
    ] {
        assert_eq!(lab(&invalid).output().unwrap().status.code(), Some(2), "{invalid:?}");
    }
    let output = lab(&["--preset", "tls", "--contender", "a=./a"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("anello: contender a does not serve TLS"), "{error}");
    assert!(error.contains("{certificate} and {key}"), "{error}");
}

#[test]
fn unwritable_outputs_are_reported_before_the_first_slice() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string().into_string().unwrap();
    let (file, reports) = (path("file"), path("reports"));
    fs::write(&file, "kept").unwrap();
    let scenario = short_scenario(directory.path()).into_os_string().into_string().unwrap();
    let nowhere = path("nowhere/result.json");
    for (flags, expected) in [
        (["--out", &file, "--json", &nowhere], format!("cannot write {file}: it is not a directory")),
        (["--out", &reports, "--json", &nowhere], format!("cannot write {nowhere}: No such file")),
        (["--out", &reports, "--json", "/proc/result"], "cannot write /proc/result: ".to_owned()),
    ] {
        let output = lab(&[&["--scenario", &scenario][..], &flags].concat()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{flags:?}: {error}");
        assert!(error.starts_with("anello: ") && error.contains(&expected), "{flags:?}: {error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    assert_eq!(fs::read_dir(&reports).unwrap().count(), 0, "the check leaves no file");
    // An output that cannot be written at the end does not prevent the others.
    let output = lab(&["--scenario", &scenario, "--out", &reports, "--json", "/dev/full"]).output().unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.code() == Some(1) && error.contains("/dev/full: No space left"), "{error}");
    assert!(text.contains("bare epoll") && reports_in(Path::new(&reports)).len() == 3, "{text}");
}

#[test]
fn interrupted_run_is_resumed() {
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
        passes = 5
        rounds = 3
        slice = "10ms"
        warm_up = "1ms"
    "#;
    fs::write(&scenario, text).unwrap();
    let command = lab(&["--scenario", scenario.to_str().unwrap(), "--out", out]);
    let json = interrupt_after_first_cell(command, Path::new(out));
    let partial = read(&json);
    // The complete run consists of 5 passes with 2 cells each.
    assert!(partial.interrupted && !partial.completed.is_empty() && partial.completed.len() < 10);
    let Output { status, stderr, .. } =
        lab(&["--resume", json.to_str().unwrap(), "--out", out]).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let complete = read(&json);
    assert!(!complete.interrupted);
    assert_eq!((complete.completed.len(), complete.started_unix_s), (10, partial.started_unix_s));
    assert_eq!(complete.checks.len(), 2 * 3);
    assert!(complete.checks.iter().all(|check| check.passed), "{:?}", complete.checks);
    assert_eq!(complete.plan.scenario.text, text);
    assert!(complete.slices.len() >= 10 * 3 * 3);
    let scenario = scenario.to_str().unwrap();
    let assert_rejected = |flags: [&str; 2], property: &str| {
        let mut command = lab(&["--resume", json.to_str().unwrap()]);
        let Output { status, stderr, .. } = command.args(flags).output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{property}: {stderr}");
        let problem = format!("anello: cannot resume the run: {property} differs: ");
        assert!(stderr.contains(&problem) && stderr.contains("start a new one"), "{stderr}");
    };
    assert_rejected(["--contender", "x=/bin/true"], "list of contenders");
    for (old, new, property) in [
        ("reference = \"bare", "reference = \"anello", "reference"),
        ("connections = [1, 3]", "connections = [1, 4]", "cell 2"),
        ("passes = 5", "passes = 6", "number of passes"),
        ("slice = \"10ms\"", "slice = \"20ms\"", "slice length in ns"),
        ("rounds = 3", "rounds = 3\nseed = 2", "seed"),
    ] {
        fs::write(scenario, text.replace(old, new)).unwrap();
        assert_rejected(["--scenario", scenario], property);
    }
    // The title does not affect the measurements.
    fs::write(scenario, text.replace("Two servers", "Two fast servers")).unwrap();
    let same =
        lab(&["--resume", json.to_str().unwrap(), "--scenario", scenario, "--out", out]).output().unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stderr));
}

/// The command of a disk worker, without its engine.
pub(crate) const DISK_WORKER: &str =
    "{anello} bare disk --file {file} --create-bytes 65536 --addr 127.0.0.1:0 --engine";

/// Writes a short scenario that compares two disk workers with these commands at these depths.
pub(crate) fn disk_scenario(directory: &Path, depths: &str, one: &str, other: &str) -> PathBuf {
    let scenario = directory.join("disk.toml");
    let text = format!(
        r#"
        name = "disk"
        title = "Two disk workers"
        protocol = "disk"
        operations = ["random_read"]
        direct = [false]
        block_bytes = [4096]
        depth = [{depths}]
        contenders = [{{ name = "worker", command = "{one}" }}, {{ name = "other", command = "{other}" }}]
        reference = "worker"
        passes = 5
        rounds = 3
        slice = "10ms"
        warm_up = "1ms"
    "#
    );
    fs::write(&scenario, text).unwrap();
    scenario
}

#[test]
fn resumed_disk_run_uses_same_file() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let out = out.to_str().unwrap();
    let [one, other] = ["pread", "threads"].map(|engine| format!("{DISK_WORKER} {engine}"));
    let scenario = disk_scenario(directory.path(), "1, 2", &one, &other);
    let command = lab(&["--scenario", scenario.to_str().unwrap(), "--out", out]);
    let json = interrupt_after_first_cell(command, Path::new(out));
    let partial = read(&json);
    assert!(partial.interrupted && partial.completed.len() < 10);
    let file = partial.plan.disk_file.clone().expect("the plan contains the file");
    // The commands in the report contain the file name without its directory.
    let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
    let argument = format!(" --file {name} ");
    assert!(partial.contenders.iter().all(|contender| contender.command.contains(&argument)), "{file}");
    let disk = partial.environment.disk.as_ref().expect("the disk of the file");
    assert!(!disk.file_system.is_empty(), "{disk}");
    assert!(!Path::new(&file).exists(), "the lab removes a file that it created");
    let other = ["--resume", json.to_str().unwrap(), "--disk-file", "/nowhere/blocks", "--out", out];
    let Output { status, stderr, .. } = lab(&other).output().unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stderr).contains("file of the disk workers (--disk-file) differs: "));
    create_stale_file(&file);
    let resumed = lab(&["--resume", json.to_str().unwrap(), "--out", out]).output().unwrap();
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    let complete = read(&json);
    assert_eq!((complete.interrupted, complete.completed.len()), (false, 10));
    assert_eq!(complete.plan.disk_file, Some(file.clone()));
    assert!(complete.failures.is_empty(), "{:?}", complete.failures);
    assert!(!Path::new(&file).exists(), "the lab also removes a file left by a crashed lab");
}

/// Creates the disk workers' file as a crashed lab would leave it.
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
fn scenario_errors_have_line_and_column() {
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

/// Starts a run and interrupts it after the first cell, when the first checkpoint exists. Returns the path of its JSON
/// file.
fn interrupt_after_first_cell(mut command: Command, out: &Path) -> PathBuf {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let json = loop {
        let names = fs::read_dir(out).into_iter().flatten().map(|entry| entry.unwrap().path());
        if let Some(json) =
            names.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "json"))
        {
            break json;
        }
        assert_eq!(child.try_wait().unwrap(), None, "the run has exited before its first checkpoint");
        thread::sleep(Duration::from_millis(1));
    };
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("lab run --resume"), "{output:?}");
    json
}

/// Returns the sorted paths of the files in a directory. For one run, these are the HTML, JSON and text reports.
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
