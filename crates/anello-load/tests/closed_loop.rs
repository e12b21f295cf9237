//! Closed loops: think time, and detection of a saturated load generator.

mod common;

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anello::{DriverOptions, RuntimeBuilder};
use anello_load::{ErrorKind, LoadConfig, Mode, run};
use common::{drivers, reports, server};

const MESSAGE_BYTES: usize = 64;

#[test]
fn connections_wait_think_time_between_requests() {
    const THINK_TIME: Duration = Duration::from_millis(20);
    const REPLIES: u32 = 5;
    let (pauses, paused) = mpsc::channel();
    let address = server(move |mut stream| {
        let mut replied = None::<Instant>;
        for number in 0.. {
            let mut message = [0; MESSAGE_BYTES];
            stream.read_exact(&mut message)?;
            if let Some(replied) = replied {
                pauses.send(replied.elapsed()).expect("the test is still receiving");
            }
            if number == REPLIES {
                break;
            }
            // Taken before sending, so that this time is never later than the receipt of the reply.
            replied = Some(Instant::now());
            stream.write_all(&message)?;
        }
        Ok(())
    });
    for connections in [1, 3] {
        let load = LoadConfig {
            connections,
            mode: Mode::Closed { think_time: THINK_TIME },
            // The server closes the connections, so the number of requests is fixed.
            duration: Duration::from_secs(600),
            ..LoadConfig::echo(address, MESSAGE_BYTES)
        };
        for report in reports(&load) {
            let count = connections as u64;
            let actual =
                (report.requests, report.errors.count(ErrorKind::ClosedEarly), report.errors.total());
            assert_eq!(actual, (count * u64::from(REPLIES), count, count), "{report:?}");
            assert_eq!(report.mode, load.mode);
            let pauses: Vec<_> = paused.try_iter().collect();
            assert_eq!(pauses.len(), connections * REPLIES as usize);
            assert!(pauses.iter().all(|&pause| pause >= THINK_TIME), "{pauses:?}");
            // Other processes on the machine may delay some requests, but not all.
            assert!(pauses.iter().any(|&pause| pause < 5 * THINK_TIME), "{pauses:?}");
            assert!(u128::from(report.elapsed_ns) >= (THINK_TIME * REPLIES).as_nanos(), "{report:?}");
        }
    }
}

#[test]
fn only_busy_load_generator_is_bottleneck() {
    let address = server(|mut stream| {
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
