//! What the build script finds out about commit and compiler, and where the command says it.

use std::fs;
use std::path::Path;
use std::process::Command;

// The script itself; its `main` is Cargo's to call.
#[allow(dead_code)]
#[path = "../build.rs"]
mod build;

/// A repository with a workspace of one crate; none if there is no git.
fn repository() -> Option<tempfile::TempDir> {
    let root = tempfile::tempdir().unwrap();
    for file in ["Cargo.toml", "Cargo.lock", "README.md", "crates/one/src/main.rs", "crates/one/tests/one.rs"]
    {
        write(root.path(), file, "one");
    }
    let made = git(root.path(), &["init"]) && git(root.path(), &["add", "."]);
    (made && git(root.path(), &["commit", "-m", "one"])).then_some(root)
}

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn git(folder: &Path, words: &[&str]) -> bool {
    let identity = ["-c", "user.name=one", "-c", "user.email=one@example.org"];
    let mut command = Command::new("git");
    command.args(identity).args(words).current_dir(folder);
    command.output().is_ok_and(|output| output.status.success())
}

fn commit(root: &Path) -> Option<String> {
    build::commit(root, &build::sources(root))
}

fn is_commit(text: &str) -> bool {
    let digits = text.strip_suffix("+changes").unwrap_or(text);
    digits.len() >= 12 && digits.chars().all(|digit| digit.is_ascii_hexdigit())
}

#[test]
fn the_mark_of_changes_is_for_sources_of_the_program() {
    let Some(root) = repository() else { return };
    let root = root.path();
    let clean = commit(root).unwrap();
    assert!(is_commit(&clean) && !clean.contains('+'), "{clean}");
    write(root, "README.md", "two");
    write(root, "crates/one/tests/one.rs", "two");
    write(root, "crates/one/src/untracked.rs", "two");
    assert_eq!(commit(root).as_ref(), Some(&clean), "nothing of these is in the program");
    write(root, "crates/one/src/main.rs", "two");
    assert_eq!(commit(root), Some(format!("{clean}+changes")));
    assert!(git(root, &["commit", "-a", "-m", "two"]));
    let next = commit(root).unwrap();
    assert!(is_commit(&next) && !next.contains('+') && next != clean, "{next}");
    fs::remove_file(root.join("Cargo.lock")).unwrap();
    assert!(commit(root).is_some(), "what is missing fails nothing");
}

#[test]
fn outside_of_a_repository_of_its_own_a_workspace_has_no_commit() {
    let plain = tempfile::tempdir().unwrap();
    write(plain.path(), "crates/one/src/main.rs", "one");
    assert_eq!(commit(plain.path()), None);
    assert_eq!(build::marks_of_commit(plain.path()), Vec::<std::path::PathBuf>::new());
    let Some(root) = repository() else { return };
    write(root.path(), "vendor/anello/crates/one/src/main.rs", "one");
    assert_eq!(commit(&root.path().join("vendor/anello")), None, "somebody else's");
    let empty = tempfile::tempdir().unwrap();
    assert!(git(empty.path(), &["init"]));
    assert_eq!(commit(empty.path()), None, "no commit yet");
}

#[test]
fn what_cargo_watches_is_there_and_changes_with_the_commit() {
    let Some(root) = repository() else { return };
    let root = root.path();
    let marks = || build::marks_of_commit(root);
    let contents = || marks().iter().map(|path| fs::read(path).unwrap_or_default()).collect::<Vec<_>>();
    let before = contents();
    assert!(marks().iter().chain(&build::sources(root)).all(|path| path.exists()), "{:?}", marks());
    assert!(git(root, &["commit", "--allow-empty", "-m", "two"]));
    assert_ne!(contents(), before);
    // Packed, a branch has no file of its own: the folder takes its place, which the next commit writes to.
    assert!(git(root, &["pack-refs", "--all"]));
    let marks = marks();
    assert!(marks.iter().all(|path| path.exists()), "{marks:?}");
    assert!(marks.iter().any(|path| path.ends_with("packed-refs")), "{marks:?}");
    assert!(marks.iter().any(|path| path.ends_with("refs/heads") && path.is_dir()), "{marks:?}");
    assert!(git(root, &["checkout", "--detach"]));
    assert!(build::marks_of_commit(root).iter().any(|path| path.ends_with("HEAD")));
    assert!(commit(root).is_some());
}

#[test]
fn the_compiler_is_told_with_its_flags() {
    let variable = |name: &str| match name {
        "PROFILE" => Some("release".to_owned()),
        "OPT_LEVEL" => Some("3".to_owned()),
        "CARGO_ENCODED_RUSTFLAGS" => Some("-C\u{1f}target-cpu=native".to_owned()),
        _ => None,
    };
    assert_eq!(
        build::tools(Some("rustc 1.95.0".to_owned()), variable),
        "rustc 1.95.0, profile release, opt-level 3, RUSTFLAGS -C target-cpu=native"
    );
    assert_eq!(build::tools(None, |_| None), "rustc of unknown version");
}

#[test]
fn the_long_version_says_all_of_it_and_the_short_one_the_version() {
    let said = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_anello")).args(words).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said(&["-V"]), format!("anello {}\n", env!("CARGO_PKG_VERSION")));
    let long = said(&["--version"]);
    let lines: Vec<&str> = long.lines().collect();
    let [version, commit, built] = lines.as_slice() else { panic!("{long}") };
    assert_eq!(*version, format!("anello {}", env!("CARGO_PKG_VERSION")));
    let commit = commit.strip_prefix("commit ").unwrap();
    assert!(is_commit(commit) || commit.starts_with("unknown: "), "{commit}");
    assert!(built.starts_with("built with rustc ") && built.contains("opt-level"), "{built}");
}
