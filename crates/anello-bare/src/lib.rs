//! Bare echo servers: the yardsticks that a runtime is held against.
//!
//! One TCP echo server per I/O model of Linux, each the smallest program that is still correct, on one thread
//! (`threads`: one per connection) and without a runtime. What a runtime spends above `epoll` and `uring` is
//! its own cost; what lies between those two is the cost of the model.
//!
//! Every model keeps the same promises:
//! - bytes come back once, in order: a send that the kernel refuses or cuts short is finished later;
//! - a peer that does not read is not read from, so memory per connection is bounded;
//! - a peer that shuts down its sending half gets all it is owed before the connection is closed;
//! - a reset closes that connection only; running out of descriptors pauses accepting for [`ACCEPT_PAUSE`].
//!
//! ```no_run
//! use anello_bare::{Model, Options, listen, run};
//!
//! let listener = listen("127.0.0.1:7000".parse().unwrap())?;
//! run(Model::Epoll, listener, &Options::default())?;
//! # Ok::<(), std::io::Error>(())
//! ```

#![deny(unsafe_code)]

mod accept;
mod epoll;
mod poll;
mod select;
mod stream;
mod threads;
#[allow(unsafe_code)]
mod uring;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use accept::ACCEPT_PAUSE;

/// Connections that the kernel holds for a listener of [`listen`] before they are accepted; the kernel lowers
/// it to `net.core.somaxconn`.
pub const BACKLOG: i32 = 4096;

/// How the server learns that it can receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// io_uring: multishot accept and receive into provided buffers, one `io_uring_enter(2)` per turn. Linux 6.0.
    Uring,
    /// `epoll_wait(2)`, edge-triggered, speculative system calls. Linux 2.6.17.
    Epoll,
    /// `poll(2)`, level-triggered.
    Poll,
    /// `select(2)`, level-triggered; holds no descriptor of 1024 or above.
    Select,
    /// A blocking thread per connection.
    Threads,
}

impl Model {
    /// Every model, fastest first.
    pub const ALL: [Model; 5] = [Model::Uring, Model::Epoll, Model::Poll, Model::Select, Model::Threads];

    /// The name that [`FromStr`] reads and [`Display`](fmt::Display) writes.
    pub fn name(self) -> &'static str {
        match self {
            Model::Uring => "uring",
            Model::Epoll => "epoll",
            Model::Poll => "poll",
            Model::Select => "select",
            Model::Threads => "threads",
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Model, UnknownModel> {
        Model::ALL.into_iter().find(|model| model.name() == name).ok_or_else(|| UnknownModel(name.to_owned()))
    }
}

/// A name that is no [`Model`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel(String);

impl fmt::Display for UnknownModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown model {:?}: use uring, epoll, poll, select or threads", self.0)
    }
}

impl std::error::Error for UnknownModel {}

/// What [`run`] may be told; the defaults are what measured best.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of one receive buffer of `uring`, bytes, 1 to 1 GiB. Default 16 KiB. The other models receive into one
    /// buffer of 64 KiB.
    pub uring_buffer_bytes: u32,
    /// Most receive buffers that `uring` may have, rounded up to a power of two, at most 32768. Default 1024; it
    /// starts with few and doubles their number when they run out.
    pub uring_buffers: u16,
    /// Counts the connections that were accepted and closed at once because the model could not hold them: a
    /// descriptor of 1024 or above under `select`, a thread that could not be started under `threads`.
    pub refused: Arc<AtomicU64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { uring_buffer_bytes: 16 * 1024, uring_buffers: 1024, refused: Arc::default() }
    }
}

/// Binds `address` and listens on it: `socket(2)`, SO_REUSEADDR, TCP_NODELAY (which accepted sockets inherit),
/// `bind(2)`, `listen(2)` with a backlog of [`BACKLOG`]. Port 0 lets the kernel choose.
///
/// # Errors
/// The address is in use, not of this machine, or the port needs a privilege.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Says whether `model` is to be had by this process; only io_uring may be refused.
///
/// # Errors
/// io_uring is not in this kernel, or forbidden by `kernel.io_uring_disabled` or a seccomp filter; the text names
/// the remedy.
pub fn check(model: Model) -> io::Result<()> {
    if model == Model::Uring { uring::check() } else { Ok(()) }
}

/// Echoes on `listener` with `model`, on the calling thread, until something fails that no retry mends; so it
/// returns errors only. A server that must stop is a process that is ended by a signal.
///
/// Raises this process's soft limit of open descriptors to the hard one.
///
/// # Errors
/// The listener is broken, or the model is not to be had (see [`check`]).
pub fn run(model: Model, listener: TcpListener, options: &Options) -> io::Result<()> {
    raise_open_file_limit()?;
    sockopt::set_tcp_nodelay(&listener, true)?;
    match model {
        Model::Uring => uring::run(listener, options),
        Model::Epoll => epoll::run(listener),
        Model::Poll => poll::run(listener),
        Model::Select => select::run(listener, options),
        Model::Threads => threads::run(listener, options),
    }
}

/// Raises the soft RLIMIT_NOFILE of this process to the hard one, as far as that is allowed.
fn raise_open_file_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for model in Model::ALL {
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        assert_eq!("kqueue".parse::<Model>(), Err(UnknownModel("kqueue".into())));
    }

    #[test]
    fn accepted_sockets_inherit_nodelay() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }
}
