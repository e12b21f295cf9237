//! Tests of loads that several processes generate: `--shard`, `--start-at`, output files, and `anello load merge` of
//! their reports.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anello_load::Report;
use serde_json::{Value, json};

use crate::common::{self, served::Served, write_script};

/// Variables that schedulers set.
const VARIABLES: [&str; 6] = [
    "JOB_COMPLETION_INDEX",
    "ANELLO_SHARDS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
];

/// Returns the command `anello` with these arguments, without the variables that a scheduler may have set.
fn anello(arguments: &[&str]) -> Command {
    let mut command = common::anello(arguments);
    VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    command
}

fn output(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn start_echo() -> Served {
    Served::start_echo(&["--addr", "127.0.0.1:0"])
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Time until processes start together, in seconds. The next one is used if the machine is too busy for the previous
/// one.
const START_DELAYS: [u32; 3] = [2, 10, 60];

/// Runs three shards of an open loop at the same time. Each writes `report-I.json` and `latency-I.hlog`.
fn run_shards(address: &str, directory: &Path) -> Vec<Report> {
    let name = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let (json, hdr) = (format!("--json={}", name("report-{shard}.json")), name("latency-{shard}.hlog"));
    let run = |start_delay| {
        let start = format!("{:.3}", unix_seconds() + f64::from(start_delay));
        let flags = ["--connections", "10", "--rate", "1k", "--duration", "500ms", "--verify"];
        let shards = (0..3).map(|index| {
            let mut command = anello(&["load", "tcp", address, "--start-at", &start, &json, "--hdr", &hdr]);
            command.args(flags).args(["--interval", "100ms", "--drain-timeout", "30s", "--timeout", "60s"]);
            command.env("SLURM_PROCID", index.to_string()).env("SLURM_NTASKS", "3");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let children: Vec<Child> = shards.collect();
        children.into_iter().map(|child| child.wait_with_output().unwrap()).collect::<Vec<_>>()
    };
    let is_late = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("choose a later time");
    let outputs = START_DELAYS.into_iter().map(run).find(|all| !all.iter().any(is_late));
    for (index, Output { status, stdout, stderr }) in outputs.unwrap().into_iter().enumerate() {
        let text = String::from_utf8_lossy(&stdout);
        assert!(status.success(), "{text}{}", String::from_utf8_lossy(&stderr));
        assert!(
            text.contains(&format!("shard         {index}/3, from SLURM_PROCID and SLURM_NTASKS")),
            "{text}"
        );
    }
    let read = |index| fs::read_to_string(directory.join(format!("report-{index}.json"))).unwrap();
    (0..3).map(|index| serde_json::from_str(&read(index)).unwrap()).collect()
}

/// Merges with `--json`.
fn merge(inputs: &[&Path]) -> (Option<i32>, Value) {
    let mut command = anello(&["load", "merge", "--json"]);
    command.args(inputs);
    let (code, stdout, stderr) = output(command);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
}

fn kinds(report: &Value) -> Vec<&str> {
    let problems = report["problems"].as_array().unwrap();
    let kinds = problems.iter().map(|problem| problem["kind"].as_str().unwrap());
    // They depend on how busy the machine is.
    kinds.filter(|kind| !["bottleneck", "start_time", "clock_step"].contains(kind)).collect()
}

/// Writes a copy of a report with a changed field.
fn changed(directory: &Path, from: &str, to: &str, pointer: &str, value: Value) -> PathBuf {
    let mut report: Value = serde_json::from_str(&fs::read_to_string(directory.join(from)).unwrap()).unwrap();
    *report.pointer_mut(pointer).unwrap() = value;
    let path = directory.join(to);
    fs::write(&path, report.to_string()).unwrap();
    path
}

#[test]
fn shards_add_up_to_whole_load_and_are_checked() {
    let echo = start_echo();
    let results = tempfile::tempdir().unwrap();
    let results = results.path();
    let reports = run_shards(echo.address(), results);
    let connections: Vec<_> = reports.iter().map(|report| report.connections).collect();
    assert_eq!(connections, [4, 3, 3]);
    assert!(reports.iter().all(|report| report.all_connections == 10 && report.verified));
    let offered: u64 = reports.iter().map(|report| report.offered.unwrap()).sum();
    assert_eq!(offered, 500, "1000 requests per second over all shards, for half a second");
    // Connections 0, 3, 6 and 9 send 4 of 10 requests.
    assert_eq!(reports[0].offered, Some(200));

    // The directory has the report and the log of each shard.
    let (code, sum) = merge(&[results]);
    assert_eq!((code, kinds(&sum)), (Some(0), vec![]), "{sum}");
    assert_eq!((&sum["shards"], &sum["missing_shards"]), (&3.into(), &"".into()));
    assert_eq!((&sum["load"]["offered"], &sum["load"]["connections"]), (&500.into(), &10.into()));
    assert_eq!((&sum["load"]["requests"], &sum["tags"][0]["requests"]), (&500.into(), &500.into()));
    let sent: u64 = reports.iter().map(|report| report.sent_bytes).sum();
    assert_eq!(sum["load"]["sent_bytes"], sent);
    assert!(sum["start_difference_ns"].is_u64() && sum["runs"].as_array().unwrap().len() == 3, "{sum}");
    // The sums of the reports and of the logs are equal, because both have all values.
    let report = |index: usize| results.join(format!("report-{index}.json"));
    let log = |index: usize| results.join(format!("latency-{index}.hlog"));
    let (_, of_reports) = merge(&[&report(0), &report(1), &report(2)]);
    let (_, of_logs) = merge(&[&log(0), &log(1), &log(2)]);
    for tag in 0..2 {
        assert_eq!(of_reports["tags"][tag]["latency"], of_logs["tags"][tag]["latency"]);
        assert_eq!(of_reports["tags"][tag]["latency"], sum["tags"][tag]["latency"]);
    }
    assert_eq!((&of_logs["load"], &of_logs["shards"]), (&Value::Null, &3.into()));

    let (code, sum) = merge(&[&report(0), &report(2)]);
    assert_eq!((code, kinds(&sum), &sum["missing_shards"]), (Some(1), vec!["missing"], &"1".into()));
    let (code, sum) = merge(&[&log(1)]);
    assert_eq!((code, kinds(&sum), &sum["missing_shards"]), (Some(1), vec!["missing"], &"0,2".into()));
    // The same report twice counts once, a second run of a shard counts again.
    let (code, sum) = merge(&[results, &report(1)]);
    assert_eq!((code, kinds(&sum), &sum["load"]["requests"]), (Some(0), vec!["repeated"], &500.into()));
    let copies = tempfile::tempdir().unwrap();
    (0..3).for_each(|index| {
        let name = format!("report-{index}.json");
        fs::copy(results.join(&name), copies.path().join(&name)).unwrap();
        // On a busy machine, a shard can start late.
        changed(copies.path(), &name, &name, "/clock/start_delay_ns", json!(0));
    });
    let copies = copies.path();
    let again = changed(copies, "report-1.json", "again", "/run/id", json!("0123456789abcdef"));
    let (code, sum) = merge(&[copies, &again]);
    assert_eq!((code, kinds(&sum)), (Some(1), vec!["duplicate"]));
    let other = changed(copies, "report-1.json", "other", "/run/settings", json!("00000000"));
    let (code, sum) = merge(&[&report(0), &other, &report(2)]);
    assert_eq!((code, kinds(&sum)), (Some(1), vec!["different"]));
    // A shard that was killed leaves an empty report and a log without error counts.
    let killed = tempfile::tempdir().unwrap();
    for index in 0..3 {
        let name = format!("report-{index}.json");
        let text = if index == 1 { Vec::new() } else { fs::read(results.join(&name)).unwrap() };
        fs::write(killed.path().join(name), text).unwrap();
    }
    let (code, sum) = merge(&[killed.path()]);
    assert_eq!((code, kinds(&sum), &sum["missing_shards"]), (Some(1), vec!["missing"], &"1".into()));
    let text = fs::read_to_string(log(1)).unwrap();
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("#[AnelloErrors")).collect();
    fs::write(killed.path().join("latency-1.hlog"), text.join("\n")).unwrap();
    let (code, sum) = merge(&[killed.path()]);
    assert_eq!((code, kinds(&sum), &sum["missing_shards"]), (Some(1), vec!["unfinished"], &"".into()));
    // If it was killed before the end of the first interval, the log has only a header.
    let header: Vec<&str> = text.into_iter().take_while(|line| !line.starts_with(char::is_numeric)).collect();
    fs::write(killed.path().join("latency-1.hlog"), header.join("\n")).unwrap();
    let (code, sum) = merge(&[killed.path()]);
    assert_eq!((code, kinds(&sum), &sum["missing_shards"]), (Some(1), vec!["unfinished"], &"".into()));
    assert_eq!(sum["tags"][0]["requests"], 350, "the other shards are merged");
    let (code, sum) = merge(&[&killed.path().join("latency-1.hlog")]);
    assert_eq!(
        (code, kinds(&sum), &sum["missing_shards"]),
        (Some(1), vec!["missing", "unfinished"], &"0,2".into())
    );
    // Warnings do not change the exit code.
    let skewed = reports[1].started_unix_ns + 2_500_000_000;
    let skewed = changed(copies, "report-1.json", "skewed", "/started_unix_ns", json!(skewed));
    let saturated = changed(copies, "report-2.json", "saturated", "/load_was_bottleneck", json!(true));
    let mut command = anello(&["load", "merge"]);
    command.arg(copies.join("report-0.json")).args([&skewed, &saturated]);
    let (code, text, _) = output(command);
    assert_eq!(code, Some(0), "{text}");
    for expected in [
        "shards          3 of 3, started within 2.50 s",
        "skewed started 2.5",
        "saturated: load generator saturated",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("WARNING ")).collect();
    assert!(lines.len() >= 2, "{text}");

    // Several reports on standard input, as from a log of all processes.
    let mut command = anello(&["load", "merge", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    (0..3).for_each(|index| input.write_all(&fs::read(report(index)).unwrap()).unwrap());
    drop(input);
    let Output { status, stdout, .. } = child.wait_with_output().unwrap();
    let sum: Value = serde_json::from_slice(&stdout).unwrap();
    assert!(status.success() && sum["load"]["requests"] == 500, "{sum}");
    assert_eq!(sum["logs"][1], "standard input#2");

    // A merged log keeps the identities of the shards.
    let merged = copies.join("sum.hlog");
    let mut command = anello(&["load", "merge", "--hdr", merged.to_str().unwrap()]);
    command.arg(results);
    assert_eq!(output(command).0, Some(0));
    let (code, sum) = merge(&[&merged]);
    assert_eq!((code, kinds(&sum), &sum["tags"][0]["requests"]), (Some(0), vec![], &500.into()));
    let (code, sum) = merge(&[&merged, &report(0)]);
    assert_eq!((code, kinds(&sum)), (Some(1), vec!["duplicate"]));
}

#[test]
fn shard_flags_and_variables_are_checked() {
    let load = |flags: &[&str], variables: &[(&str, &str)]| {
        // No server is listening, so the load ends immediately.
        let mut command = anello(&["load", "tcp", "127.0.0.1:1", "-d", "10ms", "--json"]);
        command.args(flags).envs(variables.iter().copied());
        output(command)
    };
    let (_, text, _) =
        load(&["--shard", "1/2", "-c", "1.5k"], &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]);
    let report: Report = serde_json::from_str(&text).unwrap();
    let shard = report.run.shard.unwrap();
    assert_eq!((shard.index, shard.count, shard.source.as_str()), (1, 2, "--shard"));
    assert_eq!((report.connections, report.all_connections), (750, 1500));
    let (_, text, _) = load(&["--shards", "2"], &[("JOB_COMPLETION_INDEX", "1")]);
    let report: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(report.run.shard.unwrap().source, "JOB_COMPLETION_INDEX and --shards");
    for (flags, variables, code, expected) in [
        (&["--shard", "2/2"][..], &[][..], 2, "expected 0/2 to 1/2"),
        (&["--shard", "0/2", "--shards", "2"], &[], 2, "cannot be used with"),
        (&["--start-at", "tomorrow"], &[], 2, "RFC 3339"),
        (&["--connections", "1.5"], &[], 2, "such as 500, 10k or 1.5M"),
        (&[], &[("JOB_COMPLETION_INDEX", "1")], 2, "the number of shards is unknown"),
        (&["--shard", "0/2", "--rate", "1k..2k/1k"], &[], 2, "a sweep cannot be divided"),
        (&["--shard", "0/60"], &[], 2, "cannot divide 50 connections into 60 shards"),
        (&["--start-at", "1000000000"], &[], 2, "choose a later time"),
        (&["--start-at", "2001-09-09T01:46:40Z"], &[], 2, "choose a later time"),
        (&["--start-at", "+200h"], &[], 2, "at most 7 are possible"),
        (&["--connections", "4M", "--shard", "0/2"], &[], 2, "use more shards"),
        (&["--hdr", "-", "--ndjson", "-"], &[], 2, "cannot share standard output"),
    ] {
        let (actual, _, error) = load(flags, variables);
        assert!(
            actual == Some(code) && error.contains(expected),
            "{flags:?} {variables:?}: {actual:?} {error}"
        );
    }
}

#[test]
fn log_on_standard_output_can_be_piped_to_merge() {
    let echo = start_echo();
    let mut load = anello(&["load", "tcp", echo.address(), "-c", "2", "-d", "50ms", "--hdr", "-"]);
    let Output { status, stdout, stderr } = load.output().unwrap();
    assert!(status.success() && stderr.starts_with(b"server "), "{}", String::from_utf8_lossy(&stderr));
    let mut command = anello(&["load", "merge", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&stdout).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Replaces the launchers with scripts that start the processes on this machine.
#[test]
fn deployment_scripts_run_all_shards_and_merge() {
    let echo = start_echo();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_script(
        &directory.join("srun"),
        "#!/bin/bash\nfor index in 0 1 2; do SLURM_PROCID=$index SLURM_NTASKS=3 \"$@\" & done\nwait\n",
    );
    write_script(
        &directory.join("mpirun"),
        "#!/bin/bash\n[[ $1 == -n ]] || exit 1\ncount=$2\nshift 2\nexport SLURM_PROCID=0 SLURM_NTASKS=1\n\
         for ((index = 0; index < count; index++)); do\n  \
         OMPI_COMM_WORLD_RANK=$index OMPI_COMM_WORLD_SIZE=$count \"$@\" &\ndone\nwait\n",
    );
    write_script(
        &directory.join("ssh"),
        "#!/bin/bash\n[[ $1 == -o && $3 == host[0-9] ]] || exit 255\nexec bash -c \"$4\"\n",
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Returns the exit code and the output of the first attempt in which all processes started in time.
    let run = |script: &str, launcher: &str| {
        let attempts = START_DELAYS.into_iter().map(|start_delay| {
            let mut command = Command::new(root.join(script));
            command.current_dir(directory).env_remove("ANELLO_DRIVER");
            VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
            let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
            command.env("PATH", path).env("ANELLO", env!("CARGO_BIN_EXE_anello"));
            command.env("START_DELAY", start_delay.to_string());
            let results = format!("{}-{}-{start_delay}", script.replace('/', "-"), launcher.len());
            command.args(Some(launcher).filter(|launcher| !launcher.is_empty())).arg(results);
            let flags = ["-c", "6", "-r", "100", "-d", "200ms", "--drain-timeout", "30s", "--timeout", "60s"];
            command.args(["tcp", echo.address()]).args(flags);
            output(command)
        });
        attempts.into_iter().find(|(.., error)| !error.contains("choose a later time")).unwrap()
    };
    let assert_complete = |script: &str, launcher: &str| {
        let (code, text, error) = run(script, launcher);
        assert_eq!(code, Some(0), "{script}: {text}{error}");
        assert!(text.contains("shards          3 of 3") && text.contains(" 20 offered"), "{script}: {text}");
    };
    thread::scope(|scope| {
        scope.spawn(|| assert_complete("deploy/slurm/load.sbatch", ""));
        scope.spawn(|| assert_complete("deploy/mpi/load", "-n 3"));
        scope.spawn(|| assert_complete("deploy/ssh/load", "host1 host2 host3"));
        let (code, text, _) = run("deploy/ssh/load", "host1 unknown host3");
        assert!(code == Some(1) && text.contains("of 3 shards, these are missing: 1"), "{text}");
    });
}
