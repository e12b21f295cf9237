//! Command-line arguments of `anello bare`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anello_bare::UringOptions;
use anello_bare::disk::Engine;

use crate::common::values;

/// Run one of the lab's baselines: a minimal hand-written event loop without a runtime.
///
/// The baselines are echo servers and disk workers. The echo servers are single-threaded, except that threads uses one
/// thread per connection, and uring --rings uses one thread per ring. All baselines exit immediately on SIGINT or
/// SIGTERM.
#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub baseline: Baseline,
}

#[derive(clap::Subcommand)]
pub enum Baseline {
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
    /// TCP echo server with select, which supports only descriptors up to 1023.
    Select(Address),
    /// TCP echo server with one blocking thread per connection.
    Threads(Address),
    Disk(DiskArguments),
}

#[derive(clap::Args)]
pub struct Address {
    /// Address to listen on; with port 0 the kernel chooses the port.
    #[arg(long, default_value = "127.0.0.1:7000")]
    pub addr: SocketAddr,
}

/// TCP echo server with io_uring.
///
/// Without the options below, this is the baseline, compiled with fixed options. With any of them, the server reads its
/// options at run time, so that their effects can be measured. In that case, compare it with --configurable alone, not
/// with the baseline.
#[derive(clap::Args)]
#[command(mut_arg("spin", |arg| arg.value_parser(values::spin)))]
#[command(mut_arg("linked_timeout", |arg| arg.value_parser(values::nonzero_duration)))]
pub struct UringArguments {
    #[command(flatten)]
    pub address: Address,
    /// Read the options at run time even if none is given. The effect of an option is measured relative to this mode.
    #[arg(long, help_heading = "io_uring options")]
    pub configurable: bool,
    #[command(flatten)]
    pub options: UringOptions,
}

/// Run the worker of the lab's disk preset, which executes read and write commands from a control connection.
///
/// Each line on the connection is a command, such as {"operation":"random_read","direct":true,"block_bytes":4096,
/// "depth":16,"duration_ns":64000000,"seed":1}; the worker replies with one line that contains the result. Operations
/// are random_read, random_write, sequential_read and sequential_write. The worker sleeps between commands. Direct
/// writes complete when the data is on the disk (O_DSYNC), buffered writes when it is in the page cache; "sync":true or
/// "sync":false overrides this. Reads are checked against the data written before.
#[derive(clap::Args)]
pub struct DiskArguments {
    /// I/O engine: pread, threads, posix-aio, linux-aio or uring.
    #[arg(long)]
    pub engine: Engine,
    /// File to read and write; it is overwritten. Several workers can use the same file, one at a time. A file that
    /// was not created with --create-bytes is rejected.
    #[arg(long, value_name = "PATH")]
    pub file: PathBuf,
    /// If the file does not exist, create it with this length in bytes, which must be a multiple of 4096.
    #[arg(long, value_name = "BYTES", value_parser = parse_create_bytes)]
    pub create_bytes: Option<u64>,
    #[command(flatten)]
    pub address: Address,
}

fn parse_create_bytes(text: &str) -> Result<u64, String> {
    let bytes = text.parse().ok().filter(|bytes: &u64| *bytes > 0 && bytes.is_multiple_of(4096));
    bytes.ok_or_else(|| "expected a multiple of 4096 that is greater than 0".to_owned())
}
