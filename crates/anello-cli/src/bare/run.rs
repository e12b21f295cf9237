//! Running a baseline server or a disk worker.

use std::io;
use std::process::ExitCode;

use anello_bare::disk::Worker;
use anello_bare::{Model, Options, UringOptions};

use super::flags::{Address, Arguments, Baseline, DiskArguments, UringArguments};
use crate::common::bind_retry::bind_with_retry;
use crate::common::error::{Context, usage_error};
use crate::common::output::announce;

/// Serves until a signal kills the process.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    let mut options = Options::default();
    let (model, Address { addr }) = match arguments.baseline {
        Baseline::Uring(UringArguments { address, configurable, options: uring }) => {
            uring.validate().map_err(|error| usage_error(error.to_string()))?;
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
    let listeners = bind_with_retry(|| anello_bare::listen_for(addr, &options)).context(addr)?;
    let bound = listeners.first().ok_or_else(|| io::Error::other("no listening socket"))?.local_addr()?;
    announce(&format!("anello bare ready addr={bound} model={model}{features}\n"));
    anello_bare::run(model, listeners, &options)?;
    Ok(ExitCode::SUCCESS)
}

fn disk(arguments: &DiskArguments) -> io::Result<ExitCode> {
    let DiskArguments { engine, file, create_bytes, address: Address { addr } } = arguments;
    let worker = Worker::open(*engine, file, *create_bytes)?;
    let listener = bind_with_retry(|| anello_bare::listen(*addr)).context(addr)?;
    announce(&format!(
        "anello bare disk ready addr={} engine={engine} file_bytes={} way=\"{}\" sync=\"direct writes only\"\n",
        listener.local_addr()?,
        worker.file_bytes(),
        engine.description(),
    ));
    worker.serve(&listener)?;
    Ok(ExitCode::SUCCESS)
}
