//! Command line and shared functions of the Rust peers: listening, pinning threads to cores, and the ready line.
//!
//! ```text
//! tokio-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes 4096]
//! axum-http --addr 127.0.0.1:7000 [--cores 0,2-3] --root DIR
//! ```
//!
//! With one core, a peer runs on one thread that is pinned to it. With several cores, it runs on the same number of
//! threads. A peer whose runtime distributes its work gets the number of threads from [`Flags::threads`]. The others
//! run one instance per core, each with its own listener on the shared address (`SO_REUSEPORT`): [`thread_per_core`].

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod http;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::thread::{CpuSet, sched_setaffinity};

pub use http::{
    HttpFlags, TlsFiles, into_inheritable_fd, memory_file, plain_path, run_as_announcer, spawn_announcer,
};

/// Pause of the accept loop after a failed accept, usually because descriptors ran out, so that the loop does not spin
/// on a persistent error.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(1);

/// Maximum number of connections that wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
pub const BACKLOG: i32 = 4096;

/// Parsed command line of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// The address to listen on; port 0 lets the kernel choose.
    pub addr: SocketAddr,
    /// The cores to run on. If empty, the peer runs on one thread that is not pinned.
    pub cores: Vec<usize>,
    /// Size in bytes of one connection's buffer, or of the shared buffer of a server that has only one. 0 for HTTP
    /// servers, which choose their buffers themselves.
    pub buffer_bytes: usize,
}

impl Flags {
    /// Parses the arguments of the process and pins the calling thread to the cores. On an error, prints the cause and
    /// exits with status 2.
    ///
    /// Call it before the runtime is built, so that the threads of the runtime inherit the affinity.
    pub fn from_arguments(default_buffer_bytes: usize) -> Self {
        Self::with_choice(default_buffer_bytes, "", &[]).0
    }

    /// Like [`from_arguments`](Self::from_arguments), with an additional flag that selects one of `values`.
    /// Returns the index of the selected value. The default is the first.
    pub fn with_choice(default_buffer_bytes: usize, choice: &str, values: &[&str]) -> (Self, usize) {
        let choice_usage =
            if choice.is_empty() { String::new() } else { format!(" [{choice} {}]", values.join("|")) };
        let parsed = Self::parse(std::env::args().skip(1), default_buffer_bytes, choice, values);
        pin_or_exit(parsed, |(flags, _)| flags, &format!("[--buffer-bytes N]{choice_usage}"))
    }

    /// Returns the number of serving threads: one per core, at least one.
    pub fn threads(&self) -> usize {
        self.cores.len().max(1)
    }

    fn parse(
        arguments: impl Iterator<Item = String>,
        default_buffer_bytes: usize,
        choice: &str,
        values: &[&str],
    ) -> Result<(Self, usize), String> {
        let (mut buffer_bytes, mut choice_index) = (default_buffer_bytes, 0);
        let flags = Self::parse_with(arguments, |flag, value| {
            match flag {
                "--buffer-bytes" => {
                    buffer_bytes =
                        value.parse().ok().filter(|&bytes| bytes > 0).ok_or("expected a positive size")?;
                }
                flag if flag == choice => choice_index = choose(value, values)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok((Self { buffer_bytes, ..flags }, choice_index))
    }

    /// Parses the flags of all servers. Calls `parse_flag` with each other flag and its value; it returns whether it
    /// knows the flag, or the error of the value.
    fn parse_with(
        mut arguments: impl Iterator<Item = String>,
        mut parse_flag: impl FnMut(&str, &str) -> Result<bool, String>,
    ) -> Result<Self, String> {
        let (mut addr, mut cores) = (None, Vec::new());
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("missing value for {flag}"))?;
            let invalid = |reason: String| format!("invalid {flag} {value}: {reason}");
            match flag.as_str() {
                "--addr" => addr = Some(value.parse().map_err(|_| invalid("expected ADDRESS:PORT".into()))?),
                "--cores" => cores = parse_cores(&value).map_err(invalid)?,
                _ if parse_flag(&flag, &value).map_err(invalid)? => {}
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(Self { addr: addr.ok_or("missing flag --addr")?, cores, buffer_bytes: 0 })
    }
}

/// Returns the index of a value in the list of accepted values.
fn choose(value: &str, values: &[&str]) -> Result<usize, String> {
    let index = values.iter().position(|&name| name == value);
    index.ok_or_else(|| format!("expected one of {}", values.join(", ")))
}

/// Returns the parsed arguments after pinning the calling thread to the cores. On an error, prints the cause and the
/// usage, which ends with `usage`, and exits with status 2.
fn pin_or_exit<T>(parsed: Result<T, String>, flags: impl Fn(&T) -> &Flags, usage: &str) -> T {
    parsed.and_then(|parsed| pin(&flags(&parsed).cores).map(|()| parsed)).unwrap_or_else(|error| {
        eprintln!("{error}\nusage: --addr ADDRESS:PORT [--cores LIST] {usage}");
        exit(2)
    })
}

/// Runs `serve` once per core, on a thread pinned to the core and with its own listener; with one core, on the calling
/// thread. Returns when one of the servers returns.
///
/// # Errors
/// The error of listening or of the server. The other threads exit with the process.
pub fn thread_per_core(
    flags: &Flags,
    details: &'static str,
    serve: impl Fn(&Flags, TcpListener, &Ready) -> io::Result<()> + Clone + Send + 'static,
) -> io::Result<()> {
    let reuse_port = flags.threads() > 1;
    let first = listen(flags.addr, reuse_port)?;
    let addr = first.local_addr()?;
    let ready = Ready::new(flags.threads(), addr, details);
    if !reuse_port {
        return serve(flags, first, &ready);
    }
    let mut listeners = vec![first];
    for _ in 1..flags.threads() {
        listeners.push(listen(addr, true)?);
    }
    let (sender, results) = std::sync::mpsc::channel();
    for (listener, &core) in listeners.into_iter().zip(&flags.cores) {
        let (sender, flags, ready, serve) = (sender.clone(), flags.clone(), ready.clone(), serve.clone());
        thread::spawn(move || {
            let result = pin(&[core]).map_err(io::Error::other);
            let result = result.and_then(|()| serve(&flags, listener, &ready));
            // The receiver is dropped only when the process exits.
            sender.send(result).ok();
        });
    }
    drop(sender);
    results.recv().unwrap_or_else(|_| Err(io::Error::other("a server thread panicked")))
}

/// Creates a listening socket. With `reuse_port`, several sockets can listen on one address, and the kernel distributes
/// the connections among them (`SO_REUSEPORT`).
///
/// # Errors
/// Returns the error of `socket(2)`, `setsockopt(2)`, `bind(2)` or `listen(2)`.
pub fn listen(addr: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, reuse_port)?;
    net::bind(&socket, &addr)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Prints the ready line once all threads of the server accept connections.
#[derive(Debug, Clone)]
pub struct Ready {
    remaining: Arc<AtomicUsize>,
    addr: SocketAddr,
    details: &'static str,
}

impl Ready {
    /// Creates the announcement for a server with `threads` threads on `addr`. `details` are the further fields of the
    /// ready line, e.g. `driver=epoll`.
    pub fn new(threads: usize, addr: SocketAddr, details: &'static str) -> Self {
        Self { remaining: Arc::new(AtomicUsize::new(threads)), addr, details }
    }

    /// Reports that one thread accepts connections. The last thread prints the ready line.
    ///
    /// # Errors
    /// Returns the error of writing to standard output.
    pub fn announce(&self) -> io::Result<()> {
        if self.remaining.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "ready addr={} {}", self.addr, self.details)?;
        stdout.flush()
    }
}

/// Pins the calling thread, and the threads that it starts later, to the cores. Does nothing for an empty list.
fn pin(cores: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            return Err(format!("invalid --cores: no core {core}"));
        }
        set.set(core);
    }
    if cores.is_empty() {
        return Ok(());
    }
    sched_setaffinity(None, &set).map_err(|error| {
        format!("cannot pin to cores {cores:?}: {error} (/proc/self/status lists the allowed cores)")
    })
}

/// Parses a list of cores such as `2,4-7`.
fn parse_cores(list: &str) -> Result<Vec<usize>, String> {
    let invalid = || "expected a list of cores, e.g. 0,2-3".to_owned();
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let parse_core = |text: &str| text.trim().parse::<usize>().ok().filter(|&core| core < 65536);
        let (first, last) = (parse_core(first).ok_or_else(invalid)?, parse_core(last).ok_or_else(invalid)?);
        if first > last {
            return Err(invalid());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        Flags::parse(line.split_whitespace().map(String::from), 4096, "", &[]).map(|(flags, _)| flags)
    }

    #[test]
    fn parse_returns_choice_index() {
        let choice_index = |line: &str| {
            let words = line.split_whitespace().map(String::from);
            Flags::parse(words, 1, "--reactor", &["io_uring", "epoll"]).map(|(_, choice_index)| choice_index)
        };
        assert_eq!(choice_index("--addr 127.0.0.1:1 --reactor epoll"), Ok(1));
        assert_eq!(choice_index("--addr 127.0.0.1:1"), Ok(0));
        assert!(choice_index("--addr 127.0.0.1:1 --reactor kqueue").unwrap_err().contains("io_uring, epoll"));
    }

    #[test]
    fn parse_accepts_all_flags() {
        let flags = parse("--addr 127.0.0.1:7000 --cores 2,4-6 --buffer-bytes 65536").unwrap();
        assert_eq!(flags.addr.port(), 7000);
        assert_eq!((flags.cores.as_slice(), flags.buffer_bytes), ([2, 4, 5, 6].as_slice(), 65536));
        assert_eq!((flags.threads(), parse("--addr 127.0.0.1:7000").unwrap().threads()), (4, 1));
    }

    #[test]
    fn parse_error_names_cause() {
        assert_eq!(parse("--cores 1").unwrap_err(), "missing flag --addr");
        assert!(parse("--addr localhost").unwrap_err().contains("ADDRESS:PORT"));
        assert!(
            parse("--addr 127.0.0.1:1 --buffer-bytes 0").unwrap_err().contains("expected a positive size")
        );
        for list in ["x", "1-", "3-2", "", "0,"] {
            let line = ["--addr", "127.0.0.1:1", "--cores", list].map(String::from);
            assert!(
                Flags::parse(line.into_iter(), 1, "", &[]).unwrap_err().contains("list of cores"),
                "{list}"
            );
        }
        assert!(parse("--addr").unwrap_err().contains("missing value"));
    }

    #[test]
    fn listeners_share_address_only_with_reuse_port() {
        let first = listen("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let addr = first.local_addr().unwrap();
        listen(addr, true).unwrap();
        assert!(listen(addr, false).is_err());
    }
}
