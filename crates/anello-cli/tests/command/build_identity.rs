//! Tests for the build script: the source commit, the build tools, and the output of `anello --version`.

use std::fs;
use std::path::Path;
use std::process::Command;

// The build script as a module. Only Cargo calls its `main`.
#[allow(dead_code)]
#[path = "../../build.rs"]
mod build;

#[path = "../../../anello-lab/tests/library/git.rs"]
mod git;

const MAIN: &str = "crates/anello-cli/src/main.rs";

/// Creates a git repository containing a workspace with one crate. Returns `None` if git is not installed.
fn repository() -> Option<tempfile::TempDir> {
    let root = git::is_here().then(tempfile::tempdir)?.unwrap();
    for file in ["Cargo.toml", "Cargo.lock", "README.md", MAIN] {
        write(root.path(), file, "one");
    }
    write(root.path(), "crates/anello-cli/Cargo.toml", "one");
    write(root.path(), "crates/anello-cli/tests/one.rs", "one");
    make_repository(root.path());
    Some(root)
}

/// Initializes a git repository in a directory and commits all files.
fn make_repository(root: &Path) {
    for arguments in [&["init"][..], &["add", "."], &["commit", "-m", "one"]] {
        git::git(root, arguments);
    }
}

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn commit(root: &Path) -> Result<String, &'static str> {
    build::commit(root, &build::source_paths(root))
}

/// Asserts that the commit of a workspace is unknown for this reason, and that there are no git state files to watch.
fn assert_unknown(root: &Path, expected: &str) {
    let reason = commit(root).unwrap_err();
    assert!(reason.contains(expected), "{reason}");
    assert_eq!(build::commit_state_files(root), Vec::<std::path::PathBuf>::new());
}

fn is_commit(text: &str) -> bool {
    let digits = text.strip_suffix("+changes").unwrap_or(text);
    digits.len() >= 12 && digits.chars().all(|digit| digit.is_ascii_hexdigit())
}

#[test]
fn only_changed_sources_set_changes_suffix() {
    let Some(root) = repository() else { return };
    let root = root.path();
    let clean = commit(root).unwrap();
    assert!(is_commit(&clean) && !clean.contains('+'), "{clean}");
    write(root, "README.md", "two");
    write(root, "crates/anello-cli/tests/one.rs", "two");
    write(root, "crates/anello-cli/src/untracked.rs", "two");
    assert_eq!(commit(root).as_ref(), Ok(&clean), "none of these files is compiled into the binary");
    write(root, MAIN, "two");
    assert_eq!(commit(root), Ok(format!("{clean}+changes")));
    git::git(root, &["commit", "-a", "-m", "two"]);
    let next = commit(root).unwrap();
    assert!(is_commit(&next) && !next.contains('+') && next != clean, "{next}");
    fs::remove_file(root.join("Cargo.lock")).unwrap();
    assert!(commit(root).is_ok(), "a missing file is not an error");
}

/// The commit is part of the binary, so a changed commit would change the binary's hash.
#[test]
fn reported_commit_ignores_unrelated_files() {
    let Some(root) = repository() else { return };
    let root = root.path();
    let first = commit(root);
    assert!(first.is_ok(), "{first:?}");
    write(root, "README.md", "two");
    write(root, "crates/anello-cli/tests/one.rs", "two");
    git::git(root, &["commit", "-a", "-m", "two"]);
    assert_eq!(commit(root), first);
    write(root, "Cargo.lock", "three");
    git::git(root, &["commit", "-a", "-m", "three"]);
    assert_ne!(commit(root), first);
}

#[test]
fn unknown_commit_has_a_reason() {
    assert_unknown(Path::new("/nonexistent"), "git cannot be run");
    let Some(root) = repository() else { return };
    let plain = tempfile::tempdir().unwrap();
    write(plain.path(), MAIN, "one");
    assert_unknown(plain.path(), "not in a git repository of their own");
    let vendored = root.path().join("vendor/anello");
    write(&vendored, MAIN, "one");
    assert_unknown(&vendored, "not in a git repository of their own");
    write(root.path(), ".git/config", "[core]\n\trepositoryformatversion = 99\n");
    assert_unknown(root.path(), "git rejects the repository");
    // An unrelated repository that has the workspace directory as its top level but does not track this crate.
    write(plain.path(), "crates/other/Cargo.toml", "one");
    make_repository(plain.path());
    write(plain.path(), "crates/anello-cli/Cargo.toml", "one");
    assert_unknown(plain.path(), "not in a git repository of their own");
    let empty = tempfile::tempdir().unwrap();
    write(empty.path(), "crates/anello-cli/Cargo.toml", "one");
    git::git(empty.path(), &["init"]);
    git::git(empty.path(), &["add", "."]);
    assert!(commit(empty.path()).unwrap_err().contains("not committed to the repository"));
}

#[test]
fn published_crate_reports_commit_from_vcs_info() {
    let directory = tempfile::tempdir().unwrap();
    let published = |text: &str| {
        write(directory.path(), ".cargo_vcs_info.json", text);
        build::published_commit(directory.path())
    };
    assert_eq!(build::published_commit(directory.path()), None);
    let hash = "0123456789abcdef0123456789abcdef01234567";
    let text = format!("{{\n  \"git\": {{\n    \"sha1\": \"{hash}\"\n  }},\n  \"path_in_vcs\": \"a\"\n}}");
    assert_eq!(published(&text).as_deref(), Some("0123456789ab"));
    let dirty = text.replace("\n  },", ",\n    \"dirty\": true\n  },");
    assert_eq!(published(&dirty).as_deref(), Some("0123456789ab+changes"));
    for invalid in ["nonsense", "{\"git\": {\"sha1\": \"\"}}", "{\"git\": {\"sha1\": \"no digits at all\"}}"]
    {
        assert_eq!(published(invalid), None, "{invalid}");
    }
}

#[test]
fn watched_files_exist_and_change_with_commit() {
    let Some(root) = repository() else { return };
    let root = root.path();
    let state_files = || build::commit_state_files(root);
    let contents = || state_files().iter().map(|path| fs::read(path).unwrap_or_default()).collect::<Vec<_>>();
    let before = contents();
    let source_paths = build::source_paths(root);
    assert!(state_files().iter().chain(&source_paths).all(|path| path.exists()), "{:?}", state_files());
    git::git(root, &["commit", "--allow-empty", "-m", "two"]);
    assert_ne!(contents(), before);
    // A packed branch has no file of its own. Its directory is watched instead, because the next commit changes it.
    git::git(root, &["pack-refs", "--all"]);
    let state_files = state_files();
    assert!(state_files.iter().all(|path| path.exists()), "{state_files:?}");
    assert!(state_files.iter().any(|path| path.ends_with("packed-refs")), "{state_files:?}");
    assert!(state_files.iter().any(|path| path.ends_with("refs/heads") && path.is_dir()), "{state_files:?}");
    git::git(root, &["checkout", "--detach"]);
    assert!(build::commit_state_files(root).iter().any(|path| path.ends_with("HEAD")));
    assert!(commit(root).is_ok());
}

#[test]
fn tools_include_compiler_and_flags() {
    let variable = |name: &str| match name {
        "PROFILE" => Some("release".to_owned()),
        "DEP_ANELLO_SERVERS_OPT_LEVEL" => Some("3".to_owned()),
        "CARGO_ENCODED_RUSTFLAGS" => Some("-C\u{1f}target-cpu=native".to_owned()),
        _ => None,
    };
    assert_eq!(
        build::tools(Some("rustc 1.95.0".to_owned()), variable),
        "rustc 1.95.0, profile release, opt-level 3, RUSTFLAGS -C target-cpu=native"
    );
    assert_eq!(build::tools(None, |_| None), "rustc (unknown version)");
    let remapped =
        |name: &str| (name == "CARGO_ENCODED_RUSTFLAGS").then(|| "--remap-path-prefix=/a=/b".to_owned());
    assert_eq!(build::tools(None, remapped), "rustc (unknown version)");
}

#[test]
fn directories_are_stripped_from_flags() {
    let tools = |flags: &[&str]| {
        build::tools(None, |name| (name == "CARGO_ENCODED_RUSTFLAGS").then(|| flags.join("\u{1f}")))
    };
    for (flags, expected) in [
        (&["-C", "profile-use=/home/one/merged.profdata"][..], "-C profile-use=merged.profdata"),
        (&["-Cprofile-use=/home/one two/a.profdata"], "-Cprofile-use=a.profdata"),
        (&["--remap-path-prefix=/home/one=/src", "-Cstrip=none"], "-Cstrip=none"),
        (&["-L", "/opt/lib", "-Lnative=/opt/other/", "-L/opt/third"], "-L lib -Lnative=other -Lthird"),
        (&["-Clink-arg=-Wl,-rpath,/opt/a:/opt/b"], "-Clink-arg=-Wl,-rpath,a:b"),
        (&["-Clink-args=-fuse-ld=lld -L/opt/a /opt/b.o"], "-Clink-args=-fuse-ld=lld -La b.o"),
        (&["--cfg", "feature=\"/a/b\""], "--cfg feature=\"b\""),
        (&["-Clink-arg=@/tmp/words"], "-Clink-arg=@words"),
        (&["-Lbeside/it", "-Ctarget-cpu=native"], "-Lbeside/it -Ctarget-cpu=native"),
    ] {
        assert_eq!(tools(flags), format!("rustc (unknown version), RUSTFLAGS {expected}"));
    }
}

#[test]
fn long_version_includes_commit_and_tools() {
    let stdout = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_anello")).args(arguments).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(stdout(&["-V"]), format!("anello {}\n", env!("CARGO_PKG_VERSION")));
    let long = stdout(&["--version"]);
    let lines: Vec<&str> = long.lines().collect();
    let [version, commit, built] = lines.as_slice() else { panic!("{long}") };
    assert_eq!(*version, format!("anello {}", env!("CARGO_PKG_VERSION")));
    let commit = commit.strip_prefix("commit ").unwrap();
    assert!(is_commit(commit) || commit.starts_with("unknown: "), "{commit}");
    assert!(built.starts_with("built with rustc ") && built.contains("opt-level"), "{built}");
}
