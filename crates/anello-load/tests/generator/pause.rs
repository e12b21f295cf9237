//! Tests of pauses in open and closed loops.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::common::drivers;
use anello::RuntimeBuilder;
use anello_load::{Arrivals, Event, LoadConfig, Mode, Pause, PauseSwitch, Report, run_with_pause};
use anello_test::tcp_server;

fn load(mode: Mode) -> LoadConfig {
    let target = tcp_server(|mut stream| {
        let mut message = [0; 16];
        loop {
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
    });
    let (duration, interval) = (Duration::from_secs(600), Duration::from_millis(20));
    LoadConfig { connections: 3, threads: 2, mode, duration, interval, ..LoadConfig::echo(target, 16) }
}

/// Pauses an open loop of 1000 requests/s until an interval without requests has been reported, and resumes it.
/// Returns the report, and the start and end of that interval.
fn paused_run(load: &LoadConfig, driver: &RuntimeBuilder) -> (Report, u64, u64) {
    let pause = PauseSwitch::default();
    // Time of the first event that follows the pause, since the event that precedes the measurement. An interval that
    // starts later is part of the pause, and not only one in which the threads got no CPU time.
    let (mut began, mut paused_ns) = (Instant::now(), None);
    let mut idle = None;
    let outcome = run_with_pause(load, driver, &pause, |event| {
        match event {
            Event::Began { .. } => began = Instant::now(),
            Event::Progress(_) if pause.is_paused() => {
                paused_ns.get_or_insert(began.elapsed().as_nanos());
            }
            Event::Interval(interval) => {
                let has_requests = interval.counts.offered.unwrap() > 0;
                let is_in_pause = paused_ns.is_some_and(|ns| u128::from(interval.start_ns) >= ns);
                match (pause.is_paused(), has_requests) {
                    (false, true) if idle.is_some() => return ControlFlow::Break(()),
                    (false, true) => pause.set(true),
                    (true, false) if is_in_pause => {
                        idle = Some((interval.start_ns, interval.end_ns()));
                        pause.set(false);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let (start_ns, end_ns) = idle.expect("the run ends only after the pause");
    (outcome.unwrap().report, start_ns, end_ns)
}

#[test]
fn paused_open_loop_skips_requests_and_reports_pause() {
    let load = load(Mode::Open { per_second: 1000, arrivals: Arrivals::Constant, seed: 1 });
    for driver in drivers() {
        // A thread that gets no CPU time during the whole pause does not notice it, and skips no requests.
        let has_skipped = (0..20).any(|_| {
            let (report, idle_start_ns, idle_end_ns) = paused_run(&load, &driver);
            assert!(report.interrupted && report.errors.is_empty(), "{:?}", report.errors);
            let [Pause { start_ns, elapsed_ns }] = report.pauses[..] else { panic!("{:?}", report.pauses) };
            assert!(start_ns < idle_end_ns && start_ns + elapsed_ns > idle_start_ns, "{:?}", report.pauses);
            assert_eq!(report.offered.unwrap(), report.requests + report.unsent + report.abandoned);
            let rate = report.answered_in_time as f64 * 1e9 / (report.in_time_ns - elapsed_ns) as f64;
            assert!((report.requests_per_second / rate - 1.0).abs() < 1e-9, "{report:?}");
            report.requests + 15 < report.elapsed_ns / 1_000_000
        });
        assert!(has_skipped);
    }
}

#[test]
fn closed_loop_is_not_paused() {
    let load = load(Mode::Closed { think_time: Duration::ZERO });
    for driver in drivers() {
        let pause = PauseSwitch::default();
        pause.set(true);
        let outcome = run_with_pause(&load, &driver, &pause, |event| match event {
            Event::Interval(interval) if interval.requests > 0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        let report = outcome.unwrap().report;
        assert!(report.requests > 0 && report.pauses.is_empty(), "{:?}", report.pauses);
    }
}
