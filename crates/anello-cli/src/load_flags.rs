//! The flags of `anello load tcp` and `anello load http`, and the loads they ask for.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anello_load::{Address, Arrivals, ErrorKind, Errors, Knee, LoadConfig, Mode, Protocol, Report, Sweep};
use clap::ValueEnum;

use crate::cores::{self, Cores};
use crate::driver_flags::DriverFlags;
use crate::duration;
use crate::load::resolve;
use crate::load_tls_flags::TlsFlags;
use crate::load_url::{Url, parse_url};

/// Load a TCP server: a message goes out, and the reply comes back whole.
///
/// Without --rate it is a closed loop: every connection sends, waits for its reply and sends again, which finds the most
/// the server can do. With --rate it is an open loop: requests are due at fixed moments, whether replies come or not, and
/// latency counts from those moments, which shows how the server fares at that rate. Pin load and server to different
/// cores (--cores, taskset) for figures that mean something. A connection that breaks is counted, and not opened again
/// without --reconnect; the load ends early when none is left. Ctrl-C ends it early with a report.
///
/// Exits 0 if something was answered and nothing went wrong, else 1; 2 if the command line was wrong.
#[derive(clap::Args)]
pub struct TcpArguments {
    /// The server, as HOST:PORT, as unix:/PATH for a Unix socket, or as unix:@NAME for one of that abstract name.
    #[arg(value_name = "ADDR", value_parser = parse_target)]
    target: Target,

    /// Bytes of a request.
    #[arg(long, short = 'b', value_name = "BYTES", default_value_t = 128, value_parser = parse_message_bytes)]
    message_bytes: usize,

    /// Bytes of a reply; as many as of a request by default. Byte i of a reply is byte i mod M of its request, which has
    /// M: as anello echo --response-bytes answers.
    #[arg(long, value_name = "BYTES", value_parser = parse_message_bytes)]
    response_bytes: Option<usize>,

    #[command(flatten)]
    pub common: CommonFlags,
}

impl TcpArguments {
    /// The load that is asked for.
    pub fn load(&self) -> io::Result<LoadConfig> {
        let protocol = Protocol::Messages {
            request_bytes: self.message_bytes,
            response_bytes: self.response_bytes.unwrap_or(self.message_bytes),
        };
        let target = match &self.target {
            Target::Tcp(host_and_port) => Address::Tcp(resolve(host_and_port)?),
            Target::Unix(path) => Address::Unix(path.clone()),
            Target::Abstract(name) => Address::Abstract(name.clone()),
        };
        self.common.fill(LoadConfig { protocol, ..LoadConfig::echo(target, self.message_bytes) })
    }
}

/// Load an HTTP/1.1 server, under TLS by https://: GET of one path or many.
///
/// Closed loop, or open loop with --rate, as anello load tcp. Responses may have a length, chunks, or end with the
/// connection; interim ones are skipped. A server that closes a connection between requests is connected to again, which
/// is no error; a request that was just under way (for less than a second) is sent again then, and its latency counts from
/// the first time.
///
/// Under TLS the report says what was negotiated. The handshake is a part of opening a connection, so that with
/// --no-keep-alive it is in the latency: a full one each time, unless --tls-resume lets sessions be taken up again.
///
/// Exits 0 if something was answered and nothing went wrong, else 1; 2 if the command line was wrong.
#[derive(clap::Args)]
pub struct HttpArguments {
    /// What to ask for, as in http://127.0.0.1:8080/index.html or https://localhost:8443/.
    #[arg(value_name = "URL", value_parser = parse_url)]
    url: Url,

    /// Connect to the Unix socket at this path; the URL then only tells what to ask for.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,

    /// A further path to ask for, in turn; may be given several times. That of the URL counts unless it is / alone.
    #[arg(long, value_name = "PATH")]
    path: Vec<String>,

    /// A file of further paths, one a line.
    #[arg(long, value_name = "FILE")]
    paths: Option<PathBuf>,

    /// A further field of every request, as in 'Accept: text/html'; may be given several times.
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    header: Vec<(String, String)>,

    /// A connection for each request; opening it is a part of the latency.
    #[arg(long)]
    no_keep_alive: bool,

    /// Requests in flight on a connection.
    #[arg(long, value_name = "DEPTH", default_value_t = 1, conflicts_with = "no_keep_alive")]
    pipeline_depth: usize,

    /// Statuses that are right, with commas, or any.
    #[arg(long, value_name = "LIST", default_value = "200", value_parser = parse_statuses)]
    expect_status: Statuses,

    /// A file that every response must be equal to (with --verify, which this implies). Without it, the first right
    /// response to each path is what the others are compared with.
    #[arg(long, value_name = "FILE")]
    expect_file: Option<PathBuf>,

    #[command(flatten)]
    tls: TlsFlags,

    #[command(flatten)]
    pub common: CommonFlags,
}

impl HttpArguments {
    /// The load that is asked for.
    pub fn load(&self) -> io::Result<LoadConfig> {
        // Before a name is looked up: what is wrong here needs no network to be told.
        let tls = self.tls.of(&self.url)?;
        let mut paths = self.path.clone();
        if let Some(file) = &self.paths {
            let text = fs::read_to_string(file).map_err(|error| with_path(file, &error))?;
            paths.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        }
        if paths.is_empty() || self.url.path != "/" {
            paths.insert(0, self.url.path.clone());
        }
        let target = match &self.unix {
            Some(path) => Address::Unix(path.clone()),
            None => Address::Tcp(resolve(&self.url.host_and_port())?),
        };
        let mut load = self.common.fill(LoadConfig::http(target, &self.url.authority(), "/"))?;
        load.verify |= self.expect_file.is_some();
        if let Protocol::Http(http) = &mut load.protocol {
            http.paths = paths;
            http.headers.clone_from(&self.header);
            http.keep_alive = !self.no_keep_alive;
            http.pipeline_depth = self.pipeline_depth;
            http.expected_status.clone_from(&self.expect_status.0);
            http.expected_body = match &self.expect_file {
                Some(file) => Some(fs::read(file).map_err(|error| with_path(file, &error))?.into()),
                None => None,
            };
            http.tls = tls;
        }
        load.validate().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(load)
    }
}

fn with_path(file: &std::path::Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", file.display()))
}

/// Flags that all loads have.
#[derive(clap::Args)]
pub struct CommonFlags {
    /// Connections.
    #[arg(long, short = 'c', value_name = "N", default_value_t = 50, value_parser = parse_count)]
    connections: usize,

    /// How long to measure (each step of a sweep); replies that are owed at the end are waited for.
    #[arg(long, short = 'd', value_name = "DURATION", value_parser = duration::parse, default_value = "10s")]
    duration: Duration,

    /// Load before the measurement, not counted.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    warm_up: Duration,

    /// Open the connections evenly over this time, from the beginning of the warm-up on; each works as soon as it is
    /// open.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    ramp: Duration,

    /// Open loop: requests per second over all connections, as in 500 or 50k. A range with a step, as in
    /// 10k..200k/10k, is a sweep: one rate after the other over the same connections, until the server does not follow.
    #[arg(long, short = 'r', value_name = "RATE", value_parser = parse_rate, conflicts_with = "think_time")]
    rate: Option<Rate>,

    /// Open loop: how the requests are spread over time.
    #[arg(long, value_enum, default_value_t = ArrivalChoice::Constant, requires = "rate")]
    arrivals: ArrivalChoice,

    /// Open loop: what Poisson arrivals follow from; the same seed repeats them.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "rate")]
    seed: u64,

    /// Open loop: how long requests that wait for a busy connection at the end may still be sent.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s", requires = "rate")]
    drain_timeout: Duration,

    /// Sweep: the server does not follow if it answers less than this percentage of the offered requests in time.
    #[arg(long, value_name = "PERCENT", default_value_t = 95, requires = "rate", value_parser = clap::value_parser!(u32).range(1..=100))]
    knee_min_answered_percent: u32,

    /// Sweep: the server does not follow if the p99 of its latency is so many times that of the first step.
    #[arg(long, value_name = "TIMES", default_value_t = 10, requires = "rate", value_parser = clap::value_parser!(u32).range(1..))]
    knee_max_latency_factor: u32,

    /// Closed loop: how long a connection waits between a reply and its next request.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    think_time: Duration,

    /// Threads of the load, each with its share of the connections; as many as --cores, or 1.
    #[arg(long, short = 't', value_name = "N", value_parser = parse_count)]
    threads: Option<usize>,

    /// Cores to pin the threads to, as in 0 or 2-5.
    #[arg(long, value_name = "LIST", value_parser = cores::parse)]
    cores: Option<Cores>,

    /// Check every byte of every reply. Messages differ by connection and by request, so that a reply meant for
    /// another shows, too.
    #[arg(long)]
    verify: bool,

    /// Open connections again that broke.
    #[arg(long)]
    reconnect: bool,

    #[command(flatten)]
    allowed: AllowedErrors,

    /// How long opening all connections may take; 24h at most.
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, default_value = "10s")]
    connect_timeout: Duration,

    /// How long a request may wait for the end of its reply; 24h at most.
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, default_value = "5s")]
    timeout: Duration,

    /// Addresses of this machine that the connections come from, in turn, with commas.
    ///
    /// From one address to one server there are about 28,000 ports (net.ipv4.ip_local_port_range), and the second half
    /// of them is slow to open. By default, more than 4,000 connections to 127.0.0.0/8 come from 127.0.0.1, 127.0.0.2
    /// and so on, 4,000 or fewer from each; all others come from the address that the kernel chooses.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    source_addresses: Vec<IpAddr>,

    /// The server's process on this machine: report what it costs, too, with all of its threads. What it has started is
    /// not in it: of a server with workers, as nginx, name a worker.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,

    /// Print the report as JSON. `schema` and `schema_version` name the format; times are in nanoseconds (_ns).
    #[arg(long)]
    pub json: bool,

    /// How long the intervals are that are recorded.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s")]
    interval: Duration,

    /// Write the intervals as a table.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write the latencies of the intervals as a log that the tools around HdrHistogram read; a comment at its end has
    /// the errors.
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,

    /// Write the intervals as they happen, one JSON object a line; - is standard output, and the report goes to standard
    /// error then.
    #[arg(long, value_name = "FILE")]
    pub ndjson: Option<PathBuf>,

    /// A comment for the log of --hdr.
    #[arg(long, value_name = "TEXT", requires = "hdr")]
    pub comment: Option<String>,

    #[command(flatten)]
    pub driver: DriverFlags,
}

impl CommonFlags {
    /// The load with everything that these flags ask for.
    fn fill(&self, load: LoadConfig) -> io::Result<LoadConfig> {
        self.cores.as_ref().map_or(Ok(()), Cores::check)?;
        let cores = self.cores.as_ref().map(|cores| cores.0.clone()).unwrap_or_default();
        let load = LoadConfig {
            mode: self.mode(),
            connections: self.connections,
            threads: self.threads.unwrap_or(cores.len().max(1)),
            cores,
            duration: self.duration,
            warm_up: self.warm_up,
            ramp: self.ramp,
            drain_timeout: self.drain_timeout,
            verify: self.verify,
            reconnect: self.reconnect,
            connect_timeout: self.connect_timeout,
            stall_timeout: self.timeout,
            source_addresses: self.source_addresses.clone(),
            server_pid: self.server_pid,
            interval: self.interval,
            ..load
        };
        load.validate().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
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

    /// Whether standard output is taken by a stream of intervals.
    pub fn streams_to_stdout(&self) -> bool {
        self.ndjson.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Whether something was answered, and nothing went wrong that is not allowed.
    pub fn is_success(&self, report: &Report) -> bool {
        report.requests > 0 && self.allowed.allows(&report.errors)
    }
}

/// Errors that cost no exit code.
#[derive(clap::Args)]
pub struct AllowedErrors {
    /// Exit 0 although there were errors, of these kinds (=KIND,KIND) or of any: refused, connect_timeout, unreachable,
    /// reset, timeout, closed_early, short_reply, wrong_bytes, long_reply, wrong_status, wrong_length, malformed, tls,
    /// other.
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        num_args = 0..,
        require_equals = true,
        default_missing_value = "all",
        value_parser = parse_kinds
    )]
    allow_errors: Option<Vec<Kinds>>,
}

impl AllowedErrors {
    /// Whether these errors, if any, are all allowed.
    pub fn allows(&self, errors: &Errors) -> bool {
        let allowed = |kind: ErrorKind| {
            self.allow_errors.iter().flatten().any(|kinds| kinds.0.is_none_or(|allowed| allowed == kind))
        };
        errors.iter().all(|error| allowed(error.kind))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArrivalChoice {
    /// Evenly.
    Constant,
    /// As those of many independent users.
    Poisson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rate {
    One(u64),
    Sweep { first: u64, last: u64, step: u64 },
}

/// A kind of errors; none are all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kinds(Option<ErrorKind>);

/// Statuses of HTTP; none are all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Statuses(Vec<u16>);

/// Where a TCP echo server is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Tcp(String),
    Unix(PathBuf),
    Abstract(String),
}

/// Checks the form of `HOST:PORT`, `unix:/PATH` or `unix:@NAME`; whether there is such a thing is found out later.
fn parse_target(text: &str) -> Result<Target, String> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(match path.strip_prefix('@') {
            Some(name) => Target::Abstract(name.to_owned()),
            None => Target::Unix(path.into()),
        });
    }
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.and_then(|port| port.parse::<u16>().ok()) {
        None | Some(0) => {
            Err(format!("{text:?} is no address: write HOST:PORT, as in 127.0.0.1:7000, or unix:/PATH"))
        }
        Some(_) => Ok(Target::Tcp(text.to_owned())),
    }
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn parse_statuses(text: &str) -> Result<Statuses, String> {
    if text == "any" {
        return Ok(Statuses(Vec::new()));
    }
    let status = |word: &str| word.trim().parse().ok().filter(|status| (100..=999).contains(status));
    let statuses: Option<Vec<u16>> = text.split(',').map(status).collect();
    statuses
        .map(Statuses)
        .ok_or_else(|| format!("{text:?} is no list of statuses: write 200 or 200,404 or any"))
}

fn parse_kinds(text: &str) -> Result<Kinds, String> {
    if text == "all" {
        return Ok(Kinds(None));
    }
    let kind = ErrorKind::ALL.into_iter().find(|kind| kind.name() == text);
    kind.map(|kind| Kinds(Some(kind))).ok_or_else(|| {
        let names = ErrorKind::ALL.map(ErrorKind::name).join(", ");
        format!("{text:?} is no kind of errors: choose from {names}")
    })
}

/// Reads `50k`, or `10k..200k/10k`.
fn parse_rate(text: &str) -> Result<Rate, String> {
    let Some((first, rest)) = text.split_once("..") else { return parse_number(text).map(Rate::One) };
    let (last, step) = rest
        .split_once('/')
        .ok_or_else(|| format!("{text:?} has no step: write FIRST..LAST/STEP, as in 10k..200k/10k"))?;
    let (first, last, step) = (parse_number(first)?, parse_number(last)?, parse_number(step)?);
    if last < first {
        return Err(format!("{text:?} goes down: write the lower rate first"));
    }
    Ok(Rate::Sweep { first, last, step })
}

/// Reads `500`, `50k` or `1.5M`.
fn parse_number(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>().ok().map(|number| (number * unit).round());
    number
        .filter(|number| (1.0..=1e9).contains(number))
        .map(|number| number as u64)
        .ok_or_else(|| format!("{text:?} is no rate: write requests per second, as in 500, 50k or 1.5M"))
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1_000_000).contains(count));
    count.ok_or_else(|| "write a number from 1 to 1000000".to_owned())
}

fn parse_message_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| (1..=1 << 30).contains(bytes));
    bytes.ok_or_else(|| "write a number of bytes from 1 to 1073741824 (1 GiB)".to_owned())
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = duration::parse(text)?;
    if timeout.is_zero() { Err("must be greater than 0".to_owned()) } else { Ok(timeout) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for right in ["127.0.0.1:80", "[::1]:7000", "localhost:1"] {
            assert_eq!(parse_target(right), Ok(Target::Tcp(right.to_owned())));
        }
        assert_eq!(parse_target("unix:/run/echo"), Ok(Target::Unix("/run/echo".into())));
        assert_eq!(parse_target("unix:@echo"), Ok(Target::Abstract("echo".to_owned())));
        assert_eq!(parse_target("unix:./@echo"), Ok(Target::Unix("./@echo".into())));
        for wrong in ["", "unix:", "localhost", ":80", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999"] {
            assert!(parse_target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_numbers_or_ranges() {
        assert_eq!(parse_rate("500"), Ok(Rate::One(500)));
        assert_eq!(parse_rate("1.5M"), Ok(Rate::One(1_500_000)));
        assert_eq!(
            parse_rate("10k..200k/10k"),
            Ok(Rate::Sweep { first: 10_000, last: 200_000, step: 10_000 })
        );
        for wrong in ["", "0", "-5", "k", "5x", "10k..", "1..2", "2..1/1", "1..2/0", "1e12"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn statuses_and_kinds_are_lists() {
        assert_eq!(parse_statuses("200, 404"), Ok(Statuses(vec![200, 404])));
        assert_eq!(parse_statuses("any"), Ok(Statuses(Vec::new())));
        assert!(parse_statuses("2xx").is_err() && parse_statuses("").is_err());
        assert_eq!(parse_kinds("wrong_bytes"), Ok(Kinds(Some(ErrorKind::WrongBytes))));
        assert_eq!(parse_kinds("all"), Ok(Kinds(None)));
        assert!(parse_kinds("bytes").unwrap_err().contains("wrong_bytes"));
    }
}
