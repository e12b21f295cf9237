//! Tests for `anello lab peers`, run as a child process, with peers that are shell scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MANIFEST: &str = r#"name = "NAME"
title = "a shell script"
language = "Shell"
kind = "loop"
library = "shell"
version_command = ["sh", "-c", "echo 5.2"]
toolchain = ["sh"]
compiler = ["sh", "-c", "echo sh 1"]
build = [["sh", "-c", "BUILD"]]
program = ["{out}/server"]
hint = "install libuv"

[[contender]]
name = "CONTENDER"
driver = "epoll"
"#;

/// A temporary directory with peers. All tests build peers in the same target directory, so the peer names contain the
/// test name.
struct Fixture {
    directory: tempfile::TempDir,
    names: Vec<String>,
}

impl Fixture {
    fn new(test: &str, builds: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut names = Vec::new();
        for (name, build) in builds {
            let full_name = format!("test-{test}-{name}");
            let manifest =
                MANIFEST.replace("NAME", &full_name).replace("CONTENDER", name).replace("BUILD", build);
            fs::create_dir(directory.path().join(name)).unwrap();
            fs::write(directory.path().join(name).join("peer.toml"), manifest).unwrap();
            names.push(full_name);
        }
        Self { directory, names }
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.args(["lab", "peers"]).args(arguments).arg("--peers").arg(self.directory.path());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = [stdout, stderr].concat();
        (status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    fn out(&self, name: &str) -> PathBuf {
        let target = Path::new(env!("CARGO_BIN_EXE_anello")).ancestors();
        let mut target = target.filter(|directory| directory.join("CACHEDIR.TAG").is_file());
        // Cargo does not mark a target directory that already existed.
        let beside = || self.directory.path().join("../target");
        target.next().map_or_else(beside, Path::to_owned).join("peers").join(name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for name in &self.names {
            // Errors are ignored, because a peer that was not built has no directory.
            fs::remove_dir_all(self.out(name)).ok();
        }
    }
}

#[test]
fn build_continues_after_failed_peer() {
    let good = "echo > {out}/server";
    let fixture = Fixture::new("build", &[("good", good), ("bad", "echo no uv.h; exit 1")]);
    let (code, text) = fixture.run(&["list"]);
    assert_eq!((code, text.matches("not built").count()), (Some(0), 2), "{text}");

    let (code, text) = fixture.run(&["build"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("test-build-good built: shell 5.2 with sh 1"), "{text}");
    assert!(text.contains("test-build-bad not built: sh -c"), "{text}");
    assert!(text.contains("install libuv\n    $ sh -c") && text.contains("\n    no uv.h\n"), "{text}");

    let (code, text) = fixture.run(&["build", "good"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("up to date: shell"), "{text}");
    let (code, text) = fixture.run(&["build", "good", "--force"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("built: shell"), "{text}");
    let (code, text) = fixture.run(&["build", "good", "bad"]);
    assert_eq!(code, Some(1), "a peer named on the command line failed: {text}");

    let (_, text) = fixture.run(&["list"]);
    assert_eq!(text.matches("not built").count(), 1, "{text}");
    assert!(fixture.out("test-build-good").join("built.json").is_file());
    let row = ["test-build-good", "good", "echo", "epoll", "Shell", "5.2", "built"];
    assert!(text.lines().any(|line| line.split_whitespace().eq(row)), "{text}");
}

#[test]
fn unknown_peers_and_directories_are_reported() {
    let fixture = Fixture::new("unknown", &[("good", "true")]);
    let (code, text) = fixture.run(&["build", "tokyo"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("no peer \"tokyo\" (known peers: test-unknown-good"), "{text}");
    fs::remove_file(fixture.directory.path().join("good/peer.toml")).unwrap();
    let (code, text) = fixture.run(&["list"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("is this the peers directory?"), "{text}");
}
