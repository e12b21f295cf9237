//! Minimal echo servers and minimal disk workers ([`disk`]): the baselines for measuring a runtime.
//!
//! The crate has one TCP echo server for each Linux I/O model. Each is the smallest correct program, runs on one thread
//! (`threads`: one per connection) and uses no runtime. The difference between the results of a runtime and those of
//! `epoll` or `uring` is the cost of the runtime. With options, `uring` is a larger server with one thread per ring,
//! for measuring the effect of each io_uring option.
//!
//! All models give the same guarantees:
//! - Bytes are echoed once and in order. If the kernel rejects or shortens a send, the rest is sent later.
//! - The server stops reading from a peer that does not read, so the memory per connection is bounded.
//! - A peer that shuts down its write half receives all unsent data before the connection is closed.
//! - A reset closes only the affected connection. When descriptors run out, the server pauses accepting for
//!   [`ACCEPT_PAUSE`].
//!
//! ```no_run
//! use anello_bare::{Model, Options, listen, run};
//!
//! let listener = listen("127.0.0.1:7000".parse().unwrap())?;
//! run(Model::Epoll, vec![listener], &Options::default())?;
//! # Ok::<(), std::io::Error>(())
//! ```

#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("anello-bare requires Linux: it uses io_uring and epoll (build for a Linux target)");

mod accept;
pub mod disk;
mod epoll;
mod errors;
mod level;
mod options;
mod stream;
mod threads;
#[allow(unsafe_code)]
mod uring;

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use errors::invalid_input;

pub use accept::ACCEPT_PAUSE;
pub use options::{MAX_RINGS, Model, Options, TaskWork, UringOptions, parse_core};

/// Maximum number of connections waiting to be accepted. The kernel caps it at `net.core.somaxconn`.
pub const BACKLOG: i32 = 4096;

/// Creates a listener on `address` with SO_REUSEADDR and TCP_NODELAY, which accepted sockets inherit. With port 0, the
/// kernel chooses the port. Returns an error if the address is in use or not local, or if the port is privileged.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, false)
}

/// Creates the listeners on `address` that [`run`] needs with these options: either one per ring, among which the
/// kernel distributes the connections (SO_REUSEPORT, Linux 3.9), or a single one, as created by [`listen`].
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
/// Returns an error with a remedy if io_uring or its options are not supported by this kernel, if io_uring is forbidden
/// by `kernel.io_uring_disabled` or a seccomp filter, if options conflict, or if an option does not apply to the model.
pub fn check(model: Model, options: &Options) -> io::Result<Option<String>> {
    let (spins, has_uring) = (!options.spin.is_zero(), options.uring.is_some());
    match model {
        Model::Uring if spins => {
            Err(invalid_input("Options::spin does not apply to uring (set UringOptions::spin)"))
        }
        Model::Uring => uring::check(options.uring.as_ref()).map(Some),
        Model::Epoll if has_uring => Err(invalid_input("io_uring options apply only to the uring model")),
        Model::Poll | Model::Select | Model::Threads if spins || has_uring => {
            Err(invalid_input("only the uring and epoll models have options"))
        }
        _ => Ok(None),
    }
}

/// Runs the echo server `model` on the listeners returned by [`listen_for`], on the calling thread. Returns only on a
/// permanent error; to stop a server, send a signal to its process. Raises this process's soft limit on open
/// descriptors to the hard limit.
///
/// # Errors
/// Returns an error if a listener is unusable, the number of listeners is wrong, or the model is unavailable (see
/// [`check`]).
pub fn run(model: Model, listeners: Vec<TcpListener>, options: &Options) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    }
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
        Model::Poll => level::run_poll(&listener),
        Model::Select => level::run_select(&listener),
        Model::Threads => threads::run(&listener),
    }
}

/// The example in README.md runs as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
