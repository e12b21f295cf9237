//! Tests for `anello load`, run as a child process: its output and its exit codes.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anello_load::formats::hdr_log::{HdrLog, UNCORRECTED};
use anello_load::{ErrorKind, Mode, ProtocolReport, Report, latency_histogram};
use anello_test::{
    Request, answer, driver_flags, http_response, on_each_driver_flag, serve_http, tcp_server, unix_server,
    wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use socket2::{Domain, Socket, Type};

use crate::common::anello;
use crate::common::served::Served;

/// Returns the command `anello load tcp` with these arguments.
fn load(arguments: &[&str]) -> Command {
    load_of("tcp", arguments)
}

/// Returns the command `anello load` for a protocol.
fn load_of(protocol: &str, arguments: &[&str]) -> Command {
    anello(&[&["load", protocol], arguments].concat())
}

/// Runs the load generator with `--json` and returns its exit code and report.
fn report(protocol: &str, arguments: &[&str]) -> (Option<i32>, Report) {
    let output = load_of(protocol, arguments).arg("--json").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report = serde_json::from_str(&text);
    (
        output.status.code(),
        report.unwrap_or_else(|error| panic!("{error}: {text}{output:?}", output = output.stderr)),
    )
}

fn output(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = load(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Starts a server in this process that applies `change` to each received chunk and sends it back. Returns its address.
fn server(change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> String {
    tcp_server(move |stream| answer(stream, &change)).to_string()
}

/// Starts `anello echo` with the epoll driver.
fn start_echo(arguments: &[&str]) -> Served {
    Served::start_echo(&[&["--addr", "127.0.0.1:0", "--driver", "epoll"], arguments].concat())
}

#[test]
fn load_without_errors_prints_table_and_exits_0() {
    on_each_driver_flag(|driver| {
        let address = server(|_| {});
        let arguments =
            ["--connections", "3", "--duration", "50ms", "--verify", "--driver", driver, &address];
        let (code, stdout, stderr) = output(&arguments);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        for expected in
            [&address, "requests/s", "p99.9", "every byte verified", "load CPU", "errors        none"]
        {
            assert!(stdout.contains(expected), "{expected} is missing in:\n{stdout}");
        }
        assert_eq!(stderr, "", "no progress line without a terminal");
    });
}

/// Returns the rate, p50 and p99 from the first complete progress line of a run with two connections.
fn progress(screen: &str) -> Option<[&str; 3]> {
    let (before, rest) = screen.split_once(" requests/s, p50 ")?;
    let (p50, rest) = rest.split_once(", p99 ")?;
    let (p99, _) = rest.split_once(", 2 connections")?;
    Some([before.rsplit(' ').next()?, p50, p99])
}

#[test]
fn progress_line_on_terminal_has_rate_and_quantiles() {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let mut terminal = match openpt(flags) {
        Ok(terminal) => File::from(terminal),
        Err(error) => return println!("skipped: no pseudo-terminal available: {error}"),
    };
    unlockpt(&terminal).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, size).unwrap();
    let terminal_end = ioctl_tiocgptpeer(&terminal, flags).unwrap();
    let mut command = load(&[&server(|_| {}), "-c", "2", "-d", "60s", "--interval", "100ms"]);
    command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(terminal_end);
    let child = command.spawn().unwrap();
    // Closes this process's copy of the terminal end, so that reading fails when the child exits.
    drop(command);
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    let mut is_signalled = false;
    while let Ok(count @ 1..) = terminal.read(&mut chunk) {
        // Decodes all bytes together, because a read can end within a multi-byte character such as "µ".
        bytes.extend_from_slice(&chunk[..count]);
        if !is_signalled && progress(&String::from_utf8_lossy(&bytes)).is_some() {
            interrupt(&child);
            is_signalled = true;
        }
    }
    let screen = String::from_utf8_lossy(&bytes);
    let output = child.wait_with_output().unwrap();
    let [rate, p50, p99] = progress(&screen).unwrap_or_else(|| panic!("no line in {screen:?}"));
    assert!(rate.replace(',', "").parse::<u64>().is_ok(), "{rate:?} in {screen:?}");
    for time in [p50, p99] {
        let (number, unit) = time.split_once(' ').unwrap();
        assert!(number.parse::<f64>().is_ok() && ["ns", "µs", "ms", "s"].contains(&unit), "{time:?}");
    }
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(is_signalled && output.status.code() == Some(0), "{stdout}");
    assert!(stdout.contains("interrupted") && !stdout.contains('\x1b'), "{stdout:?}");
}

#[test]
fn json_has_schema_version_and_server_cpu_time() {
    let echo = start_echo(&[]);
    let (address, pid) = (echo.address(), echo.id().to_string());
    let arguments =
        [address, "-c", "4", "-b", "5000", "-d", "60ms", "--warm-up", "10ms", "--json", "--server-pid", &pid];
    let (code, stdout, stderr) = output(&arguments);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    let report: Report = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (report.schema.as_str(), report.schema_version),
        (anello_load::SCHEMA, anello_load::SCHEMA_VERSION)
    );
    let protocol = ProtocolReport::Messages { request_bytes: 5000, response_bytes: 5000 };
    assert_eq!(
        (report.connections_open_at_end, report.protocol, report.warm_up_ns),
        (4, protocol, 10_000_000)
    );
    let cpu = report.server.unwrap();
    assert_eq!(cpu.pid, echo.id());
    assert!(report.requests > 0 && report.elapsed_ns > 0);
}

#[test]
fn reports_context_switches_per_request() {
    let echo = start_echo(&[]);
    let (address, pid) = (echo.address(), echo.id().to_string());
    // With one request at a time, the server sleeps between requests.
    let arguments = [address, "-c", "1", "-d", "200ms", "--think-time", "5ms", "--server-pid", &pid];
    let (code, report) = report("tcp", &arguments);
    assert_eq!((code, &report.mode), (Some(0), &Mode::Closed { think_time: Duration::from_millis(5) }));
    assert!(report.requests >= 1, "{report:?}");
    let cost = report.server.unwrap();
    assert!(cost.usage.voluntary_switches > 0, "{report:?}");
    let switches = (cost.usage.voluntary_switches + cost.usage.involuntary_switches) as f64;
    let per_request = switches / report.requests as f64;
    assert!((cost.switches_per_request.unwrap() - per_request).abs() < 1e-9, "{report:?}");
    let (_, stdout, _) = output(&arguments);
    assert!(stdout.contains(" context switches per request"), "{stdout}");
}

/// Returns the allowed cores of each thread of a load run, sorted by thread number.
fn cores_of_threads(load: &Child) -> Vec<(usize, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", load.id())).unwrap();
    let mut threads: Vec<_> = tasks
        .filter_map(|task| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).ok()?;
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let number = field("Name:")?.strip_prefix("load-")?.parse().ok()?;
            Some((number, field("Cpus_allowed_list:")?.to_owned()))
        })
        .collect();
    threads.sort_unstable();
    threads
}

#[test]
fn threads_are_pinned_to_given_cores() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let mut cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    let first = cores.next().unwrap();
    // On a machine with a single core, both threads use that core.
    let last = cores.next_back().unwrap_or(first);
    let echo = start_echo(&[]);
    on_each_driver_flag(|driver| {
        let list = format!("{last},{first}");
        let arguments = [echo.address(), "-c", "4", "-d", "10m", "--driver", driver, "--cores", &list];
        let mut child = load(&arguments).arg("--json").stdout(Stdio::piped()).spawn().unwrap();
        // The threads are pinned before the first request.
        assert!(wait_until_loaded(&echo, &mut child));
        let cores = cores_of_threads(&child);
        interrupt(&child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(cores, [(0, last.to_string()), (1, first.to_string())], "{driver}");
        let report: Report = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((report.threads, report.cores), (2, vec![last, first]));
    });
}

#[test]
fn many_connections_use_several_source_addresses() {
    let echo = start_echo(&[]);
    for driver in driver_flags() {
        let arguments = ["-c", "4001", "-d", "1ms", "--connect-timeout", "1m", "--timeout", "1m", "--verify"];
        let address = echo.address();
        let (code, stdout, stderr) =
            output(&[&arguments[..], &["--json", "--driver", driver, address]].concat());
        if stdout.contains("Too many open files") {
            println!("skipped: requires 4,100 open files (ulimit -Hn)");
            return;
        }
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        let report: Report = serde_json::from_str(&stdout).unwrap();
        assert_eq!(
            report.source_addresses,
            ["127.0.0.1", "127.0.0.2"].map(|address| address.parse::<IpAddr>().unwrap())
        );
        assert_eq!((report.connections_opened, report.connections_open_at_end), (4001, 4001));
        assert!(report.requests >= 4001, "every connection is served: {stdout}");
    }
}

#[test]
fn fault_44_wrong_bytes_are_reported_and_exit_1() {
    let address = server(|chunk| chunk[0] ^= 1);
    let (code, stdout, _) = output(&[&address, "-c", "2", "-d", "20ms", "--verify"]);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("× wrong bytes"), "{stdout}");
}

#[test]
fn fault_44_refused_connections_are_reported_and_exit_1() {
    // The socket is bound, so that no other process can use the port, but it does not listen.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
    let (code, stdout, _) = output(&[&address, "-c", "2", "-d", "10m", "--json"]);
    assert_eq!(code, Some(1), "{stdout}");
    let report: Report = serde_json::from_str(&stdout).unwrap();
    assert_eq!((report.errors.count(ErrorKind::Refused), report.requests), (2, 0));
}

#[test]
fn fault_44_stalled_server_is_reported_and_exits_1() {
    let echo = start_echo(&[]);
    echo.signal(Signal::STOP);
    // The kernel completes TCP handshakes even though the server is stopped.
    let (code, stdout, _) = output(&[echo.address(), "-c", "2", "-d", "10m", "--timeout", "100ms"]);
    echo.signal(Signal::CONT);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("2 × reply timeout") && stdout.contains("no responses"), "{stdout}");
}

#[test]
fn fault_44_killed_server_ends_load_with_report() {
    let echo = start_echo(&[]);
    let mut command = load(&[echo.address(), "-c", "3", "-d", "10m", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert!(wait_until_loaded(&echo, &mut child));
    drop(echo);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report.errors.total(), report.connections_open_at_end), (3, 0), "{report:?}");
    assert!(report.requests > 0 && report.server.is_none());
}

#[test]
fn ctrl_c_ends_load_early_with_report() {
    let echo = start_echo(&[]);
    let mut command = load(&[echo.address(), "-c", "3", "-d", "10m", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert!(wait_until_loaded(&echo, &mut child));
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.interrupted && report.errors.is_empty() && report.requests > 0, "{report:?}");
}

/// Starts an HTTP server in this process. It responds with `hello` to requests for `/`, and to requests for `/token`
/// that contain the expected header field. It responds with 404 to all others. Returns its address.
fn http_server() -> String {
    let respond = |request: &Request| {
        let is_expected = match request.target.as_str() {
            "/token" => request.fields.iter().any(|field| field == "X-Token: let: me in"),
            target => target == "/",
        };
        if is_expected { http_response("200 OK", "hello") } else { http_response("404 Not Found", "") }
    };
    tcp_server(move |stream| serve_http(stream, respond)).to_string()
}

/// Starts an HTTP server that responds to POST requests with their bodies, and to others with 405.
fn http_echo_server() -> String {
    let respond = |request: &Request| match request.method.as_str() {
        "POST" => http_response("200 OK", &request.body),
        _ => http_response("405 Method Not Allowed", &request.body),
    };
    tcp_server(move |stream| serve_http(stream, respond)).to_string()
}

#[test]
fn body_is_sent_with_the_method() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    let url = format!("http://{}", http_echo_server());
    let run = |arguments: &[&str]| report("http", &[&["-c", "2", "-d", "30ms", &url], arguments].concat());
    let (code, report) = run(&["--body", file, "--expect-file", file]);
    assert_eq!(code, Some(0));
    let ProtocolReport::Http { method, body_bytes, .. } = report.protocol else { panic!("not HTTP") };
    assert_eq!((method.as_str(), body_bytes), ("POST", 2));
    assert_eq!(run(&["--body-bytes", "1024", "--expect-file", file]).0, Some(1));
    assert_eq!(run(&["--method", "POST"]).0, Some(0));
    assert_eq!(run(&["--method", "PUT", "--body", file, "--expect-status", "405", "--verify"]).0, Some(0));
    let code = |arguments: &[&str]| load_of("http", arguments).output().unwrap().status.code();
    assert_eq!(code(&[&url, "--body-bytes", "1", "--body", file]), Some(2));
    assert_eq!(code(&[&url, "--method", "HEAD", "--expect-file", file]), Some(2));
}

#[test]
fn unwritable_output_does_not_lose_the_report() {
    let address = server(|_| {});
    let short = ["-c", "2", "-d", "200ms", "--interval", "50ms", &address];
    for flag in ["--json=/dev/full", "--csv=/dev/full", "--ndjson=/dev/full", "--hdr=/dev/full"] {
        let (code, stdout, stderr) = output(&[&short[..], &[flag]].concat());
        assert_eq!(code, Some(1), "{flag}: {stderr}");
        assert!(stdout.contains("requests/s") && stdout.contains("load CPU"), "{flag}: {stdout}");
        assert!(stderr.contains("cannot write /dev/full: No space left on device"), "{flag}: {stderr}");
        assert_eq!(stderr.contains("ended early"), !flag.starts_with("--json"), "{flag}: {stderr}");
    }
    // A file is written even if the report cannot be printed.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    let mut command = load(&[&short[..], &[&format!("--json={}", path.display())]].concat());
    let output = command.stdout(File::create("/dev/full").unwrap()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("cannot print the report"), "{stderr}");
    let report: Report = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(report.requests > 0);
}

#[test]
fn outputs_with_the_same_file_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string().into_string().unwrap();
    let (file, link) = (path("out"), path("link"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for other in [&file, &link] {
        let (code, stdout, stderr) = output(&["127.0.0.1:1", "--csv", &file, "--ndjson", other]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains("another output has the same file"), "{stderr}");
    }
    let address = server(|_| {});
    let (code, _, stderr) = output(&[&address, "-n", "5", "--csv", "/dev/null", "--ndjson", "/dev/null"]);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn too_many_connections_for_open_file_limit_are_rejected() {
    let command = env!("CARGO_BIN_EXE_anello");
    let script = |connections: usize| {
        let address = server(|_| {});
        format!("ulimit -n 100; exec {command} load tcp {address} -n 200 -c {connections}")
    };
    for driver in ["epoll", "uring"] {
        let run = |connections| {
            let line = script(connections) + " --driver " + driver;
            Command::new("sh").args(["-c", &line]).env_remove("ANELLO_DRIVER").output().unwrap()
        };
        let rejected = run(100);
        let text = String::from_utf8(rejected.stderr).unwrap();
        assert_eq!((rejected.status.code(), rejected.stdout.len()), (Some(2), 0), "{text}");
        assert!(text.lines().count() == 1 && text.contains("the limit is 100"), "{text}");
        // Exactly the number that the message permits can be opened.
        let needed = text.split_once("need about ").and_then(|(_, text)| text.split_once(' '));
        let most = 200 - needed.unwrap().0.parse::<usize>().unwrap();
        assert!(most > 50, "{text}");
        assert_eq!(run(most + 1).status.code(), Some(2), "{most}");
        let accepted = run(most);
        let is_unsupported = String::from_utf8_lossy(&accepted.stderr).contains("io_uring");
        assert!(accepted.status.code() == Some(0) || is_unsupported, "{most}: {accepted:?}");
    }
}

#[test]
fn load_that_ends_early_says_so() {
    let address = tcp_server(|mut stream| {
        let mut message = [0; 128];
        stream.read_exact(&mut message)?;
        stream.write_all(&message)
    });
    let (code, stdout, _) = output(&[&address.to_string(), "-c", "2", "-d", "10m"]);
    assert_eq!(code, Some(1));
    assert!(
        stdout.contains("WARNING       the load ended early") && stdout.contains("--reconnect"),
        "{stdout}"
    );
    let (code, stdout, _) = output(&[&server(|_| {}), "-c", "2", "-n", "10"]);
    assert!(
        code == Some(0) && stdout.contains("requests      10 in") && !stdout.contains("early"),
        "{stdout}"
    );
}

#[test]
fn connect_to_changes_only_the_address() {
    let respond = |request: &Request| {
        let is_expected = request.fields.iter().any(|field| field == "Host: example.invalid");
        http_response(if is_expected { "200 OK" } else { "421 Misdirected Request" }, "hello")
    };
    let address = tcp_server(move |stream| serve_http(stream, respond)).to_string();
    let arguments = ["http://example.invalid/", "--connect-to", &address, "-c", "2", "-n", "10"];
    let (code, report) = report("http", &arguments);
    assert_eq!((code, report.requests, &report.target), (Some(0), 10, &address));
    let conflict = ["http://example.invalid/", "--connect-to", &address, "--unix", "/run/http.sock"];
    assert_eq!(load_of("http", &conflict).output().unwrap().status.code(), Some(2));
}

#[test]
fn wrong_http_statuses_exit_1_unless_expected_or_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let (hello, paths) = (file("hello", "hello"), file("paths", "/\n\n/?a\n"));
    let url = format!("http://{}", http_server());
    let wrong = format!("{url}/nothing");
    let short = ["-c", "2", "-d", "30ms"];
    let code = |arguments: &[&str]| report("http", &[&short[..], arguments].concat()).0;
    assert_eq!(code(&[&url, "--expect-file", &hello, "--header", "Accept: */*"]), Some(0));
    assert_eq!(code(&[&url, "--expect-file", &paths]), Some(1));
    // The server receives the expected field together with another field.
    let (token, field) = (format!("{url}/token"), "X-Token:let: me in");
    assert_eq!(code(&[&token, "--header", "Accept: */*", "--header", field]), Some(0));
    assert_eq!(code(&[&token, "--header", "Accept: */*"]), Some(1));
    assert_eq!(code(&[&url, "--pipeline-depth", "4", "--verify", "-r", "500"]), Some(0));
    assert_eq!(code(&[&wrong]), Some(1));
    assert_eq!(code(&[&wrong, "--expect-status", "200,404"]), Some(0));
    assert_eq!(code(&[&wrong, "--expect-status", "200, 404"]), Some(0));
    assert_eq!(code(&[&wrong, "--expect-status", "4xx"]), Some(0));
    assert_eq!(code(&[&wrong, "--expect-status", "2xx,5xx"]), Some(1));
    assert_eq!(code(&[&wrong, "--expect-status", "any", "--no-keep-alive"]), Some(0));
    // Exit code 0 requires at least one correct response and no errors other than the allowed errors.
    assert_eq!(code(&[&wrong, "--allow-errors"]), Some(1));
    assert_eq!(code(&[&url, "--paths", &paths]), Some(1));
    assert_eq!(code(&[&url, "--paths", &paths, "--allow-errors=wrong_status,reset"]), Some(0));
    assert_eq!(code(&[&url, "--paths", &paths, "--allow-errors=reset"]), Some(1));
    for allowed in ["--allow-errors", "--allow-errors=all"] {
        assert_eq!(code(&[&url, "--path", "/x", "--path", "/", allowed]), Some(0));
    }
}

#[test]
fn open_loop_prints_table_and_writes_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string().into_string().unwrap();
    let (hdr, csv, ndjson) = (path("load.hlog"), path("load.csv"), path("load.ndjson"));
    let address = server(|_| {});
    let short = ["-c", "4", "-d", "300ms", "--interval", "100ms", "-r", "1k", "--threads", "2"];
    let files = ["--hdr", &hdr, "--csv", &csv, "--ndjson", &ndjson, "--arrivals", "poisson", "--seed", "9"];
    let (code, stdout, stderr) = output(&[&short[..], &files, &[&address]].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    for expected in
        ["open loop, 1,000 requests/s, Poisson (seed 9); 2 threads", "  since due", "offered", "not sent"]
    {
        assert!(stdout.contains(expected), "{expected} is missing in:\n{stdout}");
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let stream = read(&ndjson);
    assert!(stream.lines().count() >= 4, "begin, intervals, total: {stream}");
    assert!(read(&csv).lines().count() >= 3 && read(&hdr).contains("Histogram log format version"));
    // The log contains all requests in the report.
    let (code, report) =
        report("tcp", &[&short[..], &["--hdr", &hdr, "--comment", "a run", &address]].concat());
    let log = HdrLog::parse(read(&hdr).as_bytes()).unwrap();
    assert_eq!((code, log.errors.is_complete, log.errors.known.total()), (Some(0), true, 0));
    for (tag, latency) in [(None, report.latency), (Some(UNCORRECTED), report.uncorrected_latency)] {
        let mut sum = latency_histogram();
        let records = log.records.iter().filter(|record| record.tag.as_deref() == tag);
        records.for_each(|record| sum.add(record.histogram().unwrap()).unwrap());
        let latency = latency.unwrap();
        assert_eq!((sum.len(), sum.min(), sum.max()), (report.requests, latency.min_ns, latency.max_ns));
        let quantiles = [0.5, 0.9, 0.99, 0.999].map(|quantile| sum.value_at_quantile(quantile));
        assert_eq!(quantiles, [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns]);
    }
    // If the intervals are written to standard output, the table is printed to standard error.
    let (code, stdout, stderr) = output(&[&short[..], &["--ndjson", "-", &address]].concat());
    assert_eq!(code, Some(0));
    assert!(stdout.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{stdout}");
    assert!(stderr.contains("  since due"), "{stderr}");
    // If an output file cannot be created, the command fails before the load starts.
    let (code, _, stderr) = output(&["-d", "10m", "--csv", "/nowhere/load.csv", &address]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("/nowhere/load.csv"), "{stderr}");
}

#[test]
fn sweep_prints_steps_and_knee() {
    // With this seed, no request is due in the first step. The server needs longer for a request than the second step
    // takes, so it responds to none in time.
    let address = server(|_| thread::sleep(Duration::from_millis(300)));
    let steps = ["-c", "2", "-d", "200ms", "-r", "1..2001/1k", "--drain-timeout", "1s"];
    let arrivals = ["--arrivals", "poisson", "--seed", "1"];
    let knee = ["--knee-max-latency-factor", "1000000", "--knee-min-answered-percent", "50"];
    let (code, stdout, stderr) = output(&[&steps[..], &arrivals, &knee, &[&address]].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("\n  1 ") && stdout.contains("\n  1,001 *"), "{stdout}");
    assert!(stdout.contains("\n* knee") && stdout.contains("only 0.0 % of the offered requests"), "{stdout}");
    assert!(!stdout.contains("\n  2,001"), "{stdout}");
}

#[test]
fn loads_server_with_different_reply_size() {
    let echo = start_echo(&["--request-bytes", "100", "--response-bytes", "5000"]);
    let sizes = ["-b", "100", "--response-bytes", "5000", "-c", "3", "-d", "50ms", "--verify"];
    let (code, report) = report("tcp", &[&sizes[..], &[echo.address()]].concat());
    assert_eq!((code, report.sent_bytes * 50), (Some(0), report.received_bytes), "{report:?}");
}

#[test]
fn loads_abstract_unix_socket() {
    let address = format!("unix:@anello-load-test-{}", std::process::id());
    let _echo = Served::start_echo(&["--driver", "epoll", "--addr", &address]);
    let (code, report) = report("tcp", &["-c", "3", "-d", "50ms", "--verify", &address]);
    assert_eq!((code, &report.target), (Some(0), &address), "{report:?}");
}

#[test]
fn loads_unix_socket_with_both_protocols() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server").into_os_string().into_string().unwrap();
    unix_server(Path::new(&path), |mut stream| {
        let mut buffer = [0; 4096];
        while let count @ 1.. = stream.read(&mut buffer)? {
            let is_http = buffer.starts_with(b"GET ");
            let response: &[u8] =
                if is_http { b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" } else { &buffer[..count] };
            stream.write_all(response)?;
        }
        Ok(())
    });
    let short = ["-c", "3", "-d", "50ms", "--verify"];
    let (code, tcp) = report("tcp", &[&short[..], &[&format!("unix:{path}")]].concat());
    assert_eq!((code, tcp.target), (Some(0), format!("unix:{path}")));
    let (code, http) = report("http", &[&short[..], &["http://localhost/", "--unix", &path]].concat());
    assert_eq!((code, http.target), (Some(0), format!("unix:{path}")));
}

/// Whether the kernel has received bytes for a server that the server has not read.
fn has_unread_bytes(server: &Served) -> bool {
    let port = format!(":{:04X}", server.address().parse::<SocketAddr>().unwrap().port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // State 01 is ESTABLISHED. In this state, the queues are those of the bytes to send and to read.
        fields[1].ends_with(&port) && fields[3] == "01" && !fields[4].ends_with(":00000000")
    })
}

#[test]
fn fault_44_paused_server_increases_corrected_latency() {
    let echo = start_echo(&[]);
    // The kernel completes TCP handshakes even though the server is stopped.
    echo.signal(Signal::STOP);
    let waits = ["--drain-timeout", "1m", "--timeout", "1m", "--connect-timeout", "1m"];
    let mut child =
        load(&[&[echo.address(), "-c", "5", "-d", "2s", "-r", "1000", "--json"], &waits[..]].concat());
    let child = child.stdout(Stdio::piped()).spawn().unwrap();
    wait_until(|| has_unread_bytes(&echo));
    thread::sleep(Duration::from_millis(300));
    echo.signal(Signal::CONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report.offered, report.requests), (Some(2000), 2000), "{report:?}");
    // The requests scheduled in the first 200 ms of the pause are a tenth of all requests and determine p90; those in
    // its first 20 ms determine p99. Without correction, only the five requests in flight would have a high latency.
    let latency = report.latency.unwrap();
    assert!(latency.p90_ns >= 80_000_000 && latency.p99_ns >= 270_000_000, "{latency:?}");
    assert!(report.late >= 280, "{}", report.late);
}

#[test]
fn fault_44_stopped_server_ends_load_with_report() {
    let echo = start_echo(&[]);
    // The next timeout is used if the machine is so busy that responses of the running server exceed the previous one.
    let output = ["200ms", "2s", "20s"].into_iter().find_map(|timeout| {
        let arguments = [echo.address(), "-c", "3", "-d", "10m", "-r", "1k", "--timeout", timeout, "--json"];
        let mut child = load(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let was_running = wait_until_loaded(&echo, &mut child);
        echo.signal(Signal::STOP);
        let output = child.wait_with_output().unwrap();
        echo.signal(Signal::CONT);
        was_running.then_some(output)
    });
    let output = output.expect("a load that runs when the server is stopped");
    assert_eq!(output.status.code(), Some(1));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (report.errors.count(ErrorKind::Timeout), report.connections_open_at_end),
        (3, 0),
        "{report:?}"
    );
    assert_eq!(report.offered, Some(report.requests + report.unsent + 3));
}

#[test]
fn nonexistent_server_pid_fails_with_one_line() {
    let (code, stdout, stderr) = output(&[&server(|_| {}), "--server-pid", "4194305"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("process 4194305"), "{stderr}");
}

#[test]
fn invalid_command_lines_exit_2_with_reason() {
    let long_name = "x".repeat(108);
    let [long_path, long_abstract_name] = ["unix:/", "unix:@"].map(|prefix| prefix.to_owned() + &long_name);
    let invalid: [(&[&str], &str); 22] = [
        (&[], "ADDR"),
        (&["nowhere"], "HOST:PORT"),
        (&["127.0.0.1:1", "--connections", "0"], "from 1 to"),
        (&["127.0.0.1:1", "--message-bytes", "0"], "from 1 to"),
        (&["127.0.0.1:1", "--duration", "10"], "unit"),
        (&["127.0.0.1:1", "--timeout", "0s"], "greater than zero"),
        (&["127.0.0.1:1", "--source-addresses", "127.0.0.2,here"], "an IP address without a port"),
        (&["127.0.0.1:1", "--driver", "kqueue"], "epoll"),
        (&["127.0.0.1:1", "--rate", "5..10"], "no step"),
        (&["127.0.0.1:1", "--rate", "5", "--think-time", "1s"], "--think-time"),
        (&["127.0.0.1:1", "--allow-errors=bytes"], "wrong_bytes"),
        (&["127.0.0.1:1", "--arrivals", "poisson"], "--rate"),
        (&["127.0.0.1:1", "--duration", "0s"], "greater than zero"),
        (&["http://127.0.0.1:8080"], "anello load http http://127.0.0.1:8080"),
        (&["https://localhost/"], "anello load http https://localhost/"),
        // Checked after the flags are parsed, but before the name is looked up.
        (&["name.invalid:1", "-c", "1", "-t", "4"], "at least one connection each"),
        (&["name.invalid:1", "--cores", "4095"], "--cores: core 4095 is outside"),
        (&["name.invalid:1", "-n", "5", "-r", "1..2/1"], "of a sweep cannot be limited"),
        (&["name.invalid:1", "--hdr", "-", "--ndjson", "-"], "cannot share standard output"),
        (&["127.0.0.1:1", "--source-addresses", "::1"], "different address families"),
        (&[&long_path], "use a shorter name"),
        (&[&long_abstract_name], "use a shorter name"),
    ];
    for (arguments, reason) in invalid {
        let (code, stdout, stderr) = output(arguments);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
    }
    let url = "http://name.invalid/";
    let invalid: [(&[&str], &str); 7] = [
        (&["--unix", &long_name], "use a shorter name"),
        (&["--method", "CONNECT"], "method CONNECT"),
        (&["--tls-insecure"], "require an https:// URL"),
        (&["--path", "x"], "invalid path"),
        (&["--header", "Content-Length: 5"], "determined by the body"),
        (&["--shard", "0/2", "-c", "1"], "cannot divide"),
        (&["--pipeline-depth", "0"], "pipeline depth"),
    ];
    for (arguments, reason) in invalid {
        let output = load_of("http", &[&[url], arguments].concat()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments:?}: {stderr}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}

#[test]
fn addresses_rates_durations_and_statuses_are_parsed() {
    // No server is listening, so the load ends immediately.
    let short = ["-c", "1", "-d", "10ms", "--connect-timeout", "1s"];
    let address = "127.0.0.1:1";
    let report = |arguments: &[&str]| report("tcp", &[&short[..], arguments].concat()).1;
    for target in [address, "[::1]:1", "unix:/run/echo-test", "unix:@echo-test", "unix:./@echo-test"] {
        assert_eq!(report(&[target]).target, target);
    }
    assert!(["127.0.0.1:1", "[::1]:1"].contains(&report(&["localhost:1"]).target.as_str()));
    let mode = |rate| report(&["--rate", rate, address]).mode;
    for (rate, expected) in [("500", 500), ("1.5M", 1_500_000)] {
        assert!(matches!(mode(rate), Mode::Open { per_second, .. } if per_second == expected), "{rate}");
    }
    let Mode::Sweep(sweep) = mode("10k..200k/10k") else { panic!("not a sweep") };
    assert_eq!((sweep.first, sweep.last, sweep.step), (10_000, 200_000, 10_000));
    for (text, milliseconds) in [("250ms", 250), ("1.5s", 1500), ("2m", 120_000)] {
        let expected = Duration::from_millis(milliseconds);
        let mode = report(&["--think-time", text, "--timeout", "1us", "--spin", "1s", address]).mode;
        assert!(matches!(mode, Mode::Closed { think_time } if think_time == expected), "{text}");
    }
    let is_invalid = |arguments: &[&str]| {
        let code = output(arguments).0;
        assert_eq!(code, Some(2), "{arguments:?}");
    };
    for rate in ["", "0", "-5", "k", "5x", "10k..", "1..2", "2..1/1", "1..2/0", "1e12"] {
        is_invalid(&[address, &format!("--rate={rate}")]);
    }
    for duration in ["", "10", "s", "-1s", "1e400s", "10 s", "3days"] {
        is_invalid(&[address, &format!("--duration={duration}")]);
        is_invalid(&[address, &format!("--timeout={duration}")]);
    }
    for address in ["", "unix:", "localhost", ":80", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999"] {
        is_invalid(&[address]);
    }
    for status in ["2x", ""] {
        let status = format!("--expect-status={status}");
        let output = load_of("http", &["http://127.0.0.1:1/", &status]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{status}");
    }
}

/// Sends SIGINT to a child process.
fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Waits until the server has used 20 ms of CPU time for this load. Returns `false` if the load has ended before.
fn wait_until_loaded(server: &Served, load: &mut Child) -> bool {
    let cpu_ns = || anello_load::process_cpu_ns(server.id()).unwrap();
    let (loaded_ns, mut is_running) = (cpu_ns() + 20_000_000, true);
    wait_until(|| {
        is_running = load.try_wait().unwrap().is_none();
        !is_running || cpu_ns() >= loaded_ns
    });
    is_running
}
