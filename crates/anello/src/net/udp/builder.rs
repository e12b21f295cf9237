//! Options that are set before a UDP socket is bound.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::socket::UdpSocket;
use crate::driver::{DatagramSocket, SocketOption, with_context};
use crate::executor::{Shared, current};
use crate::net::bind_retry::bind_with_retry;
use crate::net::resolve::ToSocketAddrs;

/// Builder for a [`UdpSocket`] with the options that must be set before it is bound; see [`UdpSocket::builder`].
///
/// All other options are set on the socket, for example with [`set_recv_buffer_size`](UdpSocket::set_recv_buffer_size).
///
/// ```
/// # anello::example! {
/// use anello::net::UdpSocket;
///
/// // A socket for a QUIC server: reports the destination, congestion notifications and merged datagrams.
/// let socket = UdpSocket::builder().reuse_port(true).bind("127.0.0.1:0")?;
/// socket.set_recv_buffer_size(2 << 20)?;
/// socket.set_pktinfo(true)?;
/// socket.set_recv_ecn(true)?;
/// socket.set_gro(true)?;
/// assert!(socket.local_addr()?.ip().is_loopback());
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct UdpSocketBuilder {
    reuse_address: bool,
    reuse_port: bool,
    only_v6: Option<bool>,
    device: Option<Vec<u8>>,
    bind_timeout: Duration,
}

impl UdpSocketBuilder {
    /// Sets `SO_REUSEADDR`: several sockets that set it can be bound to the same address. Datagrams to a multicast
    /// group are delivered to all of them, other datagrams to one. The default is `false`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let one = UdpSocket::builder().reuse_address(true).bind("127.0.0.1:0")?;
    /// let other = UdpSocket::builder().reuse_address(true).bind(one.local_addr()?)?;
    /// # }
    /// ```
    #[must_use]
    pub fn reuse_address(mut self, on: bool) -> Self {
        self.reuse_address = on;
        self
    }

    /// Sets `SO_REUSEPORT`: several sockets of the same user share the address, and the kernel distributes the
    /// datagrams by a hash of the addresses. Use one socket per worker. The default is `false`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let one = UdpSocket::builder().reuse_port(true).bind("127.0.0.1:0")?;
    /// let other = UdpSocket::builder().reuse_port(true).bind(one.local_addr()?)?;
    /// # }
    /// ```
    #[must_use]
    pub fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// Sets whether an IPv6 socket is restricted to IPv6 (`IPV6_V6ONLY`). Otherwise, a socket that is bound to the
    /// unspecified address also exchanges datagrams with IPv4 addresses, in the form `::ffff:192.0.2.1`. Has no effect
    /// on IPv4 sockets. The default is `net.ipv6.bindv6only`, which is usually `false`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().only_v6(true).bind("[::]:0")?;
    /// assert!(socket.only_v6()?);
    /// # }
    /// ```
    #[must_use]
    pub fn only_v6(mut self, on: bool) -> Self {
        self.only_v6 = Some(on);
        self
    }

    /// Restricts the socket to an interface, such as `eth0` (`SO_BINDTODEVICE`; needs no privileges since Linux 5.7).
    /// Sockets that are restricted to different interfaces can be bound to the same address.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let error = UdpSocket::builder().bind_device("no-such-device").bind("127.0.0.1:0").unwrap_err();
    /// assert!(error.to_string().starts_with("cannot bind 127.0.0.1:0"));
    /// # }
    /// ```
    #[must_use]
    pub fn bind_device(mut self, interface: impl AsRef<[u8]>) -> Self {
        self.device = Some(interface.as_ref().to_vec());
        self
    }

    /// Sets how long [`bind_host`](Self::bind_host) waits for an address that is in use, for the reason that
    /// [`TcpListenerBuilder::bind_timeout`](crate::net::TcpListenerBuilder::bind_timeout) explains. The default is zero.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let previous = UdpSocket::bind("127.0.0.1:0")?;
    /// let address = previous.local_addr()?;
    /// anello::spawn(async move { drop(previous) }).detach();
    /// let builder = UdpSocket::builder().bind_timeout(Duration::from_secs(2));
    /// assert_eq!(builder.bind_host(address).await?.local_addr()?, address);
    /// # }
    /// ```
    #[must_use]
    pub fn bind_timeout(mut self, timeout: Duration) -> Self {
        self.bind_timeout = timeout;
        self
    }

    /// Binds to the first address that can be bound (`socket(2)`, `bind(2)`). To bind to a host name, or to wait for an
    /// address, use [`bind_host`](Self::bind_host), which does not block.
    ///
    /// # Errors
    /// Returns the error of the last address if no address can be bound, for example because it is in use or not local,
    /// or an option cannot be set. Returns `InvalidInput` for a host name. The error contains the address.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::UdpSocket;
    /// let socket = UdpSocket::builder().reuse_port(true).bind("127.0.0.1:0")?;
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # }
    /// ```
    #[track_caller]
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let shared = current();
        self.bind_to_first(&shared, &address.to_host()?.without_resolution()?)
    }

    /// Binds like [`bind`](Self::bind), and also accepts a host name, which is resolved on a thread in the blocking
    /// pool. Waits for an address that is in use, up to the [`bind_timeout`](Self::bind_timeout). Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved or no address can be bound.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::builder().reuse_port(true).bind_host("localhost:0").await?;
    /// assert!(socket.reuse_port()?);
    /// # }
    /// ```
    pub async fn bind_host(&self, host: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let shared = current();
        let addresses = host.to_host()?.resolve().await?;
        bind_with_retry(self.bind_timeout, || self.bind_to_first(&shared, &addresses)).await
    }

    fn bind_to_first(&self, shared: &Rc<Shared>, addresses: &[SocketAddr]) -> io::Result<UdpSocket> {
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "host has no addresses");
        for &address in addresses {
            let opened = shared.driver.borrow_mut().open_udp(address.is_ipv6());
            let bound = opened.and_then(|socket| {
                self.configure(&socket)?;
                socket.bind(address)?;
                UdpSocket::new(Rc::clone(shared), socket)
            });
            match bound {
                Ok(socket) => return Ok(socket),
                Err(error) => failed = with_context(format_args!("cannot bind {address}"), error),
            }
        }
        Err(failed)
    }

    fn configure(&self, socket: &DatagramSocket) -> io::Result<()> {
        if self.reuse_address {
            socket.set_option(SocketOption::ReuseAddress, 1)?;
        }
        if self.reuse_port {
            socket.set_option(SocketOption::ReusePort, 1)?;
        }
        if let Some(only_v6) = self.only_v6.filter(|_| socket.is_ipv6()) {
            socket.set_option(SocketOption::OnlyV6, only_v6.into())?;
        }
        match &self.device {
            Some(interface) => socket.bind_device(Some(interface)),
            None => Ok(()),
        }
    }
}

impl UdpSocket {
    /// Binds to an address with the default options (`socket(2)`, `bind(2)`). Port 0 selects a free port.
    ///
    /// See [`UdpSocketBuilder::bind`] for errors and panics.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("[::1]:0")?;
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # }
    /// ```
    #[track_caller]
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind(address)
    }

    /// Binds like [`bind`](Self::bind), and also accepts a host name, which is resolved on a thread in the blocking
    /// pool.
    ///
    /// See [`UdpSocketBuilder::bind_host`] for errors and panics.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind_host("localhost:0").await?;
    /// assert!(socket.local_addr()?.ip().is_loopback());
    /// # }
    /// ```
    pub async fn bind_host(host: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind_host(host).await
    }

    /// Returns a builder with the default options.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UdpSocket;
    ///
    /// let socket = UdpSocket::builder().only_v6(true).bind("[::1]:0")?;
    /// assert!(socket.only_v6()?);
    /// # }
    /// ```
    pub fn builder() -> UdpSocketBuilder {
        UdpSocketBuilder::default()
    }
}
