//! Tests of `anello lab run` across hosts, with a program in place of `ssh` that runs the commands on this machine. `.ci/hosts` uses OpenSSH and an emulated network.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anello_lab::LabResult;
use anello_lab::result::Outcome;
use anello_test::hang_timeout;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::write_script;

const LAB: &str = env!("CARGO_BIN_EXE_anello");

/// Prints the host name for `ssh -G`. Otherwise, records the arguments and runs the remote command line.
const SSH: &str = r#"#!/bin/sh
log=${0%/*}/log
echo "$*" >>"$log"
if [ "$1" = -G ]; then echo "user x"; echo "hostname 127.0.0.1"; exit; fi
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
case $host in
  denied) echo "x@denied: Permission denied (publickey)." >&2; exit 255 ;;
  missing) exec sh -c 'exec /nonexistent/anello lab agent' ;;
  other) sh -c "$*" | sed -u '1s/"version":"[^"]*"/"version":"0.0.1\\ncommit x"/' ;;
  # The connection ends after this many lines of output. Nothing else holds the output open, as with the real ssh.
  breaking)
    mkfifo "$log.$$"
    exec 3<&0
    sh -c "$*" <&3 >"$log.$$" &
    exec sed -u 40q <"$log.$$" 3<&-
    ;;
  chatty) echo "Welcome!"; exec sh -c "$*" ;;
  *) exec sh -c "$*" ;;
esac
"#;

/// Directory with the replaced ssh and a scenario. The environment of all processes contains its path.
struct Site {
    directory: TempDir,
}

impl Site {
    fn new(scenario: &str) -> Site {
        let site = Site { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(site.path("bin")).unwrap();
        write_script(&site.path("bin/ssh"), SSH);
        let text = format!(
            "name = \"short\"\ntitle = \"Two hosts\"\npasses = 1\nslice = \"10ms\"\nwarm_up = \"1ms\"\n{scenario}"
        );
        fs::write(site.path("short.toml"), text).unwrap();
        site
    }

    /// Returns a site whose scenario measures one server for `rounds` rounds.
    fn with_rounds(rounds: usize) -> Site {
        let servers = "contenders = [\"bare epoll\"]\nreference = \"bare epoll\"\ncheck = false";
        Site::new(&format!("message_bytes = [64]\nconnections = [2]\nrounds = {rounds}\n{servers}"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lab(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LAB);
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.args(["lab", "run", "--scenario"]).arg(self.path("short.toml"));
        command.args(arguments).arg("--out").arg(self.path("out"));
        command.env_remove("ANELLO_DRIVER").env("PATH", path);
        command
    }

    /// Runs the lab and returns its exit code, result and output. Afterwards, no process is left.
    fn run(&self, arguments: &[&str]) -> (i32, Option<LabResult>, String) {
        let Output { status, stdout, stderr } = self.lab(arguments).output().unwrap();
        self.wait_until_processes_have_exited();
        let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
        (status.code().unwrap(), self.result(), text)
    }

    fn result(&self) -> Option<LabResult> {
        let files = fs::read_dir(self.path("out")).ok()?.map(|entry| entry.unwrap().path());
        let json = files.into_iter().find(|path| path.extension().is_some_and(|name| name == "json"))?;
        Some(serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("bin/log")).unwrap_or_default()
    }

    /// Returns the processes that the lab has started, directly or not.
    fn processes(&self) -> Vec<String> {
        let directory = self.directory.path().to_str().unwrap().as_bytes().to_vec();
        let is_ours = |path: &Path| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.windows(directory.len()).any(|window| window == directory)
        };
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let ours = processes.filter(|path| is_ours(path));
        ours.map(|path| fs::read_to_string(path.join("cmdline")).unwrap_or_default().replace('\0', " "))
            .collect()
    }

    fn wait_until_processes_have_exited(&self) {
        let deadline = Instant::now() + hang_timeout();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "still running: {left:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn assert_measured(result: &LabResult) {
    for row in result.cells.iter().flat_map(|cell| &cell.rows) {
        // On a busy virtual machine, steal time can make all slices invalid.
        assert!(matches!(row.outcome, Outcome::Measured | Outcome::NotMeasured), "{row:?}");
    }
}

#[test]
fn run_across_hosts_measures_both_drivers_and_reports_path() {
    let site = Site::new(
        "message_bytes = [64]\nconnections = [1, 20]\nrounds = 2\nreference = \"anello epoll\"\n\
         contenders = [\"anello io_uring\", \"anello epoll\"]",
    );
    let (code, result, text) = site.run(&["--server-host", "user@one", "--load-host", "chatty"]);
    assert_eq!(code, 0, "{text}");
    let result = result.unwrap();
    let path = result.plan.network.as_ref().expect("the plan contains the path");
    assert_eq!(path.server.host.as_deref(), Some("user@one"));
    assert_eq!(path.load.host.as_deref(), Some("chatty"));
    assert!(path.same_machine && path.is_loopback(), "{path}");
    assert!(path.min_round_trip_ns > 0 && path.min_round_trip_ns <= path.median_round_trip_ns);
    let line = format!("network: {path}");
    assert!(line.contains("load generator on chatty (127.0.0.1") && line.contains("loopback"), "{line}");
    assert!(text.contains(&line) && text.contains("\nNetwork: load generator on chatty"), "{text}");
    assert!(anello_lab::render_html(&result).contains("load generator on chatty (127.0.0.1"));
    let epoll = result.contenders.iter().find(|contender| contender.name == "anello epoll").unwrap();
    assert_eq!(epoll.executables.len(), 1, "the hash of the program on the server host");
    assert!(result.checks.iter().any(|check| check.passed && check.contender == "anello epoll"));
    assert!(result.notes.iter().any(|note| note.starts_with("The load generator ran on anello's ")));
    let uring_is_forbidden = result.contenders.iter().any(|contender| contender.ready_line.is_none());
    if !uring_is_forbidden {
        assert_measured(&result);
    }
    assert!(result.slices.iter().all(|slice| slice.requests == 0 || slice.cpu_ns > 0));
    let log = site.log();
    let agent = format!("-T -- user@one exec {LAB} lab agent");
    assert!(log.contains("-o BatchMode=yes") && log.contains(&agent), "{log}");
}

#[test]
fn tls_servers_and_load_have_the_same_certificate() {
    let site = Site::new(
        "protocol = \"https\"\ntargets = [\"hello.txt\"]\nconnections = [2]\nrounds = 1\ncheck = false\n\
         contenders = [\"anello epoll\"]\nreference = \"anello epoll\"",
    );
    let (code, result, text) = site.run(&["--server-host", "one", "--load-host", "two"]);
    assert_eq!(code, 0, "{text}");
    let result = result.unwrap();
    assert_measured(&result);
    assert!(result.failures.is_empty(), "{:?}", result.failures);
    assert!(result.notes.iter().any(|note| note.contains("TLS 1.3")), "{:?}", result.notes);
}

#[test]
fn one_host_is_enough_and_programs_are_copied_and_removed() {
    let site = Site::with_rounds(1);
    let arguments = ["--server-host", "one", "--server-address", "127.0.0.1", "--copy-programs"];
    let (code, result, text) = site.run(&arguments);
    assert_eq!(code, 0, "{text}");
    let result = result.unwrap();
    assert_measured(&result);
    assert_eq!(result.plan.network.as_ref().unwrap().load.host, None);
    assert!(text.contains("load generator on this machine (127.0.0.1"), "{text}");
    assert_eq!(result.contenders[0].executables[0].file, "anello");
    let log = site.log();
    let copies: Vec<&str> = log.lines().filter(|line| line.contains("cat >")).collect();
    assert_eq!(copies.len(), 1, "each program is copied once: {log}");
    let copy = Path::new(copies[0].rsplit_once(' ').unwrap().1);
    assert!(log.contains(&format!("{} lab agent", copy.display())), "{log}");
    assert!(!copy.parent().unwrap().exists(), "the directory is removed");
}

#[test]
fn failed_connections_name_cause_and_remedy() {
    let site = Site::with_rounds(1);
    for (host, cause, remedy) in [
        ("denied", "cannot log in to denied: x@denied: Permission denied (publickey).", "see ssh_config(5)"),
        ("missing", "anello not found on missing: ", "or pass --copy-programs"),
        (
            "other",
            "other has another build of anello: 0.0.1, commit x instead of ",
            "or pass --copy-programs",
        ),
    ] {
        let (code, result, text) = site.run(&["--server-host", host]);
        assert_eq!((code, result.is_none()), (1, true), "{text}");
        assert!(text.contains(cause) && text.contains(remedy), "{host}: {text}");
    }
    let (code, _, text) = site.run(&["--server-host", "one", "--server-address", "192.0.2.1"]);
    let cause = "the server host cannot listen on 192.0.2.1: ";
    assert!(code == 1 && text.contains(cause) && text.contains("--server-address"), "{text}");
    let (code, _, text) = site.run(&["--copy-programs"]);
    assert!(code == 2 && text.contains("require --server-host or --load-host"), "{text}");
    let (code, _, text) = site.run(&["--server-host=-oProxyCommand=x"]);
    assert!(code == 2 && text.contains("expected an ssh destination"), "{text}");
}

#[test]
fn disk_is_rejected_across_hosts() {
    let site = Site::new(
        "protocol = \"disk\"\noperations = [\"random_read\"]\nblock_bytes = [4096]\ndepth = [1]\nrounds = 1\n\
         contenders = [\"pread\"]\nreference = \"pread\"",
    );
    let (code, _, text) = site.run(&["--server-host", "one"]);
    assert!(code == 2 && text.contains("disk workers cannot be measured across hosts"), "{text}");
}

#[test]
fn lost_connection_ends_run_with_results_so_far() {
    for flags in [["--server-host", "breaking"], ["--load-host", "breaking"]] {
        let site = Site::with_rounds(500);
        let (code, result, text) = site.run(&[&flags[..], &["--server-address", "127.0.0.1"]].concat());
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("lost the connection to anello on breaking"), "{text}");
        let result = result.unwrap();
        assert!(result.interrupted && result.slices.len() < 1000, "{}", result.slices.len());
        assert!(result.notes.iter().any(|note| note.starts_with("The run was stopped early: lost the")));
    }
}

/// Starts a long run across hosts and waits until it has started.
fn start_long_run(site: &Site) -> std::process::Child {
    let mut command = site.lab(&["--server-host", "one", "--load-host", "two"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("network: ")), "the run has not started");
    // Keep the pipe open.
    thread::spawn(move || lines.for_each(drop));
    child
}

#[test]
fn interrupted_run_stops_all_processes_and_can_be_resumed() {
    let site = Site::with_rounds(20);
    let child = start_long_run(&site);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    site.wait_until_processes_have_exited();
    let result = site.result().unwrap();
    assert!(result.interrupted);
    let json = fs::read_dir(site.path("out")).unwrap().map(|entry| entry.unwrap().path());
    let json = json.into_iter().find(|path| path.extension().is_some_and(|name| name == "json")).unwrap();
    // The hosts are those of the interrupted run.
    let (code, result, text) = site.run(&["--resume", json.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    let result = result.unwrap();
    assert!(!result.interrupted);
    assert_eq!(result.plan.network.unwrap().server.host.as_deref(), Some("one"));
}

#[test]
fn killed_lab_leaves_no_processes() {
    let site = Site::with_rounds(100_000);
    let mut child = start_long_run(&site);
    child.kill().unwrap();
    child.wait().unwrap();
    site.wait_until_processes_have_exited();
}
