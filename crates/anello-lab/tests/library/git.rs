//! Git commands for tests. They are independent of the developer's configuration and affect only the given directory.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Environment variables that git sets in hooks and that refer to the developer's repository.
const REPOSITORY_VARIABLES: [&str; 5] =
    ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"];

/// Environment of the git commands. The tests read refs from files, which requires the ref format "files".
const SETTINGS: [(&str, &str); 3] =
    [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_DEFAULT_REF_FORMAT", "files")];

/// Returns `true` if git is installed. Otherwise, writes a note directly to standard error, because the test harness
/// captures the output of macros.
pub fn is_here() -> bool {
    let mut version = Command::new("git");
    let is_installed =
        version.arg("--version").stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    if !is_installed {
        let note = b"`git --version` fails: skipping the tests that need a repository\n";
        std::io::stderr().write_all(note).unwrap();
    }
    is_installed
}

/// Runs a git command in a directory.
///
/// # Panics
/// Panics if the command cannot be started or fails.
pub fn git(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=one", "-c", "user.email=one@example.org"]);
    command.args(arguments).current_dir(directory);
    for variable in REPOSITORY_VARIABLES {
        command.env_remove(variable);
    }
    let output = command.envs(SETTINGS).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
