//! Building a peer, and knowing whether it has to be.
//!
//! A build runs the manifest's commands one after the other; all they say goes to `build.log`. When the last one has
//! succeeded and the program is there, `built.json` tells what was built with what ([`Built`]).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Origin, Peer};

/// Folders in a peer's that hold no sources: what tools leave behind when they are run by hand.
const NO_SOURCES: [&str; 4] = ["target", "build", "node_modules", ".git"];

/// How much of the end of a log is told when a build fails.
const LAST_LINES: usize = 8;

/// Where the programs that build peers are looked for.
#[derive(Debug, Clone)]
pub struct Toolchains {
    path: OsString,
}

/// What a finished build was: the content of `built.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// The peer's name.
    pub peer: String,
    /// The library it stands for.
    pub library: String,
    /// That library's version.
    pub version: String,
    /// What the compiler says of itself.
    pub compiler: String,
    /// The commands that built it.
    pub commands: Vec<String>,
    /// When it was built, seconds since 1970.
    pub built_unix_s: u64,
    /// Where library and server come from; nothing in records of older versions.
    #[serde(default)]
    pub origin: Origin,
}

/// Whether a peer is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is, and nothing has changed since.
    Built(Built),
    /// It was, but a source is newer.
    Outdated(Built),
    /// It is not.
    NotBuilt,
}

/// What came of building a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There was nothing to do.
    UpToDate(Built),
    /// It was built.
    Built(Built),
    /// Programs that would be needed are not on `PATH`; nothing was done.
    Missing {
        /// Their names.
        programs: Vec<String>,
        /// What is needed beside programs, as the manifest says.
        hint: Option<String>,
    },
    /// A command failed.
    Failed {
        /// What failed, and how.
        why: String,
        /// The last lines of the log.
        last_lines: Vec<String>,
        /// The log.
        log: PathBuf,
        /// What is needed beside programs, as the manifest says.
        hint: Option<String>,
    },
}

impl Toolchains {
    /// Programs are looked for in the folders of `path`, separated by colons; commands get it as their `PATH`.
    #[must_use]
    pub fn new(path: &OsStr) -> Toolchains {
        Toolchains { path: path.to_owned() }
    }

    /// Those on this process's `PATH`.
    #[must_use]
    pub fn from_environment() -> Toolchains {
        Toolchains { path: std::env::var_os("PATH").unwrap_or_default() }
    }

    /// Where a program is, unless it is nowhere.
    #[must_use]
    pub fn locate(&self, program: &str) -> Option<PathBuf> {
        let folders = std::env::split_paths(&self.path).filter(|folder| !folder.as_os_str().is_empty());
        folders.map(|folder| folder.join(program)).find(|file| is_executable(file))
    }

    /// A command on these programs, with nothing to read.
    fn command(&self, words: &[String], folder: &Path) -> io::Result<Command> {
        let name = words.first().map_or("", String::as_str);
        let program = if name.contains('/') { Some(folder.join(name)) } else { self.locate(name) };
        let program = program
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not on PATH")))?;
        let mut command = Command::new(program);
        // Set by `cargo run` of the workspace, it would override what a peer says about its own toolchain.
        command.args(&words[1..]).current_dir(folder).env("PATH", &self.path).env_remove("RUSTUP_TOOLCHAIN");
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// The first line that a command has to say, on standard output or else on standard error.
    fn first_line(&self, words: &[String], folder: &Path) -> Result<String, String> {
        let failed = |why: String| format!("{}: {why}", words.join(" "));
        let output = self.command(words, folder).and_then(|mut command| command.output());
        let Output { status, stdout, stderr } = output.map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(format!("ended with {status}")));
        }
        let text = [stdout, stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        line.map(str::to_owned).ok_or_else(|| failed("said nothing".to_owned()))
    }
}

impl Peer {
    /// The programs of its toolchain that cannot be found.
    #[must_use]
    pub fn missing_programs(&self, toolchains: &Toolchains) -> Vec<String> {
        let missing = |program: &&String| toolchains.locate(program).is_none();
        self.manifest.toolchain.iter().filter(missing).cloned().collect()
    }

    /// Whether it is built. Runs nothing; a compiler that has changed since does not show.
    #[must_use]
    pub fn state(&self) -> State {
        let record = self.out.join("built.json");
        let read = || -> io::Result<(Built, SystemTime)> {
            let built = serde_json::from_slice(&fs::read(&record)?)?;
            Ok((built, fs::metadata(&record)?.modified()?))
        };
        match read() {
            Ok((built, when)) if self.missing_parts().is_empty() => match self.newest_source() {
                Ok(newest) if newest <= when => State::Built(built),
                _ => State::Outdated(built),
            },
            _ => State::NotBuilt,
        }
    }

    /// Builds it unless it is built already by the same compiler; always if `force`. May take minutes, and may use the
    /// network to fetch what its lock file names.
    #[must_use]
    pub fn build(&self, toolchains: &Toolchains, force: bool) -> Outcome {
        let hint = self.manifest.hint.clone();
        let programs = self.missing_programs(toolchains);
        if !programs.is_empty() {
            return Outcome::Missing { programs, hint };
        }
        let log = self.out.join("build.log");
        let failed =
            |why: String| Outcome::Failed { why, last_lines: last_lines(&log), log: log.clone(), hint };
        let compiler = match toolchains.first_line(&self.manifest.compiler, &self.folder) {
            Ok(compiler) => compiler,
            Err(why) => return failed(why),
        };
        if let (State::Built(built), false) = (self.state(), force)
            && built.compiler == compiler
        {
            return Outcome::UpToDate(built);
        }
        match self.run_build(toolchains, compiler, &log) {
            Ok(built) => Outcome::Built(built),
            Err(why) => failed(why),
        }
    }

    fn run_build(&self, toolchains: &Toolchains, compiler: String, log: &Path) -> Result<Built, String> {
        let record = self.out.join("built.json");
        let prepare = || {
            fs::create_dir_all(&self.out)?;
            // From here on it is not built, until all has succeeded.
            match fs::remove_file(&record) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => File::create(log),
            }
        };
        let mut file = prepare().map_err(|error| format!("{}: {error}", self.out.display()))?;
        // What changes while it is being built is newer than the build.
        let began = SystemTime::now();
        let mut commands = Vec::new();
        for words in &self.manifest.build {
            let words: Vec<String> = words.iter().map(|word| self.expand(word)).collect();
            self.run_command(toolchains, &words, &mut file)
                .map_err(|why| format!("{}: {why}", words.join(" ")))?;
            commands.push(words.join(" "));
        }
        if let [missing, ..] = self.missing_parts().as_slice() {
            return Err(format!("the build has succeeded, but made no {missing}"));
        }
        let version = match &self.manifest.version {
            Some(version) => version.clone(),
            None => toolchains.first_line(&self.manifest.version_command, &self.folder)?,
        };
        let built = Built {
            peer: self.manifest.name.clone(),
            library: self.manifest.library.clone(),
            origin: self.origin(&version),
            version,
            compiler,
            commands,
            built_unix_s: began.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        };
        write_record(&record, &built, began).map_err(|error| format!("{}: {error}", record.display()))?;
        Ok(built)
    }

    fn run_command(&self, toolchains: &Toolchains, words: &[String], log: &mut File) -> Result<(), String> {
        let mut run = || {
            writeln!(log, "$ {}", words.join(" "))?;
            let mut command = toolchains.command(words, &self.folder)?;
            command.stdout(log.try_clone()?).stderr(log.try_clone()?).status()
        };
        match run() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("ended with {status}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What of the program's words names something built that is not there.
    fn missing_parts(&self) -> Vec<String> {
        let program = self.manifest.program.iter().enumerate();
        let files = program.filter(|(place, word)| *place == 0 || word.starts_with("{out}"));
        files.map(|(_, word)| self.expand(word)).filter(|file| !Path::new(file).is_file()).collect()
    }

    /// When a source was last changed.
    fn newest_source(&self) -> io::Result<SystemTime> {
        let mut newest = newest_below(&self.folder)?;
        for folder in &self.manifest.sources {
            newest = newest.max(newest_below(&self.folder.join(folder))?);
        }
        Ok(newest)
    }
}

/// When a file below `folder` was last changed.
fn newest_below(folder: &Path) -> io::Result<SystemTime> {
    let mut newest = UNIX_EPOCH;
    for entry in fs::read_dir(folder)? {
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

/// Puts the record in place in one step, dated with the beginning of the build.
fn write_record(record: &Path, built: &Built, began: SystemTime) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(built)?;
    text.push('\n');
    let unfinished = record.with_extension("unfinished");
    let mut file = File::create(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.set_modified(began)?;
    fs::rename(unfinished, record)
}

fn last_lines(log: &Path) -> Vec<String> {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|&line| line.to_owned()).collect()
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
