//! Code shared by the contenders: arguments, slices, and the test file.
//!
//! A contender is a program with the arguments WORKLOAD [BYTES [DEPTH [FILE]]]. It reads lines from standard input;
//! each is the number of operations of a slice. After the slice, it prints the CPU time of the process and the elapsed
//! time, in nanoseconds. It exits with status 3 if it does not support the workload.
//!
//! The workloads `udp-echo [IP:PORT]` and `proxy IP:PORT` are servers for `bench/other-client` and `bench/instructions/run`.

use std::io::{BufRead, Write, stdin, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Alignment of offsets, lengths and memory for direct I/O.
pub const ALIGNMENT: usize = 4096;

/// Number of timers that are active in the timer workloads.
pub const TIMERS: u64 = 1_000_000;

/// Size of the buffer for each datagram of the echo servers, in bytes.
pub const MAX_DATAGRAM_BYTES: usize = 2048;

/// Size of the datagrams in a train that is sent with one call (GSO), in bytes.
pub const SEGMENT_BYTES: usize = 1200;

/// Arguments of a contender.
pub struct Arguments {
    pub workload: String,
    /// Size of a message or block, in bytes.
    pub bytes: usize,
    /// Number of concurrent operations, or the capacity of a channel.
    pub depth: usize,
    pub file: PathBuf,
    address: Option<SocketAddr>,
}

impl Arguments {
    /// Parses the command line. Exits with status 2 if it is invalid.
    pub fn parse() -> Self {
        let arguments: Vec<String> = std::env::args().collect();
        let address = arguments.get(2).and_then(|text| text.parse().ok());
        let number = |index: usize, default: usize| match arguments.get(index) {
            Some(text) if address.is_none() => text.parse().unwrap_or_else(|_| usage()),
            _ => default,
        };
        Self {
            workload: arguments.get(1).cloned().unwrap_or_else(|| usage()),
            bytes: number(2, 128),
            depth: number(3, 1),
            file: arguments.get(4).map(PathBuf::from).unwrap_or_default(),
            address,
        }
    }

    /// Returns the address of the server behind the proxy, which is the second argument.
    pub fn backend(&self) -> SocketAddr {
        self.address.unwrap_or_else(|| usage())
    }

    /// Returns the address at which a datagram server listens: the second argument, or a free port on loopback.
    pub fn listen_address(&self) -> SocketAddr {
        self.address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Returns the size of the file in blocks.
    pub fn blocks(&self) -> u64 {
        std::fs::metadata(&self.file).expect("test file exists").len() / self.bytes as u64
    }

    /// Returns `true` if the workload uses direct I/O.
    pub fn is_direct(&self) -> bool {
        self.workload.contains("direct")
    }

    /// Returns the open flag for direct I/O, or 0.
    pub fn open_flags(&self) -> i32 {
        if self.is_direct() { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 }
    }
}

/// Reports the address of a server that is ready.
pub fn announce(address: SocketAddr) {
    println!("ready addr={address}");
}

fn usage() -> ! {
    eprintln!("usage: CONTENDER WORKLOAD [BYTES [DEPTH [FILE]]], or CONTENDER SERVER [IP:PORT]");
    std::process::exit(2)
}

/// Exits with status 3: the contender does not support the workload.
pub fn unsupported() -> ! {
    std::process::exit(3)
}

/// Runs a slice for each line of standard input.
pub fn serve(mut slice: impl FnMut(u64)) {
    for line in stdin().lock().lines() {
        let count = line.expect("standard input is text").parse().unwrap_or_else(|_| usage());
        let (cpu, start) = (cpu_ns(), Instant::now());
        slice(count);
        let (cpu, elapsed) = (cpu_ns() - cpu, start.elapsed().as_nanos());
        writeln!(stdout(), "{cpu} {elapsed}").expect("standard output is open");
    }
}

/// Returns the CPU time of all threads of this process.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Moves the calling thread to a core. Only the workloads with two threads need it: `compare` pins the others.
pub fn pin_to(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores).expect("core exists");
}

/// Splits a number of operations evenly among tasks.
pub fn share(count: u64, tasks: usize) -> u64 {
    count.div_ceil(tasks as u64)
}
