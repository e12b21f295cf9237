//! `anello bare`: the yardstick servers.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use anello_bare::{Model, Options};

/// Serve TCP echo by the smallest possible hand-written loop: the yardsticks of the lab.
///
/// One thread, no runtime (threads: a thread per connection). Ends at once on SIGINT or SIGTERM.
#[derive(clap::Args)]
pub struct Arguments {
    /// How it learns that it can receive or send: uring, epoll, poll, select or threads.
    model: Model,
    /// The address to listen on; port 0 lets the kernel choose.
    #[arg(long, default_value = "127.0.0.1:7000")]
    addr: SocketAddr,
}

/// Serves until killed.
pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    let Arguments { model, addr } = arguments;
    anello_bare::check(model)?;
    let listener = anello_bare::listen(addr)
        .map_err(|error| io::Error::new(error.kind(), format!("{addr}: {error}")))?;
    println!("anello bare ready addr={} model={model}", listener.local_addr()?);
    io::stdout().flush()?;
    anello_bare::run(model, listener, &Options::default())?;
    Ok(ExitCode::SUCCESS)
}
