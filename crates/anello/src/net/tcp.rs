//! TCP streams and listeners.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use super::bind_retry::bind_with_retry;
use super::connection::Connection;
use super::family::Tcp;
use super::happy_eyeballs::connect_to_first;
use super::listener::{BACKLOG, Listener, StreamListener};
use super::options::{SocketAccess, TcpKeepalive, milliseconds, saturating};
use super::resolve::{Host, ToSocketAddrs};
use super::stream_socket::StreamSocket;
use super::tcp_options::tcp_options;
use crate::driver::{ListenOptions, SocketOption, log_event, log_span, with_context};
use crate::executor::current;

/// TCP connection, bound to this thread's runtime.
///
/// [`StreamSocket`] documents the methods and guarantees of all streams. `TCP_NODELAY` is on by default. Urgent data is
/// received in order with the other data (`SO_OOBINLINE`). On io_uring, it may be delayed until the peer sends further
/// bytes (observed on Linux 6.1, 6.12 and 6.18); programs that depend on urgent data should use epoll.
///
/// ```
/// # anello::example! {
/// use anello::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// let mut server = listener.accept().await?;
/// client.write_all(b"ciao").await?;
/// client.shutdown().await?;
/// while let Some(chunk) = server.recv().await? {
///     server.send(chunk).await?;
/// }
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
pub type TcpStream = StreamSocket<Tcp>;

impl StreamSocket<Tcp> {
    /// Connects to the first address that responds (`IORING_OP_CONNECT`, Linux 5.5; `connect(2)` on epoll).
    ///
    /// If there are several addresses, attempts alternate between the address families. Each attempt starts when the
    /// previous one has failed or has been pending for 250 ms. The first successful attempt cancels the others (Happy
    /// Eyeballs, RFC 8305). Cancel-safe: dropping the future abandons the connection.
    ///
    /// # Errors
    /// Returns an error if the name cannot be resolved, or if all attempts fail. The error includes all addresses.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpSocket, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let stream = TcpStream::connect(("localhost", address.port())).await?;
    /// assert_eq!(stream.peer_addr()?, address);
    ///
    /// let unused = TcpSocket::new_v4()?;
    /// unused.bind("127.0.0.1:0".parse().unwrap())?;
    /// let error = TcpStream::connect(unused.local_addr()?).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # }
    /// ```
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_to_any(None, address).await
    }

    /// Connects from a local address (`bind(2)`). Otherwise behaves like [`connect`](Self::connect). Cancel-safe.
    ///
    /// If the port in `source` is 0, the kernel selects the port when the peer is known (`IP_BIND_ADDRESS_NO_PORT`,
    /// Linux 4.2), so one local port can be used for connections to different peers.
    ///
    /// # Errors
    /// See [`connect`](Self::connect). Also returns `InvalidInput` if `source` is not a local address, and
    /// `AddrNotAvailable` if no local port is available for the peer.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let source = "127.0.0.2:0".parse().unwrap();
    /// let stream = TcpStream::connect_from(source, listener.local_addr()?).await?;
    /// assert_eq!(stream.local_addr()?.ip(), source.ip());
    /// # }
    /// ```
    pub async fn connect_from(source: SocketAddr, address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_to_any(Some(source), address).await
    }

    async fn connect_to_any(source: Option<SocketAddr>, address: impl ToSocketAddrs) -> io::Result<Self> {
        match address.to_host()? {
            Host::Address(peer) => Self::connect_to(source, peer).await,
            host => connect_to_first(host.resolve().await?, |peer| Self::connect_to(source, peer)).await,
        }
    }

    async fn connect_to(source: Option<SocketAddr>, peer: SocketAddr) -> io::Result<Self> {
        log_span!("connect", %peer).run(pin!(Self::connect_once(source, peer))).await
    }

    async fn connect_once(source: Option<SocketAddr>, peer: SocketAddr) -> io::Result<Self> {
        let shared = current();
        let started = shared.driver.borrow_mut().connect(peer, source);
        let key = started.map_err(|error| connect_error(peer, source, error))?;
        let stream = Self::new(Connection::new(Rc::clone(&shared), key));
        let connected = poll_fn(|context| shared.driver.borrow_mut().poll_connect(key, context.waker()));
        connected.await.map_err(|error| connect_error(peer, source, error))?;
        log_event!(DEBUG, "connected");
        Ok(stream)
    }
}

tcp_options!(StreamSocket<Tcp>, StreamListener<Tcp>);

/// Adds the peer address and, if set, the source address to an error. An error that concerns only the source is
/// unchanged, because it already includes the source address.
fn connect_error(peer: SocketAddr, source: Option<SocketAddr>, error: io::Error) -> io::Error {
    match source {
        Some(_) if error.get_ref().is_some() => error,
        None => with_context(format_args!("cannot connect to {peer}"), error),
        Some(source) if source.port() == 0 => {
            with_context(format_args!("cannot connect to {peer} from {}", source.ip()), error)
        }
        Some(source) => with_context(format_args!("cannot connect to {peer} from {source}"), error),
    }
}

/// Listening TCP socket, bound to this thread's runtime.
///
/// ```
/// # anello::example! {
/// use anello::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// let mut server = listener.accept().await?;
/// client.write_all(b"ciao").await?;
/// assert_eq!(server.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
pub type TcpListener = StreamListener<Tcp>;

/// Builder for a [`TcpListener`] with options; see [`TcpListener::builder`].
///
/// Accepted connections inherit the options that also exist on a [`TcpStream`]. An option that is set on the listener
/// instead does not apply to connections that are already in the accept queue.
///
/// ```
/// # anello::example! {
/// use anello::net::TcpListener;
///
/// let listener = TcpListener::builder().backlog(128).reuse_port(true).ttl(32).bind("127.0.0.1:0")?;
/// assert_eq!(listener.ttl()?, 32);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TcpListenerBuilder {
    options: ListenOptions,
    bind_timeout: Duration,
}

impl Default for TcpListenerBuilder {
    fn default() -> Self {
        let options = ListenOptions { backlog: BACKLOG, ..ListenOptions::default() };
        Self { options, bind_timeout: Duration::ZERO }
    }
}

impl TcpListenerBuilder {
    fn with(mut self, option: SocketOption, value: i32) -> Self {
        self.options.options.push((option, value));
        self
    }

    /// Sets the number of connections that the kernel queues until they are accepted. The default is 4096; the kernel
    /// caps the value at `net.core.somaxconn`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::builder().backlog(1).bind("127.0.0.1:0")?;
    /// let _client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert!(listener.accept().await.is_ok());
    /// # }
    /// ```
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.options.backlog = backlog;
        self
    }

    /// Sets `SO_REUSEPORT`: several listeners share the address, and the kernel distributes the connections. The
    /// default is `false`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let one = TcpListener::builder().reuse_port(true).bind("127.0.0.1:0")?;
    /// let other = TcpListener::builder().reuse_port(true).bind(one.local_addr()?)?;
    /// assert_eq!(one.local_addr()?, other.local_addr()?);
    /// # }
    /// ```
    pub fn reuse_port(self, reuse_port: bool) -> Self {
        self.with(SocketOption::ReusePort, reuse_port.into())
    }

    /// Sets whether accepted connections send small messages without delay (`TCP_NODELAY`). The default is `true`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::builder().nodelay(false).bind("127.0.0.1:0")?;
    /// let _client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert!(!listener.accept().await?.nodelay()?);
    /// # }
    /// ```
    pub fn nodelay(self, nodelay: bool) -> Self {
        self.with(SocketOption::NoDelay, nodelay.into())
    }

    /// Sets whether a listener on an IPv6 address accepts only IPv6 connections (`IPV6_V6ONLY`). The default is that of
    /// the system (`net.ipv6.bindv6only`), usually `false`. Binding to an IPv4 address then fails.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::builder().only_v6(true).bind("[::]:0")?;
    /// assert!(listener.only_v6()?);
    /// # }
    /// ```
    pub fn only_v6(self, only_v6: bool) -> Self {
        self.with(SocketOption::OnlyV6, only_v6.into())
    }

    /// Sets the time to live of IPv4 packets (`IP_TTL`).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::builder().ttl(32).bind("127.0.0.1:0")?;
    /// assert_eq!(listener.ttl()?, 32);
    /// # }
    /// ```
    pub fn ttl(self, ttl: u32) -> Self {
        self.with(SocketOption::TimeToLive, saturating(ttl))
    }

    /// Sets the size of the kernel's receive buffers in bytes (`SO_RCVBUF`; the kernel doubles the value). It must be
    /// set before the listener is bound, so that the window scale of connections matches it.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::builder().recv_buffer_size(20_000).bind("127.0.0.1:0")?;
    /// let _client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(listener.accept().await?.recv_buffer_size()?, 40_000);
    /// # }
    /// ```
    pub fn recv_buffer_size(self, bytes: usize) -> Self {
        self.with(SocketOption::ReceiveBufferBytes, saturating(bytes))
    }

    /// Sets the size of the kernel's send buffers in bytes (`SO_SNDBUF`; the kernel doubles the value).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::builder().send_buffer_size(20_000).bind("127.0.0.1:0")?;
    /// let _client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(listener.accept().await?.send_buffer_size()?, 40_000);
    /// # }
    /// ```
    pub fn send_buffer_size(self, bytes: usize) -> Self {
        self.with(SocketOption::SendBufferBytes, saturating(bytes))
    }

    /// Enables keep-alive probes on accepted connections.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::time::Duration;
    /// # use anello::net::{TcpKeepalive, TcpListener, TcpStream};
    /// let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60));
    /// let listener = TcpListener::builder().tcp_keepalive(&keepalive).bind("127.0.0.1:0")?;
    /// let _client = TcpStream::connect(listener.local_addr()?).await?;
    /// let server = listener.accept().await?;
    /// assert!(server.keepalive()?);
    /// assert_eq!(server.tcp_keepalive()?.time(), Some(Duration::from_secs(60)));
    /// # }
    /// ```
    pub fn tcp_keepalive(mut self, keepalive: &TcpKeepalive) -> Self {
        self.options.options.extend(keepalive.to_options());
        self
    }

    /// Sets how long sent data may stay unacknowledged before the kernel resets a connection (`TCP_USER_TIMEOUT`),
    /// rounded up to milliseconds.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::time::Duration;
    /// # use anello::net::{TcpListener, TcpStream};
    /// let timeout = Duration::from_secs(20);
    /// let listener = TcpListener::builder().tcp_user_timeout(timeout).bind("127.0.0.1:0")?;
    /// let _client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(listener.accept().await?.tcp_user_timeout()?, Some(timeout));
    /// # }
    /// ```
    pub fn tcp_user_timeout(self, timeout: Duration) -> Self {
        self.with(SocketOption::UserTimeout, milliseconds(timeout))
    }

    /// Enables TCP Fast Open (`TCP_FASTOPEN`, Linux 3.7): data in the SYN packet is delivered with the connection.
    /// `queue` is the maximum number of connections whose handshake is not complete. The second bit of
    /// `net.ipv4.tcp_fastopen` must be set.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::builder().fastopen(64).bind("127.0.0.1:0")?;
    /// assert_eq!(listener.fastopen()?, 64);
    /// # }
    /// ```
    pub fn fastopen(self, queue: u32) -> Self {
        self.with(SocketOption::FastOpen, saturating(queue))
    }

    /// Accepts only connections that arrive on this network interface, such as `"eth0"` (`SO_BINDTODEVICE`).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let error = TcpListener::builder().bind_device("no-such-device").bind("127.0.0.1:0").unwrap_err();
    /// assert_eq!(anello::net::raw_os_error(&error), Some(19)); // ENODEV
    /// # }
    /// ```
    pub fn bind_device(mut self, interface: impl AsRef<[u8]>) -> Self {
        self.options.device = Some(interface.as_ref().to_vec());
        self
    }

    /// Sets how long [`bind_host`](Self::bind_host) waits for an address that is in use. The default is zero.
    ///
    /// When a process that uses io_uring is killed, the kernel closes its sockets after the exit of the process: usually
    /// within 0.1 s, later on a busy machine. A server that replaces it should wait for a second or two. The address of
    /// a process that shuts its runtime down, or uses epoll, is free when it has exited.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let previous = TcpListener::bind("127.0.0.1:0")?;
    /// let address = previous.local_addr()?;
    /// anello::spawn(async move { drop(previous) }).detach();
    /// let builder = TcpListener::builder().bind_timeout(Duration::from_secs(2));
    /// assert_eq!(builder.bind_host(address).await?.local_addr()?, address);
    /// # }
    /// ```
    pub fn bind_timeout(mut self, timeout: Duration) -> Self {
        self.bind_timeout = timeout;
        self
    }

    /// Binds and listens (`socket(2)`, `bind(2)`, `listen(2)`) with `SO_REUSEADDR`, on the first address that can be
    /// bound. To bind to a host name, or to wait for an address, use [`bind_host`](Self::bind_host), which does not block.
    ///
    /// # Errors
    /// Returns the error of the last address if no address can be bound, for example because it is in use, not
    /// permitted or not local. Returns `InvalidInput` for a host name.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let builder = TcpListener::builder().backlog(64);
    /// let one = builder.bind("127.0.0.1:0")?;
    /// let error = builder.bind(one.local_addr()?).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # }
    /// ```
    #[track_caller]
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        self.bind_to_first(&address.to_host()?.without_resolution()?)
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
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::builder().backlog(64).bind_host("localhost:0").await?;
    /// assert!(listener.local_addr()?.ip().is_loopback());
    /// # }
    /// ```
    pub async fn bind_host(&self, host: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let addresses = host.to_host()?.resolve().await?;
        bind_with_retry(self.bind_timeout, || self.bind_to_first(&addresses)).await
    }

    #[track_caller]
    fn bind_to_first(&self, addresses: &[SocketAddr]) -> io::Result<TcpListener> {
        let shared = current();
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "host has no addresses");
        for &address in addresses {
            let listening = shared.driver.borrow_mut().listen(address, &self.options);
            match listening {
                Ok(key) => return Ok(TcpListener::new(Listener::new(shared, key))),
                Err(error) => failed = with_context(format_args!("cannot bind {address}"), error),
            }
        }
        Err(failed)
    }
}

impl StreamListener<Tcp> {
    /// Binds to an address with the default options, and listens. See [`TcpListenerBuilder::bind`] for errors and
    /// panics.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::bind("[::1]:0")?;
    /// assert!(listener.local_addr()?.is_ipv6());
    /// assert!(TcpListener::bind("localhost:0").is_err(), "needs resolution");
    /// # }
    /// ```
    #[track_caller]
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind(address)
    }

    /// Binds to an address or a host name with the default options, and listens. See [`TcpListenerBuilder::bind_host`]
    /// for errors and panics.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::bind_host("localhost:0").await?;
    /// assert!(listener.local_addr()?.ip().is_loopback());
    /// # }
    /// ```
    pub async fn bind_host(host: impl ToSocketAddrs) -> io::Result<Self> {
        Self::builder().bind_host(host).await
    }

    /// Returns whether a listener on an IPv6 address accepts only IPv6 and no IPv4 connections (`IPV6_V6ONLY`).
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`, for example if the address is an IPv4 address.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::builder().only_v6(true).bind("[::]:0")?;
    /// assert!(listener.only_v6()?);
    /// # }
    /// ```
    pub fn only_v6(&self) -> io::Result<bool> {
        self.is_on(SocketOption::OnlyV6)
    }

    /// Returns the length of the queue of TCP Fast Open requests, which is 0 if the listener does not use it.
    ///
    /// # Errors
    /// Returns the error from `getsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// assert_eq!(listener.fastopen()?, 0);
    /// # }
    /// ```
    pub fn fastopen(&self) -> io::Result<u32> {
        self.unsigned(SocketOption::FastOpen)
    }

    /// Enables TCP Fast Open; see [`TcpListenerBuilder::fastopen`]. A `queue` of 0 disables it.
    ///
    /// # Errors
    /// Returns the error from `setsockopt(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// listener.set_fastopen(64)?;
    /// assert_eq!(listener.fastopen()?, 64);
    /// # }
    /// ```
    pub fn set_fastopen(&self, queue: u32) -> io::Result<()> {
        self.set(SocketOption::FastOpen, saturating(queue))
    }

    /// Returns a builder with the default options.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// let listener = TcpListener::builder().ttl(1).bind("127.0.0.1:0")?;
    /// assert_eq!(listener.ttl()?, 1);
    /// # }
    /// ```
    pub fn builder() -> TcpListenerBuilder {
        TcpListenerBuilder::default()
    }
}
