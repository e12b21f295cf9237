//! Connecting to the server, optionally from one of several source addresses.
//!
//! The kernel's range of ephemeral ports (28,232 by default) limits the number of connections from one address to one
//! server, and connections closed within the last minute still occupy their port (TIME_WAIT). Connecting becomes slow
//! long before that limit: `connect(2)` tries one half of the ports first, and when that half is full, it scans the
//! whole half on every call before it tries the other. A load with many connections therefore uses several source
//! addresses. On loopback, every address in 127.0.0.0/8 belongs to this machine.
//!
//! The source address is bound without a port (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2). The kernel then selects the port
//! in `connect(2)`, where it can reuse a port for connections to different servers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use anello::net::{TcpStream, UnixStream};

use crate::model::config::Address;
use crate::wire::stream::Stream;
use crate::wire::tls_stream::TlsConnector;
use crate::wire::transport::Transport;

/// Connects to `target`, and performs the TLS handshake if `tls` is set. Returns `InvalidInput` if an abstract socket
/// name is too long.
pub(crate) async fn connect(
    target: &Address,
    source_address: Option<IpAddr>,
    tls: Option<&Rc<TlsConnector>>,
) -> io::Result<Stream> {
    let transport = match target {
        Address::Tcp(target) => {
            let connected = match source_address {
                None => TcpStream::connect(*target).await,
                Some(source) => TcpStream::connect_from(SocketAddr::new(source, 0), *target).await,
            };
            Transport::Tcp(connected.map_err(with_remedy)?)
        }
        Address::Unix(path) => Transport::Unix(UnixStream::connect(path).await?),
        Address::Abstract(name) => {
            Transport::Unix(UnixStream::connect_addr(&UnixAddress::from_abstract_name(name)?).await?)
        }
    };
    Ok(match tls {
        None => Stream::Plain(transport),
        Some(connector) => Stream::Tls(Box::new(Rc::clone(connector).handshake(transport).await?)),
    })
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
