//! `anello http` as a user who may not read everything, as it should be run.

mod served;

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use served::{Served, get};

/// Root may do everything: this user is nobody.
const NOBODY: u32 = 65534;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(folder).args(["--addr", "127.0.0.1:0", "--driver", "epoll"]).args(arguments);
    command.env_remove("ANELLO_DRIVER");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Whether that user may start the program, wherever it was built.
fn check_can_start() -> io::Result<()> {
    let mut command = command(Path::new("/"), &["--check"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().map(drop)
}

/// A folder with rights that its owner lacks, too.
fn site() -> tempfile::TempDir {
    let site = tempfile::tempdir().expect("a folder");
    let at = |path: &str| site.path().join(path);
    for folder in ["entered", "closed", "unread-index", "listed"] {
        fs::create_dir(at(folder)).expect("a folder");
    }
    for file in
        ["index.html", "entered/index.html", "entered/file", "closed/index.html", "unread-index/index.html"]
    {
        fs::write(at(file), file).expect("a file");
    }
    for (file, mode) in [("listed/open", 0o444), ("listed/unread", 0o300), ("unread-index/file", 0o444)] {
        fs::write(at(file), file).expect("a file");
        fs::set_permissions(at(file), Permissions::from_mode(mode)).expect("rights");
    }
    fs::create_dir(at("listed/unentered")).expect("a folder");
    for (link, target) in
        [("to-entered", "../entered"), ("to-unentered", "unentered"), ("to-unread", "unread")]
    {
        symlink(target, at("listed").join(link)).expect("a link");
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
        fs::set_permissions(at(path), Permissions::from_mode(mode)).expect("rights");
    }
    site
}

/// Its owner has to be able to remove it.
fn give_back(site: &tempfile::TempDir) {
    for path in ["", "closed", "entered", "listed/unentered"] {
        fs::set_permissions(site.path().join(path), Permissions::from_mode(0o700)).expect("rights");
    }
}

#[test]
fn folders_need_not_be_readable_and_what_may_not_be_read_is_not_there() {
    if let Err(error) = check_can_start() {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        return eprintln!("skipped: nobody may not start what was built here: {error}");
    }
    let site = site();
    let server = Served::of(command(site.path(), &["--listing"]));
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
        // There is a page in the place of the list.
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
    // Without its index file, it would have to be read.
    fs::set_permissions(site.path(), Permissions::from_mode(0o700)).expect("rights");
    fs::remove_file(site.path().join("index.html")).expect("it is there");
    fs::set_permissions(site.path(), Permissions::from_mode(0o311)).expect("rights");
    let server = Served::of(command(site.path(), &["--listing"]));
    assert!(get(server.ready_value("addr"), "/").starts_with("HTTP/1.1 404 "));
    give_back(&site);
}
