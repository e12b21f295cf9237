//! Interval log: written logs can be read back, logs written by the Java library can be read, and damaged logs are
//! rejected.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use anello::RuntimeBuilder;
use anello_load::formats::hdr_log::{HdrLog, HdrLogWriter, LogRecord, ReportedErrors, UNCORRECTED};
use anello_load::{
    Arrivals, ErrorKind, Errors, Event, Interval, LoadConfig, Mode, Report, latency_histogram, run,
};
use anello_test::tcp_server;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogHistogram, IntervalLogIterator, LogEntry};
use proptest::prelude::*;

const JAVA_LOG: &[u8] = include_bytes!("data/java.hlog");
const START_NS: u64 = 1_700_000_000_250_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Returns the summary that the Java program lists: the number of values, the maximum, and the sum of all values.
fn summary(histogram: &Histogram<u64>) -> (u64, u64, u64) {
    let sum = histogram.iter_recorded().fold(0u64, |sum, value| {
        let product =
            value.count_at_value().wrapping_mul(histogram.highest_equivalent(value.value_iterated_to()));
        sum.wrapping_add(product)
    });
    (histogram.len(), histogram.max(), sum)
}

fn interval(index: u64, values: impl IntoIterator<Item = u64>) -> Interval {
    let mut interval = Interval::empty(index * SECOND_NS, true);
    interval.elapsed_ns = SECOND_NS;
    for value_ns in values {
        interval.latency.saturating_record(value_ns);
        interval.uncorrected.as_mut().unwrap().saturating_record(value_ns / 3);
    }
    interval
}

fn encode_log(intervals: &[Interval]) -> Vec<u8> {
    let mut writer =
        HdrLogWriter::new(Vec::new(), START_NS, &["a test", "[StartTime: no header]\nmore"]).unwrap();
    intervals.iter().for_each(|interval| writer.write(interval).unwrap());
    writer.into_inner()
}

#[test]
fn java_log_yields_recorded_counts() {
    let log = HdrLog::parse(JAVA_LOG).unwrap();
    assert_eq!(log.records.len(), 4);
    for (index, record) in log.records.iter().enumerate() {
        assert_eq!(record.start_ns, START_NS + index as u64 * SECOND_NS);
        assert_eq!(record.length_ns, SECOND_NS);
        assert_eq!(record.tag.as_deref(), (index == 2).then_some(UNCORRECTED));
        // The values that the Java program recorded.
        let (low, digits) = [(1, 3), (1000, 2), (1, 5), (1, 3)][index];
        let mut expected = Histogram::<u64>::new_with_bounds(low, 60 * SECOND_NS, digits).unwrap();
        for number in (0..300u64).take_while(|_| index < 3) {
            let value = 1000 + number * number * number * (index as u64 + 37);
            expected.record_n(value, 1 + number % 5).unwrap();
        }
        let histogram = record.histogram().unwrap();
        let counts = |histogram: &Histogram<u64>| -> Vec<(u64, u64)> {
            let values = histogram.iter_recorded();
            values.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
        };
        assert_eq!(counts(&histogram), counts(&expected));
        // The summaries listed by the Java program.
        let listed = [
            (900, 989_331_455, 225_343_103_330),
            (900, 1_019_215_871, 231_960_781_948),
            (900, 1_042_509_823, 237_445_086_792),
            (0, 0, 0),
        ];
        assert_eq!(summary(&histogram), listed[index]);
    }
}

#[test]
fn written_log_is_read_back() {
    let intervals: Vec<_> =
        (0..5).map(|index| interval(index, (0..index * 100).map(|value| value * value * 777 + 5))).collect();
    let text = encode_log(&intervals);
    let header = "#a test\n# [StartTime: no header]\n#more\n#latencies in nanoseconds, maxima in milliseconds\n\
                  #[Histogram log format version 1.3]\n\
                  #[StartTime: 1700000000.250 (seconds since epoch)]\n\
                  #[BaseTime: 1700000000.250 (seconds since epoch)]\n\
                  \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n\
                  0.000,1.000,0.000,HISTFAAA";
    assert!(text.starts_with(header.as_bytes()), "{}", String::from_utf8_lossy(&text));
    let log = HdrLog::parse(&text).unwrap();
    assert_eq!(
        (log.records.len(), log.start_ns(), log.end_ns()),
        (10, Some(START_NS), Some(START_NS + 5 * SECOND_NS))
    );
    for (interval, records) in intervals.iter().zip(log.records.chunks(2)) {
        assert_eq!((records[0].tag.as_deref(), records[1].tag.as_deref()), (None, Some(UNCORRECTED)));
        assert!(records.iter().all(|record| record.start_ns == START_NS + interval.start_ns));
        assert_eq!(records[0].histogram().unwrap(), interval.latency);
        assert_eq!(records[1].histogram().unwrap(), *interval.uncorrected.as_ref().unwrap());
    }
}

/// Runs a load against a server that corrupts some replies. Returns the report and the log as `anello load` writes it.
fn logged_run(driver: &RuntimeBuilder) -> (Report, Vec<u8>) {
    let address = tcp_server(|mut stream| {
        stream.set_nodelay(true)?;
        for number in 1u64.. {
            let mut message = [0; 64];
            stream.read_exact(&mut message)?;
            message[7] ^= u8::from(number.is_multiple_of(10));
            stream.write_all(&message)?;
        }
        Ok(())
    });
    let load = LoadConfig {
        connections: 4,
        verify: true,
        mode: Mode::Open { per_second: 500, arrivals: Arrivals::Poisson, seed: 7 },
        duration: Duration::from_millis(400),
        drain_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(30),
        interval: Duration::from_millis(100),
        ..LoadConfig::echo(address, 64)
    };
    let mut writer = None;
    let outcome = run(&load, driver, |event| {
        match event {
            Event::Began { unix_ns, .. } => {
                writer = Some(HdrLogWriter::new(Vec::new(), unix_ns, &["a run"]).unwrap());
            }
            Event::Interval(interval) => writer.as_mut().unwrap().write(interval).unwrap(),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let (report, mut writer) = (outcome.unwrap().report, writer.unwrap());
    writer.write_errors(&report.errors).unwrap();
    (report, writer.into_inner())
}

/// Reads a log with the independent reader in the hdrhistogram crate. Returns the start and base times, and the
/// intervals with the given tag.
fn read_with_hdrhistogram<'a>(
    text: &'a [u8],
    tag: Option<&str>,
) -> (Vec<Duration>, Vec<IntervalLogHistogram<'a>>) {
    let (mut began, mut intervals) = (Vec::new(), Vec::new());
    for entry in IntervalLogIterator::new(text) {
        match entry.unwrap() {
            LogEntry::StartTime(time) | LogEntry::BaseTime(time) => began.push(time),
            LogEntry::Interval(interval) => intervals.push(interval),
        }
    }
    intervals.retain(|interval| interval.tag().map(|tag| tag.as_str()) == tag);
    (began, intervals)
}

#[test]
fn hdrhistogram_reader_agrees_with_report() {
    for driver in crate::common::drivers() {
        let (report, text) = logged_run(&driver);
        let near = |time: Duration, ns: u64| time.as_nanos().abs_diff(ns.into()) <= 500_000;
        for (tag, latency) in [(None, report.latency), (Some(UNCORRECTED), report.uncorrected_latency)] {
            let (began, intervals) = read_with_hdrhistogram(&text, tag);
            assert!(
                began.len() == 2 && began.iter().all(|&time| near(time, report.started_unix_ns)),
                "{began:?}"
            );
            assert_eq!(intervals.len(), report.intervals.len());
            let mut sum = latency_histogram();
            for (interval, record) in intervals.iter().zip(&report.intervals) {
                assert!(near(interval.start_timestamp(), record.start_ns), "{interval:?}");
                let end = interval.start_timestamp() + interval.duration();
                assert!(near(end, record.start_ns + record.elapsed_ns), "{interval:?}");
                let bytes = BASE64.decode(interval.encoded_histogram()).unwrap();
                let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                assert_eq!(histogram.len(), record.requests);
                assert!((interval.max() - histogram.max() as f64 / 1e6).abs() < 0.001, "{interval:?}");
                sum.add(histogram).unwrap();
            }
            assert!(report.requests > 0 && sum.len() == report.requests, "{report:?}");
            let latency = latency.unwrap();
            let quantiles = [0.5, 0.9, 0.99, 0.999].map(|quantile| sum.value_at_quantile(quantile));
            assert_eq!(quantiles, [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns]);
            assert_eq!((sum.min(), sum.max()), (latency.min_ns, latency.max_ns));
            assert!((sum.mean() / latency.mean_ns - 1.0).abs() < 1e-9, "{} of {latency:?}", sum.mean());
        }
        // The hdrhistogram reader skips the comment with the error counts.
        let log = HdrLog::parse(&text).unwrap();
        let wrong = report.errors.count(ErrorKind::WrongBytes);
        assert!(wrong > 0 && wrong == report.errors.total(), "{report:?}");
        assert_eq!(reported_errors(&log.errors), (format!("wrong_bytes={wrong}"), true));
    }
}

/// Returns the reported errors in comparable form: the known counts, and whether they are complete.
fn reported_errors(errors: &ReportedErrors) -> (String, bool) {
    (errors.known.by_kind(), errors.is_complete)
}

#[test]
fn error_counts_comment_round_trips() {
    let errors: Errors = serde_json::from_str(
        r#"[{"kind":"refused","count":2,"example":"no listener"},{"kind":"reset","count":3,"example":"gone"}]"#,
    )
    .unwrap();
    let mut writer = HdrLogWriter::new(Vec::new(), START_NS, &["[AnelloErrors: reset=9]"]).unwrap();
    let without_counts = HdrLog::parse(&writer.into_inner()).unwrap();
    assert!(without_counts.errors.is_unknown() && HdrLog::parse(JAVA_LOG).unwrap().errors.is_unknown());
    assert!(HdrLog::parse(b"").unwrap().errors.is_unknown());
    writer = HdrLogWriter::new(Vec::new(), START_NS, &[]).unwrap();
    writer.write(&interval(0, [5])).unwrap();
    writer.write_errors(&errors).unwrap();
    let one = writer.into_inner();
    assert!(one.ends_with(b"\n#[AnelloErrors: refused=2;reset=3]\n"), "{}", String::from_utf8_lossy(&one));
    writer = HdrLogWriter::new(Vec::new(), START_NS, &[]).unwrap();
    writer.write_errors(&Errors::default()).unwrap();
    let none = writer.into_inner();
    assert!(none.ends_with(b"\n#[AnelloErrors: none]\n"));
    let read = |text: &[u8]| reported_errors(&HdrLog::parse(text).unwrap().errors);
    assert_eq!(read(&one), ("refused=2;reset=3".to_owned(), true));
    assert_eq!(read(&none), (String::new(), true));
    // Several runs in one log, with CRLF line endings.
    let several = String::from_utf8([one.clone(), none, one].concat()).unwrap().replace('\n', "\r\n");
    assert_eq!(read(several.as_bytes()), ("refused=4;reset=6".to_owned(), true));
    // A kind added by a later version.
    assert_eq!(read(b"#[AnelloErrors: late_hello=3;reset=1]\n"), ("reset=1;other=3".to_owned(), true));
}

/// Parses error counts as written in a log.
fn parse_counts(counts: &str) -> Result<Errors, String> {
    let log = HdrLog::parse(format!("#[AnelloErrors: {counts}]").as_bytes());
    log.map(|log| log.errors.known).map_err(|error| error.problem)
}

#[test]
fn counts_of_all_kinds_round_trip() {
    assert_eq!(Errors::default().by_kind(), "");
    let kinds = (1..).zip(ErrorKind::ALL).map(|(count, kind)| format!("{}={count}", kind.name()));
    let counts = kinds.collect::<Vec<_>>().join(";");
    assert!(counts.starts_with("refused=1;connect_timeout=2;"), "{counts}");
    assert_eq!(parse_counts(&counts).unwrap().by_kind(), counts);
    // A kind added by a later version.
    assert_eq!(parse_counts("late_hello_2=3;reset=1;other=1").unwrap().by_kind(), "reset=1;other=4");
    // Names in logs of earlier versions.
    let earlier = parse_counts("short_reply=2;long_reply=1").unwrap();
    assert_eq!(earlier.by_kind(), "truncated_reply=2;excess_data=1");
    let malformed =
        "| Reset=3|re set=3|=3|reset=3;|reset|reset=|reset=0|reset=-1|reset=+3|reset= 3|reset=3=4";
    for counts in malformed.split('|') {
        let error = parse_counts(counts).unwrap_err();
        assert!(error.contains("expected kinds and counts"), "{counts}: {error}");
    }
}

#[test]
fn overflowing_count_is_rejected() {
    let maximum = format!("reset=3;timeout={};reset=1", u64::MAX - 4);
    let largest = parse_counts(&maximum).unwrap();
    assert_eq!((largest.count(ErrorKind::Reset), largest.total()), (4, u64::MAX));
    for counts in ["reset=99999999999999999999".to_owned(), format!("reset=1;timeout={}", u64::MAX)] {
        assert!(parse_counts(&counts).unwrap_err().contains("the total count exceeds 2^64 - 1"), "{counts}");
    }
    let followed_by = |counts: &str| {
        HdrLog::parse(format!("#[AnelloErrors: {maximum}]\n#[AnelloErrors: {counts}]").as_bytes())
    };
    assert!(followed_by("refused=1").is_err());
    assert_eq!(followed_by("none").unwrap().errors.known, largest);
}

#[test]
fn errors_are_incomplete_if_one_run_has_no_counts() {
    let killed = encode_log(&[interval(0, [5])]);
    // A run that was killed during its first interval.
    let killed_early = encode_log(&[]);
    let headless: &[u8] = b"1.0,1.0,1.0,A\n";
    let comment = |counts: &str| format!("#[AnelloErrors: {counts}]\n").into_bytes();
    let with = |counts: &str| [&killed[..], &comment(counts)].concat();
    let (none, some, partial) = (with("none"), with("reset=3"), with("reset=2;unknown"));
    let (none_comment, unknown_comment) = (comment("none"), comment("unknown"));
    let cases: [(&[&[u8]], &str, bool); 14] = [
        (&[&none, &none], "", true),
        (&[&none, &some], "reset=3", true),
        (&[&killed, &none], "", false),
        (&[&none, &killed], "", false),
        (&[&none, &killed, &none], "", false),
        (&[&killed_early, &none], "", false),
        (&[&none, &killed_early], "", false),
        (&[&none, headless], "", false),
        (&[headless, &none], "", false),
        (&[&none, headless, &none_comment], "", true),
        (&[&some, &killed], "reset=3", false),
        (&[&partial], "reset=2", false),
        (&[&partial, &some, &none], "reset=5", false),
        (&[&killed, &unknown_comment, &none], "", false),
    ];
    for (index, (parts, known, is_complete)) in cases.into_iter().enumerate() {
        let log = HdrLog::parse(&parts.concat()).unwrap();
        assert_eq!(reported_errors(&log.errors), (known.to_owned(), is_complete), "case {index}");
        // The reported errors can be written and read back.
        let mut writer = HdrLogWriter::new(Vec::new(), START_NS, &[]).unwrap();
        writer.write_reported_errors(&log.errors).unwrap();
        let text = writer.into_inner();
        assert_eq!(HdrLog::parse(&text).unwrap().errors, log.errors, "{}", String::from_utf8_lossy(&text));
    }
    let log = HdrLog::parse(&[&killed[..], &killed_early].concat()).unwrap();
    assert_eq!((log.began_ns, HdrLog::parse(headless).unwrap().began_ns), (Some(START_NS), None));
}

#[test]
fn rounded_intervals_stay_consecutive() {
    let latency = interval(0, [1]).latency;
    let mut writer = HdrLogWriter::new(Vec::new(), START_NS + 499_999, &[]).unwrap();
    for (start_ns, end_ns) in [(0, 999_600_000), (999_600_000, 1_999_400_000)] {
        writer.write_histogram(None, start_ns, end_ns, &latency).unwrap();
    }
    assert!(writer.write_histogram(Some("two words"), 0, 1, &latency).is_err());
    let log = HdrLog::parse(&writer.into_inner()).unwrap();
    assert_eq!(log.records[0].start_ns, START_NS);
    assert_eq!(log.records[0].end_ns(), log.records[1].start_ns);
    assert_eq!(log.records[1].end_ns(), START_NS + 1_999_000_000);
}

/// Parses a log with the given header and line, and returns its first record.
fn record(header: &str, line: &str) -> LogRecord {
    let log = HdrLog::parse(format!("{header}{line}").as_bytes()).unwrap();
    log.records.into_iter().next().unwrap()
}

#[test]
fn reads_times_of_other_tools() {
    let line = "Tag=x,5.5,1,0.1,HIST\r\n";
    assert_eq!(record("", line).start_ns, 5_500_000_000);
    // Without a base time, the times of records are relative to the start time of the log, unless they are Unix times.
    assert_eq!(
        record("#[StartTime: 1700000000.0 (seconds since epoch)]\r\n", line).start_ns,
        1_700_000_005_500_000_000
    );
    assert_eq!(record("#[StartTime: 1000.0 (seconds since epoch)]\n", line).start_ns, 5_500_000_000);
    assert_eq!(
        record("#[StartTime: 1700000001 (x)]\n", "1700000005.5,1,0.1,HIST").start_ns,
        1_700_000_005_500_000_000
    );
    // A second run in the same log.
    let log = "#[BaseTime: 100.0 (x)]\n1.0,1.0,1.0,A\n#[BaseTime: 200.0 (x)]\n1.0,1.0,1.0,A\n";
    let starts = HdrLog::parse(log.as_bytes()).unwrap().records;
    assert_eq!([starts[0].start_ns, starts[1].start_ns], [101 * SECOND_NS, 201 * SECOND_NS]);
    assert_eq!(HdrLog::parse(b"").unwrap().start_ns(), None);
}

#[test]
fn parse_error_names_line() {
    let cases = [
        ("#x\n1.0,1.0,1.0\n", "line 2: expected 4 columns (start, length, maximum, histogram), found 3"),
        ("\n\nhello\n", "line 3: expected 4 columns (start, length, maximum, histogram), found 1"),
        ("Tag=x\n", "line 1: missing columns after the tag"),
        ("Tag=,1.0,1.0,1.0,A\n", "line 1: invalid tag \"\": empty"),
        ("1.0,x,1.0,A\n", "line 1: invalid length \"x\": not a number of seconds"),
        ("-1.0,1.0,1.0,A\n", "line 1: invalid start \"-1.0\": not a number of seconds"),
        ("99999999999999999999.0,1.0,1.0,A\n", "time out of range"),
        ("1.0,1.0,many,A\n", "line 1: invalid maximum \"many\": not a number"),
        ("#[BaseTime: soon]\n", "line 1: invalid base time \"soon\": not a number of seconds"),
        (
            "#x\n#[AnelloErrors: Reset=3]\n",
            "line 2: invalid error counts \"Reset=3]\": expected kinds and counts",
        ),
        (
            "#[AnelloErrors: reset=+3]\n",
            "line 1: invalid error counts \"reset=+3]\": expected kinds and counts",
        ),
        ("#[AnelloErrors: reset=3", "line 1: invalid error counts \"reset=3\": missing ]"),
        ("#[AnelloErrors: ]\n", "line 1: invalid error counts \"]\": expected kinds and counts"),
        ("#[AnelloErrors: none;unknown]\n", ": expected kinds and counts"),
        ("#[AnelloErrors: reset=3unknown]\n", ": expected kinds and counts"),
        ("#[AnelloErrors: unknown;reset=3]\n", ": expected kinds and counts"),
        ("#[AnelloErrors: reset=99999999999999999999]\n", ": the total count exceeds 2^64 - 1"),
        (
            "#[AnelloErrors: reset=18446744073709551615]\n#[AnelloErrors: timeout=1]\n",
            "line 2: the total number of errors exceeds 2^64 - 1",
        ),
        ("1.0,1.0,\u{fffd},A", "line 1: invalid maximum"),
    ];
    for (text, expected) in cases {
        let error = HdrLog::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    assert_eq!(HdrLog::parse(b"#\xff\n1.0,1.0,1\xff,A").unwrap_err().to_string(), "line 2: invalid UTF-8");
    let long = HdrLog::parse(format!("1.0,1.0,{},A", "y".repeat(100_000)).as_bytes()).unwrap_err();
    assert!(long.to_string().len() < 100, "{long}");
}

#[test]
fn histogram_error_names_line() {
    let header = |counts: u32, digits: u32, low: u64, high: u64, ratio: f64| {
        let mut bytes = 0x1c84_9313u32.to_be_bytes().to_vec();
        for word in [counts, 0, digits] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(low.to_be_bytes().into_iter().chain(high.to_be_bytes()).chain(ratio.to_be_bytes()));
        bytes
    };
    let with = |mut header: Vec<u8>, counts: &[u8]| {
        header.extend(counts);
        header
    };
    let minus_2_to_the_63 = [0xff; 9];
    let cases = [
        (vec![1, 2], "histogram truncated"),
        (vec![1, 2, 3, 4], "not a histogram: unknown cookie 0x01020304"),
        (vec![0x1c, 0x84, 0x93, 0x08], "older than V2"),
        (vec![0x1c, 0x84, 0x93, 0x42], "older than V2"),
        (vec![0x0c, 0x72, 0x12, 0x4f], "floating-point values"),
        (vec![0x1c, 0x84, 0x93, 0x14, 0, 0, 0, 9, 1], "declares 9 compressed bytes, found 1"),
        (vec![0x1c, 0x84, 0x93, 0x14, 0, 0, 0, 1, 1], "cannot decompress"),
        (header(0, 3, 1, 1000, 1.0)[..39].to_vec(), "truncated in its header"),
        (header(u32::MAX, 3, 1, 1000, 1.0), "declares 4294967295 bytes of counts, found 0"),
        (with(header(1, 3, 1, 1000, 1.0), &[0x80]), "truncated in the middle of a count"),
        (with(header(9, 3, 1, 1000, 1.0), &minus_2_to_the_63), "too many counts"),
        (with(header(5, 3, 1, 1000, 1.0), &[0xff, 0xff, 0xff, 0x7f, 2]), "longer than it should be"),
        (header(0, 9, 1, 1000, 1.0), "parameters"),
        (header(0, 3, 0, 1000, 1.0), "parameters"),
        (header(0, 5, u64::MAX / 2, u64::MAX, 1.0), "parameters"),
        (header(0, 3, 1, 1000, 0.5), "features"),
    ];
    for (bytes, expected) in cases {
        let text = BASE64.encode(&bytes);
        let error = record("#\n", &format!("1.0,1.0,1.0,{text}\n")).histogram().unwrap_err();
        assert!(error.line == 2 && error.problem.contains(expected), "{bytes:?}: {error}");
    }
    assert!(record("", "1.0,1.0,1.0,%%\n").histogram().unwrap_err().problem.contains("base64"));
}

/// Parses a log and decodes all its histograms.
fn read_all(text: &[u8]) {
    if let Ok(log) = HdrLog::parse(text) {
        for record in &log.records {
            match record.histogram() {
                Ok(histogram) => {
                    let counts = histogram.iter_recorded().map(|value| value.count_at_value());
                    assert_eq!(counts.sum::<u64>(), histogram.len());
                }
                Err(error) => assert_eq!(error.line, record.line),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histogram_round_trips(values in prop::collection::vec(any::<u64>(), 0..200), digits in 0u8..=3) {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, u64::MAX, digits).unwrap();
        values.iter().for_each(|&value| histogram.record(value >> (value % 60)).unwrap());
        let mut writer = HdrLogWriter::new(Vec::new(), 0, &[]).unwrap();
        writer.write_histogram(Some("any"), 7, 8, &histogram).unwrap();
        let log = HdrLog::parse(&writer.into_inner()).unwrap();
        prop_assert_eq!(log.records[0].histogram().unwrap(), histogram);
    }

    #[test]
    fn damaged_log_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4), 1..20),
    ) {
        let mut text = JAVA_LOG.to_vec();
        for (position, byte, change) in changes {
            let at = position.index(text.len());
            match change {
                0 => text[at] = byte,
                1 => text[at] ^= 1 << (byte % 8),
                2 if text.len() > 1 => { text.remove(at); }
                _ => text.truncate(at.max(1)),
            }
        }
        read_all(&text);
    }

    #[test]
    fn damaged_uncompressed_histogram_never_panics(
        changes in prop::collection::vec((0usize..200, any::<u8>()), 0..8),
        counts in prop::collection::vec(any::<u8>(), 0..160),
    ) {
        let mut bytes = 0x1c84_9313u32.to_be_bytes().to_vec();
        bytes.extend((counts.len() as u32).to_be_bytes());
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 3]);
        bytes.extend(1u64.to_be_bytes().into_iter().chain(u64::MAX.to_be_bytes()).chain(1f64.to_be_bytes()));
        bytes.extend(&counts);
        let length = bytes.len();
        changes.iter().for_each(|&(at, byte)| bytes[at % length] = byte);
        let text = BASE64.encode(&bytes);
        read_all(format!("1.0,1.0,1.0,{text}\n").as_bytes());
    }

    #[test]
    fn arbitrary_bytes_never_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&text);
    }
}
