//! Flags of `anello load tcp` and `anello load http`, and their conversion to a [`LoadConfig`].

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anello_load::tls::{TlsRemedy, Trust};
use anello_load::{Address, Arrivals, Knee, LoadConfig, Mode, Protocol, Sweep, Tls, TlsOptions};
use bytes::Bytes;
use clap::ValueEnum;
use clap::builder::ArgPredicate;

use super::shard::ShardFlags;
use super::url::{Url, parse_url, resolve};
use super::values::{
    AllowedErrors, Rate, Statuses, Target, parse_header, parse_host_and_port, parse_rate, parse_statuses,
    parse_target, parse_time,
};
use crate::common::driver_flags::DriverFlags;
use crate::common::error::{Context, usage_error};
use crate::common::values::{self, Cores};

/// Maximum number of threads, and of connections of one process.
const MAX_COUNT: usize = 1_000_000;

/// Maximum number of connections over all shards.
const MAX_CONNECTIONS: usize = 1_000_000_000;

/// Maximum size of a message, 1 GiB.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Generate load on a TCP server that replies to fixed-size messages, such as an echo server.
///
/// Without --rate, the load is a closed loop: each connection sends a request, waits for the reply and sends the next
/// request, which measures the maximum throughput. With --rate, the load is an open loop: requests are scheduled at
/// fixed times, independent of the replies, and latency is measured from the scheduled time, which shows the latency at
/// that rate. For meaningful results, pin the load generator and the server to different cores (--cores, taskset). A
/// broken connection counts as an error, and is reopened only with --reconnect; the load ends early when no connection
/// is left. On a terminal, a view shows rates, latency and errors while the load runs: q ends the load early and
/// prints the report, as Ctrl-C does, and space pauses an open loop; requests due in a pause are skipped.
///
/// Exits with 0 if there were responses and no errors, else with 1; with 2 if the command line is invalid.
#[derive(clap::Args)]
pub struct TcpArguments {
    /// Address of the server: HOST:PORT, unix:/PATH for a Unix socket, or unix:@NAME for an abstract Unix socket.
    #[arg(value_name = "ADDR", value_parser = parse_target)]
    target: Target,
    /// Size of a request in bytes.
    #[arg(long, short = 'b', value_name = "BYTES", default_value_t = 128, value_parser = values::up_to(MAX_MESSAGE_BYTES))]
    message_bytes: usize,
    /// Size of a reply in bytes; by default the size of a request. Byte i of a reply must equal byte i mod M of its
    /// request, where M is the size of the request; anello echo --response-bytes sends such replies.
    #[arg(long, value_name = "BYTES", value_parser = values::up_to(MAX_MESSAGE_BYTES))]
    response_bytes: Option<usize>,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl TcpArguments {
    pub fn load(&self) -> io::Result<LoadConfig> {
        let protocol = Protocol::Messages {
            request_bytes: self.message_bytes,
            response_bytes: self.response_bytes.unwrap_or(self.message_bytes),
        };
        let target = match &self.target {
            Target::Host(_) => unresolved(),
            Target::Unix(address) => address.clone(),
        };
        let load =
            self.common.fill(LoadConfig { protocol, ..LoadConfig::echo(target, self.message_bytes) })?;
        match &self.target {
            Target::Host(host_and_port) => self.common.resolve_target(load, host_and_port),
            Target::Unix(_) => Ok(load),
        }
    }
}

/// Generate load on an HTTP/1.1 server with requests for one or more paths; https:// uses TLS.
///
/// The load is a closed loop, or an open loop with --rate; see anello load tcp. Responses can have a Content-Length,
/// use chunked encoding, or end when the connection is closed; interim responses are skipped. If the server closes or
/// resets a connection between requests, the connection is reopened, and no error is counted. A request that was sent
/// less than a second earlier is then sent again, and its latency is measured from the first attempt.
///
/// With TLS, the report contains the negotiated versions and cipher suites. The handshake is part of opening a
/// connection, so with --no-keep-alive it is part of the latency. Without --tls-resume, every handshake is a full
/// handshake.
///
/// Exits with 0 if there were responses and no errors, else with 1; with 2 if the command line is invalid.
#[derive(clap::Args)]
pub struct HttpArguments {
    /// URL to request, such as http://127.0.0.1:8080/index.html or https://localhost:8443/.
    #[arg(value_name = "URL", value_parser = parse_url)]
    url: Url,
    /// Connect to the Unix socket at this path; the URL then determines only the requests.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Connect to this TCP address, such as one of several servers behind a name; the URL then determines only the
    /// requests and, with https://, the name in the handshake.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_host_and_port, conflicts_with = "unix")]
    connect_to: Option<String>,
    /// Additional path; can be repeated, and paths are used in turn. The path of the URL is included unless it is /.
    #[arg(long, value_name = "PATH")]
    path: Vec<String>,
    /// File with additional paths, one per line.
    #[arg(long, value_name = "FILE")]
    paths: Option<PathBuf>,
    /// Method of the requests; by default GET, or POST if there is a body.
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// File with the body of each request.
    #[arg(long, value_name = "FILE", conflicts_with = "body_bytes")]
    body: Option<PathBuf>,
    /// Size in bytes of the body of each request, which consists of letters.
    #[arg(long, value_name = "BYTES", value_parser = values::up_to(MAX_MESSAGE_BYTES))]
    body_bytes: Option<usize>,
    /// Additional header field for each request, such as 'Accept: text/html'; can be repeated.
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    header: Vec<(String, String)>,
    /// Open a new connection for each request; the latency includes opening it.
    #[arg(long)]
    no_keep_alive: bool,
    /// Maximum number of requests in flight per connection.
    #[arg(long, value_name = "DEPTH", default_value_t = 1, conflicts_with = "no_keep_alive")]
    pipeline_depth: usize,
    /// Expected status codes or classes of codes, such as 2xx, separated by commas, or `any` to accept all codes.
    #[arg(long, value_name = "LIST", default_value = "200", value_parser = parse_statuses)]
    expect_status: Statuses,
    /// File with the expected body of each response; implies --verify. Without this file, --verify compares each
    /// response with the first correct response for the same path.
    #[arg(long, value_name = "FILE")]
    expect_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl HttpArguments {
    pub fn load(&self) -> io::Result<LoadConfig> {
        let tls = self.tls.of(&self.url)?;
        let mut paths = self.path.clone();
        if let Some(file) = &self.paths {
            let text = fs::read_to_string(file).context(format_args!("cannot read {}", file.display()))?;
            paths.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        }
        if paths.is_empty() || self.url.path != "/" {
            paths.insert(0, self.url.path.clone());
        }
        let target = self.unix.clone().map_or_else(unresolved, Address::Unix);
        let mut load = LoadConfig::http(target, &self.url.authority, "/");
        if let Protocol::Http(http) = &mut load.protocol {
            http.paths = paths;
            http.body = self.request_body()?;
            let default_method = if http.body.is_empty() { "GET" } else { "POST" };
            http.method = self.method.clone().unwrap_or_else(|| default_method.to_owned());
            http.headers.clone_from(&self.header);
            http.keep_alive = !self.no_keep_alive;
            http.pipeline_depth = self.pipeline_depth;
            http.expected_status.clone_from(&self.expect_status);
            if let Some(file) = &self.expect_file {
                let body = fs::read(file).context(format_args!("cannot read {}", file.display()))?;
                http.expected_body = Some(body.into());
            }
            http.tls = tls;
        }
        let mut load = self.common.fill(load)?;
        load.verify |= self.expect_file.is_some();
        match self.unix {
            Some(_) => Ok(load),
            None => {
                let target = self.connect_to.as_ref().unwrap_or(&self.url.host_and_port);
                self.common.resolve_target(load, target)
            }
        }
    }

    fn request_body(&self) -> io::Result<Bytes> {
        if let Some(file) = &self.body {
            return Ok(fs::read(file).context(format_args!("cannot read {}", file.display()))?.into());
        }
        Ok((b'a'..=b'z').cycle().take(self.body_bytes.unwrap_or(0)).collect())
    }
}

#[derive(clap::Args)]
struct TlsFlags {
    /// https: PEM file with trusted CA certificates, or with the server's certificate itself; replaces the CA
    /// certificates that this system trusts.
    #[arg(long, value_name = "FILE", conflicts_with = "tls_insecure")]
    tls_ca: Option<PathBuf>,
    /// https: accept any certificate; the report contains a warning.
    #[arg(long)]
    tls_insecure: bool,
    /// https: offer only this cipher suite, such as TLS13_AES_128_GCM_SHA256, so that all servers use the same suite.
    /// The suite also determines the TLS version.
    #[arg(long, value_name = "NAME")]
    tls_cipher: Option<String>,
    /// https: resume sessions, which shortens later handshakes; by default each connection makes a full handshake.
    #[arg(long)]
    tls_resume: bool,
}

impl TlsFlags {
    /// Returns the TLS configuration for a URL; `None` for http://, where TLS flags are an error.
    fn of(&self, url: &Url) -> io::Result<Option<Tls>> {
        let trust = match (&self.tls_ca, self.tls_insecure) {
            (_, true) => Trust::AcceptAny,
            (Some(file), false) => Trust::CaFile(file.clone()),
            (None, false) => Trust::System,
        };
        let session_resumption = self.tls_resume;
        let options = TlsOptions { trust, cipher: self.tls_cipher.clone(), session_resumption };
        if url.is_secure {
            let tls = Tls::new(&url.server_name, options).map(Some);
            return tls.map_err(|error| {
                let text = format!("{error}{}", remedy_flags(TlsRemedy::of(&error)));
                // Other kinds concern the content of files.
                match error.kind() {
                    io::ErrorKind::InvalidInput => usage_error(text),
                    kind => io::Error::new(kind, text),
                }
            });
        }
        if options != TlsOptions::default() {
            let cause = "--tls- flags require an https:// URL (use https://, or remove the flags)";
            return Err(usage_error(cause));
        }
        Ok(None)
    }
}

/// Returns the target of a load whose address has not been looked up yet.
fn unresolved() -> Address {
    Address::Tcp(SocketAddr::from(([0; 4], 0)))
}

/// Returns the flags that can resolve a TLS error, to be appended to its message.
pub fn remedy_flags(remedy: Option<TlsRemedy>) -> &'static str {
    match remedy {
        Some(TlsRemedy::Cipher) => " (--tls-cipher)",
        Some(TlsRemedy::Trust) => " (--tls-ca, --tls-insecure)",
        _ => "",
    }
}

/// Flags shared by all protocols.
#[derive(clap::Args)]
pub struct CommonFlags {
    /// Number of connections, such as 500 or 10k, over all shards; at most 1M in one process.
    #[arg(long, short = 'c', value_name = "N", default_value = "50", value_parser = values::count_up_to(MAX_CONNECTIONS))]
    connections: usize,
    #[command(flatten)]
    shard: ShardFlags,
    /// Start the warm-up, or the measurement without a warm-up, at this time of the system clock: in RFC 3339 format,
    /// in seconds since 1970, or a duration from now, such as +10s; by default as soon as the connections are open.
    ///
    /// Shards on several machines with the same time start together if their clocks are synchronized. The connections
    /// are opened during the last --connect-timeout before this time. A time that has passed more than 1 s ago is an
    /// error. If it has passed less than 1 s ago, the load starts immediately: requests that were due are sent late,
    /// and the report has a warning.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    start_at: Option<SystemTime>,
    /// Duration of the measurement, or of each step of a sweep; replies pending at the end are awaited. With
    /// --requests, the maximum duration, by default 24h.
    #[arg(long, short = 'd', value_name = "DURATION", value_parser = values::nonzero_duration, default_value = "10s")]
    #[arg(default_value_if("requests", ArgPredicate::IsPresent, "24h"))]
    duration: Duration,
    /// End the load after this many requests, such as 500 or 10k, over all connections and shards; without a warm-up,
    /// whose requests do not count.
    #[arg(long, short = 'n', value_name = "N", value_parser = values::count_up_to(usize::MAX >> 11))]
    requests: Option<usize>,
    /// Duration of the warm-up before the measurement; the results of the warm-up are discarded.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "0s")]
    warm_up: Duration,
    /// Open the connections at an even rate over this time, from the start of the warm-up; each sends requests once it
    /// is open.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "0s")]
    ramp: Duration,
    /// Open loop: requests per second across all connections, such as 500 or 50k. A range with a step, such as
    /// 10k..200k/10k, is a sweep: the load generator increases the rate on the same connections until it reaches the
    /// knee, where the server no longer keeps up.
    #[arg(long, short = 'r', value_name = "RATE", value_parser = parse_rate, conflicts_with = "think_time")]
    rate: Option<Rate>,
    /// Open loop: distribution of the scheduled send times.
    #[arg(long, value_enum, default_value_t = ArrivalChoice::Constant, requires = "rate")]
    arrivals: ArrivalChoice,
    /// Open loop: seed for Poisson arrivals; the same seed gives the same schedule.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "rate")]
    seed: u64,
    /// Open loop: maximum time to send the requests that are still queued for busy connections when the measurement
    /// ends.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "1s", requires = "rate")]
    drain_timeout: Duration,
    /// Sweep: a step is the knee if less than this percentage of the requests offered in the step are answered before
    /// it ends.
    #[arg(long, value_name = "PERCENT", default_value_t = 95, requires = "rate", value_parser = clap::value_parser!(u32).range(1..=100))]
    knee_min_answered_percent: u32,
    /// Sweep: a step is the knee if its p99 latency exceeds this multiple of the p99 latency of the first step.
    #[arg(long, value_name = "TIMES", default_value_t = 10, requires = "rate", value_parser = clap::value_parser!(u32).range(1..))]
    knee_max_latency_factor: u32,
    /// Closed loop: time that a connection waits between a reply and its next request.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "0s")]
    think_time: Duration,
    /// Number of threads, each with its share of the connections; by default one per core in --cores, or 1 without
    /// --cores.
    #[arg(long, short = 't', value_name = "N", value_parser = values::up_to(MAX_COUNT))]
    threads: Option<usize>,
    /// Cores to pin the threads to, such as 0 or 2-5.
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    cores: Option<Cores>,
    /// Verify every byte of every reply. Each message is different, so a reply to a different request is detected as
    /// well.
    #[arg(long)]
    verify: bool,
    /// Reopen a connection after an error.
    #[arg(long)]
    reconnect: bool,
    #[command(flatten)]
    pub allowed: AllowedErrors,
    /// Maximum time for opening all connections, at most 24h.
    #[arg(long, value_name = "DURATION", value_parser = values::nonzero_duration, default_value = "10s")]
    connect_timeout: Duration,
    /// Maximum time from a request to the end of its reply, at most 24h.
    #[arg(long, value_name = "DURATION", value_parser = values::nonzero_duration, default_value = "5s")]
    timeout: Duration,
    /// Local addresses for the connections, used in turn, separated by commas.
    ///
    /// Each local address has about 28,000 ports per server (net.ipv4.ip_local_port_range), and connections that use
    /// the second half of these ports are slow to open. By default, if there are more than 4,000 connections to
    /// 127.0.0.0/8, they use 127.0.0.1, 127.0.0.2 and so on, with at most 4,000 connections each; otherwise, the kernel
    /// chooses the address.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::ip_address)]
    source_addresses: Vec<IpAddr>,
    /// Process ID of the server on this machine, to report its CPU time and memory. All of its threads are included,
    /// but its child processes are not; for a server with worker processes, such as nginx, pass the process ID of a
    /// worker.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Show a progress line instead of the view on the whole terminal. The line is also shown with --json, --hdr - or
    /// --ndjson -, in the background, and if standard input or output is not a terminal.
    #[arg(long)]
    pub no_tui: bool,
    /// Print the report as JSON, or write it to a file (=FILE) besides the text. `schema` and `schema_version` identify
    /// the format; times are in nanoseconds (_ns).
    ///
    /// In the names of all output files, {shard} stands for the index of the shard, such as in
    /// --json=report-{shard}.json.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Length of the recorded intervals.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "1s")]
    interval: Duration,
    /// Write the intervals to this file as comma-separated values.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the latency histograms of the intervals to this file as an HdrHistogram interval log; a comment at the end
    /// of the log contains the errors. With -, the log is written to standard output, and the report to standard error.
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Write each interval to this file when it ends, as one JSON object per line. With -, the intervals are written to
    /// standard output, and the report to standard error.
    #[arg(long, value_name = "FILE")]
    pub ndjson: Option<PathBuf>,
    /// Comment to add to the --hdr log.
    #[arg(long, value_name = "TEXT", requires = "hdr")]
    pub comment: Option<String>,
    #[command(flatten)]
    pub driver: DriverFlags,
}

impl CommonFlags {
    /// Returns whether the report or the intervals are written to standard output for other programs.
    pub fn has_machine_output(&self) -> bool {
        self.json.iter().chain(&self.hdr).chain(&self.ndjson).any(|path| is_stdout(path))
    }

    fn fill(&self, load: LoadConfig) -> io::Result<LoadConfig> {
        self.cores.as_ref().map_or(Ok(()), Cores::check)?;
        let cores = self.cores.as_ref().map(|cores| cores.0.clone()).unwrap_or_default();
        if [&self.hdr, &self.ndjson].iter().all(|path| path.as_deref().is_some_and(is_stdout)) {
            let cause = "--hdr - and --ndjson - cannot share standard output (write one of them to a file)";
            return Err(usage_error(cause));
        }
        let shard = self.shard.shard().map_err(usage_error)?;
        // Checked together with the target.
        let has_target = load.target != unresolved();
        let source_addresses = if has_target { self.source_addresses.clone() } else { Vec::new() };
        let load = LoadConfig {
            mode: self.mode(),
            connections: self.connections,
            shard,
            start_at: self.start_at,
            threads: self.threads.unwrap_or(cores.len().max(1)),
            cores,
            duration: self.duration,
            requests: self.requests.map(|count| count as u64),
            warm_up: self.warm_up,
            ramp: self.ramp,
            drain_timeout: self.drain_timeout,
            verify: self.verify,
            reconnect: self.reconnect,
            connect_timeout: self.connect_timeout,
            stall_timeout: self.timeout,
            source_addresses,
            server_pid: self.server_pid,
            interval: self.interval,
            ..load
        };
        load.validate().map_err(usage_error)?;
        if let Some(start_at) = load.start_at {
            anello_load::check_start_time(start_at).map_err(|error| usage_error(error.to_string()))?;
        }
        let own_connections = load.own_connections();
        if own_connections > MAX_COUNT {
            return Err(usage_error(format!(
                "cannot open {own_connections} connections in one process (use more shards, with at most {MAX_COUNT} \
                 connections each)"
            )));
        }
        Ok(load)
    }

    /// Looks up the address of the target. This is the last step, so that every invalid flag is reported without
    /// network access.
    fn resolve_target(&self, load: LoadConfig, host_and_port: &str) -> io::Result<LoadConfig> {
        let target = Address::Tcp(resolve(host_and_port)?);
        let load = LoadConfig { target, source_addresses: self.source_addresses.clone(), ..load };
        load.validate().map_err(usage_error)?;
        Ok(load)
    }

    fn mode(&self) -> Mode {
        let arrivals = match self.arrivals {
            ArrivalChoice::Constant => Arrivals::Constant,
            ArrivalChoice::Poisson => Arrivals::Poisson,
        };
        let seed = self.seed;
        match self.rate {
            None => Mode::Closed { think_time: self.think_time },
            Some(Rate::One(per_second)) => Mode::Open { per_second, arrivals, seed },
            Some(Rate::Sweep { first, last, step }) => {
                let knee = Knee {
                    min_answered_percent: self.knee_min_answered_percent,
                    max_latency_factor: self.knee_max_latency_factor,
                };
                Mode::Sweep(Sweep { first, last, step, arrivals, seed, knee })
            }
        }
    }
}

/// Returns whether an output file is standard output, written as `-`.
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArrivalChoice {
    /// At equal intervals.
    Constant,
    /// At random, like the requests of many independent users.
    Poisson,
}
