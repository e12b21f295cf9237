//! Git for tests: whatever a developer has set up, it acts on the folder that it is given and on nothing else.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Set within hooks of git, where they name the developer's repository.
const REPOSITORY_VARIABLES: [&str; 5] =
    ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"];

/// The format of references is the one whose files tests look at.
const SETTINGS: [(&str, &str); 3] =
    [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_DEFAULT_REF_FORMAT", "files")];

/// Whether there is a git here. What a test leaves out without it, it says past the test harness, which would keep it to
/// itself.
pub fn is_here() -> bool {
    let mut version = Command::new("git");
    let here =
        version.arg("--version").stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    if !here {
        let why = b"`git --version` fails: what needs a repository is not tested\n";
        std::io::stderr().write_all(why).unwrap();
    }
    here
}

/// Runs a command of git's in a folder; whatever fails, fails the test.
pub fn git(folder: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=one", "-c", "user.email=one@example.org"]).args(words).current_dir(folder);
    for variable in REPOSITORY_VARIABLES {
        command.env_remove(variable);
    }
    let output = command.envs(SETTINGS).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}
