//! All metrics as text.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::exposition::FamilyKind::{Counter, Gauge, Histogram};
use super::exposition::Value::{Nanoseconds, Whole};
use super::exposition::{Exposition, is_name};
use super::histogram::{HistogramSum, bound_ns};
use super::kinds::{CloseReason, MethodClass, ParseErrorKind, RejectReason, STATUS_CLASSES};
use super::process::ProcessSnapshot;
use super::sample::{Sample, SampleKind};
use super::worker::Block;
use crate::observe::access_log::LogStats;

pub(super) fn render(
    blocks: &[Arc<Block>],
    build_labels: &[(&'static str, String)],
    log: Option<&LogStats>,
    process: &ProcessSnapshot,
    text: &mut Vec<u8>,
) {
    let mut to = Exposition::new(text);
    requests(blocks, &mut to);
    durations(blocks, &mut to);
    connections(blocks, &mut to);
    bytes_and_refusals(blocks, &mut to);
    cache(blocks, &mut to);
    if let Some(log) = log {
        access_log(log, &mut to);
    }
    published(blocks, &mut to);
    build_info(build_labels, &mut to);
    process_figures(process, &mut to);
}

/// The sum of one count over all workers.
fn sum<'a>(blocks: &'a [Arc<Block>], count: impl Fn(&'a Block) -> &'a AtomicU64) -> u64 {
    blocks.iter().fold(0, |sum, block| sum.wrapping_add(count(block).load(Ordering::Relaxed)))
}

fn requests(blocks: &[Arc<Block>], to: &mut Exposition<'_>) {
    let name = "anello_http_requests_total";
    to.family(name, Counter, "Requests answered or refused, by method and class of status.");
    for method in MethodClass::ALL {
        for (class, status) in STATUS_CLASSES.into_iter().enumerate() {
            let count = sum(blocks, |block| &block.requests[method as usize][class]);
            to.sample(name, &[("method", method.label()), ("status", status)], Whole(count));
        }
    }
}

fn durations(blocks: &[Arc<Block>], to: &mut Exposition<'_>) {
    let mut total = HistogramSum::default();
    blocks.iter().for_each(|block| block.durations.add_to(&mut total));
    to.family(
        "anello_http_request_duration_seconds",
        Histogram,
        "Time from when the head of a request had been read to when its answer had been handed over to be sent. Small \
         answers leave shortly after that. Refused requests have no duration.",
    );
    let name = "anello_http_request_duration_seconds_bucket";
    let mut cumulative = 0u64;
    let [bounded @ .., unbounded] = &total.buckets;
    for (index, count) in bounded.iter().enumerate() {
        cumulative = cumulative.wrapping_add(*count);
        to.sample(name, &[("le", &Nanoseconds(bound_ns(index)).text())], Whole(cumulative));
    }
    cumulative = cumulative.wrapping_add(*unbounded);
    to.sample(name, &[("le", "+Inf")], Whole(cumulative));
    to.sample("anello_http_request_duration_seconds_sum", &[], Nanoseconds(total.sum_ns));
    // The same number as in the last bucket, though workers have gone on meanwhile.
    to.sample("anello_http_request_duration_seconds_count", &[], Whole(cumulative));
}

fn connections(blocks: &[Arc<Block>], to: &mut Exposition<'_>) {
    // Ends before beginnings: a connection that begins and ends meanwhile must not make the difference negative.
    let closed = CloseReason::ALL.map(|reason| sum(blocks, |block| &block.closed[reason as usize]));
    let accepted = sum(blocks, |block| &block.accepted);
    let open = accepted.saturating_sub(closed.iter().sum());
    to.single("anello_http_connections_accepted_total", Counter, "Connections accepted.", Whole(accepted));
    to.single("anello_http_connections_open", Gauge, "Connections open now.", Whole(open));
    let name = "anello_http_connections_refused_total";
    to.family(name, Counter, "Connections refused before they were served, by reason.");
    for reason in RejectReason::ALL {
        let count = sum(blocks, |block| &block.refused[reason as usize]);
        to.sample(name, &[("reason", reason.label())], Whole(count));
    }
    let name = "anello_http_connections_closed_total";
    to.family(name, Counter, "Connections closed, by reason.");
    for (reason, count) in CloseReason::ALL.into_iter().zip(closed) {
        to.sample(name, &[("reason", reason.label())], Whole(count));
    }
}

fn bytes_and_refusals(blocks: &[Arc<Block>], to: &mut Exposition<'_>) {
    let received = sum(blocks, |block| &block.received_bytes);
    let help =
        "Bytes received as HTTP: heads, bodies and what is refused. Under TLS they are counted as plaintext.";
    to.single("anello_http_received_bytes_total", Counter, help, Whole(received));
    let sent = sum(blocks, |block| &block.sent_bytes);
    let help = "Bytes of the bodies of answers, without heads, as far as they were handed over to be sent, counted when \
                an answer ends. Under TLS they are counted as plaintext.";
    to.single("anello_http_sent_bytes_total", Counter, help, Whole(sent));
    let name = "anello_http_parse_refusals_total";
    to.family(name, Counter, "Requests that the protocol refused, by kind.");
    for kind in ParseErrorKind::ALL {
        let count = sum(blocks, |block| &block.refusals[kind as usize]);
        to.sample(name, &[("kind", kind.label())], Whole(count));
    }
}

fn cache(blocks: &[Arc<Block>], to: &mut Exposition<'_>) {
    let hits = sum(blocks, |block| &block.cache_hits);
    to.single("anello_http_cache_hits_total", Counter, "Files answered from the cache.", Whole(hits));
    let misses = sum(blocks, |block| &block.cache_misses);
    to.single("anello_http_cache_misses_total", Counter, "Files that were not in the cache.", Whole(misses));
    let bytes = sum(blocks, |block| &block.cache_bytes);
    to.single("anello_http_cache_bytes", Gauge, "Bytes in the caches of all workers.", Whole(bytes));
}

fn access_log(log: &LogStats, to: &mut Exposition<'_>) {
    let counts = [
        ("anello_http_log_lines_written_total", "Lines of the access log written.", log.written_lines),
        (
            "anello_http_log_lines_dropped_total",
            "Lines of the access log dropped because it is slower than the requests, or lost at its end.",
            log.dropped_lines,
        ),
        ("anello_http_log_bytes_written_total", "Bytes of the access log written.", log.written_bytes),
        ("anello_http_log_errors_total", "Failed writes and opens of the access log.", log.errors),
        ("anello_http_log_reopens_total", "Times the access log was opened anew.", log.reopens),
    ];
    for (name, help, count) in counts {
        to.single(name, Counter, help, Whole(count));
    }
}

/// What workers have published: a family for each name, with a sample for each worker that has it.
fn published(blocks: &[Arc<Block>], to: &mut Exposition<'_>) {
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
        to.family(&name, kind, sample.help);
        for (worker, samples) in workers.iter().enumerate() {
            if let Some(own) = samples.iter().find(|own| own.name == sample.name) {
                to.sample(&name, &[("worker", &worker.to_string())], Whole(own.value));
            }
        }
    }
}

fn build_info(build_labels: &[(&'static str, String)], to: &mut Exposition<'_>) {
    let mut labels = vec![("version", env!("CARGO_PKG_VERSION"))];
    for (name, value) in build_labels {
        // A label stands once; names that begin with two underscores are for Prometheus itself.
        let is_new = !labels.iter().any(|(other, _)| other == name);
        if is_new && is_name(name) && !name.starts_with("__") {
            labels.push((name, value));
        }
    }
    to.family("anello_build_info", Gauge, "What this program is: always 1.");
    to.sample("anello_build_info", &labels, Whole(1));
}

fn process_figures(process: &ProcessSnapshot, to: &mut Exposition<'_>) {
    let stat = process.stat;
    let figures = [
        (
            "process_cpu_seconds_total",
            Counter,
            "User and kernel time of all threads.",
            stat.map(|stat| Nanoseconds(stat.cpu_ns())),
        ),
        (
            "process_start_time_seconds",
            Gauge,
            "When the process was started, in seconds since the Unix epoch.",
            process.start_unix_ns.map(Nanoseconds),
        ),
        ("process_open_fds", Gauge, "Open file descriptors.", process.open_descriptors.map(Whole)),
        (
            "process_max_fds",
            Gauge,
            "File descriptors that may be open.",
            process.descriptors_limit.map(Whole),
        ),
        (
            "process_resident_memory_bytes",
            Gauge,
            "Memory that the process occupies.",
            stat.map(|stat| Whole(stat.resident_bytes())),
        ),
        (
            "process_virtual_memory_bytes",
            Gauge,
            "Address space that the process has reserved.",
            stat.map(|stat| Whole(stat.virtual_bytes)),
        ),
    ];
    for (name, kind, help, value) in figures {
        if let Some(value) = value {
            to.single(name, kind, help, value);
        }
    }
}
