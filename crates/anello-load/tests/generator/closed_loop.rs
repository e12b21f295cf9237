//! Closed loops: think time, and detection of a saturated load generator.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use anello::time::Instant;
use anello::{DriverOptions, RuntimeBuilder};
use anello_load::{Arrivals, ErrorKind, LoadConfig, Mode, run};
use anello_test::tcp_server;

use crate::common::drivers;
use crate::common::virtual_time::{self, TOLERANCE, for_each_simulated_kernel};

const MESSAGE_BYTES: usize = 64;

#[test]
fn connections_wait_think_time_between_requests() {
    const THINK_TIME: Duration = Duration::from_millis(20);
    const REPLIES: usize = 5;
    for_each_simulated_kernel(async || {
        for connections in [1, 3] {
            let pauses = Rc::new(RefCell::new(Vec::new()));
            let server_pauses = Rc::clone(&pauses);
            let address = virtual_time::server(move |mut stream| {
                let pauses = Rc::clone(&server_pauses);
                async move {
                    let mut replied = None::<Instant>;
                    for number in 0..=REPLIES {
                        let mut message = [0; MESSAGE_BYTES];
                        stream.read_exact(&mut message).await?;
                        pauses.borrow_mut().extend(replied.map(|replied| replied.elapsed()));
                        if number < REPLIES {
                            replied = Some(Instant::now());
                            stream.write_all(&message).await?;
                        }
                    }
                    Ok(())
                }
            });
            let load = LoadConfig {
                connections,
                mode: Mode::Closed { think_time: THINK_TIME },
                // The server closes the connections, so the number of requests is fixed.
                duration: Duration::from_secs(600),
                ..LoadConfig::echo(address, MESSAGE_BYTES)
            };
            let (slice, open) = virtual_time::run(&load).await;
            let (requests, errors) = (slice.interval.requests, &slice.interval.counts.errors);
            let pauses = pauses.borrow();
            assert_eq!((pauses.len(), open), (connections * REPLIES, 0));
            assert_eq!(
                (errors.count(ErrorKind::ClosedEarly), errors.total()),
                (connections as u64, connections as u64)
            );
            assert_eq!(requests, (connections * REPLIES) as u64);
            let expected = THINK_TIME..THINK_TIME + TOLERANCE;
            assert!(pauses.iter().all(|pause| expected.contains(pause)), "{pauses:?}");
        }
    });
}

#[test]
fn only_busy_load_generator_is_bottleneck() {
    let address = tcp_server(|mut stream| {
        stream.set_nodelay(true)?;
        let mut message = [0; MESSAGE_BYTES];
        while stream.read_exact(&mut message).is_ok() {
            stream.write_all(&message)?;
        }
        Ok(())
    });
    // Other processes on the machine may affect the outcome of some attempts, but not all.
    let assert_within_20_attempts = |driver: &RuntimeBuilder, think: Duration, expected: bool| {
        let load = LoadConfig {
            connections: 4,
            mode: Mode::Closed { think_time: think },
            duration: Duration::from_millis(100),
            ..LoadConfig::echo(address, MESSAGE_BYTES)
        };
        let mut percents = Vec::new();
        for _ in 0..20 {
            let report = run(&load, driver, |_| ControlFlow::Continue(())).unwrap().report;
            assert_eq!(report.load_was_bottleneck, report.load_busy_percent > 95.0, "{report:?}");
            assert_eq!(report.mode, load.mode);
            percents.push(report.load_busy_percent);
            if report.load_was_bottleneck == expected {
                return;
            }
        }
        panic!("busy for {percents:?} % of the time with think time {think:?}");
    };
    for driver in drivers() {
        assert_within_20_attempts(&driver, Duration::from_millis(20), false);
        let mut options = DriverOptions::default();
        options.spin = Duration::from_secs(1);
        assert_within_20_attempts(&driver.options(options), Duration::ZERO, true);
    }
}

#[test]
fn request_limit_ends_load_after_exact_number() {
    let echo = tcp_server(|mut stream| {
        let mut message = [0; MESSAGE_BYTES];
        loop {
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
    });
    let open = Mode::Open { per_second: 5000, arrivals: Arrivals::Poisson, seed: 1 };
    for (mode, connections, requests) in [
        (Mode::Closed { think_time: Duration::ZERO }, 8, 1000),
        (Mode::Closed { think_time: Duration::ZERO }, 8, 3),
        (Mode::Closed { think_time: Duration::from_millis(1) }, 5, 23),
        (open, 8, 101),
    ] {
        let load = LoadConfig {
            connections,
            mode,
            threads: 3,
            requests: Some(requests),
            duration: Duration::from_secs(600),
            ..LoadConfig::echo(echo, MESSAGE_BYTES)
        };
        for driver in drivers() {
            let report = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
            assert_eq!((report.requests, report.errors.total()), (requests, 0), "{report:?}");
            assert_eq!(report.answered_in_time, requests, "the rate is that of all requests: {report:?}");
            assert!(report.offered.is_none_or(|offered| offered == requests) && !report.ended_early());
        }
    }
}
