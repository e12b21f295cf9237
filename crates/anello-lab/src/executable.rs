//! Which program exactly a contender was: the SHA-256 of every file that is its program, and the commit of its sources.
//!
//! A command names its program only by a path, and what stands at a path changes with the next build. The hash is that
//! of the file's bytes, as `sha256sum` prints it, so that anyone can see whether a program is the one that was measured.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::contender::Contender;
use crate::peers::Toolchains;

/// Files with these endings among the arguments are programs, too: what an interpreter is given to run.
const INTERPRETED: [&str; 9] = ["jar", "war", "js", "mjs", "py", "rb", "pl", "lua", "sh"];

/// Hexadecimal digits of a hash that tell programs apart at a glance.
const SHORT_DIGITS: usize = 12;

/// A file of a contender's program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    /// Its name, without folders.
    pub file: String,
    /// The SHA-256 of its bytes, in 64 hexadecimal digits.
    pub sha256: String,
}

impl Executable {
    /// The beginning of the hash, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        self.sha256.get(..SHORT_DIGITS).unwrap_or(&self.sha256)
    }
}

/// The commit that the workspace of `executable` stands at, with "-dirty" where its files were changed since; none if
/// the executable does not stand in the target folder of a workspace under git, or there is no git here.
///
/// It is read when the lab runs, not when the program is built: the hash tells whether two programs are the same, the
/// commit where to look for the sources.
#[must_use]
pub fn workspace_commit(executable: &Path) -> Option<String> {
    // Cargo marks the target folders that it makes.
    let target = executable.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file())?;
    let workspace = target.parent().filter(|folder| folder.join("Cargo.toml").is_file())?;
    let output = Command::new("git")
        .args(["--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
        .current_dir(workspace)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

/// The commit that a version names: a Go module's pseudo-version ends with the time and the first 12 digits of one, as
/// in `v0.0.0-20220926161041-69611e8b13d5`.
#[must_use]
pub fn commit_of_version(version: &str) -> Option<&str> {
    let (rest, commit) = version.rsplit_once('-')?;
    let time = rest.rsplit(['-', '.']).next()?;
    let digits = |text: &str, length: usize, radix: u32| {
        text.len() == length && text.chars().all(|digit| digit.is_digit(radix))
    };
    (digits(commit, 12, 16) && digits(time, 14, 10)).then_some(commit)
}

/// Reads every file once, however many contenders it is the program of.
#[derive(Debug)]
pub(crate) struct Hashes {
    programs: Toolchains,
    known: HashMap<PathBuf, Option<String>>,
}

impl Hashes {
    /// Programs without a folder are looked for where this process would find them.
    pub(crate) fn new() -> Hashes {
        Hashes { programs: Toolchains::from_environment(), known: HashMap::new() }
    }

    /// The program of a contender, and files among its arguments that an interpreter is to run. What cannot be read is
    /// left out: starting it will say why.
    pub(crate) fn of(&mut self, contender: &Contender) -> Vec<Executable> {
        let named = contender.program.to_string_lossy();
        let program =
            if named.contains('/') { Some(contender.program.clone()) } else { self.programs.locate(&named) };
        let is_program = |path: &&Path| {
            path.extension().and_then(OsStr::to_str).is_some_and(|ending| INTERPRETED.contains(&ending))
        };
        let others = contender.arguments.iter().map(Path::new).filter(is_program).map(Path::to_owned);
        program.into_iter().chain(others).filter_map(|path| self.of_file(&path)).collect()
    }

    fn of_file(&mut self, path: &Path) -> Option<Executable> {
        let sha256 = self.known.entry(path.to_owned()).or_insert_with(|| sha256(path).ok()).clone()?;
        let file = path.file_name()?.to_string_lossy().into_owned();
        Some(Executable { file, sha256 })
    }
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_file_of_a_program_has_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("start"), "abc").unwrap();
        fs::write(path("server.jar"), "").unwrap();
        fs::write(path("data"), "not a program").unwrap();
        let (start, jar, data) = (path("start"), path("server.jar"), path("data"));
        let arguments = ["--file", &data, &jar, "absent.py"];
        let executables = Hashes::new().of(&Contender::new("one", Path::new(&start), &arguments));
        let names: Vec<&str> = executables.iter().map(|executable| executable.file.as_str()).collect();
        assert_eq!(names, ["start", "server.jar"]);
        // The examples of the standard.
        assert_eq!(executables[0].sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(executables[1].short(), "e3b0c44298fc");
    }

    #[test]
    fn a_commit_is_that_of_the_workspace_around_the_target_folder() {
        let workspace = tempfile::tempdir().unwrap();
        let target = workspace.path().join("target");
        let program = target.join("release/server");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        assert_eq!(workspace_commit(&program), None, "no target folder");
        fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        assert_eq!(workspace_commit(&program), None, "no workspace");
        fs::write(workspace.path().join("Cargo.toml"), "").unwrap();
        assert_eq!(workspace_commit(&program), None, "not under git");
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=one", "-c", "user.email=one@example.org"];
            let mut command = Command::new("git");
            command.args(identity).args(arguments).current_dir(workspace.path());
            command.output().is_ok_and(|output| output.status.success())
        };
        if !(git(&["init"]) && git(&["add", "Cargo.toml"]) && git(&["commit", "-m", "one"])) {
            return; // Without git there is nothing to find, which was tried above.
        }
        let commit = workspace_commit(&program).unwrap();
        assert!(commit.len() == 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit()), "{commit}");
        fs::write(workspace.path().join("Cargo.toml"), "[workspace]").unwrap();
        assert_eq!(workspace_commit(&program), Some(format!("{commit}-dirty")));
    }

    #[test]
    fn a_pseudo_version_names_a_commit() {
        assert_eq!(commit_of_version("v0.0.0-20220926161041-69611e8b13d5"), Some("69611e8b13d5"));
        assert_eq!(commit_of_version("v1.2.4-0.20220926161041-69611e8b13d5"), Some("69611e8b13d5"));
        for version in ["1.54.1", "4.2.18.Final", "v0.0.0-20220926-69611e8b13d5", "1-2-3", ""] {
            assert_eq!(commit_of_version(version), None, "{version}");
        }
    }

    #[test]
    fn a_program_without_a_folder_is_found_like_a_command() {
        let mut hashes = Hashes::new();
        let by_name = hashes.of(&Contender::new("shell", Path::new("sh"), &[]));
        assert_eq!(by_name[0].sha256.len(), 64);
        assert_eq!(hashes.of(&Contender::new("none", Path::new("no-such-program-here"), &[])), []);
    }
}
