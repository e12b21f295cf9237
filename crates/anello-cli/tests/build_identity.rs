//! What the build script finds out about commit and compiler, and where the command says it.

use std::fs;
use std::path::Path;
use std::process::Command;

// The script itself; its `main` is Cargo's to call.
#[allow(dead_code)]
#[path = "../build.rs"]
mod build;

#[path = "../../anello-lab/tests/common/git.rs"]
mod git;

const MAIN: &str = "crates/anello-cli/src/main.rs";

/// A repository with a workspace of one crate; none if there is no git.
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

/// Makes a folder a repository, with all that is in it committed.
fn make_repository(root: &Path) {
    for words in [&["init"][..], &["add", "."], &["commit", "-m", "one"]] {
        git::git(root, words);
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

/// That a workspace has no commit, for this reason, and nothing to watch for another.
fn assert_unknown(root: &Path, reason: &str) {
    let why = commit(root).unwrap_err();
    assert!(why.contains(reason), "{why}");
    assert_eq!(build::commit_state_files(root), Vec::<std::path::PathBuf>::new());
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
    write(root, "crates/anello-cli/tests/one.rs", "two");
    write(root, "crates/anello-cli/src/untracked.rs", "two");
    assert_eq!(commit(root).as_ref(), Ok(&clean), "nothing of these is in the program");
    write(root, MAIN, "two");
    assert_eq!(commit(root), Ok(format!("{clean}+changes")));
    git::git(root, &["commit", "-a", "-m", "two"]);
    let next = commit(root).unwrap();
    assert!(is_commit(&next) && !next.contains('+') && next != clean, "{next}");
    fs::remove_file(root.join("Cargo.lock")).unwrap();
    assert!(commit(root).is_ok(), "what is missing fails nothing");
}

/// The commit is in the program, whose hash would change with it.
#[test]
fn a_commit_of_something_else_does_not_change_the_program() {
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
fn without_a_commit_of_its_own_a_workspace_says_why_it_has_none() {
    assert_unknown(Path::new("/nonexistent"), "git cannot be run");
    let Some(root) = repository() else { return };
    let plain = tempfile::tempdir().unwrap();
    write(plain.path(), MAIN, "one");
    assert_unknown(plain.path(), "no git repository of their own");
    let vendored = root.path().join("vendor/anello");
    write(&vendored, MAIN, "one");
    assert_unknown(&vendored, "no git repository of their own");
    write(root.path(), ".git/config", "[core]\n\trepositoryformatversion = 99\n");
    assert_unknown(root.path(), "git refuses the repository");
    // Somebody else's, whose top is where that of this crate would be.
    write(plain.path(), "crates/other/Cargo.toml", "one");
    make_repository(plain.path());
    write(plain.path(), "crates/anello-cli/Cargo.toml", "one");
    assert_unknown(plain.path(), "no git repository of their own");
    let empty = tempfile::tempdir().unwrap();
    write(empty.path(), "crates/anello-cli/Cargo.toml", "one");
    git::git(empty.path(), &["init"]);
    git::git(empty.path(), &["add", "."]);
    assert!(commit(empty.path()).unwrap_err().contains("no commit of the sources"));
}

#[test]
fn a_published_crate_has_the_commit_that_it_was_published_from() {
    let folder = tempfile::tempdir().unwrap();
    let published = |text: &str| {
        write(folder.path(), ".cargo_vcs_info.json", text);
        build::published_commit(folder.path())
    };
    assert_eq!(build::published_commit(folder.path()), None);
    let hash = "0123456789abcdef0123456789abcdef01234567";
    let text = format!("{{\n  \"git\": {{\n    \"sha1\": \"{hash}\"\n  }},\n  \"path_in_vcs\": \"a\"\n}}");
    assert_eq!(published(&text).as_deref(), Some("0123456789ab"));
    let dirty = text.replace("\n  },", ",\n    \"dirty\": true\n  },");
    assert_eq!(published(&dirty).as_deref(), Some("0123456789ab+changes"));
    for odd in ["nonsense", "{\"git\": {\"sha1\": \"\"}}", "{\"git\": {\"sha1\": \"no digits at all\"}}"] {
        assert_eq!(published(odd), None, "{odd}");
    }
}

#[test]
fn what_cargo_watches_is_there_and_changes_with_the_commit() {
    let Some(root) = repository() else { return };
    let root = root.path();
    let marks = || build::commit_state_files(root);
    let contents = || marks().iter().map(|path| fs::read(path).unwrap_or_default()).collect::<Vec<_>>();
    let before = contents();
    assert!(marks().iter().chain(&build::source_paths(root)).all(|path| path.exists()), "{:?}", marks());
    git::git(root, &["commit", "--allow-empty", "-m", "two"]);
    assert_ne!(contents(), before);
    // Packed, a branch has no file of its own: the folder takes its place, which the next commit writes to.
    git::git(root, &["pack-refs", "--all"]);
    let marks = marks();
    assert!(marks.iter().all(|path| path.exists()), "{marks:?}");
    assert!(marks.iter().any(|path| path.ends_with("packed-refs")), "{marks:?}");
    assert!(marks.iter().any(|path| path.ends_with("refs/heads") && path.is_dir()), "{marks:?}");
    git::git(root, &["checkout", "--detach"]);
    assert!(build::commit_state_files(root).iter().any(|path| path.ends_with("HEAD")));
    assert!(commit(root).is_ok());
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
fn flags_tell_no_folders_of_the_machine() {
    let told = |flags: &[&str]| {
        build::tools(None, |name| (name == "CARGO_ENCODED_RUSTFLAGS").then(|| flags.join("\u{1f}")))
    };
    for (flags, expected) in [
        (&["-C", "profile-use=/home/one/merged.profdata"][..], "-C profile-use=merged.profdata"),
        (&["-Cprofile-use=/home/one two/a.profdata"], "-Cprofile-use=a.profdata"),
        (&["--remap-path-prefix=/home/one/=/src"], "--remap-path-prefix=one=src"),
        (&["-L", "/opt/lib", "-Lnative=/opt/other/", "-L/opt/third"], "-L lib -Lnative=other -Lthird"),
        (&["-Clink-arg=-Wl,-rpath,/opt/a:/opt/b"], "-Clink-arg=-Wl,-rpath,a:b"),
        (&["-Clink-args=-fuse-ld=lld -L/opt/a /opt/b.o"], "-Clink-args=-fuse-ld=lld -La b.o"),
        (&["--cfg", "feature=\"/a/b\""], "--cfg feature=\"b\""),
        (&["-Clink-arg=@/tmp/words"], "-Clink-arg=@words"),
        (&["-Lbeside/it", "-Ctarget-cpu=native"], "-Lbeside/it -Ctarget-cpu=native"),
    ] {
        assert_eq!(told(flags), format!("rustc of unknown version, RUSTFLAGS {expected}"));
    }
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
