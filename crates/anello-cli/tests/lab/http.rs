//! Tests for `anello lab run` over HTTP with real servers: anello's own, and a server in this file that uses blocking
//! threads.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use anello_lab::result::{LabResult, Outcome};
use anello_lab::{Cell, Target, Workload};
use anello_test::{ANY_PORT, Request, http_response, serve_http, serve_on};

/// Not a test: the server that the tests start as a child process. Returns immediately if `ANELLO_LAB_TEST_HTTP_SERVER`
/// is not set.
///
/// The variable has the format `BEHAVIOUR:DIRECTORY`. `honest` serves the directory, and also `/fixed` from memory;
/// `fixed` serves only `/fixed`; `forgetful` omits the large file; `liar` changes one byte of the page.
#[test]
fn http_server_child() {
    let Ok(configuration) = std::env::var("ANELLO_LAB_TEST_HTTP_SERVER") else { return };
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    println!("\nready addr={} driver=blocking", listener.local_addr().unwrap());
    serve_on(&listener, move |stream| {
        stream.set_nodelay(true)?;
        serve_http(stream, |request| respond(&configuration, request))
    });
}

fn respond(configuration: &str, request: &Request) -> Vec<u8> {
    let (status, body) = match body(configuration, &request.target) {
        Some(body) => ("200 OK", body),
        None => ("404 Not Found", Vec::new()),
    };
    let mut response = http_response(status, &body);
    if request.method == "HEAD" {
        response.truncate(response.len() - body.len());
    }
    response
}

fn body(configuration: &str, path: &str) -> Option<Vec<u8>> {
    let (behaviour, directory) = configuration.split_once(':')?;
    match (behaviour, path) {
        (_, "/fixed") => return Some(b"Hello, World!".to_vec()),
        ("fixed", _) | ("forgetful", "/300k.bin") => return None,
        _ => {}
    }
    let mut body = fs::read(Path::new(directory).join(&path[1..])).ok()?;
    if (behaviour, path) == ("liar", "/page.html") {
        body[5000] ^= 1;
    }
    Some(body)
}

/// Returns a contender definition for a scenario. The contender is the server in this file.
fn contender(behaviour: &str, serves: &str) -> String {
    let executable = std::env::current_exe().unwrap();
    let executable = executable.to_str().unwrap();
    let variable = format!("ANELLO_LAB_TEST_HTTP_SERVER={behaviour}:{{root}}");
    let child = format!("/usr/bin/env {variable} {executable} --exact http::http_server_child --nocapture");
    // Standard-library listeners have a backlog of 128.
    format!("{{ name = \"{behaviour}\", command = \"{child}\", serves = {serves}, connections_limit = 100 }}")
}

/// Runs a scenario with these contenders and additional TOML lines. Returns the result, the HTML report and the output.
fn run(contenders: &[String], lines: &str) -> (LabResult, String, Output) {
    run_over("http", contenders, lines)
}

/// Runs a scenario over `http` or `https`; see [`run`].
fn run_over(protocol: &str, contenders: &[String], lines: &str) -> (LabResult, String, Output) {
    let directory = tempfile::tempdir().unwrap();
    let (out, temporary) = (directory.path().join("reports"), directory.path().join("temporary"));
    fs::create_dir(&temporary).unwrap();
    let scenario = directory.path().join("mine.toml");
    let text = format!(
        r#"
        name = "mine"
        title = "Servers of one process"
        protocol = "{protocol}"
        contenders = [{}]
        reference = ["absent", "honest", "anello epoll"]
        passes = 1
        rounds = 2
        slice = "10ms"
        warm_up = "1ms"
        {lines}
    "#,
        contenders.join(", ")
    );
    fs::write(&scenario, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.args(["lab", "run", "--scenario"]).arg(&scenario).arg("--out").arg(&out);
    let output = command.env_remove("ANELLO_DRIVER").env("TMPDIR", &temporary).output().unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    let report = |format: &str| {
        let mut paths = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
        let path = paths.find(|path| path.extension().is_some_and(|extension| extension == format));
        fs::read_to_string(path.unwrap()).unwrap()
    };
    assert_eq!(
        fs::read_dir(&temporary).unwrap().count(),
        0,
        "site and certificate are removed after the run"
    );
    (LabResult::from_json(&report("json")).unwrap(), report("html"), output)
}

/// Returns a contender's outcomes in the cells with this target, in cell order.
fn outcomes<'a>(result: &'a LabResult, name: &str, target: Target) -> Vec<&'a Outcome> {
    let cells = result.cells.iter().filter(|cell| cell.cell.workload.target() == Some(target));
    let rows = cells.flat_map(|cell| &cell.rows).filter(|row| row.contender == name);
    rows.map(|row| &row.outcome).collect()
}

/// Returns whether the contender was measured. A row without valid slices counts as measured: on a busy virtual
/// machine, all slices may be invalid because of steal time.
fn is_timed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Measured | Outcome::NotMeasured)
}

#[test]
fn servers_are_checked_and_compared_on_targets_they_serve() {
    let contenders = [
        contender("honest", "[\"files\", \"fixed\"]"),
        contender("fixed", "[\"fixed\"]"),
        contender("liar", "[\"files\"]"),
    ];
    let cells = r#"
        targets = ["hello.txt", "300k.bin", "/fixed"]
        connections = [2]
        cells = [
            { target = "hello.txt", connections = 3, pipelining = 16 },
            { target = "hello.txt", connections = 3, reconnect = true },
            { target = "/fixed", connections = 3, rate_per_second = 500 },
        ]
    "#;
    let (result, html, output) = run(&contenders, cells);
    let pipelined = Workload::Http { target: Target::Hello, pipelining: 16, reconnect: false, cipher: None };
    assert!(
        result.plan.cells.contains(&Cell { workload: pipelined, ..Cell::echo(1, 3) }),
        "{:?}",
        result.plan.cells
    );
    assert_eq!(result.plan.cells.len(), 6);
    let checks: Vec<(&str, &str, bool)> = result
        .checks
        .iter()
        .map(|check| (check.contender.as_str(), check.what.as_str(), check.passed))
        .collect();
    let expected = [
        ("honest", "complete bytes", true),
        ("honest", "stalled reader", true),
        ("honest", "100 connections", true),
        ("fixed", "complete bytes", true),
        ("fixed", "100 connections", true),
        ("liar", "complete bytes", false),
    ];
    assert_eq!(checks, expected);
    let detail = &result.checks.last().unwrap().details[0];
    assert!(detail.starts_with("GET /page.html: byte 5000 of 6144 is wrong"), "{detail}");
    for target in [Target::Hello, Target::Large, Target::Fixed] {
        for name in ["honest", "honest again"] {
            assert!(
                outcomes(&result, name, target).into_iter().all(is_timed),
                "{name}: {:?}",
                result.failures
            );
        }
        let failed_check = |outcome: &&Outcome| matches!(outcome, Outcome::CheckFailed(_));
        assert!(outcomes(&result, "liar", target).iter().all(failed_check));
        for outcome in outcomes(&result, "fixed", target) {
            let unserved = format!("it does not serve {target}");
            let is_unserved = matches!(outcome, Outcome::NotServed(reason) if *reason == unserved);
            assert!(if target == Target::Fixed { is_timed(outcome) } else { is_unserved }, "{outcome:?}");
        }
    }
    assert!(html.contains("HTTP, hello.txt (13 bytes), pipelining 16") && html.contains("HTTP, 300k.bin"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("it does not serve hello.txt"), "{stdout}");
    assert!(result.plan.scenario.scaling.iter().any(|note| note.starts_with("absent does not participate")));
    // The report contains the placeholder `{root}` instead of the path of the temporary directory.
    assert!(result.contenders[0].command.contains(":{root}"), "{}", result.contenders[0].command);
}

#[test]
fn wrong_response_fails_the_cell() {
    let contenders = [contender("honest", "[\"files\"]"), contender("forgetful", "[\"files\"]")];
    let lines = "targets = [\"300k.bin\", \"page.html\"]\nconnections = [2]\ncheck = false";
    let (result, _, _) = run(&contenders, lines);
    let large = outcomes(&result, "forgetful", Target::Large);
    let is_expected = |reason: &str| {
        reason.starts_with("wrong replies: ") && reason.ends_with("/300k.bin: unexpected status 404")
    };
    assert!(matches!(large[..], [Outcome::Failed(reason)] if is_expected(reason)), "{large:?}");
    assert!(outcomes(&result, "forgetful", Target::Page).into_iter().all(is_timed), "{:?}", result.failures);
}

/// Runs anello's server with both drivers. The io_uring contender is skipped if io_uring is unavailable.
#[test]
fn own_http_server_passes_checks() {
    let own = ["\"anello epoll\"", "\"anello io_uring\""].map(str::to_owned);
    let cells = r#"
        targets = ["hello.txt", "page.html", "300k.bin", "10m.bin", "/fixed"]
        connections = [2]
        cells = [
            { target = "hello.txt", connections = 3, pipelining = 16 },
            { target = "hello.txt", connections = 3, reconnect = true },
        ]
    "#;
    let (result, _, _) = run(&own, cells);
    for name in ["anello epoll", "anello epoll again", "anello io_uring"] {
        let is_forbidden = |outcome: &Outcome| {
            name.contains("io_uring")
                && matches!(outcome, Outcome::Skipped(reason) if reason.contains("io_uring"))
        };
        for outcome in Target::ALL.into_iter().flat_map(|target| outcomes(&result, name, target)) {
            assert!(is_timed(outcome) || is_forbidden(outcome), "{name}: {outcome:?}, {:?}", result.checks);
        }
    }
    let passed = result.checks.iter().filter(|check| check.contender == "anello epoll" && check.passed);
    assert_eq!(passed.count(), 3, "{:?}", result.checks);
}

#[test]
fn tls_servers_are_measured_with_requested_cipher() {
    // A server that accepts the certificate and key as arguments but does not use TLS.
    let plain =
        contender("honest", "[\"files\"]").replace("/usr/bin/env ", "/usr/bin/env TLS={certificate}:{key} ");
    let own = ["\"anello epoll\"".to_owned(), "\"anello io_uring\"".to_owned(), plain];
    let cells = r#"
        targets = ["hello.txt", "300k.bin"]
        ciphers = ["aes-256-gcm"]
        connections = [2]
        cells = [{ target = "hello.txt", connections = 3, reconnect = true }]
    "#;
    let (result, html, _) = run_over("https", &own, cells);
    for name in ["anello epoll", "anello epoll again", "anello io_uring"] {
        let is_forbidden = |outcome: &Outcome| {
            name.contains("io_uring")
                && matches!(outcome, Outcome::Skipped(reason) if reason.contains("io_uring"))
        };
        for outcome in
            [Target::Hello, Target::Large].into_iter().flat_map(|target| outcomes(&result, name, target))
        {
            assert!(is_timed(outcome) || is_forbidden(outcome), "{name}: {outcome:?}, {:?}", result.checks);
        }
    }
    let passed = result.checks.iter().filter(|check| check.contender == "anello epoll" && check.passed);
    assert_eq!(passed.count(), 3, "{:?}", result.checks);
    let plain_check = result.checks.iter().find(|check| check.contender == "honest").unwrap();
    assert!(!plain_check.passed && plain_check.details[0].contains("TLS"), "{plain_check:?}");
    let note = result.notes.iter().find(|note| note.starts_with("Kinds of TLS handshakes: ")).unwrap();
    let both = ["TLS 1.3, TLS13_AES_128_GCM_SHA256, X25519", "TLS 1.3, TLS13_AES_256_GCM_SHA384, X25519"];
    assert!(both.iter().all(|kind| note.contains(kind)) && !note.contains("resumed"), "{note}");
    let words: Vec<String> = result.plan.cells.iter().map(Cell::to_string).collect();
    assert_eq!(words[2], "3 connections, hello.txt, TLS AES-128-GCM, a connection per request");
    assert!(html.contains("HTTP, 300k.bin, TLS AES-256-GCM"));
    let command = &result.contenders[0].command;
    assert!(command.ends_with("--tls-cert {certificate} --tls-key {key}"), "{command}");
}
