//! Name resolution of the server's address.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::common::error::Context;

/// Connect timeout per address when a name has several addresses.
const CONNECT_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Resolves `HOST:PORT`.
///
/// If the name has several addresses, as `localhost` usually does, returns the first address that accepts a connection,
/// or the first address if none does.
pub fn resolve(host_and_port: &str) -> io::Result<SocketAddr> {
    let what = format!("cannot resolve {host_and_port}");
    let mut addresses: Vec<SocketAddr> = host_and_port.to_socket_addrs().context(&what)?.collect();
    addresses.dedup();
    let accepts = |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT_PROBE_TIMEOUT).is_ok();
    let has_several = addresses.len() > 1;
    let accepting = addresses.iter().filter(|_| has_several).find(accepts);
    let no_address = || io::Error::new(io::ErrorKind::NotFound, format!("{what}: no address"));
    accepting.or(addresses.first()).copied().ok_or_else(no_address)
}
