//! Tests of shards: together they are the load of one process, they start at the same time, and their reports add up.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{any_driver, drivers};
use anello::RuntimeBuilder;
use anello_load::formats::hdr_log::{HdrLog, HdrLogWriter};
use anello_load::merge::{NamedLog, ProblemKind, Runs, totals};
use anello_load::{
    Arrivals, Event, Histograms, Latency, LoadConfig, Mode, Phase, Report, Schedule, Shard, Share, Sweep,
    latency_histogram, run,
};
use anello_test::tcp_server;
use hdrhistogram::Histogram;
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;

fn shard(index: usize, count: usize) -> Option<Shard> {
    Some(Shard { index, count, source: "test".to_owned() })
}

fn load(connections: usize, threads: usize, shard: Option<Shard>) -> LoadConfig {
    LoadConfig { connections, threads, shard, ..LoadConfig::echo(SocketAddr::from(([127, 0, 0, 1], 1)), 1) }
}

/// Returns the due time and the connection of each request until `end_ns`, over all threads of a process.
fn requests(load: &LoadConfig, per_second: u64, arrivals: Arrivals, end_ns: u64) -> Vec<(u64, usize)> {
    let of_thread = |thread| {
        let share = Share::new(load, thread);
        let schedule = Schedule::new(share, per_second, arrivals, 7).take_while(move |&(ns, _)| ns < end_ns);
        schedule.map(move |(ns, local_index)| (ns, share.global_index(local_index)))
    };
    let mut all: Vec<_> = (0..load.threads).flat_map(of_thread).collect();
    all.sort_unstable();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Shards can have different numbers of threads.
    #[test]
    fn shards_have_all_connections_and_requests_once(
        connections in 1usize..200,
        count in 1usize..20,
        threads in prop::collection::vec(1usize..4, 20),
        per_second in 1u64..5000,
    ) {
        let (mut all_connections, mut all_requests, mut sum) = (Vec::new(), Vec::new(), 0);
        for (index, &threads) in threads.iter().enumerate().take(count) {
            let load = load(connections, threads, shard(index, count));
            let shares = (0..load.threads).map(|thread| Share::new(&load, thread));
            let own: Vec<usize> =
                shares.flat_map(|share| (0..share.count()).map(move |local| share.global_index(local))).collect();
            prop_assert_eq!(own.len(), load.own_connections());
            sum += own.len();
            all_connections.extend(own);
            all_requests.extend(requests(&load, per_second, Arrivals::Constant, SECOND_NS));
        }
        all_connections.sort_unstable();
        all_requests.sort_unstable();
        prop_assert_eq!(sum, connections);
        prop_assert_eq!(all_connections, (0..connections).collect::<Vec<_>>());
        // The rates of the shards add up to the rate, because the union is the schedule of one process.
        prop_assert_eq!(all_requests.len() as u64, per_second);
        prop_assert_eq!(all_requests, requests(&load(connections, 1, None), per_second, Arrivals::Constant, SECOND_NS));
    }

    #[test]
    fn merged_percentiles_equal_those_of_one_histogram(
        samples in prop::collection::vec(prop::collection::vec(1u64..50_000_000_000, 0..200), 1..6),
    ) {
        let mut expected = latency_histogram();
        samples.iter().flatten().for_each(|&value| expected.record(value).unwrap());
        let base = report_of_refused_load();
        let logs: Vec<_> = samples.iter().enumerate().map(|(index, values)| {
            let mut histogram = latency_histogram();
            values.iter().for_each(|&value| histogram.record(value).unwrap());
            let report = with_latency(base.clone(), index, samples.len(), &histogram);
            NamedLog::from_report(index.to_string(), report).unwrap()
        }).collect();
        let sums = totals(&logs).unwrap();
        let [sum] = sums.as_slice() else { panic!("{sums:?}") };
        prop_assert_eq!(Latency::of(&sum.total.latency), Latency::of(&expected));
        prop_assert_eq!(&sum.total.latency, &expected);
    }
}

/// Returns the report of a load whose connections are refused.
fn report_of_refused_load() -> Report {
    let load = LoadConfig { connections: 1, duration: Duration::from_millis(1), ..load(1, 1, None) };
    run(&load, &any_driver(), |_| ControlFlow::Continue(())).unwrap().report
}

fn with_latency(report: Report, index: usize, count: usize, histogram: &Histogram<u64>) -> Report {
    let mut writer = HdrLogWriter::new(Vec::new(), 0, &[]).unwrap();
    writer.write_histogram(None, 0, 1, histogram).unwrap();
    let text = String::from_utf8(writer.into_inner()).unwrap();
    let latency = text.trim_end().rsplit(',').next().unwrap().to_owned();
    let mut report = Report {
        histograms: Some(Histograms { latency, uncorrected: None, schedule_error: None }),
        ..report
    };
    (report.run.id, report.run.shard) = (format!("id{index}"), shard(index, count));
    report
}

#[test]
fn constant_arrivals_of_shards_are_offset_by_part_of_interval() {
    // 4 shards with 2 connections each: every 4th request, starting with the index of the shard.
    for index in 0..4 {
        let due_ns = requests(&load(8, 2, shard(index, 4)), 1000, Arrivals::Constant, SECOND_NS);
        let due_ns: Vec<u64> = due_ns.into_iter().map(|(ns, _)| ns).collect();
        let expected: Vec<u64> = (0..250).map(|request| (index as u64 + 4 * request) * 1_000_000).collect();
        assert_eq!(due_ns, expected, "shard {index}");
    }
}

#[test]
fn poisson_arrivals_of_shards_are_independent_and_have_rate_of_whole() {
    let of_shard = |index| requests(&load(10, 2, shard(index, 3)), 30_000, Arrivals::Poisson, 10 * SECOND_NS);
    let shards = [of_shard(0), of_shard(1), of_shard(2)];
    assert_eq!(shards[1], of_shard(1), "the same seed gives the same schedule");
    let counts = shards.each_ref().map(|requests| requests.len() as f64);
    // 4, 3 and 3 of the 10 connections, each with the same rate; four standard deviations.
    for (count, expected) in counts.into_iter().zip([120_000.0, 90_000.0, 90_000.0_f64]) {
        assert!((count - expected).abs() < 4.0 * expected.sqrt(), "{counts:?}");
    }
    let mut union: Vec<u64> = shards.iter().flatten().map(|&(ns, _)| ns).collect();
    union.sort_unstable();
    let gaps: Vec<f64> = union.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!(
        (variance.sqrt() / mean - 1.0).abs() < 0.01,
        "the gaps of the union are exponentially distributed"
    );
}

#[test]
fn invalid_shards_are_rejected() {
    let problem = |load: LoadConfig| load.validate().unwrap_err();
    assert!(problem(load(10, 1, shard(3, 3))).contains("invalid shard 3/3"));
    assert!(problem(load(10, 1, shard(0, 0))).contains("invalid shard 0/0"));
    // Every shard is rejected, although shard 0 would have 3 connections.
    for index in 0..4 {
        assert!(
            problem(load(10, 3, shard(index, 4))).contains("10 connections into 4 shards with 3 threads")
        );
        assert_eq!(load(10, 2, shard(index, 4)).validate(), Ok(()));
    }
    let sweep =
        Sweep { first: 1, last: 2, step: 1, arrivals: Arrivals::Constant, seed: 1, knee: Default::default() };
    let sweep = |shard| LoadConfig { mode: Mode::Sweep(sweep.clone()), ..load(10, 1, shard) };
    assert!(problem(sweep(shard(0, 2))).contains("sweep"));
    assert_eq!(sweep(shard(0, 1)).validate(), Ok(()));
}

fn echo() -> SocketAddr {
    tcp_server(|mut stream| {
        let mut message = [0; 16];
        loop {
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
    })
}

fn unix_ns(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// Runs a load that starts after `wait`. Returns its report if the machine was fast enough for the load to wait, and its
/// clock was not corrected in the meantime.
fn run_after(wait: Duration, target: SocketAddr, mode: &Mode, driver: &RuntimeBuilder) -> Option<Report> {
    let start_at = SystemTime::now() + wait;
    let load = LoadConfig {
        mode: mode.clone(),
        start_at: Some(start_at),
        warm_up: Duration::from_millis(20),
        duration: Duration::from_millis(30),
        connect_timeout: wait.mul_f64(0.7),
        verify: true,
        shard: shard(1, 3),
        ..LoadConfig::echo(target, 16)
    };
    let (mut began_at, mut has_waited) = (None, false);
    let outcome = run(&load, driver, |event| {
        match event {
            Event::Progress(progress) => has_waited |= progress.phase == Phase::Waiting,
            Event::Began { unix_ns, run } => {
                began_at = Some((SystemTime::now(), unix_ns));
                assert_eq!(run.shard, load.shard);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let report = outcome.ok().filter(|outcome| has_waited && outcome.report.is_success())?.report;
    let (at, began_ns) = began_at.unwrap();
    let clock = report.clock.as_ref().unwrap();
    if clock.step_ns.unsigned_abs() > 1_000_000 {
        return None;
    }
    // An open loop is prepared 2 ms before its start.
    assert!(at >= start_at - Duration::from_millis(3), "{at:?} {start_at:?}");
    let expected_ns = unix_ns(start_at) + 20_000_000;
    assert_eq!((report.started_unix_ns, began_ns), (expected_ns, expected_ns));
    assert_eq!((clock.name.as_str(), clock.start_at_unix_ns), ("CLOCK_REALTIME", Some(unix_ns(start_at))));
    assert_eq!((report.connections, report.all_connections), (17, 50));
    Some(report)
}

#[test]
fn load_starts_at_configured_time_and_reports_it() {
    let target = echo();
    let modes = [
        Mode::Closed { think_time: Duration::ZERO },
        Mode::Open { per_second: 1000, arrivals: Arrivals::Constant, seed: 1 },
    ];
    for driver in drivers() {
        for mode in &modes {
            let mut waits = [300, 3000, 30_000].map(Duration::from_millis).into_iter();
            assert!(waits.any(|wait| run_after(wait, target, mode, &driver).is_some()), "{mode:?}");
        }
    }
}

#[test]
fn start_time_in_past_is_error_unless_small() {
    let target = echo();
    let start = |start_at| {
        let load = LoadConfig {
            start_at: Some(start_at),
            mode: Mode::Open { per_second: 100, arrivals: Arrivals::Constant, seed: 1 },
            duration: Duration::from_secs(1),
            connections: 2,
            ..LoadConfig::echo(target, 16)
        };
        run(&load, &any_driver(), |_| ControlFlow::Continue(()))
    };
    let error = start(SystemTime::now() - Duration::from_secs(3)).unwrap_err().to_string();
    assert!(error.contains("its start time passed ") && error.contains("choose a later time"), "{error}");
    let error = start(SystemTime::now() + Duration::from_secs(8 * 24 * 3600)).unwrap_err().to_string();
    assert!(error.contains("days in the future"), "{error}");
    // On a busy machine, the load can start more than a second after a time that has just passed.
    let report =
        (0..20).find_map(|_| start(SystemTime::now() - Duration::from_millis(300)).ok()).unwrap().report;
    let clock = report.clock.unwrap();
    assert!(clock.start_delay_ns > 0, "{clock:?}");
    // The schedule starts in the past, so that it ends together with those of other shards: one request was due in every
    // 10 ms of the delay.
    let due = clock.start_delay_ns / 10_000_000;
    assert!(
        report.offered == Some(100) && report.late + 1 >= due,
        "{:?} {} {due}",
        report.offered,
        report.late
    );
}

#[test]
fn stop_while_waiting_for_start_ends_run() {
    let start_at = Some(SystemTime::now() + Duration::from_secs(3600));
    let load = LoadConfig { start_at, ..LoadConfig::echo(echo(), 16) };
    let outcome = run(&load, &any_driver(), |_| ControlFlow::Break(())).unwrap();
    assert!(outcome.report.interrupted && outcome.report.errors.is_empty(), "{:?}", outcome.report);
    assert_eq!(outcome.report.elapsed_ns, 0);
}

/// Returns the inputs of a load with `count` shards of one request each.
fn shard_logs(count: usize) -> Vec<NamedLog> {
    let base = report_of_refused_load();
    let mut histogram = latency_histogram();
    histogram.record(1000).unwrap();
    let log = |index| {
        let report = Report { requests: 1, ..with_latency(base.clone(), index, count, &histogram) };
        NamedLog::from_report(format!("{index}.json"), report).unwrap()
    };
    (0..count).map(log).collect()
}

/// Returns the kinds of the problems of the inputs, and their texts.
fn problems(mut logs: Vec<NamedLog>) -> (Vec<ProblemKind>, String) {
    let runs = Runs::new(&mut logs).unwrap();
    let texts: Vec<&str> = runs.problems.iter().map(|problem| problem.text.as_str()).collect();
    (runs.problems.iter().map(|problem| problem.kind).collect(), texts.join("\n"))
}

fn change(log: &mut NamedLog, change: impl FnOnce(&mut Report)) {
    let mut report = (**log.report.as_ref().unwrap()).clone();
    change(&mut report);
    *log = NamedLog::from_report(log.name.clone(), report).unwrap();
}

#[test]
fn problems_of_shards_are_reported() {
    assert_eq!(problems(shard_logs(3)), (Vec::new(), String::new()));
    let mut logs = shard_logs(6);
    logs.drain(1..3);
    let (kinds, text) = problems(logs);
    assert_eq!(
        (kinds.as_slice(), text.as_str()),
        (&[ProblemKind::Missing][..], "of 6 shards, these are missing: 1-2")
    );

    let mut logs = shard_logs(3);
    logs.push(logs[1].clone());
    assert_eq!(problems(logs.clone()).0, [ProblemKind::Repeated]);
    let runs = Runs::new(&mut logs).unwrap();
    assert_eq!((logs.len(), runs.load.unwrap().requests), (3, 3), "the repeated report counts once");
    let mut again = logs[1].clone();
    change(&mut again, |report| report.run.id = "other".to_owned());
    logs.push(again);
    let (kinds, text) = problems(logs.clone());
    assert!(
        kinds == [ProblemKind::Duplicate] && text.contains("shard 1 ran 2 times: 1.json, 1.json"),
        "{text}"
    );

    let mut logs = shard_logs(3);
    change(&mut logs[2], |report| report.run.settings = "12345678".to_owned());
    change(&mut logs[1], |report| report.target = "10.0.0.1:80".to_owned());
    let (kinds, text) = problems(logs);
    assert_eq!(kinds, [ProblemKind::Different, ProblemKind::Target]);
    assert!(
        text.contains("the settings differ: 2.json; 0.json, 1.json")
            && text.contains("10.0.0.1:80 in 1.json"),
        "{text}"
    );
    let mut logs = shard_logs(3);
    logs.push(NamedLog { name: "foreign".to_owned(), log: HdrLog::default(), report: None });
    let (kinds, text) = problems(logs);
    assert!(kinds == [ProblemKind::Different] && text == "foreign is not a shard, but others are", "{text}");
    let mut logs = shard_logs(3);
    change(&mut logs[2], |report| report.run.shard = shard(2, 4));
    change(&mut logs[1], |report| report.run.shard = None);
    let (kinds, text) = problems(logs);
    assert!(kinds.contains(&ProblemKind::Different) && kinds.contains(&ProblemKind::Missing), "{text}");
    assert!(text.contains("2.json is shard 2/4") && text.contains("1.json is not a shard"), "{text}");
}

#[test]
fn start_times_clocks_and_bottlenecks_are_reported() {
    let mut logs = shard_logs(3);
    change(&mut logs[1], |report| report.started_unix_ns += 99_000_000);
    assert!(problems(logs.clone()).0.is_empty());
    assert_eq!(Runs::new(&mut logs.clone()).unwrap().start_difference_ns, Some(99_000_000));
    change(&mut logs[2], |report| report.clock.as_mut().unwrap().start_delay_ns = 250_000_000);
    let (kinds, text) = problems(logs);
    assert!(
        kinds == [ProblemKind::StartTime] && text.contains("2.json started 0.250 s after 0.json"),
        "{text}"
    );

    let mut logs = shard_logs(3);
    change(&mut logs[0], |report| report.clock.as_mut().unwrap().step_ns = -30_000_000);
    change(&mut logs[1], |report| (report.load_was_bottleneck, report.load_busy_percent) = (true, 99.4));
    let latency = |p99_ns| Some(Latency { p99_ns, ..Latency::of(&one_value()).unwrap() });
    change(&mut logs[2], |report| {
        (report.latency, report.schedule_error) = (latency(900_000), latency(200_000))
    });
    change(&mut logs[2], |report| report.interrupted = true);
    let (kinds, text) = problems(logs);
    assert_eq!(
        kinds,
        [ProblemKind::ClockStep, ProblemKind::Bottleneck, ProblemKind::Interrupted, ProblemKind::Bottleneck]
    );
    for expected in
        ["0.json: the clock of the machine was corrected by -0.030 s", "99 % busy", "at least 0.200 ms late"]
    {
        assert!(text.contains(expected), "{text}");
    }
}

fn one_value() -> Histogram<u64> {
    let mut histogram = latency_histogram();
    histogram.record(1000).unwrap();
    histogram
}

#[test]
fn log_and_report_of_same_run_count_once() {
    let reports = shard_logs(2);
    let log = |values: u64| {
        let run = reports[1].log.runs[0].clone();
        let mut writer = HdrLogWriter::with_runs(Vec::new(), SECOND_NS, &["[title]"], &[run]).unwrap();
        for second in 0..values {
            writer.write_histogram(None, second * SECOND_NS, (second + 1) * SECOND_NS, &one_value()).unwrap();
        }
        writer.write_errors(&Default::default()).unwrap();
        let log = HdrLog::parse(&writer.into_inner()).unwrap();
        NamedLog { name: "1.hlog".to_owned(), log, report: None }
    };
    for swapped in [false, true] {
        let mut logs = reports.clone();
        logs.insert(if swapped { 0 } else { 2 }, log(1));
        let runs = Runs::new(&mut logs).unwrap();
        assert!(runs.problems.is_empty() && logs.len() == 2, "{runs:?}");
        let paired = logs.iter().find(|log| log.name == "1.json").unwrap();
        assert_eq!(paired.log.records[0].line, 8, "the line of the log");
        assert_eq!(totals(&logs).unwrap()[0].total.latency.len(), 2);
        assert_eq!(runs.load.unwrap().requests, 2);
    }
    let mut logs = [reports.clone(), vec![log(2)]].concat();
    let runs = Runs::new(&mut logs).unwrap();
    assert_eq!(runs.problems[0].kind, ProblemKind::IncompleteLog);
    assert_eq!(totals(&logs).unwrap()[0].total.latency.len(), 2);
    // Logs alone are checked as well.
    assert_eq!(problems(vec![log(1)]).1, "of 2 shards, these are missing: 0");
    let mut killed = log(1);
    (killed.log.errors.is_complete, killed.log.began_ns) = (false, reports[0].log.began_ns);
    let (kinds, text) = problems(vec![reports[0].clone(), killed]);
    assert!(
        kinds == [ProblemKind::Unfinished] && text.contains("1.hlog is the log of a run that did not"),
        "{text}"
    );
}

#[test]
fn other_documents_are_rejected() {
    let report = report_of_refused_load();
    let other = Report { schema: "anello-lab".to_owned(), ..report.clone() };
    assert!(
        NamedLog::from_report("a".to_owned(), other).unwrap_err().contains("not a report of anello load")
    );
    let old = Report { histograms: None, ..report };
    assert!(NamedLog::from_report("a".to_owned(), old).unwrap_err().contains("--hdr"));
    let error = HdrLog::parse(b"#\n#[AnelloRun: {\"id\":3}]\n").unwrap_err();
    assert!(error.line == 2 && error.problem.contains("invalid identity of a run"), "{error}");
}
