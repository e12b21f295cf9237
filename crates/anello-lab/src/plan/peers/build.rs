//! Building a peer, and checking whether it is up to date. A build runs the commands of the manifest in order.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::plan::peers::manifest::Manifest;
use crate::plan::peers::origin::Origin;
use crate::plan::peers::toolchains::Toolchains;

/// Directories that tools create within a peer's directory. They contain no sources.
const NO_SOURCES: [&str; 4] = ["target", "build", "node_modules", ".git"];

/// Number of log lines that are reported when a build fails.
const LAST_LINES: usize = 8;

/// A peer: its manifest and its directories.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Parsed `peer.toml`.
    pub manifest: Manifest,
    /// Absolute path of the directory with `peer.toml` and the sources.
    pub folder: PathBuf,
    /// Absolute path of the output directory, which need not exist.
    pub out: PathBuf,
}

/// Record of a finished build: the content of `built.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// Name of the peer.
    pub peer: String,
    /// Library that the peer demonstrates.
    pub library: String,
    /// Version of the library.
    pub version: String,
    /// Version output of the compiler.
    pub compiler: String,
    /// Build commands.
    pub commands: Vec<String>,
    pub(crate) built_unix_s: u64,
    /// Origin of the library and the server. Empty in records from older versions.
    #[serde(default)]
    pub origin: Origin,
}

/// Build state of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Built and up to date.
    Built(Built),
    /// Built, but a source is newer than the build.
    Outdated(Built),
    /// Not built.
    NotBuilt,
}

/// Outcome of building a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The peer was already up to date.
    UpToDate(Built),
    /// The build succeeded.
    Built(Built),
    /// Required programs are not on `PATH`. Nothing was built.
    Missing(Vec<String>),
    /// The build failed.
    Failed {
        /// Description of the failure.
        why: String,
        /// Last lines of the log.
        last_lines: Vec<String>,
        /// Path of the log.
        log: PathBuf,
    },
}

impl Peer {
    pub(super) fn expand(&self, word: &str) -> String {
        word.replace("{out}", &self.out.to_string_lossy()).replace("{peer}", &self.folder.to_string_lossy())
    }

    /// Returns the toolchain programs that are not found.
    pub fn missing_programs(&self, toolchains: &Toolchains) -> Vec<String> {
        let missing = |program: &&String| toolchains.locate(program).is_none();
        self.manifest.toolchain.iter().filter(missing).cloned().collect()
    }

    /// Returns the build state. Runs no commands, so a changed compiler is not detected.
    pub fn state(&self) -> State {
        let record = self.out.join("built.json");
        let read = || -> io::Result<(Built, SystemTime)> {
            let built = serde_json::from_slice(&fs::read(&record)?)?;
            Ok((built, fs::metadata(&record)?.modified()?))
        };
        match read() {
            Ok((built, modified)) if self.missing_parts().is_empty() => {
                let is_current = self.newest_source().is_ok_and(|newest| newest <= modified);
                if is_current { State::Built(built) } else { State::Outdated(built) }
            }
            _ => State::NotBuilt,
        }
    }

    /// Builds the peer unless it is up to date and was built by the same compiler. With `force`, always builds it. May
    /// take minutes and may download the dependencies in the lock file.
    pub fn build(&self, toolchains: &Toolchains, force: bool) -> Outcome {
        let programs = self.missing_programs(toolchains);
        if !programs.is_empty() {
            return Outcome::Missing(programs);
        }
        let log = self.out.join("build.log");
        let build = || {
            let compiler = toolchains.first_line(&self.manifest.compiler, &self.folder)?;
            match self.state() {
                State::Built(built) if !force && built.compiler == compiler => Ok(Outcome::UpToDate(built)),
                _ => self.run_build(toolchains, compiler, &log).map(Outcome::Built),
            }
        };
        build().unwrap_or_else(|error: io::Error| {
            let last_lines = last_lines(&log);
            Outcome::Failed { why: error.to_string(), last_lines, log }
        })
    }

    fn run_build(&self, toolchains: &Toolchains, compiler: String, log: &Path) -> io::Result<Built> {
        let record = self.out.join("built.json");
        let prepare = || {
            fs::create_dir_all(&self.out)?;
            // From here until all steps have succeeded, the peer counts as not built.
            match fs::remove_file(&record) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => File::create(log),
            }
        };
        let mut file = in_context(self.out.display(), prepare())?;
        // Sources that change during the build count as newer than the build.
        let start = SystemTime::now();
        let mut commands = Vec::new();
        for words in &self.manifest.build {
            let words: Vec<String> = words.iter().map(|word| self.expand(word)).collect();
            commands.push(words.join(" "));
            in_context(words.join(" "), self.run_command(toolchains, &words, &mut file))?;
        }
        if let [missing, ..] = self.missing_parts().as_slice() {
            return Err(io::Error::other(format!("build succeeded but did not create {missing}")));
        }
        let version = match &self.manifest.version {
            Some(version) => version.clone(),
            None => toolchains.first_line(&self.manifest.version_command, &self.folder)?,
        };
        let further = self.manifest.sources.iter().map(Path::new);
        let sources: Vec<&Path> = [self.folder.as_path()].into_iter().chain(further).collect();
        let built = Built {
            peer: self.manifest.name.clone(),
            library: self.manifest.library.clone(),
            origin: Origin::current(&self.folder, &self.manifest.library, &version, &sources),
            version,
            compiler,
            commands,
            built_unix_s: start.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        };
        in_context(record.display(), write_record(&record, &built, start))?;
        Ok(built)
    }

    fn run_command(&self, toolchains: &Toolchains, words: &[String], log: &mut File) -> io::Result<()> {
        writeln!(log, "$ {}", words.join(" "))?;
        let mut command = toolchains.command(words, &self.folder)?;
        match command.stdout(log.try_clone()?).stderr(log.try_clone()?).status()? {
            status if status.success() => Ok(()),
            status => Err(io::Error::other(format!("failed with {status}"))),
        }
    }

    /// Returns the paths in the program command that refer to missing build results.
    fn missing_parts(&self) -> Vec<String> {
        let program = self.manifest.program.iter().enumerate();
        let files = program.filter(|(index, word)| *index == 0 || word.starts_with("{out}"));
        files.map(|(_, word)| self.expand(word)).filter(|file| !Path::new(file).is_file()).collect()
    }

    fn newest_source(&self) -> io::Result<SystemTime> {
        let further =
            self.manifest.sources.iter().map(|directory| newest_below(&self.folder.join(directory)));
        further.chain([newest_below(&self.folder)]).try_fold(UNIX_EPOCH, |newest, time| Ok(newest.max(time?)))
    }
}

fn newest_below(directory: &Path) -> io::Result<SystemTime> {
    let mut newest = UNIX_EPOCH;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && !NO_SOURCES.iter().any(|name| entry.file_name() == *name) {
            newest = newest.max(newest_below(&entry.path())?);
        } else if kind.is_file() {
            newest = newest.max(entry.metadata()?.modified()?);
        }
    }
    Ok(newest)
}

/// Writes the record atomically. Its modification time is the start of the build.
fn write_record(record: &Path, built: &Built, start: SystemTime) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(built)?;
    text.push('\n');
    let temporary = record.with_extension("temporary");
    let mut file = File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.set_modified(start)?;
    fs::rename(temporary, record)
}

/// Adds context to an error message.
pub(super) fn in_context<T>(context: impl Display, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{context}: {error}")))
}

fn last_lines(log: &Path) -> Vec<String> {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|&line| line.to_owned()).collect()
}
