//! Minimal echo servers and minimal disk workers ([`disk`]): the baselines for measuring a runtime.
//!
//! The crate has one TCP echo server for each Linux I/O model. Each is the smallest correct program, runs on one thread
//! (`threads`: one per connection) and uses no runtime. The difference between a runtime and `epoll` or `uring` is the
//! cost of the runtime; the difference between `epoll` and `uring` is the cost of the model. `uring` with options is a
//! second, larger server with one thread per ring. It measures the effect of each io_uring option.
//!
//! All models give the same guarantees:
//! - Bytes are echoed once and in order. If the kernel rejects or shortens a send, the rest is sent later.
//! - The server stops reading from a peer that does not read, so the memory per connection is bounded.
//! - A peer that shuts down its write half receives all unsent data before the connection is closed.
//! - A reset closes that connection only. When descriptors run out, the server pauses accepting for [`ACCEPT_PAUSE`].
//!
//! ```no_run
//! use anello_bare::{Model, Options, listen, run};
//!
//! let listener = listen("127.0.0.1:7000".parse().unwrap())?;
//! run(Model::Epoll, vec![listener], &Options::default())?;
//! # Ok::<(), std::io::Error>(())
//! ```

#![deny(unsafe_code)]

mod accept;
pub mod disk;
mod epoll;
mod errors;
mod level;
mod model;
mod options;
mod stream;
mod threads;
#[allow(unsafe_code)]
mod uring;

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use errors::{check_rules, invalid_input};

pub use accept::ACCEPT_PAUSE;
pub use model::Model;
pub use options::{MAX_RINGS, Options, TaskWork, UringOptions, Variant, parse_core, variants};

/// Backlog of a listener created by [`listen`]: the maximum number of connections waiting to be accepted. The kernel
/// caps it at `net.core.somaxconn`.
pub const BACKLOG: i32 = 4096;

/// Creates a listener on `address`: `socket(2)`, SO_REUSEADDR, TCP_NODELAY (which accepted sockets inherit), `bind(2)`,
/// `listen(2)` with a backlog of [`BACKLOG`]. With port 0, the kernel chooses the port.
///
/// # Errors
/// Returns an error if the address is in use or not local, or if the port is privileged.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, false)
}

/// Creates the listeners on `address` that [`run`] needs with these options. With several rings, there is one listener
/// per ring, and the kernel distributes the connections among them (SO_REUSEPORT, Linux 3.9). Otherwise, there is a
/// single listener, as created by [`listen`].
///
/// # Errors
/// Returns the errors of [`listen`].
pub fn listen_for(address: SocketAddr, options: &Options) -> io::Result<Vec<TcpListener>> {
    let count = options.uring.map_or(1, |uring| uring.rings);
    let first = listen_with(address, count > 1)?;
    let address = first.local_addr()?;
    let others = (1..count).map(|_| listen_with(address, true));
    std::iter::once(Ok(first)).chain(others).collect()
}

fn listen_with(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Checks that `model` is available to this process with these options; only io_uring can be unavailable. For io_uring,
/// returns the flags or options in effect on this kernel, separated by commas.
///
/// # Errors
/// - io_uring is not supported by this kernel, or forbidden by `kernel.io_uring_disabled` or a seccomp filter.
/// - The io_uring options conflict, or the kernel does not support them.
/// - `spin` or `uring` is set for a model without that option.
///
/// The message contains a remedy.
pub fn check(model: Model, options: &Options) -> io::Result<Option<String>> {
    let (spins, has_uring) = (!options.spin.is_zero(), options.uring.is_some());
    check_rules([
        (model == Model::Uring && spins, "Options::spin does not apply to uring (set UringOptions::spin)"),
        (model == Model::Epoll && has_uring, "io_uring options apply only to the uring model"),
        (
            !matches!(model, Model::Uring | Model::Epoll) && (spins || has_uring),
            "only the uring and epoll models have options",
        ),
    ])?;
    if model == Model::Uring { uring::check(options.uring.as_ref()).map(Some) } else { Ok(None) }
}

/// Runs the echo server `model` on the listeners returned by [`listen_for`] until a permanent error. Runs on the
/// calling thread and returns only on error; to stop a server, send a signal to its process.
///
/// `uring` with options runs one thread and one ring per listener. The other servers take one listener. This function
/// raises this process's soft limit on open descriptors to the hard limit.
///
/// # Errors
/// Returns an error if a listener is unusable, the number of listeners is wrong, or the model is unavailable (see
/// [`check`]).
pub fn run(model: Model, listeners: Vec<TcpListener>, options: &Options) -> io::Result<()> {
    raise_open_file_limit()?;
    for listener in &listeners {
        sockopt::set_tcp_nodelay(listener, true)?;
    }
    if let (Model::Uring, Some(uring)) = (model, options.uring) {
        return uring::run_rings(listeners, options, uring);
    }
    let Ok([listener]) = <[TcpListener; 1]>::try_from(listeners) else {
        return Err(invalid_input("this server requires exactly one listener"));
    };
    match model {
        Model::Uring => uring::run(listener, options),
        Model::Epoll => epoll::run(listener, options),
        Model::Poll => level::run_poll(&listener, options),
        Model::Select => level::run_select(&listener, options),
        Model::Threads => threads::run(listener, options),
    }
}

/// Raises the soft RLIMIT_NOFILE of this process to the hard limit.
fn raise_open_file_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(())
}
