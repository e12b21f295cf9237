//! Tests of the whole runtime on the simulated kernels, with faults generated from a seed: bytes arrive complete and in
//! order, no wake-up is lost, and all sockets are closed. A run can be repeated exactly with its seed.
//!
//! `ANELLO_SEEDS` sets the number of seeds (10,000 in `.ci/nightly`). A failed test prints its seed, and `ANELLO_SEED` selects a single seed. A
//! lost wake-up does not hang the test: the simulated kernel returns an error if no event can end a wait. If the driver
//! leaves a socket open, an assertion in the simulated network fails.

#![forbid(unsafe_code)]

mod clients;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::common::echo;
use anello::net::{ReadHalf, TcpListener, TcpStream, WriteHalf};
use anello::sim::{SimFaults, SimModel, SimOptions};
use anello::time::{monotonic_now, sleep, timeout};
use anello::{
    DriverKind, DriverMetrics, DriverOptions, JoinHandle, SubmissionPolling, TaskWork, ZeroCopy,
    current_driver_metrics, spawn, yield_now,
};
use clients::{Client, Server, drop_after, receive_all, run_echo};

use crate::common::{ANY_PORT, Rng, Setup, join, pair, pattern, random_simulator, short_or_long};

const MODELS: [SimModel; 2] = [SimModel::Completion, SimModel::Readiness];

/// Virtual time after which no retry can be pending.
const LIMIT: Duration = Duration::from_secs(600);

/// Events in the order in which they happened. Equal seeds produce equal events.
type Events = Vec<(usize, &'static str, usize)>;
type Trace = Rc<RefCell<Events>>;

/// Runs the workload of a seed, which also determines the kernel and the faults.
fn run(seed: u64) -> Events {
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
    let metrics = runtime.metrics().driver;
    assert!(metrics.sockets <= 64, "leaked sockets: {metrics:?}");
    drop(runtime);
    trace.take()
}

/// Sends a message in parts, reads it back in parts, sometimes drops a future, and compares every byte.
async fn client(address: SocketAddr, number: usize, mut random: Rng, trace: Trace) -> io::Result<()> {
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
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut left, mut right) = (None, None);
    poll_fn(|context| {
        if left.is_none()
            && let Poll::Ready(result) = first.as_mut().poll(context)
        {
            left = Some(result);
        }
        if right.is_none()
            && let Poll::Ready(result) = second.as_mut().poll(context)
        {
            right = Some(result);
        }
        match (&left, &right) {
            (Some(Err(_)), None) => right = Some(Err(io::ErrorKind::BrokenPipe.into())),
            (None, Some(Err(_))) => left = Some(Err(io::ErrorKind::BrokenPipe.into())),
            _ => {}
        }
        match (left.take(), right.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (left, right) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// Returns the seeds selected by environment variables, or `count` seeds by default.
fn seeds(count: u64) -> Range<u64> {
    // Under Miri, each step is about a thousand times slower.
    crate::common::seeds(if cfg!(miri) { count.div_ceil(60) } else { count })
}

/// Runs a test for each seed on these models. Returns the number of runs.
fn for_seeds(count: u64, models: &[SimModel], mut test: impl FnMut(u64, SimModel)) -> u64 {
    let seeds = seeds(count);
    let runs = (seeds.end - seeds.start) * models.len() as u64;
    for (seed, model) in seeds.flat_map(|seed| models.iter().map(move |model| (seed, *model))) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed, model))) {
            eprintln!("seed {seed} failed on {model:?}: repeat it with ANELLO_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    runs
}

/// Runs a test on a new runtime until all sockets are closed. Returns its output and the driver's counters.
fn run_test<T>(sim: SimOptions, options: DriverOptions, test: impl Future<Output = T>) -> (T, DriverMetrics) {
    Setup { name: "sim", kind: DriverKind::Sim(sim), options }.run(async {
        let output = test.await;
        let start = monotonic_now();
        while current_driver_metrics().unwrap().sockets > 0 {
            assert!(monotonic_now() - start < Duration::from_secs(10), "sockets left in the driver");
            sleep(Duration::from_micros(100)).await;
        }
        (output, current_driver_metrics().unwrap())
    })
}

fn sim_options(seed: u64, model: SimModel, faults: SimFaults) -> SimOptions {
    let bytes = 64 << Rng::with_seed(seed).u64(..9);
    SimOptions::new(seed).model(model).faults(faults).socket_buffer_bytes(bytes)
}

/// Returns fault rates under which every connection survives. Descriptors never run out, so no clients are rejected.
fn lossless(per_mille: u16) -> SimFaults {
    let mut faults = SimFaults::lossless(per_mille);
    faults.descriptor_exhaustion = 0;
    faults
}

fn chance(random: &mut Rng, per_mille: u16) -> bool {
    random.u16(..1000) < per_mille
}

/// Returns random driver options, which together cover many code paths of a driver.
fn driver_options(random: &mut Rng) -> DriverOptions {
    let mut options = DriverOptions::default();
    options.testing.initial_receive_buffers = 1 << random.u64(..4);
    options.max_receive_buffers = options.testing.initial_receive_buffers << random.u64(..4);
    options.receive_buffer_bytes = 64 << random.u64(..7);
    options.max_received_chunks = 1 + random.usize(..8);
    options.max_send_queue_bytes = 1 << (8 + random.u64(..9));
    options.direct_send_threshold_bytes = 1 << (6 + random.u64(..9));
    options.testing.deferred_send_threshold_edges = random.usize(..4);
    options.testing.cq_entries = 1 << random.u64(..8);
    options.max_accept_queue = 1 + random.usize(..3);
    // With submission polling, every send posts a completion.
    options.submission_polling = (!chance(random, 700)).then(SubmissionPolling::default);
    options.testing.disabled_features.multishot_receive = chance(random, 200);
    options.testing.disabled_features.multishot_accept = chance(random, 200);
    options.task_work = if chance(random, 700) { TaskWork::Deferred } else { TaskWork::Cooperative };
    options.testing.disabled_features.buffer_ring = chance(random, 100);
    options.testing.disabled_features.cqe_skip = chance(random, 100);
    if chance(random, 300) {
        options.zero_copy = ZeroCopy::Always { threshold_bytes: 1 << (4 + random.u64(..10)) };
    }
    options
}

#[test]
fn fault_42_swarm() {
    // The seed also selects the model, so the model passed here is ignored.
    for_seeds(80, &MODELS[..1], |seed, _| drop(run(seed)));
}

#[test]
fn same_seed_replays_exactly() {
    let seeds = [3, 14, 15, 92, 65];
    for seed in seeds.into_iter().take(if cfg!(miri) { 1 } else { seeds.len() }) {
        let (first, second) =
            (catch_unwind(AssertUnwindSafe(|| run(seed))), catch_unwind(AssertUnwindSafe(|| run(seed))));
        assert_eq!(first.ok(), second.ok(), "seed {seed}");
    }
}

#[test]
fn broken_connection_does_not_return_eof() {
    for model in [SimModel::Completion, SimModel::Readiness] {
        for buffer_ring in [true, false] {
            for seed in seeds(40) {
                let mut faults = SimFaults::none();
                faults.resets = 30;
                let sim = SimOptions::new(seed).model(model).faults(faults);
                let setup = Setup::new("sim", DriverKind::Sim(sim), |options| {
                    options.testing.disabled_features.buffer_ring = !buffer_ring;
                });
                let has_ended = setup.run(async {
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

#[test]
fn lossless_faults_preserve_all_bytes_in_order() {
    for_seeds(20, &MODELS, |seed, model| {
        let faults = lossless([0, 20, 100, 300, 600][seed as usize % 5]);
        let (clients, ..) = run_echo(sim_options(seed, model, faults), short_or_long(50, 100) * 1024, false);
        clients.iter().for_each(|client| client.assert_received_all());
    });
}

#[test]
fn bytes_received_before_connection_error_are_prefix() {
    for_seeds(20, &MODELS, |seed, model| {
        let faults = SimFaults::all(50 + seed as u16 % 500);
        let (clients, ..) = run_echo(sim_options(seed, model, faults), 20 * 1024, false);
        clients.iter().for_each(|client| client.assert_received_prefix());
    });
}

#[test]
fn fault_10_dropped_futures_leave_no_operation_in_flight() {
    for_seeds(40, &MODELS, |seed, model| {
        let mut faults = SimFaults::all(seed as u16 % 300);
        faults.late_completions = 0;
        let (clients, _, metrics) = run_echo(sim_options(seed, model, faults), 20 * 1024, true);
        clients.iter().for_each(|client| client.assert_received_prefix());
        assert_eq!(metrics.late_completions, 0, "a slot was released too early");
    });
}

#[test]
fn fault_13_terminated_multishot_operations_are_rearmed() {
    for_seeds(20, &MODELS, |seed, model| {
        let mut faults = SimFaults::none();
        (faults.multishot_terminations, faults.short_receives) = (900, 300);
        let (clients, ..) = run_echo(sim_options(seed, model, faults), 20 * 1024, false);
        clients.iter().for_each(|client| client.assert_received_all());
    });
}

#[test]
fn same_seed_produces_same_events_and_counters() {
    for_seeds(20, &MODELS, |seed, model| {
        let run = || run_echo(sim_options(seed, model, SimFaults::all(200)), 20 * 1024, false);
        assert_eq!(run(), run());
    });
}

#[test]
#[cfg_attr(
    plain_memory,
    ignore = "the tool would report memory that the driver leaks when completions are missing"
)]
fn fault_09_dropped_completions_lose_no_bytes_without_an_error() {
    let (mut whole, mut broken) = (0, 0);
    for_seeds(100, &[SimModel::Completion], |seed, model| {
        let mut faults = lossless([0, 50, 300][seed as usize % 3]);
        faults.dropped_completions = [2, 10, 50][seed as usize / 3 % 3];
        if seed % 2 == 0 {
            faults.late_completions = 0;
        }
        let may_be_late = faults.late_completions > 0;
        let (clients, _, metrics) = run_echo(sim_options(seed, model, faults), 20 * 1024, seed % 4 == 0);
        for client in clients {
            client.assert_received_prefix();
            if client.whole.get() {
                whole += 1;
                client.assert_received_all();
            } else {
                broken += 1;
            }
        }
        assert!(may_be_late || metrics.late_completions == 0, "a slot was released too early");
    });
    assert!(cfg!(miri) || whole > 0 && broken > 0, "{whole} whole, {broken} broken");
}

#[test]
fn fault_11_cancelled_connect_or_accept_leaves_no_socket_open() {
    for_seeds(60, &MODELS, |seed, model| {
        let mut faults = SimFaults::lossless(300);
        faults.late_completions = 0;
        let mut random = Rng::with_seed(seed);
        let options = driver_options(&mut random);
        let ((), metrics) = run_test(sim_options(seed, model, faults), options, async move {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let mut tasks: Vec<_> = (0..8)
                .map(|_| {
                    let connect = async move { drop(TcpStream::connect(address).await) };
                    spawn(drop_after(random.u64(..100), connect))
                })
                .collect();
            let accept = async move {
                for _ in 0..4 {
                    drop(listener.accept().await);
                }
            };
            tasks.push(spawn(drop_after(random.u64(..100), accept)));
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(metrics.late_completions, 0, "a slot was released too early");
    });
}

#[test]
fn dropped_stream_sends_accepted_bytes() {
    for_seeds(60, &MODELS, |seed, model| {
        let sim = sim_options(seed, model, lossless([0, 100, 400][seed as usize % 3]));
        let mut random = Rng::with_seed(seed);
        run_test(sim, driver_options(&mut random), async move {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let data = pattern(seed, 3000);
            let send = async {
                let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                for chunk in data.chunks(700) {
                    stream.send(chunk.to_vec()).await.unwrap();
                }
            };
            let receive = async {
                let (mut stream, received) = (listener.accept().await.unwrap(), RefCell::default());
                receive_all(stream.split().0, &received, random).await.unwrap();
                received.take()
            };
            let ((), received) = join(send, receive).await;
            assert!(received == data, "{} bytes received", received.len());
        });
    });
}

#[test]
fn connect_without_listener_is_refused() {
    for_seeds(20, &MODELS, |seed, model| {
        let sim = sim_options(seed, model, SimFaults::lossless(300));
        let (refused, _) = run_test(sim, DriverOptions::default(), TcpStream::connect("127.0.0.1:9"));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn fault_12_late_completion_after_slot_reuse_is_ignored_and_counted() {
    for model in MODELS {
        let mut late = 0;
        let runs = for_seeds(20, &[model], |seed, model| {
            let mut faults = SimFaults::none();
            faults.late_completions = 900;
            let sim = sim_options(seed, model, faults);
            let ((), metrics) = run_test(sim, DriverOptions::default(), async move {
                let listener = TcpListener::bind(ANY_PORT).unwrap();
                let address = listener.local_addr().unwrap();
                let server = Server::default();
                server.spawn(server.clone().serve(listener, 0, Rng::with_seed(seed)));
                // Each connection reuses the slot of the previous one, for which late completions still arrive.
                for number in 0..20u8 {
                    let client = Rc::new(Client { sent: vec![number; 100], ..Client::default() });
                    Rc::clone(&client).run(address, Rng::with_seed(seed), false).await;
                    client.assert_received_all();
                }
                server.tasks.take().iter().for_each(JoinHandle::abort);
            });
            late += metrics.late_completions;
        });
        assert!(late >= runs, "{model:?}: {late} late completions in {runs} runs");
    }
}

#[test]
fn fault_22_reset_missed_by_receive_is_detected() {
    let mut resets = 0;
    let runs = for_seeds(60, &[SimModel::Completion], |seed, _| {
        let mut faults = SimFaults::none();
        (faults.missed_resets, faults.delays) = (900, 500);
        let sim = SimOptions::new(seed).faults(faults);
        let (error, _) = run_test(sim, DriverOptions::default(), async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let client = async {
                let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                stream.send(b"the last".to_vec()).await.unwrap();
                // The stream is dropped afterwards, usually before the greeting has been read.
                stream.flush().await.unwrap();
            };
            let server = async {
                let mut stream = listener.accept().await.unwrap();
                stream.send(b"a greeting".to_vec()).await.unwrap();
                loop {
                    match stream.recv().await {
                        Ok(Some(_)) => {}
                        ended => return ended.err().map(|error| error.kind()),
                    }
                }
            };
            join(client, server).await.1
        });
        assert!(error.is_none_or(|kind| kind == io::ErrorKind::ConnectionReset), "{error:?}");
        resets += u64::from(error.is_some());
    });
    assert!(resets > runs / 4, "{resets} resets in {runs} runs");
}

#[test]
fn flush_completes_with_partial_submissions() {
    for_seeds(40, &[SimModel::Completion], |seed, _| {
        let mut faults = SimFaults::none();
        faults.partial_submissions = 500;
        run_test(SimOptions::new(seed).faults(faults), DriverOptions::default(), async {
            // During a flush, only sends of the other stream are in flight, and these do not end the driver's wait.
            let flush_often = async |mut stream: TcpStream| {
                for number in 0..20u8 {
                    stream.send(vec![number; 10]).await.unwrap();
                    stream.flush().await.unwrap();
                }
                stream
            };
            let (near, far) = pair().await.unwrap();
            join(flush_often(near), flush_often(far)).await;
        });
    });
}

#[test]
fn wait_without_possible_event_is_deadlock_error() {
    for_seeds(1, &MODELS, |seed, model| {
        let waiting = || {
            run_test(SimOptions::new(seed).model(model), DriverOptions::default(), async {
                drop(TcpListener::bind(ANY_PORT).unwrap().accept().await);
            })
        };
        let panic = catch_unwind(waiting).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("deadlock"), "{model:?}");
    });
}
