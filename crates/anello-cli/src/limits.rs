//! Limits of the process, and ports.

use std::io;
use std::net::SocketAddr;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Raises the soft limit of open files to the hard one: a server is judged by the connections it can hold.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// A socket that is bound, and so holds its port, but does not listen; with the address it got.
pub fn hold_port(addr: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{addr}: {error}"));
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(addr)).map_err(named)?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(addr);
    Ok((socket, bound))
}
