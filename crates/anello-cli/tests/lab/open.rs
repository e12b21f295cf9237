//! Tests for `anello lab open`, run as a child process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::write_script;

fn open(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["lab", "open"]).args(arguments).current_dir(directory).stdout(Stdio::piped());
    command
}

/// Starts the command. Returns the process and the address that it prints.
fn start(mut command: Command) -> (Child, String) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.unwrap_or_else(|| panic!("no URL in {line:?}")).to_owned();
    (child, address)
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn stop(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn last_report_is_served_on_loopback_and_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("anello-lab")).unwrap();
    for (name, text) in [
        ("lab-20260102T030405Z.html", "<p>first"),
        ("lab-20260203T040506Z.html", "<p>last"),
        ("lab-20260303T040506Z.json", "{}"),
        ("other.html", "<p>other"),
    ] {
        fs::write(path("anello-lab").join(name), text).unwrap();
    }
    // Stands for the browser: writes the URL to a pipe, so that the test can wait for it.
    write_script(&path("xdg-open"), &format!("#!/bin/sh\necho \"$1\" >{}\n", path("url").display()));
    assert!(Command::new("mkfifo").arg(path("url")).status().unwrap().success());
    let mut command = open(directory.path(), &[]);
    command.env("PATH", format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap()));
    let (child, address) = start(command);
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert_eq!(fs::read_to_string(path("url")).unwrap(), format!("http://{address}/\n"));
    let response = get(&address, "/");
    assert!(response.contains("200 OK") && response.contains("text/html"), "{response}");
    assert!(response.ends_with("<p>last"), "{response}");
    assert!(get(&address, "/lab-20260102T030405Z.html").contains("404"));
    stop(child, Signal::INT);
}

#[test]
fn named_report_is_served_without_browser() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("mine.html"), "<p>mine").unwrap();
    let (child, address) = start(open(directory.path(), &["mine.html", "--no-browser"]));
    assert!(get(&address, "/").ends_with("<p>mine"));
    stop(child, Signal::TERM);
    // Without xdg-open, the URL is still printed.
    let mut command = open(directory.path(), &["mine.html"]);
    command.env("PATH", "");
    let (child, address) = start(command);
    assert!(get(&address, "/").ends_with("<p>mine"));
    stop(child, Signal::INT);
}

#[test]
fn missing_report_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["--no-browser"][..], "cannot read anello-lab"),
        (&["--no-browser", "--out", "."], "no report in ."),
        (&["--no-browser", "none.html"], "cannot read none.html"),
    ] {
        let output = open(directory.path(), arguments).stderr(Stdio::piped()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(expected), "{error}");
    }
}
