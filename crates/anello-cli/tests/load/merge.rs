//! Tests for `anello load merge`, run as a child process.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anello_load::Errors;
use anello_load::formats::hdr_log::{HdrLog, HdrLogWriter};
use hdrhistogram::Histogram;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

const START_UNIX_NS: u64 = 1_700_000_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Writes a log that covers two seconds with 1000 requests each, all with this latency. The uncorrected latency is half
/// as long. Returns the path.
fn write_log(directory: &Path, name: &str, offset_ns: u64, latency_ns: u64) -> PathBuf {
    let mut writer = HdrLogWriter::new(Vec::new(), START_UNIX_NS + offset_ns, &[]).unwrap();
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60 * SECOND_NS, 3).unwrap();
    histogram.record_n(latency_ns, 1000).unwrap();
    let mut uncorrected = Histogram::<u64>::new_with_bounds(1, 60 * SECOND_NS, 3).unwrap();
    uncorrected.record_n(latency_ns / 2, 1000).unwrap();
    for second in 0..2 {
        let (start_ns, end_ns) = (second * SECOND_NS, (second + 1) * SECOND_NS);
        writer.write_histogram(None, start_ns, end_ns, &histogram).unwrap();
        writer.write_histogram(Some("uncorrected"), start_ns, end_ns, &uncorrected).unwrap();
    }
    let path = directory.join(name);
    fs::write(&path, writer.into_inner()).unwrap();
    path
}

fn merge(arguments: &[&str], logs: &[&Path]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    let Output { status, stdout, stderr } =
        command.args(["load", "merge"]).args(arguments).args(logs).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn merges_tags_separately_in_all_output_formats() {
    let directory = tempfile::tempdir().unwrap();
    let one = write_log(directory.path(), "one.hlog", 0, 1_000_000);
    let other = write_log(directory.path(), "other, \"too\".hlog", 200_000_000, 3_000_000);
    let logs: [&Path; 2] = [&one, &other];

    let (code, text, error) = merge(&[], &logs);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("all ")).collect();
    let [all, uncorrected] = lines[..] else { panic!("{text}") };
    let cells: Vec<&str> = all.split_whitespace().collect();
    // 4,000 requests in 2.2 s, half with a latency of 1 ms and half with a latency of 3 ms.
    assert_eq!(cells[..7], ["all", "4,000", "1,818", "1.00", "ms", "3.00", "ms"], "{text}");
    assert!(uncorrected.contains("500 µs") && text.contains("latency since sent"), "{text}");

    let (code, text, _) = merge(&["--json"], &logs);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &report["schema"], &report["schema_version"]),
        (Some(0), &"anello-load-merge".into(), &2.into())
    );
    assert_eq!((&report["tags"][0]["tag"], &report["tags"][1]["tag"]), (&Value::Null, &"uncorrected".into()));
    assert_eq!(
        (&report["tags"][0]["requests"], &report["tags"][0]["elapsed_ns"]),
        (&4000.into(), &2_200_000_000u64.into())
    );
    assert_eq!(report["tags"][0]["by_log"][1]["requests"], 2000);
    assert_eq!(
        (&report["all_tags"], &report["tags"][0]["start_unix_ns"]),
        (&Value::Null, &START_UNIX_NS.into())
    );

    let (code, text, _) = merge(&["--csv"], &logs);
    let kinds: Vec<&str> = text.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(code, Some(0));
    assert_eq!(
        kinds,
        ["row", "interval", "interval", "interval", "interval", "log", "log", "log", "log", "total", "total"]
    );
    assert!(text.contains("other, \"\"too\"\".hlog\",uncorrected,"), "{text}");

    let sum = directory.path().join("sum.hlog");
    let (code, ..) = merge(&["--hdr", sum.to_str().unwrap()], &logs);
    let log = HdrLog::parse(&fs::read(&sum).unwrap()).unwrap();
    assert_eq!((code, log.records.len()), (Some(0), 4));
    assert!(log.records.iter().all(|record| record.histogram().unwrap().len() == 2000));
    assert_eq!((log.start_ns(), log.end_ns()), (Some(START_UNIX_NS), Some(START_UNIX_NS + 2_200_000_000)));
}

#[test]
fn all_tags_are_summed_and_time_gap_gives_warning() {
    let directory = tempfile::tempdir().unwrap();
    let mut histogram = Histogram::<u64>::new(3).unwrap();
    histogram.record_n(5_000, 10).unwrap();
    let path = |name: &str, tag: &str, start_ns: u64| {
        let mut writer = HdrLogWriter::new(Vec::new(), start_ns, &[]).unwrap();
        writer.write_histogram(Some(tag), 0, SECOND_NS, &histogram).unwrap();
        fs::write(directory.path().join(name), writer.into_inner()).unwrap();
        directory.path().join(name)
    };
    let (read, write) = (path("a", "read", START_UNIX_NS), path("b", "write", START_UNIX_NS + 5 * SECOND_NS));
    let (code, text, error) = merge(&[], &[&read, &write]);
    assert_eq!(code, Some(0));
    let all = text.lines().find(|line| line.starts_with("all tags")).unwrap();
    assert!(all.contains(" 20 "), "{text}");
    assert!(error.contains(" ends before "), "{error}");
}

#[test]
fn errors_are_summed_and_exit_1_unless_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let with_errors = |name: &str, counts: &str| {
        let path = write_log(directory.path(), name, 0, 1_000_000);
        let errors = format!("#[AnelloErrors: {counts}]\n").into_bytes();
        fs::write(&path, [fs::read(&path).unwrap(), errors].concat()).unwrap();
        path
    };
    let silent = write_log(directory.path(), "silent.hlog", 0, 1_000_000);
    let none = with_errors("none.hlog", "none");
    let some = with_errors("some.hlog", "reset=3");
    let more = with_errors("more.hlog", "reset=1200;timeout=1");

    let (code, text, error) = merge(&[], &[&none, &none]);
    assert_eq!((code, error.as_str(), text.lines().last()), (Some(0), "", Some("errors          none")));
    let (code, text, _) = merge(&[], &[&none, &silent]);
    let last = text.lines().last().unwrap();
    assert!(code == Some(0) && last.starts_with("errors unknown") && last.contains("silent.hlog"), "{text}");
    assert!(!last.contains("none.hlog"), "{text}");

    let bad: [&Path; 4] = [&none, &some, &more, &silent];
    let (code, text, _) = merge(&[], &bad);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("ERRORS")).collect();
    let [resets, timeouts] = lines[..] else { panic!("{text}") };
    assert!(resets.contains(" 1,203 × connection reset: 3 in ") && resets.contains(", 1,200 in "), "{text}");
    assert!(timeouts.contains(" 1 × reply timeout: 1 in ") && text.contains("errors unknown"), "{text}");
    assert_eq!(code, Some(1));
    assert_eq!(merge(&["--allow-errors=reset"], &bad).0, Some(1));
    assert_eq!(merge(&["--allow-errors=reset,timeout"], &bad).0, Some(0));
    assert_eq!(merge(&["--allow-errors"], &bad).0, Some(0));

    let (code, text, error) = merge(&["--csv"], &bad);
    assert!(
        code == Some(1) && !text.contains("ERRORS") && error.contains("1,203 × connection reset"),
        "{error}"
    );
    let (code, text, error) = merge(&["--json"], &bad);
    assert_eq!((code, error.as_str()), (Some(1), ""));
    let report: Value = serde_json::from_str(&text).unwrap();
    let counts = serde_json::json!([{"kind": "reset", "count": 1203}, {"kind": "timeout", "count": 1}]);
    assert_eq!(report["errors"], counts, "{text}");
    let by_log: Vec<&Value> =
        report["errors_by_log"].as_array().unwrap().iter().map(|log| &log["errors"]).collect();
    assert_eq!((by_log[0].as_array().map(Vec::len), by_log[1][0]["count"].as_u64()), (Some(0), Some(3)));
    assert_eq!((by_log[2].as_array().map(Vec::len), by_log[3]), (Some(2), &Value::Null));
    let whole: Vec<&Value> =
        report["errors_by_log"].as_array().unwrap().iter().map(|log| &log["errors_are_complete"]).collect();
    assert_eq!(whole, [true, true, true, false]);
    assert_eq!(report["errors_are_complete"], false);

    // The merged log contains the known errors and marks them as incomplete.
    let sum = directory.path().join("sum.hlog");
    assert_eq!(merge(&["--hdr", sum.to_str().unwrap()], &bad).0, Some(1));
    let (code, text, _) = merge(&[], &[&sum]);
    assert!(code == Some(1) && text.contains("1,203 × connection reset"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("errors unknown")), "{text}");
}

#[test]
fn log_with_killed_run_has_unknown_errors() {
    let directory = tempfile::tempdir().unwrap();
    let killed = fs::read(write_log(directory.path(), "killed.hlog", 0, 1_000_000)).unwrap();
    let comment = |counts: &str| format!("#[AnelloErrors: {counts}]\n").into_bytes();
    let both = directory.path().join("both.hlog");
    for (counts, expected) in [("none", 0), ("reset=3", 1)] {
        fs::write(&both, [&killed[..], &killed, &comment(counts)].concat()).unwrap();
        let (code, text, _) = merge(&[], &[&both]);
        let last = text.lines().last().unwrap();
        assert!(code == Some(expected) && last.starts_with("errors unknown"), "{text}");
        assert_eq!(text.contains("ERRORS          3 × connection reset"), expected == 1, "{text}");
        let (_, text, _) = merge(&["--json"], &[&both]);
        let report: Value = serde_json::from_str(&text).unwrap();
        let by_log = &report["errors_by_log"][0];
        assert_eq!(
            (by_log["errors"].is_null(), &by_log["errors_are_complete"]),
            (expected == 0, &false.into())
        );
    }
}

#[test]
fn runs_without_responses_exit_1() {
    let directory = tempfile::tempdir().unwrap();
    let log = |name: &str, seconds: u64| {
        let mut writer = HdrLogWriter::new(Vec::new(), START_UNIX_NS, &[]).unwrap();
        let histogram = Histogram::<u64>::new(3).unwrap();
        for second in 0..seconds {
            writer.write_histogram(None, second * SECOND_NS, (second + 1) * SECOND_NS, &histogram).unwrap();
        }
        writer.write_errors(&Errors::default()).unwrap();
        fs::write(directory.path().join(name), writer.into_inner()).unwrap();
        directory.path().join(name)
    };
    let idle = log("idle.hlog", 2);
    for arguments in [&[][..], &["--json"], &["--csv"], &["--allow-errors"]] {
        let (code, text, error) = merge(arguments, &[&idle]);
        assert!(code == Some(1) && error.contains("no responses"), "{text}{error}");
    }
    let good = write_log(directory.path(), "good.hlog", 0, 1_000_000);
    let (code, _, error) = merge(&[], &[&idle, &good]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    // Even if errors are allowed, the exit code is 1 for a run without responses.
    fs::write(&idle, "#[AnelloErrors: refused=3]\n").unwrap();
    let (code, _, error) = merge(&["--allow-errors"], &[&idle]);
    assert!(code == Some(1) && error.contains("no responses"), "{error}");
    let (code, _, error) = merge(&[], &[&good, &log("empty.hlog", 0)]);
    assert!(code == Some(1) && error.contains("empty.hlog: no intervals"), "{error}");
}

#[test]
fn log_of_failed_run_contains_errors() {
    // The socket is bound, so that no other process can use the port, but it does not listen.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("run.hlog");
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["load", "tcp", &address, "-c", "3", "-d", "10m", "--hdr"]).arg(&log);
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    let good = write_log(directory.path(), "good.hlog", 0, 1_000_000);
    for logs in [&[&*log][..], &[&log, &good]] {
        let (code, text, error) = merge(&[], logs);
        assert_eq!((code, error.as_str()), (Some(1), ""), "{text}");
        assert!(text.contains("ERRORS          3 × connection refused"), "{text}");
    }
}

#[test]
fn unreadable_logs_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_log(directory.path(), "good.hlog", 0, 1_000_000);
    let file = |name: &str, text: &str| {
        fs::write(directory.path().join(name), text).unwrap();
        directory.path().join(name)
    };
    let cases = [
        (directory.path().join("missing"), "missing: "),
        (file("empty", ""), "empty: no intervals"),
        (file("text", "#\nhello\n"), "text: line 2: expected 4 columns"),
        (file("histogram", "1.0,1.0,1.0,AAAA\n"), "histogram, line 1: "),
    ];
    for (path, expected) in cases {
        let (code, text, error) = merge(&[], &[&good, &path]);
        assert_eq!((code, text.as_str()), (Some(1), ""), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let before = fs::read(&good).unwrap();
    let (code, _, error) = merge(&["--hdr", good.to_str().unwrap()], &[&good]);
    assert!(code == Some(2) && error.contains("is one of the logs to merge"), "{error}");
    assert_eq!(fs::read(&good).unwrap(), before);
    assert_eq!(merge(&[], &[]).0, Some(2));
    assert_eq!(merge(&["--json", "--csv"], &[&good]).0, Some(2));
}
