//! Build script: passes the source commit and the build tools to `src/common/build_identity.rs`.
//!
//! It sets two environment variables for the compiler:
//!
//! - `ANELLO_BUILD_COMMIT`: the last commit that changed a source file of the binary, abbreviated to 12 digits, with
//!   "+changes" if the working tree differs from it. For a published crate, this is the commit that it was published
//!   from. If the commit cannot be determined, the value is "unknown: " followed by the reason. The value is part of
//!   the binary, and identical sources must give identical binaries; commits that change only documents or tests
//!   therefore must not change it.
//! - `ANELLO_BUILD_TOOLS`: compiler, profile, optimization level of the servers, and flags. This text is published in
//!   reports, so absolute paths in the flags are reduced to their last component. `--remap-path-prefix=FROM=TO` is
//!   omitted: it contains the directory of the build, on which the binary must not depend.
//!
//! Cargo reruns the script when another commit is checked out or a source file of the binary changes. Errors in this
//! script never fail the build.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Directories of a crate whose files are not compiled into the binary.
const NON_PROGRAM_DIRECTORIES: [&str; 3] = ["tests", "examples", "benches"];

/// Environment variables that contain compiler flags: the one set by users, and the one that Cargo passes to build
/// scripts.
const FLAGS: [&str; 2] = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

/// Environment variable with the optimization level of the crate `anello-servers`, which its build script sets.
const SERVERS_OPT_LEVEL: &str = "DEP_ANELLO_SERVERS_OPT_LEVEL";

/// Path of this crate's manifest in the anello repository.
const MANIFEST: &str = "crates/anello-cli/Cargo.toml";

// Reasons for an unknown commit.
const NO_GIT: &str = "git cannot be run";
const GIT_REFUSED: &str =
    "git rejects the repository, perhaps because another user owns it; `git status` in it shows the cause";
const NOT_OWN_REPOSITORY: &str = "the sources are not in a git repository of their own";
const NOT_COMMITTED: &str = "the sources are not committed to the repository";

fn main() {
    let crate_directory = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let workspace = crate_directory.join("../..");
    let source_paths = source_paths(&workspace);
    let commit =
        commit(&workspace, &source_paths).or_else(|reason| published_commit(&crate_directory).ok_or(reason));
    let compiler = env::var_os("RUSTC").and_then(|rustc| first_line(Command::new(rustc).arg("--version")));
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    emit("ANELLO_BUILD_COMMIT", &commit.unwrap_or_else(|reason| format!("unknown: {reason}")));
    emit("ANELLO_BUILD_TOOLS", &tools(compiler, variable));
    for path in commit_state_files(&workspace).iter().chain(&source_paths) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    for name in FLAGS {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

/// Sets an environment variable for the compiler. Control characters become spaces.
fn emit(name: &str, value: &str) {
    let line: String = value.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    println!("cargo::rustc-env={name}={line}");
}

/// Returns the paths that the binary is built from: the crates without their tests, examples and benchmarks, and the
/// workspace's manifest and lock file.
pub fn source_paths(workspace: &Path) -> Vec<PathBuf> {
    let children = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let in_program = |path: &PathBuf| NON_PROGRAM_DIRECTORIES.iter().all(|name| !path.ends_with(name));
    let crates = children(&workspace.join("crates"));
    let mut source_paths: Vec<PathBuf> =
        crates.iter().flat_map(|directory| children(directory)).filter(in_program).collect();
    // If a listed path did not exist, Cargo would rerun this script in every build.
    let workspace_files = ["Cargo.toml", "Cargo.lock"].map(|name| workspace.join(name));
    source_paths.extend(workspace_files.into_iter().filter(|path| path.exists()));
    source_paths.sort();
    source_paths
}

/// Returns the last commit that changed one of `source_paths`, with "+changes" if a tracked file among them was
/// modified.
///
/// # Errors
/// Returns the reason if the commit is unknown.
pub fn commit(workspace: &Path, source_paths: &[PathBuf]) -> Result<String, &'static str> {
    check_own_repository(workspace)?;
    // Absolute paths, because git resolves relative paths against its working directory.
    let paths: Vec<PathBuf> =
        source_paths.iter().filter_map(|source| fs::canonicalize(source).ok()).collect();
    let last = ["log", "-1", "--no-show-signature", "--abbrev=12", "--format=%h", "HEAD", "--"];
    let commit = first_line(git(workspace, &last).args(&paths)).ok_or(NOT_COMMITTED)?;
    let mut difference = git(workspace, &["diff", "--quiet", "--no-ext-diff", "HEAD", "--"]);
    match output(difference.args(&paths)).and_then(|output| output.status.code()) {
        Some(0) => Ok(commit),
        Some(1) => Ok(format!("{commit}+changes")),
        _ => Err(GIT_REFUSED),
    }
}

/// Checks that the workspace is the top level of a git repository that tracks this crate. The sources can also be
/// inside an unrelated repository, such as one for a home directory or for a project that vendors them.
fn check_own_repository(workspace: &Path) -> Result<(), &'static str> {
    let rev_parse = output(&mut git(workspace, &["rev-parse", "--show-toplevel"])).ok_or(NO_GIT)?;
    if !rev_parse.status.success() {
        let no_repository = String::from_utf8_lossy(&rev_parse.stderr).contains("not a git repository");
        return Err(if no_repository { NOT_OWN_REPOSITORY } else { GIT_REFUSED });
    }
    let top = first_output_line(rev_parse).and_then(|top| fs::canonicalize(top).ok());
    let is_top = top.is_some() && top == fs::canonicalize(workspace).ok();
    let tracked = || git_line(workspace, &["ls-files", "--error-unmatch", "--", MANIFEST]).is_some();
    if is_top && tracked() { Ok(()) } else { Err(NOT_OWN_REPOSITORY) }
}

/// Returns the commit that this crate was published from, with "+changes" if the published files differed from it.
/// `cargo publish` records it in `.cargo_vcs_info.json`.
pub fn published_commit(crate_directory: &Path) -> Option<String> {
    let text = fs::read_to_string(crate_directory.join(".cargo_vcs_info.json")).ok()?;
    let value_of = |name: &str| text.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest.trim_start());
    let digits = value_of("sha1")?.strip_prefix('"')?.get(..12)?;
    let changes =
        if value_of("dirty").is_some_and(|value| value.starts_with("true")) { "+changes" } else { "" };
    digits.chars().all(|digit| digit.is_ascii_hexdigit()).then(|| format!("{digits}{changes}"))
}

/// Returns the files that change when another commit is checked out: HEAD, the file of the current branch, and the
/// packed refs. A packed branch has no file until the next commit; its directory is returned instead, because creating
/// the file modifies the directory. Returns an empty list if the workspace has no repository of its own.
pub fn commit_state_files(workspace: &Path) -> Vec<PathBuf> {
    if check_own_repository(workspace).is_err() {
        return Vec::new();
    }
    let git_path =
        |name: &str| Some(workspace.join(git_line(workspace, &["rev-parse", "--git-path", name])?));
    let candidates = ["HEAD", "packed-refs", "reftable"].iter().filter_map(|name| git_path(name));
    let mut state_files: Vec<PathBuf> = candidates.filter(|path| path.exists()).collect();
    let branch =
        git_line(workspace, &["symbolic-ref", "--quiet", "HEAD"]).and_then(|branch| git_path(&branch));
    state_files.extend(
        branch.as_deref().and_then(|file| file.ancestors().find(|path| path.exists())).map(Path::to_owned),
    );
    state_files
}

/// Returns the compiler, profile, optimization level of the servers, and flags, as far as Cargo reports them.
pub fn tools(compiler: Option<String>, variable: impl Fn(&str) -> Option<String>) -> String {
    let mut words = vec![compiler.unwrap_or_else(|| "rustc (unknown version)".to_owned())];
    words.extend(variable("PROFILE").map(|profile| format!("profile {profile}")));
    words.extend(variable(SERVERS_OPT_LEVEL).map(|level| format!("opt-level {level}")));
    let flags = variable(FLAGS[1]).unwrap_or_default();
    let flags: Vec<&str> =
        flags.split('\u{1f}').filter(|flag| !flag.starts_with("--remap-path-prefix=")).collect();
    if !flags.concat().is_empty() {
        words.push(format!("RUSTFLAGS {}", strip_machine_paths(&flags.join("\u{1f}"))));
    }
    words.join(", ")
}

/// Reduces every absolute path in Cargo's encoded flags to its last component, to avoid publishing user names and the
/// directory layout of the build machine.
fn strip_machine_paths(flags: &str) -> String {
    // Only a space before a dash or a slash is treated as a separator, because other spaces can be part of a path.
    let flags = flags.replace(" -", "\u{1f}-").replace(" /", "\u{1f}/");
    let separators = ['\u{1f}', '=', ',', ':', ';'];
    let shortened = flags.split_inclusive(separators).map(|part| {
        let mut slashes = part.match_indices('/').map(|(offset, _)| offset);
        let Some(start) = slashes.find(|&offset| is_path_start(&part[..offset])) else {
            return part.to_owned();
        };
        let path = part[start..].trim_end_matches(separators);
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        format!("{}{name}{}", &part[..start], &part[start + path.len()..])
    });
    shortened.collect::<String>().replace('\u{1f}', " ")
}

/// Returns whether a slash after `prefix` starts an absolute path. A slash after a path component does not; a slash
/// directly after an option, such as `-L` or `-isystem`, does.
fn is_path_start(prefix: &str) -> bool {
    let is_option = prefix.strip_prefix('-').is_some_and(|name| {
        name.chars().count() == 1 || name.chars().all(|letter| letter.is_ascii_lowercase())
    });
    let is_component_char = |letter: char| letter.is_alphanumeric() || "._-~$})]/".contains(letter);
    is_option || !prefix.ends_with(is_component_char)
}

/// Returns a git command for the repository that contains `directory`.
fn git(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("--no-optional-locks").args(arguments).current_dir(directory);
    // Git sets these variables when it runs hooks; they may refer to another repository.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"] {
        command.env_remove(variable);
    }
    // Forces messages in English, because this script looks for one of them.
    command.env("LC_ALL", "C");
    command
}

fn git_line(directory: &Path, arguments: &[&str]) -> Option<String> {
    first_line(&mut git(directory, arguments))
}

/// Runs a command and returns the first non-empty line of its output; `None` if it fails or prints nothing.
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
