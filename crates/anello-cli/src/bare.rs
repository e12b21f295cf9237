//! `anello bare`: the baseline servers and the disk workers.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anello_bare::disk::{Engine, Worker};
use anello_bare::{Model, Options, TaskWork, UringOptions};

use crate::duration;

/// Run a baseline of the lab: a minimal hand-written event loop without a runtime.
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
struct Address {
    /// Address to listen on; with port 0 the kernel chooses the port.
    #[arg(long, default_value = "127.0.0.1:7000")]
    addr: SocketAddr,
}

/// TCP echo server with io_uring.
///
/// Without any of the options below, this is the baseline. With an option, a second, configurable server runs, which
/// measures the effect of each option. Compare it with --configurable alone, not with the baseline.
#[derive(clap::Args)]
struct UringArguments {
    #[command(flatten)]
    address: Address,

    /// Run the configurable server even without other options: the reference for measuring them.
    #[arg(long, help_heading = "Options of io_uring")]
    configurable: bool,

    #[command(flatten)]
    options: UringFlags,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Options of io_uring")]
struct UringFlags {
    /// When the kernel runs completion work: deferred (the default), deferred-once (once per turn of the loop),
    /// cooperative or interrupting.
    #[arg(long, value_name = "WHEN")]
    task_work: Option<TaskWork>,

    /// Use a kernel thread to poll for submissions; it sleeps after IDLE_MS milliseconds without one. Sends then post
    /// their own completions.
    #[arg(long, value_name = "IDLE_MS")]
    sqpoll: Option<u32>,

    /// Pin the kernel thread of --sqpoll to this core; last is the last core that this process may use.
    #[arg(long, value_name = "CORE", value_parser = anello_bare::parse_core)]
    sqpoll_core: Option<u32>,

    /// Submit each receive separately instead of using multishot receives.
    #[arg(long)]
    one_shot_receive: bool,

    /// Receive alternately into two buffers per connection instead of a buffer ring; receives are then one-shot.
    #[arg(long)]
    per_connection_buffers: bool,

    /// Keep connections only in the ring's table of registered files, without descriptors (Linux 5.19).
    #[arg(long)]
    registered_files: bool,

    /// Run every receive and send on io_uring's kernel worker threads (IOSQE_ASYNC); sends then post their own
    /// completions.
    #[arg(long)]
    forced_async: bool,

    /// Link a timeout to each receive, and close the connection of a client that sends nothing for this long; receives
    /// are then one-shot.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    linked_timeout: Option<Duration>,

    /// Post one completion for all buffers that a receive filled (Linux 6.10).
    #[arg(long)]
    bundles: bool,

    /// Post a completion for each send instead of completing sends inline at submission.
    #[arg(long)]
    completion_per_send: bool,

    /// Use zero-copy sends (Linux 6.1), also on loopback, where the kernel still copies.
    #[arg(long)]
    zero_copy_sends: bool,

    /// Number of threads, each with its own ring and listener (SO_REUSEPORT).
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    rings: u16,

    /// Share io_uring's kernel worker threads, and the thread of --sqpoll, between all rings.
    #[arg(long)]
    shared_workers: bool,

    /// Time to poll for completions before the thread sleeps, such as 50us; at most 1s.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_spin, default_value = "0s")]
    spin: Duration,
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
    match arguments.baseline {
        Baseline::Uring(UringArguments { address, configurable, options }) => {
            let options = options.into_options();
            let configurable = configurable || options != UringOptions::default();
            echo(
                Model::Uring,
                address,
                Options { uring: configurable.then_some(options), ..Options::default() },
            )
        }
        Baseline::Epoll { address, spin } => {
            echo(Model::Epoll, address, Options { spin, ..Options::default() })
        }
        Baseline::Poll(address) => echo(Model::Poll, address, Options::default()),
        Baseline::Select(address) => echo(Model::Select, address, Options::default()),
        Baseline::Threads(address) => echo(Model::Threads, address, Options::default()),
        Baseline::Disk(arguments) => disk(&arguments),
    }
}

fn echo(model: Model, Address { addr }: Address, options: Options) -> io::Result<ExitCode> {
    let features = anello_bare::check(model, &options)?;
    let listeners = anello_bare::listen_for(addr, &options).map_err(|error| with_address(addr, error))?;
    let bound = bound_address(listeners.first())?;
    match features {
        Some(features) => println!("anello bare ready addr={bound} model={model} features={features}"),
        None => println!("anello bare ready addr={bound} model={model}"),
    }
    io::stdout().flush()?;
    anello_bare::run(model, listeners, &options)?;
    Ok(ExitCode::SUCCESS)
}

fn disk(arguments: &DiskArguments) -> io::Result<ExitCode> {
    let DiskArguments { engine, file, create_bytes, address: Address { addr } } = arguments;
    let worker = Worker::open(*engine, file, *create_bytes)?;
    let listener = anello_bare::listen(*addr).map_err(|error| with_address(*addr, error))?;
    println!(
        "anello bare disk ready addr={} engine={engine} file_bytes={} way=\"{}\" sync=\"direct writes only\"",
        listener.local_addr()?,
        worker.file_bytes(),
        engine.description(),
    );
    io::stdout().flush()?;
    worker.serve(&listener)?;
    Ok(ExitCode::SUCCESS)
}

fn with_address(address: SocketAddr, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

fn bound_address(listener: Option<&TcpListener>) -> io::Result<SocketAddr> {
    listener.ok_or_else(|| io::Error::other("no listening socket"))?.local_addr()
}

impl UringFlags {
    fn into_options(self) -> UringOptions {
        UringOptions {
            task_work: self.task_work,
            sqpoll: self.sqpoll.map(|idle_ms| Duration::from_millis(idle_ms.into())),
            sqpoll_core: self.sqpoll_core,
            one_shot_receive: self.one_shot_receive,
            per_connection_buffers: self.per_connection_buffers,
            registered_files: self.registered_files,
            forced_async: self.forced_async,
            linked_timeout: self.linked_timeout,
            bundles: self.bundles,
            completion_per_send: self.completion_per_send,
            zero_copy_sends: self.zero_copy_sends,
            rings: self.rings,
            shared_workers: self.shared_workers,
            spin: self.spin,
        }
    }
}

#[cfg(test)]
mod tests {
    use anello_lab::{Resources, preset, resolve};
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn parses_all_listed_variants() {
        for variant in anello_bare::variants() {
            let words = ["bare"].into_iter().chain(variant.arguments.iter().copied());
            let line = Line::try_parse_from(words.chain(["--addr", "127.0.0.1:0"])).expect(variant.name);
            let Baseline::Uring(arguments) = line.arguments.baseline else {
                panic!("{}: not uring", variant.name);
            };
            arguments.options.into_options().validate().expect(variant.name);
        }
    }

    #[test]
    fn options_preset_compares_variants_with_their_baselines() {
        let resources = Resources {
            cores: vec![0, 1, 2],
            siblings: vec![vec![0], vec![1], vec![2]],
            ..Resources::of_this_machine("anello".into(), "unused".into())
        };
        let text = preset("options").expect("the preset exists");
        let config = resolve("options", text, &resources).expect("three cores are enough");
        let contender = |variant: &anello_bare::Variant| {
            let words = ["bare"].into_iter().chain(variant.arguments.iter().copied());
            // The lab assigns the polling thread a core that neither the servers nor the load use.
            let words = words.map(|word| if word == "last" { "2" } else { word });
            let words: Vec<&str> = words.chain(["--addr", "127.0.0.1:0"]).collect();
            let contender = config.contenders.iter().find(|contender| contender.arguments == words);
            contender.unwrap_or_else(|| panic!("{} is not in the preset: {words:?}", variant.name))
        };
        // The preset omits this variant: it does not use the worker threads, so sharing them has no effect.
        let is_in_preset = |variant: &&anello_bare::Variant| variant.name != "two rings, shared workers";
        for variant in anello_bare::variants().iter().filter(is_in_preset) {
            let base = anello_bare::variants().iter().find(|base| base.name == variant.baseline);
            let base = base.filter(|base| base.name != variant.name).map(|base| &contender(base).name);
            assert_eq!(contender(variant).base.as_ref(), base, "{}", variant.name);
        }
    }
}
