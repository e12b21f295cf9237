//! Commits: of sources in a folder under git, of a version that names one, and in few digits.
//!
//! A commit is kept as it is known, with [`CHANGED`] behind it where tracked files were changed since: in 12 digits where
//! git is asked here or a version names it, in all 40 where a crate does (`peers/origin.rs`). [`short`] makes 12 of either,
//! for people and comparisons. The hash of a program (`executable.rs`) tells whether two programs are the same, the commit
//! where to look for the sources.

use std::path::Path;
use std::process::{Command, Stdio};

/// What stands behind a commit whose files were changed since.
pub const CHANGED: &str = "+changes";

/// The same in results of older versions.
const OLD_DIRTY_SUFFIX: &str = "-dirty";

/// Digits that tell commits apart.
const COMMIT_DIGITS: usize = 12;

/// The commit that these folders of one repository are at, with [`CHANGED`] if tracked files below them differ from it;
/// none if the first is not under git with anything tracked in it, or there is no git here.
#[must_use]
pub fn of_sources(folders: &[&Path]) -> Option<String> {
    let (first, rest) = folders.split_first()?;
    let git = |words: &[&str], paths: &[&Path]| {
        let mut command = Command::new("git");
        command.arg("--no-optional-locks").args(words).arg("--").args(paths).current_dir(first);
        // Set within hooks of git, where they may name another repository.
        for variable in
            ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"]
        {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).output().ok()
    };
    let here = Path::new(".");
    git(&["ls-files", "--error-unmatch"], &[here]).filter(|tracked| tracked.status.success())?;
    let length = format!("--short={COMMIT_DIGITS}");
    let commit = git(&["rev-parse", "--verify", &length, "HEAD"], &[])?;
    let digits = String::from_utf8(commit.stdout).ok()?.lines().next()?.trim().to_owned();
    let paths: Vec<&Path> = [here].into_iter().chain(rest.iter().copied()).collect();
    match git(&["diff", "--quiet", "--no-ext-diff", "HEAD"], &paths)?.status.code() {
        Some(0) => Some(digits),
        Some(1) => Some(format!("{digits}{CHANGED}")),
        _ => None,
    }
}

/// The commit that a version names: a Go module's pseudo-version ends with the time and the first 12 digits of one, as
/// in `v0.0.0-20220926161041-69611e8b13d5`.
#[must_use]
pub fn of_version(version: &str) -> Option<&str> {
    let (rest, commit) = version.rsplit_once('-')?;
    let time = rest.rsplit(['-', '.']).next()?;
    let digits = |text: &str, length: usize, radix: u32| {
        text.len() == length && text.chars().all(|digit| digit.is_digit(radix))
    };
    (digits(commit, COMMIT_DIGITS, 16) && digits(time, 14, 10)).then_some(commit)
}

/// A commit without the mark of files that were changed since, and whether it had one.
#[must_use]
pub fn strip_dirty_suffix(commit: &str) -> (&str, bool) {
    let without = [CHANGED, OLD_DIRTY_SUFFIX].into_iter().find_map(|mark| commit.strip_suffix(mark));
    (without.unwrap_or(commit), without.is_some())
}

/// A commit in as few digits as tell commits apart, with [`CHANGED`] if it has the mark of changes, be it the older one.
#[must_use]
pub fn short(commit: &str) -> String {
    let (commit, changed) = strip_dirty_suffix(commit);
    let digits = commit.chars().take_while(char::is_ascii_hexdigit).count();
    let (hash, rest) = commit.split_at(digits);
    let mark = if changed { CHANGED } else { "" };
    format!("{}{rest}{mark}", hash.get(..COMMIT_DIGITS).unwrap_or(hash))
}

#[cfg(test)]
#[path = "../tests/common/git.rs"]
mod git_for_tests;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::git_for_tests::{git, is_here};
    use super::*;

    #[test]
    fn sources_are_at_a_commit_if_they_are_tracked_and_say_what_was_changed() {
        let workspace = tempfile::tempdir().unwrap();
        let path = |name: &str| workspace.path().join(name);
        for folder in ["peer", "shared", "other", "untracked"] {
            fs::create_dir(path(folder)).unwrap();
            fs::write(path(folder).join("file"), "one").unwrap();
        }
        let (peer, shared) = (path("peer"), path("shared"));
        assert_eq!(of_sources(&[&peer]), None, "not under git");
        if !is_here() {
            return; // Without git there is nothing to find, which was tried above.
        }
        let git = |words: &[&str]| git(workspace.path(), words);
        git(&["init"]);
        git(&["add", "peer", "shared", "other"]);
        assert_eq!(of_sources(&[&peer]), None, "no commit yet");
        git(&["commit", "-m", "one"]);
        let commit = of_sources(&[&peer, Path::new("../shared")]).unwrap();
        assert!(
            commit.len() >= COMMIT_DIGITS && commit.chars().all(|digit| digit.is_ascii_hexdigit()),
            "{commit}"
        );
        assert_eq!(of_sources(&[&path("untracked")]), None, "what is in no commit comes from none");
        let both = || of_sources(&[&peer, Path::new("../shared")]);
        fs::write(path("other/file"), "two").unwrap();
        fs::write(peer.join("new"), "untracked").unwrap();
        assert_eq!(both(), Some(commit.clone()), "neither a change elsewhere nor an untracked file counts");
        fs::write(shared.join("file"), "two").unwrap();
        assert_eq!(both(), Some(format!("{commit}{CHANGED}")));
        assert_eq!(of_sources(&[&peer]), Some(commit.clone()));
        git(&["add", "shared"]);
        assert_eq!(both(), Some(format!("{commit}{CHANGED}")), "staged is not committed");
        fs::write(shared.join("file"), "one").unwrap();
        assert_eq!(both(), Some(commit), "as it was");
    }

    #[test]
    fn a_pseudo_version_names_a_commit() {
        assert_eq!(of_version("v0.0.0-20220926161041-69611e8b13d5"), Some("69611e8b13d5"));
        assert_eq!(of_version("v1.2.4-0.20220926161041-69611e8b13d5"), Some("69611e8b13d5"));
        for version in ["1.54.1", "4.2.18.Final", "v0.0.0-20220926-69611e8b13d5", "1-2-3", ""] {
            assert_eq!(of_version(version), None, "{version}");
        }
    }

    #[test]
    fn a_commit_is_short_and_keeps_its_mark_in_the_words_of_today() {
        let long = "a".repeat(40);
        assert_eq!(short(&long), "aaaaaaaaaaaa");
        assert_eq!(short(&format!("{long}-dirty")), "aaaaaaaaaaaa+changes");
        assert_eq!(short(&format!("{long}+changes")), "aaaaaaaaaaaa+changes");
        assert_eq!(strip_dirty_suffix("69611e8b13d5-dirty"), ("69611e8b13d5", true));
        assert_eq!(strip_dirty_suffix("69611e8b13d5"), ("69611e8b13d5", false));
        assert_eq!(short("69611e8b13d5+changes"), "69611e8b13d5+changes");
        assert_eq!(short("v1"), "v1");
    }
}
