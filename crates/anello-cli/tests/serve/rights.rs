//! Tests for `anello http` running as an unprivileged user without read access to some files.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::served::{Served, get};

/// Unprivileged user, used if the tests run as root.
const NOBODY: u32 = 65534;

fn command(document_root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command
        .arg("http")
        .arg(document_root)
        .args(["--addr", "127.0.0.1:0", "--driver", "epoll"])
        .args(arguments);
    command.env_remove("ANELLO_DRIVER");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Checks that this user can execute the test build.
fn check_can_start() -> io::Result<()> {
    let mut command = command(Path::new("/"), &["--check"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().map(drop)
}

/// Creates a site whose permissions restrict even its owner.
fn site() -> tempfile::TempDir {
    let site = tempfile::tempdir().expect("temporary directory");
    let at = |path: &str| site.path().join(path);
    for name in ["entered", "closed", "unread-index", "listed"] {
        fs::create_dir(at(name)).expect("create directory");
    }
    for file in
        ["index.html", "entered/index.html", "entered/file", "closed/index.html", "unread-index/index.html"]
    {
        fs::write(at(file), file).expect("write file");
    }
    for (file, mode) in [("listed/open", 0o444), ("listed/unread", 0o300), ("unread-index/file", 0o444)] {
        fs::write(at(file), file).expect("write file");
        fs::set_permissions(at(file), Permissions::from_mode(mode)).expect("set permissions");
    }
    fs::create_dir(at("listed/unentered")).expect("create directory");
    for (link, target) in
        [("to-entered", "../entered"), ("to-unentered", "unentered"), ("to-unread", "unread")]
    {
        symlink(target, at("listed").join(link)).expect("create symlink");
    }
    for (path, mode) in [
        ("unread-index/index.html", 0),
        ("unread-index", 0o755),
        ("listed", 0o755),
        ("listed/unentered", 0o444),
        ("closed", 0),
        ("entered", 0o311),
        ("", 0o311),
    ] {
        fs::set_permissions(at(path), Permissions::from_mode(mode)).expect("set permissions");
    }
    site
}

/// Restores the permissions, so that the owner can remove the site.
fn restore_permissions(site: &tempfile::TempDir) {
    for path in ["", "closed", "entered", "listed/unentered"] {
        fs::set_permissions(site.path().join(path), Permissions::from_mode(0o700)).expect("set permissions");
    }
}

#[test]
fn unreadable_directories_are_served_and_unreadable_files_are_hidden() {
    if let Err(error) = check_can_start() {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        return eprintln!("skipped: user nobody cannot execute the test build: {error}");
    }
    let site = site();
    let server = Served::spawn(command(site.path(), &["--listing"]));
    let address = server.ready_value("addr").to_owned();
    let status = |path: &str| get(&address, path).split(' ').nth(1).map(str::to_owned);
    for (path, expected) in [
        ("/", "200"),
        ("/index.html", "200"),
        ("/entered", "301"),
        ("/entered/", "200"),
        ("/entered/file", "200"),
        ("/entered/missing", "404"),
        ("/closed", "404"),
        ("/closed/", "404"),
        ("/closed/index.html", "404"),
        // The server does not serve a listing in place of an unreadable index file.
        ("/unread-index/", "404"),
        ("/unread-index/file", "200"),
        ("/listed/", "200"),
        ("/listed/unread", "404"),
        ("/listed/unentered/", "404"),
    ] {
        assert_eq!(status(path).as_deref(), Some(expected), "{path}");
    }
    let list = get(&address, "/listed/?format=json");
    assert!(
        list.contains("\"open\"") && !list.contains("\"unread\"") && !list.contains("unentered"),
        "{list}"
    );
    assert!(list.contains("\"to-entered\"") && !list.contains("to-un"), "{list}");
    // Without an index file, a listing would require read permission for the directory.
    fs::set_permissions(site.path(), Permissions::from_mode(0o700)).expect("set permissions");
    fs::remove_file(site.path().join("index.html")).expect("process is running");
    fs::set_permissions(site.path(), Permissions::from_mode(0o311)).expect("set permissions");
    let server = Served::spawn(command(site.path(), &["--listing"]));
    assert!(get(server.ready_value("addr"), "/").starts_with("HTTP/1.1 404 "));
    restore_permissions(&site);
}
