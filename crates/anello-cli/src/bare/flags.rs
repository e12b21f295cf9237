//! Flags of `anello bare`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anello_bare::TaskWork;
use anello_bare::disk::Engine;

use crate::common::duration;

/// Run one of the lab's baselines: a minimal hand-written event loop without a runtime.
///
/// The baselines are single-threaded echo servers (except threads, with one thread per connection, and uring --rings,
/// with one thread per ring) and disk workers. They exit immediately on SIGINT or SIGTERM.
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
        #[arg(long, value_name = "DURATION", value_parser = duration::parse_spin, default_value = "0s")]
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
pub struct Address {
    /// Address to listen on; with port 0 the kernel chooses the port.
    #[arg(long, default_value = "127.0.0.1:7000")]
    pub addr: SocketAddr,
}

/// TCP echo server with io_uring.
///
/// Without any of the options below, this is the baseline. With any option, a second, configurable server runs instead,
/// to measure the effect of each option. Compare it with --configurable alone, not with the baseline.
#[derive(clap::Args)]
pub struct UringArguments {
    #[command(flatten)]
    pub address: Address,

    /// Run the configurable server even without other options: the reference for measuring them.
    #[arg(long, help_heading = "io_uring options")]
    pub configurable: bool,

    #[command(flatten)]
    pub options: UringFlags,
}

#[derive(clap::Args)]
#[command(next_help_heading = "io_uring options")]
pub struct UringFlags {
    /// When the kernel runs completion work: deferred (the default), deferred-once (once per turn of the loop),
    /// cooperative or interrupting.
    #[arg(long, value_name = "WHEN")]
    pub task_work: Option<TaskWork>,

    /// Use a kernel thread to poll for submissions; it sleeps after IDLE_MS milliseconds without one. Sends then post
    /// their own completions.
    #[arg(long, value_name = "IDLE_MS")]
    pub sqpoll: Option<u32>,

    /// Pin the kernel thread of --sqpoll to this core; last is the last core that this process may use.
    #[arg(long, value_name = "CORE", value_parser = anello_bare::parse_core)]
    pub sqpoll_core: Option<u32>,

    /// Submit each receive separately instead of using multishot receives.
    #[arg(long)]
    pub one_shot_receive: bool,

    /// Receive alternately into two buffers per connection instead of a buffer ring; receives are then one-shot.
    #[arg(long)]
    pub per_connection_buffers: bool,

    /// Keep connections only as registered files of the ring, without descriptors (Linux 5.19).
    #[arg(long)]
    pub registered_files: bool,

    /// Run every receive and send on io_uring's kernel worker threads (IOSQE_ASYNC); sends then post their own
    /// completions.
    #[arg(long)]
    pub forced_async: bool,

    /// Link a timeout to each receive, and close the connection of a client that sends nothing for this long; receives
    /// are then one-shot.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub linked_timeout: Option<Duration>,

    /// Post one completion for all buffers that a receive filled (Linux 6.10).
    #[arg(long)]
    pub bundles: bool,

    /// Post a completion for each send instead of completing sends inline at submission.
    #[arg(long)]
    pub completion_per_send: bool,

    /// Use zero-copy sends (Linux 6.1), also on loopback, where the kernel still copies.
    #[arg(long)]
    pub zero_copy_sends: bool,

    /// Number of threads, each with its own ring and listener (SO_REUSEPORT).
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub rings: u16,

    /// Share io_uring's kernel worker threads, and the thread of --sqpoll, between all rings.
    #[arg(long)]
    pub shared_workers: bool,

    /// Time to poll for completions before the thread sleeps, such as 50us; at most 1s.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_spin, default_value = "0s")]
    pub spin: Duration,
}

/// Read and write a file on command from a control connection: the worker of the lab's disk preset.
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

    /// Create the file with this length in bytes, a multiple of 4096, unless it exists.
    #[arg(long, value_name = "BYTES")]
    pub create_bytes: Option<u64>,

    #[command(flatten)]
    pub address: Address,
}
