//! A server on anello-http's own engine (`--driver io_uring|epoll`). Each core has a thread with its own listener on the
//! shared address.

use std::io;
use std::net::TcpListener as StdListener;

use anello::net::TcpListener;
use anello::{DriverKind, Runtime};
use anello_http::{Request, Response, Server};
use peer_flags::{HttpFlags, Ready, thread_per_core};
use rustix::net::sockopt::set_tcp_nodelay;

/// Runs the server. Each thread calls `build_handler` once.
pub fn run<H: AsyncFn(Request) -> Response + 'static>(
    build_handler: impl Fn() -> H + Clone + Send + 'static,
) -> io::Result<()> {
    let HttpFlags { flags, choice_index, .. } = HttpFlags::with_choice("--driver", &["io_uring", "epoll"]);
    let (driver, details) = match choice_index {
        0 => (DriverKind::Uring, "driver=io_uring"),
        _ => (DriverKind::Epoll, "driver=epoll"),
    };
    thread_per_core(&flags, details, move |_, listener, ready| {
        let runtime = Runtime::builder().driver(driver.clone()).driver_from_environment(false).build()?;
        runtime.block_on(serve(listener, ready, build_handler()))
    })
}

async fn serve(
    listener: StdListener,
    ready: &Ready,
    handler: impl AsyncFn(Request) -> Response + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    // `accept` copies the options of the listening socket.
    set_tcp_nodelay(&listener, true)?;
    let listener = TcpListener::from_std(listener)?;
    ready.announce()?;
    Server::builder().build().serve(listener, handler).await.map_err(io::Error::other)
}
