//! HTTP/1.1 on actix-web, based on its documentation: handlers that respond from memory, echo a body or stream one, and
//! actix-files for all other paths. It has one worker thread per core and an acceptor thread. actix-files reads files on further threads for
//! blocking work.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use actix_files::Files;
use actix_web::web::{self, Bytes};
use actix_web::{App, HttpResponse, HttpServer};
use futures_util::stream;
use peer_flags::{HttpFlags, Ready, listen};
use serde::Serialize;

/// Keep-alive timeout. The default of 5 s would close connections when the load pauses.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// A tenth of the body of `/stream`.
static CHUNK: [u8; 10 * 1024] = [b'x'; 10 * 1024];

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

#[actix_web::main]
async fn main() -> io::Result<()> {
    let HttpFlags { flags, root, .. } = HttpFlags::with_root();
    let listener = listen(flags.addr, false)?;
    let ready = Ready::new(1, listener.local_addr()?, "driver=epoll");
    let server = HttpServer::new(move || {
        App::new()
            .route("/fixed", web::get().to(fixed))
            .route("/fixed", web::head().to(fixed))
            .route("/json", web::get().to(json))
            .route("/echo", web::post().to(echo))
            .route("/stream", web::get().to(streamed))
            .service(Files::new("/", &root))
    });
    let server = server.workers(flags.threads()).keep_alive(KEEP_ALIVE).tcp_nodelay(true).shutdown_timeout(1);
    let server = server.listen(listener)?.run();
    ready.announce()?;
    server.await
}

async fn fixed() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain").body("Hello, World!")
}

async fn json() -> HttpResponse {
    HttpResponse::Ok().json(Message { message: "Hello, World!" })
}

async fn echo(body: Bytes) -> HttpResponse {
    HttpResponse::Ok().content_type("application/octet-stream").body(body)
}

async fn streamed() -> HttpResponse {
    let chunks = (0..10).map(|_| Ok::<_, Infallible>(Bytes::from_static(&CHUNK)));
    HttpResponse::Ok().streaming(stream::iter(chunks))
}
