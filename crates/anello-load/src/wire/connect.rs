//! Connecting to the server, optionally from one of several source addresses.
//!
//! A TCP connection is identified by two addresses and two ports. The number of connections from one address to one
//! server is therefore limited by the kernel's range of ephemeral ports (28,232 by default), and connections closed
//! within the last minute still occupy their port (TIME_WAIT). Connecting becomes slow long before that limit:
//! `connect(2)` tries one half of the ports first, and when that half is full, it scans the whole half on every call
//! before it tries the other. A load with many connections therefore uses several source addresses. On loopback, every
//! address in 127.0.0.0/8 belongs to this machine.
//!
//! The source address is bound without a port (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2). The kernel then selects the port
//! in `connect(2)`, where it knows the server's address and can reuse a port for connections to different servers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use anello::net::{TcpStream, UnixStream};

use crate::model::address::Address;
use crate::wire::stream::Stream;
use crate::wire::tls_stream::TlsConnector;
use crate::wire::transport::Transport;

/// Connects to `target`, and performs the TLS handshake if `tls` is set.
///
/// # Cancel safety
/// Dropping the future abandons the connection.
///
/// # Errors
/// Returns the errors of [`TcpStream::connect_from`], [`UnixStream::connect_addr`] and the TLS handshake, and
/// `InvalidInput` if an abstract socket name is too long.
pub(crate) async fn connect(
    target: &Address,
    source_address: Option<IpAddr>,
    tls: Option<&Rc<TlsConnector>>,
) -> io::Result<Stream> {
    let transport = match target {
        Address::Tcp(target) => connect_tcp(*target, source_address).await.map(Transport::Tcp),
        Address::Unix(path) => UnixStream::connect(path).await.map(Transport::Unix),
        Address::Abstract(name) => {
            let address = UnixAddress::from_abstract_name(name)?;
            UnixStream::connect_addr(&address).await.map(Transport::Unix)
        }
    }?;
    match tls {
        None => Ok(Stream::Plain(transport)),
        Some(connector) => {
            Rc::clone(connector).handshake(transport).await.map(|tls| Stream::Tls(Box::new(tls)))
        }
    }
}

/// Connects from `source_address`, or from an address that the kernel selects.
async fn connect_tcp(target: SocketAddr, source_address: Option<IpAddr>) -> io::Result<TcpStream> {
    let result = match source_address {
        None => TcpStream::connect(target).await,
        Some(source_address) => TcpStream::connect_from(SocketAddr::new(source_address, 0), target).await,
    };
    result.map_err(with_remedy)
}

/// Adds a remedy to the error if the kernel has no free port.
fn with_remedy(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::AddrNotAvailable {
        return error;
    }
    let remedy = "local ports exhausted, including those in TIME_WAIT (use more source addresses or widen \
                  net.ipv4.ip_local_port_range)";
    io::Error::new(error.kind(), format!("{error}: {remedy}"))
}
