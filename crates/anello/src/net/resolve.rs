//! Host name resolution on a thread in the blocking pool.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::driver::with_context;
use crate::executor::with_current;
use crate::spawn_blocking;

/// Target address of [`TcpStream::connect`](super::TcpStream::connect) and similar functions: socket addresses, or a
/// host name with a port.
///
/// A `SocketAddr`, a slice of addresses, a pair of an IP address and a port, such as `("::1", 80)`, and a string such
/// as `"127.0.0.1:80"` or `"[::1]:80"` need no resolution. A string or pair with a host name, such as `"localhost:80"`
/// or `("localhost", 80)`, is resolved with `getaddrinfo(3)` on a thread in the blocking pool, so the worker is not
/// blocked.
///
/// This trait is sealed.
///
/// ```
/// use anello::net::{TcpListener, TcpStream, ToSocketAddrs};
///
/// async fn connect(address: impl ToSocketAddrs) -> std::io::Result<u16> {
///     Ok(TcpStream::connect(address).await?.peer_addr()?.port())
/// }
/// # anello::example! {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let port = listener.local_addr()?.port();
/// assert_eq!(connect(listener.local_addr()?).await?, port);
/// assert_eq!(connect(("127.0.0.1", port)).await?, port);
/// assert_eq!(connect(format!("localhost:{port}")).await?, port);
/// # }
/// ```
pub trait ToSocketAddrs: Sealed {}

impl<T: Sealed + ?Sized> ToSocketAddrs for T {}

/// Supertrait that other crates cannot name, which seals [`ToSocketAddrs`].
pub trait Sealed {
    #[doc(hidden)]
    fn to_host(&self) -> io::Result<Host>;
}

#[derive(Debug, PartialEq, Eq)]
pub enum Host {
    Address(SocketAddr),
    Addresses(Vec<SocketAddr>),
    Named(String, u16),
}

macro_rules! addresses {
    ($($from:ty),*) => {$(
        impl Sealed for $from {
            fn to_host(&self) -> io::Result<Host> {
                Ok(Host::Address((*self).into()))
            }
        }
    )*};
}

addresses!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl Sealed for [SocketAddr] {
    fn to_host(&self) -> io::Result<Host> {
        Ok(Host::Addresses(self.to_vec()))
    }
}

impl Sealed for Vec<SocketAddr> {
    fn to_host(&self) -> io::Result<Host> {
        self[..].to_host()
    }
}

impl Sealed for (&str, u16) {
    fn to_host(&self) -> io::Result<Host> {
        let &(host, port) = self;
        Ok(match host.parse::<IpAddr>() {
            Ok(address) => Host::Address(SocketAddr::new(address, port)),
            Err(_) => Host::Named(host.to_owned(), port),
        })
    }
}

impl Sealed for (String, u16) {
    fn to_host(&self) -> io::Result<Host> {
        (&*self.0, self.1).to_host()
    }
}

impl Sealed for str {
    fn to_host(&self) -> io::Result<Host> {
        if let Ok(address) = self.parse() {
            return Ok(Host::Address(address));
        }
        let named = self.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        match named {
            Some((host, port)) if !host.is_empty() => (host, port).to_host(),
            _ => {
                let message = format!("invalid address {self:?} (expected HOST:PORT, such as localhost:80)");
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }
}

impl Sealed for String {
    fn to_host(&self) -> io::Result<Host> {
        self[..].to_host()
    }
}

impl<T: Sealed + ?Sized> Sealed for &T {
    fn to_host(&self) -> io::Result<Host> {
        (**self).to_host()
    }
}

impl Host {
    /// Returns `InvalidInput` for a host name.
    pub(super) fn without_resolution(self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Address(address) => Ok(vec![address]),
            Self::Addresses(addresses) => Ok(addresses),
            Self::Named(name, port) => {
                let message = format!(
                    "cannot bind {name}:{port}: resolving a name would block the worker (use bind_host or an IP address)"
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }

    pub(super) async fn resolve(self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Named(name, port) => {
                if let Some(found) = with_current(|shared| shared.driver.borrow().resolve(&name)).flatten() {
                    let ip =
                        found.map_err(|error| with_context(format_args!("cannot resolve {name}"), error))?;
                    return Ok(vec![SocketAddr::new(ip, port)]);
                }
                #[cfg(test)]
                let getaddrinfo = RESOLVER.with_borrow(std::sync::Arc::clone);
                let resolved =
                    spawn_blocking(move || getaddrinfo(&name, port).map_err(|error| (name, error)));
                resolved
                    .await?
                    .map_err(|(name, error)| with_context(format_args!("cannot resolve {name}"), error))
            }
            other => other.without_resolution(),
        }
    }
}

/// Resolves a host name with `getaddrinfo(3)` on a thread in the blocking pool. The addresses are in the system's order
/// of preference. A socket address is returned unchanged. In a [simulation](crate::sim) of several hosts, the names are
/// those of the hosts. Cancel-safe.
///
/// ```
/// # anello::example! {
/// let addresses = anello::net::lookup_host("localhost:80").await?;
/// assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
/// # }
/// ```
///
/// # Errors
/// Returns `InvalidInput` if a string is not of the form `HOST:PORT`, and the error of the resolver if the name does
/// not exist or cannot be resolved.
pub async fn lookup_host(host: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    host.to_host()?.resolve().await
}

fn getaddrinfo(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(std::net::ToSocketAddrs::to_socket_addrs(&(name, port))?.collect())
}

#[cfg(test)]
type Resolver = std::sync::Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

#[cfg(test)]
thread_local! {
    /// Function that resolves host names for the futures on this thread.
    pub(super) static RESOLVER: std::cell::RefCell<Resolver> = std::cell::RefCell::new(std::sync::Arc::new(getaddrinfo));
}
