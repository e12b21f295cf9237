//! Where connections come from.
//!
//! A connection is told from others by four numbers: two addresses and two ports. From one address to one server there
//! can be no more than the kernel has ephemeral ports (28,232 by default), those of connections that ended within the
//! last minute included. Long before that, opening them becomes slow: `connect(2)` tries one half of the ports, and once
//! that is full it looks through all of it, every time, before it comes to the other half. A load of many connections
//! therefore comes from several addresses. On loopback there are plenty: all of 127.0.0.0/8 is this machine.
//!
//! The address is bound without a port (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2): only with the server's address at hand can
//! the kernel use the same port for several connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::rc::Rc;

use anello::net::{TcpStream, UnixStream};

use crate::stream::{Address, Stream, Transport};
use crate::tls::TlsConnector;

/// Most connections to a loopback address from one other: a third of the ports that are quickly found, so that the ports
/// of a load that has just ended are in nobody's way.
pub(crate) const MAX_CONNECTIONS_PER_SOURCE: usize = 4000;

/// As many addresses of 127.0.0.0/8 as so many connections to `target` need; none where the kernel's choice will do, or
/// where there is only one to choose.
pub(crate) fn loopback_addresses(target: SocketAddr, connections: usize) -> Vec<IpAddr> {
    if !target.is_ipv4() || !target.ip().is_loopback() || connections <= MAX_CONNECTIONS_PER_SOURCE {
        return Vec::new();
    }
    let first = u32::from(Ipv4Addr::LOCALHOST);
    let count = u32::try_from(connections.div_ceil(MAX_CONNECTIONS_PER_SOURCE)).unwrap_or(u32::MAX);
    // The last of the network is its broadcast address.
    let addresses = first..first.saturating_add(count).min(first | 0x00ff_fffe);
    addresses.map(|address| IpAddr::V4(address.into())).collect()
}

/// Connects to `target`, and makes the handshake of TLS if it is to be used. Cancel-safe: dropping the future abandons
/// the connection.
///
/// # Errors
/// As [`TcpStream::connect_from`] and [`UnixStream::connect_addr`]; `InvalidInput` when a name is too long; those of the
/// handshake.
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

/// Connects from an address of this machine, or from the one that the kernel chooses.
async fn connect_tcp(target: SocketAddr, source_address: Option<IpAddr>) -> io::Result<TcpStream> {
    let result = match source_address {
        None => TcpStream::connect(target).await,
        Some(source_address) => TcpStream::connect_from(SocketAddr::new(source_address, 0), target).await,
    };
    result.map_err(with_remedy)
}

/// Says what to do when there are no ports left.
fn with_remedy(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::AddrNotAvailable {
        return error;
    }
    let remedy = "all ports to the server are taken, some for a minute after their connection has ended: let the load \
                  come from more addresses, or widen net.ipv4.ip_local_port_range";
    io::Error::new(error.kind(), format!("{error}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(target: &str, connections: usize) -> usize {
        loopback_addresses(target.parse().unwrap(), connections).len()
    }

    #[test]
    fn only_many_connections_to_loopback_are_spread() {
        assert_eq!(count("127.0.0.1:7000", 1), 0);
        assert_eq!(count("127.0.0.1:7000", MAX_CONNECTIONS_PER_SOURCE), 0);
        assert_eq!(count("127.0.0.1:7000", MAX_CONNECTIONS_PER_SOURCE + 1), 2);
        assert_eq!(count("127.8.8.8:7000", 10_000), 3);
        assert_eq!(count("[::1]:7000", 10_000), 0, "the IPv6 loopback is one address");
        assert_eq!(count("192.0.2.1:7000", 10_000), 0, "other machines know only real addresses");
    }

    #[test]
    fn all_sources_are_different_and_on_loopback() {
        let sources = loopback_addresses(([127, 0, 0, 1], 7000).into(), 1_000_000);
        assert_eq!((sources.len(), sources[0]), (250, IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(sources.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(sources.iter().all(IpAddr::is_loopback));
    }
}
