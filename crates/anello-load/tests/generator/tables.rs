//! CSV table and NDJSON stream of intervals, compared byte by byte.

use anello_load::formats::csv::{CsvWriter, write_row};
use anello_load::formats::ndjson::{Line, NdjsonWriter, SCHEMA, SCHEMA_VERSION};
use anello_load::{Errors, Interval, ProcessUsage};

/// Returns an open-loop interval with every field set, and an empty closed-loop interval.
fn intervals() -> [Interval; 2] {
    let mut full = Interval::empty(0, true);
    full.elapsed_ns = 1_000_000_000;
    for number in 1..=1000u64 {
        full.latency.saturating_record(number * 1000);
        full.uncorrected.as_mut().unwrap().saturating_record(number * 500);
    }
    full.requests = 1000;
    full.counts.offered = Some(1010);
    (full.counts.late, full.counts.unsent) = (20, 10);
    (full.counts.sent_bytes, full.counts.received_bytes) = (128_000, 256_000);
    full.counts.errors = errors();
    full.open_connections = 49;
    full.server = Some(ProcessUsage {
        cpu_ns: 7_500_000,
        voluntary_switches: 800,
        involuntary_switches: 3,
        resident_bytes: 4_096_000,
    });
    full.load_cpu_ns = 12_345_678;
    full.stolen_ns = Some(20_000_000);
    let empty = Interval { elapsed_ns: 500_000_000, ..Interval::empty(1_000_000_000, false) };
    [full, empty]
}

fn errors() -> Errors {
    serde_json::from_str(
        r#"[{"kind":"reset","count":3,"example":"reset, \"by\" peer"},{"kind":"timeout","count":1,"example":"late"}]"#,
    )
    .unwrap()
}

fn total() -> Interval {
    let [mut total, last] = intervals();
    total.append(&last);
    total
}

#[test]
fn csv_matches_golden_file() {
    let mut writer = CsvWriter::new(Vec::new()).unwrap();
    intervals().iter().for_each(|interval| writer.write(interval).unwrap());
    let text = String::from_utf8(writer.finish(&total()).unwrap()).unwrap();
    assert_eq!(text, include_str!("data/intervals.csv"), "{text}");
    let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [columns[0]; 4]);
}

#[test]
fn ndjson_matches_golden_file_and_round_trips() {
    let mut writer = NdjsonWriter::new(Vec::new(), 1_700_000_000_250_000_000).unwrap();
    intervals().iter().for_each(|interval| writer.write(interval).unwrap());
    let text = String::from_utf8(writer.finish(&total()).unwrap()).unwrap();
    assert_eq!(text, include_str!("data/intervals.ndjson"), "{text}");
    let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [Line::Begin(begin), Line::Interval(full), Line::Interval(empty), Line::Total(total_read)] =
        &lines[..]
    else {
        panic!("{lines:?}")
    };
    assert_eq!((begin.schema.as_str(), begin.schema_version), (SCHEMA, SCHEMA_VERSION));
    let [first, second] = intervals();
    assert_eq!((full, empty, total_read), (&(&first).into(), &(&second).into(), &(&total()).into()));
}

#[test]
fn ndjson_with_names_of_previous_version_is_read() {
    let line = r#"{"type":"begin","schema":"anello-load-intervals","schema_version":1,"began_unix_ns":7}"#;
    let Line::Begin(begin) = serde_json::from_str(line).unwrap() else { panic!("not a begin line") };
    assert_eq!((begin.schema_version, begin.started_unix_ns), (1, 7));
}

/// Output that records its length at every flush.
#[derive(Default)]
struct FlushRecorder {
    text: Vec<u8>,
    flushed: Vec<usize>,
}

impl std::io::Write for &mut FlushRecorder {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.flushed.push(self.text.len());
        Ok(())
    }
}

#[test]
fn every_line_is_flushed_immediately() {
    let [interval, _] = intervals();
    let line_ends = |output: &FlushRecorder| -> Vec<usize> {
        let breaks = output.text.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
        breaks.map(|(index, _)| index + 1).collect()
    };
    let mut output = FlushRecorder::default();
    NdjsonWriter::new(&mut output, 0).unwrap().write(&interval).unwrap();
    assert_eq!(output.flushed, line_ends(&output));
    let mut output = FlushRecorder::default();
    CsvWriter::new(&mut output).unwrap().write(&interval).unwrap();
    assert_eq!(output.flushed, line_ends(&output));
}

#[test]
fn quotes_cells_with_special_characters() {
    let mut row = Vec::new();
    write_row(&mut row, ["plain", "a,b", "say \"so\"", "two\nlines", ""].into_iter()).unwrap();
    assert_eq!(String::from_utf8(row).unwrap(), "plain,\"a,b\",\"say \"\"so\"\"\",\"two\nlines\",\n");
}
