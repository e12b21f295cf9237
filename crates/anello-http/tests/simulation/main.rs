//! Servers on several simulated hosts, with clients that check every byte, under all faults of the simulator: loss of
//! connections, partitions, held packets, slow links, crashes, restarts, drains and faults of system calls.
//!
//! `ANELLO_SEEDS` sets the number of seeds for each server (default: 2). A failed test prints the command that replays
//! it.

#![forbid(unsafe_code)]

mod client;
mod deadlines;
mod files;
mod http2_client;
mod servers;

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anello::signal::SignalKind;
use anello::sim::{Control, LinkOptions, SimFaults, SimModel, Simulation, check};
use anello::time::{Instant, sleep};
use anello_test::seeds;
use futures_util::future::select;

use client::{Connection, Exchange, FILE_BYTES, FILE_KIND, HTTP_1_0_KIND, KINDS};
use servers::{Stack, is_expected};

const SERVERS: [&str; 3] = ["one", "two", "three"];
const CLIENTS: [&str; 3] = ["ada", "grace", "jean"];
const FAULTS: Duration = Duration::from_secs(60);

/// Time in which each client must succeed with each server after the faults.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns a part of the bytes that belong to a number.
fn pattern(number: u64, range: Range<u64>) -> Vec<u8> {
    let byte = |offset: u64| (number ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    range.map(|offset| byte(offset) as u8).collect()
}

/// Returns whether a server supports a kind of request.
fn supports(stack: Stack, kind: u64) -> bool {
    match kind {
        // Hyper closes a connection of HTTP/1.0 in the same way after a part of a response as after all of it.
        HTTP_1_0_KIND => matches!(stack, Stack::Handler | Stack::Axum),
        FILE_KIND => matches!(stack, Stack::Handler | Stack::Http2),
        _ => true,
    }
}

/// Exchanges with random servers until the faults end, then with each server until each kind of request has succeeded.
async fn run_client(
    stack: Stack,
    kinds: Rc<[u64]>,
    control: Control,
    faults_ended: Rc<Cell<bool>>,
) -> io::Result<()> {
    let random = |bound: usize| (control.random() % bound as u64) as usize;
    let mut open: Option<Connection> = None;
    while !faults_ended.get() {
        let exchanges: Vec<_> =
            (0..1 + random(3)).map(|_| Exchange::new(kinds[random(kinds.len())], &control)).collect();
        let result = async {
            let mut connection = match open.take() {
                Some(connection) => connection,
                None => Connection::open(SERVERS[random(SERVERS.len())], stack).await?,
            };
            let is_reusable = connection.exchange(&exchanges, &control).await?;
            Ok::<_, io::Error>(is_reusable.then_some(connection))
        };
        match result.await {
            Ok(connection) => open = connection.filter(|_| random(4) > 0),
            Err(error) => assert!(is_expected(&error), "{error:?}"),
        }
        sleep(Duration::from_millis(control.random() % if random(10) == 0 { 4000 } else { 100 })).await;
    }
    drop(open);
    let end = Instant::now() + PROGRESS_TIMEOUT;
    for server in SERVERS {
        for kind in kinds.iter() {
            loop {
                // A new one for each attempt: some responses take longer than the server allows.
                let exchanges = [Exchange::new(*kind, &control)];
                let result =
                    async { Connection::open(server, stack).await?.exchange(&exchanges, &control).await };
                let Err(error) = result.await else { break };
                assert!(is_expected(&error), "{error:?}");
                assert!(
                    Instant::now() < end,
                    "{server}: no success with kind {kind} after the faults: {error}"
                );
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    Ok(())
}

/// Runs all servers and clients with faults. Returns the hash of the run.
fn run(stack: Stack, seed: u64, kinds: impl Iterator<Item = u64>) -> Result<u64, anello::sim::Error> {
    let kinds: Rc<[u64]> = kinds.filter(|kind| supports(stack, *kind)).collect();
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("files")).expect("a directory");
    for bytes in FILE_BYTES {
        let path = directory.path().join(format!("files/{bytes}"));
        files::write(&path, &pattern(bytes, 0..bytes));
    }
    let model = [SimModel::Completion, SimModel::Readiness][seed as usize % 2];
    let faults =
        [SimFaults::none(), SimFaults::lossless(30), SimFaults::all(30)][seed as usize / 2 % 3].clone();
    let is_patient = (seed / 3).is_multiple_of(2);
    let link = LinkOptions::default().loss(10).resets(2);
    let builder = Simulation::builder().seed(seed).model(model).faults(faults).link(link);
    let mut sim = builder.socket_buffer_bytes([1000, 16 * 1024][seed as usize / 6 % 2]).build();
    let drains = SERVERS.map(|_| Rc::new(Cell::new(0)));
    for (name, drains) in SERVERS.into_iter().zip(&drains) {
        let (drains, path) = (Rc::clone(drains), directory.path().to_owned());
        sim.host(name, move || servers::run(stack, is_patient, Rc::clone(&drains), path.clone()));
        sim.set_disk_delay(name, Duration::ZERO..=Duration::from_millis(5));
    }
    let faults_ended = Rc::new(Cell::new(false));
    for name in CLIENTS {
        sim.client(name, run_client(stack, Rc::clone(&kinds), sim.control(), Rc::clone(&faults_ended)));
    }
    let control = sim.control();
    sim.client("faults", async move {
        let signals = async {
            loop {
                sleep(Duration::from_millis(control.random() % 8000)).await;
                control.signal(SERVERS[(control.random() % 3) as usize], SignalKind::terminate());
            }
        };
        select(pin!(control.inject_faults(&SERVERS, FAULTS)), pin!(signals)).await;
        faults_ended.set(true);
        Ok(())
    });
    sim.run()?;
    // The last drains: nothing of all the connections may be left.
    for (name, drains) in SERVERS.iter().zip(&drains) {
        drains.set(0);
        sim.signal(name, SignalKind::terminate());
    }
    sim.run_for(PROGRESS_TIMEOUT)?;
    assert!(drains.iter().all(|drains| drains.get() > 0), "a server has not been drained");
    Ok(sim.trace_hash())
}

fn check_server(name: &str, stack: Stack) {
    check(name, seeds(2), |seed| run(stack, seed, 0..KINDS).map(drop));
}

#[test]
fn handlers_and_files_withstand_faults() {
    check_server("handlers_and_files_withstand_faults", Stack::Handler);
}

#[test]
fn handlers_over_http2_withstand_faults() {
    check_server("handlers_over_http2_withstand_faults", Stack::Http2);
}

#[test]
fn axum_withstands_faults() {
    check_server("axum_withstands_faults", Stack::Axum);
}

#[test]
fn axum_on_hyper_withstands_faults() {
    check_server("axum_on_hyper_withstands_faults", Stack::Hyper);
}

#[test]
fn seed_determines_a_run() {
    for stack in Stack::ALL {
        let run = || run(stack, 5, 0..KINDS).expect("a run");
        assert_eq!(run(), run(), "{stack:?}");
    }
}
