//! Tests of the schedule of an open loop, and of the percentiles measured with Poisson arrivals.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anello::{DriverKind, Runtime, RuntimeBuilder};
use anello_load::{Arrivals, LoadConfig, Mode, Schedule, Share, latency_histogram, run};
use hdrhistogram::Histogram;

const MESSAGE_BYTES: usize = 64;
const DELAY: Duration = Duration::from_millis(80);
const DURATION: Duration = Duration::from_secs(1);
const PER_SECOND: u64 = 50;
const SEED: u64 = 3;
const THREADS: usize = 2;
/// With this number of connections, each sends a request about every 800 ms and is idle before the next request.
const CONNECTIONS: usize = 40;

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

#[test]
fn constant_arrivals_are_independent_of_thread_count() {
    for connections in [1, 2, 5, 8] {
        let all = |threads: usize| {
            let mut all: Vec<_> = (0..threads.min(connections))
                .flat_map(|thread| {
                    let share = Share { thread, threads: threads.min(connections), connections };
                    Schedule::new(share, 3000, Arrivals::Constant, 1)
                        .take_while(|&(at_ns, _)| at_ns < 100_000_000)
                        .map(move |(at_ns, local_index)| (at_ns, share.global_index(local_index)))
                })
                .collect();
            all.sort_unstable();
            all
        };
        let expected: Vec<_> = (0..300).map(|k| (k * 1_000_000 / 3, k as usize % connections)).collect();
        for threads in 1..=4 {
            assert_eq!(all(threads), expected, "{connections} connections, {threads} threads");
        }
    }
}

#[test]
fn poisson_arrivals_match_rate_deviation_and_seed() {
    let due_times = |seed, thread| -> Vec<f64> {
        let share = Share { thread, threads: 2, connections: 7 };
        let schedule = Schedule::new(share, 7000, Arrivals::Poisson, seed);
        schedule.take(100_000).map(|(ns, _)| ns as f64).collect()
    };
    let first = due_times(1, 0);
    assert!(first == due_times(1, 0) && first != due_times(2, 0) && first != due_times(1, 1));
    // The thread has 4 of the 7 connections, and therefore sends 4,000 requests per second.
    let gaps: Vec<f64> = first.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!((mean / 250_000.0 - 1.0).abs() < 0.02, "{mean}");
    assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "standard deviation equals mean: {variance}");
}

#[test]
fn remaining_requests_match_iteration() {
    for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
        for (thread, threads, connections) in [(0, 1, 1), (0, 2, 5), (1, 2, 5), (2, 3, 8), (3, 4, 4)] {
            let mut schedule = Schedule::new(Share { thread, threads, connections }, 3000, arrivals, 5);
            for passed in [0, 1, 7, 100] {
                schedule.by_ref().take(passed).for_each(drop);
                for (from_ns, to_ns) in [(0, 0), (0, 1), (0, 333_334), (50_000_000, 90_000_001)] {
                    let due_times = schedule.clone().map(|(ns, _)| ns).take_while(|&ns| ns < to_ns);
                    let expected = due_times.filter(|&ns| ns >= from_ns).count() as u64;
                    let case = (arrivals, thread, connections, passed, from_ns, to_ns);
                    assert_eq!(schedule.remaining_requests(from_ns, to_ns), expected, "{case:?}");
                }
            }
        }
    }
    // Too many requests to iterate over.
    let [constant, poisson] = [Arrivals::Constant, Arrivals::Poisson].map(|arrivals| {
        Schedule::new(Share { thread: 0, threads: 1, connections: 3 }, 1_000_000_000, arrivals, 5)
            .remaining_requests(0, 1 << 50)
    });
    assert!(constant == 1 << 50 && poisson.abs_diff(1 << 50) < 1 << 10, "{constant}, {poisson}");
}

#[test]
fn share_without_connections_has_empty_schedule() {
    let share = Share { thread: 3, threads: 4, connections: 2 };
    assert_eq!((share.count(), Schedule::new(share, 10, Arrivals::Constant, 0).next()), (0, None));
}

/// A request as seen by the server: its connection, its number on this connection, its arrival time and its reply time.
type LoggedRequest = ((usize, usize), u64, u64);

/// Starts a server that echoes each message after [`DELAY`] and logs it.
fn delaying_server() -> (SocketAddr, Arc<Mutex<Vec<LoggedRequest>>>) {
    let (log, origin) = (Arc::<Mutex<Vec<LoggedRequest>>>::default(), Instant::now());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, writer) = (listener.local_addr().unwrap(), Arc::clone(&log));
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let writer = Arc::clone(&writer);
            let Ok(SocketAddr::V4(client)) = stream.peer_addr() else {
                panic!("not a connection from 127.0.0.0/8")
            };
            let connection = usize::from(client.ip().octets()[3]) - 1;
            thread::spawn(move || {
                let (mut message, mut requests) = (vec![0; MESSAGE_BYTES], 0..);
                while stream.read_exact(&mut message).is_ok() {
                    let received_ns = nanoseconds(origin.elapsed());
                    thread::sleep(DELAY);
                    // Taken before sending, so that this time is never later than the receipt of the reply.
                    let replied_ns = nanoseconds(origin.elapsed());
                    let id = (connection, requests.next().unwrap());
                    writer.lock().unwrap().push((id, received_ns, replied_ns));
                    if stream.write_all(&message).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, log)
}

/// Returns the due time of each request, in nanoseconds since the start.
fn due_ns() -> HashMap<(usize, usize), u64> {
    let mut by_connection: HashMap<usize, Vec<u64>> = HashMap::new();
    for thread in 0..THREADS {
        let share = Share { thread, threads: THREADS, connections: CONNECTIONS };
        let schedule = Schedule::new(share, PER_SECOND, Arrivals::Poisson, SEED);
        for (at_ns, local_index) in schedule.take_while(|&(at_ns, _)| at_ns < nanoseconds(DURATION)) {
            by_connection.entry(share.global_index(local_index)).or_default().push(at_ns);
        }
    }
    let must_queue = |pair: &[u64]| pair[1] - pair[0] <= 2 * nanoseconds(DELAY);
    assert!(!by_connection.values().any(|due_ns| due_ns.windows(2).any(must_queue)), "choose another seed");
    let requests = by_connection.into_iter().flat_map(|(connection, due_ns)| {
        due_ns.into_iter().enumerate().map(move |(number, ns)| ((connection, number), ns))
    });
    requests.collect()
}

/// Returns the percentiles of a load run that exceed those in the server's log by more than 1 % plus 0.3 ms of transfer
/// time. Asserts that no percentile is below the one in the log, and that none in the log is below the delay.
fn percentiles_too_high(driver: &RuntimeBuilder) -> Vec<(f64, u64, u64)> {
    let (address, log) = delaying_server();
    let load = LoadConfig {
        connections: CONNECTIONS,
        threads: THREADS,
        mode: Mode::Open { per_second: PER_SECOND, arrivals: Arrivals::Poisson, seed: SEED },
        duration: DURATION,
        drain_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(30),
        verify: true,
        // Identify the connections.
        source_addresses: (1..=CONNECTIONS as u8).map(|last| [127, 0, 0, last].into()).collect(),
        ..LoadConfig::echo(address, MESSAGE_BYTES)
    };
    let outcome = run(&load, driver, |_| ControlFlow::Continue(())).unwrap();
    let (report, log, due_ns) = (&outcome.report, log.lock().unwrap(), due_ns());
    let count = due_ns.len() as u64;
    assert!(report.is_success() && log.len() == due_ns.len(), "{report:?}");
    assert_eq!((report.offered, report.unsent, report.requests), (Some(count), 0, count));

    // No request is sent before it is due. The request that arrives soonest after its due time therefore gives the best
    // estimate of the start of the schedule.
    let began_ns = log.iter().map(|(id, received_ns, _)| received_ns - due_ns[id]).min().unwrap();
    let mut expected = [latency_histogram(), latency_histogram()];
    for (id, received_ns, replied_ns) in log.iter() {
        expected[0].saturating_record(replied_ns - began_ns - due_ns[id]);
        expected[1].saturating_record(replied_ns - received_ns);
    }
    let actual = [&outcome.total.latency, outcome.total.uncorrected.as_ref().unwrap()];
    let mut too_high = Vec::new();
    for quantile in [0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
        let at = |latencies: &Histogram<u64>| latencies.value_at_quantile(quantile);
        let assert_at_least = |actual: u64, min: u64| {
            assert!(actual as f64 >= min as f64 * 0.998, "p{quantile}: {actual} below {min}");
        };
        for (actual, expected) in actual.into_iter().zip(&expected) {
            assert_at_least(at(actual), at(expected));
            assert_at_least(at(expected), nanoseconds(DELAY));
        }
        let (actual, expected) = (at(actual[0]), at(&expected[0]));
        if actual as f64 > expected as f64 * 1.01 + 300e3 {
            too_high.push((quantile, actual, expected));
        }
    }
    too_high
}

#[test]
fn poisson_arrival_percentiles_match_server_delay() {
    for kind in [DriverKind::Epoll, DriverKind::Uring] {
        let driver = Runtime::builder().driver(kind).driver_from_environment(false);
        if let Err(error) = driver.build() {
            println!("skipping unavailable driver: {error}");
            continue;
        }
        // Each percentile must be correct in at least one of several attempts, because the machine may be busy.
        let mut too_high = percentiles_too_high(&driver);
        for _ in 0..20 {
            if too_high.is_empty() {
                break;
            }
            let again = percentiles_too_high(&driver);
            too_high.retain(|(quantile, ..)| again.iter().any(|(other, ..)| other == quantile));
        }
        assert!(too_high.is_empty(), "percentiles are too high, or the machine is too busy: {too_high:?}");
    }
}
