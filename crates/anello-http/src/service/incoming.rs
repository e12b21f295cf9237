//! The request body as an `http_body::Body`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use send_wrapper::SendWrapper;

use crate::h1::{RequestFraming, Trailers};
use crate::message::{RequestBody, RequestBodyError};

/// The body of an `http::Request`, received on demand: a [`RequestBody`](crate::RequestBody) with the same limits,
/// timeouts and errors.
///
/// It is `Send`, as axum requires. It can only be read on the thread of its connection; on any other thread, reads fail
/// with [`RequestBodyError::Io`] (`Unsupported`). If it is dropped there, a small part of the connection's memory is not
/// freed. The default value is an empty body.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
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
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Incoming {
    /// `None` if there is no body, and after its end.
    body: Option<SendWrapper<RequestBody>>,
    /// Number of bytes not yet read, or `None` if it is unknown.
    left: Option<u64>,
}

impl Incoming {
    pub(super) fn new(body: RequestBody, framing: RequestFraming) -> Self {
        if !body.is_present() {
            return Self { body: None, left: Some(0) };
        }
        let left = if let RequestFraming::Length(bytes) = framing { Some(bytes) } else { None };
        Self { body: Some(SendWrapper::new(body)), left }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if !body.valid() {
            let message = "the request body can only be read on the thread of its connection";
            let error = io::Error::new(io::ErrorKind::Unsupported, message);
            return Poll::Ready(Some(Err(RequestBodyError::Io(error))));
        }
        match ready!(body.poll_next(context)) {
            Ok(Some(data)) => {
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Ok(None) => {
                let trailers = body.trailers();
                *self = Self { body: None, left: Some(0) };
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(header_map(&trailers)))))
            }
            Err(error) => {
                *self = Self { body: None, left: Some(0) };
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none() || self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.body.is_none() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && !body.valid()
        {
            // A `SendWrapper` panics if it is dropped on another thread.
            std::mem::forget(body);
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
