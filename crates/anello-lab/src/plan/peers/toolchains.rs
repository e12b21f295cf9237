//! Finding and running the programs that build peers.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Search path for the programs that build peers.
#[derive(Debug, Clone)]
pub struct Toolchains {
    path: OsString,
}

impl Toolchains {
    /// Creates a search path from directories separated by colons. Build commands get it as their `PATH`.
    pub fn new(path: &OsStr) -> Toolchains {
        Toolchains { path: path.to_owned() }
    }

    /// Uses the `PATH` of this process.
    pub fn from_environment() -> Toolchains {
        Toolchains { path: std::env::var_os("PATH").unwrap_or_default() }
    }

    pub(crate) fn locate(&self, program: &str) -> Option<PathBuf> {
        let directories =
            std::env::split_paths(&self.path).filter(|directory| !directory.as_os_str().is_empty());
        let is_executable = |file: &PathBuf| {
            fs::metadata(file)
                .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
        };
        directories.map(|directory| directory.join(program)).find(is_executable)
    }

    pub(super) fn command(&self, words: &[String], directory: &Path) -> io::Result<Command> {
        let name = words.first().map_or("", String::as_str);
        let program = if name.contains('/') { Some(directory.join(name)) } else { self.locate(name) };
        let program = program
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not on PATH")))?;
        let mut command = Command::new(program);
        // `cargo run` in the workspace sets RUSTUP_TOOLCHAIN, which would override the peer's toolchain.
        command.args(&words[1..]).current_dir(directory).stdin(Stdio::null());
        command.env("PATH", &self.path).env_remove("RUSTUP_TOOLCHAIN");
        Ok(command)
    }

    /// Returns the first non-empty line of a command's standard output or, if that is empty, standard error.
    pub(super) fn first_line(&self, words: &[String], directory: &Path) -> io::Result<String> {
        let failed = |why: String| io::Error::other(format!("{}: {why}", words.join(" ")));
        let output = self.command(words, directory).and_then(|mut command| command.output());
        let Output { status, stdout, stderr } = output.map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(format!("failed with {status}")));
        }
        let text = [stdout, stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        line.map(str::to_owned).ok_or_else(|| failed("printed nothing".to_owned()))
    }
}
