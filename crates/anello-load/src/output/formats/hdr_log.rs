//! HdrHistogram interval log: the latency histogram of every interval, in the text format read by HdrHistogram tools
//! (`HistogramLogProcessor` and plotters).
//!
//! ```text
//!  #latencies in nanoseconds, maxima in milliseconds
//!  #[Histogram log format version 1.3]
//!  #[AnelloRun: {"id":"8a0f6c21d4e7b935","settings":"…","shard":null}]    identity of the run
//!  #[StartTime: 1700000000.250 (seconds since epoch)]      start of the measurement
//!  #[BaseTime: 1700000000.250 (seconds since epoch)]       time that starts are relative to
//!  "StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
//!  0.000,1.000,3.401,HISTFAAAAC…                           start (s), length (s), maximum (ms), histogram
//!  Tag=uncorrected,0.000,1.000,0.213,HISTFAAAAB…
//!  #[AnelloErrors: reset=3;timeout=1]                      last line: error counts, `none`, or `…;unknown`
//! ```
//!
//! - Times have three decimals, as in logs written by the Java library, because some readers interpret the decimals as
//!   milliseconds regardless of their number. The start and end of an interval are rounded rather than its length, so
//!   that consecutive intervals remain contiguous.
//! - Lines with the main latencies have no tag, because readers show lines without a tag by default.
//! - Errors are reported in a comment because the format has no field for them. The readers of the Java, Go,
//!   JavaScript, Python and Rust libraries skip the comment. The reader of the C library returns every interval and
//!   then `EINVAL` instead of EOF. If a run has no such comment, for example because it was killed, its errors are
//!   unknown. If only some runs in a log have the comment, the error counts are incomplete.
//!
//! The reader treats a log as untrusted input: it does not allocate memory based on lengths in the log, and it checks
//! numbers before it uses them. Histograms stay encoded until they are requested, because a decoded histogram uses
//! about a hundred times as much memory.

use std::io::{self, Write};

use hdrhistogram::Histogram;
use thiserror::Error;

use crate::model::errors::Errors;
use crate::model::histogram::{decode, encode};
use crate::model::interval::Interval;
use crate::model::shard::RunIdentity;

/// Tag of the uncorrected latencies, which are measured from the actual send time instead of the scheduled time.
pub const UNCORRECTED: &str = "uncorrected";

const VERSION_LINE: &str = "#[Histogram log format version 1.3]";
const LEGEND: &str = r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#;

/// Start of the comment with the identity of a run.
const RUN_NAME: &str = "[AnelloRun:";

/// Parts of the comment with the error counts: its prefix, the text if there were no errors, and the text that follows
/// the known counts if there may have been more errors.
const ERRORS_NAME: &str = "[AnelloErrors:";
const NO_ERRORS: &str = "none";
const UNKNOWN_ERRORS: &str = "unknown";

/// Maximum time in a log, chosen so that sums of times do not overflow.
pub(crate) const MAX_TIME_NS: u64 = u64::MAX / 4;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Writer of an interval log. All methods return any error from the output.
#[derive(Debug)]
pub struct HdrLogWriter<W> {
    output: W,
}

impl<W: Write> HdrLogWriter<W> {
    /// Creates a writer and writes the header. The starts of intervals are relative to `started_unix_ns`, the start of
    /// the measurement. `comments` are free text for human readers, such as a description of the run.
    pub fn new(output: W, started_unix_ns: u64, comments: &[&str]) -> io::Result<Self> {
        Self::with_runs(output, started_unix_ns, comments, &[])
    }

    /// Creates a writer like [`new`](Self::new). The header also has the identities of the runs whose intervals are in
    /// the log, so that [`merge`](crate::merge) recognizes shards.
    pub fn with_runs(
        mut output: W,
        started_unix_ns: u64,
        comments: &[&str],
        runs: &[RunIdentity],
    ) -> io::Result<Self> {
        for line in comments.iter().flat_map(|comment| comment.lines()) {
            // The space prevents readers from parsing a comment as a header.
            let space = if line.starts_with('[') { " " } else { "" };
            writeln!(output, "#{space}{line}")?;
        }
        // Before the line with the column names, because the reader of the C library accepts comments only there.
        for run in runs {
            writeln!(output, "#{RUN_NAME} {}]", serde_json::to_string(run)?)?;
        }
        let began = format_seconds(round_to_ms(started_unix_ns));
        writeln!(output, "#latencies in nanoseconds, maxima in milliseconds\n{VERSION_LINE}")?;
        writeln!(output, "#[StartTime: {began} (seconds since epoch)]")?;
        writeln!(output, "#[BaseTime: {began} (seconds since epoch)]\n{LEGEND}")?;
        output.flush()?;
        Ok(Self { output })
    }

    /// Writes a line with the latency and, if present, a line with the uncorrected latency and the tag [`UNCORRECTED`].
    pub fn write(&mut self, interval: &Interval) -> io::Result<()> {
        let (start_ns, end_ns) = (interval.start_ns, interval.end_ns());
        self.write_histogram(None, start_ns, end_ns, &interval.latency)?;
        interval.uncorrected.as_ref().map_or(Ok(()), |uncorrected| {
            self.write_histogram(Some(UNCORRECTED), start_ns, end_ns, uncorrected)
        })
    }

    /// Writes one line. Times are in nanoseconds since the start of the measurement. Returns `InvalidInput` if the tag
    /// is empty or contains a comma, a space or a line break.
    pub fn write_histogram(
        &mut self,
        tag: Option<&str>,
        start_ns: u64,
        end_ns: u64,
        histogram: &Histogram<u64>,
    ) -> io::Result<()> {
        let tag = match tag {
            None => String::new(),
            Some(tag) if is_tag(tag) => format!("Tag={tag},"),
            Some(tag) => {
                let text =
                    format!("invalid tag {tag:?}: empty, or contains a comma, a space or a line break");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        let (start_ms, end_ms) = (round_to_ms(start_ns), round_to_ms(end_ns));
        let (start, length) = (format_seconds(start_ms), format_seconds(end_ms.saturating_sub(start_ms)));
        let max_ms = histogram.max() as f64 / NS_PER_MS as f64;
        self.write_line(format!("{tag}{start},{length},{max_ms:.3},{}\n", encode(histogram)))
    }

    /// Writes the comment with the error counts of a run, including errors before the first interval.
    pub fn write_errors(&mut self, errors: &Errors) -> io::Result<()> {
        self.write_reported_errors(&ReportedErrors { known: errors.clone(), is_complete: true })
    }

    /// Writes the comment with the errors reported by several runs. Writes nothing if the errors are unknown.
    pub fn write_reported_errors(&mut self, errors: &ReportedErrors) -> io::Result<()> {
        let known = errors.known.by_kind();
        let counts = match (errors.is_complete, known.is_empty()) {
            (true, true) => NO_ERRORS.to_owned(),
            (true, false) => known,
            (false, true) => return Ok(()),
            (false, false) => format!("{known};{UNKNOWN_ERRORS}"),
        };
        self.write_line(format!("#{ERRORS_NAME} {counts}]\n"))
    }

    /// Writes a line in one call, so that two programs writing to the same pipe do not interleave their lines.
    fn write_line(&mut self, line: String) -> io::Result<()> {
        self.output.write_all(line.as_bytes())?;
        self.output.flush()
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.output
    }
}

fn round_to_ms(ns: u64) -> u64 {
    ns / NS_PER_MS + u64::from(ns % NS_PER_MS >= NS_PER_MS / 2)
}

/// Formats milliseconds as seconds.
fn format_seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// Returns `true` if a tag can be written to a log: it is not empty and contains no delimiter.
fn is_tag(tag: &str) -> bool {
    !tag.is_empty() && !tag.contains([',', ' ', '\r', '\n'])
}

/// Error in a log.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub struct LogError {
    /// 1-based line number.
    pub line: usize,
    /// Description of the problem.
    pub problem: String,
}

/// Parsed log whose histograms are still encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HdrLog {
    /// Lines with a histogram, in log order.
    pub records: Vec<LogRecord>,
    /// Earliest start time in a header, in nanoseconds since the Unix epoch. `None` if there is no such header.
    pub began_ns: Option<u64>,
    /// Errors reported by all runs in the log.
    pub errors: ReportedErrors,
    /// Identities of the runs in the log. Empty for logs of other tools.
    pub runs: Vec<RunIdentity>,
}

/// Errors that one or more runs have reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedErrors {
    /// Reported error counts, without examples.
    pub known: Errors,
    /// Whether every run reported its errors. Errors are not reported if another tool wrote the log, or if the run was
    /// killed or failed.
    pub is_complete: bool,
}

impl ReportedErrors {
    /// Returns `true` if nothing is known: no errors are reported, and the counts are incomplete.
    pub fn is_unknown(&self) -> bool {
        !self.is_complete && self.known.is_empty()
    }

    /// Returns an error if the total would exceed `u64::MAX`.
    pub(crate) fn try_merge(&mut self, others: Self) -> Result<(), &'static str> {
        self.is_complete &= others.is_complete;
        self.known.try_merge(others.known)
    }
}

/// Line of a log, with the histogram for one interval and one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// 1-based line number in the log; 0 if the record is from a report.
    pub line: usize,
    /// Tag, if any.
    pub tag: Option<String>,
    /// Start of the interval, in nanoseconds since the Unix epoch. If the log has neither absolute times nor a header
    /// with a base or start time, the origin is known only to the writer.
    pub start_ns: u64,
    /// Length of the interval, in nanoseconds.
    pub length_ns: u64,
    /// Encoded histogram as base64.
    pub(crate) encoded: String,
}

impl HdrLog {
    /// Parses a log. Logs written by other tools are accepted: headers are optional, a log can contain several runs one
    /// after the other, and lines can end with CRLF. The histograms are not decoded. Returns a [`LogError`] for the
    /// first line that is neither an interval nor a valid comment.
    pub fn parse(text: &[u8]) -> Result<Self, LogError> {
        let mut log =
            Self { errors: ReportedErrors { is_complete: true, ..Default::default() }, ..Self::default() };
        let mut base = TimeBase::default();
        // A run starts with its start-time header, or else with its first interval. It ends with its error counts.
        let (mut has_error_counts, mut is_within_run) = (false, false);
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let at_line = |problem: String| LogError { line: index + 1, problem };
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(comment) = line.strip_prefix(b"#") {
                // Comments can contain arbitrary bytes.
                let comment = String::from_utf8_lossy(comment);
                if let Some(began_ns) = base.parse_comment(&comment).map_err(at_line)? {
                    log.began_ns = Some(log.began_ns.map_or(began_ns, |first| first.min(began_ns)));
                    // If the previous run has not reported its errors, they are unknown.
                    log.errors.is_complete &= !is_within_run;
                    is_within_run = true;
                }
                log.runs.extend(parse_run_comment(&comment).map_err(at_line)?);
                if let Some(errors) = parse_errors_comment(&comment).map_err(at_line)? {
                    log.errors.try_merge(errors).map_err(|problem| at_line(problem.to_owned()))?;
                    (has_error_counts, is_within_run) = (true, false);
                }
                continue;
            }
            let line = str::from_utf8(line).map_err(|_| at_line("invalid UTF-8".to_owned()))?;
            if line.trim().is_empty() || line.starts_with("\"StartTimestamp\"") {
                continue;
            }
            log.records.push(LogRecord::parse(line, index + 1, &mut base).map_err(at_line)?);
            is_within_run = true;
        }
        log.errors.is_complete &= has_error_counts && !is_within_run;
        Ok(log)
    }

    /// Returns the earliest [`LogRecord::start_ns`], or `None` if the log has no intervals.
    pub fn start_ns(&self) -> Option<u64> {
        self.records.iter().map(|record| record.start_ns).min()
    }

    /// Returns the latest [`LogRecord::end_ns`], or `None` if the log has no intervals.
    pub fn end_ns(&self) -> Option<u64> {
        self.records.iter().map(LogRecord::end_ns).max()
    }
}

/// Returns `None` for comments without the identity of a run.
fn parse_run_comment(comment: &str) -> Result<Option<RunIdentity>, String> {
    let Some(rest) = comment.strip_prefix(RUN_NAME) else { return Ok(None) };
    let identity = rest.trim().strip_suffix(']').ok_or("missing ]".to_owned());
    let identity = identity.and_then(|text| serde_json::from_str(text).map_err(|error| error.to_string()));
    identity
        .map(Some)
        .map_err(|problem| format!("invalid identity of a run {}: {problem}", excerpt(rest.trim())))
}

/// Returns `None` for comments without error counts.
fn parse_errors_comment(comment: &str) -> Result<Option<ReportedErrors>, String> {
    let Some(rest) = comment.strip_prefix(ERRORS_NAME) else { return Ok(None) };
    let text = rest.trim();
    let counts = text.strip_suffix(']').ok_or("missing ]").and_then(|counts| match counts {
        NO_ERRORS => Ok(ReportedErrors { known: Errors::default(), is_complete: true }),
        UNKNOWN_ERRORS => Ok(ReportedErrors::default()),
        counts => {
            let known = counts.strip_suffix(UNKNOWN_ERRORS).and_then(|counts| counts.strip_suffix(';'));
            let is_complete = known.is_none();
            Errors::parse_by_kind(known.unwrap_or(counts)).map(|known| ReportedErrors { known, is_complete })
        }
    });
    counts.map(Some).map_err(|problem| format!("invalid error counts {}: {problem}", excerpt(text)))
}

/// Reference time for interval starts, according to the headers read so far.
#[derive(Default)]
struct TimeBase {
    base_ns: Option<u64>,
    start_ns: Option<u64>,
    /// For logs without a base time: whether interval starts are relative to the start time in the header. Determined
    /// by the first interval after the header.
    from_start: Option<bool>,
}

impl TimeBase {
    /// Parses a header; other comments are ignored. Returns the time if the header is a start time.
    fn parse_comment(&mut self, comment: &str) -> Result<Option<u64>, String> {
        let number =
            |text: &str| text.trim_start().split([' ', ',', ']']).next().unwrap_or_default().to_owned();
        if let Some(rest) = comment.strip_prefix("[BaseTime:") {
            self.base_ns = Some(parse_seconds("base time", &number(rest))?);
        } else if let Some(rest) = comment.strip_prefix("[StartTime:") {
            self.start_ns = Some(parse_seconds("start time", &number(rest))?);
            self.from_start = None;
            return Ok(self.start_ns);
        }
        Ok(None)
    }

    /// Returns the offset to add to the start of an interval. If the log has no base time, an interval start more than
    /// a year before the start time in the header is interpreted as relative to it, as in the Java library; other
    /// interval starts are interpreted as Unix times.
    fn offset_ns(&mut self, start_ns: u64) -> u64 {
        const YEAR_NS: u64 = 365 * 24 * 3600 * NS_PER_S;
        match (self.base_ns, self.start_ns) {
            (Some(base_ns), _) => base_ns,
            (None, Some(began_ns)) => {
                let from_start = || start_ns.saturating_add(YEAR_NS) < began_ns;
                if *self.from_start.get_or_insert_with(from_start) { began_ns } else { 0 }
            }
            (None, None) => 0,
        }
    }
}

impl LogRecord {
    fn parse(line: &str, number: usize, base: &mut TimeBase) -> Result<Self, String> {
        let (tag, rest) = match line.strip_prefix("Tag=") {
            None => (None, line),
            Some(rest) => {
                let (tag, rest) = rest.split_once(',').ok_or("missing columns after the tag")?;
                if !is_tag(tag) {
                    return Err(format!("invalid tag {}: empty, or contains a space", excerpt(tag)));
                }
                (Some(tag.to_owned()), rest)
            }
        };
        let columns: Vec<&str> = rest.split(',').collect();
        let &[start, length, max, encoded] = columns.as_slice() else {
            let count = columns.len();
            return Err(format!("expected 4 columns (start, length, maximum, histogram), found {count}"));
        };
        let (start_ns, length_ns) = (parse_seconds("start", start)?, parse_seconds("length", length)?);
        max.trim().parse::<f64>().map_err(|_| format!("invalid maximum {}: not a number", excerpt(max)))?;
        Ok(Self {
            line: number,
            tag,
            start_ns: start_ns + base.offset_ns(start_ns),
            length_ns,
            encoded: encoded.trim().to_owned(),
        })
    }

    /// Returns the end of the interval, in nanoseconds relative to the same origin as [`start_ns`](Self::start_ns).
    pub fn end_ns(&self) -> u64 {
        self.start_ns + self.length_ns
    }

    /// Decodes the histogram. Returns a [`LogError`] if the text is not a valid histogram in V2 encoding.
    pub fn histogram(&self) -> Result<Histogram<u64>, LogError> {
        decode(&self.encoded).map_err(|problem| LogError { line: self.line, problem })
    }
}

/// Parses decimal seconds and returns nanoseconds. Digits after the ninth decimal are truncated.
fn parse_seconds(name: &str, text: &str) -> Result<u64, String> {
    let invalid = |problem: &str| format!("invalid {name} {}: {problem}", excerpt(text));
    let (seconds, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    if seconds.is_empty() || !seconds.bytes().chain(decimals.bytes()).all(|byte| byte.is_ascii_digit()) {
        return Err(invalid("not a number of seconds"));
    }
    let digits = decimals.bytes().map(|digit| u64::from(digit - b'0')).chain(std::iter::repeat(0));
    let ns = digits.take(9).fold(0, |ns, digit| ns * 10 + digit);
    let whole_ns = seconds.parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(NS_PER_S));
    let time_ns = whole_ns.and_then(|whole_ns| whole_ns.checked_add(ns)).filter(|&ns| ns <= MAX_TIME_NS);
    time_ns.ok_or_else(|| invalid("time out of range"))
}

/// Returns the first 40 characters of a string, quoted, for error messages.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}
