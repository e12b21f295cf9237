//! `anello man` and `anello completions` as packagers call them.

use std::fs;
use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

fn anello(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anello")).args(arguments).output().expect("runs")
}

/// What a program says of a text on its standard input; none where there is no such program.
fn checker_output(program: &str, arguments: &[&str], text: &[u8]) -> Option<String> {
    let piped = Stdio::piped;
    let started =
        Command::new(program).args(arguments).stdin(piped()).stdout(piped()).stderr(piped()).spawn();
    let mut child = match started {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("{program}: skipped: it is not here");
            return None;
        }
        other => other.expect("starts"),
    };
    child.stdin.take().expect("its input").write_all(text).expect("takes it");
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn pages_are_printed_one_by_one_or_written_all_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("share/man1");
    let written = anello(&["man", "--out", out.to_str().expect("text")]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let mut pages = 0;
    for entry in fs::read_dir(&out).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("text").to_owned();
        let page = fs::read(&path).expect("a page");
        if name == "anello" || name == "anello-http" {
            let words: Vec<&str> = name.split('-').skip(1).collect();
            assert_eq!(anello(&[&["man"], &words[..]].concat()).stdout, page, "{name}");
        }
        if let Some(warnings) = checker_output("groff", &["-man", "-Kutf8", "-Tutf8", "-ww", "-z"], &page) {
            assert_eq!(warnings, "", "{name}");
        }
        pages += 1;
    }
    assert!(pages > 10, "{pages}");
    let wrong = anello(&["man", "lab", "walk"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("there is no command \"lab walk\""));
}

#[test]
fn completions_are_scripts_that_their_shells_can_read() {
    for shell in ["bash", "zsh", "fish"] {
        let output = anello(&["completions", shell]);
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
        checker_output(shell, &["-n"], &output.stdout);
    }
    assert_eq!(anello(&["completions", "cmd"]).status.code(), Some(2));
}
