//! The interval log of HdrHistogram: latencies of every interval without loss, in the text form that the tools around
//! HdrHistogram read (`HistogramLogProcessor` and plotters).
//!
//! ```text
//!  #latencies in nanoseconds, maxima in milliseconds
//!  #[Histogram log format version 1.3]
//!  #[StartTime: 1700000000.250 (seconds since epoch)]      when the measurement began
//!  #[BaseTime: 1700000000.250 (seconds since epoch)]       what starts count from
//!  "StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
//!  0.000,1.000,3.401,HISTFAAAAC…                           start s, length s, maximum ms, histogram
//!  Tag=uncorrected,0.000,1.000,0.213,HISTFAAAAB…
//!  #[AnelloErrors: reset=3;timeout=1]                      at the end: all that went wrong, or none, or …;unknown
//! ```
//!
//! Decisions:
//! - Times have three decimals, as in the logs of the Java library: some readers take the decimals for milliseconds
//!   whatever their number. Ends are rounded, not lengths, so that consecutive intervals stay consecutive.
//! - The main figures have no tag, because readers show lines without a tag unless told otherwise.
//! - What went wrong is told in a comment: other programs have no place for it. The readers of the Java, Go,
//!   JavaScript, Python and Rust libraries skip it; that of the C library returns every interval, and there `EINVAL`
//!   instead of the end. A run without that comment, as one that was killed, says nothing about errors. A log of
//!   several runs of which only some tell, and a sum of such logs, is known in part: that is no log without errors.
//! - A histogram is the *V2 compressed* form in base64: a cookie, a length, and in zlib a second cookie, length, layout,
//!   and the counts as ZigZag LEB128 numbers, negative for runs of zeros.
//!
//! The log is untrusted when it is read: nothing is allocated by a length that it claims, numbers are checked before
//! they are used, and errors name the line. Lines are kept encoded until their histogram is asked for, since a decoded
//! one takes a hundred times the memory.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

use crate::errors::Errors;
use crate::interval::Interval;

/// The tag of latencies from the actual sending, beside those from the scheduled time.
pub const UNCORRECTED: &str = "uncorrected";

const VERSION_LINE: &str = "#[Histogram log format version 1.3]";
const LEGEND: &str = r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#;

/// What the comment with the errors begins with, after the `#`; what stands there if there were none; and what stands
/// there, after those that are known, if there may be more.
const ERRORS_NAME: &str = "[AnelloErrors:";
const NO_ERRORS: &str = "none";
const UNKNOWN_ERRORS: &str = "unknown";

/// What encodings begin with; the 0x10 means counts of variable length.
const V2_COOKIE: u32 = 0x1c84_9303 | 0x10;
const V2_COMPRESSED_COOKIE: u32 = 0x1c84_9304 | 0x10;
/// The older encodings, whatever their size of counts, and histograms of decimal fractions.
const OLD_COOKIES: [u32; 4] = [0x1c84_9301, 0x1c84_9302, 0x1c84_9308, 0x1c84_9309];
const DOUBLE_COOKIES: [u32; 2] = [0x0c72_124e, 0x0c72_124f];

/// Bytes before the counts of a histogram: cookie, length, offset, digits, lowest, highest, ratio.
const HEADER_BYTES: usize = 40;

/// Most bytes of an encoded histogram: the finest layout has 6 million counts of at most 9 bytes.
const MAX_ENCODED_BYTES: u64 = 64 << 20;

/// Largest time in a log, in nanoseconds: sums of two must fit.
const MAX_TIME_NS: u64 = u64::MAX / 4;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Writes a log line by line.
pub struct HdrLogWriter<W> {
    output: W,
    serializer: V2DeflateSerializer,
}

impl<W: Write> HdrLogWriter<W> {
    /// Writes the header. `began_unix_ns` is when the measurement began, in nanoseconds since 1970: starts of intervals
    /// count from it. Comments are lines for people, as what was measured; line breaks in them begin new comments.
    ///
    /// # Errors
    /// Those of the output.
    pub fn new(mut output: W, began_unix_ns: u64, comments: &[&str]) -> io::Result<Self> {
        for line in comments.iter().flat_map(|comment| comment.lines()) {
            // A comment that looks like a header would be taken for one.
            let space = if line.starts_with('[') { " " } else { "" };
            writeln!(output, "#{space}{line}")?;
        }
        let began = Milliseconds::of(began_unix_ns);
        writeln!(output, "#latencies in nanoseconds, maxima in milliseconds\n{VERSION_LINE}")?;
        writeln!(output, "#[StartTime: {began} (seconds since epoch)]")?;
        writeln!(output, "#[BaseTime: {began} (seconds since epoch)]\n{LEGEND}")?;
        output.flush()?;
        Ok(Self { output, serializer: V2DeflateSerializer::new() })
    }

    /// Writes an interval: a line for the latency, and one with the tag [`UNCORRECTED`] if there is that.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&mut self, interval: &Interval) -> io::Result<()> {
        let (start_ns, end_ns) = (interval.start_ns, interval.end_ns());
        self.write_histogram(None, start_ns, end_ns, &interval.latency)?;
        match &interval.uncorrected {
            None => Ok(()),
            Some(uncorrected) => self.write_histogram(Some(UNCORRECTED), start_ns, end_ns, uncorrected),
        }
    }

    /// Writes one line. Times are nanoseconds since the measurement began.
    ///
    /// # Errors
    /// Those of the output; `InvalidInput` for a tag with a comma, a space or a line break.
    pub fn write_histogram(
        &mut self,
        tag: Option<&str>,
        start_ns: u64,
        end_ns: u64,
        histogram: &Histogram<u64>,
    ) -> io::Result<()> {
        let tag = match tag {
            None => Cow::Borrowed(""),
            Some(tag) if is_tag(tag) => Cow::Owned(format!("Tag={tag},")),
            Some(tag) => {
                let why = format!("the tag {tag:?} has a comma, a space or a line break, or is empty");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        };
        let mut encoded = Vec::new();
        self.serializer.serialize(histogram, &mut encoded).map_err(io::Error::other)?;
        let (start, end) = (Milliseconds::of(start_ns), Milliseconds::of(end_ns));
        let length = Milliseconds(end.0.saturating_sub(start.0));
        let max_ms = histogram.max() as f64 / NS_PER_MS as f64;
        let line = format!("{tag}{start},{length},{max_ms:.3},{}\n", BASE64.encode(encoded));
        self.output.write_all(line.as_bytes())?;
        self.output.flush()
    }

    /// Writes how often what went wrong, over all intervals and before them: a comment at the end of the run.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write_errors(&mut self, errors: &Errors) -> io::Result<()> {
        self.write_error_counts(if errors.is_empty() { NO_ERRORS.to_owned() } else { errors.by_kind() })
    }

    /// Writes what is known of the errors of several runs. Where nothing is, there is no comment.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write_reported_errors(&mut self, errors: &ReportedErrors) -> io::Result<()> {
        match (errors.is_complete, errors.is_unknown()) {
            (true, _) => self.write_errors(&errors.known),
            (false, true) => Ok(()),
            (false, false) => self.write_error_counts(format!("{};{UNKNOWN_ERRORS}", errors.known.by_kind())),
        }
    }

    fn write_error_counts(&mut self, counts: String) -> io::Result<()> {
        self.output.write_all(format!("#{ERRORS_NAME} {counts}]\n").as_bytes())?;
        self.output.flush()
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.output
    }
}

impl<W> fmt::Debug for HdrLogWriter<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HdrLogWriter").finish_non_exhaustive()
    }
}

/// A time in whole milliseconds, shown as seconds with three decimals.
#[derive(Clone, Copy)]
struct Milliseconds(u64);

impl Milliseconds {
    /// The nearest.
    fn of(ns: u64) -> Self {
        Self(ns / NS_PER_MS + u64::from(ns % NS_PER_MS >= NS_PER_MS / 2))
    }
}

impl fmt::Display for Milliseconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Whether readers can tell a tag from what follows it.
fn is_tag(tag: &str) -> bool {
    !tag.is_empty() && !tag.contains([',', ' ', '\r', '\n'])
}

/// What is wrong with a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogError {
    /// The line, counted from 1.
    pub line: usize,
    /// The cause in words.
    pub problem: String,
}

impl fmt::Display for LogError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for LogError {}

/// A log that has been read; its histograms are still encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HdrLog {
    /// All intervals in the order of the log.
    pub records: Vec<LogRecord>,
    /// The earliest start time of its headers, in nanoseconds since 1970; none if it has no such header.
    pub began_ns: Option<u64>,
    /// What went wrong, of all runs in the log together.
    pub errors: ReportedErrors,
}

/// What is known of what went wrong in one or several runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedErrors {
    /// What is known of, without examples.
    pub known: Errors,
    /// Whether every run tells. Where one does not, as one of another program, or one that was killed or failed, there
    /// may have been more.
    pub is_complete: bool,
}

impl ReportedErrors {
    /// Whether nothing is known: neither that something went wrong nor that nothing did.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        !self.is_complete && self.known.is_empty()
    }
}

/// One line of a log: an interval under one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it stands in the log, counted from 1.
    pub line: usize,
    /// Its tag, if any.
    pub tag: Option<String>,
    /// When it began, in nanoseconds: since 1970 if the log has a base or start time or times like that, else since
    /// whatever the writer of the log counted from.
    pub start_ns: u64,
    /// How long it was, in nanoseconds.
    pub length_ns: u64,
    /// The histogram in base64.
    encoded: String,
}

impl HdrLog {
    /// Reads a log, also of other programs: with and without headers, of several runs one after the other, with line
    /// ends of other systems.
    ///
    /// Histograms are not decoded yet: [`LogRecord::histogram`] does that and finds what is wrong with them.
    ///
    /// # Errors
    /// The first line that is neither a comment nor an interval.
    pub fn parse(text: &[u8]) -> Result<Self, LogError> {
        let mut log = Self::default();
        let mut base = TimeBase::default();
        let mut error_comments = ErrorCommentParser::default();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let at_line = |problem: String| LogError { line: index + 1, problem };
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(comment) = line.strip_prefix(b"#") {
                // Comments may have any bytes.
                let comment = String::from_utf8_lossy(comment);
                if let Some(began_ns) = base.parse_comment(&comment).map_err(at_line)? {
                    log.began_ns = Some(log.began_ns.map_or(began_ns, |first| first.min(began_ns)));
                    error_comments.start_log();
                }
                if let Some(errors) = parse_errors_comment(&comment).map_err(at_line)? {
                    error_comments.add_errors(errors).map_err(|why| at_line(why.to_owned()))?;
                }
                continue;
            }
            let line = str::from_utf8(line).map_err(|_| at_line("has bytes that are no text".to_owned()))?;
            if line.trim().is_empty() || line.starts_with("\"StartTimestamp\"") {
                continue;
            }
            log.records.push(LogRecord::parse(line, index + 1, &mut base).map_err(at_line)?);
            error_comments.add_record();
        }
        log.errors = error_comments.finish();
        Ok(log)
    }

    /// When the first interval began, in nanoseconds; none if there is none.
    #[must_use]
    pub fn start_ns(&self) -> Option<u64> {
        self.records.iter().map(|record| record.start_ns).min()
    }

    /// When the last interval ended, in nanoseconds; none if there is none.
    #[must_use]
    pub fn end_ns(&self) -> Option<u64> {
        self.records.iter().map(LogRecord::end_ns).max()
    }
}

/// The errors that a comment tells; none if it is another.
fn parse_errors_comment(comment: &str) -> Result<Option<ReportedErrors>, String> {
    let Some(rest) = comment.strip_prefix(ERRORS_NAME) else { return Ok(None) };
    let text = rest.trim();
    let counts = text.strip_suffix(']').ok_or("not ended by a ]").and_then(|counts| match counts {
        NO_ERRORS => Ok(ReportedErrors { known: Errors::default(), is_complete: true }),
        UNKNOWN_ERRORS => Ok(ReportedErrors::default()),
        counts => {
            let known = counts.strip_suffix(UNKNOWN_ERRORS).and_then(|counts| counts.strip_suffix(';'));
            let is_complete = known.is_none();
            Errors::parse_by_kind(known.unwrap_or(counts)).map(|known| ReportedErrors { known, is_complete })
        }
    });
    counts.map(Some).map_err(|why| format!("the errors {} are {why}", excerpt(text)))
}

/// What the runs of a log tell of their errors, up to some line. A run goes from its start time, or from its first
/// interval, to its comment with the errors.
#[derive(Default)]
struct ErrorCommentParser {
    known: Errors,
    has_errors_comment: bool,
    /// Whether a run has begun that has not told yet.
    has_unreported_records: bool,
    /// Whether a run has not told, or not all.
    is_incomplete: bool,
}

impl ErrorCommentParser {
    /// Another run begins; the one before will not tell any more.
    fn start_log(&mut self) {
        self.is_incomplete |= self.has_unreported_records;
        self.has_unreported_records = true;
    }

    /// There is an interval, which may be of a run without a header.
    fn add_record(&mut self) {
        self.has_unreported_records = true;
    }

    fn add_errors(&mut self, errors: ReportedErrors) -> Result<(), &'static str> {
        self.has_errors_comment = true;
        self.has_unreported_records = false;
        self.is_incomplete |= !errors.is_complete;
        self.known.try_merge(errors.known)
    }

    fn finish(self) -> ReportedErrors {
        ReportedErrors {
            known: self.known,
            is_complete: self.has_errors_comment && !self.has_unreported_records && !self.is_incomplete,
        }
    }
}

/// What starts of intervals count from, as the headers up to some line say.
#[derive(Default)]
struct TimeBase {
    base_ns: Option<u64>,
    start_ns: Option<u64>,
    /// Without a base time: whether starts count from the start time, once the first interval has told.
    from_start: Option<bool>,
}

impl TimeBase {
    /// Takes note of a header; other comments are passed over. Returns the start time if it is one.
    fn parse_comment(&mut self, comment: &str) -> Result<Option<u64>, String> {
        let seconds = |text: &str, name: &str| {
            let number = text.trim_start().split([' ', ',', ']']).next().unwrap_or_default();
            parse_seconds(number).map_err(|why| format!("the {name} {} {why}", excerpt(number)))
        };
        if let Some(rest) = comment.strip_prefix("[BaseTime:") {
            self.base_ns = Some(seconds(rest, "base time")?);
        } else if let Some(rest) = comment.strip_prefix("[StartTime:") {
            self.start_ns = Some(seconds(rest, "start time")?);
            self.from_start = None;
            return Ok(self.start_ns);
        }
        Ok(None)
    }

    /// What to add to the start of an interval. Without a base time, starts that are more than a year before the start
    /// time can only count from it; other logs have whole Unix times. That is the rule of the Java library.
    fn offset_ns(&mut self, start_ns: u64) -> u64 {
        const YEAR_NS: u64 = 365 * 24 * 3600 * NS_PER_S;
        let Some(began_ns) = self.start_ns else { return self.base_ns.unwrap_or(0) };
        let from_start = || start_ns.saturating_add(YEAR_NS) < began_ns;
        match self.base_ns {
            Some(base_ns) => base_ns,
            None if *self.from_start.get_or_insert_with(from_start) => began_ns,
            None => 0,
        }
    }
}

impl LogRecord {
    fn parse(line: &str, number: usize, base: &mut TimeBase) -> Result<Self, String> {
        let (tag, rest) = match line.strip_prefix("Tag=") {
            None => (None, line),
            Some(rest) => {
                let (tag, rest) = rest.split_once(',').ok_or("ends after the tag")?;
                if !is_tag(tag) {
                    return Err(format!("the tag {} is empty or has a space", excerpt(tag)));
                }
                (Some(tag.to_owned()), rest)
            }
        };
        let columns: Vec<&str> = rest.split(',').collect();
        let &[start, length, max, encoded] = columns.as_slice() else {
            return Err(format!(
                "has {} columns instead of start, length, maximum, histogram",
                columns.len()
            ));
        };
        let time = |name: &str, text: &str| {
            parse_seconds(text.trim()).map_err(|why| format!("the {name} {} {why}", excerpt(text)))
        };
        let (start_ns, length_ns) = (time("start", start)?, time("length", length)?);
        max.trim().parse::<f64>().map_err(|_| format!("the maximum {} is no number", excerpt(max)))?;
        Ok(Self {
            line: number,
            tag,
            start_ns: start_ns + base.offset_ns(start_ns),
            length_ns,
            encoded: encoded.trim().to_owned(),
        })
    }

    /// When it ended, in nanoseconds; see [`start_ns`](Self::start_ns).
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.start_ns + self.length_ns
    }

    /// Decodes the histogram.
    ///
    /// # Errors
    /// What is wrong with it: not base64, not compressed, not the second version of the encoding, counts that do not
    /// fit.
    pub fn histogram(&self) -> Result<Histogram<u64>, LogError> {
        self.decode().map_err(|problem| LogError { line: self.line, problem })
    }

    fn decode(&self) -> Result<Histogram<u64>, String> {
        let bytes = BASE64.decode(&self.encoded).map_err(|error| format!("no base64: {error}"))?;
        let plain = match read_cookie(&bytes)? {
            V2_COMPRESSED_COOKIE => inflate(&bytes)?,
            _ => bytes,
        };
        check(&plain)?;
        Deserializer::new()
            .deserialize(&mut plain.as_slice())
            .map_err(|error| format!("the histogram: {error}"))
    }
}

/// Seconds with decimals as nanoseconds; decimals beyond the ninth are cut off.
fn parse_seconds(text: &str) -> Result<u64, &'static str> {
    const NO_TIME: &str = "is no number of seconds";
    let (seconds, decimals) = text.split_once('.').unwrap_or((text, ""));
    if seconds.is_empty() || !seconds.bytes().chain(decimals.bytes()).all(|byte| byte.is_ascii_digit()) {
        return Err(NO_TIME);
    }
    let mut ns = 0;
    for index in 0..9 {
        ns = ns * 10 + decimals.as_bytes().get(index).map_or(0, |digit| u64::from(digit - b'0'));
    }
    let whole_ns = seconds.parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(NS_PER_S));
    whole_ns
        .and_then(|whole_ns| whole_ns.checked_add(ns))
        .filter(|&ns| ns <= MAX_TIME_NS)
        .ok_or("is too large a number of seconds")
}

/// The beginning of a text, for error messages.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// The kind of an encoding.
fn read_cookie(bytes: &[u8]) -> Result<u32, String> {
    let cookie = read_u32(bytes, 0).ok_or("the histogram ends early")?;
    match cookie {
        V2_COOKIE | V2_COMPRESSED_COOKIE => Ok(cookie),
        _ if OLD_COOKIES.contains(&(cookie & !0xf0)) => {
            Err("the histogram has an old encoding: only the second version (HIST…) can be read".to_owned())
        }
        _ if DOUBLE_COOKIES.contains(&cookie) => {
            Err("a histogram of decimal fractions: only whole numbers can be read".to_owned())
        }
        _ => Err(format!("no histogram: it begins with {cookie:#010x}")),
    }
}

/// The plain form of a compressed histogram.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let claimed = read_u32(bytes, 4).ok_or("the histogram ends early")?;
    let compressed = &bytes[8..];
    if usize::try_from(claimed).ok() != Some(compressed.len()) {
        return Err(format!("the histogram claims {claimed} compressed bytes and has {}", compressed.len()));
    }
    let mut plain = Vec::new();
    let read = ZlibDecoder::new(compressed).take(MAX_ENCODED_BYTES + 1).read_to_end(&mut plain);
    read.map_err(|error| format!("the histogram cannot be decompressed: {error}"))?;
    match read_cookie(&plain)? {
        V2_COOKIE => Ok(plain),
        _ => Err("the histogram is compressed twice".to_owned()),
    }
}

/// Whether a plain histogram may be handed to the decoder, which believes lengths and numbers.
fn check(plain: &[u8]) -> Result<(), String> {
    let (Some(counts), Some(claimed)) = (plain.get(HEADER_BYTES..), read_u32(plain, 4)) else {
        return Err("the histogram ends within its header".to_owned());
    };
    if usize::try_from(claimed).ok() != Some(counts.len()) || counts.len() as u64 > MAX_ENCODED_BYTES {
        return Err(format!("the histogram claims {claimed} bytes of counts and has {}", counts.len()));
    }
    let (mut index, mut total) = (0u64, 0u64);
    let mut rest = counts;
    while !rest.is_empty() {
        let (number, length) = read_varint(rest).ok_or("the histogram ends within a count")?;
        rest = &rest[length..];
        // ZigZag: odd numbers are negative, and stand for as many zeros.
        let magnitude = (number >> 1) + (number & 1);
        let wide = if number & 1 == 1 { magnitude } else { 1 };
        index =
            index.checked_add(wide).filter(|&index| index <= u64::from(u32::MAX)).ok_or("too many counts")?;
        if number & 1 == 0 {
            total = total.checked_add(magnitude).ok_or("the counts of the histogram are too large")?;
        }
    }
    Ok(())
}

/// The number that the bytes begin with, and its length: seven bits a byte, the ninth byte whole.
fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (index, &byte) in bytes.iter().take(9).enumerate() {
        if index == 8 {
            return Some((number | u64::from(byte) << 56, 9));
        }
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

/// Four bytes as a number.
fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
