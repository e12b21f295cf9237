//! Tests of open loops, sweeps, ramps, multiple threads and reconnection against servers that log requests and replies.
//! The expected measurements are computed from the log. Measured latencies must never be lower than expected, and on
//! simulated kernels they must not be higher.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anello::time;
use anello_load::{
    Arrivals, ErrorKind, Event, Interval, Knee, LoadConfig, Mode, Phase, Protocol, Session, Sweep,
    latency_histogram, run,
};
use anello_test::{short_or_long, tcp_server};
use hdrhistogram::Histogram;

use crate::common::virtual_time::{self, TOLERANCE, for_each_simulated_kernel};
use crate::common::{drivers, reports};

const MESSAGE_BYTES: usize = 64;

/// Times at which requests were received and replies were sent, in nanoseconds since the start of the server.
type Log = Arc<Mutex<Vec<(u64, u64)>>>;

/// Starts a server that echoes each message after a delay. `delay` is called with the time since the start of the
/// server and the request's number on its connection.
fn logging_server(delay: impl Fn(Duration, u64) -> Duration + Send + Sync + 'static) -> (SocketAddr, Log) {
    let (log, origin) = (Log::default(), Instant::now());
    let writer = Arc::clone(&log);
    let address = tcp_server(move |mut stream| {
        stream.set_nodelay(true)?;
        for number in 0.. {
            let mut message = [0; MESSAGE_BYTES];
            stream.read_exact(&mut message)?;
            let received = origin.elapsed();
            thread::sleep(delay(received, number));
            // Taken before sending, so that this time is never later than the receipt of the reply.
            let times = (received.as_nanos() as u64, origin.elapsed().as_nanos() as u64);
            writer.lock().unwrap().push(times);
            stream.write_all(&message)?;
        }
        Ok(())
    });
    (address, log)
}

fn open_loop(target: SocketAddr, per_second: u64) -> LoadConfig {
    LoadConfig {
        connections: 1,
        mode: Mode::Open { per_second, arrivals: Arrivals::Constant, seed: 1 },
        duration: Duration::from_millis(1000),
        drain_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(60),
        verify: true,
        ..LoadConfig::echo(target, MESSAGE_BYTES)
    }
}

/// Returns lower bounds on the latencies measured by a load run on one connection: those from the scheduled times, and
/// those from the send times.
fn expected(log: &[(u64, u64)], per_second: u64) -> [Histogram<u64>; 2] {
    let due_ns = |number: usize| number as u64 * 1_000_000_000 / per_second;
    // No request is sent before its scheduled time. The request that arrives soonest after its scheduled time therefore
    // gives the best estimate of the start of the schedule.
    let began_ns =
        log.iter().enumerate().map(|(number, (received, _))| received - due_ns(number)).min().unwrap();
    let mut histograms = [latency_histogram(), latency_histogram()];
    for (number, (received, replied)) in log.iter().enumerate() {
        histograms[0].saturating_record(replied - began_ns - due_ns(number));
        histograms[1].saturating_record(replied - received);
    }
    histograms
}

/// Asserts that no latency quantile is lower than the one computed from the server's log. Returns those that exceed it
/// by more than 1 % and the tolerance.
fn quantiles_too_high(
    total: &Interval,
    log: &[(u64, u64)],
    per_second: u64,
    tolerance: Duration,
) -> Vec<(f64, u64, u64)> {
    let expected = expected(log, per_second);
    let measured = [&total.latency, total.uncorrected.as_ref().unwrap()];
    let mut too_high = Vec::new();
    for quantile in [0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
        let at = |latencies: &Histogram<u64>| latencies.value_at_quantile(quantile);
        let [[actual, actual_from_sending], [expected, expected_from_sending]] =
            [measured.map(at), expected.each_ref().map(at)];
        let assert_at_least = |actual: u64, expected: u64| {
            assert!(actual as f64 >= expected as f64 * 0.998, "p{quantile}: {actual} of {expected}");
        };
        assert_at_least(actual, expected);
        assert_at_least(actual_from_sending, expected_from_sending);
        assert_at_least(actual, actual_from_sending);
        if actual as f64 > expected as f64 * 1.01 + tolerance.as_nanos() as f64 {
            too_high.push((quantile, actual, expected));
        }
    }
    too_high
}

/// Runs the load on each simulated kernel, where its latency quantiles must be those computed from the server's log.
fn assert_exact_quantiles(
    delay: impl Fn(Duration, u64) -> Duration + Copy + Sync + 'static,
    per_second: u64,
    duration: Duration,
) {
    for_each_simulated_kernel(async || {
        let (log, origin) = (Rc::<RefCell<Vec<(u64, u64)>>>::default(), time::Instant::now());
        let writer = Rc::clone(&log);
        let address = virtual_time::server(move |mut stream| {
            let writer = Rc::clone(&writer);
            async move {
                for number in 0.. {
                    let mut message = [0; MESSAGE_BYTES];
                    stream.read_exact(&mut message).await?;
                    let received = origin.elapsed();
                    match delay(received, number) {
                        Duration::ZERO => {}
                        delay => time::sleep(delay).await,
                    }
                    let times = (received.as_nanos() as u64, origin.elapsed().as_nanos() as u64);
                    writer.borrow_mut().push(times);
                    stream.write_all(&message).await?;
                }
                Ok(())
            }
        });
        let load = LoadConfig { duration, ..open_loop(address, per_second) };
        let (slice, _) = virtual_time::run(&load).await;
        let (counts, offered) = (&slice.interval.counts, per_second * duration.as_secs());
        assert_eq!((counts.offered, counts.unsent, slice.interval.requests), (Some(offered), 0, offered));
        let too_high = quantiles_too_high(&slice.interval, &log.borrow(), per_second, TOLERANCE);
        assert!(too_high.is_empty(), "{too_high:?}");
    });
}

/// Runs the load on each Linux driver, once or until the quantiles are at most 0.3 ms (network time) too high.
fn assert_quantiles(
    delay: impl Fn(Duration, u64) -> Duration + Send + Sync + Copy + 'static,
    per_second: u64,
    duration: Duration,
    attempts: usize,
) {
    for driver in drivers() {
        let mut too_high = Vec::new();
        for _ in 0..attempts.max(1) {
            let (address, log) = logging_server(delay);
            let load = LoadConfig { duration, ..open_loop(address, per_second) };
            let outcome = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap();
            let (report, offered) = (&outcome.report, per_second * duration.as_millis() as u64 / 1000);
            assert!(report.is_success(), "{report:?}");
            assert_eq!((report.offered, report.unsent, report.requests), (Some(offered), 0, offered));
            let log = log.lock().unwrap();
            too_high = quantiles_too_high(&outcome.total, &log, per_second, Duration::from_micros(300));
            if too_high.is_empty() {
                break;
            }
        }
        assert!(
            attempts == 0 || too_high.is_empty(),
            "latencies too high (machine busy, or a bug in the load generator): {too_high:?}"
        );
    }
}

#[test]
fn measures_percentiles_of_constant_delay() {
    let delay = |_, _| Duration::from_millis(40);
    assert_exact_quantiles(delay, 20, Duration::from_secs(1));
    assert_quantiles(delay, 20, Duration::from_millis(300), 0);
}

#[test]
fn measures_percentiles_of_saturated_server() {
    // The queueing delay grows by 10 ms with each request.
    let delay = |_, _| Duration::from_millis(20);
    assert_exact_quantiles(delay, 100, Duration::from_secs(1));
    assert_quantiles(delay, 100, Duration::from_millis(300), 0);
}

/// The server stalls for a tenth of the time, for example for 50 ms of every 500 ms. If `ANELLO_LONG` is set, also
/// measures on Linux how exact the percentiles are, which takes a machine that does nothing else.
#[test]
fn measures_percentiles_of_stalling_server() {
    let stall = |every_ms: u64| {
        move |since: Duration, _| {
            let left_ms = every_ms - since.as_millis() as u64 % every_ms;
            Duration::from_millis(if left_ms <= every_ms / 10 { left_ms } else { 0 })
        }
    };
    assert_exact_quantiles(stall(500), short_or_long(50, 200), Duration::from_secs(1));
    let (every_ms, seconds) = short_or_long((1000, 2), (10_000, 30));
    assert_exact_quantiles(stall(every_ms), 10, Duration::from_secs(seconds));
    assert_quantiles(stall(100), 200, Duration::from_millis(200), 0);
    if short_or_long(false, true) {
        assert_quantiles(stall(500), 1000, Duration::from_secs(1), 20);
        assert_quantiles(stall(10_000), 1000, Duration::from_secs(30), 20);
    }
}

#[test]
fn stall_affects_all_requests_scheduled_during_it() {
    // Each of the 8 connections has one pause in the middle, and at most one request in flight.
    let (address, _) = logging_server(|_, number| Duration::from_millis(if number == 25 { 300 } else { 0 }));
    for driver in drivers() {
        let load = LoadConfig { connections: 8, ..open_loop(address, 400) };
        let outcome = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap();
        // The pause lasts at least 300 ms. A request scheduled during the pause waits for half of it on average.
        let over_100_ms = outcome.total.latency.count_between(100_000_000, u64::MAX);
        assert!(over_100_ms >= 8 * 9, "{over_100_ms} of {}", outcome.total.requests);
        assert!(outcome.report.late >= 8 * 13, "{}", outcome.report.late);
    }
}

#[test]
fn requests_not_sent_in_time_are_counted() {
    // The server can answer 100 of the 1000 requests per second.
    let (address, _) = logging_server(|_, _| Duration::from_millis(10));
    for driver in drivers() {
        for (arrivals, offered) in [(Arrivals::Constant, Some(300)), (Arrivals::Poisson, None)] {
            let load = LoadConfig {
                mode: Mode::Open { per_second: 1000, arrivals, seed: 7 },
                duration: Duration::from_millis(300),
                drain_timeout: Duration::from_millis(50),
                ..open_loop(address, 1000)
            };
            let report = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
            assert!(report.is_success() && report.unsent > 200, "{report:?}");
            assert_eq!(
                report.offered,
                Some(report.requests + report.unsent),
                "every offered request is either answered or unsent"
            );
            assert!(offered.is_none_or(|offered| report.offered == Some(offered)), "{report:?}");
        }
    }
}

#[test]
fn requests_of_closed_connections_are_unsent() {
    let accepted = AtomicU64::new(0);
    let address = tcp_server(move |mut stream| {
        let breaks = accepted.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        let mut message = [0; MESSAGE_BYTES];
        for number in 0.. {
            stream.read_exact(&mut message)?;
            if breaks && number == 5 {
                return Ok(());
            }
            stream.write_all(&message)?;
        }
        Ok(())
    });
    let good = logging_server(|_, _| Duration::ZERO).0;
    for driver in drivers() {
        // One connection stays open, on the same thread or on another, so the load runs for its full duration.
        for (threads, arrivals) in [(1, Arrivals::Constant), (2, Arrivals::Constant), (2, Arrivals::Poisson)]
        {
            let load = LoadConfig {
                connections: 2,
                threads,
                mode: Mode::Open { per_second: 1000, arrivals, seed: 1 },
                duration: Duration::from_millis(200),
                ..open_loop(address, 1000)
            };
            let report = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
            let broken = (report.errors.count(ErrorKind::ClosedEarly), report.errors.total());
            assert_eq!((broken, report.connections_open_at_end), ((1, 1), 1), "{report:?}");
            assert_eq!(report.offered, Some(report.requests + report.unsent + 1), "{report:?}");
            if arrivals == Arrivals::Constant {
                assert_eq!((report.requests, report.unsent), (100 + 5, 100 - 6), "{report:?}");
            }
        }
        let report = run(&open_loop(good, 100), &driver, |_| ControlFlow::Continue(())).unwrap().report;
        assert_eq!((report.offered, report.requests, report.unsent), (Some(100), 100, 0));
    }
}

#[test]
fn intervals_of_all_threads_sum_to_total() {
    let (address, log) = logging_server(|_, _| Duration::ZERO);
    for driver in drivers() {
        let load = LoadConfig {
            connections: 5,
            threads: 3,
            interval: Duration::from_millis(100),
            warm_up: Duration::from_millis(50),
            server_pid: Some(std::process::id()),
            ..open_loop(address, 200)
        };
        let (mut intervals, mut began): (Vec<Interval>, u64) = (Vec::new(), 0);
        let outcome = run(&load, &driver, |event| {
            match event {
                Event::Began { unix_ns, .. } => began = unix_ns,
                Event::Interval(interval) => intervals.push(interval.clone()),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        let outcome = outcome.unwrap();
        let report = &outcome.report;
        assert!(report.is_success() && began > 0 && report.started_unix_ns == began, "{report:?}");
        assert_eq!((report.offered, report.requests, report.threads), (Some(200), 200, 3));
        assert_eq!(log.lock().unwrap().drain(..).len(), 210, "200 requests and 10 of the warm-up");
        assert_eq!(intervals.iter().map(|interval| interval.requests).sum::<u64>(), 200);
        assert_eq!(intervals.iter().map(|interval| interval.latency.len()).sum::<u64>(), 200);
        assert_eq!(intervals.iter().filter_map(|interval| interval.counts.offered).sum::<u64>(), 200);
        assert_eq!(outcome.total.latency.len(), 200);
        assert_eq!(intervals.len(), report.intervals.len());
        assert!(intervals.windows(2).all(|pair| pair[0].start_ns < pair[1].start_ns));
        assert!(intervals.iter().all(|interval| (1..=5).contains(&interval.open_connections)));
        assert!(intervals.iter().any(|interval| interval.open_connections == 5));
        assert!(intervals.iter().all(|interval| interval.stolen_ns.is_some()));
        assert!(
            report.server.is_some_and(|server| server.usage.cpu_ns > 0 && server.usage.resident_bytes > 0)
        );
    }
}

#[test]
fn sweep_stops_at_knee() {
    // The server answers the three requests that each of the 10 connections sends in the first step at once, and the
    // others after 100 ms each.
    let (address, _) = logging_server(|_, number| Duration::from_millis(if number < 3 { 0 } else { 100 }));
    let sweep = Sweep {
        first: 100,
        last: 10_000,
        step: 2400,
        arrivals: Arrivals::Constant,
        seed: 1,
        // Only missing replies determine the knee here, because latency depends on the machine. At most 40 of the 750
        // requests in the second step can be answered in time.
        knee: Knee { min_answered_percent: 10, max_latency_factor: u32::MAX },
    };
    for driver in drivers() {
        let load = LoadConfig {
            connections: 10,
            mode: Mode::Sweep(sweep.clone()),
            duration: Duration::from_millis(300),
            drain_timeout: Duration::ZERO,
            ..open_loop(address, 1)
        };
        let mut step_events = 0;
        let outcome = run(&load, &driver, |event| {
            step_events += usize::from(matches!(event, Event::Step(_)));
            ControlFlow::Continue(())
        });
        let report = outcome.unwrap().report;
        let knee = report.knee.as_ref().expect("2500 requests per second exceed the capacity of 100");
        assert_eq!(
            (knee.step, knee.per_second, report.steps.len(), step_events),
            (1, 2500, 2, 2),
            "{report:?}"
        );
        assert!(knee.why.contains("minimum 10 %"), "{}", knee.why);
        let requests = report.steps.iter().map(|step| step.total.requests);
        assert_eq!(requests.sum::<u64>(), report.requests);
        assert_eq!(report.steps[0].total.counts.offered, Some(30));
        assert_eq!(report.connections_open_at_end, 10, "all steps use the same connections");
    }
}

#[test]
fn extreme_rate_delays_neither_schedule_nor_stop() {
    let (address, _) = logging_server(|_, _| Duration::ZERO);
    for driver in drivers() {
        let load = LoadConfig {
            duration: Duration::from_millis(50),
            drain_timeout: Duration::ZERO,
            ..open_loop(address, 1_000_000_000)
        };
        let report = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
        assert_eq!(report.offered, Some(50_000_000), "{report:?}");
        assert_eq!(report.requests + report.unsent, 50_000_000, "{report:?}");
        let long = LoadConfig { duration: Duration::from_secs(3600), ..load };
        let report = run(&long, &driver, |event| match event {
            Event::Progress(progress) if progress.requests > 0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        let report = report.unwrap().report;
        assert!(report.interrupted, "{report:?}");
        assert_eq!(report.offered, Some(report.requests + report.unsent + report.abandoned));
    }
}

#[test]
fn requests_cancelled_by_stop_are_counted() {
    let received = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&received);
    let address = tcp_server(move |mut stream| {
        stream.read_exact(&mut [0; MESSAGE_BYTES])?;
        counter.fetch_add(1, Ordering::SeqCst);
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    });
    for driver in drivers() {
        for mode in [Mode::Closed { think_time: Duration::ZERO }, open_loop(address, 1000).mode] {
            received.store(0, Ordering::SeqCst);
            let load = LoadConfig {
                connections: 3,
                mode,
                duration: Duration::from_secs(3600),
                stall_timeout: Duration::from_secs(3600),
                ..open_loop(address, 1000)
            };
            let report = run(&load, &driver, |event| match event {
                Event::Progress(_) if received.load(Ordering::SeqCst) == 3 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            });
            let report = report.unwrap().report;
            assert_eq!((report.abandoned, report.errors.total(), report.requests), (3, 0, 0), "{report:?}");
            assert!(report.offered.is_none_or(|offered| offered == report.unsent + 3), "{report:?}");
        }
    }
}

#[test]
fn ramped_connections_are_used_once_open() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&accepted);
    let address = tcp_server(move |mut stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        let mut message = [0; MESSAGE_BYTES];
        while stream.read_exact(&mut message).is_ok() {
            stream.write_all(&message)?;
        }
        Ok(())
    });
    for driver in drivers() {
        for mode in [Mode::Closed { think_time: Duration::from_millis(1) }, open_loop(address, 100).mode] {
            let load = LoadConfig {
                connections: 10,
                threads: 2,
                mode,
                ramp: Duration::from_millis(200),
                interval: Duration::from_millis(50),
                ..open_loop(address, 100)
            };
            let report = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
            assert!(report.is_success(), "{report:?}");
            assert_eq!((report.connections_opened, report.connections_open_at_end), (10, 10));
            assert_eq!(accepted.swap(0, Ordering::SeqCst), 10);
            // Connection c is opened after 20 * c ms. It is offered a request every 100 ms, starting after 10 * c ms, except
            // the first one if it is not open yet.
            assert!(report.offered.is_none_or(|offered| offered == 100 - 9), "{report:?}");
        }
    }
}

#[test]
fn closed_connections_are_reopened_if_enabled() {
    const DROPPED: u64 = 7;
    // The server closes the first connections instead of answering their fourth request.
    let accepted = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&accepted);
    let address = tcp_server(move |mut stream| {
        let is_dropped = counter.fetch_add(1, Ordering::SeqCst) < DROPPED;
        let mut message = [0; MESSAGE_BYTES];
        for number in 0.. {
            stream.read_exact(&mut message)?;
            if is_dropped && number == 3 {
                break;
            }
            stream.write_all(&message)?;
        }
        Ok(())
    });
    for driver in drivers() {
        for mode in [Mode::Closed { think_time: Duration::ZERO }, open_loop(address, 1000).mode] {
            accepted.store(0, Ordering::SeqCst);
            let load = LoadConfig {
                connections: 3,
                reconnect: true,
                mode,
                duration: Duration::from_secs(3600),
                ..open_loop(address, 1000)
            };
            let report = run(&load, &driver, |event| match event {
                Event::Progress(progress) if progress.errors == DROPPED && progress.connections == 3 => {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            });
            let report = report.unwrap().report;
            let errors = (report.errors.count(ErrorKind::ClosedEarly), report.errors.total());
            assert_eq!((errors, report.connections_open_at_end), ((DROPPED, DROPPED), 3), "{report:?}");
            assert_eq!(report.connections_reopened, DROPPED, "{report:?}");
            assert!(report.requests >= 3 * DROPPED, "{report:?}");
            let accounted = report.requests + report.unsent + report.abandoned + DROPPED;
            assert!(report.offered.is_none_or(|offered| offered == accounted), "{report:?}");
        }
    }
}

#[test]
fn refused_connections_are_retried_until_end_of_load() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let load = LoadConfig {
        connections: 3,
        reconnect: true,
        duration: Duration::from_secs(3600),
        mode: Mode::Closed { think_time: Duration::ZERO },
        ..open_loop(address, 1)
    };
    for driver in drivers() {
        let report = run(&load, &driver, |event| match event {
            Event::Progress(progress) if progress.phase == Phase::Measuring && progress.errors > 3 => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        let report = report.unwrap().report;
        let refused = report.errors.count(ErrorKind::Refused);
        assert!(refused > 3 && refused == report.errors.total() && report.requests == 0, "{report:?}");
    }
}

#[test]
fn every_wrong_byte_is_reported() {
    let wrong = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&wrong);
    let address = tcp_server(move |mut stream| {
        stream.set_nodelay(true)?;
        for number in 1u64.. {
            let mut message = [0; MESSAGE_BYTES];
            stream.read_exact(&mut message)?;
            // Flip one bit in 1 % of the replies, at varying positions.
            if number.is_multiple_of(100) {
                counter.fetch_add(1, Ordering::SeqCst);
                message[(number / 100) as usize % MESSAGE_BYTES] ^= 1 << (number % 8);
            }
            stream.write_all(&message)?;
        }
        Ok(())
    });
    for mode in [Mode::Closed { think_time: Duration::ZERO }, open_loop(address, 5000).mode] {
        let load = LoadConfig {
            connections: 4,
            threads: 2,
            mode,
            duration: Duration::from_millis(400),
            ..open_loop(address, 1)
        };
        for report in reports(&load) {
            let wrong = wrong.swap(0, Ordering::SeqCst);
            assert_eq!((report.errors.count(ErrorKind::WrongBytes), report.errors.total()), (wrong, wrong));
            assert_eq!(report.connections_open_at_end, 4);
        }
    }
}

#[test]
fn replies_of_different_length_are_verified() {
    for (request_bytes, response_bytes) in [(10, 4096), (4096, 10), (7, 7 * 300 + 3), (1, 70_000)] {
        for faulty in [false, true] {
            let address = tcp_server(move |mut stream| {
                stream.set_nodelay(true)?;
                let mut request = vec![0; request_bytes];
                loop {
                    stream.read_exact(&mut request)?;
                    let mut reply: Vec<u8> = request.iter().copied().cycle().take(response_bytes).collect();
                    reply[response_bytes - 1] ^= u8::from(faulty);
                    stream.write_all(&reply)?;
                }
            });
            let load = LoadConfig {
                protocol: Protocol::Messages { request_bytes, response_bytes },
                mode: Mode::Closed { think_time: Duration::ZERO },
                duration: Duration::from_millis(20),
                ..open_loop(address, 1)
            };
            for report in reports(&load) {
                let wrong = report.errors.count(ErrorKind::WrongBytes);
                assert_eq!((report.requests == 0, report.errors.total()), (faulty, wrong), "{report:?}");
            }
        }
    }
}

#[test]
fn slices_support_open_loop() {
    let (address, _) = logging_server(|_, _| Duration::ZERO);
    for driver in drivers() {
        driver.build().unwrap().block_on(async {
            let load = LoadConfig { connections: 4, ..open_loop(address, 1000) };
            let mut session = Session::connect(&load).await.unwrap();
            for _ in 0..3 {
                let slice = session.run_slice(Duration::from_millis(50)).await;
                assert_eq!(
                    (slice.interval.counts.offered, slice.interval.requests, slice.interval.counts.unsent),
                    (Some(50), 50, 0)
                );
                assert_eq!(slice.interval.latency.len(), slice.interval.uncorrected.unwrap().len());
                assert!(slice.interval.counts.errors.is_empty() && session.open_connections() == 4);
            }
            session.close().await;
        });
    }
}

#[test]
fn load_supports_unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("echo");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut message = [0; MESSAGE_BYTES];
                while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
            });
        }
    });
    for (path, refused) in [(path, 0), (directory.path().join("missing"), 3)] {
        let load = LoadConfig {
            connections: 3,
            duration: Duration::from_millis(100),
            verify: true,
            mode: open_loop(([127, 0, 0, 1], 1).into(), 300).mode,
            drain_timeout: Duration::from_secs(60),
            ..LoadConfig::echo(path, MESSAGE_BYTES)
        };
        for report in reports(&load) {
            assert_eq!((report.errors.count(ErrorKind::Refused), report.errors.total()), (refused, refused));
            assert_eq!(report.requests, if refused == 0 { 30 } else { 0 }, "{report:?}");
        }
    }
}

#[test]
fn stop_does_not_wait_for_pending_connects() {
    // The kernel completes handshakes until the accept queue of this listener is full, and drops further SYN packets.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(1).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    for driver in drivers() {
        for mode in [Mode::Closed { think_time: Duration::ZERO }, open_loop(address, 1000).mode] {
            let load = LoadConfig {
                connections: 20,
                mode,
                ramp: Duration::from_millis(10),
                duration: Duration::from_secs(3600),
                connect_timeout: Duration::from_secs(3600),
                stall_timeout: Duration::from_secs(3600),
                ..open_loop(address, 1000)
            };
            let report = run(&load, &driver, |event| match event {
                Event::Progress(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            });
            let report = report.unwrap().report;
            assert!(report.interrupted && report.requests == 0 && report.errors.is_empty(), "{report:?}");
        }
    }
}

#[test]
fn saturated_open_loop_takes_no_more_turns_than_closed_loop() {
    const DURATION: Duration = Duration::from_millis(200);
    for_each_simulated_kernel(async || {
        let measure = async |mode, connections| {
            let address = virtual_time::server(|mut stream| async move {
                loop {
                    let mut message = [0; MESSAGE_BYTES];
                    stream.read_exact(&mut message).await?;
                    time::sleep(Duration::from_millis(2)).await;
                    stream.write_all(&message).await?;
                }
            });
            let (duration, drain_timeout) = (DURATION, Duration::ZERO);
            let echo = LoadConfig::echo(address, MESSAGE_BYTES);
            let load = LoadConfig { connections, mode, duration, drain_timeout, ..echo };
            let turns = || anello::current_driver_metrics().unwrap().turns;
            let before = turns();
            let interval = virtual_time::run(&load).await.0.interval;
            (interval, turns() - before)
        };
        for connections in [1, 10] {
            let (closed, closed_turns) =
                measure(Mode::Closed { think_time: Duration::ZERO }, connections).await;
            for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
                let mode = Mode::Open { per_second: 100_000, arrivals, seed: 1 };
                let (open, turns) = measure(mode, connections).await;
                assert!(
                    open.requests * 100 >= closed.requests * 97,
                    "{} of {}",
                    open.requests,
                    closed.requests
                );
                // Each connection starts after the previous one, so that no two replies share a turn.
                let replies = open.requests / closed.requests * connections as u64;
                assert!(
                    turns <= closed_turns * replies * 105 / 100 + 300,
                    "{turns} turns, {closed_turns} in a closed loop"
                );
                let offered = open.counts.offered.unwrap();
                assert_eq!(offered, open.requests + open.counts.unsent, "{:?}", open.counts.errors);
                let tolerance = if arrivals == Arrivals::Constant { 0 } else { 600 };
                assert!(offered.abs_diff(20_000) <= tolerance, "{offered}");
                // Latency is measured from the due times. When the last request was sent, it had been due for long.
                let lag_ns = 200_000_000 * open.counts.unsent / offered;
                assert!(open.latency.max() > lag_ns - 5_000_000, "{}", open.latency.max());
                assert!(open.uncorrected.unwrap().max() < 3_000_000);
            }
        }
    });
}
