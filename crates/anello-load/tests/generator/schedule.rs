//! Tests of the schedule of an open loop, and of the percentiles measured with Poisson arrivals.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anello::time::{Instant, sleep};
use anello_load::{Arrivals, LoadConfig, Mode, Schedule, Share};

use crate::common::virtual_time::{self, TOLERANCE, for_each_simulated_kernel};

const MESSAGE_BYTES: usize = 64;
const DELAY: Duration = Duration::from_millis(80);
const DURATION: Duration = Duration::from_secs(1);
const PER_SECOND: u64 = 50;
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

/// Returns the due time of each request by connection, in nanoseconds since the start.
fn due_ns(seed: u64) -> Vec<Vec<u64>> {
    let mut by_connection = vec![Vec::new(); CONNECTIONS];
    let share = Share { thread: 0, threads: 1, connections: CONNECTIONS };
    let schedule = Schedule::new(share, PER_SECOND, Arrivals::Poisson, seed);
    for (at_ns, local_index) in schedule.take_while(|&(at_ns, _)| at_ns < nanoseconds(DURATION)) {
        by_connection[share.global_index(local_index)].push(at_ns);
    }
    by_connection
}

#[test]
fn poisson_arrival_percentiles_match_server_delay() {
    let must_queue = |pair: &[u64]| pair[1] - pair[0] <= 2 * nanoseconds(DELAY);
    let queues = |seed: &u64| due_ns(*seed).iter().any(|due_ns| due_ns.windows(2).any(must_queue));
    let seed = (0..1000).find(|seed| !queues(seed)).unwrap();
    let due_ns = due_ns(seed);
    let count = due_ns.iter().map(Vec::len).sum::<usize>() as u64;
    for_each_simulated_kernel(async || {
        let (origin, log) = (Instant::now(), Rc::<RefCell<Vec<Vec<u64>>>>::default());
        let writer = Rc::clone(&log);
        let address = virtual_time::server(move |mut stream| {
            writer.borrow_mut().push(Vec::new());
            let (writer, connection) = (Rc::clone(&writer), writer.borrow().len() - 1);
            async move {
                loop {
                    let mut message = [0; MESSAGE_BYTES];
                    stream.read_exact(&mut message).await?;
                    writer.borrow_mut()[connection].push(nanoseconds(origin.elapsed()));
                    sleep(DELAY).await;
                    stream.write_all(&message).await?;
                }
            }
        });
        let load = LoadConfig {
            connections: CONNECTIONS,
            mode: Mode::Open { per_second: PER_SECOND, arrivals: Arrivals::Poisson, seed },
            duration: DURATION,
            verify: true,
            // The server sees the connections in the order of their numbers.
            max_concurrent_connects: 1,
            ..LoadConfig::echo(address, MESSAGE_BYTES)
        };
        let (slice, open) = virtual_time::run(&load).await;
        let (interval, counts) = (&slice.interval, &slice.interval.counts);
        assert_eq!((counts.offered, counts.unsent, interval.requests), (Some(count), 0, count));
        assert!(counts.errors.is_empty() && open == CONNECTIONS, "{:?}", counts.errors);
        let log = log.borrow();
        assert_eq!(
            log.iter().map(Vec::len).collect::<Vec<_>>(),
            due_ns.iter().map(Vec::len).collect::<Vec<_>>()
        );
        // Each request arrives at the server when it is due.
        let delays = log.iter().flatten().zip(due_ns.iter().flatten()).map(|(received, due)| received - due);
        let (min, max) = (delays.clone().min().unwrap(), delays.max().unwrap());
        assert!(max - min <= nanoseconds(TOLERANCE), "{min} to {max} ns");
        let latency = interval.quantiles().unwrap();
        let expected = nanoseconds(DELAY) * 998 / 1000..nanoseconds(DELAY + TOLERANCE) * 1002 / 1000;
        assert!(expected.contains(&latency.min_ns) && expected.contains(&latency.max_ns), "{latency:?}");
    });
}
