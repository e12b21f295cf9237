//! HTTP/1.1 with axum on anello-http's own engine (`--driver io_uring|epoll`), with the application of the peer
//! `axum-http`. Each core has a thread with its own listener on the shared address.

#![forbid(unsafe_code)]

#[path = "../../axum-http/src/app.rs"]
mod app;

use std::io;
use std::net::TcpListener as StdListener;

use anello::net::TcpListener;
use anello::{DriverKind, Runtime};
use peer_flags::{HttpFlags, Ready, thread_per_core};
use rustix::net::sockopt::set_tcp_nodelay;

fn main() -> io::Result<()> {
    let HttpFlags { flags, choice_index, .. } = HttpFlags::with_choice("--driver", &["io_uring", "epoll"]);
    let (driver, details) = match choice_index {
        0 => (DriverKind::Uring, "driver=io_uring"),
        _ => (DriverKind::Epoll, "driver=epoll"),
    };
    thread_per_core(&flags, details, move |_, listener, ready| {
        let runtime = Runtime::builder().driver(driver.clone()).driver_from_environment(false).build()?;
        runtime.block_on(serve(listener, ready))
    })
}

async fn serve(listener: StdListener, ready: &Ready) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    // Accepted sockets inherit the option.
    set_tcp_nodelay(&listener, true)?;
    let listener = TcpListener::from_std(listener)?;
    ready.announce()?;
    anello_http::serve(listener, app::router().with_state(())).await.map_err(io::Error::other)
}
