//! HTTP/1.1 on ntex, after its examples: a handler that answers from memory, on ntex's io_uring or its epoll reactor
//! (`--reactor io_uring|epoll`). A worker per core, each a thread of its own, and a thread that accepts.

#![forbid(unsafe_code)]

use std::any::Any;
use std::io;
use std::process::exit;

use ntex::SharedCfg;
use ntex::http::HttpServiceConfig;
use ntex::server::Affinity;
use ntex::time::Seconds;
use ntex::web::{self, App, HttpResponse, HttpServer};
use ntex_net::{Reactor, polling, uring};
use ntex_rt::{BlockFuture, Runner, Runtime, System};
use peer_flags::{Flags, HttpFlags, Ready, listen};

/// How long a connection may wait for its next request; 5 s by default, which would close those of a load that pauses.
const KEEP_ALIVE: Seconds = Seconds(75);

fn main() -> io::Result<()> {
    let HttpFlags { flags, chosen, .. } = HttpFlags::with_choice("--reactor", &["io_uring", "epoll"]);
    let (runner, about) = match chosen {
        0 => (Reactors::Uring, "driver=io_uring"),
        _ => (Reactors::Epoll, "driver=epoll"),
    };
    System::new("http", runner).block_on(serve(flags, about))
}

async fn serve(flags: Flags, about: &'static str) -> io::Result<()> {
    let listener = listen(flags.addr, false)?;
    let ready = Ready::new(1, listener.local_addr()?, about);
    let config = SharedCfg::new("http").add(HttpServiceConfig::new().set_keepalive(KEEP_ALIVE));
    let server = HttpServer::new(async |_| App::new().service(web::resource("/fixed").to(fixed)));
    let server = server.workers(flags.threads()).affinity(Affinity::Cpu).listen(listener, config)?.run();
    ready.announce()?;
    server.await
}

async fn fixed() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain").body("Hello, World!")
}

/// Which reactor the workers run on; ntex itself would choose when it is built.
#[derive(Clone, Copy)]
enum Reactors {
    Uring,
    Epoll,
}

impl Runner for Reactors {
    fn block_on(&self, main: BlockFuture) -> Result<(), Box<dyn Any + Send>> {
        let reactor = match self {
            Self::Uring => uring::Reactor::new(2048).map(|reactor| Box::new(reactor) as Box<dyn Reactor>),
            Self::Epoll => polling::Reactor::new().map(|reactor| Box::new(reactor) as Box<dyn Reactor>),
        };
        let reactor = reactor.unwrap_or_else(|error| {
            eprintln!("ntex's reactor: {error}");
            exit(1)
        });
        ntex_net::with_reactor(&reactor, || Runtime::new(reactor.handle()).block_on(main, &*reactor));
        Ok(())
    }
}
