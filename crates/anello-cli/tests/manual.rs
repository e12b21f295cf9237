//! Tests of `anello man` and `anello completions`.

use std::fs;
use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

fn anello(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anello")).args(arguments).output().expect("runs")
}

/// Returns the standard error of a program that reads `text` on its standard input; `None` if it is not installed.
fn checker_output(program: &str, arguments: &[&str], text: &[u8]) -> Option<String> {
    let piped = Stdio::piped;
    let started =
        Command::new(program).args(arguments).stdin(piped()).stdout(piped()).stderr(piped()).spawn();
    let mut child = match started {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("{program}: skipped: not installed");
            return None;
        }
        other => other.expect("starts"),
    };
    child.stdin.take().expect("piped").write_all(text).expect("reads its input");
    let output = child.wait_with_output().expect("exits");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn printed_page_equals_written_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("share/man1");
    let written = anello(&["man", "--out", out.to_str().expect("text")]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let mut pages = 0;
    for entry in fs::read_dir(&out).expect("a directory") {
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
    let unknown = anello(&["man", "lab", "walk"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("unknown command \"lab walk\""));
}

#[test]
fn completion_scripts_pass_shell_syntax_check() {
    for shell in ["bash", "zsh", "fish"] {
        let output = anello(&["completions", shell]);
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
        checker_output(shell, &["-n"], &output.stdout);
    }
    assert_eq!(anello(&["completions", "cmd"]).status.code(), Some(2));
}
