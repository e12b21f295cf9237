//! `anello load` as a command: what it prints, where, and its exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use anello_load::{ErrorKind, Report};
use socket2::{Domain, Socket, Type};

/// `anello load tcp` with these arguments.
fn load(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["load", "tcp"]).args(arguments).env_remove("ANELLO_DRIVER");
    command
}

fn output(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = load(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A server in this process that passes every chunk through `change` and sends it back.
fn server(change: fn(&mut [u8])) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    change(&mut buffer[..count]);
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address.to_string()
}

/// `anello echo` on epoll as a child process; ends with its owner.
struct Echo(Child, SocketAddr);

impl Echo {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.args(["echo", "--addr", "127.0.0.1:0", "--driver", "epoll"]).env_remove("ANELLO_DRIVER");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("addr=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        Self(child, address.parse().unwrap())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_good_server_is_reported_for_people_and_exits_0() {
    for driver in ["epoll", "auto"] {
        let address = server(|_| {});
        let arguments =
            ["--connections", "3", "--duration", "50ms", "--verify", "--driver", driver, &address];
        let (code, stdout, stderr) = output(&arguments);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        for expected in
            [&address, "requests/s", "p99.9", "every byte checked", "load CPU", "errors        none"]
        {
            assert!(stdout.contains(expected), "{expected} is missing in:\n{stdout}");
        }
        assert_eq!(stderr, "", "no progress where there is no terminal");
    }
}

#[test]
fn json_is_versioned_and_has_the_servers_cpu_time() {
    let echo = Echo::start();
    let (address, pid) = (echo.1.to_string(), echo.0.id().to_string());
    let arguments = [
        &address,
        "-c",
        "4",
        "-b",
        "5000",
        "-d",
        "60ms",
        "--warm-up",
        "10ms",
        "--json",
        "--server-pid",
        &pid,
    ];
    let (code, stdout, stderr) = output(&arguments);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    let report: Report = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (report.schema.as_str(), report.schema_version),
        (anello_load::SCHEMA, anello_load::SCHEMA_VERSION)
    );
    assert_eq!((report.connections_left, report.message_bytes, report.warm_up_ns), (4, 5000, 10_000_000));
    let cpu = report.server_cpu.unwrap();
    assert_eq!(cpu.pid, echo.0.id());
    assert!(report.requests > 0 && report.elapsed_ns > 0);
}

#[test]
fn more_connections_than_one_address_may_have_come_from_several() {
    let echo = Echo::start();
    for driver in ["epoll", "auto"] {
        let arguments = ["-c", "4001", "-d", "1ms", "--connect-timeout", "1m", "--timeout", "1m", "--verify"];
        let address = echo.1.to_string();
        let (code, stdout, stderr) =
            output(&[&arguments[..], &["--json", "--driver", driver, &address]].concat());
        if stdout.contains("Too many open files") {
            println!("skipped: it needs 4,100 open files (ulimit -Hn)");
            return;
        }
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        let report: Report = serde_json::from_str(&stdout).unwrap();
        assert_eq!(
            report.sources,
            ["127.0.0.1", "127.0.0.2"].map(|address| address.parse::<IpAddr>().unwrap())
        );
        assert_eq!((report.connections_opened, report.connections_left), (4001, 4001));
        assert!(report.requests >= 4001, "every connection is served: {stdout}");
    }
}

#[test]
fn fault_44_a_lying_server_is_reported_and_exits_1() {
    let address = server(|chunk| chunk[0] ^= 1);
    let (code, stdout, _) = output(&[&address, "-c", "2", "-d", "20ms", "--verify"]);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("× wrong bytes"), "{stdout}");
}

#[test]
fn fault_44_a_dead_server_is_reported_and_exits_1() {
    // Bound but not listening, so that nobody else gets the port.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = held.local_addr().unwrap().as_socket().unwrap().to_string();
    let (code, stdout, _) = output(&[&address, "-c", "2", "-d", "10m", "--json"]);
    assert_eq!(code, Some(1), "{stdout}");
    let report: Report = serde_json::from_str(&stdout).unwrap();
    assert_eq!((report.errors.count(ErrorKind::Refused), report.requests), (2, 0));
}

#[test]
fn fault_44_a_stalled_server_is_reported_and_exits_1() {
    let echo = Echo::start();
    signal(&echo.0, "STOP");
    // The kernel still completes the handshakes.
    let (code, stdout, _) = output(&[&echo.1.to_string(), "-c", "2", "-d", "10m", "--timeout", "100ms"]);
    signal(&echo.0, "CONT");
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("2 × no reply in time") && stdout.contains("nothing was answered"), "{stdout}");
}

#[test]
fn fault_44_a_server_that_is_killed_ends_the_load_with_a_report() {
    let echo = Echo::start();
    let mut child = load(&[&echo.1.to_string(), "-c", "3", "-d", "10m", "--json"]);
    let child = child.stdout(Stdio::piped()).spawn().unwrap();
    wait_until_loaded(&echo.0);
    drop(echo);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report.errors.total(), report.connections_left), (3, 0), "{report:?}");
    assert!(report.requests > 0 && report.server_cpu.is_none());
}

#[test]
fn ctrl_c_ends_the_load_early_with_a_report() {
    let echo = Echo::start();
    let mut child = load(&[&echo.1.to_string(), "-c", "3", "-d", "10m", "--json"]);
    let child = child.stdout(Stdio::piped()).spawn().unwrap();
    wait_until_loaded(&echo.0);
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.interrupted && report.errors.is_empty() && report.requests > 0, "{report:?}");
}

#[test]
fn a_process_that_does_not_exist_fails_with_one_line() {
    let (code, stdout, stderr) = output(&[&server(|_| {}), "--server-pid", "4194305"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("process 4194305"), "{stderr}");
}

#[test]
fn bad_command_lines_exit_2_with_the_reason() {
    let wrong: [(&[&str], &str); 9] = [
        (&[], "ADDR"),
        (&["nowhere"], "HOST:PORT"),
        (&["127.0.0.1:1", "--connections", "0"], "from 1 to"),
        (&["127.0.0.1:1", "--message-bytes", "0"], "from 1 to"),
        (&["127.0.0.1:1", "--duration", "10"], "unit"),
        (&["127.0.0.1:1", "--timeout", "0s"], "greater than 0"),
        (&["127.0.0.1:1", "--sources", "127.0.0.2,here"], "--sources"),
        (&["127.0.0.1:1", "--driver", "kqueue"], "epoll"),
        (&["127.0.0.1:1", "--rate", "5"], "--rate"),
    ];
    for (arguments, reason) in wrong {
        let (code, stdout, stderr) = output(arguments);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}

/// Sends a signal to a child of ours.
fn signal(child: &Child, name: &str) {
    let pid = rustix::process::Pid::from_child(child);
    let signal = match name {
        "INT" => rustix::process::Signal::INT,
        "STOP" => rustix::process::Signal::STOP,
        _ => rustix::process::Signal::CONT,
    };
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Until the server has worked, which means that requests have come in.
fn wait_until_loaded(server: &Child) {
    let idle_ns = anello_load::process_cpu_ns(server.id()).unwrap();
    while anello_load::process_cpu_ns(server.id()).unwrap() < idle_ns + 20_000_000 {
        thread::sleep(std::time::Duration::from_millis(1));
    }
}
