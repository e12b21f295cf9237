//! Tells the command what it is built from and with, in variables that `src/build_identity.rs` reads:
//!
//! - `ANELLO_BUILD_COMMIT`: the workspace's commit in 12 digits, with "+changes" where sources of the program differ from
//!   it; "unknown" and why, where there is no git or the sources are not a repository of their own.
//! - `ANELLO_BUILD_TOOLS`: compiler, profile, optimization and flags.
//!
//! It runs again when another commit is checked out, or when a source of the program changes: so the mark is right for
//! what was compiled. Whatever fails, the build goes on.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Folders of a crate that nothing of gets into the program.
const NOT_IN_THE_PROGRAM: [&str; 3] = ["tests", "examples", "benches"];

/// Variables with the flags of the compiler, as they are set by users and as Cargo hands them on.
const FLAGS: [&str; 2] = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

const UNKNOWN: &str = "unknown: not built in its git repository";

fn main() {
    let workspace = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let sources = sources(&workspace);
    let commit = commit(&workspace, &sources);
    let compiler = env::var_os("RUSTC").and_then(|rustc| first_line(Command::new(rustc).arg("--version")));
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    tell("ANELLO_BUILD_COMMIT", commit.as_deref().unwrap_or(UNKNOWN));
    tell("ANELLO_BUILD_TOOLS", &tools(compiler, variable));
    for path in marks_of_commit(&workspace).iter().chain(&sources) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    for name in FLAGS {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

/// Hands a line of text to the compiler.
fn tell(name: &str, value: &str) {
    let line: String = value.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    println!("cargo::rustc-env={name}={line}");
}

/// What the program is made of: the crates without their tests, and which other crates there are.
pub fn sources(workspace: &Path) -> Vec<PathBuf> {
    let below = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let in_program = |path: &PathBuf| NOT_IN_THE_PROGRAM.iter().all(|name| !path.ends_with(name));
    let crates = below(&workspace.join("crates"));
    let mut sources: Vec<PathBuf> =
        crates.iter().flat_map(|folder| below(folder)).filter(in_program).collect();
    // A path that is not there would make Cargo run this every time.
    let of_workspace = ["Cargo.toml", "Cargo.lock"].map(|name| workspace.join(name));
    sources.extend(of_workspace.into_iter().filter(|path| path.exists()));
    sources.sort();
    sources
}

/// The commit, with "+changes" if one of `sources` differs from it in what git tracks. None for sources within a
/// repository that is not theirs, as that of a home directory may be.
pub fn commit(workspace: &Path, sources: &[PathBuf]) -> Option<String> {
    let top = fs::canonicalize(git_line(workspace, &["rev-parse", "--show-toplevel"])?).ok()?;
    if top != fs::canonicalize(workspace).ok()? {
        return None;
    }
    let commit = git_line(workspace, &["rev-parse", "--verify", "--short=12", "HEAD"])?;
    // Git finds them wherever it looks from.
    let paths = sources.iter().filter_map(|source| fs::canonicalize(source).ok());
    let mut difference = git(workspace, &["diff", "--quiet", "--no-ext-diff", "HEAD", "--"]);
    match output(difference.args(paths))?.status.code() {
        Some(0) => Some(commit),
        Some(1) => Some(format!("{commit}+changes")),
        _ => None,
    }
}

/// What changes when another commit is checked out: HEAD, the branch that it names, and where branches are packed. A
/// branch that is packed has no file until the next commit; that shows in the folder that the file will be in.
pub fn marks_of_commit(workspace: &Path) -> Vec<PathBuf> {
    let place = |name: &str| Some(workspace.join(git_line(workspace, &["rev-parse", "--git-path", name])?));
    let existing = ["HEAD", "packed-refs", "reftable"].iter().filter_map(|name| place(name));
    let mut marks: Vec<PathBuf> = existing.filter(|path| path.exists()).collect();
    let branch = git_line(workspace, &["symbolic-ref", "--quiet", "HEAD"]).and_then(|branch| place(&branch));
    marks.extend(
        branch.as_deref().and_then(|file| file.ancestors().find(|path| path.exists())).map(Path::to_owned),
    );
    marks
}

/// Compiler, profile, optimization and flags, as far as Cargo tells them.
pub fn tools(compiler: Option<String>, variable: impl Fn(&str) -> Option<String>) -> String {
    let mut words = vec![compiler.unwrap_or_else(|| "rustc of unknown version".to_owned())];
    words.extend(variable("PROFILE").map(|profile| format!("profile {profile}")));
    words.extend(variable("OPT_LEVEL").map(|level| format!("opt-level {level}")));
    words.extend(variable(FLAGS[1]).map(|flags| format!("RUSTFLAGS {}", flags.replace('\u{1f}', " "))));
    words.join(", ")
}

/// A command of git's in a folder, in whatever repository that is.
fn git(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("--no-optional-locks").args(words).current_dir(folder);
    // Set within hooks of git, where they may name another repository.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    command
}

fn git_line(folder: &Path, words: &[&str]) -> Option<String> {
    first_line(&mut git(folder, words))
}

/// The first line that a command says, if it succeeds and says one.
fn first_line(command: &mut Command) -> Option<String> {
    let Output { status, stdout, .. } = output(command)?;
    let text = String::from_utf8(stdout).ok().filter(|_| status.success())?;
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

fn output(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}
