//! Tests for the rendered metrics, read back by a strict parser of the text format.

use std::fs::File;
use std::time::{SystemTime, UNIX_EPOCH};

use anello::{DriverMetrics, MetricEntry};
use anello_http::h1::Method;
use anello_http::observe::access_log::LogStats;
use anello_http::observe::metrics::{
    CloseReason, MetricsOptions, ParseErrorKind, RejectReason, ServerMetrics,
};
use proptest::prelude::*;

use super::prometheus::{Family, parse};

fn metrics(workers: usize) -> ServerMetrics {
    let mut options = MetricsOptions::default();
    options.workers = workers;
    ServerMetrics::new(options)
}

fn scrape(metrics: &ServerMetrics, log: Option<&LogStats>) -> Vec<Family> {
    let mut text = Vec::new();
    metrics.render(log, &mut text);
    parse(std::str::from_utf8(&text).unwrap()).unwrap()
}

/// Returns the value of the sample with this name and these labels.
fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels: Vec<(String, String)> =
        labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let samples = families.iter().flat_map(|family| &family.samples);
    let mut matching = samples.filter(|sample| sample.name == name && sample.labels == labels);
    matching.next().unwrap_or_else(|| panic!("no sample {name} {labels:?}")).value
}

#[test]
fn scrape_sums_counters_of_all_workers() {
    let metrics = metrics(3);
    let [one, other, departed] = [0, 1, 2].map(|index| metrics.worker(index).unwrap());
    departed.record_request(Method::Get, 200, 1024);
    drop(departed);
    one.record_request(Method::Get, 206, 1025);
    one.record_request(Method::Other, 418, 20_000_000_000);
    other.record_request(Method::Head, 304, 3000);
    other.record_untimed_request(Method::Other, 400);
    one.connection_accepted();
    other.connection_accepted();
    other.connection_accepted();
    one.connection_closed(CloseReason::Idle);
    other.connection_rejected(RejectReason::MaxConnections);
    one.add_received_bytes(100);
    other.add_received_bytes(11);
    other.add_sent_bytes(1 << 60);
    other.parse_error(ParseErrorKind::of(431));
    one.cache_hit();
    one.cache_miss();
    one.set_cache_bytes(70);
    one.set_cache_bytes(50);
    other.set_cache_bytes(7);
    let families = scrape(&metrics, None);
    let requests = |method, status| {
        value(&families, "anello_http_requests_total", &[("method", method), ("status", status)])
    };
    assert_eq!((requests("GET", "2xx"), requests("HEAD", "3xx"), requests("other", "4xx")), (2.0, 1.0, 2.0));
    let bucket = |bound| value(&families, "anello_http_request_duration_seconds_bucket", &[("le", bound)]);
    assert_eq!((bucket("0.000001024"), bucket("0.000002048"), bucket("0.000004096")), (1.0, 2.0, 3.0));
    assert_eq!((bucket("17.179869184"), bucket("+Inf")), (3.0, 4.0));
    assert_eq!(value(&families, "anello_http_request_duration_seconds_sum", &[]), 20.000005049);
    let plain = |name| value(&families, name, &[]);
    assert_eq!(plain("anello_http_connections_accepted_total"), 3.0);
    assert_eq!(plain("anello_http_connections_open"), 2.0);
    assert_eq!(value(&families, "anello_http_connections_closed_total", &[("reason", "idle")]), 1.0);
    assert_eq!(
        value(&families, "anello_http_connections_rejected_total", &[("reason", "max_connections")]),
        1.0
    );
    assert_eq!(value(&families, "anello_http_parse_errors_total", &[("kind", "fields_too_large")]), 1.0);
    assert_eq!(plain("anello_http_received_bytes_total"), 111.0);
    assert_eq!(plain("anello_http_sent_bytes_total"), (1u64 << 60) as f64);
    assert_eq!(plain("anello_http_cache_hits_total"), 1.0);
    assert_eq!(plain("anello_http_cache_misses_total"), 1.0);
    assert_eq!(plain("anello_http_cache_bytes"), 57.0);
}

/// Inclusive upper bounds of the histogram's bounded buckets, in nanoseconds.
fn bounds_ns() -> impl Iterator<Item = u64> {
    (10..35).map(|exponent| 1 << exponent)
}

/// Returns the index of the bucket that counts a duration. The last bucket is unbounded.
fn bucket(duration_ns: u64) -> usize {
    let metrics = metrics(1);
    metrics.worker(0).unwrap().record_request(Method::Get, 200, duration_ns);
    let families = scrape(&metrics, None);
    let name = "anello_http_request_duration_seconds";
    let samples = &families.iter().find(|family| family.name == name).unwrap().samples;
    samples.iter().position(|sample| sample.value == 1.0).unwrap()
}

/// Finds the first bucket whose bound is not below the duration, by linear search.
fn search_bucket(duration_ns: u64) -> usize {
    bounds_ns().position(|bound_ns| duration_ns <= bound_ns).unwrap_or(25)
}

#[test]
fn bucket_bound_is_inclusive() {
    for duration_ns in [0, 1, u64::MAX] {
        assert_eq!(bucket(duration_ns), search_bucket(duration_ns));
    }
    for (index, bound_ns) in bounds_ns().enumerate() {
        assert_eq!([bound_ns - 1, bound_ns, bound_ns + 1].map(bucket), [index, index, index + 1]);
    }
}

#[test]
fn histograms_of_all_workers_are_added() {
    let metrics = metrics(2);
    let [first, second] = [0, 1].map(|index| metrics.worker(index).unwrap());
    first.record_request(Method::Get, 200, 1);
    first.record_request(Method::Get, 200, 5000);
    second.record_request(Method::Get, 200, 5001);
    let families = scrape(&metrics, None);
    let bucket = |bound| value(&families, "anello_http_request_duration_seconds_bucket", &[("le", bound)]);
    assert_eq!(["0.000001024", "0.000004096", "0.000008192", "+Inf"].map(bucket), [1.0, 1.0, 3.0, 3.0]);
    assert_eq!(value(&families, "anello_http_request_duration_seconds_sum", &[]), 0.000010002);
}

#[test]
fn every_close_reason_has_its_label() {
    use CloseReason::*;
    let labels = [
        (Peer, "peer"),
        (Complete, "complete"),
        (Idle, "idle"),
        (HeaderTimeout, "header_timeout"),
        (BodyTimeout, "body_timeout"),
        (SendTimeout, "send_timeout"),
        (RequestTimeout, "request_timeout"),
        (ProtocolError, "protocol_error"),
        (Aborted, "aborted"),
        (HandlerError, "handler_error"),
        (Upgrade, "upgrade"),
        (Drain, "drain"),
        (Evicted, "evicted"),
    ];
    for (reason, label) in labels {
        let metrics = metrics(1);
        metrics.worker(0).unwrap().connection_closed(reason);
        let families = scrape(&metrics, None);
        assert_eq!(value(&families, "anello_http_connections_closed_total", &[("reason", label)]), 1.0);
    }
}

#[test]
fn methods_statuses_and_parse_errors_map_to_their_labels() {
    let metrics = metrics(1);
    let worker = metrics.worker(0).unwrap();
    let counted = |name: &str, labels: &[(&str, &str)]| value(&scrape(&metrics, None), name, labels);
    for (method, label) in [
        (Method::Get, "GET"),
        (Method::Head, "HEAD"),
        (Method::Post, "POST"),
        (Method::Put, "PUT"),
        (Method::Delete, "DELETE"),
        (Method::Options, "OPTIONS"),
        (Method::Patch, "PATCH"),
        (Method::Trace, "other"),
        (Method::Connect, "other"),
        (Method::Other, "other"),
    ] {
        let labels = [("method", label), ("status", "2xx")];
        let before = counted("anello_http_requests_total", &labels);
        worker.record_untimed_request(method, 200);
        assert_eq!(counted("anello_http_requests_total", &labels), before + 1.0, "{method:?}");
    }
    let statuses = [0, 99, 100, 199, 200, 304, 404, 599, 600, 65535];
    let classes = ["1xx", "1xx", "1xx", "1xx", "2xx", "3xx", "4xx", "5xx", "5xx", "5xx"];
    for (status, class) in statuses.into_iter().zip(classes) {
        let labels = [("method", "other"), ("status", class)];
        let before = counted("anello_http_requests_total", &labels);
        worker.record_untimed_request(Method::Other, status);
        assert_eq!(counted("anello_http_requests_total", &labels), before + 1.0, "{status}");
    }
    for (status, kind) in [
        (400, "malformed"),
        (413, "body_too_large"),
        (414, "target_too_long"),
        (417, "expectation"),
        (431, "fields_too_large"),
        (501, "coding"),
        (505, "version"),
        (418, "other"),
    ] {
        worker.parse_error(ParseErrorKind::of(status));
        assert_eq!(counted("anello_http_parse_errors_total", &[("kind", kind)]), 1.0, "{status}");
    }
}

#[test]
fn scrape_without_workers_is_complete() {
    let families = scrape(&metrics(0), None);
    assert_eq!(value(&families, "anello_http_request_duration_seconds_count", &[]), 0.0);
    assert_eq!(value(&families, "anello_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    assert!(value(&families, "process_start_time_seconds", &[]) > 1.7e9);
    assert!(value(&families, "process_open_fds", &[]) > 2.0);
    assert!(value(&families, "process_resident_memory_bytes", &[]) > 1e5);
    assert!(value(&families, "process_cpu_seconds_total", &[]) >= 0.0);
    assert!(!families.iter().any(|family| family.name.contains("_log_")), "no access log is configured");
}

#[test]
fn scrape_reports_memory_descriptors_and_start_time() {
    let metrics = metrics(0);
    let plain = |families: &[Family], name: &str| value(families, &format!("process_{name}"), &[]);
    let before = scrape(&metrics, None);
    let files: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
    let after = scrape(&metrics, None);
    drop(files);
    let resident_bytes = plain(&before, "resident_memory_bytes");
    assert!(resident_bytes > 100_000.0 && plain(&before, "virtual_memory_bytes") >= resident_bytes);
    assert!(plain(&after, "cpu_seconds_total") >= plain(&before, "cpu_seconds_total"));
    // Concurrent tests open and close descriptors too, but far fewer than 100.
    assert!(plain(&after, "open_fds") > 100.0);
    assert!(plain(&after, "max_fds") >= plain(&after, "open_fds"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let start = plain(&before, "start_time_seconds");
    assert!((now - start).abs() < 86_400.0, "{start} and {now}");
}

#[test]
fn scrape_includes_access_log_counts() {
    let mut log = LogStats::default();
    (log.written_lines, log.written_bytes, log.dropped_lines, log.errors, log.reopens) = (5, 400, 2, 1, 3);
    let families = scrape(&metrics(1), Some(&log));
    let counts = ["lines_written", "bytes_written", "lines_dropped", "errors", "reopens"]
        .map(|name| value(&families, &format!("anello_http_log_{name}_total"), &[]));
    assert_eq!(counts, [5.0, 400.0, 2.0, 1.0, 3.0]);
}

#[test]
fn scrape_reports_last_published_samples_per_worker() {
    let metrics = metrics(3);
    let (first, third) = (metrics.worker(0).unwrap(), metrics.worker(2).unwrap());
    let mut driver = DriverMetrics::default();
    driver.turns = 5;
    assert!(first.publish(driver.entries()));
    driver.turns = 7;
    driver.sockets = 2;
    assert!(first.publish(driver.entries()));
    let invalid = [
        MetricEntry::counter("not a name", "", 1),
        MetricEntry::gauge("twice", "", 2),
        MetricEntry::gauge("twice", "", 3),
    ];
    assert!(third.publish(driver.entries().chain(invalid)));
    let families = scrape(&metrics, None);
    let of_worker = |name, worker| value(&families, name, &[("worker", worker)]);
    assert_eq!(of_worker("anello_driver_turns_total", "0"), 7.0);
    assert_eq!(of_worker("anello_driver_sockets", "2"), 2.0);
    assert_eq!(of_worker("anello_driver_twice", "2"), 2.0);
    let turns = families.iter().find(|family| family.name == "anello_driver_turns_total").unwrap();
    assert_eq!((turns.samples.len(), turns.kind.as_str()), (2, "counter"));
}

#[test]
fn entries_cover_every_driver_metric() {
    let mut driver = DriverMetrics::default();
    let text = format!("{driver:?}");
    let fields: Vec<&str> =
        text.split([' ', ',', '{', '}']).filter_map(|word| word.strip_suffix(':')).collect();
    assert_eq!(fields, driver.entries().map(|entry| entry.name).collect::<Vec<_>>());
    driver.short_sends = 9;
    assert_eq!(driver.entries().find(|entry| entry.value == 9).unwrap().name, "short_sends");
}

#[test]
fn build_labels_are_escaped_and_unique() {
    let build_labels = vec![
        ("driver", "io_uring \"6.18\"\n\\".to_owned()),
        ("driver", "epoll".to_owned()),
        ("version", "0".to_owned()),
        ("a9_B", "x".to_owned()),
        ("", "x".to_owned()),
        ("9a", "x".to_owned()),
        ("not-a-name", "x".to_owned()),
        ("ä", "x".to_owned()),
        ("a b", "x".to_owned()),
        ("a\n", "x".to_owned()),
        ("__reserved", "x".to_owned()),
    ];
    let mut options = MetricsOptions::default();
    options.build_labels = build_labels;
    let families = scrape(&ServerMetrics::new(options), None);
    let expected =
        [("version", env!("CARGO_PKG_VERSION")), ("driver", "io_uring \"6.18\"\n\\"), ("a9_B", "x")];
    assert_eq!(value(&families, "anello_build_info", &expected), 1.0);
}

#[test]
fn worker_returns_each_index_once() {
    let metrics = metrics(2);
    let first = metrics.worker(0).unwrap();
    assert!(metrics.clone().worker(0).is_none() && metrics.worker(2).is_none());
    assert!(metrics.worker(1).is_some());
    first.add_received_bytes(5);
    drop(first);
    metrics.worker(0).unwrap().add_received_bytes(6);
    assert_eq!(value(&scrape(&metrics, None), "anello_http_received_bytes_total", &[]), 11.0);
    assert!(MetricsOptions::default().workers > 0);
}

#[test]
fn scrape_during_updates_is_consistent() {
    let metrics = metrics(2);
    let workers: Vec<_> = (0..2)
        .map(|index| {
            let worker = metrics.worker(index).unwrap();
            std::thread::spawn(move || {
                for duration_ns in 0..100_000 {
                    worker.connection_accepted();
                    worker.record_request(Method::Get, 200, duration_ns);
                    worker.publish([MetricEntry::counter("turns", "Turns.", duration_ns)]);
                    worker.connection_closed(CloseReason::Complete);
                }
            })
        })
        .collect();
    while !workers.iter().all(std::thread::JoinHandle::is_finished) {
        // The parser checks that the count of the histogram equals its last bucket, and that the buckets are
        // cumulative.
        let open = value(&scrape(&metrics, None), "anello_http_connections_open", &[]);
        assert!((0.0..=200_000.0).contains(&open));
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let families = scrape(&metrics, None);
    assert_eq!(value(&families, "anello_http_request_duration_seconds_count", &[]), 200_000.0);
    assert_eq!(value(&families, "anello_http_connections_open", &[]), 0.0);
}

#[test]
fn parser_rejects_invalid_text() {
    let head = "# HELP a_total A.\n# TYPE a_total counter\n";
    parse(&format!("{head}a_total 1\n")).unwrap();
    for bad in [
        "a_total 1",
        "a_total  1\n",
        "a_total x\n",
        "a_total -1\n",
        "b_total 1\n",
        "a_total{} 1\n",
        "a_total{x=\"1\",} 1\n",
        "a_total{x=\"1} 1\n",
        "a_total{x=\"\\t\"} 1\n",
        "a_total{x=\"1\",x=\"2\"} 1\n",
        "a_total{9=\"1\"} 1\n",
        "a_total 1\na_total 1\n",
        "",
        "a_total 1\n\n",
        "a_total 1\n# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"1\"} 1\n",
        "a_total 1\n# HELP b B.\nb 1\n",
        "a_total 1\n# TYPE b gauge\n# HELP b B.\nb 1\n",
    ] {
        assert!(parse(&format!("{head}{bad}")).is_err(), "{bad:?}");
    }
    let head = "# HELP h H.\n# TYPE h histogram\n";
    let valid = "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n";
    parse(&format!("{head}{valid}")).unwrap();
    for (from, to) in
        [("+Inf\"} 2", "+Inf\"} 0"), ("h_count 2", "h_count 1"), ("+Inf", "0.5"), ("h_sum 3\n", "")]
    {
        assert!(parse(&format!("{head}{}", valid.replace(from, to))).is_err(), "{from} {to}");
    }
}

proptest! {
    #[test]
    fn labels_and_help_round_trip(help: String, labels in prop::collection::vec(any::<String>(), 0..5)) {
        // Names and help texts must be `'static`, so the test leaks the generated strings.
        let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
        let names = (0..labels.len()).map(|index| leak(format!("label_{index}")));
        let mut options = MetricsOptions::default();
        options.build_labels = names.zip(labels).collect();
        let mut expected = vec![("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        expected.extend(options.build_labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let metrics = ServerMetrics::new(options);
        let worker = metrics.worker(0).unwrap();
        prop_assert!(worker.publish([MetricEntry::counter("a", leak(help.clone()), 1)]));
        let families = scrape(&metrics, None);
        let family = |name: &str| families.iter().find(|family| family.name == name).unwrap();
        prop_assert_eq!(&family("anello_driver_a_total").help, &help);
        prop_assert_eq!(&family("anello_build_info").samples[0].labels, &expected);
    }

    #[test]
    fn bucket_matches_linear_search(duration_ns: u64, shift in 0u32..64) {
        prop_assert_eq!(bucket(duration_ns >> shift), search_bucket(duration_ns >> shift));
    }
}

#[test]
fn values_are_rendered_exactly() {
    for (nanoseconds, seconds) in [
        (0, "0"),
        (1024, "0.000001024"),
        (1_000_000_000, "1"),
        (10_500_000_000, "10.5"),
        (u64::MAX, "18446744073.709551615"),
    ] {
        let metrics = metrics(1);
        let worker = metrics.worker(0).unwrap();
        worker.record_request(Method::Get, 200, nanoseconds);
        worker.set_cache_bytes(u64::MAX);
        let mut text = Vec::new();
        metrics.render(None, &mut text);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(&format!("\nanello_http_request_duration_seconds_sum {seconds}\n")), "{text}");
        assert!(text.contains("\nanello_http_cache_bytes 18446744073709551615\n"), "{text}");
    }
}
