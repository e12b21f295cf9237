//! The sums as JSON.

use anello_load::formats::hdr_log::ReportedErrors;
use anello_load::merge::{NamedLog, Sum, TagSum};
use anello_load::{ErrorKind, Errors, Latency};
use serde::Serialize;

use super::all_tags::all_tags;

/// Name of the JSON schema.
const SCHEMA: &str = "anello-load-merge";

/// Version of the JSON schema.
const SCHEMA_VERSION: u32 = 1;

/// JSON document printed by `--json`.
#[derive(Serialize)]
pub struct Report {
    schema: &'static str,
    schema_version: u32,
    logs: Vec<String>,
    tags: Vec<TagReport>,
    /// Sum of all tags except `uncorrected`; `None` if there is only one.
    all_tags: Option<Figures>,
    /// Known errors.
    errors: Vec<KindCount>,
    /// Whether all logs contain the errors of all their runs.
    errors_are_whole: bool,
    errors_by_log: Vec<LogErrors>,
}

#[derive(Serialize)]
struct LogErrors {
    log: String,
    /// `None` if the log contains no error counts.
    errors: Option<Vec<KindCount>>,
    /// Whether the log contains the errors of all its runs.
    errors_are_whole: bool,
}

#[derive(Serialize)]
struct KindCount {
    kind: ErrorKind,
    count: u64,
}

#[derive(Serialize)]
struct TagReport {
    tag: Option<String>,
    #[serde(flatten)]
    total: Figures,
    by_log: Vec<LogReport>,
}

#[derive(Serialize)]
struct LogReport {
    log: String,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Figures {
    start_unix_ns: u64,
    elapsed_ns: u64,
    requests: u64,
    requests_per_second: f64,
    latency: Option<Latency>,
}

impl Report {
    pub fn new(logs: &[NamedLog], sums: &[TagSum], errors: &ReportedErrors) -> Self {
        let tag_report = |sum: &TagSum| TagReport {
            tag: sum.tag.clone(),
            total: Figures::of(&sum.total),
            by_log: sum
                .by_log
                .iter()
                .map(|(log, sum)| LogReport { log: logs[*log].name.clone(), figures: Figures::of(sum) })
                .collect(),
        };
        Self {
            schema: SCHEMA,
            schema_version: SCHEMA_VERSION,
            logs: logs.iter().map(|log| log.name.clone()).collect(),
            tags: sums.iter().map(tag_report).collect(),
            all_tags: all_tags(sums).as_ref().map(Figures::of),
            errors: KindCount::all_of(&errors.known),
            errors_are_whole: errors.is_complete,
            errors_by_log: logs.iter().map(LogErrors::of).collect(),
        }
    }
}

impl LogErrors {
    fn of(log: &NamedLog) -> Self {
        let errors = &log.log.errors;
        Self {
            log: log.name.clone(),
            errors: (!errors.is_unknown()).then(|| KindCount::all_of(&errors.known)),
            errors_are_whole: errors.is_complete,
        }
    }
}

impl KindCount {
    fn all_of(errors: &Errors) -> Vec<Self> {
        errors.iter().map(|error| Self { kind: error.kind, count: error.count }).collect()
    }
}

impl Figures {
    fn of(sum: &Sum) -> Self {
        Self {
            start_unix_ns: sum.start_ns,
            elapsed_ns: sum.end_ns - sum.start_ns,
            requests: sum.latency.len(),
            requests_per_second: sum.per_second(),
            latency: Latency::of(&sum.latency),
        }
    }
}
