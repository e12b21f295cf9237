//! Bare echo servers, and bare disk workers ([`disk`]): the yardsticks that a runtime is held against.
//!
//! One TCP echo server per I/O model of Linux, each the smallest program that is still correct, on one thread
//! (`threads`: one per connection) and without a runtime. What a runtime spends above `epoll` and `uring` is
//! its own cost; what lies between those two is the cost of the model. `uring` with options is a second server, less
//! small and with a thread per ring, to find what each option is worth.
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
//! run(Model::Epoll, vec![listener], &Options::default())?;
//! # Ok::<(), std::io::Error>(())
//! ```

#![deny(unsafe_code)]

mod accept;
pub mod disk;
mod epoll;
mod options;
mod poll;
mod select;
mod stream;
mod threads;
#[allow(unsafe_code)]
mod uring;
#[allow(unsafe_code)]
mod uring_options;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use accept::ACCEPT_PAUSE;
pub use options::{MAX_RINGS, Options, TaskWork, UringOptions, Variant, core, variants};

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

/// Binds `address` and listens on it: `socket(2)`, SO_REUSEADDR, TCP_NODELAY (which accepted sockets inherit),
/// `bind(2)`, `listen(2)` with a backlog of [`BACKLOG`]. Port 0 lets the kernel choose.
///
/// # Errors
/// The address is in use, not of this machine, or the port needs a privilege.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, false)
}

/// The listeners on `address` that [`run`] wants with these options: one as by [`listen`], or for several rings one
/// for each, over which the kernel spreads the connections (SO_REUSEPORT, Linux 3.9).
///
/// # Errors
/// As for [`listen`].
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

/// Says whether `model` is to be had by this process with these options; only io_uring may be refused. Of that one it
/// tells the flags or options that are in effect on this kernel, as one word with commas.
///
/// # Errors
/// io_uring is not in this kernel, or forbidden by `kernel.io_uring_disabled` or a seccomp filter; its options do not
/// go together or the kernel does not have them; `spin` or `uring` was given to a model that has none. The text names
/// the remedy.
pub fn check(model: Model, options: &Options) -> io::Result<Option<String>> {
    let conflict = match model {
        Model::Uring => {
            (!options.spin.is_zero()).then_some("spin is among the options of io_uring for that model")
        }
        Model::Epoll => options.uring.as_ref().map(|_| "the options of io_uring are for the model uring"),
        _ if options.uring.is_some() || !options.spin.is_zero() => Some("only uring and epoll have options"),
        _ => None,
    };
    match (conflict, model, &options.uring) {
        (Some(reason), _, _) => Err(io::Error::new(io::ErrorKind::InvalidInput, reason)),
        (None, Model::Uring, None) => uring::check().map(|flags| Some(flags.to_owned())),
        (None, Model::Uring, Some(uring)) => uring_options::check(uring).map(|()| Some(uring.to_string())),
        (None, _, _) => Ok(None),
    }
}

/// Echoes on the listeners of [`listen_for`] with `model`, on the calling thread, until something fails that no retry
/// mends; so it returns errors only. A server that must stop is a process that is ended by a signal.
///
/// `uring` with options has a thread for each listener, each with a ring. The others take one listener. Raises this
/// process's soft limit of open descriptors to the hard one.
///
/// # Errors
/// The listener is broken, there are none or too many, or the model is not to be had (see [`check`]).
pub fn run(model: Model, listeners: Vec<TcpListener>, options: &Options) -> io::Result<()> {
    raise_open_file_limit()?;
    for listener in &listeners {
        sockopt::set_tcp_nodelay(listener, true)?;
    }
    if let (Model::Uring, Some(uring)) = (model, &options.uring) {
        return uring_options::run(listeners, options, uring);
    }
    let Ok([listener]) = <[TcpListener; 1]>::try_from(listeners) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this server takes one listener"));
    };
    match model {
        Model::Uring => uring::run(listener, options),
        Model::Epoll => epoll::run(listener, options),
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
    fn options_of_another_model_are_refused() {
        let spin = Options { spin: std::time::Duration::from_micros(1), ..Options::default() };
        let uring = Options { uring: Some(UringOptions::default()), ..Options::default() };
        check(Model::Epoll, &spin).unwrap();
        for (model, options) in [(Model::Poll, &spin), (Model::Uring, &spin), (Model::Epoll, &uring)] {
            let error = check(model, options).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{model}: {error}");
        }
    }

    #[test]
    fn accepted_sockets_inherit_nodelay() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }
}
