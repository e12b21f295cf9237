//! Tests for `anello http` started as root: retained capabilities, `--user` and `--group`.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use anello_test::{hang_timeout, on_each_driver_flag, wait_until};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::served;
use crate::served::tls::{connect_tls, create_identity};
use crate::served::{BODY, Served, get, send_request};

const NOBODY: u32 = 65534;

/// A user and a group without entries in the user and group databases.
const UNKNOWN_USER: (u32, u32) = (54_321, 54_322);

const NO_CAPABILITIES: &str = "0000000000000000";

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root may switch to another user");
    }
    is_root
}

/// Creates a directory that contains `site` and `state`; `state` belongs to this user.
fn test_directory((user, group): (u32, u32)) -> TempDir {
    let test_directory = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(test_directory.path(), Permissions::from_mode(0o755)).expect("set permissions");
    for name in ["site", "state"] {
        fs::create_dir(test_directory.path().join(name)).expect("create directory");
    }
    fs::write(test_directory.path().join("site/hello.txt"), BODY).expect("write file");
    chown(test_directory.path().join("state"), Some(user), Some(group)).expect("chown");
    test_directory
}

fn start(test_directory: &TempDir, arguments: &[&str]) -> Served {
    Served::spawn(command(test_directory, arguments))
}

fn command(test_directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(test_directory.path().join("site")).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

/// Runs a command that must fail at startup, and returns its error messages.
fn startup_error(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("run anello");
    assert_eq!(status.code(), Some(1));
    String::from_utf8_lossy(&stderr).into_owned()
}

/// Returns the distinct values of a status field across all threads.
fn status(server: &Served, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("read task directory");
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let line = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect("status field").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut metadata: Vec<_> = statuses.map(line).collect();
    metadata.sort();
    metadata.dedup();
    metadata
}

#[track_caller]
fn assert_capabilities(server: &Served, capabilities: &str) {
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
fn assert_identity(server: &Served, (user, group): (u32, u32), groups: &str) {
    let four = |number: u32| vec![number.to_string(); 4].join(" ");
    assert_eq!(status(server, "Uid"), [four(user)]);
    assert_eq!(status(server, "Gid"), [four(group)]);
    assert_eq!(status(server, "Groups"), [groups]);
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn fault_40_root_keeps_no_capability() {
    if !is_root() {
        return;
    }
    let test_directory = test_directory((0, 0));
    let log = text(&test_directory.path().join("state/access.log"));
    on_each_driver_flag(|driver| {
        let server =
            start(&test_directory, &["--addr", "127.0.0.1:0", "--driver", driver, "--access-log", &log]);
        assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
        assert_capabilities(&server, NO_CAPABILITIES);
        assert_eq!(status(&server, "Uid"), ["0 0 0 0"]);
        server.stop();
    });
    let server = start(&test_directory, &["--addr", "127.0.0.1:0", "--sandbox", "off"]);
    let own = fs::read_to_string("/proc/self/status").expect("read status");
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let line = format!("{set}:\t{}\n", status(&server, set).concat());
        assert!(own.contains(&line), "{line}: {own}");
    }
    server.stop();
}

#[test]
fn fault_40_root_keeps_capabilities_required_by_paths() {
    if !is_root() {
        return;
    }
    for (restricted, capability) in [("state", "0000000000000002"), ("site", "0000000000000004")] {
        let test_directory = test_directory(UNKNOWN_USER);
        let log = text(&test_directory.path().join("state/access.log"));
        let path = test_directory.path().join(restricted);
        chown(&path, Some(UNKNOWN_USER.0), Some(UNKNOWN_USER.1)).expect("chown");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("set permissions");
        let arguments: &[&str] = if restricted == "state" { &["--access-log", &log] } else { &[] };
        let mut server = start(&test_directory, &[&["--addr", "127.0.0.1:0"], arguments].concat());
        assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
        assert_capabilities(&server, capability);
        server.signal(Signal::HUP);
        assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
        drop(server.output());
        server.stop();
        if restricted == "state" {
            assert_eq!(fs::read_to_string(&log).expect("read log").lines().count(), 2);
        }
    }
}

#[test]
fn fault_40_user_and_group_apply_to_every_thread() {
    if !is_root() {
        return;
    }
    let (nobody, unknown_user) = ((NOBODY, NOBODY), UNKNOWN_USER);
    let own_groups = status_of_self("Groups");
    for (flags, expected, groups) in [
        (&["--user", "nobody"][..], nobody, "65534".to_owned()),
        (&["--user", "65534", "--group", "daemon"], (NOBODY, 1), "1".to_owned()),
        (&["--user", "54321", "--group", "54322"], unknown_user, "54322".to_owned()),
        (&["--group", "54322"], (0, unknown_user.1), "54322".to_owned()),
        (&["--user", "0"], (0, 0), own_groups),
    ] {
        for sandbox in ["auto", "off"] {
            let test_directory = test_directory(expected);
            // A privileged port.
            let common = ["--addr", "127.77.66.55:77", "--metrics-addr", "127.0.0.1:0", "--sandbox", sandbox];
            let log = text(&test_directory.path().join("state/access.log"));
            let server = start(&test_directory, &[&common[..], flags, &["--access-log", &log]].concat());
            assert!(get(server.ready_value("addr"), "/hello.txt").ends_with(BODY));
            assert_identity(&server, expected, &groups);
            if expected.0 != 0 || sandbox == "auto" {
                assert_eq!(status(&server, "CapEff"), [NO_CAPABILITIES]);
                assert_eq!(status(&server, "CapPrm"), [NO_CAPABILITIES]);
            }
            if flags != ["--user", "0"] || sandbox == "auto" {
                assert_eq!(status(&server, "CapBnd"), [NO_CAPABILITIES]);
            }
            // The process metrics are still available.
            assert!(get(server.ready_value("metrics"), "/metrics").contains("\nprocess_open_fds "));
            server.stop();
            let metadata = fs::metadata(&log).expect("read log");
            assert_eq!((metadata.uid(), metadata.gid()), expected);
        }
    }
}

fn status_of_self(name: &str) -> String {
    let own = fs::read_to_string("/proc/self/status").expect("read status");
    let line = own.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("status field");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn server_with_user_serves_unix_socket_reopens_log_and_hands_over() {
    if !is_root() {
        return;
    }
    on_each_driver_flag(|driver| {
        let test_directory = test_directory((NOBODY, NOBODY));
        let at = |name: &str| test_directory.path().join("state").join(name);
        let [socket, handover, log, rotated] = ["http", "handover", "access.log", "access.log.1"].map(at);
        let [address, handover_path, log_file] =
            [format!("unix:{}", socket.display()), text(&handover), text(&log)];
        let arguments = ["--addr", &address, "--driver", driver, "--handover", &handover_path];
        let arguments = [&arguments[..], &["--user", "nobody", "--access-log", &log_file]].concat();
        let assert_serves = || {
            let stream = UnixStream::connect(&socket).expect("connect");
            stream.set_read_timeout(Some(hang_timeout())).expect("set timeout");
            assert!(String::from_utf8_lossy(&send_request(stream, "GET /hello.txt", "")).ends_with(BODY));
        };
        let first = start(&test_directory, &arguments);
        assert_serves();
        for file in [&socket, &handover] {
            assert_eq!(fs::metadata(file).expect("bind socket").uid(), NOBODY);
        }
        wait_until(|| fs::metadata(&log).is_ok_and(|metadata| metadata.len() > 0));
        fs::rename(&log, &rotated).expect("rename");
        first.signal(Signal::HUP);
        wait_until(|| log.exists());
        // Two handovers: the second one transfers sockets from a server that no longer runs as root.
        let second = start(&test_directory, &arguments);
        first.wait_exit();
        let third = start(&test_directory, &arguments);
        second.wait_exit();
        assert_serves();
        assert_identity(&third, (NOBODY, NOBODY), "65534");
        third.stop();
        assert!(!socket.exists() && !handover.exists(), "{driver}");
    });
}

#[test]
fn server_with_user_requires_reloadable_certificates() {
    if !is_root() {
        return;
    }
    let test_directory = test_directory((NOBODY, NOBODY));
    let [certificate, key] =
        ["cert.pem", "key.pem"].map(|name| test_directory.path().join("state").join(name));
    let first = create_identity(&certificate, &key);
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
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("set permissions");
    for check in [&[][..], &["--check"]] {
        let error_text = startup_error(command(&test_directory, &[&files[..], check].concat()));
        assert!(error_text.contains("key.pem") && error_text.contains("ermission denied"), "{error_text}");
        assert!(error_text.contains("chgrp") || !check.is_empty(), "{error_text}");
    }
    chown(&key, None, Some(NOBODY)).expect("chown");
    fs::set_permissions(&key, Permissions::from_mode(0o640)).expect("set permissions");
    let server = start(&test_directory, &files);
    let mut stream = connect_tls(&first, server.ready_value("addr"));
    stream.write_all(served::request(false).as_bytes()).expect("send request");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("read response");
    assert!(response.ends_with(BODY));
    let second = create_identity(&certificate, &key);
    server.signal(Signal::HUP);
    wait_until(|| {
        let mut stream = connect_tls(&second, server.ready_value("addr"));
        stream.conn.complete_io(&mut stream.sock).is_ok()
    });
    server.stop();
}

#[test]
fn socket_file_has_given_owner_and_mode() {
    if !is_root() {
        return;
    }
    on_each_driver_flag(|driver| {
        for (user, owner, expected) in [
            (&["--user", "nobody"][..], "54321:54322", UNKNOWN_USER),
            (&["--user", "nobody"], "54321", (UNKNOWN_USER.0, 0)),
            (&[], "54321:54322", UNKNOWN_USER),
        ] {
            let test_directory = test_directory((NOBODY, NOBODY));
            let socket = test_directory.path().join("state/http");
            let address = format!("unix:{}", socket.display());
            let flags =
                ["--addr", &address, "--driver", driver, "--socket-owner", owner, "--socket-mode", "620"];
            let server = start(&test_directory, &[&flags[..], user].concat());
            let metadata = fs::metadata(&socket).expect("socket file");
            assert_eq!((metadata.uid(), metadata.gid()), expected, "{owner}");
            assert_eq!(metadata.mode() & 0o777, 0o620);
            server.stop();
        }
        let test_directory = test_directory((0, 0));
        let address = format!("unix:{}", test_directory.path().join("state/http").display());
        let flags = ["--addr", &address, "--socket-owner", "no-such-user", "--driver", driver];
        let unknown = startup_error(command(&test_directory, &flags));
        assert!(
            unknown.contains("--socket-owner no-such-user: ") && unknown.contains("unknown user"),
            "{unknown}"
        );
    });
}

#[test]
fn user_and_group_errors_name_cause_and_remedy() {
    if !is_root() {
        return;
    }
    let test_directory = test_directory((0, 0));
    let socket = format!("unix:{}", test_directory.path().join("state/http").display());
    let internet = "127.0.0.1:0";
    for (address, flags, texts) in [
        (internet, &["--user", "no-such-user"][..], ["--user no-such-user: unknown user", "create it"]),
        (internet, &["--group", "no-such-group"], ["--group no-such-group: unknown group", "create it"]),
        (internet, &["--user", "54321"], ["--user 54321: no primary group", "add --group"]),
        (
            &socket,
            &["--user", "nobody"],
            ["ermission denied", "grant this user permission to create files there"],
        ),
    ] {
        for check in [&[][..], &["--check"]] {
            let error_text =
                startup_error(command(&test_directory, &[&["--addr", address], flags, check].concat()));
            assert!(texts.iter().all(|text| error_text.contains(text)), "{flags:?} {check:?}: {error_text}");
        }
    }
    assert!(!test_directory.path().join("state/http").exists());
    // Opening the directory itself requires no permission to access its contents.
    fs::set_permissions(test_directory.path().join("site"), Permissions::from_mode(0o700))
        .expect("set permissions");
    for check in [&[][..], &["--check"]] {
        let error_text = startup_error(command(
            &test_directory,
            &[&["--addr", internet, "--user", "nobody"], check].concat(),
        ));
        assert!(error_text.contains("ermission denied") && error_text.contains("chmod o+x"), "{error_text}");
    }
    fs::set_permissions(test_directory.path().join("site"), Permissions::from_mode(0o755))
        .expect("set permissions");
    for check in [&[][..], &["--check"]] {
        let mut command =
            command(&test_directory, &[&["--addr", internet, "--user", "daemon"], check].concat());
        command.uid(NOBODY).gid(NOBODY);
        match command.output() {
            Ok(Output { stderr, .. }) => {
                let error_text = String::from_utf8_lossy(&stderr).into_owned();
                assert!(
                    error_text.contains("--user daemon: ") && error_text.contains("start as root"),
                    "{error_text}"
                );
            }
            Err(error) => eprintln!("partly skipped: user nobody cannot execute the test build: {error}"),
        }
    }
    // The flags can also be keys in a configuration file. The check then runs as the configured user.
    let file = test_directory.path().join("site.toml");
    fs::write(&file, "user = \"nobody\"\ngroup = \"daemon\"\n").expect("write file");
    let mut command = command(&test_directory, &["--check", "--config", &text(&file)]);
    let Output { status, stdout, stderr } = command.output().expect("run anello");
    let settings = String::from_utf8_lossy(&stdout);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert!(settings.contains("user = \"nobody\"") && settings.contains("group = \"daemon\""), "{settings}");
}
