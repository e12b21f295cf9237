//! `anello http` that is started as root: which capabilities it keeps, and `--user` and `--group`.

mod served;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use tempfile::TempDir;

use served::tls::{identity, tls};
use served::{BODY, Served, TIMEOUT, ask, drivers, get, until};

const NOBODY: u32 = 65534;

/// A user and a group that no database knows.
const UNKNOWN_USER: (u32, u32) = (54_321, 54_322);

const NO_CAPABILITIES: &str = "0000000000000000";

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root may change to another user");
    }
    is_root
}

/// A folder with `site`, and with `state`, which belongs to this user.
fn places((user, group): (u32, u32)) -> TempDir {
    let places = tempfile::tempdir().expect("a folder");
    fs::set_permissions(places.path(), Permissions::from_mode(0o755)).expect("rights");
    for name in ["site", "state"] {
        fs::create_dir(places.path().join(name)).expect("a folder");
    }
    fs::write(places.path().join("site/hello.txt"), BODY).expect("a file");
    chown(places.path().join("state"), Some(user), Some(group)).expect("it is given away");
    places
}

fn start(places: &TempDir, arguments: &[&str]) -> Served {
    Served::of(command(places, arguments))
}

fn command(places: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(places.path().join("site")).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

/// What it says when it does not start.
fn refused(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("it runs");
    assert_eq!(status.code(), Some(1));
    String::from_utf8_lossy(&stderr).into_owned()
}

/// The values of a line of the status of all threads, each once.
fn status(server: &Served, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("its threads");
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let line = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect("a line").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut found: Vec<_> = statuses.map(line).collect();
    found.sort();
    found.dedup();
    found
}

#[track_caller]
fn has_capabilities(server: &Served, capabilities: &str) {
    for (set, expected) in [
        ("CapEff", capabilities),
        ("CapPrm", capabilities),
        ("CapInh", NO_CAPABILITIES),
        ("CapBnd", NO_CAPABILITIES),
    ] {
        assert_eq!(status(server, set), [expected], "{set}");
    }
}

#[track_caller]
fn is_of(server: &Served, (user, group): (u32, u32), groups: &str) {
    let four = |number: u32| vec![number.to_string(); 4].join(" ");
    assert_eq!(status(server, "Uid"), [four(user)]);
    assert_eq!(status(server, "Gid"), [four(group)]);
    assert_eq!(status(server, "Groups"), [groups]);
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

#[test]
fn fault_40_root_keeps_no_capability() {
    if !is_root() {
        return;
    }
    let places = places((0, 0));
    let log = text(&places.path().join("state/access.log"));
    for driver in drivers() {
        let server = start(&places, &["--addr", "127.0.0.1:0", "--driver", driver, "--access-log", &log]);
        assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
        has_capabilities(&server, NO_CAPABILITIES);
        assert_eq!(status(&server, "Uid"), ["0 0 0 0"]);
        server.end();
    }
    let server = start(&places, &["--addr", "127.0.0.1:0", "--sandbox", "off"]);
    let own = fs::read_to_string("/proc/self/status").expect("a status");
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let line = format!("{set}:\t{}\n", status(&server, set).concat());
        assert!(own.contains(&line), "{line}: {own}");
    }
    server.end();
}

#[test]
fn fault_40_root_keeps_what_paths_of_others_need() {
    if !is_root() {
        return;
    }
    for (closed, capability) in [("state", "0000000000000002"), ("site", "0000000000000004")] {
        let places = places(UNKNOWN_USER);
        let log = text(&places.path().join("state/access.log"));
        let path = places.path().join(closed);
        chown(&path, Some(UNKNOWN_USER.0), Some(UNKNOWN_USER.1)).expect("it is given away");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("rights");
        let arguments: &[&str] = if closed == "state" { &["--access-log", &log] } else { &[] };
        let mut server = start(&places, &[&["--addr", "127.0.0.1:0"], arguments].concat());
        assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
        has_capabilities(&server, capability);
        server.signal(Signal::HUP);
        assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
        drop(server.output());
        server.end();
        if closed == "state" {
            assert_eq!(fs::read_to_string(&log).expect("a log").lines().count(), 2);
        }
    }
}

#[test]
fn fault_40_user_and_group_are_those_of_every_thread() {
    if !is_root() {
        return;
    }
    let (nobody, stranger) = ((NOBODY, NOBODY), UNKNOWN_USER);
    let own_groups = status_of_self("Groups");
    for (flags, expected, groups) in [
        (&["--user", "nobody"][..], nobody, "65534".to_owned()),
        (&["--user", "65534", "--group", "daemon"], (NOBODY, 1), "1".to_owned()),
        (&["--user", "54321", "--group", "54322"], stranger, "54322".to_owned()),
        (&["--group", "54322"], (0, stranger.1), "54322".to_owned()),
        (&["--user", "0"], (0, 0), own_groups),
    ] {
        for sandbox in ["auto", "off"] {
            let places = places(expected);
            // A port that only root may bind.
            let low = ["--addr", "127.77.66.55:77", "--metrics-addr", "127.0.0.1:0", "--sandbox", sandbox];
            let log = text(&places.path().join("state/access.log"));
            let server = start(&places, &[&low[..], flags, &["--access-log", &log]].concat());
            assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
            is_of(&server, expected, &groups);
            if expected.0 != 0 || sandbox == "auto" {
                assert_eq!(status(&server, "CapEff"), [NO_CAPABILITIES]);
                assert_eq!(status(&server, "CapPrm"), [NO_CAPABILITIES]);
            }
            if flags != ["--user", "0"] || sandbox == "auto" {
                assert_eq!(status(&server, "CapBnd"), [NO_CAPABILITIES]);
            }
            // What the metrics say of the process is still to be had.
            assert!(get(server.ready_value("metrics"), "/metrics").contains("\nprocess_open_fds "));
            server.end();
            let found = fs::metadata(&log).expect("a log");
            assert_eq!((found.uid(), found.gid()), expected);
        }
    }
}

fn status_of_self(name: &str) -> String {
    let own = fs::read_to_string("/proc/self/status").expect("a status");
    let line = own.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a line");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn user_serves_by_socket_files_reopens_its_log_and_hands_over() {
    if !is_root() {
        return;
    }
    for driver in drivers() {
        let places = places((NOBODY, NOBODY));
        let at = |name: &str| places.path().join("state").join(name);
        let [socket, door, log, rotated] = ["http", "door", "access.log", "access.log.1"].map(at);
        let [address, door_path, log_file] = [format!("unix:{}", socket.display()), text(&door), text(&log)];
        let arguments = ["--addr", &address, "--driver", driver, "--handover", &door_path];
        let arguments = [&arguments[..], &["--user", "nobody", "--access-log", &log_file]].concat();
        let served = || {
            let stream = UnixStream::connect(&socket).expect("connects");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            assert!(String::from_utf8_lossy(&ask(stream, "GET /hello.txt", "")).ends_with(BODY));
        };
        let first = start(&places, &arguments);
        served();
        for file in [&socket, &door] {
            assert_eq!(fs::metadata(file).expect("a socket").uid(), NOBODY);
        }
        until(|| fs::metadata(&log).is_ok_and(|found| found.len() > 0));
        fs::rename(&log, &rotated).expect("renamed");
        first.signal(Signal::HUP);
        until(|| log.exists());
        // Two in a row: the sockets come from a server that is no longer root.
        let second = start(&places, &arguments);
        first.ended();
        let third = start(&places, &arguments);
        second.ended();
        served();
        is_of(&third, (NOBODY, NOBODY), "65534");
        third.end();
        assert!(!socket.exists() && !door.exists(), "{driver}");
    }
}

#[test]
fn user_reads_certificates_again_or_the_server_does_not_start() {
    if !is_root() {
        return;
    }
    let places = places((NOBODY, NOBODY));
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| places.path().join("state").join(name));
    let first = identity(&certificate, &key);
    let [certificate_file, key_file] = [&certificate, &key].map(|path| text(path));
    let files = [
        "--addr",
        "127.0.0.1:0",
        "--tls-cert",
        &certificate_file,
        "--tls-key",
        &key_file,
        "--user",
        "nobody",
    ];
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("rights");
    for check in [&[][..], &["--check"]] {
        let said = refused(command(&places, &[&files[..], check].concat()));
        assert!(said.contains("key.pem") && said.contains("ermission denied"), "{said}");
        assert!(said.contains("chgrp") || !check.is_empty(), "{said}");
    }
    chown(&key, None, Some(NOBODY)).expect("it is given away");
    fs::set_permissions(&key, Permissions::from_mode(0o640)).expect("rights");
    let server = start(&places, &files);
    let mut stream = tls(&first, server.ready_value("addr"));
    stream.write_all(served::request(false).as_bytes()).expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with(BODY));
    let second = identity(&certificate, &key);
    server.signal(Signal::HUP);
    until(|| {
        let mut stream = tls(&second, server.ready_value("addr"));
        stream.conn.complete_io(&mut stream.sock).is_ok()
    });
    server.end();
}

#[test]
fn errors_of_user_and_group_name_cause_and_remedy() {
    if !is_root() {
        return;
    }
    let places = places((0, 0));
    let socket = format!("unix:{}", places.path().join("state/http").display());
    let internet = "127.0.0.1:0";
    for (address, flags, words) in [
        (
            internet,
            &["--user", "no-such-user"][..],
            ["--user no-such-user: there is no such user", "create it"],
        ),
        (
            internet,
            &["--group", "no-such-group"],
            ["--group no-such-group: there is no such group", "create it"],
        ),
        (internet, &["--user", "54321"], ["--user 54321: the user database has no entry", "add --group"]),
        (
            &socket,
            &["--user", "nobody"],
            ["ermission denied", "give this user the right to make files there"],
        ),
    ] {
        for check in [&[][..], &["--check"]] {
            let said = refused(command(&places, &[&["--addr", address], flags, check].concat()));
            assert!(words.iter().all(|word| said.contains(word)), "{flags:?} {check:?}: {said}");
        }
    }
    assert!(!places.path().join("state/http").exists());
    // Opening a folder needs no right to it.
    fs::set_permissions(places.path().join("site"), Permissions::from_mode(0o700)).expect("rights");
    for check in [&[][..], &["--check"]] {
        let said = refused(command(&places, &[&["--addr", internet, "--user", "nobody"], check].concat()));
        assert!(said.contains("ermission denied") && said.contains("chmod o+x"), "{said}");
    }
    fs::set_permissions(places.path().join("site"), Permissions::from_mode(0o755)).expect("rights");
    for check in [&[][..], &["--check"]] {
        let mut command = command(&places, &[&["--addr", internet, "--user", "daemon"], check].concat());
        command.uid(NOBODY).gid(NOBODY);
        match command.output() {
            Ok(Output { stderr, .. }) => {
                let said = String::from_utf8_lossy(&stderr).into_owned();
                assert!(said.contains("--user daemon: ") && said.contains("start it as root"), "{said}");
            }
            Err(error) => eprintln!("skipped in part: nobody may not start what was built here: {error}"),
        }
    }
    // As keys of a file, and looked at as that user.
    let file = places.path().join("site.toml");
    fs::write(&file, "user = \"nobody\"\ngroup = \"daemon\"\n").expect("a file");
    let mut command = command(&places, &["--check", "--config", &text(&file)]);
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let told = String::from_utf8_lossy(&stdout);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert!(told.contains("user = \"nobody\"") && told.contains("group = \"daemon\""), "{told}");
}
