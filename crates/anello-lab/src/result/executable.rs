//! Identification of a contender's program by the SHA-256 of each file.
//!
//! A command refers to its program by a path, and every build replaces the file at that path. The hash of the file,
//! in the format of `sha256sum`, shows whether a program is the one that was measured.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::digest;
use serde::{Deserialize, Serialize};

use crate::plan::contender::Contender;
use crate::plan::peers::Toolchains;

/// File extensions of arguments that are programs for an interpreter.
const INTERPRETED: [&str; 9] = ["jar", "war", "js", "mjs", "py", "rb", "pl", "lua", "sh"];

/// A file of a contender's program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executable {
    /// File name without directories.
    pub file: String,
    /// SHA-256 of the file, as 64 hexadecimal digits.
    pub sha256: String,
}

impl Executable {
    /// Returns the first 12 digits of the hash, for display.
    pub fn short(&self) -> &str {
        self.sha256.get(..12).unwrap_or(&self.sha256)
    }
}

/// Cache of file hashes. Reads a file only once even if several contenders use it.
#[derive(Debug)]
pub(crate) struct Hashes {
    programs: Toolchains,
    known: HashMap<PathBuf, Option<String>>,
}

impl Hashes {
    /// Programs without a directory are searched for in the `PATH` of this process.
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
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 64 << 10]);
    let mut hash = digest::Context::new(&digest::SHA256);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()),
            length => hash.update(&buffer[..length]),
        }
    }
}
