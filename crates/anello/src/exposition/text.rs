//! The text format of Prometheus: families of samples, each with a help line and a type line.

use std::fmt::{self, Display};
use std::io::Write;

use FamilyKind::{Counter, Gauge};
use Value::{Integer, Nanoseconds};

use super::process::ProcessFiles;
use super::published::PublishedEntries;
use crate::MetricEntry;

/// Appends families of samples to a text.
///
/// ```
/// use anello::exposition::{Exposition, FamilyKind, Value};
///
/// let mut text = Vec::new();
/// let mut exposition = Exposition::new(&mut text);
/// exposition.single("queue_seconds_total", FamilyKind::Counter, "Time in the queue.", Value::Nanoseconds(1_500_000_000));
/// assert!(String::from_utf8_lossy(&text).ends_with("# TYPE queue_seconds_total counter\nqueue_seconds_total 1.5\n"));
/// ```
#[derive(Debug)]
pub struct Exposition<'a> {
    text: &'a mut Vec<u8>,
}

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FamilyKind {
    /// A count since startup. It never decreases.
    Counter,
    /// A current value, which can increase and decrease.
    Gauge,
    /// Counts of values by size, with their sum and number.
    Histogram,
}

/// Value of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number.
    Integer(u64),
    /// A time. Rendered in seconds, the base unit of Prometheus, without rounding.
    Nanoseconds(u64),
}

impl<'a> Exposition<'a> {
    /// Creates a writer that appends to `text`.
    pub fn new(text: &'a mut Vec<u8>) -> Self {
        Self { text }
    }

    /// Starts a family. All its samples must be added before the next family is started.
    pub fn family(&mut self, name: &str, kind: FamilyKind, help: &str) {
        let kind = match kind {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.append(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds `name{label="value",…} value`.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: Value) {
        self.append(format_args!("{name}"));
        for (index, (label, content)) in labels.iter().enumerate() {
            let separator = if index == 0 { "{" } else { "," };
            let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.append(format_args!("{separator}{label}=\"{content}\""));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.append(format_args!("{end} {value}\n"));
    }

    /// Appends a family with one sample, which has no labels.
    pub fn single(&mut self, name: &str, kind: FamilyKind, help: &str, value: Value) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn append(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a `Vec` cannot fail.
        self.text.write_fmt(text).unwrap_or_default();
    }

    /// Appends what the workers have published: one family per name, with one sample for each worker that published this
    /// name. The names have the prefix `anello_driver_`, those of counters also the suffix `_total`. Entries whose names are
    /// invalid are omitted.
    pub fn published<'w>(&mut self, workers: impl IntoIterator<Item = &'w PublishedEntries>) {
        let workers: Vec<Vec<MetricEntry>> = workers.into_iter().map(PublishedEntries::entries).collect();
        let mut names: Vec<&str> = Vec::new();
        for sample in workers.iter().flatten() {
            if names.contains(&sample.name) || !is_name(sample.name) {
                continue;
            }
            names.push(sample.name);
            let (name, kind) = if sample.is_gauge {
                (format!("anello_driver_{}", sample.name), Gauge)
            } else {
                (format!("anello_driver_{}_total", sample.name), Counter)
            };
            self.family(&name, kind, sample.description);
            for (worker, samples) in workers.iter().enumerate() {
                if let Some(own) = samples.iter().find(|own| own.name == sample.name) {
                    self.sample(&name, &[("worker", &worker.to_string())], Integer(own.value));
                }
            }
        }
    }

    /// Appends `anello_build_info` with the label `version` and these labels. A name consists of ASCII letters, digits and
    /// underscores and does not start with a digit; labels with an invalid name are omitted.
    pub fn build_info(&mut self, version: &str, build_labels: &[(&'static str, String)]) {
        let mut labels = vec![("version", version)];
        for (name, value) in build_labels {
            // Label names must be unique; names that start with two underscores are reserved for Prometheus.
            let is_new = !labels.iter().any(|(other, _)| other == name);
            if is_new && is_name(name) && !name.starts_with("__") {
                labels.push((name, value));
            }
        }
        self.family("anello_build_info", Gauge, "Build and configuration of this process; always 1.");
        self.sample("anello_build_info", &labels, Integer(1));
    }

    /// Appends the metrics of this process. Reads three `/proc` files.
    pub fn process(&mut self, files: &ProcessFiles) {
        let process = files.snapshot();
        let stat = process.stat.as_ref();
        let cpu_time = stat.map(|stat| Nanoseconds(stat.cpu_ns()));
        let max_descriptors = process.descriptors_limit.map(Integer);
        let resident_bytes = stat.map(|stat| Integer(stat.resident_bytes()));
        let virtual_bytes = stat.map(|stat| Integer(stat.virtual_bytes));
        let start_help = "Start time of the process in seconds since the Unix epoch.";
        for (name, kind, help, value) in [
            ("process_cpu_seconds_total", Counter, "User and system CPU time of all threads.", cpu_time),
            ("process_start_time_seconds", Gauge, start_help, process.start_unix_ns.map(Nanoseconds)),
            ("process_open_fds", Gauge, "Open file descriptors.", process.open_descriptors.map(Integer)),
            ("process_max_fds", Gauge, "Maximum number of open file descriptors.", max_descriptors),
            ("process_resident_memory_bytes", Gauge, "Resident memory of the process.", resident_bytes),
            ("process_virtual_memory_bytes", Gauge, "Virtual memory of the process.", virtual_bytes),
        ] {
            if let Some(value) = value {
                self.single(name, kind, help, value);
            }
        }
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
