//! The whole runtime with the echo service and its clients on the simulated kernels, with a mix of all faults. Every
//! seed replays exactly.
//!
//! `ANELLO_SEEDS` sets the number of seeds (1000 by default). A failure prints its seed, and `ANELLO_SEED` runs only
//! that seed.

#![forbid(unsafe_code)]

mod common;

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream, echo};
use anello::time::{sleep, timeout};
use anello::{DriverKind, DriverOptions, Runtime, SimFaults, SimModel, SimOptions, spawn};
use common::{Rng, pair, random_simulator};

/// Virtual time after which no retry can be pending.
const LIMIT: Duration = Duration::from_secs(600);

/// Events in the order in which they happened. Equal seeds produce equal events.
type Trace = Rc<RefCell<Vec<(usize, &'static str, usize)>>>;

/// Runs one seed, which determines the kernel, the faults and the workload.
fn run(seed: u64) -> Vec<(usize, &'static str, usize)> {
    let mut random = Rng::with_seed(seed);
    let (setup, is_lossy) = random_simulator(seed);
    let runtime = setup.runtime();
    let trace = Trace::default();
    let noted = Rc::clone(&trace);
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = spawn(async move {
            loop {
                // A connection that was reset before it was accepted is not a server error.
                let Ok(mut stream) = listener.accept().await else { continue };
                spawn(async move { echo(&mut stream).await }).detach();
            }
        });
        let clients: Vec<_> = (0..1 + random.usize(..6))
            .map(|number| {
                let client = client(address, number, Rng::with_seed(random.u64(..)), Rc::clone(&noted));
                spawn(async move { (number, timeout(LIMIT, client).await) })
            })
            .collect();
        for client in clients {
            let (number, ended) = client.await.expect("no client panics");
            let result = ended.unwrap_or_else(|_| panic!("client {number} hangs"));
            assert!(result.is_ok() || is_lossy, "client {number} failed on a lossless network: {result:?}");
        }
        serving.abort();
        sleep(Duration::from_millis(1)).await;
    });
    let metrics = runtime.metrics();
    assert!(metrics.sockets <= 64, "leaked sockets: {metrics:?}");
    drop(runtime);
    trace.take()
}

/// Sends a message in parts, reads it back in parts, sometimes drops a future, and compares every byte.
async fn client(
    address: std::net::SocketAddr,
    number: usize,
    mut random: Rng,
    trace: Trace,
) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    for round in 0..1 + random.usize(..8) {
        let length = match random.usize(..4) {
            0 => 1 + random.usize(..64),
            1 => 1 + random.usize(..4096),
            _ => 1 + random.usize(..60_000),
        };
        let salt = random.u64(..);
        let message: Vec<u8> =
            (0..length as u64).map(|at| (at.wrapping_mul(31) ^ salt ^ (at >> 8)) as u8).collect();
        if random.usize(..8) == 0 {
            sleep(Duration::from_micros(random.usize(..2000) as u64)).await;
        }
        let (mut reader, mut writer) = stream.split();
        let outgoing = message.clone();
        let by_copy = random.usize(..2) == 0;
        let writing = async {
            if by_copy {
                writer.write_all(&outgoing).await?
            } else {
                writer.send(outgoing).await?
            }
            writer.flush().await
        };
        let mut pieces = Rng::with_seed(random.u64(..));
        let reading = async {
            let mut received = Vec::with_capacity(length);
            while received.len() < length {
                // Dropping a pending receive loses no bytes.
                let Ok(chunk) =
                    timeout(Duration::from_micros(pieces.usize(..500) as u64), reader.recv()).await
                else {
                    continue;
                };
                let Some(chunk) = chunk? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
                received.extend_from_slice(&chunk);
                trace.borrow_mut().push((number, "received", chunk.len()));
            }
            Ok(received)
        };
        let (written, received) = both(writing, reading).await;
        written?;
        assert!(received? == message, "client {number}, round {round}: the echoed bytes differ");
        trace.borrow_mut().push((number, "round", length));
    }
    stream.shutdown().await?;
    match stream.recv().await? {
        None => Ok(()),
        Some(chunk) => panic!("client {number}: {} unexpected bytes", chunk.len()),
    }
}

/// Runs both futures to completion in one task. If the first one fails, the second one is dropped.
async fn both<A, B>(
    first: impl Future<Output = io::Result<A>>,
    second: impl Future<Output = io::Result<B>>,
) -> (io::Result<A>, io::Result<B>) {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let (mut left, mut right) = (None, None);
    std::future::poll_fn(|context| {
        if left.is_none()
            && let std::task::Poll::Ready(result) = first.as_mut().poll(context)
        {
            left = Some(result);
        }
        if right.is_none()
            && let std::task::Poll::Ready(result) = second.as_mut().poll(context)
        {
            right = Some(result);
        }
        match (&left, &right) {
            (Some(Err(_)), None) => right = Some(Err(io::ErrorKind::BrokenPipe.into())),
            (None, Some(Err(_))) => left = Some(Err(io::ErrorKind::BrokenPipe.into())),
            _ => {}
        }
        match (left.take(), right.take()) {
            (Some(first), Some(second)) => std::task::Poll::Ready((first, second)),
            (first, second) => {
                (left, right) = (first, second);
                std::task::Poll::Pending
            }
        }
    })
    .await
}

fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    if let Some(seed) = number("ANELLO_SEED") {
        return vec![seed];
    }
    (0..number("ANELLO_SEEDS").unwrap_or(if cfg!(miri) { 4 } else { 1000 })).collect()
}

#[test]
fn fault_42_swarm() {
    for seed in seeds() {
        if let Err(panic) = catch_unwind(|| run(seed)) {
            eprintln!("seed {seed} failed: repeat it with ANELLO_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn same_seed_replays_exactly() {
    for seed in [3, 14, 15, 92, 65] {
        let (first, second) =
            (catch_unwind(AssertUnwindSafe(|| run(seed))), catch_unwind(AssertUnwindSafe(|| run(seed))));
        assert_eq!(first.ok(), second.ok(), "seed {seed}");
    }
}

#[test]
fn broken_connection_does_not_return_eof() {
    for model in [SimModel::Completion, SimModel::Readiness] {
        for buffer_ring in [true, false] {
            for seed in 0..400 {
                let mut faults = SimFaults::none();
                faults.resets = 30;
                let sim = SimOptions::new(seed).model(model).faults(faults);
                let mut options = DriverOptions::default();
                options.disabled_features.buffer_ring = !buffer_ring;
                let builder = Runtime::builder().driver(DriverKind::Sim(sim)).options(options);
                let runtime = builder.driver_from_environment(false).build().expect("a simulated kernel");
                let has_ended = runtime.block_on(async {
                    let (mut client, mut server) = pair().await.expect("a connection");
                    spawn(async move {
                        while client.write_all(&[7; 3000]).await.is_ok() {
                            sleep(Duration::from_micros(300)).await;
                        }
                        // The server never shuts down its write half.
                        pending::<()>().await;
                    })
                    .detach();
                    loop {
                        match server.recv().await {
                            Ok(Some(_)) => {}
                            ended => return ended.is_ok(),
                        }
                    }
                });
                assert!(
                    !has_ended,
                    "{model:?}, buffer ring {buffer_ring}, seed {seed}: EOF without an error"
                );
            }
        }
    }
}
