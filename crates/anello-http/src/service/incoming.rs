//! The request body as an `http_body::Body`.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use send_wrapper::SendWrapper;

use crate::h1::{RequestFraming, Trailers};
use crate::message::{Peer, RequestBody, RequestBodyError};

/// The body of an `http::Request`, received on demand: a [`RequestBody`](crate::RequestBody) with the same limits,
/// timeouts and errors.
///
/// It is `Send`, as axum requires. It can only be read on the thread of its connection; on any other thread, reads fail
/// with [`RequestBodyError::Io`] (`Unsupported`). If it is dropped there, a small part of the connection's memory is not
/// freed. The default value is an empty body.
///
/// ```
/// # anello::example! {
/// use anello_http::Server;
/// use anello_http::service::{self, Incoming};
/// use http_body::Body;
/// use http_body_util::BodyExt;
///
#[doc = listener!()]
/// let handler = service::from_fn(async |request: http::Request<Incoming>| {
///     let body = request.into_body();
///     assert_eq!(body.size_hint().exact(), Some(4));
///     match body.collect().await {
///         Ok(body) => http::Response::new(axum::body::Body::from(body.to_bytes())),
///         Err(_) => http::Response::default(),
///     }
/// });
/// Server::builder().build().serve(listener, handler).detach();
/// let response = exchange("POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nciao").await?;
/// assert!(response.ends_with("\r\n\r\nciao"));
/// # }
/// ```
#[derive(Debug)]
pub struct Incoming {
    /// `None` if this is not the body of a received request.
    local: Option<SendWrapper<Local>>,
    /// Number of bytes not yet read, or `None` if it is unknown.
    left: Option<u64>,
}

/// The state that can only be used on the thread of the connection.
#[derive(Debug)]
struct Local {
    /// The default value if there is no body, and after its end.
    body: RequestBody,
    peer: Rc<Peer>,
}

impl Incoming {
    #[inline]
    pub(super) fn new(body: RequestBody, peer: Rc<Peer>, framing: RequestFraming) -> Self {
        let left = match framing {
            RequestFraming::None => Some(0),
            RequestFraming::Length(bytes) => Some(bytes),
            RequestFraming::Chunked => None,
        };
        Self { local: Some(SendWrapper::new(Local { body, peer })), left }
    }

    /// Returns the address of the client, like [`Request::peer`](crate::Request::peer). Returns `None` on any thread
    /// other than that of the connection.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::Server;
    /// use anello_http::service::{self, Incoming};
    ///
    #[doc = listener!()]
    /// let handler = service::from_fn(async |request: http::Request<Incoming>| {
    ///     let address = request.body().peer_addr().map(|address| address.ip().to_string());
    ///     http::Response::new(address.unwrap_or_default())
    /// });
    /// Server::builder().build().serve(listener, handler).detach();
    /// assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\n127.0.0.1"));
    /// # }
    /// ```
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.local.as_ref().filter(|local| local.valid())?.peer.address()
    }

    fn end(&mut self) {
        self.left = Some(0);
        if let Some(local) = &mut self.local {
            local.body = RequestBody::default();
        }
    }
}

impl Default for Incoming {
    fn default() -> Self {
        Self { local: None, left: Some(0) }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let Some(local) = &mut self.local else { return Poll::Ready(None) };
        if !local.valid() {
            let message = "the request body can only be read on the thread of its connection";
            let error = io::Error::new(io::ErrorKind::Unsupported, message);
            return Poll::Ready(Some(Err(RequestBodyError::Io(error))));
        }
        match ready!(local.body.poll_next(context)) {
            Ok(Some(data)) => {
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Ok(None) => {
                let trailers = local.body.trailers();
                self.end();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(header_map(&trailers)))))
            }
            Err(error) => {
                self.end();
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Incoming {
    #[inline]
    fn drop(&mut self) {
        if let Some(local) = self.local.take()
            && !local.valid()
        {
            // A `SendWrapper` panics if it is dropped on another thread.
            std::mem::forget(local);
        }
    }
}

fn header_map(trailers: &Trailers) -> HeaderMap {
    // The decoder has checked the names and values.
    let field = |(name, value): (&str, &[u8])| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in trailers.fields().filter_map(field) {
        headers.append(name, value);
    }
    headers
}
