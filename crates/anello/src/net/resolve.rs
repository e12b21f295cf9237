//! Addresses of hosts: what names are resolved to, by a thread for work that blocks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::spawn_blocking;

/// What [`TcpStream::connect`](super::TcpStream::connect) and others take: addresses, or the name and port of a host.
///
/// A `SocketAddr`, a pair of an IP address and a port, a slice of addresses, and text such as `"127.0.0.1:80"`,
/// `"[::1]:80"` or `("::1", 80)` need no resolution. Text with a name, such as `"localhost:80"` or `("localhost", 80)`, is
/// resolved (`getaddrinfo(3)`) by a thread for work that blocks, so that the worker goes on meanwhile.
///
/// No other type can be one.
pub trait ToSocketAddrs: Sealed {}

/// Out of reach of other crates, which keeps [`ToSocketAddrs`] to the types of this one.
pub trait Sealed {
    #[doc(hidden)]
    fn to_host(&self) -> io::Result<Host>;
}

/// What a [`ToSocketAddrs`] stands for.
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

        impl ToSocketAddrs for $from {}
    )*};
}

addresses!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl Sealed for [SocketAddr] {
    fn to_host(&self) -> io::Result<Host> {
        Ok(Host::Addresses(self.to_vec()))
    }
}

impl ToSocketAddrs for [SocketAddr] {}

impl Sealed for Vec<SocketAddr> {
    fn to_host(&self) -> io::Result<Host> {
        self[..].to_host()
    }
}

impl ToSocketAddrs for Vec<SocketAddr> {}

impl Sealed for (&str, u16) {
    fn to_host(&self) -> io::Result<Host> {
        let &(host, port) = self;
        Ok(match host.parse::<IpAddr>() {
            Ok(address) => Host::Address(SocketAddr::new(address, port)),
            Err(_) => Host::Named(host.to_owned(), port),
        })
    }
}

impl ToSocketAddrs for (&str, u16) {}

impl Sealed for (String, u16) {
    fn to_host(&self) -> io::Result<Host> {
        (&*self.0, self.1).to_host()
    }
}

impl ToSocketAddrs for (String, u16) {}

impl Sealed for str {
    fn to_host(&self) -> io::Result<Host> {
        if let Ok(address) = self.parse() {
            return Ok(Host::Address(address));
        }
        let named = self.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        match named {
            Some((host, port)) if !host.is_empty() => (host, port).to_host(),
            _ => {
                let message = format!("{self:?} is not an address: write HOST:PORT, such as localhost:80");
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }
}

impl ToSocketAddrs for str {}

impl Sealed for String {
    fn to_host(&self) -> io::Result<Host> {
        self[..].to_host()
    }
}

impl ToSocketAddrs for String {}

impl<T: Sealed + ?Sized> Sealed for &T {
    fn to_host(&self) -> io::Result<Host> {
        (**self).to_host()
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {}

impl Host {
    /// The addresses, if none has to be resolved.
    ///
    /// # Errors
    /// `InvalidInput` for a name.
    pub(super) fn known(self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Address(address) => Ok(vec![address]),
            Self::Addresses(addresses) => Ok(addresses),
            Self::Named(name, port) => {
                let message = format!(
                    "{name}:{port}: a name must be resolved, which would block the worker (use bind_host, or an IP address)"
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }

    /// The addresses, of a name as the system resolves it.
    pub(super) async fn resolve(self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Named(name, port) => {
                let resolver = resolver::current();
                spawn_blocking(move || {
                    resolver(&name, port).map_err(|error| {
                        io::Error::new(error.kind(), format!("cannot resolve {name}: {error}"))
                    })
                })
                .await?
            }
            known => known.known(),
        }
    }
}

/// Resolves the name of a host (`getaddrinfo(3)`, by a thread for work that blocks), in the order of preference of the
/// system. What needs no resolution is returned as it is. Cancel-safe.
///
/// ```
/// # let runtime = anello::Runtime::new()?;
/// # runtime.block_on(async {
/// let addresses = anello::net::lookup_host("localhost:80").await?;
/// assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` when text is not `HOST:PORT`; the error of the resolver when it knows no such name or cannot tell.
pub async fn lookup_host(host: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    host.to_host()?.resolve().await
}

/// What resolves names: the system; in tests of this crate, what they set for their thread.
pub(super) mod resolver {
    use std::io;
    use std::net::{SocketAddr, ToSocketAddrs};

    fn system(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((name, port).to_socket_addrs()?.collect())
    }

    #[cfg(not(test))]
    pub fn current() -> impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static {
        system
    }

    #[cfg(test)]
    pub use stub::{current, set};

    #[cfg(test)]
    mod stub {
        use std::cell::RefCell;
        use std::sync::Arc;

        use super::{SocketAddr, io, system};

        type Resolver = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

        thread_local! {
            static RESOLVER: RefCell<Resolver> = RefCell::new(Arc::new(system));
        }

        pub fn current() -> Resolver {
            RESOLVER.with_borrow(Arc::clone)
        }

        pub fn set(resolver: Resolver) {
            RESOLVER.set(resolver);
        }
    }
}
