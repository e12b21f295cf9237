//! Tells the command what it is built from and with, in variables that `src/build_identity.rs` reads:
//!
//! - `ANELLO_BUILD_COMMIT`: the last commit that touched sources of the program, in 12 digits, with "+changes" where they
//!   differ from it; of a published crate the commit that it was published from; "unknown" and why, where nobody knows.
//!   It is in the program: so a commit of anything else, as of a text, must not change it, or the same sources would
//!   make programs that count as different.
//! - `ANELLO_BUILD_TOOLS`: compiler, profile, optimization and flags, which are published: paths within them are cut down
//!   to their last names.
//!
//! It runs again when another commit is checked out, or when a source of the program changes: so the mark is right for
//! what was compiled. Whatever fails, the build goes on.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Folders of a crate that nothing of gets into the program.
const NON_PROGRAM_DIRECTORIES: [&str; 3] = ["tests", "examples", "benches"];

/// Variables with the flags of the compiler, as they are set by users and as Cargo hands them on.
const FLAGS: [&str; 2] = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

/// Where this crate is in its own repository.
const MANIFEST: &str = "crates/anello-cli/Cargo.toml";

// Why a commit is unknown.
const NO_GIT: &str = "git cannot be run";
const GIT_REFUSED: &str = "git refuses the repository (another user's?): `git status` in it says why";
const NOT_OWN_REPOSITORY: &str = "the sources are in no git repository of their own";
const NOT_COMMITTED: &str = "git knows no commit of the sources";

fn main() {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let workspace = folder.join("../..");
    let source_paths = source_paths(&workspace);
    let commit = commit(&workspace, &source_paths).or_else(|why| published_commit(&folder).ok_or(why));
    let compiler = env::var_os("RUSTC").and_then(|rustc| first_line(Command::new(rustc).arg("--version")));
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    emit("ANELLO_BUILD_COMMIT", &commit.unwrap_or_else(|why| format!("unknown: {why}")));
    emit("ANELLO_BUILD_TOOLS", &tools(compiler, variable));
    for path in commit_state_files(&workspace).iter().chain(&source_paths) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    for name in FLAGS {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

/// Hands a line of text to the compiler.
fn emit(name: &str, value: &str) {
    let line: String = value.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    println!("cargo::rustc-env={name}={line}");
}

/// What the program is made of: the crates without their tests, and which other crates there are.
pub fn source_paths(workspace: &Path) -> Vec<PathBuf> {
    let below = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let in_program = |path: &PathBuf| NON_PROGRAM_DIRECTORIES.iter().all(|name| !path.ends_with(name));
    let crates = below(&workspace.join("crates"));
    let mut source_paths: Vec<PathBuf> =
        crates.iter().flat_map(|folder| below(folder)).filter(in_program).collect();
    // A path that is not there would make Cargo run this every time.
    let of_workspace = ["Cargo.toml", "Cargo.lock"].map(|name| workspace.join(name));
    source_paths.extend(of_workspace.into_iter().filter(|path| path.exists()));
    source_paths.sort();
    source_paths
}

/// The last commit that touched one of `source_paths`, with "+changes" if one differs from it in what git tracks.
///
/// # Errors
/// Why it is unknown.
pub fn commit(workspace: &Path, source_paths: &[PathBuf]) -> Result<String, &'static str> {
    check_own_repository(workspace)?;
    // Git finds them wherever it looks from.
    let paths: Vec<PathBuf> =
        source_paths.iter().filter_map(|source| fs::canonicalize(source).ok()).collect();
    let last = ["log", "-1", "--no-show-signature", "--abbrev=12", "--format=%h", "HEAD", "--"];
    let commit = first_line(git(workspace, &last).args(&paths)).ok_or(NOT_COMMITTED)?;
    let mut difference = git(workspace, &["diff", "--quiet", "--no-ext-diff", "HEAD", "--"]);
    match output(difference.args(&paths)).and_then(|said| said.status.code()) {
        Some(0) => Ok(commit),
        Some(1) => Ok(format!("{commit}+changes")),
        _ => Err(GIT_REFUSED),
    }
}

/// Whether the workspace is the top of a repository that this crate is in. Sources may lie within one that is not
/// theirs: that of a home directory, or of a program that they were copied into.
fn check_own_repository(workspace: &Path) -> Result<(), &'static str> {
    let asked = output(&mut git(workspace, &["rev-parse", "--show-toplevel"])).ok_or(NO_GIT)?;
    if !asked.status.success() {
        let none = String::from_utf8_lossy(&asked.stderr).contains("not a git repository");
        return Err(if none { NOT_OWN_REPOSITORY } else { GIT_REFUSED });
    }
    let top = first_output_line(asked).and_then(|top| fs::canonicalize(top).ok());
    let is_top = top.is_some() && top == fs::canonicalize(workspace).ok();
    let tracked = || git_line(workspace, &["ls-files", "--error-unmatch", "--", MANIFEST]).is_some();
    if is_top && tracked() { Ok(()) } else { Err(NOT_OWN_REPOSITORY) }
}

/// The commit that this crate was published from, which `cargo publish` puts into it: the one that was checked out then,
/// with "+changes" if files differed from it.
pub fn published_commit(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join(".cargo_vcs_info.json")).ok()?;
    let after = |name: &str| text.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest.trim_start());
    let digits = after("sha1")?.strip_prefix('"')?.get(..12)?;
    let changes = if after("dirty").is_some_and(|value| value.starts_with("true")) { "+changes" } else { "" };
    digits.chars().all(|digit| digit.is_ascii_hexdigit()).then(|| format!("{digits}{changes}"))
}

/// What changes when another commit is checked out: HEAD, the branch that it names, and where branches are packed. A
/// branch that is packed has no file until the next commit; that shows in the folder that the file will be in. Nothing of
/// a repository that is not the workspace's own.
pub fn commit_state_files(workspace: &Path) -> Vec<PathBuf> {
    if check_own_repository(workspace).is_err() {
        return Vec::new();
    }
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
    words.extend(variable(FLAGS[1]).map(|flags| format!("RUSTFLAGS {}", strip_machine_paths(&flags))));
    words.join(", ")
}

/// Flags as Cargo hands them on, with every absolute path cut down to its last name: whose machine it was, and where
/// things are on it, is nobody's business.
fn strip_machine_paths(flags: &str) -> String {
    // A space may belong to a path; before the next path or flag it does not.
    let flags = flags.replace(" -", "\u{1f}-").replace(" /", "\u{1f}/");
    let ends = ['\u{1f}', '=', ',', ':', ';'];
    let shortened = flags.split_inclusive(ends).map(|piece| {
        let mut slashes = piece.match_indices('/').map(|(at, _)| at);
        let Some(start) = slashes.find(|&at| is_path_start(&piece[..at])) else { return piece.to_owned() };
        let path = piece[start..].trim_end_matches(ends);
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        format!("{}{name}{}", &piece[..start], &piece[start + path.len()..])
    });
    shortened.collect::<String>().replace('\u{1f}', " ")
}

/// Whether a slash after this begins a path instead of going on with one: not behind a name, but behind an option that
/// stands before its path without a space, as `-L` and `-isystem` do.
fn is_path_start(before: &str) -> bool {
    let option = before.strip_prefix('-').is_some_and(|name| {
        name.chars().count() == 1 || name.chars().all(|letter| letter.is_ascii_lowercase())
    });
    let is_of_name = |letter: char| letter.is_alphanumeric() || "._-~$})]/".contains(letter);
    option || !before.ends_with(is_of_name)
}

/// A command of git's in a folder, in whatever repository that is.
fn git(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("--no-optional-locks").args(words).current_dir(folder);
    // Set within hooks of git, where they may name another repository.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"] {
        command.env_remove(variable);
    }
    // Its errors are read.
    command.env("LC_ALL", "C");
    command
}

fn git_line(folder: &Path, words: &[&str]) -> Option<String> {
    first_line(&mut git(folder, words))
}

/// The first line that a command says, if it succeeds and says one.
fn first_line(command: &mut Command) -> Option<String> {
    first_output_line(output(command)?)
}

fn first_output_line(Output { status, stdout, .. }: Output) -> Option<String> {
    let text = String::from_utf8(stdout).ok().filter(|_| status.success())?;
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

fn output(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}
