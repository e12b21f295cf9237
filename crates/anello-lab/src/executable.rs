//! Which program exactly a contender was: the SHA-256 of every file that is its program.
//!
//! A command names its program only by a path, and what stands at a path changes with the next build. The hash is that
//! of the file's bytes, as `sha256sum` prints it, so that anyone can see whether a program is the one that was measured.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

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
    fn a_program_without_a_folder_is_found_like_a_command() {
        let mut hashes = Hashes::new();
        let by_name = hashes.of(&Contender::new("shell", Path::new("sh"), &[]));
        assert_eq!(by_name[0].sha256.len(), 64);
        assert_eq!(hashes.of(&Contender::new("none", Path::new("no-such-program-here"), &[])), []);
    }
}
