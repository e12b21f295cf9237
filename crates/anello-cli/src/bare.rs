//! `anello bare`: the yardstick servers and the disk workers.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anello_bare::disk::{Engine, Worker};
use anello_bare::{Model, Options, TaskWork, UringOptions};

use crate::duration;

/// The yardsticks of the lab: the smallest possible hand-written loops, without a runtime.
///
/// Echo servers of one thread (threads: a thread per connection; uring --rings: a thread per ring), and disk workers.
/// They end at once on SIGINT or SIGTERM.
#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Arguments {
    #[command(subcommand)]
    yardstick: Baseline,
}

#[derive(clap::Subcommand)]
enum Baseline {
    Uring(UringArguments),
    /// TCP echo by epoll_wait, edge-triggered.
    Epoll {
        #[command(flatten)]
        address: Address,
        /// Look for events so long before sleeping, as in 50us.
        #[arg(long, value_name = "DURATION", value_parser = duration::parse_spin, default_value = "0s")]
        spin: Duration,
    },
    /// TCP echo by poll.
    Poll(Address),
    /// TCP echo by select; holds no descriptor of 1024 or above.
    Select(Address),
    /// TCP echo by a blocking thread for each connection.
    Threads(Address),
    Disk(DiskArguments),
}

#[derive(clap::Args)]
struct Address {
    /// The address to listen on; port 0 lets the kernel choose.
    #[arg(long, default_value = "127.0.0.1:7000")]
    addr: SocketAddr,
}

/// TCP echo by io_uring.
///
/// Without any of the options below this is the yardstick. With one, it is a second server that has options, built to
/// find what each is worth: compare it with itself, with --configurable, not with the yardstick.
#[derive(clap::Args)]
struct UringArguments {
    #[command(flatten)]
    address: Address,

    /// Run the server that has options, also without any: what the options are to be compared with.
    #[arg(long, help_heading = "Options of io_uring")]
    configurable: bool,

    #[command(flatten)]
    options: UringFlags,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Options of io_uring")]
struct UringFlags {
    /// When the kernel does the work that completes requests: deferred (the default), deferred-once (not asked for
    /// again before something is answered), cooperative or interrupting.
    #[arg(long, value_name = "WHEN")]
    task_work: Option<TaskWork>,

    /// Let a kernel thread take submissions, which sleeps after so many milliseconds without any; sends are then
    /// ordinary.
    #[arg(long, value_name = "IDLE_MS")]
    sqpoll: Option<u32>,

    /// Pin the kernel thread of --sqpoll to this core; last is the last one that this process may use.
    #[arg(long, value_name = "CORE", value_parser = anello_bare::parse_core)]
    sqpoll_core: Option<u32>,

    /// Receive once per submission instead of multishot.
    #[arg(long)]
    one_shot_receive: bool,

    /// Receive into two buffers of each connection, in turn, instead of a buffer ring; receives are one-shot then.
    #[arg(long)]
    per_connection_buffers: bool,

    /// Keep connections in the ring's table of registered files only (Linux 5.19).
    #[arg(long)]
    registered_files: bool,

    /// Hand every receive and send to the kernel's worker threads at once; sends are then ordinary.
    #[arg(long)]
    forced_async: bool,

    /// Link a timeout to each receive: who sends nothing for so long is disconnected; receives are one-shot then.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    linked_timeout: Option<Duration>,

    /// One completion for as many buffers as a receive filled (Linux 6.10).
    #[arg(long)]
    bundles: bool,

    /// Complete each send with a completion of its own instead of at submission.
    #[arg(long)]
    completion_per_send: bool,

    /// Send without a copy, on loopback too, where the kernel then copies nevertheless (Linux 6.1).
    #[arg(long)]
    zero_copy_sends: bool,

    /// Threads with a ring and a listener each (SO_REUSEPORT).
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    rings: u16,

    /// Let all rings share the kernel's worker threads, and the thread of --sqpoll.
    #[arg(long)]
    shared_workers: bool,

    /// Look for completions so long before sleeping, as in 50us.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_spin, default_value = "0s")]
    spin: Duration,
}

/// Read and write a file when told to over a control connection: the workers of the lab's preset for disks.
///
/// Each line is a command such as {"operation":"random_read","direct":true,"block_bytes":4096,"depth":16,
/// "duration_ns":64000000,"seed":1} and is answered by a line with what came of it. Operations are random_read,
/// random_write, sequential_read and sequential_write. Asleep in between. Direct writes are done when the disk has
/// them (O_DSYNC), buffered ones when the page cache has them; "sync":true or false chooses otherwise. Reads are
/// checked against what was written.
#[derive(clap::Args)]
struct DiskArguments {
    /// How it reads and writes: pread, threads, posix-aio, linux-aio or uring.
    #[arg(long)]
    engine: Engine,

    /// The file, which workers may share, one at a time. It is overwritten; one that --create-bytes did not make is
    /// refused.
    #[arg(long, value_name = "PATH")]
    file: PathBuf,

    /// Make the file with this length, unless it is there; a multiple of 4096.
    #[arg(long, value_name = "BYTES")]
    create_bytes: Option<u64>,

    #[command(flatten)]
    address: Address,
}

/// Serves until killed.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    match arguments.yardstick {
        Baseline::Uring(UringArguments { address, configurable, options }) => {
            let options = options.into_options();
            let chosen = configurable || options != UringOptions::default();
            echo(Model::Uring, address, Options { uring: chosen.then_some(options), ..Options::default() })
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
    listener.ok_or_else(|| io::Error::other("nothing listens"))?.local_addr()
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
    fn every_variant_of_the_list_is_understood() {
        for variant in anello_bare::variants() {
            let words = ["bare"].into_iter().chain(variant.arguments.iter().copied());
            let line = Line::try_parse_from(words.chain(["--addr", "127.0.0.1:0"])).expect(variant.name);
            let Baseline::Uring(arguments) = line.arguments.yardstick else {
                panic!("{}: not uring", variant.name);
            };
            arguments.options.into_options().validate().expect(variant.name);
        }
    }

    #[test]
    fn the_lab_sets_every_variant_against_the_one_that_it_is_to_be_compared_with() {
        let resources = Resources {
            cores: vec![0, 1, 2],
            siblings: vec![vec![0], vec![1], vec![2]],
            ..Resources::of_this_machine("anello".into(), "unused".into())
        };
        let text = preset("options").expect("there is such a preset");
        let config = resolve("options", text, &resources).expect("it fits three cores");
        let contender = |variant: &anello_bare::Variant| {
            let words = ["bare"].into_iter().chain(variant.arguments.iter().copied());
            // The lab gives the polling thread a core that neither servers nor load have.
            let words = words.map(|word| if word == "last" { "2" } else { word });
            let words: Vec<&str> = words.chain(["--addr", "127.0.0.1:0"]).collect();
            let found = config.contenders.iter().find(|contender| contender.arguments == words);
            found.unwrap_or_else(|| panic!("{} is not in the preset: {words:?}", variant.name))
        };
        // Where nothing is given to the worker threads it does not matter whose they are.
        let shown = |variant: &&anello_bare::Variant| variant.name != "two rings, shared workers";
        for variant in anello_bare::variants().iter().filter(shown) {
            let base = anello_bare::variants().iter().find(|base| base.name == variant.baseline);
            let base = base.filter(|base| base.name != variant.name).map(|base| &contender(base).name);
            assert_eq!(contender(variant).base.as_ref(), base, "{}", variant.name);
        }
    }
}
