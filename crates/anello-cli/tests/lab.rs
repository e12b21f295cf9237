//! `anello lab run` as a command, with real servers.

use std::fs;
use std::process::{Command, Output};

use anello_lab::LabResult;
use anello_lab::result::Outcome;

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["lab", "run"]).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

#[test]
fn the_smoke_run_compares_all_servers_and_writes_its_reports() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let broken = "broken=/nonexistent/server --addr 127.0.0.1:0";
    let arguments =
        ["--smoke", "--rounds", "2", "--seed", "7", "--with", broken, "--out", out.to_str().unwrap()];
    let Output { status, stdout, stderr } = lab(&arguments).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("bare epoll") && stdout.contains("20 connections, 128 bytes"), "{stdout}");
    let mut extensions: Vec<String> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .inspect(|path| {
            assert!(stdout.contains(path.to_str().unwrap()) || path.extension().unwrap() == "txt")
        })
        .map(|path| path.extension().unwrap().to_str().unwrap().to_owned())
        .collect();
    extensions.sort();
    assert_eq!(extensions, ["html", "json", "txt"]);
    let json = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let json = json.filter(|path| path.extension().unwrap() == "json").last().unwrap();
    let result: LabResult = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((result.plan.seed, result.plan.rounds, result.interrupted), (7, 2, false));
    assert!(
        result.plan.repeat_command.starts_with("anello lab run --smoke --rounds 2 --seed 7 --with 'broken")
    );
    assert!(!result.plan.repeat_command.contains("--out"), "{}", result.plan.repeat_command);
    assert!(result.notes.iter().any(|note| note.contains("epoll driver")), "{:?}", result.notes);
    assert_eq!(result.cells.len(), 2);
    for row in result.cells.iter().flat_map(|cell| &cell.rows) {
        let uring_is_forbidden =
            row.contender.contains("io_uring") && matches!(row.outcome, Outcome::Skipped(_));
        match row.contender.as_str() {
            "broken" => assert!(matches!(&row.outcome, Outcome::Skipped(_)), "{row:?}"),
            // On a machine that steals all the time no slice may be clean.
            _ => assert!(
                matches!(row.outcome, Outcome::Measured | Outcome::NotMeasured) || uring_is_forbidden,
                "{row:?}"
            ),
        }
    }
}

#[test]
fn a_lab_that_makes_no_sense_is_refused() {
    let Output { status, stderr, .. } = lab(&["--smoke"]).env("ANELLO_DRIVER", "epoll").output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stderr).contains("unset"));
    for wrong in
        [["--with", "tokio"], ["--seed", "x"], ["--time", "5"], ["--connections", "1,x"], ["--rounds", "0"]]
    {
        assert_eq!(lab(&wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
}
