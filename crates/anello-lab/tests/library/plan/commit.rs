//! Tests for commits determined from source directories and from version strings.

use std::fs;
use std::path::Path;

use anello_lab::commit::*;

use crate::git::{git, is_here};

#[test]
fn of_sources_returns_commit_and_change_suffix() {
    let workspace = tempfile::tempdir().unwrap();
    let path = |name: &str| workspace.path().join(name);
    for directory in ["peer", "shared", "other", "untracked"] {
        fs::create_dir(path(directory)).unwrap();
        fs::write(path(directory).join("file"), "one").unwrap();
    }
    let (peer, shared) = (path("peer"), path("shared"));
    assert_eq!(of_sources(&[&peer]), None, "not a repository");
    if !is_here() {
        return; // The rest of the test needs git.
    }
    let git = |words: &[&str]| git(workspace.path(), words);
    git(&["init"]);
    git(&["add", "peer", "shared", "other"]);
    assert_eq!(of_sources(&[&peer]), None, "no commit yet");
    git(&["commit", "-m", "one"]);
    let commit = of_sources(&[&peer, Path::new("../shared")]).unwrap();
    assert!(commit.len() >= 12 && commit.chars().all(|digit| digit.is_ascii_hexdigit()), "{commit}");
    assert_eq!(of_sources(&[&path("untracked")]), None, "untracked directory has no commit");
    let commit_of_both = || of_sources(&[&peer, Path::new("../shared")]);
    fs::write(path("other/file"), "two").unwrap();
    fs::write(peer.join("new"), "untracked").unwrap();
    assert_eq!(commit_of_both(), Some(commit.clone()), "changes elsewhere and untracked files are ignored");
    fs::write(shared.join("file"), "two").unwrap();
    assert_eq!(commit_of_both(), Some(format!("{commit}{CHANGED}")));
    assert_eq!(of_sources(&[&peer]), Some(commit.clone()));
    git(&["add", "shared"]);
    assert_eq!(commit_of_both(), Some(format!("{commit}{CHANGED}")), "staged changes count as changes");
    fs::write(shared.join("file"), "one").unwrap();
    assert_eq!(commit_of_both(), Some(commit), "change was reverted");
}

#[test]
fn pseudo_version_contains_commit() {
    assert_eq!(of_version("v0.0.0-20220926161041-69611e8b13d5"), Some("69611e8b13d5"));
    assert_eq!(of_version("v1.2.4-0.20220926161041-69611e8b13d5"), Some("69611e8b13d5"));
    for version in ["1.54.1", "4.2.18.Final", "v0.0.0-20220926-69611e8b13d5", "1-2-3", ""] {
        assert_eq!(of_version(version), None, "{version}");
    }
}

#[test]
fn short_commit_keeps_change_suffix() {
    let long = "a".repeat(40);
    assert_eq!(short(&long), "aaaaaaaaaaaa");
    assert_eq!(short(&format!("{long}-dirty")), "aaaaaaaaaaaa+changes");
    assert_eq!(short(&format!("{long}+changes")), "aaaaaaaaaaaa+changes");
    assert_eq!(strip_dirty_suffix("69611e8b13d5-dirty"), ("69611e8b13d5", true));
    assert_eq!(strip_dirty_suffix("69611e8b13d5"), ("69611e8b13d5", false));
    assert_eq!(short("69611e8b13d5+changes"), "69611e8b13d5+changes");
    assert_eq!(short("v1"), "v1");
}
