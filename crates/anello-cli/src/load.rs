//! `anello load`: what a server does under load, and what it costs.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anello_load::{Phase, Progress, Report, TcpLoad};
use indicatif::{ProgressBar, ProgressStyle};

use crate::driver_flags::DriverFlags;
use crate::{duration, limits, stop};

/// Load a server and report what it did.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Tcp(TcpArguments),
}

/// Load a TCP echo server: every connection sends a message, waits for all of it to come back, and sends the next.
///
/// This closed loop finds the most the server can do; it does not show how it fares at a given rate. The load runs on
/// one thread: pin it and the server to different cores (taskset) for figures that mean something. A connection that
/// breaks is counted and not opened again; the load ends early when none is left. Ctrl-C ends it early with a report.
///
/// Exits 0 if something was answered and nothing went wrong, else 1; 2 if the command line was wrong.
#[derive(clap::Args)]
struct TcpArguments {
    /// The server, as HOST:PORT.
    #[arg(value_name = "ADDR", value_parser = parse_target)]
    target: String,

    /// Connections, each with one request in flight.
    #[arg(long, short = 'c', value_name = "N", default_value_t = 50, value_parser = parse_count)]
    connections: usize,

    /// Bytes of a request, and of its reply.
    #[arg(long, short = 'b', value_name = "BYTES", default_value_t = 128, value_parser = parse_message_bytes)]
    message_bytes: usize,

    /// How long to measure; replies that are owed at the end are waited for.
    #[arg(long, short = 'd', value_name = "DURATION", value_parser = duration::parse, default_value = "10s")]
    duration: Duration,

    /// Load before the measurement, not counted.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0s")]
    warm_up: Duration,

    /// Check every byte of every reply. Messages differ by connection and by request, so that a reply meant for
    /// another shows, too.
    #[arg(long)]
    verify: bool,

    /// How long opening all connections may take.
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, default_value = "10s")]
    connect_timeout: Duration,

    /// How long a request may wait for the end of its reply.
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, default_value = "5s")]
    timeout: Duration,

    /// Addresses of this machine that the connections come from, in turn, with commas.
    ///
    /// From one address to one server there are about 28,000 ports (net.ipv4.ip_local_port_range), and the second half
    /// of them is slow to open. By default, more than 4,000 connections to 127.0.0.0/8 come from 127.0.0.1, 127.0.0.2
    /// and so on, 4,000 or fewer from each; all others come from the address that the kernel chooses.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    sources: Vec<IpAddr>,

    /// The server's process on this machine: report its CPU time per request, too.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,

    /// Print the report as JSON. `schema` and `schema_version` name the format; times are in nanoseconds (_ns).
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    driver: DriverFlags,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    match arguments.command {
        Command::Tcp(arguments) => run_tcp(&arguments),
    }
}

fn run_tcp(arguments: &TcpArguments) -> io::Result<ExitCode> {
    limits::raise_open_files();
    let target = resolve(&arguments.target)?;
    let load = TcpLoad {
        connections: arguments.connections,
        message_bytes: arguments.message_bytes,
        duration: arguments.duration,
        warm_up: arguments.warm_up,
        verify: arguments.verify,
        connect_timeout: arguments.connect_timeout,
        stall_timeout: arguments.timeout,
        sources: arguments.sources.clone(),
        server_pid: arguments.server_pid,
        ..TcpLoad::new(target)
    };
    let stop = stop::flag()?;
    let runtime = arguments.driver.builder().build()?;
    let line = ProgressLine::new();
    let report = runtime.block_on(anello_load::run(&load, |progress| {
        line.show(progress);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }));
    line.0.finish_and_clear();
    let report = report?;
    let text = if arguments.json { serde_json::to_string_pretty(&report)? + "\n" } else { render(&report) };
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    Ok(ExitCode::from(if report.is_good() { 0 } else { 1 }))
}

/// The live line on standard error; nothing where that is no terminal.
struct ProgressLine(ProgressBar);

impl ProgressLine {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{wide_bar} {percent}%  {msg}");
        let bar = ProgressBar::new(0);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }

    fn show(&self, progress: &Progress) {
        let (elapsed, planned) = (progress.elapsed, progress.planned);
        self.0.set_length(u64::try_from(planned.as_millis()).unwrap_or(u64::MAX));
        self.0.set_position(u64::try_from(elapsed.min(planned).as_millis()).unwrap_or(u64::MAX));
        let rate = progress.requests as f64 / elapsed.as_secs_f64().max(1e-9);
        let doing = match progress.phase {
            Phase::Connecting => "connecting".to_owned(),
            Phase::WarmUp => format!("warming up, {} requests/s", grouped(rate)),
            Phase::Measuring => format!("{} requests/s", grouped(rate)),
        };
        let errors = match progress.errors {
            0 => String::new(),
            count => format!(", {count} errors"),
        };
        self.0.set_message(format!("{doing}, {} connections{errors}", progress.connections));
    }
}

/// The report for people.
fn render(report: &Report) -> String {
    let mut text = String::new();
    let check = match report.verified {
        true => "every byte checked",
        false => "bytes counted, not checked",
    };
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        writeln!(text, "{name:<14}{value}").ok();
    };
    line("server", &format!("{}  ({check}, load on {})", report.target, report.driver));
    let mut connections = grouped(report.connections_opened as f64);
    if report.connections_opened < report.connections {
        connections = format!("{connections} of {}", grouped(report.connections as f64));
    }
    if report.connections_left < report.connections_opened {
        connections += &format!(", {} left at the end", grouped(report.connections_left as f64));
    }
    if report.sources.len() > 1 {
        connections += &format!(", from {} addresses", report.sources.len());
    }
    line("connections", &format!("{connections}; {} bytes a message", grouped(report.message_bytes as f64)));
    let stopped = if report.interrupted { ", stopped early" } else { "" };
    let seconds = report.elapsed_ns as f64 / 1e9;
    line("requests", &format!("{} in {seconds:.3} s{stopped}", grouped(report.requests as f64)));
    line("requests/s", &grouped(report.requests_per_second));
    match &report.latency {
        None => line("latency", "nothing was answered"),
        Some(latency) => {
            let figures = [
                ("p50", latency.p50_ns),
                ("p90", latency.p90_ns),
                ("p99", latency.p99_ns),
                ("p99.9", latency.p999_ns),
                ("max", latency.max_ns),
            ];
            let figures = figures.map(|(name, ns)| format!("{name} {}", readable(ns as f64)));
            line("latency", &figures.join("   "));
        }
    }
    if let Some(spread) = report.requests_per_connection.filter(|_| report.connections > 1) {
        let figures = [("min", spread.min), ("median", spread.median), ("max", spread.max)];
        let figures = figures.map(|(name, count)| format!("{name} {}", grouped(count as f64)));
        line("a connection", &format!("{} requests", figures.join("   ")));
    }
    let each = |cpu: Option<f64>| {
        cpu.map_or("no requests".to_owned(), |cpu| format!("{} per request", readable(cpu)))
    };
    if let Some(cpu) = &report.server_cpu {
        line("server CPU", &each(cpu.cpu_ns_per_request));
    }
    line("load CPU", &each(report.load_cpu_ns_per_request));
    if report.errors.is_empty() {
        line("errors", "none");
    }
    for error in report.errors.iter() {
        line("ERRORS", &format!("{} × {}: {}", grouped(error.count as f64), error.kind, error.example));
    }
    text
}

/// Nanoseconds in the unit that suits them, at three digits or so.
fn readable(ns: f64) -> String {
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        ..1e6 => (ns / 1e3, "µs"),
        ..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// A whole number with commas: 1,234,567.
fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Checks the form of `HOST:PORT`; whether there is such a host is found out later.
fn parse_target(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.and_then(|port| port.parse::<u16>().ok()) {
        None | Some(0) => Err(format!("{text:?} is no address: write HOST:PORT, as in 127.0.0.1:7000")),
        Some(_) => Ok(text.to_owned()),
    }
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

/// The first address of the server.
fn resolve(target: &str) -> io::Result<SocketAddr> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{target}: {error}"));
    let mut addresses = target.to_socket_addrs().map_err(failed)?;
    addresses
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{target}: has no address")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_counts_are_readable() {
        assert_eq!(
            [7.0, 812.0, 1_234.0, 56_789.0, 123_456.0].map(readable),
            ["7.00 ns", "812 ns", "1.23 µs", "56.8 µs", "123 µs"]
        );
        assert_eq!([5e6, 1.5e9].map(readable), ["5.00 ms", "1.50 s"]);
        assert_eq!([0.0, 999.0, 1000.0, 1_234_567.8].map(grouped), ["0", "999", "1,000", "1,234,568"]);
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for right in ["127.0.0.1:80", "[::1]:7000", "localhost:1"] {
            assert_eq!(parse_target(right).as_deref(), Ok(right));
        }
        for wrong in ["", "localhost", ":80", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999"] {
            assert!(parse_target(wrong).is_err(), "{wrong}");
        }
    }
}
