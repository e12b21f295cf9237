//! Tests for `anello bare`, run as a child process: the ready line, an echoed message, and error messages.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;

use anello_lab::{Resources, preset, resolve};

use crate::common::anello;
use crate::common::served::{Served, connect};

fn command(arguments: &[&str]) -> Command {
    anello(&[&["bare"], arguments, &["--addr", "127.0.0.1:0"]].concat())
}

#[test]
fn servers_report_their_model_and_echo() {
    let mut cases = vec![
        (vec!["epoll"], "model=epoll"),
        (vec!["epoll", "--spin", "10us"], "model=epoll"),
        (vec!["poll"], "model=poll"),
        (vec!["select"], "model=select"),
        (vec!["threads"], "model=threads"),
    ];
    let uring = anello_bare::check(anello_bare::Model::Uring, &anello_bare::Options::default());
    match &uring {
        Ok(flags) => {
            cases.extend([
                (vec!["uring"], "model=uring"),
                (vec!["uring"], flags.as_deref().expect("io_uring has flags")),
                (vec!["uring", "--configurable"], "features=deferred,multishot-receive,buffer-ring"),
                (
                    vec!["uring", "--per-connection-buffers", "--rings", "2"],
                    "own-buffers,sends-at-submission,rings=2",
                ),
            ]);
            let words = |line: &'static str| ["uring"].into_iter().chain(line.split_whitespace()).collect();
            cases.extend(VARIANTS.iter().map(|(line, _)| (words(line), "model=uring")));
        }
        Err(error) => println!("uring: skipped: {error}"),
    }
    for (arguments, part) in cases {
        let server = Served::spawn(command(&arguments));
        assert!(server.ready.starts_with("anello bare ready addr="), "{arguments:?}: {}", server.ready);
        assert!(server.ready.contains(part), "{arguments:?}: {}", server.ready);
        let mut stream = connect(server.address());
        stream.write_all(b"there and back").expect("sends");
        let mut echoed = [0; 14];
        stream.read_exact(&mut echoed).expect("echoes");
        assert_eq!(&echoed, b"there and back", "{arguments:?}");
    }
}

#[test]
fn disk_worker_runs_command_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("blocks");
    let path = path.to_str().expect("a path in UTF-8");
    let arguments = ["disk", "--engine", "pread", "--file", path, "--create-bytes", "1048576"];
    let worker = Served::spawn(command(&arguments));
    assert!(worker.ready.contains(" engine=pread file_bytes=1048576 "), "{}", worker.ready);
    let mut stream = connect(worker.address());
    let line =
        r#"{"operation":"random_write","direct":false,"block_bytes":4096,"depth":4,"duration_ns":1000000}"#;
    stream.write_all(format!("{line}\n").as_bytes()).expect("sends");
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).expect("replies");
    let reply: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
    assert!(reply["operations"].as_u64() > Some(0), "{reply}");
    assert_eq!(reply["errors"], serde_json::json!([]));
}

#[test]
fn errors_name_the_cause() {
    let invalid: [(i32, &[&str], &str); 12] = [
        (2, &["kqueue"], "kqueue"),
        (2, &["epoll", "--fast"], "--fast"),
        (2, &["uring", "--rings"], "--rings"),
        (2, &["uring", "--task-work", "late"], "deferred-once"),
        (2, &["uring", "--spin", "5"], "missing unit"),
        (2, &["uring", "--spin", "1.5s"], "at most 1s"),
        (2, &["uring", "--sqpoll", "100", "--task-work", "deferred"], "DEFER_TASKRUN"),
        (2, &["uring", "--bundles", "--forced-async"], "order"),
        (2, &["uring", "--sqpoll", "100", "--sqpoll-core", "first"], "last"),
        (1, &["disk", "--engine", "pread", "--file", "/nowhere/blocks"], "create it with --create-bytes"),
        (
            2,
            &["disk", "--engine", "pread", "--file", "blocks", "--create-bytes", "1000"],
            "a multiple of 4096",
        ),
        (2, &["disk", "--engine", "mmap", "--file", "blocks"], "linux-aio"),
    ];
    for (code, arguments, part) in invalid {
        let output = command(arguments).output().expect("runs");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}

/// Pairs of option sets that the lab compares. The two sets of a pair differ in only one option.
const VARIANTS: [(&str, &str); 17] = [
    ("--task-work deferred-once", "--configurable"),
    ("--task-work cooperative", "--configurable"),
    ("--task-work interrupting", "--configurable"),
    ("--sqpoll 5", "--completion-per-send"),
    ("--sqpoll 5 --sqpoll-core last", "--sqpoll 5"),
    ("--one-shot-receive", "--configurable"),
    ("--per-connection-buffers", "--one-shot-receive"),
    ("--registered-files", "--configurable"),
    ("--linked-timeout 60s", "--one-shot-receive"),
    ("--bundles", "--configurable"),
    ("--completion-per-send", "--configurable"),
    ("--forced-async", "--completion-per-send"),
    ("--zero-copy-sends", "--completion-per-send"),
    ("--spin 50us", "--configurable"),
    ("--rings 2", "--configurable"),
    ("--rings 2 --forced-async", "--forced-async"),
    ("--rings 2 --forced-async --shared-workers", "--rings 2 --forced-async"),
];

#[test]
fn options_preset_compares_variants_with_their_baselines() {
    let resources = Resources {
        cores: vec![0, 1, 2],
        siblings: vec![vec![0], vec![1], vec![2]],
        ..Resources::of_this_machine("anello".into(), "unused".into())
    };
    let text = preset("options").expect("the preset exists");
    let config = resolve("options", text, &resources).expect("three cores are enough");
    let contender = |arguments: &str| {
        let words = ["bare", "uring"].into_iter().chain(arguments.split_whitespace());
        // The lab assigns the polling thread a core that neither the servers nor the load generator uses.
        let words = words.map(|word| if word == "last" { "2" } else { word });
        let words: Vec<&str> = words.chain(["--addr", "127.0.0.1:0"]).collect();
        let contender = config.contenders.iter().find(|contender| contender.arguments == words);
        contender.unwrap_or_else(|| panic!("not in the preset: {words:?}"))
    };
    assert_eq!(contender("--configurable").base, None);
    for (arguments, base) in VARIANTS {
        assert_eq!(contender(arguments).base.as_ref(), Some(&contender(base).name), "{arguments}");
    }
}
