//! Rendering of all metrics in the Prometheus text format, version 0.0.4: families of samples, each with a help line and
//! a type line.

use std::fmt::{self, Display};
use std::io::Write;
use std::sync::Arc;

use Value::{Integer, Nanoseconds};

use super::kinds::{CloseReason, METHODS, MeasuredService, ParseErrorKind, RejectReason, STATUS_CLASSES};
use super::process::ProcessSnapshot;
use super::worker::{BOUNDS, Block, Sample, SampleKind, bound_ns};
use crate::observe::access_log::LogStats;
use crate::observe::counter::Counter;

pub(super) fn render(
    service: MeasuredService,
    blocks: &[Arc<Block>],
    build_labels: &[(&'static str, String)],
    log: Option<&LogStats>,
    process: &ProcessSnapshot,
    text: &mut Vec<u8>,
) {
    let mut out = Exposition { blocks, text };
    if service == MeasuredService::Http {
        out.requests();
    }
    out.connections(service);
    out.bytes(service);
    if service == MeasuredService::Http {
        out.parse_errors();
        out.cache();
    }
    if let Some(log) = log {
        out.access_log(log);
    }
    out.published_samples();
    out.build_info(build_labels);
    out.process(process);
}

struct Exposition<'a> {
    blocks: &'a [Arc<Block>],
    text: &'a mut Vec<u8>,
}

/// Types of metric families, as written in `# TYPE` lines.
const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";

enum Value {
    Integer(u64),
    /// A time. Rendered in seconds, the base unit of Prometheus, without rounding.
    Nanoseconds(u64),
}

impl<'a> Exposition<'a> {
    fn requests(&mut self) {
        let name = "anello_http_requests_total";
        self.family(name, COUNTER, "Requests completed or rejected, by method and status class.");
        for (method_index, method) in METHODS.into_iter().enumerate() {
            for (class, status) in STATUS_CLASSES.into_iter().enumerate() {
                let count = self.sum(|block| &block.requests[method_index][class]);
                self.sample(name, &[("method", method), ("status", status)], Integer(count));
            }
        }
        self.family(
            "anello_http_request_duration_seconds",
            HISTOGRAM,
            "Time from the end of the request head until the response has been queued for sending. Small responses \
             are sent shortly after that. Rejected requests are not included.",
        );
        let name = "anello_http_request_duration_seconds_bucket";
        let mut cumulative = 0u64;
        for bucket in 0..=BOUNDS {
            cumulative = cumulative.wrapping_add(self.sum(|block| &block.durations.buckets[bucket]));
            let bound =
                if bucket < BOUNDS { Nanoseconds(bound_ns(bucket)).to_string() } else { "+Inf".to_owned() };
            self.sample(name, &[("le", &bound)], Integer(cumulative));
        }
        let sum_ns = self.sum(|block| &block.durations.sum_ns);
        self.sample("anello_http_request_duration_seconds_sum", &[], Nanoseconds(sum_ns));
        // By construction, this value equals that of the last bucket, even though the workers keep counting during the
        // scrape.
        self.sample("anello_http_request_duration_seconds_count", &[], Integer(cumulative));
    }

    fn connections(&mut self, service: MeasuredService) {
        // Read the counters of closed connections first: a connection that opens and closes during the scrape must not
        // make the difference negative.
        let closed: [u64; CloseReason::COUNT] =
            std::array::from_fn(|reason| self.sum(|block| &block.closed[reason]));
        let accepted = self.sum(|block| &block.accepted);
        let open = Integer(accepted.saturating_sub(closed.iter().sum()));
        let name = |suffix: &str| format!("{}_connections_{suffix}", service.prefix());
        self.single(&name("accepted_total"), COUNTER, "Connections accepted.", Integer(accepted));
        self.single(&name("open"), GAUGE, "Open connections.", open);
        let help = "Connections moved from a busy worker to another worker.";
        self.counter(&name("moved_total"), help, |block| &block.moved);
        let help = "Connections rejected before any request was read, by reason.";
        self.family(&name("rejected_total"), COUNTER, help);
        for (reason, label) in RejectReason::LABELS.split(' ').enumerate() {
            let rejected = self.sum(|block| &block.rejected[reason]);
            self.sample(&name("rejected_total"), &[("reason", label)], Integer(rejected));
        }
        self.family(&name("closed_total"), COUNTER, "Connections closed, by reason.");
        for (closed, label) in closed.into_iter().zip(CloseReason::LABELS.split(' ')) {
            if service.has_close_reason(label) {
                self.sample(&name("closed_total"), &[("reason", label)], Integer(closed));
            }
        }
    }

    fn bytes(&mut self, service: MeasuredService) {
        let ([received_help, sent_help], prefix) = (service.byte_help(), service.prefix());
        let name = format!("{prefix}_received_bytes_total");
        self.counter(&name, received_help, |block| &block.received_bytes);
        self.counter(&format!("{prefix}_sent_bytes_total"), sent_help, |block| &block.sent_bytes);
    }

    fn parse_errors(&mut self) {
        let name = "anello_http_parse_errors_total";
        self.family(name, COUNTER, "Requests rejected with a parse error, by kind.");
        for (kind, label) in ParseErrorKind::LABELS.split(' ').enumerate() {
            let errors = self.sum(|block| &block.parse_errors[kind]);
            self.sample(name, &[("kind", label)], Integer(errors));
        }
    }

    fn cache(&mut self) {
        self.counter("anello_http_cache_hits_total", "Files served from the cache.", |block| {
            &block.cache_hits
        });
        let help = "Cacheable files that were not in the cache or whose entry was outdated.";
        self.counter("anello_http_cache_misses_total", help, |block| &block.cache_misses);
        let bytes = Integer(self.sum(|block| &block.cache_bytes));
        self.single("anello_http_cache_bytes", GAUGE, "Total size of the caches of all workers.", bytes);
    }

    fn access_log(&mut self, log: &LogStats) {
        let dropped_help = "Access log lines dropped because all buffers were full, or lost at shutdown.";
        for (name, help, count) in [
            ("anello_http_log_lines_written_total", "Access log lines written.", log.written_lines),
            ("anello_http_log_lines_dropped_total", dropped_help, log.dropped_lines),
            ("anello_http_log_bytes_written_total", "Access log bytes written.", log.written_bytes),
            ("anello_http_log_errors_total", "Failed attempts to write or open the access log.", log.errors),
            ("anello_http_log_reopens_total", "Number of access log reopens.", log.reopens),
        ] {
            self.single(name, COUNTER, help, Integer(count));
        }
    }

    /// Appends one family per name, with one sample for each worker that published this name.
    fn published_samples(&mut self) {
        let workers: Vec<Vec<Sample>> = self.blocks.iter().map(|block| block.samples()).collect();
        let mut names: Vec<&str> = Vec::new();
        for sample in workers.iter().flatten() {
            if names.contains(&sample.name) || !is_name(sample.name) {
                continue;
            }
            names.push(sample.name);
            let (name, kind) = match sample.kind {
                SampleKind::Counter => (format!("anello_driver_{}_total", sample.name), COUNTER),
                SampleKind::Gauge => (format!("anello_driver_{}", sample.name), GAUGE),
            };
            self.family(&name, kind, sample.help);
            for (worker, samples) in workers.iter().enumerate() {
                if let Some(own) = samples.iter().find(|own| own.name == sample.name) {
                    self.sample(&name, &[("worker", &worker.to_string())], Integer(own.value));
                }
            }
        }
    }

    fn build_info(&mut self, build_labels: &[(&'static str, String)]) {
        let mut labels = vec![("version", env!("CARGO_PKG_VERSION"))];
        for (name, value) in build_labels {
            // Label names must be unique; names that start with two underscores are reserved for Prometheus.
            let is_new = !labels.iter().any(|(other, _)| other == name);
            if is_new && is_name(name) && !name.starts_with("__") {
                labels.push((name, value));
            }
        }
        self.family("anello_build_info", GAUGE, "Build and configuration of this process; always 1.");
        self.sample("anello_build_info", &labels, Integer(1));
    }

    fn process(&mut self, process: &ProcessSnapshot) {
        let stat = process.stat.as_ref();
        let cpu_time = stat.map(|stat| Nanoseconds(stat.cpu_ns()));
        let max_descriptors = process.descriptors_limit.map(Integer);
        let resident_bytes = stat.map(|stat| Integer(stat.resident_bytes()));
        let virtual_bytes = stat.map(|stat| Integer(stat.virtual_bytes));
        let start_help = "Start time of the process in seconds since the Unix epoch.";
        for (name, kind, help, value) in [
            ("process_cpu_seconds_total", COUNTER, "User and system CPU time of all threads.", cpu_time),
            ("process_start_time_seconds", GAUGE, start_help, process.start_unix_ns.map(Nanoseconds)),
            ("process_open_fds", GAUGE, "Open file descriptors.", process.open_descriptors.map(Integer)),
            ("process_max_fds", GAUGE, "Maximum number of open file descriptors.", max_descriptors),
            ("process_resident_memory_bytes", GAUGE, "Resident memory of the process.", resident_bytes),
            ("process_virtual_memory_bytes", GAUGE, "Virtual memory of the process.", virtual_bytes),
        ] {
            if let Some(value) = value {
                self.single(name, kind, help, value);
            }
        }
    }

    /// Sums one counter over all workers.
    fn sum(&self, counter: impl Fn(&'a Block) -> &'a Counter) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.wrapping_add(counter(block).get()))
    }

    fn counter(&mut self, name: &str, help: &str, counter: impl Fn(&'a Block) -> &'a Counter) {
        self.single(name, COUNTER, help, Integer(self.sum(counter)));
    }

    /// Starts a family. All its samples must be added before the next family is started.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.append(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds `name{label="value",…} value`.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: Value) {
        self.append(format_args!("{name}"));
        for (index, (label, content)) in labels.iter().enumerate() {
            let separator = if index == 0 { "{" } else { "," };
            let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.append(format_args!("{separator}{label}=\"{content}\""));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.append(format_args!("{end} {value}\n"));
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: Value) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn append(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a `Vec` cannot fail.
        self.text.write_fmt(text).unwrap_or_default();
    }
}

impl Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(formatter),
            Self::Nanoseconds(nanoseconds) => {
                let text = format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
                formatter.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// Returns `true` if a string is a valid metric or label name: ASCII letters, digits and underscores, not starting with
/// a digit.
fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
