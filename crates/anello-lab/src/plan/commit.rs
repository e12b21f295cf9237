//! Git commits: reading them from directories and version strings, and shortening them.
//!
//! A commit is stored with all available digits (12 if it comes from `git` or a version string, 40 if it comes from a
//! crate), followed by [`CHANGED`] if tracked files differ from it. A commit identifies only the sources. To find out
//! whether two programs are identical, compare their hashes.

use std::path::Path;
use std::process::{Command, Stdio};

/// Suffix that marks a commit with modified files.
pub const CHANGED: &str = "+changes";

/// Suffix that marks modified files in results from older versions.
const OLD_DIRTY_SUFFIX: &str = "-dirty";

const COMMIT_DIGITS: usize = 12;

/// Returns the commit of these directories in one repository, with [`CHANGED`] if tracked files in them differ from it.
/// `None` if the first directory contains no tracked files or `git` is not available.
pub fn of_sources(directories: &[&Path]) -> Option<String> {
    let (first, rest) = directories.split_first()?;
    let git = |words: &[&str], paths: &[&Path]| {
        let mut command = Command::new("git");
        command.arg("--no-optional-locks").args(words).arg("--").args(paths).current_dir(first);
        // Git sets these variables when it runs a hook. They may refer to another repository.
        for variable in
            ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"]
        {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).output().ok()
    };
    let current = Path::new(".");
    git(&["ls-files", "--error-unmatch"], &[current]).filter(|tracked| tracked.status.success())?;
    let length = format!("--short={COMMIT_DIGITS}");
    let commit = git(&["rev-parse", "--verify", &length, "HEAD"], &[])?;
    let digits = String::from_utf8(commit.stdout).ok()?.lines().next()?.trim().to_owned();
    let paths: Vec<&Path> = [current].into_iter().chain(rest.iter().copied()).collect();
    match git(&["diff", "--quiet", "--no-ext-diff", "HEAD"], &paths)?.status.code() {
        Some(0) => Some(digits),
        Some(1) => Some(format!("{digits}{CHANGED}")),
        _ => None,
    }
}

/// Returns the commit in a version string: the pseudo-version of a Go module ends with the time and the first 12 digits
/// of a commit, for example `v0.0.0-20220926161041-69611e8b13d5`.
pub fn of_version(version: &str) -> Option<&str> {
    let (rest, commit) = version.rsplit_once('-')?;
    let time = rest.rsplit(['-', '.']).next()?;
    let digits = |text: &str, length: usize, radix: u32| {
        text.len() == length && text.chars().all(|digit| digit.is_digit(radix))
    };
    (digits(commit, COMMIT_DIGITS, 16) && digits(time, 14, 10)).then_some(commit)
}

/// Splits off the suffix that marks modified files. The second value is `true` if the suffix was present.
pub fn strip_dirty_suffix(commit: &str) -> (&str, bool) {
    let stripped = [CHANGED, OLD_DIRTY_SUFFIX].into_iter().find_map(|suffix| commit.strip_suffix(suffix));
    (stripped.unwrap_or(commit), stripped.is_some())
}

/// Returns the first 12 digits of a commit, with [`CHANGED`] if a suffix marks modified files.
pub fn short(commit: &str) -> String {
    let (commit, is_changed) = strip_dirty_suffix(commit);
    let digits = commit.chars().take_while(char::is_ascii_hexdigit).count();
    let (hash, rest) = commit.split_at(digits);
    let suffix = if is_changed { CHANGED } else { "" };
    format!("{}{rest}{suffix}", hash.get(..COMMIT_DIGITS).unwrap_or(hash))
}
