//! Requests and their bodies, as handlers receive them.

use std::cell::{OnceCell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use anello::net::ShutdownHandle;
use bytes::Bytes;

use crate::h1::{Head, Rejection, Trailers};

/// A request: its head, and its body, which is received on demand.
///
/// ```
/// # anello::example! {
/// use anello_http::{Request, Response, Server};
///
#[doc = listener!()]
/// let handler = async |request: Request| {
///     Response::text(format!("{} {}\n", request.method_text(), request.path()))
/// };
/// Server::builder().build().serve(listener, handler).detach();
/// assert!(exchange("GET /hello HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\nGET /hello\n"));
/// # }
/// ```
#[derive(Debug)]
pub struct Request {
    /// `Some` until the request is split into its parts or dropped.
    head: Option<Head>,
    body: RequestBody,
    peer: Rc<Peer>,
}

/// The peer of a connection. Its address is determined once, when a handler first asks for it or, with an access log, when
/// the connection has been accepted.
#[derive(Debug)]
pub(crate) struct Peer {
    connection: ShutdownHandle,
    address: OnceCell<Option<SocketAddr>>,
}

impl Peer {
    pub fn new(connection: ShutdownHandle) -> Rc<Self> {
        Rc::new(Self { connection, address: OnceCell::new() })
    }

    /// Creates the peer of a connection through a proxy that has reported this address.
    pub fn with_address(connection: ShutdownHandle, address: SocketAddr) -> Rc<Self> {
        Rc::new(Self { connection, address: OnceCell::from(Some(address)) })
    }

    /// Returns whether the address has been determined.
    pub fn is_known(&self) -> bool {
        self.address.get().is_some()
    }

    #[inline]
    pub fn address(&self) -> Option<SocketAddr> {
        *self.address.get_or_init(|| self.connection.peer_addr().ok())
    }
}

impl Request {
    pub(crate) fn new(head: Head, body: RequestBody, peer: Rc<Peer>) -> Self {
        Self { head: Some(head), body, peer }
    }

    /// Returns the request head.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |request: Request| Response::text(request.head().target().to_owned());
    /// Server::builder().build().serve(listener, handler).detach();
    /// assert!(exchange("GET /search?q=ciao HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\n/search?q=ciao"));
    /// # }
    /// ```
    #[inline]
    pub fn head(&self) -> &Head {
        let Some(head) = &self.head else { unreachable!("the head is taken only by into_parts and drop") };
        head
    }

    /// Returns the body for reading.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |mut request: Request| match request.body().collect().await {
    ///     Ok(body) => Response::text(body),
    ///     Err(_) => Response::new(400),
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nciao").await?;
    /// assert!(response.ends_with("\r\n\r\nciao"));
    /// # }
    /// ```
    pub fn body(&mut self) -> &mut RequestBody {
        &mut self.body
    }

    /// Returns the address of the client (`getpeername(2)`), or `None` if the connection uses a Unix socket or the
    /// client had already disconnected when a handler of this connection first called this method. With the PROXY
    /// protocol ([`ServerOptions::proxy_header`](crate::ServerOptions::proxy_header)), returns the address that the proxy
    /// has reported.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |request: Request| match request.peer() {
    ///     Some(peer) if peer.ip().is_loopback() => Response::text("welcome"),
    ///     _ => Response::new(403),
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\nwelcome"));
    /// # }
    /// ```
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer.address()
    }

    /// Splits the request into its head and its body.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |request: Request| {
    ///     let (head, mut body) = request.into_parts();
    ///     let length = body.collect().await.map_or(0, |body| body.len());
    ///     Response::text(format!("{} received {length} bytes", head.path()))
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("POST /upload HTTP/1.0\r\nContent-Length: 4\r\n\r\nciao").await?;
    /// assert!(response.ends_with("/upload received 4 bytes"));
    /// # }
    /// ```
    #[must_use]
    pub fn into_parts(mut self) -> (Head, RequestBody) {
        (self.head.take().unwrap_or_default(), std::mem::take(&mut self.body))
    }
}

impl Request {
    pub(crate) fn head_mut(&mut self) -> &mut Head {
        let Some(head) = &mut self.head else {
            unreachable!("the head is taken only by into_parts and drop")
        };
        head
    }

    /// Takes the body and the peer. The head is reused when the request is dropped.
    pub(crate) fn take_body(&mut self) -> (RequestBody, Rc<Peer>) {
        (std::mem::take(&mut self.body), Rc::clone(&self.peer))
    }
}

impl Deref for Request {
    type Target = Head;

    #[inline]
    fn deref(&self) -> &Head {
        self.head()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(head) = self.head.take() else { return };
        let stored = SPARE_HEADS.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MAX_SPARE_HEADS {
                spare.push(head);
            }
        });
        // If the request is dropped while thread-local values are being destroyed, its head is dropped rather than
        // stored.
        stored.ok();
    }
}

/// Maximum number of unused heads kept by a thread. Its connections reuse the memory of these heads.
const MAX_SPARE_HEADS: usize = 16;

thread_local! {
    static SPARE_HEADS: RefCell<Vec<Head>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn spare_head() -> Option<Head> {
    SPARE_HEADS.try_with(|spare| spare.borrow_mut().pop()).ok().flatten()
}

pub(crate) trait BodySource {
    /// Returns the number of the request whose body the source is currently reading.
    fn body_number(&self) -> u64;
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>>;
    /// Pauses the body timeout, because no task is waiting for a chunk.
    fn pause(&self);
    fn take_trailers(&mut self) -> Option<Trailers>;
    /// Called when the body is dropped.
    fn release(&mut self) {
        self.pause();
    }
}

/// The body of a request. It is read by the handler, or by the stream that the handler returns as its response body. In
/// the second case, both bodies are transferred at the same time. A stream that will not read the request body for a
/// long time should drop it: some clients send the complete body before they read the response.
///
/// A body that is kept after a non-streaming response, or after the connection has been closed, can no longer be read:
/// reads fail with [`RequestBodyError::Io`] (`NotConnected`), and a pending read fails immediately.
///
/// If the handler does not read the complete body, the server reads and discards the rest if it is short, and otherwise
/// closes the connection after the response.
///
/// ```
/// # anello::example! {
/// use anello_http::{Body, Request, Response, Server};
///
#[doc = listener!()]
/// // Sends the body back while it arrives.
/// let handler = async |request: Request| {
///     let (_, body) = request.into_parts();
///     Response::new(200).with_body(Body::stream(futures_util::stream::unfold(body, async |mut body| {
///         let chunk = body.next().await.map_err(std::io::Error::other).transpose()?;
///         Some((chunk, body))
///     })))
/// };
/// Server::builder().build().serve(listener, handler).detach();
/// let response = exchange("POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nciao").await?;
/// assert!(response.ends_with("\r\n\r\nciao"));
/// # }
/// ```
#[derive(Debug, Default)]
pub struct RequestBody {
    /// A weak reference, so that a retained body does not keep the connection open.
    source: Option<Weak<RefCell<dyn BodySource>>>,
    body_number: u64,
}

impl RequestBody {
    pub(crate) fn new(source: Rc<RefCell<dyn BodySource>>) -> Self {
        let body_number = source.borrow().body_number();
        Self { source: Some(Rc::downgrade(&source)), body_number }
    }

    /// Waits for the next chunk. Returns `None` at the end of the body.
    ///
    /// The first call sends `100 Continue` to a client that is waiting for it (`Expect: 100-continue`). Cancel-safe: no
    /// data is lost.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |mut request: Request| {
    ///     let mut sum = 0;
    ///     while let Ok(Some(chunk)) = request.body().next().await {
    ///         sum += chunk.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    ///     }
    ///     Response::text(sum.to_string())
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n00").await?;
    /// assert!(response.ends_with("\r\n\r\n96"));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`RequestBodyError::Rejected`] if the body is malformed, exceeds a limit or arrives too slowly, and
    /// [`RequestBodyError::Io`] if the connection fails or is closed. No more data follows an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestBodyError> {
        let guard = PauseOnDrop(self);
        poll_fn(|context| guard.0.poll_next(context)).await
    }

    /// Polls for the next chunk, like [`next`](Self::next). After a call has returned `Pending`, the body timeout runs
    /// until a later call returns `Ready` or the body is dropped.
    ///
    /// ```
    /// # anello::example! {
    /// use std::future::poll_fn;
    ///
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |mut request: Request| {
    ///     match poll_fn(|context| request.body().poll_next(context)).await {
    ///         Ok(Some(chunk)) => Response::text(chunk.to_vec()),
    ///         Ok(None) => Response::text("no body"),
    ///         Err(_) => Response::new(400),
    ///     }
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\nno body"));
    /// # }
    /// ```
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        if self.source.is_none() {
            return Poll::Ready(Ok(None));
        }
        let ended = || Poll::Ready(Err(RequestBodyError::ended()));
        self.with_source(|source| source.poll_chunk(context)).unwrap_or_else(ended)
    }

    /// Calls `action` if the connection is still receiving this body.
    fn with_source<T>(&self, action: impl FnOnce(&mut dyn BodySource) -> T) -> Option<T> {
        let source = self.source.as_ref()?.upgrade()?;
        let mut source = source.try_borrow_mut().ok()?;
        (source.body_number() == self.body_number).then(|| action(&mut *source))
    }

    /// Pauses the body timeout: time that the handler spends on other work does not count against the client.
    fn pause(&self) {
        self.with_source(|source| source.pause());
    }

    /// Reads the whole body. [`Limits::max_body_bytes`](crate::h1::Limits::max_body_bytes) limits its length.
    /// Returns the same errors as [`next`](Self::next). Not cancel-safe: the data read so far is lost.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, RequestBodyError, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |mut request: Request| match request.body().collect().await {
    ///     Ok(body) => Response::text(format!("{} bytes", body.len())),
    ///     Err(RequestBodyError::Rejected(rejection)) => Response::new(rejection.status),
    ///     Err(_) => Response::new(400),
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let response = exchange("POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nciao").await?;
    /// assert!(response.ends_with("\r\n\r\n4 bytes"));
    /// # }
    /// ```
    pub async fn collect(&mut self) -> Result<Vec<u8>, RequestBodyError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.next().await? {
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Takes the trailers, which are available after [`next`](Self::next) has returned `None`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let handler = async |mut request: Request| {
    ///     while let Ok(Some(_)) = request.body().next().await {}
    ///     let trailers = request.body().trailers().unwrap_or_default();
    ///     Response::text(trailers.field("Checksum").unwrap_or_default().to_vec())
    /// };
    /// Server::builder().build().serve(listener, handler).detach();
    /// let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    /// let response = exchange(&format!("{head}4\r\nciao\r\n0\r\nChecksum: 17\r\n\r\n")).await?;
    /// assert!(response.ends_with("\r\n\r\n17"));
    /// # }
    /// ```
    pub fn trailers(&mut self) -> Option<Trailers> {
        self.with_source(|source| source.take_trailers()).flatten()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.with_source(|source| source.release());
    }
}

struct PauseOnDrop<'a>(&'a mut RequestBody);

impl Drop for PauseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.pause();
    }
}

/// The reason why a request body cannot be read. After [`Rejected`](Self::Rejected), the handler's response may still
/// reach the client; after [`Io`](Self::Io), it is not sent.
///
/// ```
/// # anello::example! {
/// use anello_http::{Request, RequestBodyError, Response, Server};
///
#[doc = listener!()]
/// let handler = async |mut request: Request| match request.body().collect().await {
///     Err(RequestBodyError::Rejected(rejection)) => Response::new(rejection.status),
///     _ => Response::new(200),
/// };
/// Server::builder().build().serve(listener, handler).detach();
/// let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
/// let response = exchange(&format!("{head}not a chunk size\r\n")).await?;
/// assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"));
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestBodyError {
    /// The body is malformed, too large or too slow. Contains the rejection with which the server itself would respond.
    #[error("{0}")]
    Rejected(Rejection),
    /// The connection failed or was closed before the end of the body.
    #[error("connection closed while reading the request body: {0}")]
    Io(std::io::Error),
}

impl RequestBodyError {
    /// The body has outlived its response or its connection: the connection serves a later request or is closed.
    #[cold]
    pub(crate) fn ended() -> Self {
        Self::Io(std::io::ErrorKind::NotConnected.into())
    }
}
