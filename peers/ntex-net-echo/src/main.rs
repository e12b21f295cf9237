//! TCP echo on ntex-net, the network crate of ntex, without the other parts of ntex: its io_uring or epoll reactor
//! (`--reactor io_uring|epoll`), with `recv` and `send` of its byte codec as in ntex's echo example.
//!
//! ntex-net has no listener. Like ntex's server, this peer has an acceptor thread that distributes the connections
//! round-robin to one arbiter (a thread with a runtime) per core.

#![forbid(unsafe_code)]

use std::any::Any;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::process::exit;
use std::thread;

use ntex_codec::BytesCodec;
use ntex_net::{Reactor, polling, uring};
use ntex_rt::{Arbiter, BlockFuture, Runner, Runtime, System};
use ntex_service::cfg::SharedCfg;
use peer_flags::{ACCEPT_RETRY, Flags, Ready, listen};

fn main() -> io::Result<()> {
    let (flags, reactor) = Flags::with_choice(4096, "--reactor", &["io_uring", "epoll"]);
    let (runner, details) = match reactor {
        0 => (ReactorKind::Uring, "driver=io_uring"),
        _ => (ReactorKind::Epoll, "driver=epoll"),
    };
    System::new("echo", runner).run(move || {
        let listener = listen(flags.addr, false)?;
        let ready = Ready::new(1, listener.local_addr()?, details);
        let arbiters: Vec<Arbiter> = (0..flags.threads()).map(|_| Arbiter::new()).collect();
        thread::spawn(move || {
            let error = ready.announce().err().unwrap_or_else(|| accept(&listener, &arbiters));
            eprintln!("accept: {error}");
            exit(1)
        });
        Ok(())
    })
}

/// Reactor of the runtimes. By default, ntex-net selects it at build time.
#[derive(Clone, Copy)]
enum ReactorKind {
    Uring,
    Epoll,
}

impl Runner for ReactorKind {
    fn block_on(&self, main: BlockFuture) -> Result<(), Box<dyn Any + Send>> {
        let reactor = match self {
            Self::Uring => uring::Reactor::new(2048).map(|reactor| Box::new(reactor) as Box<dyn Reactor>),
            Self::Epoll => polling::Reactor::new().map(|reactor| Box::new(reactor) as Box<dyn Reactor>),
        };
        let reactor = reactor.unwrap_or_else(|error| {
            eprintln!("ntex-net's reactor: {error}");
            exit(1)
        });
        ntex_net::with_reactor(&reactor, || Runtime::new(reactor.handle()).block_on(main, &*reactor));
        Ok(())
    }
}

/// Accepts connections; returns only if there is no arbiter.
fn accept(listener: &TcpListener, arbiters: &[Arbiter]) -> io::Error {
    for arbiter in arbiters.iter().cycle() {
        match listener.accept() {
            Ok((stream, _)) => drop(arbiter.handle().spawn(serve(stream))),
            Err(error) => {
                eprintln!("accept: {error}");
                thread::sleep(ACCEPT_RETRY);
            }
        }
    }
    io::Error::other("no arbiter")
}

async fn serve(stream: TcpStream) {
    // A task sent to another thread must be `Send`, but the task that serves the connection is not.
    drop(ntex_rt::spawn(async move {
        if let Err(error) = echo(stream).await {
            eprintln!("connection: {error}");
        }
    }));
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    // It sets TCP_NODELAY.
    let connection = ntex_net::from_tcp_stream(stream, SharedCfg::default())?;
    let codec = BytesCodec;
    while let Some(bytes) = connection.recv(&codec).await.map_err(|error| error.into_inner())? {
        connection.send(bytes, &codec).await.map_err(|error| error.into_inner())?;
    }
    Ok(())
}
