//! HTTP/1.1 on axum and tokio, based on axum's examples: a router with handlers for responses from memory, and the
//! `ServeDir` of tower-http for all other paths. It uses the current-thread runtime on one core and the multi-thread
//! runtime with one worker per core on several. `ServeDir` reads files on tokio's threads for blocking work.

#![forbid(unsafe_code)]

mod app;

use std::io;

use axum::serve::ListenerExt;
use peer_flags::{HttpFlags, Ready, listen};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tower_http::services::ServeDir;

fn main() -> io::Result<()> {
    let http = HttpFlags::with_root();
    let mut builder = match http.flags.threads() {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(http.flags.threads()).enable_all().build()?.block_on(serve(http))
}

async fn serve(http: HttpFlags) -> io::Result<()> {
    let listener = listen(http.flags.addr, false)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    Ready::new(1, listener.local_addr()?, "driver=epoll").announce()?;
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("connection: {error}");
        }
    });
    axum::serve(listener, app::router().fallback_service(ServeDir::new(http.root))).await
}
