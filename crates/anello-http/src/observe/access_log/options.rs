//! Access log options.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::line::{LineWriter, LogFormat};

/// Access log options: target, line format and memory limits.
///
/// ```
/// use anello_http::observe::access_log::{AccessLogOptions, LogFormat, LogTarget};
///
/// let options = AccessLogOptions::default().format(LogFormat::Json);
/// assert_eq!(options.target, LogTarget::Stdout);
/// let options = options.target(LogTarget::File("access.log".into()));
/// assert_eq!(options.format, LogFormat::Json);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AccessLogOptions {
    /// File or standard output.
    pub target: LogTarget,
    /// Format of the lines.
    pub format: LogFormat,
    /// Size of one buffer. Default: 32 KiB. Must be able to hold the longest possible line, which is 384 bytes plus
    /// four times [`max_field_bytes`](Self::max_field_bytes).
    pub buffer_bytes: usize,
    /// Maximum number of buffers per worker. Default: 128, which is 4 MiB with the default buffer size. Buffers are
    /// allocated on demand, and all but a few are freed when they are no longer needed. Minimum: 2, so that a worker
    /// can fill one buffer while the other is written.
    pub max_buffers: usize,
    /// Maximum size of each field with data from the peer (method, target, referer, user agent), measured after
    /// escaping. Default: 4096. Longer values are truncated and end in `...`.
    pub max_field_bytes: usize,
    /// Age at which a partly filled buffer is flushed. Default: 1 s.
    pub flush_interval: Duration,
    /// Delay before a failed write or open is retried. Default: 1 s.
    pub retry_interval: Duration,
    /// Maximum time that closing the log may take. Default: 2 s. Lines that have not been written by then are dropped.
    pub close_timeout: Duration,
}

setters!(AccessLogOptions {
    target: LogTarget = LogTarget::File("access.log".into()),
    format: LogFormat = LogFormat::Json,
    buffer_bytes: usize = 64 * 1024,
    max_buffers: usize = 16,
    max_field_bytes: usize = 1024,
    flush_interval: Duration = Duration::from_millis(100),
    retry_interval: Duration = Duration::from_secs(5),
    close_timeout: Duration = Duration::from_secs(10),
});

impl Default for AccessLogOptions {
    fn default() -> Self {
        Self {
            target: LogTarget::Stdout,
            format: LogFormat::default(),
            buffer_bytes: 32 * 1024,
            max_buffers: 128,
            max_field_bytes: 4096,
            flush_interval: Duration::from_secs(1),
            retry_interval: Duration::from_secs(1),
            close_timeout: Duration::from_secs(2),
        }
    }
}

impl AccessLogOptions {
    pub(super) fn validate(&self) -> io::Result<()> {
        let max_line_bytes = LineWriter::max_line_bytes(self.max_field_bytes);
        let message = if self.buffer_bytes < max_line_bytes {
            format!(
                "access log buffer too small: {} bytes (at least {max_line_bytes} required for fields of {} bytes)",
                self.buffer_bytes, self.max_field_bytes
            )
        } else if self.max_buffers < 2 {
            "too few access log buffers (at least 2 buffers per worker required)".to_owned()
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

/// Destination of the log lines.
///
/// ```
/// use anello_http::observe::access_log::{AccessLogOptions, LogTarget};
///
/// let options = AccessLogOptions::default().target(LogTarget::File("access.log".into()));
/// assert_ne!(options.target, LogTarget::Stdout);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogTarget {
    /// Standard output. Its descriptor is duplicated when the log is started.
    Stdout,
    /// A file, opened for appending. A missing file is created with mode 0640, because log lines contain personal data.
    /// For a FIFO, lines are buffered until it has a reader.
    File(PathBuf),
}
