//! The flags of `anello http` that are about files and connections.

use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anello_http::ServerOptions;
use anello_http::files::cache_control::CacheRule;
use anello_http::files::negotiate::{Coding, Codings};
use anello_http::files::options::{FileOptions, Symlinks};
use anello_http::files::path::Dotfiles;
use anello_http::h1::Limits;
use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogFormat, LogTarget};
use anello_http::server::TlsConfig;
use clap::{Args, ValueEnum};

use crate::duration;

/// What is served, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files")]
pub struct FileFlags {
    /// The file that is sent for the folder that it is in: the first that exists. May be given several times.
    #[arg(long = "index", value_name = "NAME", default_value = "index.html")]
    index_files: Vec<String>,

    /// Show folders without an index file as lists of what is in them.
    #[arg(long)]
    listing: bool,

    /// Most entries of a folder that are listed.
    #[arg(long, value_name = "N", default_value_t = FileOptions::default().max_listing_entries)]
    max_listing_entries: usize,

    /// Send FILE.br, FILE.zst or FILE.gz instead of FILE to clients that accept it; by default all three, with a list
    /// only these.
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "br,zstd,gzip")]
    precompressed: Vec<Precompressed>,

    /// The Cache-Control of files that match a pattern, as in 'assets/**=max-age=31536000, immutable'; the first that
    /// matches counts. May be given several times.
    #[arg(long, value_name = "GLOB=VALUE", value_parser = cache_rule)]
    cache_control: Vec<CacheRule>,

    /// The media type of an extension, as in 'foo=application/x-foo'. May be given several times.
    #[arg(long = "media-type", value_name = "EXTENSION=TYPE", value_parser = media_type)]
    media_types: Vec<(String, String)>,

    /// The media type of files of an unknown extension.
    #[arg(long, value_name = "TYPE", default_value_t = FileOptions::default().default_media_type)]
    default_media_type: String,

    /// The file that is the body of answers of status 404.
    #[arg(long, value_name = "PATH")]
    not_found_file: Option<String>,

    /// The file that is sent, with status 200, for paths without an extension where there is no file.
    #[arg(long, value_name = "PATH")]
    spa_fallback: Option<String>,

    /// Serve files and folders whose names begin with a dot.
    #[arg(long)]
    dotfiles: bool,

    /// Sites whose scripts may read what is served, as in `https://example.org`, or * for all. May be given several times.
    #[arg(long = "cors-origin", value_name = "ORIGIN")]
    cors_origins: Vec<String>,

    /// Follow no symbolic links. Otherwise those that stay below the folder are followed.
    #[arg(long)]
    no_symlinks: bool,

    /// Memory for the contents of small files, in bytes, of each worker; 0 keeps none.
    #[arg(long, value_name = "BYTES", default_value_t = FileOptions::default().max_cache_bytes)]
    max_cache_bytes: usize,

    /// Largest file whose contents are kept in memory, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = FileOptions::default().max_cached_file_bytes)]
    max_cached_file_bytes: usize,

    /// How long a file that was looked at counts as unchanged.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s")]
    revalidate_interval: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Precompressed {
    Br,
    Zstd,
    Gzip,
}

impl FileFlags {
    /// Of each of so many workers.
    pub fn into_options(self, workers: usize) -> FileOptions {
        let coding = |precompressed: Precompressed| match precompressed {
            Precompressed::Br => Coding::Brotli,
            Precompressed::Zstd => Coding::Zstandard,
            Precompressed::Gzip => Coding::Gzip,
        };
        FileOptions {
            index_files: self.index_files,
            listing: self.listing,
            max_listing_entries: self.max_listing_entries,
            precompressed: self.precompressed.into_iter().map(coding).collect::<Codings>(),
            cache_control: self.cache_control,
            media_types: self.media_types.into_iter().collect(),
            default_media_type: self.default_media_type,
            not_found_file: self.not_found_file,
            spa_fallback_file: self.spa_fallback,
            dotfiles: if self.dotfiles { Dotfiles::Serve } else { Dotfiles::Hide },
            cors_origins: self.cors_origins,
            symlinks: if self.no_symlinks { Symlinks::Deny } else { Symlinks::FollowBeneath },
            max_cache_bytes: self.max_cache_bytes,
            max_cached_file_bytes: self.max_cached_file_bytes.min(self.max_cache_bytes),
            workers,
            revalidate_interval: self.revalidate_interval,
        }
    }
}

fn pair(text: &str, example: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("{text:?} lacks a =, as in '{example}'"))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn media_type(text: &str) -> Result<(String, String), String> {
    pair(text, "foo=text/plain")
}

fn cache_rule(text: &str) -> Result<CacheRule, String> {
    let (pattern, value) = pair(text, "assets/**=max-age=31536000")?;
    Ok(CacheRule { pattern, value })
}

/// What the server tells of itself.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Observation")]
pub struct ObserverFlags {
    /// Log every request there: a file, or - for standard output. SIGHUP opens the file anew, for what rotates logs.
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// How lines of the access log look.
    #[arg(long, value_name = "FORMAT", default_value = "combined")]
    access_log_format: LogFormat,

    /// Serve /metrics (for Prometheus) and /health there, by a thread of their own.
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_addr: Option<SocketAddr>,
}

impl ObserverFlags {
    /// The file of the access log, if it goes to one.
    pub fn access_log_file(&self) -> Option<&Path> {
        self.access_log.as_deref().filter(|path| path.as_os_str() != "-")
    }

    pub fn start_log(&self) -> io::Result<Option<AccessLog>> {
        let Some(path) = &self.access_log else { return Ok(None) };
        let mut options = AccessLogOptions::default();
        options.format = self.access_log_format;
        options.target =
            self.access_log_file().map_or(LogTarget::Stdout, |file| LogTarget::File(file.to_owned()));
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("the access log {}: {error}", path.display()))
        };
        AccessLog::start(options).map(Some).map_err(named)
    }
}

/// TLS.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// The chain of certificates, in PEM: with it, TLS is spoken. SIGHUP reads it and the key anew.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The key of the first certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsFlags {
    /// The files that are read.
    pub fn files(&self) -> Vec<&Path> {
        [&self.tls_cert, &self.tls_key].into_iter().flatten().map(PathBuf::as_path).collect()
    }

    pub fn read(&self) -> io::Result<Option<TlsConfig>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificates), Some(key)) => TlsConfig::from_pem_files(certificates, key).map(Some),
            _ => Ok(None),
        }
    }
}

/// Limits and deadlines of connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connections")]
pub struct ConnectionFlags {
    /// Most connections at a time, over all workers; further clients are answered 503. By default 10000, or fewer where the
    /// limit of open files (ulimit -Hn) has no room for that. Beyond what it has room for, the longest idle ones are closed.
    #[arg(long, value_name = "N")]
    max_connections: Option<NonZero<usize>>,

    /// How long the head of a request may take. As all deadlines of connections it is looked at four times a second, and
    /// strikes up to half a second late.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_nonzero, default_value = "10s")]
    header_timeout: Duration,

    /// How long a connection may be idle between requests.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "60s")]
    keep_alive_timeout: Duration,

    /// How long the body of a request may take beyond what --min-body-rate allows it.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_nonzero, default_value = "10s")]
    body_timeout: Duration,

    /// The least rate of a body, in bytes a second from its start on.
    #[arg(long, value_name = "N", default_value_t = ServerOptions::default().min_body_bytes_per_second)]
    min_body_rate: u64,

    /// How long a client may take none of what it is sent, once the kernel's buffers for it are full.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_nonzero, default_value = "30s")]
    send_timeout: Duration,

    /// How long a request may take in all; for ever by default.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_nonzero)]
    request_timeout: Option<Duration>,

    /// How long a client that still sends is listened to after the server has ended the connection, so that the last
    /// answer is not lost.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "2s")]
    linger_timeout: Duration,

    /// Longest request line, in bytes; more is answered 414.
    #[arg(long, value_name = "BYTES", default_value_t = at_least_one(Limits::default().max_request_line_bytes))]
    max_request_line_bytes: NonZero<usize>,

    /// Longest head of a request, its line and all fields, in bytes; more is answered 431.
    #[arg(long, value_name = "BYTES", default_value_t = at_least_one(Limits::default().max_head_bytes))]
    max_head_bytes: NonZero<usize>,

    /// Most fields of a head; more are answered 431.
    #[arg(long, value_name = "N", default_value_t = at_least_one(Limits::default().max_fields))]
    max_head_fields: NonZero<usize>,

    /// Longest body of a request, in bytes; more is answered 413.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body_bytes)]
    max_body_bytes: u64,

    /// Most bytes of a body that are read and dropped to keep the connection, since files need none; with more to come
    /// it is closed behind the answer.
    #[arg(long, value_name = "BYTES", default_value_t = ServerOptions::default().max_discarded_body_bytes)]
    max_discarded_body_bytes: u64,

    /// Most requests of a connection.
    #[arg(long, value_name = "N", default_value = "1000000")]
    max_requests_per_connection: NonZero<u64>,

    /// How long requests may take after a signal.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    drain_timeout: Duration,

    /// How long a connection must have been idle to be closed at once after a signal; others are told with their next
    /// answer.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "500ms")]
    drain_min_idle: Duration,
}

/// A default as a flag has it that may not be zero.
fn at_least_one(count: usize) -> NonZero<usize> {
    NonZero::new(count).unwrap_or(NonZero::<usize>::MIN)
}

impl ConnectionFlags {
    /// What the command line says.
    pub fn max_connections(&self) -> Option<usize> {
        self.max_connections.map(NonZero::get)
    }

    pub fn options(&self) -> ServerOptions {
        let mut options = ServerOptions::default();
        if let Some(max_connections) = self.max_connections() {
            options.max_connections = max_connections;
        }
        options.header_timeout = self.header_timeout;
        options.keep_alive_timeout = self.keep_alive_timeout;
        options.body_timeout = self.body_timeout;
        options.min_body_bytes_per_second = self.min_body_rate;
        options.send_timeout = self.send_timeout;
        options.request_timeout = self.request_timeout;
        options.linger_timeout = self.linger_timeout;
        options.max_discarded_body_bytes = self.max_discarded_body_bytes;
        options.limits.max_request_line_bytes = self.max_request_line_bytes.get();
        options.limits.max_head_bytes = self.max_head_bytes.get();
        options.limits.max_fields = self.max_head_fields.get();
        options.limits.max_body_bytes = self.max_body_bytes;
        options.limits.max_requests_per_connection = self.max_requests_per_connection.get();
        options.drain_timeout = self.drain_timeout;
        options.drain_min_idle = self.drain_min_idle;
        options
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        connections: ConnectionFlags,
    }

    fn options(flags: &[&str]) -> ServerOptions {
        let given = ["http"].iter().chain(flags);
        let matches = Flags::command().try_get_matches_from(given).expect("well-formed");
        Flags::from_arg_matches(&matches).expect("complete").connections.options()
    }

    #[test]
    fn without_flags_a_connection_has_the_defaults_of_the_library() {
        assert_eq!(format!("{:?}", options(&[])), format!("{:?}", ServerOptions::default()));
    }

    #[test]
    fn every_limit_and_deadline_arrives() {
        let flags = [
            "--max-connections=7",
            "--header-timeout=1s",
            "--keep-alive-timeout=2s",
            "--body-timeout=3s",
            "--min-body-rate=4",
            "--send-timeout=5s",
            "--request-timeout=6s",
            "--linger-timeout=7s",
            "--max-request-line-bytes=8",
            "--max-head-bytes=9",
            "--max-head-fields=10",
            "--max-body-bytes=11",
            "--max-discarded-body-bytes=12",
            "--max-requests-per-connection=13",
            "--drain-timeout=14s",
            "--drain-min-idle=15s",
        ];
        let flagged = Flags::command();
        assert_eq!(flagged.get_arguments().count(), flags.len(), "each flag is tried");
        let mut expected = ServerOptions::default();
        let seconds = Duration::from_secs;
        expected.max_connections = 7;
        expected.header_timeout = seconds(1);
        expected.keep_alive_timeout = seconds(2);
        expected.body_timeout = seconds(3);
        expected.min_body_bytes_per_second = 4;
        expected.send_timeout = seconds(5);
        expected.request_timeout = Some(seconds(6));
        expected.linger_timeout = seconds(7);
        expected.limits.max_request_line_bytes = 8;
        expected.limits.max_head_bytes = 9;
        expected.limits.max_fields = 10;
        expected.limits.max_body_bytes = 11;
        expected.max_discarded_body_bytes = 12;
        expected.limits.max_requests_per_connection = 13;
        expected.drain_timeout = seconds(14);
        expected.drain_min_idle = seconds(15);
        assert_eq!(format!("{:?}", options(&flags)), format!("{expected:?}"));
    }
}
