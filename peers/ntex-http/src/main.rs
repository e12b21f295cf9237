//! HTTP/1.1 on ntex, based on its examples: handlers that respond from memory, echo a body or stream one, on
//! ntex's io_uring or epoll reactor (`--reactor io_uring|epoll`). It has one worker thread per core and an acceptor thread.

#![forbid(unsafe_code)]

use std::any::Any;
use std::convert::Infallible;
use std::io;
use std::process::exit;

use futures_util::stream;
use ntex::SharedCfg;
use ntex::http::HttpServiceConfig;
use ntex::server::Affinity;
use ntex::time::Seconds;
use ntex::util::Bytes;
use ntex::web::{self, App, HttpResponse, HttpServer};
use ntex_net::{Reactor, polling, uring};
use ntex_rt::{BlockFuture, Runner, Runtime, System};
use peer_flags::{Flags, HttpFlags, Ready, listen};
use serde::Serialize;

/// Keep-alive timeout. The default of 5 s would close connections when the load pauses.
const KEEP_ALIVE: Seconds = Seconds(75);

/// A tenth of the body of `/stream`.
static CHUNK: [u8; 10 * 1024] = [b'x'; 10 * 1024];

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

fn main() -> io::Result<()> {
    let HttpFlags { flags, choice_index, .. } = HttpFlags::with_choice("--reactor", &["io_uring", "epoll"]);
    let (runner, details) = match choice_index {
        0 => (ReactorKind::Uring, "driver=io_uring"),
        _ => (ReactorKind::Epoll, "driver=epoll"),
    };
    System::new("http", runner).block_on(serve(flags, details))
}

async fn serve(flags: Flags, details: &'static str) -> io::Result<()> {
    let listener = listen(flags.addr, false)?;
    let ready = Ready::new(1, listener.local_addr()?, details);
    let config = SharedCfg::new("http").add(HttpServiceConfig::new().set_keepalive(KEEP_ALIVE));
    let server = HttpServer::new(async |_| {
        App::new()
            .service(web::resource("/fixed").to(fixed))
            .route("/json", web::get().to(json))
            .route("/echo", web::post().to(echo))
            .route("/stream", web::get().to(streamed))
    });
    let server = server.workers(flags.threads()).affinity(Affinity::Cpu).listen(listener, config)?.run();
    ready.announce()?;
    server.await
}

async fn fixed() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain").body("Hello, World!")
}

async fn json() -> HttpResponse {
    HttpResponse::Ok().json(&Message { message: "Hello, World!" })
}

async fn echo(body: Bytes) -> HttpResponse {
    HttpResponse::Ok().content_type("application/octet-stream").body(body)
}

async fn streamed() -> HttpResponse {
    let chunks = (0..10).map(|_| Ok::<_, Infallible>(Bytes::from_static(&CHUNK)));
    HttpResponse::Ok().streaming(stream::iter(chunks))
}

/// Reactor of the runtimes. By default, ntex selects it at build time.
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
            eprintln!("ntex's reactor: {error}");
            exit(1)
        });
        ntex_net::with_reactor(&reactor, || Runtime::new(reactor.handle()).block_on(main, &*reactor));
        Ok(())
    }
}
