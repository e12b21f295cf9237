//! Starts a baseline server or a disk worker.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use anello_bare::disk::Worker;
use anello_bare::{Model, Options, UringOptions};

use super::flags::{Address, Arguments, Baseline, DiskArguments, UringArguments, UringFlags};

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
}
