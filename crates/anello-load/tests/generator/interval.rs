//! Sums and summaries of intervals and their histograms.

use anello_load::{
    ErrorKind, Errors, Interval, Knee, Latency, ProcessUsage, ServerCost, Spread, Step, latency_histogram,
};
use hdrhistogram::Histogram;
use serde_json::json;

fn interval(start_ns: u64, latencies_ns: &[u64]) -> Interval {
    let mut interval = Interval::empty(start_ns, true);
    interval.elapsed_ns = 1_000_000_000;
    for &latency_ns in latencies_ns {
        interval.latency.saturating_record(latency_ns);
        interval.uncorrected.as_mut().unwrap().saturating_record(latency_ns / 2);
    }
    interval.requests = latencies_ns.len() as u64;
    interval.counts.offered = Some(10);
    interval.open_connections = 3;
    interval.counts.errors =
        serde_json::from_str(r#"[{"kind":"reset","count":1,"example":"reset"}]"#).unwrap();
    interval.stolen_ns = (start_ns > 0).then_some(7);
    interval.server = (start_ns > 0).then_some(ProcessUsage {
        cpu_ns: 500,
        voluntary_switches: 1,
        involuntary_switches: 2,
        resident_bytes: start_ns,
    });
    interval
}

#[test]
fn add_sums_threads() {
    let mut sum = interval(5, &[1000, 2000]);
    sum.add(&Interval { start_ns: 9, stolen_ns: None, server: None, ..interval(0, &[3000]) });
    assert_eq!((sum.start_ns, sum.elapsed_ns, sum.open_connections), (5, 1_000_000_004, 6));
    assert_eq!((sum.requests, sum.latency.len(), sum.uncorrected.as_ref().unwrap().len()), (3, 3, 3));
    assert_eq!((sum.counts.offered, sum.stolen_ns, sum.counts.errors.total()), (Some(20), Some(7), 2));
    assert_eq!((sum.server.unwrap().cpu_ns, sum.server.unwrap().resident_bytes), (500, 5));
    assert_eq!(sum.server_cpu_ns_per_request(), Some(500.0 / 3.0));
    assert_eq!(sum.load_cpu_ns_per_request(), Some(0.0));
}

#[test]
fn append_extends_interval() {
    let second = 1_000_000_000;
    let mut run = interval(0, &[1000]);
    run.append(&interval(second, &[2000]));
    run.append(&interval(2 * second, &[]));
    assert_eq!((run.start_ns, run.elapsed_ns, run.open_connections), (0, 3 * second, 3));
    assert_eq!(
        run.server,
        Some(ProcessUsage {
            cpu_ns: 1000,
            voluntary_switches: 2,
            involuntary_switches: 4,
            resident_bytes: 2 * second
        })
    );
    assert!((run.requests_per_second() - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(run.quantiles().unwrap().max_ns, run.latency.max());
    assert!(run.uncorrected_quantiles().unwrap().p50_ns < run.quantiles().unwrap().p50_ns);
}

#[test]
fn empty_interval_has_no_quantiles() {
    let empty = Interval::empty(0, false);
    assert_eq!((empty.quantiles(), empty.uncorrected_quantiles(), empty.counts.offered), (None, None, None));
    assert_eq!((empty.requests_per_second(), empty.load_cpu_ns_per_request()), (0.0, None));
}

fn histogram(low: u64, high: u64, digits: u8, values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(low, high, digits).unwrap();
    values.into_iter().for_each(|value| histogram.record(value).unwrap());
    histogram
}

/// Adds two histograms as the latencies of an interval.
fn sum(one: Histogram<u64>, other: Histogram<u64>) -> Histogram<u64> {
    let interval = |latency| Interval { latency, ..Interval::empty(0, false) };
    let mut sum = interval(one);
    sum.add(&interval(other));
    sum.latency
}

fn counts(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let counts = histogram.iter_recorded();
    counts.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
}

#[test]
fn sum_equals_recording_all_values_in_coarser_layout() {
    let layouts = [(1, 60_000_000_000, 3), (1, 1_000_000, 5), (1000, 3_600_000_000_000, 2), (1, u64::MAX, 1)];
    let values = |seed: u64| (0..500).map(move |index| 1 + index * (seed + 7) * 131 % 900_000);
    for (first, (low, high, digits)) in layouts.into_iter().enumerate() {
        for (second, (other_low, other_high, other_digits)) in layouts.into_iter().enumerate() {
            let sum = sum(
                histogram(low, high, digits, values(first as u64)),
                histogram(other_low, other_high, other_digits, values(second as u64)),
            );
            let all = values(first as u64).chain(values(second as u64));
            let expected = histogram(low.max(other_low), high.max(other_high), digits.min(other_digits), all);
            assert_eq!(counts(&sum), counts(&expected), "{first} + {second}");
            assert_eq!((sum.len(), sum.max(), sum.min()), (1000, expected.max(), expected.min()));
        }
    }
}

#[test]
fn sum_grows_for_higher_values() {
    let high = histogram(1, u64::MAX, 3, [1 << 62]);
    let sum = sum(histogram(1, 1000, 3, [5]), high.clone());
    assert_eq!((sum.len(), sum.max()), (2, high.max()));
    assert!(!sum.is_auto_resize());
}

#[test]
fn latency_quantiles_match_recorded_values() {
    let mut histogram = latency_histogram();
    assert_eq!(Latency::of(&histogram), None);
    (1..=1000).for_each(|microseconds| histogram.saturating_record(microseconds * 1000));
    let latency = Latency::of(&histogram).unwrap();
    let near = |value_ns: u64, expected_ns: u64| value_ns.abs_diff(expected_ns) <= expected_ns / 500;
    assert!(near(latency.p50_ns, 500_000) && near(latency.p90_ns, 900_000), "{latency:?}");
    assert!(near(latency.p99_ns, 990_000) && near(latency.p999_ns, 999_000), "{latency:?}");
    assert!(near(latency.min_ns, 1_000) && near(latency.max_ns, 1_000_000), "{latency:?}");
}

#[test]
fn spread_has_minimum_median_and_maximum() {
    assert_eq!(Spread::of(&[]), None);
    assert_eq!(Spread::of(&[7]), Some(Spread { min: 7, median: 7, max: 7 }));
    assert_eq!(Spread::of(&[9, 1, 5, 3, 7]), Some(Spread { min: 1, median: 5, max: 9 }));
}

#[test]
fn kind_name_matches_serialized_name() {
    for (index, kind) in ErrorKind::ALL.iter().enumerate() {
        assert_eq!(
            (*kind as usize, serde_json::to_string(&kind).unwrap()),
            (index, format!("{:?}", kind.name()))
        );
    }
}

#[test]
fn errors_are_counted_by_kind_and_keep_first_example() {
    let counted = |errors: &[(&str, u64, &str)]| -> Errors {
        let entry = |(kind, count, example): &(&str, u64, &str)| json!({ "kind": kind, "count": count, "example": example });
        serde_json::from_value(errors.iter().map(entry).collect()).unwrap()
    };
    let (mut sum, mut more) = (Interval::empty(0, false), Interval::empty(0, false));
    assert!(sum.counts.errors.is_empty());
    sum.counts.errors = counted(&[("reset", 2, "first")]);
    more.counts.errors = counted(&[("refused", 1, "no listener"), ("reset", 1, "later")]);
    sum.add(&more);
    let errors = &sum.counts.errors;
    let counts = [ErrorKind::Reset, ErrorKind::Other].map(|kind| errors.count(kind));
    assert_eq!((errors.total(), counts), (4, [3, 0]));
    let kinds: Vec<_> = errors.iter().map(|entry| (entry.kind, entry.example.as_str())).collect();
    assert_eq!(kinds, [(ErrorKind::Refused, "no listener"), (ErrorKind::Reset, "first")]);
}

#[test]
fn server_cost_is_divided_by_requests() {
    let mut total = Interval::empty(0, false);
    assert_eq!(ServerCost::of(7, &total), None);
    let usage =
        ProcessUsage { cpu_ns: 1000, voluntary_switches: 5, involuntary_switches: 2, resident_bytes: 4096 };
    total.server = Some(usage);
    let unused = ServerCost { pid: 7, usage, cpu_ns_per_request: None, switches_per_request: None };
    assert_eq!(ServerCost::of(7, &total), Some(unused));
    total.requests = 4;
    let cost = ServerCost { cpu_ns_per_request: Some(250.0), switches_per_request: Some(1.75), ..unused };
    assert_eq!(ServerCost::of(7, &total), Some(cost));
    // Reports written by older versions do not have this field.
    let mut json = serde_json::to_value(cost).unwrap();
    json.as_object_mut().unwrap().remove("switches_per_request").unwrap();
    let old: ServerCost = serde_json::from_value(json).unwrap();
    assert_eq!(old, ServerCost { switches_per_request: None, ..cost });
}

/// Returns a step of one second.
fn step(answered: u64, offered: u64, latency_ns: u64) -> Step {
    let mut total = Interval::empty(0, true);
    total.latency.saturating_record(latency_ns);
    total.counts.offered = Some(offered);
    Step {
        per_second: 1000,
        answered_per_second: answered as f64,
        answered_in_time: answered,
        total: (&total).into(),
        schedule_error: None,
        load_was_bottleneck: false,
    }
}

#[test]
fn saturation_reported_for_missing_or_slow_replies() {
    let (knee, first) = (Knee::default(), step(960, 1000, 100_000));
    let second = |answered, latency_ns| vec![first.clone(), step(answered, 2000, latency_ns)];
    let lenient = Knee { min_answered_percent: 50, max_latency_factor: 100 };
    for (knee, steps, expected) in [
        (knee, vec![], None),
        (knee, vec![first.clone()], None),
        (knee, second(1990, 900_000), None),
        (knee, second(1890, 100_000), Some("94.5 %")),
        (knee, second(2000, 1_100_000), Some("11.0 times")),
        // Even the first step can be saturated.
        (knee, vec![step(900, 1000, 1)], Some("90.0 %")),
        // The percentage is relative to the offered requests, not to the rate.
        (knee, vec![step(800, 820, 1)], None),
        (lenient, second(1100, 1_100_000), None),
    ] {
        let reason = knee.saturation_reason(&steps);
        assert_eq!(reason.is_some(), expected.is_some(), "{reason:?}, expected {expected:?}");
        assert!(reason.unwrap_or_default().contains(expected.unwrap_or_default()), "{expected:?}");
    }
}
