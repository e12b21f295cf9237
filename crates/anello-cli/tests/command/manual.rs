//! Tests for `anello man` and `anello completions`.

use std::fs;
use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

fn anello(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anello")).args(arguments).output().expect("runs")
}

/// Runs a program with `text` as standard input. Returns its standard error, or `None` if the program is missing.
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

fn stdout(arguments: &[&str]) -> String {
    let output = anello(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the words after `anello` of each visible command, according to the help texts.
fn commands() -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut next = 0;
    while let Some(command) = commands.get(next).cloned() {
        let help = stdout(&[&words(&command)[..], &["-h"]].concat());
        let listed = help.split("Commands:\n").nth(1).unwrap_or_default();
        let names = listed.lines().map_while(|line| line.strip_prefix("  ")?.split(' ').next());
        let names = names.filter(|name| !name.is_empty() && *name != "help");
        commands.extend(names.map(|name| [&command[..], &[name.to_owned()]].concat()));
        next += 1;
    }
    commands
}

fn words(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

#[test]
fn visible_commands_have_pages() {
    let directory = tempfile::tempdir().expect("a directory");
    stdout(&["man", "--out", directory.path().to_str().expect("text")]);
    let mut expected: Vec<String> = commands()
        .iter()
        .map(|command| [&["anello"], &words(command)[..]].concat().join("-") + ".1")
        .collect();
    let entries = fs::read_dir(directory.path()).expect("a directory");
    let mut file_names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    expected.sort();
    file_names.sort();
    assert_eq!(file_names, expected);
    assert!(file_names.contains(&"anello-lab-peers-build.1".to_owned()), "{file_names:?}");
    for file_name in file_names {
        let text = fs::read_to_string(directory.path().join(&file_name)).expect("a page");
        let title = file_name.trim_end_matches(".1");
        assert!(text.contains(&format!(".TH {title} 1")) && text.contains(".SH SYNOPSIS"), "{text}");
    }
}

#[test]
fn page_lists_all_flags_of_its_command() {
    let page = stdout(&["man", "http"]);
    let help = stdout(&["http", "--help"]);
    let flags = help.lines().filter_map(|line| {
        line.trim_start().split("--").nth(1).filter(|_| line.trim_start().starts_with('-'))
    });
    let flags: Vec<&str> = flags.filter_map(|flag| flag.split([' ', '=', '[']).next()).collect();
    assert!(flags.len() > 50, "{flags:?}");
    for flag in flags {
        let flag = format!("\\-\\-{}", flag.replace('-', "\\-"));
        assert!(page.contains(&flag), "{flag}");
    }
}

#[test]
fn completion_script_of_each_shell_contains_all_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&["completions", shell]);
        for name in commands().iter().flatten() {
            assert!(script.contains(name.as_str()), "{shell} {name}");
        }
        assert!(script.contains("keep-alive-timeout"), "{shell}");
    }
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
    assert_eq!(unknown.status.code(), Some(2));
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
