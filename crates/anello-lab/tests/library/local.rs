//! Tests that run the lab on the real machine, with real child processes and sockets. The assertions do not depend on
//! timing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anello_lab::load::latency_histogram;
use anello_lab::result::{Consequence, LabResult, Outcome, Quality};
use anello_lab::{
    Cell, Check, Contender, LabConfig, Load, LoadError, LoadSession, LocalMachine, Observer, Progress,
    SliceLoad, Startup, Timing, Workload, echo_cells, render_html, run_from,
};

/// Index of the request at which a server exits. Even on a slow machine, at least one request per slice is sent on
/// every connection, so [`compare`] always reaches this request.
const LAST_REQUEST: usize = 10;

/// Not a test: the server that the tests start as a child process. Returns immediately if `ANELLO_LAB_TEST_SERVER` is
/// not set. The value selects the behaviour: `dies` exits at [`LAST_REQUEST`], `dies slowly` closes the connection
/// 100 ms before that exit, `lies` changes a byte of each reply, and `refuses` fails to start.
#[test]
fn echo_server_child() {
    let Ok(behaviour) = std::env::var("ANELLO_LAB_TEST_SERVER") else { return };
    if behaviour == "refuses" {
        eprintln!("io_uring_setup: Operation not permitted");
        std::process::exit(1);
    }
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nready addr={} driver=blocking features={behaviour}", listener.local_addr().unwrap());
    for stream in listener.incoming() {
        let (mut stream, behaviour) = (stream.unwrap(), behaviour.clone());
        thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                if behaviour.starts_with("dies") && REQUESTS.fetch_add(1, Ordering::Relaxed) == LAST_REQUEST {
                    if behaviour == "dies slowly" {
                        drop(stream);
                        thread::sleep(Duration::from_millis(100));
                    }
                    std::process::exit(3);
                }
                if behaviour == "lies" {
                    buffer[0] ^= 1;
                }
                if stream.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        });
    }
}

struct NoObserver;

impl Observer for NoObserver {
    fn progress(&mut self, _progress: Progress) {}

    fn checkpoint(&mut self, _result: &LabResult) {}
}

/// A simple load generator that sends one request at a time, using all connections in turn.
struct PlainLoad;

struct PlainSession {
    streams: Vec<TcpStream>,
    message: Vec<u8>,
}

impl Load for PlainLoad {
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, LoadError> {
        let Workload::Echo { message_bytes: bytes } = cell.workload else {
            return Err(LoadError::Failed("knows echo only".to_owned()));
        };
        let connections = cell.connections;
        let connect = || {
            let stream = TcpStream::connect(target)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            Ok(stream)
        };
        let streams = (0..connections).map(|_| connect()).collect::<std::io::Result<Vec<TcpStream>>>()?;
        Ok(Box::new(PlainSession { streams, message: (0..bytes).map(|index| index as u8).collect() }))
    }

    fn check(
        &mut self,
        _target: SocketAddr,
        _check: Check,
        _stop: &AtomicBool,
    ) -> Result<Vec<String>, LoadError> {
        Ok(Vec::new())
    }
}

impl LoadSession for PlainSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError> {
        let mut load = SliceLoad { latency: latency_histogram(), ..SliceLoad::empty() };
        let started = Instant::now();
        let mut reply = vec![0; self.message.len()];
        while started.elapsed() < duration || load.requests == 0 {
            for stream in &mut self.streams {
                let sent = Instant::now();
                stream.write_all(&self.message)?;
                stream.read_exact(&mut reply)?;
                if reply != self.message {
                    load.wrong_replies += 1;
                    return Ok(load);
                }
                load.requests += 1;
                load.latency.saturating_record(sent.elapsed().as_nanos() as u64);
            }
        }
        load.elapsed_ns = started.elapsed().as_nanos() as u64;
        Ok(load)
    }
}

/// Returns a contender that runs the child server with this behaviour.
fn contender(name: &str, behaviour: &str) -> Contender {
    let executable = std::env::current_exe().unwrap();
    let variable = format!("ANELLO_LAB_TEST_SERVER={behaviour}");
    let child = ["--exact", "local::echo_server_child", "--nocapture"];
    let mut arguments = vec![variable.as_str(), executable.to_str().unwrap()];
    arguments.extend(child);
    Contender::new(name, &PathBuf::from("/usr/bin/env"), &arguments)
}

fn compare(others: Vec<Contender>) -> LabResult {
    let reference = contender("plain", "echo");
    let mut contenders = vec![reference.clone(), reference.twin()];
    contenders.extend(others);
    let config = LabConfig {
        contenders,
        reference: "plain".to_owned(),
        cells: echo_cells(&[64], &[1, 4]),
        timing: Timing {
            slice: Duration::from_millis(5),
            warm_up: Duration::from_millis(1),
            passes: 1,
            rounds: 3,
            seed: 1,
            stolen_fraction_limit: 1e9,
        },
        startup: Startup {
            start_timeout: Duration::from_secs(60),
            exit_timeout: Duration::from_secs(60),
            ..Startup::default()
        },
        ..LabConfig::preset("smoke", PathBuf::from("unused")).unwrap()
    };
    let stop = AtomicBool::new(false);
    run_from(&config, None, &mut PlainLoad, &mut LocalMachine::new(None), &mut NoObserver, &stop).unwrap()
}

fn outcomes<'a>(result: &'a LabResult, name: &str) -> Vec<&'a Outcome> {
    let rows = result.cells.iter().flat_map(|cell| &cell.rows);
    rows.filter(|row| row.contender == name).map(|row| &row.outcome).collect()
}

#[test]
fn real_servers_are_measured_with_cpu_time() {
    let result = compare(Vec::new());
    assert_eq!(result.failures, []);
    assert_eq!(outcomes(&result, "plain"), [&Outcome::Measured; 2]);
    assert_eq!(result.slices.len(), 2 * 2 * 3);
    for slice in &result.slices {
        assert_eq!(slice.quality, Quality::Clean);
        assert!(slice.requests > 0 && slice.cpu_ns > 0 && slice.p50_ns > 0 && slice.p50_ns <= slice.p99_ns);
    }
    let ready = result.contenders[0].ready_line.as_deref().unwrap();
    assert!(ready.contains("driver=blocking"), "{ready}");
    assert!(result.environment.kernel.starts_with("Linux "));
    assert!(render_html(&result).contains("driver=blocking"));
}

#[test]
fn fault_45_failing_real_servers_affect_only_their_own_cells() {
    let result = compare(["dies", "lies", "refuses"].map(|name| contender(name, name)).to_vec());
    assert_eq!(outcomes(&result, "plain"), [&Outcome::Measured; 2]);
    for outcome in outcomes(&result, "lies") {
        assert!(matches!(outcome, Outcome::Failed(why) if why.contains("wrong bytes")), "{outcome:?}");
    }
    for outcome in outcomes(&result, "refuses") {
        let expected = "exited with status 1: io_uring_setup: Operation not permitted";
        assert!(matches!(outcome, Outcome::Skipped(why) if why == expected), "{outcome:?}");
    }
    assert_died_with_status_3(&result, "dies");
}

/// The kernel closes the sockets of an exiting process before the process can be reaped. The test server closes its
/// socket 100 ms before it exits, so the load generator always sees the closed connection first.
#[test]
fn fault_45_server_closing_sockets_before_exit_is_reported_as_exited() {
    let result = compare(vec![contender("dies slowly", "dies slowly")]);
    assert_died_with_status_3(&result, "dies slowly");
}

fn assert_died_with_status_3(result: &LabResult, name: &str) {
    let deaths: Vec<_> = result.failures.iter().filter(|failure| failure.contender == name).collect();
    let is_exit =
        |what: &str| what.starts_with("exited with status 3") && what.contains("(load generator error: ");
    assert!(deaths.iter().all(|death| is_exit(&death.what)), "{deaths:?}");
    assert_eq!(deaths[0].consequence, Consequence::Restarted);
}
