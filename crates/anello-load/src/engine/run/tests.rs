//! Tests that need private items: a thread that exits without a report, and percentiles with Poisson arrivals.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::thread;

use anello::{DriverKind, Runtime, RuntimeBuilder};

use hdrhistogram::Histogram;

use super::*;
use crate::engine::schedule::Schedule;
use crate::model::config::Arrivals;
use crate::model::latency::latency_histogram;
use crate::wire::message::Messages;

const MESSAGE_BYTES: usize = 64;
const DELAY: Duration = Duration::from_millis(80);
const DURATION: Duration = Duration::from_secs(1);
const PER_SECOND: u64 = 50;
const SEED: u64 = 3;
const THREADS: usize = 2;
/// With this number of connections, each sends a request about every 800 ms and is idle before the next request.
const CONNECTIONS: usize = 40;

#[test]
fn thread_exit_without_report_ends_load() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let load = LoadConfig { connections: 1, ..LoadConfig::echo(server.local_addr().unwrap(), 1) };
    let sampler = Sampler::new(None, Vec::new()).unwrap();
    let on_event = |_: Event<'_>| ControlFlow::Continue(());
    let mut run = Run::start(&load, &Runtime::builder(), sampler, on_event).unwrap();
    // The worker thread continues, so the channel stays open.
    let finished_thread = thread::spawn(|| {});
    while !finished_thread.is_finished() {
        thread::yield_now();
    }
    run.threads.push(finished_thread);
    let error = (0..100).find_map(|_| run.next_report(Duration::from_millis(1)).err());
    run.stop_threads();
    assert!(error.is_some_and(|error| error.to_string().contains("panicked")));
}

/// A request as seen by the server: the message, its arrival time and its reply time, in nanoseconds.
type LoggedRequest = (Vec<u8>, u64, u64);

/// Starts a server that echoes each message after [`DELAY`] and logs it.
fn delaying_server() -> (SocketAddr, Arc<Mutex<Vec<LoggedRequest>>>) {
    let (log, origin) = (Arc::<Mutex<Vec<LoggedRequest>>>::default(), Instant::now());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, writer) = (listener.local_addr().unwrap(), Arc::clone(&log));
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let writer = Arc::clone(&writer);
            thread::spawn(move || {
                let mut message = vec![0; MESSAGE_BYTES];
                while stream.read_exact(&mut message).is_ok() {
                    let received_ns = nanoseconds(origin.elapsed());
                    thread::sleep(DELAY);
                    // Taken before sending, because the client cannot receive the reply earlier.
                    let replied_ns = nanoseconds(origin.elapsed());
                    writer.lock().unwrap().push((message.clone(), received_ns, replied_ns));
                    if stream.write_all(&message).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, log)
}

/// Returns the due time of each message, in nanoseconds since the start.
fn due_ns() -> HashMap<Vec<u8>, u64> {
    let messages = Messages::new(MESSAGE_BYTES, MESSAGE_BYTES, true);
    let mut due_ns = HashMap::new();
    for thread in 0..THREADS {
        let share = Share { thread, threads: THREADS, connections: CONNECTIONS };
        let mut last: HashMap<usize, (u64, u64)> = HashMap::new();
        let schedule = Schedule::new(share, PER_SECOND, Arrivals::Poisson, SEED);
        for (at_ns, local_index) in schedule.take_while(|&(at_ns, _)| at_ns < nanoseconds(DURATION)) {
            let request = last.get(&local_index).map_or(0, |&(request, previous_ns)| {
                assert!(
                    at_ns - previous_ns > 2 * nanoseconds(DELAY),
                    "requests must not queue (choose another seed)"
                );
                request + 1
            });
            last.insert(local_index, (request, at_ns));
            let message = messages.message(share.global_index(local_index) as u64, request);
            due_ns.insert(message.to_vec(), at_ns);
        }
    }
    due_ns
}

/// Returns the percentiles of a load that exceed those in the server's log by more than 1 % plus 0.3 ms of transfer
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
        ..LoadConfig::echo(address, MESSAGE_BYTES)
    };
    let outcome = run(&load, driver, |_| ControlFlow::Continue(())).unwrap();
    let (report, log, due_ns) = (&outcome.report, log.lock().unwrap(), due_ns());
    let count = due_ns.len() as u64;
    assert!(report.is_success() && log.len() == due_ns.len(), "{report:?}");
    assert_eq!((report.offered, report.unsent, report.requests), (Some(count), 0, count));

    // No request is sent before it is due. The request with the shortest time between due time and arrival yields the
    // best estimate of the start of the schedule.
    let began_ns = log.iter().map(|(message, received_ns, _)| received_ns - due_ns[message]).min().unwrap();
    let mut expected = [latency_histogram(), latency_histogram()];
    for (message, received_ns, replied_ns) in log.iter() {
        expected[0].saturating_record(replied_ns - began_ns - due_ns[message]);
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
