//! Identification of a contender's program by the SHA-256 of each file.
//!
//! A command refers to its program by a path, and every build replaces the file at that path. The hash of the file,
//! in the format of `sha256sum`, shows whether a program is the one that was measured.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::plan::contender::Contender;
use crate::plan::peers::Toolchains;

/// File extensions of arguments that are programs for an interpreter.
const INTERPRETED: [&str; 9] = ["jar", "war", "js", "mjs", "py", "rb", "pl", "lua", "sh"];

/// Number of hexadecimal digits in the short form of a hash.
const SHORT_DIGITS: usize = 12;

/// A file of a contender's program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    /// File name without directories.
    pub file: String,
    /// SHA-256 of the file in 64 hexadecimal digits.
    pub sha256: String,
}

impl Executable {
    /// Returns the short form of the hash, for display.
    pub fn short(&self) -> &str {
        self.sha256.get(..SHORT_DIGITS).unwrap_or(&self.sha256)
    }
}

/// Cache of file hashes. Reads a file only once even if several contenders use it.
#[derive(Debug)]
pub(crate) struct Hashes {
    programs: Toolchains,
    known: HashMap<PathBuf, Option<String>>,
}

impl Hashes {
    /// Creates an empty cache. Programs without a directory are searched for in the `PATH` of this process.
    pub(crate) fn new() -> Hashes {
        Hashes { programs: Toolchains::from_environment(), known: HashMap::new() }
    }

    /// Returns the hashes of a contender's program and of the interpreter scripts among its arguments. Unreadable
    /// files are omitted; the error is reported when the contender is started.
    pub(crate) fn of(&mut self, contender: &Contender) -> Vec<Executable> {
        let name = contender.program.to_string_lossy();
        let program =
            if name.contains('/') { Some(contender.program.clone()) } else { self.programs.locate(&name) };
        let is_program = |path: &&Path| {
            path.extension().and_then(OsStr::to_str).is_some_and(|extension| INTERPRETED.contains(&extension))
        };
        let scripts = contender.arguments.iter().map(Path::new).filter(is_program).map(Path::to_owned);
        program.into_iter().chain(scripts).filter_map(|path| self.of_file(&path)).collect()
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
    fn hashes_program_and_interpreter_scripts() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("start"), "abc").unwrap();
        fs::write(path("server.jar"), "").unwrap();
        fs::write(path("data"), "not a program").unwrap();
        let (start, jar, data) = (path("start"), path("server.jar"), path("data"));
        let arguments = ["--file", &data, &jar, "absent.py"];
        let executables = Hashes::new().of(&Contender::new("one", Path::new(&start), &arguments));
        let names: Vec<&str> = executables.iter().map(|executable| executable.file.as_str()).collect();
        assert_eq!(names, ["start", "server.jar"]);
        // SHA-256 test vectors.
        assert_eq!(executables[0].sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(executables[1].short(), "e3b0c44298fc");
    }

    #[test]
    fn program_without_directory_is_found_in_path() {
        let mut hashes = Hashes::new();
        let by_name = hashes.of(&Contender::new("shell", Path::new("sh"), &[]));
        assert_eq!(by_name[0].sha256.len(), 64);
        assert_eq!(hashes.of(&Contender::new("none", Path::new("no-such-program-here"), &[])), []);
    }
}
