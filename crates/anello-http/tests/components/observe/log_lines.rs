//! Tests for access log lines: each line is written to a log and read back.

use std::fs;
use std::time::Duration;

use anello_http::observe::access_log::{
    AccessLog, AccessLogOptions, FormattedPeer, LogEntry, LogFormat, LogTarget, RequestLine,
};
use proptest::prelude::*;
use serde_json::Value;

const TIME_NS: u64 = 1_795_364_855_042_000_000;

/// Longer than any field in these tests.
const UNLIMITED: usize = 10_000;

/// Returns the text of a log that has these entries.
fn log_text(format: LogFormat, max_field_bytes: usize, entries: &[LogEntry<'_>]) -> String {
    worker_log_text(3, format, max_field_bytes, entries)
}

fn worker_log_text(
    worker: usize,
    format: LogFormat,
    max_field_bytes: usize,
    entries: &[LogEntry<'_>],
) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let mut options = AccessLogOptions::default();
    (options.format, options.max_field_bytes) = (format, max_field_bytes);
    (options.target, options.buffer_bytes) = (LogTarget::File(path.clone()), 384 + 4 * max_field_bytes);
    options.close_timeout = Duration::from_secs(60);
    let log = AccessLog::start(options).unwrap();
    let mut worker = log.worker(worker);
    entries.iter().for_each(|entry| worker.record(entry));
    drop(worker);
    log.close().unwrap();
    fs::read_to_string(&path).unwrap()
}

fn line(format: LogFormat, max_field_bytes: usize, entry: &LogEntry<'_>) -> String {
    log_text(format, max_field_bytes, std::slice::from_ref(entry))
}

fn entry<'a>(peer: &'a FormattedPeer, target: &'a [u8], user_agent: Option<&'a [u8]>) -> LogEntry<'a> {
    LogEntry {
        unix_time_ns: TIME_NS,
        duration_us: 87,
        peer,
        request: Some(RequestLine { method: "GET", target, version: "HTTP/1.1" }),
        status: 200,
        body_bytes: 13,
        referer: None,
        user_agent,
    }
}

fn peer() -> FormattedPeer {
    FormattedPeer::new("203.0.113.9:4711".parse().unwrap())
}

#[test]
fn peer_is_formatted_with_and_without_port() {
    let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    let cases = [
        ("203.0.113.9:4711", "203.0.113.9:4711", "203.0.113.9"),
        ("[2001:db8::9]:1", "[2001:db8::9]:1", "2001:db8::9"),
        ("[::ffff:203.0.113.9]:80", "203.0.113.9:80", "203.0.113.9"),
        ("[fe80::1%7]:80", "[fe80::1]:80", "fe80::1"),
        (longest, longest, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ];
    for (address, with_port, ip) in cases {
        let text = FormattedPeer::new(address.parse().unwrap());
        assert_eq!((text.as_bytes(), text.ip()), (with_port.as_bytes(), ip.as_bytes()));
    }
    assert_eq!(
        (FormattedPeer::unix().as_bytes(), FormattedPeer::unix().ip()),
        (&b"unix:"[..], &b"unix:"[..])
    );
    assert!(format!("{:?}", peer()).contains("203.0.113.9:4711"));
}

#[test]
fn lines_match_documented_format() {
    let peer = peer();
    let mut entry = entry(&peer, b"/a?b=c", Some(b"curl/8"));
    let common = "203.0.113.9 - - [22/Nov/2026:16:27:35 +0000] \"GET /a?b=c HTTP/1.1\" 200 13";
    assert_eq!(line(LogFormat::Common, 100, &entry), format!("{common}\n"));
    assert_eq!(line(LogFormat::Combined, 100, &entry), format!("{common} \"-\" \"curl/8\"\n"));
    assert_eq!(
        line(LogFormat::Json, 100, &entry),
        "{\"time\":\"2026-11-22T16:27:35.042Z\",\"peer\":\"203.0.113.9:4711\",\"method\":\"GET\",\"target\":\"/a?b=c\",\
         \"version\":\"HTTP/1.1\",\"status\":200,\"bytes\":13,\"duration_us\":87,\"referer\":null,\
         \"user_agent\":\"curl/8\",\"worker\":3}\n"
    );
    entry.request = None;
    entry.referer = Some(b"http://x/");
    let combined = line(LogFormat::Combined, 100, &entry);
    assert!(combined.ends_with("] \"-\" 200 13 \"http://x/\" \"curl/8\"\n"), "{combined}");
    let json: Value = serde_json::from_str(&line(LogFormat::Json, 100, &entry)).unwrap();
    assert_eq!(
        (&json["method"], &json["target"], &json["version"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
}

#[test]
fn format_name_round_trips() {
    for format in [LogFormat::Common, LogFormat::Combined, LogFormat::Json] {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    assert!("apache".parse::<LogFormat>().unwrap_err().contains("expected common"));
}

proptest! {
    #[test]
    fn json_line_round_trips(
        method: String, target: Vec<u8>, referer: Option<String>,
        user_agent: Option<Vec<u8>>, status: u16, body_bytes: u64, duration_us: u64,
    ) {
        let peer = peer();
        let entry = LogEntry {
            unix_time_ns: TIME_NS, duration_us, peer: &peer, status, body_bytes,
            request: Some(RequestLine { method: &method, target: &target, version: "HTTP/1.0" }),
            referer: referer.as_deref().map(str::as_bytes), user_agent: user_agent.as_deref(),
        };
        let line = line(LogFormat::Json, UNLIMITED, &entry);
        prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
        let json: Value = serde_json::from_str(&line).unwrap();
        let lossy = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
        prop_assert_eq!(&json["method"], &Value::from(method));
        prop_assert_eq!(&json["target"], &lossy(&target));
        prop_assert_eq!(&json["version"], &Value::from("HTTP/1.0"));
        prop_assert_eq!(&json["referer"], &Value::from(referer));
        prop_assert_eq!(&json["user_agent"], &user_agent.as_deref().map_or(Value::Null, lossy));
        prop_assert_eq!(&json["status"], &Value::from(status));
        prop_assert_eq!(&json["bytes"], &Value::from(body_bytes));
        prop_assert_eq!(&json["duration_us"], &Value::from(duration_us));
        prop_assert_eq!(json.as_object().unwrap().len(), 11);
    }

    #[test]
    fn combined_line_has_one_line_and_three_quoted_fields(target: Vec<u8>, referer: Vec<u8>, user_agent: Vec<u8>) {
        let peer = peer();
        let mut entry = entry(&peer, &target, Some(&user_agent));
        entry.referer = Some(&referer);
        let line = line(LogFormat::Combined, UNLIMITED, &entry);
        prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
        prop_assert!(line.trim_end().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        // The line has three quoted fields, none of which contains a quote.
        let parts: Vec<&str> = line.split('"').collect();
        prop_assert_eq!(parts.len(), 7);
        prop_assert_eq!((parts[2], parts[4], parts[6]), (" 200 13 ", " ", "\n"));
    }
}

/// Returns a value as it is escaped in the combined format.
fn hex_escaped(value: &[u8], max_bytes: usize) -> String {
    let line = line(LogFormat::Combined, max_bytes, &entry(&peer(), b"/", Some(value)));
    let parts: Vec<&str> = line.split('"').collect();
    assert_eq!((parts.len(), parts[6]), (7, "\n"), "{line}");
    parts[5].to_owned()
}

/// Returns a value as it is escaped in a JSON string.
fn json(value: &[u8], max_bytes: usize) -> String {
    let line = line(LogFormat::Json, max_bytes, &entry(&peer(), b"/", Some(value)));
    let (_, value) = line.split_once("\"user_agent\":\"").unwrap();
    value.strip_suffix("\",\"worker\":3}\n").unwrap().to_owned()
}

/// Reverses the escaping of the combined format.
fn hex_unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'\\' {
            assert_eq!(tail[0], b'x');
            bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[1..3]).unwrap(), 16).unwrap());
            rest = &tail[3..];
        } else {
            bytes.push(first);
        }
    }
    bytes
}

#[test]
fn plain_text_is_unchanged() {
    let plain = b" !#$%&'()*+,-./09:;<=>?@AZ[]^_`az{|}~";
    assert_eq!(hex_escaped(plain, 100).as_bytes(), plain);
    assert_eq!(json(plain, 100).as_bytes(), plain);
}

#[test]
fn special_characters_are_escaped() {
    assert_eq!(
        hex_escaped(b"a\"b\\c\r\n\x00\x1b\x7f\xc3\xa4", 100),
        r"a\x22b\x5cc\x0d\x0a\x00\x1b\x7f\xc3\xa4"
    );
    assert_eq!(
        json("a\"b\\c\r\n\0\u{1b}\u{7f}ä\u{2028}🦀".as_bytes(), 100),
        r#"a\"b\\c\u000d\u000a\u0000\u001b\u007f\u00e4\u2028\ud83e\udd80"#
    );
    assert_eq!(json(b"a\xff\xc3z", 100), r"a\ufffd\ufffdz");
}

#[test]
fn truncation_never_splits_an_escape() {
    assert_eq!(hex_escaped(b"abcdef", 6), "abcdef");
    assert_eq!(hex_escaped(b"abcdefg", 6), "abcdef...");
    assert_eq!(hex_escaped(b"abc\ndef", 6), "abc...");
    assert_eq!(json(b"ab\ncdef", 8), r"ab\u000a...");
    assert_eq!(json("🦀".as_bytes(), 11), "...");
    assert_eq!(json("🦀".as_bytes(), 12), r"\ud83e\udd80");
    assert_eq!(hex_escaped(b"", 0), "");
}

proptest! {
    #[test]
    fn hex_escapes_round_trip(value: Vec<u8>) {
        let text = hex_escaped(&value, UNLIMITED);
        prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"'), "{text:?}");
        prop_assert_eq!(hex_unescaped(&text), value);
    }

    #[test]
    fn json_strings_round_trip(value: Vec<u8>, text: String) {
        for value in [&value[..], text.as_bytes()] {
            let quoted = format!("\"{}\"", json(value, UNLIMITED));
            prop_assert!(quoted.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{quoted:?}");
            let parsed: String = serde_json::from_str(&quoted).unwrap();
            prop_assert_eq!(&parsed, &String::from_utf8_lossy(value));
        }
    }

    #[test]
    fn field_length_respects_limit(value: Vec<u8>, max_bytes in 0usize..100) {
        let max_total_bytes = max_bytes + "...".len();
        for text in [hex_escaped(&value, max_bytes), json(&value, max_bytes)] {
            prop_assert!(text.len() <= max_total_bytes, "{text:?}");
            prop_assert!(text.len() <= value.len() * "\\u0000".len() || text.ends_with("..."), "{text:?}");
        }
        let quoted = format!("\"{}\"", json(&value, max_bytes));
        prop_assert!(serde_json::from_str::<String>(&quoted).is_ok(), "{quoted}");
    }
}

/// Formats the times in both log formats, JSON and common.
fn times(times_ns: &[u64]) -> Vec<(String, String)> {
    let peer = peer();
    let entries: Vec<_> =
        times_ns.iter().map(|&unix_time_ns| LogEntry { unix_time_ns, ..entry(&peer, b"/", None) }).collect();
    let [json, common] = [LogFormat::Json, LogFormat::Common].map(|format| log_text(format, 100, &entries));
    let lines = json.lines().zip(common.lines());
    let times = lines
        .map(|(json, common)| (json.split('"').nth(3).unwrap(), common.split(['[', ']']).nth(1).unwrap()));
    times.map(|(json, common)| (json.to_owned(), common.to_owned())).collect()
}

#[test]
fn time_is_formatted_in_both_formats() {
    // Expected values from `date -u -d @SECONDS`.
    let cases = [
        (0, "1970-01-01T00:00:00.000Z", "01/Jan/1970:00:00:00 +0000"),
        (951_782_400_999_999_999, "2000-02-29T00:00:00.999Z", "29/Feb/2000:00:00:00 +0000"),
        (1_795_364_855_042_000_000, "2026-11-22T16:27:35.042Z", "22/Nov/2026:16:27:35 +0000"),
        (1_798_761_599_007_999_999, "2026-12-31T23:59:59.007Z", "31/Dec/2026:23:59:59 +0000"),
        (u64::MAX, "2554-07-21T23:34:33.709Z", "21/Jul/2554:23:34:33 +0000"),
    ];
    // The clock can be set back, so the times are also formatted in reverse order.
    let there_and_back: Vec<_> = cases.iter().chain(cases.iter().rev()).collect();
    let formatted = times(&there_and_back.iter().map(|case| case.0).collect::<Vec<_>>());
    assert_eq!(formatted.len(), there_and_back.len());
    for (formatted, (_, rfc3339, common)) in formatted.iter().zip(there_and_back) {
        assert_eq!(formatted, &((*rfc3339).to_owned(), (*common).to_owned()));
    }
}

#[test]
fn all_months_are_formatted() {
    // The middle of each month of 2027, which has 365 days.
    let second = |month: u64| 1_798_761_600 + month * 365 * 86_400 / 12 + 15 * 86_400;
    let formatted = times(&(0..12).map(|month| second(month) * 1_000_000_000).collect::<Vec<_>>());
    let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    assert_eq!(formatted.len(), names.len());
    for (month, (rfc3339, common)) in formatted.iter().enumerate() {
        assert_eq!((&rfc3339[5..7], &common[3..6]), (&*format!("{:02}", month + 1), names[month]));
    }
}

#[test]
fn line_length_is_bounded_for_any_input() {
    let peer = FormattedPeer::new("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap());
    let hostile = [1u8; 10_000];
    let method = std::str::from_utf8(&hostile).unwrap();
    let entry = LogEntry {
        unix_time_ns: u64::MAX,
        duration_us: u64::MAX,
        peer: &peer,
        request: Some(RequestLine { method, target: &hostile, version: "HTTP/1.1" }),
        status: u16::MAX,
        body_bytes: u64::MAX,
        referer: Some(&hostile),
        user_agent: Some(&hostile),
    };
    for format in [LogFormat::Common, LogFormat::Combined, LogFormat::Json] {
        // Sizes that are multiples of the escape length let escapes fill a field completely.
        for max_field_bytes in [0, 1, 6, 600, 4096, 100_000] {
            // A debug assertion also checks the bound for this entry.
            let text = worker_log_text(usize::MAX, format, max_field_bytes, &[entry]);
            assert!((1..=384 + 4 * max_field_bytes).contains(&text.len()), "{} bytes", text.len());
            assert_eq!(text.lines().count(), 1);
        }
    }
}
