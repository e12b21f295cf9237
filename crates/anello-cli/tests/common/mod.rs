//! Helpers of all test programs of this crate.

#![allow(dead_code, reason = "each test program uses a different subset")]

pub mod pty;
pub mod served;
pub mod tls;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the command `anello` with these arguments. The driver is that of the flags.
pub fn anello(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(arguments).env_remove("ANELLO_DRIVER");
    command
}

/// Writes an executable script.
///
/// Another process writes it: a thread of this process that starts a child at the same time would leave the child with
/// a copy of the open file, and a file that is open for writing cannot be executed (`ETXTBSY`).
pub fn write_script(path: &Path, text: &str) {
    let mut command = Command::new("install");
    command.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = command.spawn().expect("start install");
    child.stdin.take().expect("piped stdin").write_all(text.as_bytes()).expect("write script");
    assert!(child.wait().expect("wait for install").success(), "cannot write {}", path.display());
}
