//! What a handler is asked.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::h1::{Head, Rejection, Trailers};
use crate::server::ConnectionTimer;

/// A request: its head, and its body as it comes.
pub struct Request {
    /// There until the request is taken apart or dropped.
    head: Option<Head>,
    body: RequestBody,
    connection: Rc<ConnectionTimer>,
}

impl Request {
    pub(crate) fn new(head: Head, body: RequestBody, connection: Rc<ConnectionTimer>) -> Self {
        Self { head: Some(head), body, connection }
    }

    /// The head.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &Head {
        let Some(head) = &self.head else { unreachable!("a request has its head until its end") };
        head
    }

    /// The body, to be read.
    pub fn body(&mut self) -> &mut RequestBody {
        &mut self.body
    }

    /// The address of the client (`getpeername(2)`); none of a client on a Unix socket, or that is gone.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.connection.peer()
    }

    /// Both parts.
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
        let kept = SPARE_HEADS.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MAX_SPARE_HEADS {
                spare.push(head);
            }
        });
        // A request may be dropped with the last variables of its thread; then its head is, too.
        kept.ok();
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Request").field("head", &self.head).finish_non_exhaustive()
    }
}

/// Heads whose memory waits for the next requests of this thread, whichever connection they come from.
const MAX_SPARE_HEADS: usize = 16;

thread_local! {
    static SPARE_HEADS: RefCell<Vec<Head>> = const { RefCell::new(Vec::new()) };
}

/// A head that was used before, if there is one.
pub(crate) fn spare_head() -> Option<Head> {
    SPARE_HEADS.with_borrow_mut(Vec::pop)
}

/// Where the pieces of a body come from.
pub(crate) trait BodySource {
    /// The number of the request whose body this is now.
    fn body_number(&self) -> u64;
    /// The next piece; `None` at the end of the body.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>>;
    /// Nobody waits for a piece any more.
    fn pause(&self);
    /// What came behind the body.
    fn take_trailers(&mut self) -> Option<Trailers>;
}

/// The body of a request, to be read by the handler, or by a stream that it answers with: then both bodies are under way at
/// once, and who reads none of it for long had better drop it, since clients may send all of theirs before they read. Kept
/// beyond an answer of another kind, or beyond the connection, it has no more
/// ([`RequestBodyError::Io`], `NotConnected`), which a task that waits for some is told at once. What of it is not read
/// is read and dropped by the server, if it is little; else the connection is closed behind the answer.
#[derive(Default)]
pub struct RequestBody {
    /// The connection's, which a body that somebody keeps does not hold open.
    source: Option<Weak<RefCell<dyn BodySource>>>,
    body_number: u64,
}

impl RequestBody {
    pub(crate) fn new(source: Rc<RefCell<dyn BodySource>>) -> Self {
        let body_number = source.borrow().body_number();
        Self { source: Some(Rc::downgrade(&source)), body_number }
    }

    /// Waits for the next piece; `None` when all have come. A client that waits to be asked for its body
    /// (`Expect: 100-continue`) is asked by the first call. Cancel-safe.
    ///
    /// # Errors
    /// When the body is malformed, larger than the limit, or too slow, or the connection has broken; no more comes then.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestBodyError> {
        let guard = PauseOnDrop(self);
        poll_fn(|context| guard.0.poll_next(context)).await
    }

    /// As [`next`](Self::next). Once this has been pending, the client's time runs until it is ready or the body is dropped.
    ///
    /// # Errors
    /// As there.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        let Some(source) = &self.source else { return Poll::Ready(Ok(None)) };
        if let Some(source) = source.upgrade()
            && let Ok(mut source) = source.try_borrow_mut()
            && source.body_number() == self.body_number
        {
            return source.poll_chunk(context);
        }
        // Kept beyond the answer, or the connection: that has gone on, or is gone.
        Poll::Ready(Err(RequestBodyError::Io(std::io::ErrorKind::NotConnected.into())))
    }

    /// The handler does something else: what that takes is not the client's time.
    fn pause(&self) {
        if let Some(source) = &self.source
            && let Some(source) = source.upgrade()
            && let Ok(source) = source.try_borrow()
            && source.body_number() == self.body_number
        {
            source.pause();
        }
    }

    /// Reads all of it. The limit of the server bounds it ([`Limits::body_bytes`](crate::h1::Limits::max_body_bytes)). Not
    /// cancel-safe: what was read is lost.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn collect(&mut self) -> Result<Vec<u8>, RequestBodyError> {
        let mut whole = Vec::new();
        while let Some(chunk) = self.next().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    }

    /// The trailers, once [`next`](Self::next) has said that the body is over.
    pub fn trailers(&mut self) -> Option<Trailers> {
        let source = self.source.as_ref()?.upgrade()?;
        let mut source = source.try_borrow_mut().ok()?;
        if source.body_number() == self.body_number { source.take_trailers() } else { None }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.pause();
    }
}

/// A body whose next piece is waited for, until this is dropped: when that has come, or nobody wants it any more.
struct PauseOnDrop<'a>(&'a mut RequestBody);

impl Drop for PauseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.pause();
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RequestBody").field("has_source", &self.source.is_some()).finish()
    }
}

/// Why no more of a body comes. What is answered does not matter then, but for [`Rejected`](Self::Rejected), which may still
/// reach the client.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestBodyError {
    /// The body is malformed, too large or too slow; this is what the server would answer.
    Rejected(Rejection),
    /// The connection has broken, or ended before the body did.
    Io(std::io::Error),
}

impl fmt::Display for RequestBodyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(refusal) => refusal.fmt(formatter),
            Self::Io(error) => write!(formatter, "the connection ended within a request's body: {error}"),
        }
    }
}

impl std::error::Error for RequestBodyError {}
