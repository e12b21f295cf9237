//! Rendering of all metrics in the Prometheus text format.

use std::sync::Arc;

use super::exposition::FamilyKind::{Counter, Gauge, Histogram};
use super::exposition::Value::{Integer, Nanoseconds};
use super::exposition::{Exposition, FamilyKind, Value, is_name};
use super::histogram::{HistogramSum, bound_ns};
use super::kinds::{CloseReason, METHODS, ParseErrorKind, RejectReason, STATUS_CLASSES};
use super::process::ProcessSnapshot;
use super::sample::{Sample, SampleKind};
use super::worker::Block;
use crate::observe::access_log::LogStats;
use crate::observe::counter;

pub(super) fn render(
    blocks: &[Arc<Block>],
    build_labels: &[(&'static str, String)],
    log: Option<&LogStats>,
    process: &ProcessSnapshot,
    text: &mut Vec<u8>,
) {
    let mut out = Exposition(text);
    requests(blocks, &mut out);
    durations(blocks, &mut out);
    connections(blocks, &mut out);
    bytes_and_parse_errors(blocks, &mut out);
    cache(blocks, &mut out);
    if let Some(log) = log {
        access_log(log, &mut out);
    }
    published_samples(blocks, &mut out);
    build_info(build_labels, &mut out);
    process_metrics(process, &mut out);
}

/// Sums one counter over all workers.
fn sum<'a>(blocks: &'a [Arc<Block>], counter: impl Fn(&'a Block) -> &'a counter::Counter) -> u64 {
    blocks.iter().fold(0, |sum, block| sum.wrapping_add(counter(block).get()))
}

/// Appends a family of counters that differ only in one label.
fn by_label(
    out: &mut Exposition<'_>,
    (name, help): (&str, &str),
    label: &str,
    values: &[&str],
    count: impl Fn(usize) -> u64,
) {
    out.family(name, Counter, help);
    for (index, value) in values.iter().enumerate() {
        out.sample(name, &[(label, value)], Integer(count(index)));
    }
}

fn requests(blocks: &[Arc<Block>], out: &mut Exposition<'_>) {
    let name = "anello_http_requests_total";
    out.family(name, Counter, "Requests completed or rejected, by method and status class.");
    for (method_index, method) in METHODS.into_iter().enumerate() {
        for (class, status) in STATUS_CLASSES.into_iter().enumerate() {
            let count = sum(blocks, |block| &block.requests[method_index][class]);
            out.sample(name, &[("method", method), ("status", status)], Integer(count));
        }
    }
}

fn durations(blocks: &[Arc<Block>], out: &mut Exposition<'_>) {
    let mut total = HistogramSum::default();
    blocks.iter().for_each(|block| block.durations.add_to(&mut total));
    out.family(
        "anello_http_request_duration_seconds",
        Histogram,
        "Time from the end of the request head until the response has been queued for sending. Small responses are \
         sent shortly after that. Rejected requests have no duration.",
    );
    let name = "anello_http_request_duration_seconds_bucket";
    let mut cumulative = 0u64;
    let [bounded @ .., unbounded] = &total.buckets;
    for (index, count) in bounded.iter().enumerate() {
        cumulative = cumulative.wrapping_add(*count);
        out.sample(name, &[("le", &Nanoseconds(bound_ns(index)).to_string())], Integer(cumulative));
    }
    cumulative = cumulative.wrapping_add(*unbounded);
    out.sample(name, &[("le", "+Inf")], Integer(cumulative));
    out.sample("anello_http_request_duration_seconds_sum", &[], Nanoseconds(total.sum_ns));
    // Equal to the last bucket by construction, even though the workers keep counting during the scrape.
    out.sample("anello_http_request_duration_seconds_count", &[], Integer(cumulative));
}

fn connections(blocks: &[Arc<Block>], out: &mut Exposition<'_>) {
    // Read the closed counters first: a connection that opens and closes during the scrape must not make the difference
    // negative.
    let closed: [u64; CloseReason::LABELS.len()] =
        std::array::from_fn(|reason| sum(blocks, |block| &block.closed[reason]));
    let accepted = sum(blocks, |block| &block.accepted);
    let open = accepted.saturating_sub(closed.iter().sum());
    out.single("anello_http_connections_accepted_total", Counter, "Connections accepted.", Integer(accepted));
    out.single("anello_http_connections_open", Gauge, "Open connections.", Integer(open));
    let family = (
        "anello_http_connections_rejected_total",
        "Connections rejected before any request was read, by reason.",
    );
    by_label(out, family, "reason", &RejectReason::LABELS, |reason| {
        sum(blocks, |block| &block.rejected[reason])
    });
    let family = ("anello_http_connections_closed_total", "Connections closed, by reason.");
    by_label(out, family, "reason", &CloseReason::LABELS, |reason| closed[reason]);
}

fn bytes_and_parse_errors(blocks: &[Arc<Block>], out: &mut Exposition<'_>) {
    let received = sum(blocks, |block| &block.received_bytes);
    let help = "Bytes received: request heads, bodies and rejected data. With TLS, plaintext bytes.";
    out.single("anello_http_received_bytes_total", Counter, help, Integer(received));
    let sent = sum(blocks, |block| &block.sent_bytes);
    let help = "Response body bytes queued for sending, without heads, counted when the response ends. With TLS, \
                plaintext bytes.";
    out.single("anello_http_sent_bytes_total", Counter, help, Integer(sent));
    let family = ("anello_http_parse_errors_total", "Requests rejected with a parse error, by kind.");
    by_label(out, family, "kind", &ParseErrorKind::LABELS, |kind| {
        sum(blocks, |block| &block.parse_errors[kind])
    });
}

fn cache(blocks: &[Arc<Block>], out: &mut Exposition<'_>) {
    let hits = sum(blocks, |block| &block.cache_hits);
    out.single("anello_http_cache_hits_total", Counter, "Files served from the cache.", Integer(hits));
    let misses = sum(blocks, |block| &block.cache_misses);
    let help = "Cacheable files not in the cache, or outdated.";
    out.single("anello_http_cache_misses_total", Counter, help, Integer(misses));
    let bytes = sum(blocks, |block| &block.cache_bytes);
    out.single("anello_http_cache_bytes", Gauge, "Total size of the caches of all workers.", Integer(bytes));
}

fn access_log(log: &LogStats, out: &mut Exposition<'_>) {
    let dropped_help = "Access log lines dropped because all buffers were full, or lost at shutdown.";
    for (name, help, count) in [
        ("anello_http_log_lines_written_total", "Access log lines written.", log.written_lines),
        ("anello_http_log_lines_dropped_total", dropped_help, log.dropped_lines),
        ("anello_http_log_bytes_written_total", "Access log bytes written.", log.written_bytes),
        ("anello_http_log_errors_total", "Failed attempts to write or open the access log.", log.errors),
        ("anello_http_log_reopens_total", "Completed reopens of the access log.", log.reopens),
    ] {
        out.single(name, Counter, help, Integer(count));
    }
}

/// Renders the published samples: one family per name, with one sample for each worker that published this name.
fn published_samples(blocks: &[Arc<Block>], out: &mut Exposition<'_>) {
    let workers: Vec<Vec<Sample>> = blocks.iter().map(|block| block.samples()).collect();
    let mut names: Vec<&str> = Vec::new();
    for sample in workers.iter().flatten() {
        if names.contains(&sample.name) || !is_name(sample.name) {
            continue;
        }
        names.push(sample.name);
        let (name, kind) = match sample.kind {
            SampleKind::Counter => (format!("anello_driver_{}_total", sample.name), Counter),
            SampleKind::Gauge => (format!("anello_driver_{}", sample.name), Gauge),
        };
        out.family(&name, kind, sample.help);
        for (worker, samples) in workers.iter().enumerate() {
            if let Some(own) = samples.iter().find(|own| own.name == sample.name) {
                out.sample(&name, &[("worker", &worker.to_string())], Integer(own.value));
            }
        }
    }
}

fn build_info(build_labels: &[(&'static str, String)], out: &mut Exposition<'_>) {
    let mut labels = vec![("version", env!("CARGO_PKG_VERSION"))];
    for (name, value) in build_labels {
        // Label names must be unique; names that start with two underscores are reserved for Prometheus.
        let is_new = !labels.iter().any(|(other, _)| other == name);
        if is_new && is_name(name) && !name.starts_with("__") {
            labels.push((name, value));
        }
    }
    out.family("anello_build_info", Gauge, "Build and configuration of this process; always 1.");
    out.sample("anello_build_info", &labels, Integer(1));
}

fn process_metrics(process: &ProcessSnapshot, out: &mut Exposition<'_>) {
    let mut single = |name: &str, kind: FamilyKind, help: &str, value: Option<Value>| {
        if let Some(value) = value {
            out.single(name, kind, help, value);
        }
    };
    let stat = process.stat.as_ref();
    let cpu_time = stat.map(|stat| Nanoseconds(stat.cpu_ns()));
    single("process_cpu_seconds_total", Counter, "User and system CPU time of all threads.", cpu_time);
    let help = "Start time of the process in seconds since the Unix epoch.";
    single("process_start_time_seconds", Gauge, help, process.start_unix_ns.map(Nanoseconds));
    let open_descriptors = process.open_descriptors.map(Integer);
    single("process_open_fds", Gauge, "Open file descriptors.", open_descriptors);
    let limit = process.descriptors_limit.map(Integer);
    single("process_max_fds", Gauge, "Maximum number of open file descriptors.", limit);
    let resident_bytes = stat.map(|stat| Integer(stat.resident_bytes()));
    single("process_resident_memory_bytes", Gauge, "Resident memory of the process.", resident_bytes);
    let virtual_bytes = stat.map(|stat| Integer(stat.virtual_bytes));
    single("process_virtual_memory_bytes", Gauge, "Virtual memory of the process.", virtual_bytes);
}
