//! Atomic replacement of result files.

use std::fs;
use std::path::Path;

use anello_lab::{LabResult, write_json};

/// Writes a result that can be recognized by its version.
fn write(path: &Path, version: &str) -> std::io::Result<()> {
    let mut result = LabResult::default();
    result.plan.version = version.to_owned();
    write_json(&result, path)
}

fn contains(path: &Path, version: &str) -> bool {
    fs::read_to_string(path).unwrap().contains(version)
}

#[test]
fn replaces_file_without_overwriting_old_inode() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("run.json"), directory.path().join("old"));
    write(&path, "first").unwrap();
    fs::hard_link(&path, &old).unwrap();
    write(&path, "second").unwrap();
    assert!(contains(&path, "second") && contains(&old, "first"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "temporary file was left behind");
}

#[test]
fn failed_write_leaves_file_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    write(&path, "first").unwrap();
    fs::create_dir(directory.path().join("run.json.part")).unwrap();
    assert!(write(&path, "second").is_err());
    assert!(contains(&path, "first"));
}

#[test]
fn keeps_symlinks_and_writes_to_devices_directly() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    fs::write(&file, "first").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    write(&link, "second").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(contains(&file, "second"));
    write(Path::new("/dev/null"), "anything").unwrap();
    assert!(!Path::new("/dev/null.part").exists());
}
