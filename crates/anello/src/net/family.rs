//! Address families of streams and listeners.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;

use socket2::SockAddr;

use crate::driver::Family;

/// Address family of a stream or listener: [`Tcp`] or [`Unix`]. This trait is sealed.
///
/// ```
/// use anello::io::{AsyncSplit, copy};
/// use anello::net::{StreamFamily, StreamListener, TcpListener, TcpStream};
///
/// /// Echoes to one client, of any family.
/// async fn serve_one<F: StreamFamily>(listener: &StreamListener<F>) -> std::io::Result<u64> {
///     let mut stream = listener.accept().await?;
///     let (mut reader, mut writer) = stream.halves();
///     copy(&mut reader, &mut writer).await
/// }
/// # anello::example! {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// client.write_all(b"ciao").await?;
/// client.shutdown().await?;
/// assert_eq!(serve_one(&listener).await?, 4);
/// # }
/// ```
pub trait StreamFamily: Sealed + fmt::Debug + 'static {
    /// Address type.
    type Address;
    /// Corresponding standard library stream.
    type StdStream: Into<OwnedFd> + From<OwnedFd>;
    /// Corresponding standard library listener.
    type StdListener: Into<OwnedFd> + From<OwnedFd>;
}

/// Supertrait that other crates cannot name, which seals [`StreamFamily`].
pub trait Sealed {
    /// Type names for debug output.
    const STREAM: &'static str;
    const LISTENER: &'static str;
    const FAMILY: Family;

    fn address(address: &SockAddr) -> io::Result<Self::Address>
    where
        Self: StreamFamily;
}

/// Family of [`TcpStream`](super::TcpStream) and [`TcpListener`](super::TcpListener) (`AF_INET`, `AF_INET6`).
///
/// ```
/// # anello::example! {
/// use anello::net::{StreamListener, StreamSocket, Tcp, TcpListener, TcpStream};
///
/// let listener: StreamListener<Tcp> = TcpListener::bind("127.0.0.1:0")?;
/// let stream: StreamSocket<Tcp> = TcpStream::connect(listener.local_addr()?).await?;
/// assert!(stream.nodelay()?);
/// # }
/// ```
#[derive(Debug)]
pub enum Tcp {}

/// Family of [`UnixStream`](super::UnixStream) and [`UnixListener`](super::UnixListener) (`AF_UNIX`).
///
/// ```
/// # anello::example! {
/// use anello::net::{StreamSocket, Unix, UnixStream};
///
/// let (one, _other): (StreamSocket<Unix>, StreamSocket<Unix>) = UnixStream::pair()?;
/// assert_eq!(one.peer_cred()?.pid, Some(std::process::id()));
/// # }
/// ```
#[derive(Debug)]
pub enum Unix {}

impl StreamFamily for Tcp {
    type Address = SocketAddr;
    type StdStream = std::net::TcpStream;
    type StdListener = std::net::TcpListener;
}

impl StreamFamily for Unix {
    type Address = UnixAddress;
    type StdStream = std::os::unix::net::UnixStream;
    type StdListener = std::os::unix::net::UnixListener;
}

impl Sealed for Tcp {
    const STREAM: &'static str = "TcpStream";
    const LISTENER: &'static str = "TcpListener";
    const FAMILY: Family = Family::Internet;

    fn address(address: &SockAddr) -> io::Result<SocketAddr> {
        address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "not an IP socket"))
    }
}

impl Sealed for Unix {
    const STREAM: &'static str = "UnixStream";
    const LISTENER: &'static str = "UnixListener";
    const FAMILY: Family = Family::Unix;

    fn address(address: &SockAddr) -> io::Result<UnixAddress> {
        match (address.as_pathname(), address.as_abstract_namespace()) {
            (Some(path), _) => UnixAddress::from_pathname(path),
            (None, Some(name)) => UnixAddress::from_abstract_name(name),
            // The standard library represents an unnamed address by an empty path.
            (None, None) if address.is_unix() => UnixAddress::from_pathname(""),
            (None, None) => Err(io::Error::new(io::ErrorKind::Unsupported, "not a Unix socket")),
        }
    }
}
