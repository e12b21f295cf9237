//! Connecting to the server, and the choice of source addresses.
//!
//! A TCP connection is identified by two addresses and two ports. The number of connections from one address to one
//! server is therefore limited by the kernel's range of ephemeral ports (28,232 by default), and connections closed
//! within the last minute still occupy their port (TIME_WAIT). Connecting becomes slow long before that limit:
//! `connect(2)` tries one half of the ports first, and when that half is full it scans all of it on every call before
//! it tries the other half. A load with many connections therefore uses several source addresses. On loopback, every
//! address of 127.0.0.0/8 belongs to this machine.
//!
//! The source address is bound without a port (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2). The kernel then selects the port
//! in `connect(2)`, where it knows the server's address and can reuse a port for connections to different servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use anello::net::{TcpStream, UnixStream};

use crate::stream::{Address, Stream, Transport};
use crate::tls::TlsConnector;

/// Maximum number of connections from one loopback address to one server address. This is a third of the ports that the
/// kernel finds quickly, which leaves ports free while those of a previous load are still in TIME_WAIT.
pub(crate) const MAX_CONNECTIONS_PER_SOURCE: usize = 4000;

/// Returns as many addresses of 127.0.0.0/8 as `connections` connections to `target` need. Returns none if the kernel's
/// choice suffices, or if there is only one address to choose from.
pub(crate) fn loopback_addresses(target: SocketAddr, connections: usize) -> Vec<IpAddr> {
    if !target.is_ipv4() || !target.ip().is_loopback() || connections <= MAX_CONNECTIONS_PER_SOURCE {
        return Vec::new();
    }
    let first = u32::from(Ipv4Addr::LOCALHOST);
    let count = u32::try_from(connections.div_ceil(MAX_CONNECTIONS_PER_SOURCE)).unwrap_or(u32::MAX);
    // The last address of the network is its broadcast address.
    let addresses = first..first.saturating_add(count).min(first | 0x00ff_fffe);
    addresses.map(|address| IpAddr::V4(address.into())).collect()
}

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
        Some(connector) => Rc::clone(connector).handshake(transport).await,
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

/// Adds the remedy if the kernel has no free port.
fn with_remedy(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::AddrNotAvailable {
        return error;
    }
    let remedy = "local ports exhausted, including those in TIME_WAIT (use more source addresses or widen \
                  net.ipv4.ip_local_port_range)";
    io::Error::new(error.kind(), format!("{error}: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(target: &str, connections: usize) -> usize {
        loopback_addresses(target.parse().unwrap(), connections).len()
    }

    #[test]
    fn source_addresses_added_only_for_many_loopback_connections() {
        assert_eq!(count("127.0.0.1:7000", 1), 0);
        assert_eq!(count("127.0.0.1:7000", MAX_CONNECTIONS_PER_SOURCE), 0);
        assert_eq!(count("127.0.0.1:7000", MAX_CONNECTIONS_PER_SOURCE + 1), 2);
        assert_eq!(count("127.8.8.8:7000", 10_000), 3);
        assert_eq!(count("[::1]:7000", 10_000), 0, "IPv6 has a single loopback address");
        assert_eq!(count("192.0.2.1:7000", 10_000), 0, "remote servers cannot reach loopback addresses");
    }

    #[test]
    fn source_addresses_are_distinct_and_on_loopback() {
        let sources = loopback_addresses(([127, 0, 0, 1], 7000).into(), 1_000_000);
        assert_eq!((sources.len(), sources[0]), (250, IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(sources.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(sources.iter().all(IpAddr::is_loopback));
    }
}
