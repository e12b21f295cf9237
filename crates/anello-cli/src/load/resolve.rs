//! Name resolution of the server's address.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Connect timeout per address when a name has several addresses.
const CONNECT_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Resolves `HOST:PORT`.
///
/// If the name has several addresses, as `localhost` usually has, returns the first one that accepts a connection, or
/// the first one if none does.
///
/// # Errors
/// Returns the error of the name lookup, or `NotFound` if the name has no address.
pub fn resolve(host_and_port: &str) -> io::Result<SocketAddr> {
    let with_name =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot resolve {host_and_port}: {error}"));
    let mut addresses: Vec<SocketAddr> = host_and_port.to_socket_addrs().map_err(with_name)?.collect();
    addresses.dedup();
    let accepts = |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT_PROBE_TIMEOUT).is_ok();
    let has_several = addresses.len() > 1;
    let accepting = addresses.iter().filter(|_| has_several).find(accepts);
    accepting.or(addresses.first()).copied().ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("cannot resolve {host_and_port}: no address"))
    })
}
