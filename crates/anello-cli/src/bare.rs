//! `anello bare`: the baseline servers and the disk workers.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anello_bare::disk::{Engine, Worker};
use anello_bare::{Model, Options, UringOptions};

use crate::common::error::Context;
use crate::common::output::announce;
use crate::common::values;

/// Run one of the lab's baselines: a minimal hand-written event loop without a runtime.
///
/// The baselines are single-threaded echo servers (except threads, with one thread per connection, and uring --rings,
/// with one thread per ring) and disk workers. They exit immediately on SIGINT or SIGTERM.
#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Arguments {
    #[command(subcommand)]
    baseline: Baseline,
}

#[derive(clap::Subcommand)]
enum Baseline {
    Uring(UringArguments),
    /// TCP echo server with epoll_wait, edge-triggered.
    Epoll {
        #[command(flatten)]
        address: Address,
        /// Time to poll for events before the thread sleeps, such as 50us; at most 1s.
        #[arg(long, value_name = "DURATION", value_parser = values::spin, default_value = "0s")]
        spin: Duration,
    },
    /// TCP echo server with poll.
    Poll(Address),
    /// TCP echo server with select; descriptors are limited to 1023.
    Select(Address),
    /// TCP echo server with one blocking thread per connection.
    Threads(Address),
    Disk(DiskArguments),
}

#[derive(clap::Args)]
struct Address {
    /// Address to listen on; with port 0 the kernel chooses the port.
    #[arg(long, default_value = "127.0.0.1:7000")]
    addr: SocketAddr,
}

/// TCP echo server with io_uring.
///
/// Without the options below, this is the baseline, compiled with fixed options. With an option, the server reads its
/// options at run time, to measure their effects. Compare it with --configurable alone, not with the baseline.
#[derive(clap::Args)]
struct UringArguments {
    #[command(flatten)]
    address: Address,
    /// Read the options at run time even without other options: the reference for measuring them.
    #[arg(long, help_heading = "io_uring options")]
    configurable: bool,
    #[command(flatten)]
    options: UringOptions,
}

/// Read and write a file on command from a control connection: the worker of the lab's disk preset.
///
/// Each line on the connection is a command, such as {"operation":"random_read","direct":true,"block_bytes":4096,
/// "depth":16,"duration_ns":64000000,"seed":1}; the worker replies with one line that contains the result. Operations
/// are random_read, random_write, sequential_read and sequential_write. The worker sleeps between commands. Direct
/// writes complete when the data is on the disk (O_DSYNC), buffered writes when it is in the page cache; "sync":true or
/// "sync":false overrides this. Reads are checked against the data written before.
#[derive(clap::Args)]
struct DiskArguments {
    /// I/O engine: pread, threads, posix-aio, linux-aio or uring.
    #[arg(long)]
    engine: Engine,
    /// File to read and write; it is overwritten. Several workers can use the same file, one at a time. A file that
    /// was not created with --create-bytes is rejected.
    #[arg(long, value_name = "PATH")]
    file: PathBuf,
    /// Create the file with this length in bytes, a multiple of 4096, unless it exists.
    #[arg(long, value_name = "BYTES")]
    create_bytes: Option<u64>,
    #[command(flatten)]
    address: Address,
}

/// Serves until a signal kills the process.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    let mut options = Options::default();
    let (model, Address { addr }) = match arguments.baseline {
        Baseline::Uring(UringArguments { address, configurable, options: uring }) => {
            options.uring = (configurable || uring != UringOptions::default()).then_some(uring);
            (Model::Uring, address)
        }
        Baseline::Epoll { address, spin } => {
            options.spin = spin;
            (Model::Epoll, address)
        }
        Baseline::Poll(address) => (Model::Poll, address),
        Baseline::Select(address) => (Model::Select, address),
        Baseline::Threads(address) => (Model::Threads, address),
        Baseline::Disk(arguments) => return disk(&arguments),
    };
    let features = anello_bare::check(model, &options)?;
    let features = features.map(|features| format!(" features={features}")).unwrap_or_default();
    let listeners = anello_bare::listen_for(addr, &options).context(addr)?;
    let bound = listeners.first().ok_or_else(|| io::Error::other("no listening socket"))?.local_addr()?;
    announce(&format!("anello bare ready addr={bound} model={model}{features}\n"));
    anello_bare::run(model, listeners, &options)?;
    Ok(ExitCode::SUCCESS)
}

fn disk(arguments: &DiskArguments) -> io::Result<ExitCode> {
    let DiskArguments { engine, file, create_bytes, address: Address { addr } } = arguments;
    let worker = Worker::open(*engine, file, *create_bytes)?;
    let listener = anello_bare::listen(*addr).context(addr)?;
    announce(&format!(
        "anello bare disk ready addr={} engine={engine} file_bytes={} way=\"{}\" sync=\"direct writes only\"\n",
        listener.local_addr()?,
        worker.file_bytes(),
        engine.description(),
    ));
    worker.serve(&listener)?;
    Ok(ExitCode::SUCCESS)
}
