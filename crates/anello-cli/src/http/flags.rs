//! Flags of `anello http`.

use std::ffi::OsStr;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anello_http::ServerOptions;
use anello_http::files::cache_control::CacheRule;
use anello_http::files::headers::HeaderRule;
use anello_http::files::negotiate::Coding;
use anello_http::files::options::{FileOptions, Symlinks};
use anello_http::files::path::Dotfiles;
use anello_http::h1::Limits;
use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogFormat, LogTarget};
use anello_http::server::{Http2Mode, ProxyHeader, TlsConfig, TrustedProxy};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::config::FlagProblem;
use super::identity::IdentityFlags;
use super::sandbox::{AllowedPaths, SandboxMode};
use crate::common::address::Address;
use crate::common::admin::AdminFlags;
use crate::common::driver_flags::DriverFlags;
use crate::common::error::Context;
use crate::common::listening::{Distribution, SocketMode};
use crate::common::values::{self, Cores, Size};
use crate::common::worker_flags::WorkerFlags;

const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

/// Serve the files of a directory over HTTP/1.1 and HTTP/2
///
/// Without DIRECTORY, serves the current directory. Prints one ready line with the addresses and a URL, and a line with
/// the sandbox and the kernel features in use. On SIGINT or SIGTERM, the server
/// stops accepting connections and completes the requests in flight; a second signal closes the connections
/// immediately. The exit code is 0, or 1 if access log lines were lost. If a service manager such as systemd passes
/// sockets (LISTEN_FDS), they are used and --addr must be omitted.
#[derive(clap::Args)]
pub struct Arguments {
    /// Document root, or a single file to serve; with --config, the file can set it as `directory`
    #[arg(default_value = ".")]
    pub directory: PathBuf,
    /// Read flags from a TOML file
    ///
    /// The keys are the long flags without the leading dashes, and `directory` for the document root. Flags on the
    /// command line override the file. Relative paths are relative to the working directory, as on the command line.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Validate the configuration without serving
    ///
    /// Prints all problems and exits with 1, or, if there are none, prints the non-default settings as a --config file
    /// and exits with 0.
    #[arg(long)]
    pub check: bool,
    /// Address to listen on; can be repeated [default: 127.0.0.1:8080]
    ///
    /// IP:PORT, where port 0 lets the kernel choose the port; HOST:PORT for the addresses of a host name, such as
    /// localhost; PORT for 127.0.0.1; :PORT for all addresses of this machine; unix:/path for a socket file; or
    /// unix:@name for an abstract Unix address. A stale socket file is replaced at startup, and the file is removed at
    /// exit.
    #[arg(long, value_name = "ADDRESS")]
    pub addr: Vec<Address>,
    /// Permissions of the socket files of --addr, as an octal number, e.g. 660
    ///
    /// By default, the umask determines them. A client needs write permission to connect.
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<SocketMode>,
    /// Owner of the socket files of --addr; by default, this user or that of --user
    #[arg(long, value_name = "USER[:GROUP]")]
    pub socket_owner: Option<String>,
    /// Replace the running server that uses the same PATH, without losing requests, and let a later server replace this
    /// one
    ///
    /// The old server drains and exits. PATH is a Unix socket that only this user may connect to.
    #[arg(long, value_name = "PATH")]
    pub handover: Option<PathBuf>,
    #[command(flatten)]
    pub workers: WorkerFlags,
    /// How connections are distributed across the workers
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Distribution::Balanced)]
    pub distribution: Distribution,
    /// Do not move connections from busy workers to less busy ones
    ///
    /// By default, a worker with more than 1.05 times the average load moves some of its busiest connections to other
    /// workers, between two requests. Connections with TLS or HTTP/2 never move.
    #[arg(long)]
    pub no_rebalance: bool,
    /// Drop unneeded privileges, namely access to files outside the document root, outgoing connections, and most
    /// system calls
    ///
    /// auto applies what the kernel supports (Landlock, seccomp, no_new_privs) and reports what is missing. With on,
    /// startup fails if anything is missing.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = SandboxMode::Auto)]
    pub sandbox: SandboxMode,
    #[command(flatten)]
    pub identity: IdentityFlags,
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub connections: ConnectionFlags,
    #[command(flatten)]
    pub tls: TlsFlags,
    #[command(flatten)]
    pub observer: ObserverFlags,
    #[command(flatten)]
    pub driver: DriverFlags,
}

impl Arguments {
    /// If the document root is a file, serves this file from its directory.
    pub fn select_single_file(&mut self) {
        if let Some(name) = self.directory.file_name().and_then(OsStr::to_str)
            && self.directory.is_file()
        {
            self.files.single_file = Some(name.to_owned());
            let parent = self.directory.parent().filter(|parent| *parent != Path::new(""));
            self.directory = parent.unwrap_or(Path::new(".")).to_owned();
        }
    }

    /// Returns the number of workers: that of the flags, or one for each core that the CPU affinity
    /// (`sched_getaffinity(2)`) and the cgroup quota allow.
    pub fn worker_count(&self) -> usize {
        self.workers.count(|| thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// Returns the problems that the parser of the command line does not find.
    pub fn problems(&self) -> Vec<FlagProblem> {
        let cores = self.workers.cores.as_ref().and_then(Cores::local_problem);
        let cores = cores.map(|reason| FlagProblem { name: "cores", reason });
        let has_socket_file = self.socket_paths().next().is_some();
        let socket_flags =
            [("socket-mode", self.socket_mode.is_some()), ("socket-owner", self.socket_owner.is_some())];
        let unused = socket_flags.into_iter().filter(|(_, is_given)| *is_given && !has_socket_file);
        let reason = "no --addr is a socket file (add --addr unix:/path, or remove this flag)";
        let unused = unused.map(|(name, _)| FlagProblem { name, reason: reason.to_owned() });
        cores.into_iter().chain(unused).collect()
    }

    /// Returns the addresses to listen on.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        match &self.addr[..] {
            [] => Ok(vec![DEFAULT_ADDRESS.parse().map_err(io::Error::other)?]),
            addresses => Ok(addresses.to_vec()),
        }
    }

    /// Returns the paths of --addr that are socket files.
    pub fn socket_paths(&self) -> impl Iterator<Item = &Path> {
        self.addr.iter().filter_map(|address| match address {
            Address::Unix(address) => address.as_pathname(),
            _ => None,
        })
    }

    /// Returns the paths that the server accesses while serving.
    pub fn allowed_paths<'a>(
        &'a self,
        socket_files: impl Iterator<Item = &'a Path>,
    ) -> io::Result<AllowedPaths> {
        Ok(AllowedPaths {
            served: self.directory.canonicalize()?,
            reloaded: self.tls.files(),
            appended: self.observer.access_log_file().map(PathBuf::from).into_iter().collect(),
            sockets: socket_files.chain(self.handover.as_deref()).map(PathBuf::from).collect(),
        })
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files")]
pub struct FileFlags {
    /// The name of the file that is served instead of the document root.
    #[arg(skip)]
    single_file: Option<String>,
    /// Index file to serve for a directory; can be repeated; the first file that exists is served
    #[arg(long = "index", value_name = "NAME", default_value = "index.html")]
    index_files: Vec<String>,
    /// Serve a listing for directories without an index file
    #[arg(long)]
    listing: bool,
    /// Maximum number of entries in a directory listing
    #[arg(long, value_name = "N", default_value_t = FileOptions::default().max_listing_entries)]
    max_listing_entries: usize,
    /// Serve FILE.br, FILE.zst or FILE.gz instead of FILE if the client accepts the encoding; a list limits the
    /// encodings
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "br,zstd,gzip", value_parser = PossibleValuesParser::new(["br", "zstd", "gzip"]).map(coding))]
    precompressed: Vec<Coding>,
    /// Compress files of at least 1 KiB while they are sent, if their type is compressible and the client accepts the
    /// encoding; a list limits the encodings
    ///
    /// Costs processor time for each response; precompressed files are preferred. Do not use it over TLS for files that
    /// contain both secrets and data chosen by others (BREACH).
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "br,zstd,gzip", value_parser = PossibleValuesParser::new(["br", "zstd", "gzip"]).map(coding))]
    compress: Vec<Coding>,
    /// Maximum memory for responses that are being compressed, across all workers; above it, files are sent uncompressed
    ///
    /// An encoder takes up to 4 MiB (br), 1.8 MiB (zstd) or 0.4 MiB (gzip), and less for files below 256 KiB.
    #[arg(long, value_name = "SIZE", value_parser = values::size, default_value = "64MiB")]
    compress_memory: Size,
    /// Cache-Control by pattern, e.g. 'assets/**=max-age=31536000, immutable'; can be repeated; the first match applies
    #[arg(long, value_name = "GLOB=VALUE", value_parser = cache_rule)]
    cache_control: Vec<CacheRule>,
    /// Field to add to responses, e.g. 'Strict-Transport-Security: max-age=31536000'; can be repeated
    ///
    /// Without a pattern, the field is added to all responses of the file server, otherwise to those with a matching
    /// file, e.g. '*.html=Content-Security-Policy: default-src self'. The pattern must not contain a colon.
    #[arg(long = "header", value_name = "[GLOB=]NAME: VALUE", value_parser = header_rule)]
    headers: Vec<HeaderRule>,
    /// Media type for a file extension, e.g. 'foo=application/x-foo'; can be repeated
    #[arg(long = "media-type", value_name = "EXTENSION=TYPE", value_parser = media_type)]
    media_types: Vec<(String, String)>,
    /// Media type for files with an unknown extension
    #[arg(long, value_name = "TYPE", default_value_t = FileOptions::default().default_media_type)]
    default_media_type: String,
    /// File to send as the body of 404 responses
    #[arg(long, value_name = "PATH")]
    not_found_file: Option<String>,
    /// File to send with status 200 if the requested path has no extension and no file exists at that path
    #[arg(long, value_name = "PATH")]
    spa_fallback: Option<String>,
    /// Serve files and directories whose names start with a dot
    #[arg(long)]
    dotfiles: bool,
    /// Origin whose scripts may read the responses, e.g. `https://example.org`, or * for all; can be repeated
    #[arg(long = "cors-origin", value_name = "ORIGIN")]
    cors_origins: Vec<String>,
    /// Do not follow symbolic links; by default, links that stay inside the document root are followed
    #[arg(long)]
    no_symlinks: bool,
    /// Memory per worker for caching the contents of small files, in bytes; 0 disables the cache
    #[arg(long, value_name = "BYTES", default_value_t = FileOptions::default().max_cache_bytes)]
    max_cache_bytes: usize,
    /// Maximum size of a cached file in bytes
    #[arg(long, value_name = "BYTES", default_value_t = FileOptions::default().max_cached_file_bytes)]
    max_cached_file_bytes: usize,
    /// Revalidate a cached file after this interval
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "1s")]
    revalidate_interval: Duration,
}

fn coding(name: String) -> Coding {
    match name.as_str() {
        "br" => Coding::Brotli,
        "zstd" => Coding::Zstandard,
        _ => Coding::Gzip,
    }
}

impl FileFlags {
    /// Returns the options for a server with this number of workers.
    pub fn options(&self, workers: usize) -> FileOptions {
        let flags = self.clone();
        FileOptions::default()
            .index_files(flags.single_file.as_ref().map_or(flags.index_files, |name| vec![name.clone()]))
            .single_file(flags.single_file)
            .listing(flags.listing)
            .max_listing_entries(flags.max_listing_entries)
            .precompressed(flags.precompressed.into_iter().collect())
            .compress(flags.compress.into_iter().collect())
            .max_compress_bytes(flags.compress_memory.0)
            .cache_control(flags.cache_control)
            .headers(flags.headers)
            .media_types(flags.media_types.into_iter().collect())
            .default_media_type(flags.default_media_type)
            .not_found_file(flags.not_found_file)
            .spa_fallback_file(flags.spa_fallback)
            .dotfiles(if flags.dotfiles { Dotfiles::Serve } else { Dotfiles::Hide })
            .cors_origins(flags.cors_origins)
            .symlinks(if flags.no_symlinks { Symlinks::Deny } else { Symlinks::FollowBeneath })
            .max_cache_bytes(flags.max_cache_bytes)
            .max_cached_file_bytes(flags.max_cached_file_bytes.min(flags.max_cache_bytes))
            .workers(workers)
            .revalidate_interval(flags.revalidate_interval)
    }
}

fn parse_pair(text: &str, example: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("invalid value {text:?}: missing = (for example '{example}')"))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn media_type(text: &str) -> Result<(String, String), String> {
    parse_pair(text, "foo=text/plain")
}

fn cache_rule(text: &str) -> Result<CacheRule, String> {
    let (pattern, value) = parse_pair(text, "assets/**=max-age=31536000")?;
    Ok(CacheRule { pattern, value })
}

/// A field name contains no `=`, so one before the colon ends a pattern.
fn header_rule(text: &str) -> Result<HeaderRule, String> {
    let (name, value) = text.split_once(':').ok_or_else(|| {
        format!("invalid field {text:?}: missing colon (for example 'Referrer-Policy: no-referrer')")
    })?;
    let (pattern, name) = match name.split_once('=') {
        Some((pattern, name)) => (Some(pattern.to_owned()), name),
        None => (None, name),
    };
    Ok(HeaderRule { pattern, name: name.trim().to_owned(), value: value.trim().to_owned() })
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Observability")]
pub struct ObserverFlags {
    /// Access log: a file, or - for standard output; SIGHUP reopens the file for log rotation
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Format of access log lines
    #[arg(long, value_name = "FORMAT", default_value = "combined")]
    access_log_format: LogFormat,
    #[command(flatten)]
    pub admin: AdminFlags,
}

impl ObserverFlags {
    pub fn access_log_file(&self) -> Option<&Path> {
        self.access_log.as_deref().filter(|path| path.as_os_str() != "-")
    }

    pub fn start_log(&self) -> io::Result<Option<AccessLog>> {
        let Some(path) = &self.access_log else { return Ok(None) };
        let mut options = AccessLogOptions::default();
        options.format = self.access_log_format;
        options.target =
            self.access_log_file().map_or(LogTarget::Stdout, |file| LogTarget::File(file.to_owned()));
        AccessLog::start(options).map(Some).context(format_args!("access log {}", path.display()))
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// Certificate chain in PEM format; enables TLS. SIGHUP reloads it together with the key
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the first certificate, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsFlags {
    /// Returns the paths of the certificate chain and the key.
    fn files(&self) -> Vec<PathBuf> {
        [&self.tls_cert, &self.tls_key].into_iter().flatten().cloned().collect()
    }

    pub fn read(&self) -> io::Result<Option<TlsConfig>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificates), Some(key)) => TlsConfig::from_pem_files(certificates, key).map(Some),
            _ => Ok(None),
        }
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connections")]
pub struct ConnectionFlags {
    /// Maximum number of connections across all workers; further clients receive 503
    ///
    /// By default 10000, or fewer if the hard limit on open files (ulimit -Hn) is too low. If descriptors run out, the
    /// connections that have been idle longest are closed.
    #[arg(long, value_name = "N")]
    max_connections: Option<NonZero<usize>>,
    /// Time limit for receiving a request head
    ///
    /// Connection timeouts are checked four times a second, so they can fire up to half a second late.
    #[arg(long, value_name = "DURATION", value_parser = values::nonzero_duration, default_value = "10s")]
    header_timeout: Duration,
    /// Close connections that are idle between requests for this long
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "60s")]
    keep_alive_timeout: Duration,
    /// Time limit for receiving a request body, in addition to the time that --min-body-rate allows for it
    #[arg(long, value_name = "DURATION", value_parser = values::nonzero_duration, default_value = "10s")]
    body_timeout: Duration,
    /// Minimum average rate of a request body, measured from the start of the body, in bytes per second
    #[arg(long, value_name = "N", default_value_t = ServerOptions::default().min_body_bytes_per_second)]
    min_body_rate: u64,
    /// Close a connection if its socket buffers are full and the client does not read for this long
    #[arg(long, value_name = "DURATION", value_parser = values::nonzero_duration, default_value = "30s")]
    send_timeout: Duration,
    /// Minimum rate at which a client must read a response while its socket buffers are full, in bytes per second
    ///
    /// In waits of --send-timeout altogether, the client must read the bytes of this time: 15000 by default. With 0, one
    /// byte is sufficient.
    #[arg(long, value_name = "N", default_value_t = ServerOptions::default().min_send_bytes_per_second)]
    min_send_rate: u64,
    /// Total time limit for a request [default: none]
    #[arg(long, value_name = "DURATION", value_parser = values::nonzero_duration)]
    request_timeout: Option<Duration>,
    /// If the client is still sending when a connection is shut down, continue to read for at most this long, so that
    /// the client gets the response
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "2s")]
    linger_timeout: Duration,
    /// Proxy whose report of the address of its client is logged: an IP address, a network, or unix for the clients of
    /// Unix sockets; can be repeated
    #[arg(long = "trusted-proxy", value_name = "IP[/BITS]|unix")]
    trusted_proxies: Vec<TrustedProxy>,
    /// How trusted proxies report the address of their client
    ///
    /// x-forwarded-for and forwarded are fields of each request. proxy-protocol is a header before the first byte of a
    /// connection (version 1 or 2), without which connections of trusted proxies are closed.
    #[arg(long, value_name = "HEADER", default_value = "x-forwarded-for")]
    #[arg(value_parser = PossibleValuesParser::new(["x-forwarded-for", "forwarded", "proxy-protocol"]).map(proxy_header))]
    proxy_header: ProxyHeader,
    /// Maximum length of a request line in bytes; longer ones are rejected with 414
    #[arg(long, value_name = "BYTES", default_value_t = at_least_one(Limits::default().max_request_line_bytes))]
    max_request_line_bytes: NonZero<usize>,
    /// Maximum size of a request head (request line and all fields) in bytes; larger ones are rejected with 431
    #[arg(long, value_name = "BYTES", default_value_t = at_least_one(Limits::default().max_head_bytes))]
    max_head_bytes: NonZero<usize>,
    /// Maximum number of fields in a request head; heads with more fields are rejected with 431
    #[arg(long, value_name = "N", default_value_t = at_least_one(Limits::default().max_fields))]
    max_head_fields: NonZero<usize>,
    /// Maximum size of a request body in bytes; larger ones are rejected with 413
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body_bytes)]
    max_body_bytes: u64,
    /// Maximum number of body bytes to discard to keep a connection open; if there are more, the connection is closed
    /// after the response
    #[arg(long, value_name = "BYTES", default_value_t = ServerOptions::default().max_discarded_body_bytes)]
    max_discarded_body_bytes: u64,
    /// Maximum number of requests per connection
    #[arg(long, value_name = "N", default_value = "1000000")]
    max_requests_per_connection: NonZero<u64>,
    /// HTTP/2: off; tls for clients that negotiate it over TLS; or cleartext to also accept it without TLS from clients
    /// with prior knowledge
    #[arg(long, value_name = "MODE", default_value = "tls")]
    #[arg(value_parser = PossibleValuesParser::new(["off", "tls", "cleartext"]).map(http2_mode))]
    http2: Http2Mode,
    /// Maximum number of concurrent requests on an HTTP/2 connection; more are refused
    #[arg(long, value_name = "N", default_value = "100")]
    http2_max_concurrent_streams: NonZero<u32>,
    /// Grace period for in-flight requests after SIGINT or SIGTERM
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "30s")]
    drain_timeout: Duration,
    /// On SIGINT or SIGTERM, immediately close connections that have been idle for this long, and close the others
    /// after their next response
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "500ms")]
    drain_min_idle: Duration,
}

fn proxy_header(name: String) -> ProxyHeader {
    match name.as_str() {
        "forwarded" => ProxyHeader::Forwarded,
        "proxy-protocol" => ProxyHeader::ProxyProtocol,
        _ => ProxyHeader::XForwardedFor,
    }
}

fn http2_mode(name: String) -> Http2Mode {
    match name.as_str() {
        "off" => Http2Mode::Off,
        "cleartext" => Http2Mode::Cleartext,
        _ => Http2Mode::Tls,
    }
}

/// Converts a default to the type of a flag that must not be zero.
fn at_least_one(count: usize) -> NonZero<usize> {
    NonZero::new(count).unwrap_or(NonZero::<usize>::MIN)
}

impl ConnectionFlags {
    /// Returns the connection limit given on the command line.
    pub fn max_connections(&self) -> Option<usize> {
        self.max_connections.map(NonZero::get)
    }

    pub fn options(&self) -> ServerOptions {
        let mut options = ServerOptions::default();
        options.max_connections = self.max_connections().unwrap_or(options.max_connections);
        options.header_timeout = self.header_timeout;
        options.keep_alive_timeout = self.keep_alive_timeout;
        options.body_timeout = self.body_timeout;
        options.min_body_bytes_per_second = self.min_body_rate;
        options.send_timeout = self.send_timeout;
        options.min_send_bytes_per_second = self.min_send_rate;
        options.request_timeout = self.request_timeout;
        options.linger_timeout = self.linger_timeout;
        options.trusted_proxies = self.trusted_proxies.clone();
        options.proxy_header = self.proxy_header;
        options.max_discarded_body_bytes = self.max_discarded_body_bytes;
        options.limits.max_request_line_bytes = self.max_request_line_bytes.get();
        options.limits.max_head_bytes = self.max_head_bytes.get();
        options.limits.max_fields = self.max_head_fields.get();
        options.limits.max_body_bytes = self.max_body_bytes;
        options.limits.max_requests_per_connection = self.max_requests_per_connection.get();
        options.http2 = self.http2;
        options.http2_max_concurrent_streams = self.http2_max_concurrent_streams.get();
        options.drain_timeout = self.drain_timeout;
        options.drain_min_idle = self.drain_min_idle;
        options
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        connections: ConnectionFlags,
    }

    #[test]
    fn options_contain_value_of_every_flag() {
        let options = |flags: &[&str]| {
            let flags = Flags::try_parse_from(["http"].iter().chain(flags)).expect("valid flags");
            format!("{:?}", flags.connections.options())
        };
        let default = options(&[]);
        assert_eq!(default, format!("{:?}", ServerOptions::default()));
        let (flags, fields): (Vec<&str>, Vec<&str>) = [
            ("--max-request-line-bytes=8", "max_request_line_bytes: 8"),
            ("--max-head-bytes=9", "max_head_bytes: 9"),
            ("--max-head-fields=10", "max_fields: 10"),
            ("--max-body-bytes=11", "max_body_bytes: 11"),
            ("--max-requests-per-connection=13", "max_requests_per_connection: 13"),
            ("--header-timeout=1s", "header_timeout: 1s"),
            ("--keep-alive-timeout=2s", "keep_alive_timeout: 2s"),
            ("--body-timeout=3s", "body_timeout: 3s"),
            ("--min-body-rate=4", "min_body_bytes_per_second: 4"),
            ("--send-timeout=5s", "send_timeout: 5s"),
            ("--min-send-rate=17", "min_send_bytes_per_second: 17"),
            ("--request-timeout=6s", "request_timeout: Some(6s)"),
            ("--max-connections=7", "max_connections: 7"),
            ("--trusted-proxy=10.0.0.0/8", "trusted_proxies: [10.0.0.0/8]"),
            ("--proxy-header=forwarded", "proxy_header: Forwarded"),
            ("--max-discarded-body-bytes=12", "max_discarded_body_bytes: 12"),
            ("--linger-timeout=7s", "linger_timeout: 7s"),
            ("--drain-min-idle=15s", "drain_min_idle: 15s"),
            ("--drain-timeout=14s", "drain_timeout: 14s"),
            ("--http2=off", "http2: Off"),
            ("--http2-max-concurrent-streams=16", "http2_max_concurrent_streams: 16"),
        ]
        .into_iter()
        .unzip();
        assert_eq!(Flags::command().get_arguments().count(), flags.len(), "each flag is tried");
        let options = options(&flags);
        let changed =
            options.split(", ").zip(default.split(", ")).filter(|(field, default)| field != default);
        let changed = changed.filter_map(|(field, _)| field.trim_end_matches(" }").split("{ ").last());
        assert_eq!(changed.collect::<Vec<_>>(), fields);
    }
}
