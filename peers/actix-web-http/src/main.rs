//! HTTP/1.1 on actix-web, based on its documentation: a handler for the fixed response, and actix-files for all other
//! paths. It has one worker thread per core and an acceptor thread. actix-files reads files on further threads for
//! blocking work.

#![forbid(unsafe_code)]

use std::io;
use std::time::Duration;

use actix_files::Files;
use actix_web::{App, HttpResponse, HttpServer, web};
use peer_flags::{HttpFlags, Ready, listen};

/// Keep-alive timeout. The default of 5 s would close connections when the load pauses.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

#[actix_web::main]
async fn main() -> io::Result<()> {
    let HttpFlags { flags, root, .. } = HttpFlags::with_root();
    let listener = listen(flags.addr, false)?;
    let ready = Ready::new(1, listener.local_addr()?, "driver=epoll");
    let server = HttpServer::new(move || {
        App::new()
            .route("/fixed", web::get().to(fixed))
            .route("/fixed", web::head().to(fixed))
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
