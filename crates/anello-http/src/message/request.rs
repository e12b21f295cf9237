//! Requests and their bodies, as handlers receive them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use anello::net::ShutdownHandle;
use bytes::Bytes;

use crate::h1::{Head, Rejection, Trailers};

/// A request: its head, and its body, which is received on demand.
#[derive(Debug)]
pub struct Request {
    /// `Some` until the request is split into its parts or dropped.
    head: Option<Head>,
    body: RequestBody,
    connection: ShutdownHandle,
}

impl Request {
    pub(crate) fn new(head: Head, body: RequestBody, connection: ShutdownHandle) -> Self {
        Self { head: Some(head), body, connection }
    }

    /// Returns the request head.
    #[inline]
    pub fn head(&self) -> &Head {
        let Some(head) = &self.head else { unreachable!("the head is taken only by into_parts and drop") };
        head
    }

    /// Returns the body for reading.
    pub fn body(&mut self) -> &mut RequestBody {
        &mut self.body
    }

    /// Returns the address of the client (`getpeername(2)`), or `None` if the connection uses a Unix socket or the
    /// client has disconnected.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.connection.peer_addr().ok()
    }

    /// Splits the request into its head and its body.
    #[must_use]
    pub fn into_parts(mut self) -> (Head, RequestBody) {
        (self.head.take().unwrap_or_default(), std::mem::take(&mut self.body))
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
    SPARE_HEADS.with_borrow_mut(Vec::pop)
}

pub(crate) trait BodySource {
    /// Returns the number of the request whose body the source is currently reading.
    fn body_number(&self) -> u64;
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>>;
    /// Pauses the body timeout, because no task is waiting for a chunk.
    fn pause(&self);
    fn take_trailers(&mut self) -> Option<Trailers>;
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
    /// # Errors
    /// Returns [`RequestBodyError::Rejected`] if the body is malformed, exceeds a limit or arrives too slowly, and
    /// [`RequestBodyError::Io`] if the connection fails or is closed. No more data follows an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestBodyError> {
        let guard = PauseOnDrop(self);
        poll_fn(|context| guard.0.poll_next(context)).await
    }

    /// Polls for the next chunk, like [`next`](Self::next). After a call has returned `Pending`, the body timeout runs
    /// until a later call returns `Ready` or the body is dropped.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        if self.source.is_none() {
            return Poll::Ready(Ok(None));
        }
        // The body has outlived its response or its connection: the connection is serving a later request or is closed.
        let kept = || Poll::Ready(Err(RequestBodyError::Io(std::io::ErrorKind::NotConnected.into())));
        self.with_source(|source| source.poll_chunk(context)).unwrap_or_else(kept)
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
    pub async fn collect(&mut self) -> Result<Vec<u8>, RequestBodyError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.next().await? {
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Takes the trailers, which are available after [`next`](Self::next) has returned `None`.
    pub fn trailers(&mut self) -> Option<Trailers> {
        self.with_source(|source| source.take_trailers()).flatten()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.pause();
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
