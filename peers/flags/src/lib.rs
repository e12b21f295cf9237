//! The command line that every Rust peer understands, and what all of them do alike: listen, pin their threads to the
//! cores and say when they are ready.
//!
//! ```text
//! tokio-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes 4096]
//! axum-http --addr 127.0.0.1:7000 [--cores 0,2-3] --root DIR
//! ```
//!
//! One core: everything on one thread, pinned to it. Several: as many threads. A peer whose runtime spreads its work
//! by itself is given the number ([`Flags::threads`]); the others run once per core, each with a listener of its own
//! on the one address (`SO_REUSEPORT`): [`thread_per_core`].

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

pub use http::{HttpFlags, TlsFiles, announce_once_open, announced, in_memory, inheritable, plain_path};

/// How long a server leaves its accept loop after a failed accept (out of descriptors, mostly), so that it does not
/// spin on an error that lasts.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(1);

/// Connections that may wait to be accepted; the kernel takes the smaller of this and `net.core.somaxconn`.
pub const BACKLOG: i32 = 4096;

/// What a peer was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// The address to listen on; port 0 lets the kernel choose.
    pub addr: SocketAddr,
    /// The cores to run on; empty leaves the choice to the scheduler, with one thread.
    pub cores: Vec<usize>,
    /// Size of one connection's buffer (for a server with one buffer in all: of that one), bytes; 0 for HTTP servers,
    /// which choose for themselves.
    pub buffer_bytes: usize,
}

impl Flags {
    /// Reads the process's arguments and binds the calling thread to the cores; on a mistake prints the cause and
    /// exits with 2.
    ///
    /// Call it before the runtime is built, so that the threads it starts inherit the affinity.
    pub fn from_arguments(default_buffer_bytes: usize) -> Self {
        Self::with_choice(default_buffer_bytes, "", &[]).0
    }

    /// Like [`from_arguments`](Self::from_arguments), with one more flag that chooses among `values`, of which the
    /// first is taken when the flag is not given: returns the place of the chosen one.
    pub fn with_choice(default_buffer_bytes: usize, choice: &str, values: &[&str]) -> (Self, usize) {
        let more =
            if choice.is_empty() { String::new() } else { format!(" [{choice} {}]", values.join("|")) };
        let parsed = Self::parse(std::env::args().skip(1), default_buffer_bytes, choice, values);
        pinned_or_exit(parsed, |(flags, _)| flags, &format!("[--buffer-bytes N]{more}"))
    }

    /// How many threads serve: one for every core, at least one.
    pub fn threads(&self) -> usize {
        self.cores.len().max(1)
    }

    fn parse(
        arguments: impl Iterator<Item = String>,
        default_buffer_bytes: usize,
        choice: &str,
        values: &[&str],
    ) -> Result<(Self, usize), String> {
        let (mut buffer_bytes, mut chosen) = (default_buffer_bytes, 0);
        let flags = Self::parse_with(arguments, |flag, value| {
            match flag {
                "--buffer-bytes" => {
                    buffer_bytes = value.parse().ok().filter(|&bytes| bytes > 0).ok_or("not a size")?;
                }
                flag if flag == choice => chosen = choose(value, values)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok((Self { buffer_bytes, ..flags }, chosen))
    }

    /// Reads what all servers take. Of any other flag `further` is told, with its value, and says whether it knows it
    /// or what is wrong with the value.
    fn parse_with(
        mut arguments: impl Iterator<Item = String>,
        mut further: impl FnMut(&str, &str) -> Result<bool, String>,
    ) -> Result<Self, String> {
        let (mut addr, mut cores) = (None, Vec::new());
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let wrong = |why: String| format!("{flag} {value}: {why}");
            match flag.as_str() {
                "--addr" => addr = Some(value.parse().map_err(|_| wrong("not ADDRESS:PORT".into()))?),
                "--cores" => cores = parse_cores(&value).map_err(wrong)?,
                _ if further(&flag, &value).map_err(wrong)? => {}
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(Self { addr: addr.ok_or("--addr is missing")?, cores, buffer_bytes: 0 })
    }
}

/// The place of a value among those that a flag takes.
fn choose(value: &str, values: &[&str]) -> Result<usize, String> {
    let place = values.iter().position(|&name| name == value);
    place.ok_or_else(|| format!("not one of {}", values.join(", ")))
}

/// What was read of the arguments, with the calling thread bound to the cores; on a mistake prints the cause and the
/// usage, of which `more` is the end, and exits with 2.
fn pinned_or_exit<T>(read: Result<T, String>, flags: impl Fn(&T) -> &Flags, more: &str) -> T {
    read.and_then(|read| pin(&flags(&read).cores).map(|()| read)).unwrap_or_else(|cause| {
        eprintln!("{cause}\nusage: --addr ADDRESS:PORT [--cores LIST] {more}");
        exit(2)
    })
}

/// Runs `serve` once for every core, on a thread pinned to it and with a listener of its own; with one core, on the
/// calling thread. Returns only when a thread's server ended or failed.
///
/// # Errors
/// What listening or the server failed with; the other threads end with the process.
pub fn thread_per_core(
    flags: &Flags,
    about: &'static str,
    serve: impl Fn(&Flags, TcpListener, &Ready) -> io::Result<()> + Clone + Send + 'static,
) -> io::Result<()> {
    let share = flags.threads() > 1;
    let first = listen(flags.addr, share)?;
    let addr = first.local_addr()?;
    let ready = Ready::new(flags.threads(), addr, about);
    if !share {
        return serve(flags, first, &ready);
    }
    let mut listeners = vec![first];
    for _ in 1..flags.threads() {
        listeners.push(listen(addr, true)?);
    }
    let (sender, ends) = std::sync::mpsc::channel();
    for (listener, &core) in listeners.into_iter().zip(&flags.cores) {
        let (sender, flags, ready, serve) = (sender.clone(), flags.clone(), ready.clone(), serve.clone());
        thread::spawn(move || {
            let result = pin(&[core]).map_err(io::Error::other);
            let result = result.and_then(|()| serve(&flags, listener, &ready));
            // The receiver is gone only when the process ends.
            sender.send(result).ok();
        });
    }
    drop(sender);
    ends.recv().unwrap_or_else(|_| Err(io::Error::other("a server thread panicked")))
}

/// A listening socket; `share` lets several listen on one address, among which the kernel spreads the connections
/// (`SO_REUSEPORT`).
///
/// # Errors
/// What the kernel refused.
pub fn listen(addr: SocketAddr, share: bool) -> io::Result<TcpListener> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, share)?;
    net::bind(&socket, &addr)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Tells whoever started the server that connections are accepted, once all its threads have said so.
#[derive(Debug, Clone)]
pub struct Ready {
    remaining: Arc<AtomicUsize>,
    addr: SocketAddr,
    about: &'static str,
}

impl Ready {
    /// For a server of so many threads on `addr`; `about` says what it runs on, as in `driver=epoll`.
    pub fn new(threads: usize, addr: SocketAddr, about: &'static str) -> Self {
        Self { remaining: Arc::new(AtomicUsize::new(threads)), addr, about }
    }

    /// One thread is ready; the last one prints the line.
    ///
    /// # Errors
    /// If standard output cannot be written to.
    pub fn announce(&self) -> io::Result<()> {
        if self.remaining.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "ready addr={} {}", self.addr, self.about)?;
        stdout.flush()
    }
}

/// Binds the calling thread, and those it starts from now on, to the cores; to none in particular if there are none.
fn pin(cores: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            return Err(format!("--cores: there is no core {core}"));
        }
        set.set(core);
    }
    if cores.is_empty() {
        return Ok(());
    }
    sched_setaffinity(None, &set).map_err(|error| {
        format!("--cores: cannot run on {cores:?}: {error}; see /proc/self/status for the allowed ones")
    })
}

/// The cores of a list such as `2,4-7`.
fn parse_cores(list: &str) -> Result<Vec<usize>, String> {
    let wrong = || "not a list of cores such as 0,2-3".to_owned();
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&core| core < 65536);
        let (first, last) = (number(first).ok_or_else(wrong)?, number(last).ok_or_else(wrong)?);
        if first > last {
            return Err(wrong());
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
    fn reads_a_choice() {
        let chosen = |line: &str| {
            let words = line.split_whitespace().map(String::from);
            Flags::parse(words, 1, "--reactor", &["io_uring", "epoll"]).map(|(_, chosen)| chosen)
        };
        assert_eq!(chosen("--addr 127.0.0.1:1 --reactor epoll"), Ok(1));
        assert_eq!(chosen("--addr 127.0.0.1:1"), Ok(0));
        assert!(chosen("--addr 127.0.0.1:1 --reactor kqueue").unwrap_err().contains("io_uring, epoll"));
    }

    #[test]
    fn reads_every_flag() {
        let flags = parse("--addr 127.0.0.1:7000 --cores 2,4-6 --buffer-bytes 65536").unwrap();
        assert_eq!(flags.addr.port(), 7000);
        assert_eq!((flags.cores.as_slice(), flags.buffer_bytes), ([2, 4, 5, 6].as_slice(), 65536));
        assert_eq!((flags.threads(), parse("--addr 127.0.0.1:7000").unwrap().threads()), (4, 1));
    }

    #[test]
    fn names_the_mistake() {
        assert_eq!(parse("--cores 1").unwrap_err(), "--addr is missing");
        assert!(parse("--addr localhost").unwrap_err().contains("ADDRESS:PORT"));
        assert!(parse("--addr 127.0.0.1:1 --buffer-bytes 0").unwrap_err().contains("not a size"));
        for list in ["x", "1-", "3-2", "", "0,"] {
            let line = ["--addr", "127.0.0.1:1", "--cores", list].map(String::from);
            assert!(
                Flags::parse(line.into_iter(), 1, "", &[]).unwrap_err().contains("list of cores"),
                "{list}"
            );
        }
        assert!(parse("--addr").unwrap_err().contains("needs a value"));
    }

    #[test]
    fn several_share_an_address_only_when_asked_to() {
        let first = listen("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let addr = first.local_addr().unwrap();
        listen(addr, true).unwrap();
        assert!(listen(addr, false).is_err());
    }
}
