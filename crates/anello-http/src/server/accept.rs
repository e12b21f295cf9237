//! Sources of connections.

use std::future::Future;
use std::io;

use anello::net::{ByteStream, StreamFamily, StreamListener, StreamSocket};
use anello::server::{GroupListener, GroupMember};

/// A source of incoming connections.
///
/// ```
/// use std::cell::RefCell;
/// use std::io;
///
/// use anello::net::UnixStream;
/// use anello_http::server::Accept;
/// use anello_http::{Request, Response, Server};
///
/// /// Returns a fixed list of connections.
/// struct Connections(RefCell<Vec<UnixStream>>);
///
/// impl Accept for Connections {
///     type Connection = UnixStream;
///
///     async fn accept(&self) -> io::Result<Option<UnixStream>> {
///         Ok(self.0.borrow_mut().pop())
///     }
/// }
///
/// # anello::example! {
/// let (stream, mut client) = UnixStream::pair()?;
/// let connections = Connections(RefCell::new(vec![stream]));
/// Server::builder().build().serve(connections, async |_: Request| Response::text("ciao")).await?;
/// client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// assert!(client.recv().await?.expect("the server responds").ends_with(b"\r\n\r\nciao"));
/// # }
/// ```
pub trait Accept: 'static {
    /// The type of an accepted connection.
    type Connection: ByteStream;

    /// Waits for the next connection. Returns `None` if no more connections will arrive. Implementations must be
    /// cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    /// use anello_http::server::Accept;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// let stream = Accept::accept(&listener).await?.expect("a listener does not end");
    /// assert_eq!(stream.peer_addr()?, client.local_addr()?);
    /// # }
    /// ```
    fn accept(&self) -> impl Future<Output = io::Result<Option<Self::Connection>>>;

    /// Allows or forbids accepting connections before [`accept`](Self::accept) is called. Each such connection holds a
    /// file descriptor, so a server that is close to its limits forbids accepting ahead. The default implementation
    /// does nothing.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    /// use anello_http::server::Accept;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// // The process is close to its limit of descriptors.
    /// Accept::set_accept_ahead(&listener, false);
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert!(Accept::accept(&listener).await?.is_some());
    /// # drop(client);
    /// # }
    /// ```
    fn set_accept_ahead(&self, _accepts_ahead: bool) {}
}

impl<F: StreamFamily> Accept for StreamListener<F> {
    type Connection = StreamSocket<F>;

    async fn accept(&self) -> io::Result<Option<StreamSocket<F>>> {
        Self::accept(self).await.map(Some)
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}

impl<L: GroupListener> Accept for GroupMember<L> {
    type Connection = L::Stream;

    async fn accept(&self) -> io::Result<Option<L::Stream>> {
        Self::accept(self).await
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}
