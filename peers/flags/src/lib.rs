//! The command line that every peer echo server understands, and the two things that all of them do alike: pin
//! themselves to a core and say when they are ready.
//!
//! ```text
//! tokio-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes 4096]
//! ```
//!
//! The peers are single-threaded: of `--cores` the first one counts.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::exit;
use std::time::Duration;

/// How long a server leaves its accept loop after a failed accept (out of descriptors, mostly), so that it does not
/// spin on an error that lasts.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(1);

/// What a peer was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// The address to listen on; port 0 lets the kernel choose.
    pub addr: SocketAddr,
    /// The core to run on; none leaves the choice to the scheduler.
    pub core: Option<usize>,
    /// Size of one connection's buffer (for a server with one buffer in all: of that one), bytes.
    pub buffer_bytes: usize,
}

impl Flags {
    /// Reads the process's arguments and pins the calling thread; on a mistake prints the cause and exits with 2.
    ///
    /// Call it before the runtime is built, so that the threads it may start inherit the affinity.
    pub fn from_arguments(default_buffer_bytes: usize) -> Self {
        let flags = Self::parse(std::env::args().skip(1), default_buffer_bytes).and_then(|flags| {
            flags.pin()?;
            Ok(flags)
        });
        flags.unwrap_or_else(|cause| {
            eprintln!("{cause}\nusage: --addr ADDRESS:PORT [--cores LIST] [--buffer-bytes N]");
            exit(2)
        })
    }

    fn parse(
        mut arguments: impl Iterator<Item = String>,
        default_buffer_bytes: usize,
    ) -> Result<Self, String> {
        let (mut addr, mut core, mut buffer_bytes) = (None, None, default_buffer_bytes);
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let wrong = |why: String| format!("{flag} {value}: {why}");
            match flag.as_str() {
                "--addr" => addr = Some(value.parse().map_err(|_| wrong("not ADDRESS:PORT".into()))?),
                "--cores" => core = Some(first_core(&value).map_err(wrong)?),
                "--buffer-bytes" => {
                    buffer_bytes =
                        value.parse().ok().filter(|&n| n > 0).ok_or_else(|| wrong("not a size".into()))?;
                }
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(Self { addr: addr.ok_or("--addr is missing")?, core, buffer_bytes })
    }

    fn pin(&self) -> Result<(), String> {
        let Some(core) = self.core else { return Ok(()) };
        if core >= rustix::thread::CpuSet::MAX_CPU {
            return Err(format!("--cores: there is no core {core}"));
        }
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
            format!("--cores: cannot run on core {core}: {error}; see /proc/self/status for the allowed ones")
        })
    }
}

/// Tells whoever started the server that connections are accepted from now on: one line on standard output.
pub fn announce_ready(addr: SocketAddr) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "ready addr={addr}")?;
    stdout.flush()
}

/// The first core of a list such as `2,4-7`.
fn first_core(list: &str) -> Result<usize, String> {
    let first = list.split([',', '-']).next().unwrap_or_default();
    first.trim().parse().map_err(|_| "not a list of cores such as 0,2-3".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        Flags::parse(line.split_whitespace().map(String::from), 4096)
    }

    #[test]
    fn reads_every_flag() {
        let flags = parse("--addr 127.0.0.1:7000 --cores 2,4-7 --buffer-bytes 65536").unwrap();
        assert_eq!(flags.addr.port(), 7000);
        assert_eq!((flags.core, flags.buffer_bytes), (Some(2), 65536));
    }

    #[test]
    fn names_the_mistake() {
        assert_eq!(parse("--cores 1").unwrap_err(), "--addr is missing");
        assert!(parse("--addr localhost").unwrap_err().contains("ADDRESS:PORT"));
        assert!(parse("--addr 127.0.0.1:1 --buffer-bytes 0").unwrap_err().contains("not a size"));
        assert!(parse("--addr 127.0.0.1:1 --cores x").unwrap_err().contains("list of cores"));
        assert!(parse("--addr").unwrap_err().contains("needs a value"));
    }
}
