//! Merging: the merged log contains the values of all logs, regardless of the order and grouping of the merges.

use std::io;

use anello_load::formats::hdr_log::{HdrLog, HdrLogWriter};
use anello_load::merge::{NamedLog, errors, seconds, totals, write_log};
use hdrhistogram::Histogram;
use proptest::prelude::*;

const MS_NS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_000 * MS_NS;

/// Line of a log, as a tuple of start and length in milliseconds, presence of a tag, and values.
type Line = (u64, u64, bool, Vec<u64>);

/// Creates a log with the given lines. `digits` determines the layout of its histograms.
fn log(name: usize, digits: u8, lines: &[Line]) -> NamedLog {
    let mut writer = HdrLogWriter::new(Vec::new(), START_NS + name as u64 * 37 * MS_NS, &[]).unwrap();
    for (start_ms, length_ms, tagged, values) in lines {
        let mut histogram = Histogram::new_with_bounds(1 << (digits / 2), 60_000_000_000, digits).unwrap();
        values.iter().for_each(|&value| histogram.record(value).unwrap());
        let (start_ns, end_ns) = (start_ms * MS_NS, (start_ms + length_ms) * MS_NS);
        writer.write_histogram(tagged.then_some("uncorrected"), start_ns, end_ns, &histogram).unwrap();
    }
    parsed(name, &writer.into_inner())
}

fn parsed(name: usize, text: &[u8]) -> NamedLog {
    NamedLog { name: format!("{name}.hlog"), log: HdrLog::parse(text).unwrap(), report: None }
}

fn counts(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
}

/// Sum in comparable form: tag, start, end and counts.
type Comparable = (Option<String>, u64, u64, Vec<(u64, u64)>);

/// Returns the sums for all seconds.
fn by_second(logs: &[NamedLog]) -> Vec<Comparable> {
    let mut all = Vec::new();
    seconds(logs, |tag, sum| {
        all.push((tag.map(str::to_owned), sum.start_ns, sum.end_ns, counts(&sum.latency)));
        Ok(())
    })
    .unwrap();
    all
}

/// Returns the known error counts, and whether they are complete.
fn reported_errors(logs: &[NamedLog]) -> (String, bool) {
    let errors = errors(logs).unwrap();
    (errors.known.by_kind(), errors.is_complete)
}

/// Replaces the error counts of a log with `counts`.
fn with_errors_comment(mut log: NamedLog, counts: &str) -> NamedLog {
    log.log.errors = HdrLog::parse(format!("#[AnelloErrors: {counts}]").as_bytes()).unwrap().errors;
    log
}

/// Returns the totals of the logs.
fn total_counts(logs: &[NamedLog]) -> Vec<Comparable> {
    let sums = totals(logs).unwrap().into_iter();
    sums.map(|sum| (sum.tag, sum.total.start_ns, sum.total.end_ns, counts(&sum.total.latency))).collect()
}

/// Merges the logs into one.
fn merged(logs: &[NamedLog]) -> NamedLog {
    parsed(99, &write_log(logs, Vec::new()).unwrap())
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let line = (0u64..4000, 0u64..2500, any::<bool>(), prop::collection::vec(1u64..50_000_000_000, 0..12));
    prop::collection::vec(line, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn merge_is_independent_of_order_and_grouping(
        all in prop::collection::vec((0u8..=3, lines(), 0usize..5), 1..5),
        cut in any::<prop::sample::Index>(),
        rotation in any::<prop::sample::Index>(),
    ) {
        let counts = ["none", "unknown", "reset=3", "refused=1;timeout=2", "timeout=7;unknown"];
        let numbered = all.iter().enumerate();
        let logs: Vec<_> = numbered
            .map(|(name, (digits, lines, counts_index))| with_errors_comment(log(name, *digits, lines), counts[*counts_index]))
            .collect();
        let (seconds, sums, errors) = (by_second(&logs), total_counts(&logs), reported_errors(&logs));
        let mut reordered = logs.clone();
        reordered.rotate_left(rotation.index(logs.len()));
        reordered.reverse();
        prop_assert_eq!(&by_second(&reordered), &seconds);
        prop_assert_eq!(&total_counts(&reordered), &sums);
        prop_assert_eq!(&reported_errors(&reordered), &errors);
        // Merge in two steps.
        let (left, right) = logs.split_at(cut.index(logs.len() + 1));
        let steps = [merged(left), merged(right)];
        prop_assert_eq!(&by_second(&steps), &seconds);
        prop_assert_eq!(total_counts(&steps), sums.clone());
        prop_assert_eq!(&reported_errors(&steps), &errors);
        prop_assert_eq!(total_counts(&[merged(&logs)]), sums);
        prop_assert_eq!(reported_errors(&[merged(&logs)]), errors);
    }

    #[test]
    fn total_contains_values_of_all_logs(all in prop::collection::vec(lines(), 1..5)) {
        let logs: Vec<_> = all.iter().enumerate().map(|(name, lines)| log(name, 3, lines)).collect();
        for tagged in [false, true] {
            let mut expected = Histogram::<u64>::new_with_bounds(2, 60_000_000_000, 3).unwrap();
            let tag_lines = || all.iter().flatten().filter(|line| line.2 == tagged);
            tag_lines().flat_map(|line| &line.3).for_each(|&value| expected.record(value).unwrap());
            let tag = tagged.then(|| "uncorrected".to_owned());
            let sums = totals(&logs).unwrap();
            let sum = sums.iter().find(|sum| sum.tag == tag);
            prop_assert_eq!(sum.is_some(), tag_lines().next().is_some());
            if let Some(sum) = sum {
                prop_assert_eq!(counts(&sum.total.latency), counts(&expected));
                prop_assert_eq!(sum.by_log.iter().map(|(_, sum)| sum.latency.len()).sum::<u64>(), expected.len());
            }
        }
    }
}

#[test]
fn lines_of_same_second_are_added_without_splitting() {
    let one = log(0, 3, &[(100, 1000, false, vec![5, 6]), (1100, 1000, false, vec![7])]);
    let other =
        log(0, 3, &[(300, 1000, false, vec![5]), (1300, 1000, false, vec![9]), (4000, 10, true, vec![1])]);
    let seconds: Vec<_> = by_second(&[one, other])
        .into_iter()
        .map(|(tag, start_ns, end_ns, counts)| {
            let values: u64 = counts.iter().map(|(_, count)| count).sum();
            (tag, (start_ns - START_NS) / MS_NS, (end_ns - START_NS) / MS_NS, values)
        })
        .collect();
    let tag = Some("uncorrected".to_owned());
    assert_eq!(seconds, [(None, 100, 1300, 3), (None, 1100, 2300, 2), (tag, 4000, 4010, 1)]);
}

#[test]
fn merged_errors_are_complete_if_all_logs_are_complete() {
    let without_counts = log(0, 3, &[(0, 1000, false, vec![5])]);
    let with = |counts: &str| with_errors_comment(without_counts.clone(), counts);
    let (none, some, more) = (with("none"), with("reset=3;timeout=1"), with("refused=2;reset=4"));
    let partial = with("reset=3;unknown");
    let cases: [(&[&NamedLog], &str, bool, Option<&str>); 7] = [
        // The error counts of the merged log are unknown, as in the input.
        (&[&without_counts], "", false, None),
        (&[&none, &none], "", true, Some("none")),
        (&[&some, &none, &more], "refused=2;reset=7;timeout=1", true, Some("refused=2;reset=7;timeout=1")),
        // Only one log has error counts, so the merged counts are incomplete.
        (&[&without_counts, &none], "", false, None),
        (&[&without_counts, &some], "reset=3;timeout=1", false, Some("reset=3;timeout=1;unknown")),
        (&[&none, &partial], "reset=3", false, Some("reset=3;unknown")),
        (&[&partial, &more], "refused=2;reset=7", false, Some("refused=2;reset=7;unknown")),
    ];
    for (logs, known, is_complete, comment) in cases {
        let logs: Vec<NamedLog> = logs.iter().map(|&log| log.clone()).collect();
        assert_eq!(reported_errors(&logs), (known.to_owned(), is_complete));
        let text = String::from_utf8(write_log(&logs, Vec::new()).unwrap()).unwrap();
        let comments: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("#[AnelloErrors: ")).collect();
        assert_eq!(comments, comment.map(|counts| format!("{counts}]")).as_slice(), "{text}");
        assert_eq!(reported_errors(&[merged(&logs)]), (known.to_owned(), is_complete));
    }
    let maximum = with("reset=18446744073709551615");
    let error = errors(&[maximum, some]).unwrap_err().to_string();
    assert!(error.contains("total number of errors exceeds"), "{error}");
}

#[test]
fn merged_start_time_without_intervals_is_earliest_header() {
    let began = |name: usize| with_errors_comment(log(name, 3, &[]), "refused=1");
    let sum = merged(&[began(2), began(1)]);
    assert_eq!((sum.log.records.len(), sum.log.began_ns), (0, Some(START_NS + 37 * MS_NS)));
    // If there are intervals, the start time is that of the first interval.
    let sum = merged(&[began(1), log(2, 3, &[(500, 10, false, vec![5])])]);
    assert_eq!(sum.log.began_ns, Some(START_NS + 574 * MS_NS));
}

#[test]
fn error_names_log_and_line() {
    let good = log(0, 3, &[(0, 1000, false, vec![5])]);
    let bad = NamedLog {
        name: "bad.hlog".to_owned(),
        log: HdrLog::parse(b"#\n1.0,1.0,1.0,AAAA\n").unwrap(),
        report: None,
    };
    let logs = [good, bad];
    assert!(totals(&logs).unwrap_err().to_string().starts_with("bad.hlog, line 2: "));
    let error = seconds(&logs, |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().starts_with("bad.hlog, line 2: "), "{error}");
}

#[test]
fn total_overflow_returns_error() {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 1000, 3).unwrap();
    histogram.record_n(5, u64::MAX / 2 - 1).unwrap();
    let mut writer = HdrLogWriter::new(Vec::new(), START_NS, &[]).unwrap();
    (0..3).for_each(|_| writer.write_histogram(None, 0, 1, &histogram).unwrap());
    let error = totals(&[parsed(0, &writer.into_inner())]).unwrap_err().to_string();
    assert!(error.contains("total number of values exceeds"), "{error}");
}
