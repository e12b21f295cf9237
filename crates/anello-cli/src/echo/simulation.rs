//! The echo server on several simulated hosts, with clients that check every byte.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anello::net::{ReadHalf, TcpStream, WriteHalf};
use anello::sim::{Control, SimModel, Simulation, check};
use anello::time::{Instant, sleep, timeout};
use anello_servers::echo::Sizes;
use anello_test::{pattern, short_or_long};
use clap::Parser;
use futures_util::future::join;

use super::flags::Arguments;
use super::run::{Service, serve};
use crate::common::listening::Listening;
use crate::common::simulation::{HostState, PROGRESS_TIMEOUT, SERVERS, WORKERS, run_with_faults, seeds};

const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    echo: Arguments,
}

/// The options that a seed selects.
#[derive(Clone, Copy)]
struct Mode {
    sizes: Option<Sizes>,
    idle_timeout: Option<Duration>,
}

impl Mode {
    fn of_seed(seed: u64) -> Self {
        let sizes = [
            None,
            Some(Sizes { request_bytes: 100, response_bytes: 250 }),
            Some(Sizes { request_bytes: 700, response_bytes: 30 }),
        ];
        let idle_timeout = (seed / 3 % 2 == 1).then_some(Duration::from_secs(2));
        Self { sizes: sizes[seed as usize % 3], idle_timeout }
    }

    fn arguments(self) -> Arguments {
        let mut flags = vec!["echo".to_owned(), "--drain-timeout=3s".to_owned()];
        if let Some(Sizes { request_bytes, response_bytes }) = self.sizes {
            flags.push(format!("--request-bytes={request_bytes}"));
            flags.push(format!("--response-bytes={response_bytes}"));
        }
        flags.extend(self.idle_timeout.map(|timeout| format!("--idle-timeout={}s", timeout.as_secs())));
        Flags::parse_from(flags).echo
    }

    /// Returns what the server must send back.
    fn expected(self, sent: &[u8]) -> Vec<u8> {
        let Some(Sizes { request_bytes, response_bytes }) = self.sizes else { return sent.to_vec() };
        let responses = sent.chunks_exact(request_bytes).map(|request| {
            let mut response = request.repeat(response_bytes.div_ceil(request_bytes));
            response.truncate(response_bytes);
            response
        });
        responses.collect::<Vec<_>>().concat()
    }
}

/// The program of a host.
async fn run_server(mode: Mode, state: Rc<HostState>) -> io::Result<()> {
    let start = || {
        let service =
            Arc::new(Service::new(mode.arguments(), Listening::simulated("0.0.0.0:7")?, usize::MAX, None));
        let workers = (0..WORKERS).map(|index| anello::spawn(serve(Arc::clone(&service), index, |_| ())));
        let workers = workers.collect();
        service.listening.resume();
        Ok((workers, move || service.limits.connections.load(Ordering::Relaxed)))
    };
    state.supervise(DRAIN_TIMEOUT, start).await
}

async fn send_all(mut writer: WriteHalf<&TcpStream>, bytes: &[u8], control: &Control) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let bound = if control.random().is_multiple_of(2) { 50 } else { 10_000 };
        let (part, tail) = rest.split_at(rest.len().min(1 + (control.random() % bound) as usize));
        writer.write_all(part).await?;
        rest = tail;
        if control.random().is_multiple_of(16) {
            sleep(Duration::from_millis(control.random() % 30)).await;
        }
    }
    writer.flush().await?;
    writer.shutdown().await
}

async fn receive_all(mut reader: ReadHalf<&TcpStream>, received: &RefCell<Vec<u8>>) -> io::Result<()> {
    while let Some(chunk) = reader.recv().await? {
        received.borrow_mut().extend_from_slice(&chunk);
    }
    Ok(())
}

/// Sends random bytes on a new connection and checks what comes back. Returns an error if something is missing.
async fn exchange(host: &str, mode: Mode, state: &HostState, control: &Control) -> io::Result<()> {
    let bound = if control.random().is_multiple_of(4) { 50_000 } else { 3000 };
    let sent = pattern(control.random(), (control.random() % bound) as usize);
    let (expected, received) = (mode.expected(&sent), RefCell::default());
    let exits = state.exits.get();
    let exchanging = async {
        let mut stream = TcpStream::connect((host, 7)).await?;
        let (reader, writer) = stream.split();
        let (sent, received) = join(send_all(writer, &sent, control), receive_all(reader, &received)).await;
        // As on Linux, the first call after a reset returns the error; a receive after a failed send returns EOF.
        sent.and(received)
    };
    let result = timeout(CLIENT_TIMEOUT, exchanging).await.unwrap_or_else(|error| Err(error.into()));
    let received = received.into_inner();
    assert!(expected.starts_with(&received), "wrong bytes from {host} after {} bytes", received.len());
    result?;
    if received.len() < expected.len() {
        let is_draining = state.signalled_at.get().is_some() || state.exits.get() != exits;
        // A server without free descriptors closes a connection before it has received anything.
        let is_rejected = received.is_empty();
        let is_expected = is_draining || is_rejected || mode.idle_timeout.is_some();
        assert!(is_expected, "EOF without an error from {host}");
        let is_complete = mode.sizes.is_none_or(|sizes| received.len().is_multiple_of(sizes.response_bytes));
        assert!(is_complete, "EOF within a response from {host}");
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

async fn run_client(
    mode: Mode,
    control: Control,
    states: Vec<Rc<HostState>>,
    faults_ended: Rc<Cell<bool>>,
) -> io::Result<()> {
    while !faults_ended.get() {
        let server = (control.random() % 3) as usize;
        // The faults cause errors.
        exchange(SERVERS[server], mode, &states[server], &control).await.ok();
        sleep(Duration::from_millis(control.random() % 100)).await;
    }
    let end = Instant::now() + PROGRESS_TIMEOUT;
    for (server, state) in SERVERS.iter().zip(&states) {
        while let Err(error) = exchange(server, mode, state, &control).await {
            assert!(Instant::now() < end, "{server}: no success after the faults: {error}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

fn run(seed: u64) -> Result<u64, anello::sim::Error> {
    let mode = Mode::of_seed(seed);
    run_with_faults(
        seed,
        move |state| run_server(mode, state),
        |control, states, faults_ended| run_client(mode, control, states, faults_ended),
    )
}

/// A drain that starts too late, or only at its deadline, makes clients wait.
#[test]
fn drain_ends_idle_connections_before_its_deadline() {
    for model in [SimModel::Completion, SimModel::Readiness] {
        let mut sim = Simulation::builder().model(model).build();
        let (mode, state) = (Mode { sizes: None, idle_timeout: None }, HostState::new("one", &sim));
        let served = Rc::clone(&state);
        sim.host("one", move || run_server(mode, Rc::clone(&served)));
        sim.client("client", async move {
            let mut stream = TcpStream::connect("one:7").await?;
            stream.write_all(b"ciao").await?;
            assert_eq!(stream.recv().await?.as_deref(), Some(&b"ciao"[..]));
            state.terminate();
            let start = Instant::now();
            assert!(stream.recv().await?.is_none());
            drop(stream);
            while state.exits.get() == 0 {
                sleep(Duration::from_millis(10)).await;
            }
            assert!(start.elapsed() < DRAIN_TIMEOUT / 4, "{model:?}: the drain took {:?}", start.elapsed());
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
    }
}

/// The cause for which a server ends the connection of a client that does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    DrainTimeout,
    SecondSignal,
    IdleTimeout,
}

/// Fills all buffers up to the client, which then reads again. Returns the number of bytes that the server had to send,
/// the number of bytes that the client receives, and the error with which the connection ends.
async fn read_after(cause: Cause, mode: Mode, state: &HostState) -> io::Result<(usize, usize, io::Error)> {
    let mut stream = TcpStream::connect(("one", 7)).await?;
    let mut sent = Vec::new();
    let part = vec![1; mode.sizes.map_or(10_000, |sizes| sizes.request_bytes)];
    while let Ok(written) = timeout(Duration::from_secs(1), stream.write(&part)).await {
        sent.extend_from_slice(&part[..written?]);
    }
    let signals = match cause {
        Cause::DrainTimeout => 1,
        Cause::SecondSignal => 2,
        Cause::IdleTimeout => 0,
    };
    for _ in 0..signals {
        state.terminate();
        sleep(Duration::from_secs(1)).await;
    }
    sleep(DRAIN_TIMEOUT).await;
    let received = RefCell::default();
    let (reader, _writer) = stream.split();
    let error = receive_all(reader, &received).await.expect_err("EOF after an incomplete response");
    Ok((mode.expected(&sent).len(), received.into_inner().len(), error))
}

/// After an EOF, a client takes what it has received for everything.
#[test]
fn client_without_complete_response_is_reset() {
    for (model, sizes) in [
        (SimModel::Completion, None),
        (SimModel::Readiness, None),
        (SimModel::Completion, Some(Sizes { request_bytes: 100, response_bytes: 1_000_000 })),
        (SimModel::Readiness, Some(Sizes { request_bytes: 100, response_bytes: 1_000_000 })),
    ] {
        for cause in [Cause::DrainTimeout, Cause::SecondSignal, Cause::IdleTimeout] {
            let mut sim = Simulation::builder().model(model).build();
            let idle_timeout = (cause == Cause::IdleTimeout).then_some(Duration::from_secs(2));
            let (mode, state) = (Mode { sizes, idle_timeout }, HostState::new("one", &sim));
            let served = Rc::clone(&state);
            sim.host("one", move || run_server(mode, Rc::clone(&served)));
            sim.client("client", async move {
                let (expected, received, error) = read_after(cause, mode, &state).await?;
                assert!(received < expected, "{model:?}, {cause:?}: {received} of {expected} bytes");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{model:?}, {cause:?}");
                Ok(())
            });
            sim.run().unwrap_or_else(|error| panic!("{model:?}, {cause:?}: {error}\n{}", sim.trace()));
        }
    }
}

#[test]
fn echo_withstands_faults() {
    check("echo_withstands_faults", 0..seeds(), |seed| run(seed).map(drop));
}

#[test]
fn seed_determines_a_run() {
    for seed in 4..short_or_long(5, 6) {
        assert_eq!(run(seed).expect("a run"), run(seed).expect("a run"), "seed {seed}");
    }
}
