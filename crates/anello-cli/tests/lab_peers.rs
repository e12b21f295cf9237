//! `anello lab peers`, run as a user would, on a folder of peers that are shell scripts.

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
hint = "it needs luck"

[[contender]]
name = "CONTENDER"
driver = "epoll"
"#;

/// A folder of peers, and the names of those in it. They are built in the target directory, where the names of one test
/// must not meet those of another.
struct Fixture {
    folder: tempfile::TempDir,
    names: Vec<String>,
}

impl Fixture {
    fn new(test: &str, builds: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut names = Vec::new();
        for (name, build) in builds {
            let full = format!("test-{test}-{name}");
            let manifest = MANIFEST.replace("NAME", &full).replace("CONTENDER", name).replace("BUILD", build);
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("peer.toml"), manifest).unwrap();
            names.push(full);
        }
        Self { folder, names }
    }

    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.args(["lab", "peers"]).args(words).arg("--peers").arg(self.folder.path());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = [stdout, stderr].concat();
        (status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    fn out(&self, name: &str) -> PathBuf {
        let target = Path::new(env!("CARGO_BIN_EXE_anello")).ancestors();
        let mut target = target.filter(|folder| folder.join("CACHEDIR.TAG").is_file());
        target.next().unwrap().join("peers").join(name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for name in &self.names {
            // Not there if it was never built.
            fs::remove_dir_all(self.out(name)).ok();
        }
    }
}

#[test]
fn what_can_be_built_is_and_what_cannot_is_told() {
    let good = "echo > {out}/server";
    let fixture = Fixture::new("build", &[("good", good), ("bad", "echo no uv.h; exit 1")]);
    let (code, text) = fixture.run(&["list"]);
    assert_eq!((code, text.matches("not built").count()), (Some(0), 2), "{text}");

    let (code, text) = fixture.run(&["build"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("test-build-good built: shell 5.2 with sh 1"), "{text}");
    assert!(text.contains("test-build-bad not built: sh -c"), "{text}");
    assert!(text.contains("it needs luck\n    $ sh -c") && text.contains("\n    no uv.h\n"), "{text}");

    let (code, text) = fixture.run(&["build", "good"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("is up to date"), "{text}");
    let (code, text) = fixture.run(&["build", "good", "--force"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("built: shell"), "{text}");
    let (code, text) = fixture.run(&["build", "good", "bad"]);
    assert_eq!(code, Some(1), "it was asked for by name: {text}");

    let (_, text) = fixture.run(&["list"]);
    assert_eq!(text.matches("not built").count(), 1, "{text}");
    assert!(fixture.out("test-build-good").join("built.json").is_file());
    let row = ["test-build-good", "good", "echo", "epoll", "Shell", "5.2", "built"];
    assert!(text.lines().any(|line| line.split_whitespace().eq(row)), "{text}");
}

#[test]
fn unknown_names_and_folders_are_told() {
    let fixture = Fixture::new("unknown", &[("good", "true")]);
    let (code, text) = fixture.run(&["build", "tokyo"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no peer \"tokyo\" (known peers: test-unknown-good"), "{text}");
    fs::remove_file(fixture.folder.path().join("good/peer.toml")).unwrap();
    let (code, text) = fixture.run(&["list"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("is this the directory of peers?"), "{text}");
}
