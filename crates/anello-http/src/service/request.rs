//! Conversion of requests.

use std::net::SocketAddr;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};

use super::incoming::Incoming;
use crate::h1::{self, Head, TargetForm};
use crate::message::{Request, Response};

/// The address of the client, as an extension of requests. Requests on Unix sockets do not have it.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use anello_http::service::PeerAddr;
/// use axum::routing::get;
/// use axum::{Extension, Router};
///
#[doc = listener!()]
/// let client = async |Extension(PeerAddr(address)): Extension<PeerAddr>| address.ip().to_string();
/// anello_http::serve(listener, Router::new().route("/", get(client))).detach();
/// assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\n127.0.0.1"));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// For handlers that use axum's `ConnectInfo<SocketAddr>`, a layer can insert it (feature `tokio` of axum):
///
/// ```
/// use anello_http::service::PeerAddr;
/// use axum::Router;
/// use axum::extract::{ConnectInfo, Request};
/// use axum::middleware::map_request;
///
/// # let app: Router = Router::new();
/// let app = app.layer(map_request(async |mut request: Request| {
///     if let Some(&PeerAddr(address)) = request.extensions().get() {
///         request.extensions_mut().insert(ConnectInfo(address));
///     }
///     request
/// }));
/// # let _ = app;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Converts a request. Returns an error response if the crate `http` does not accept it.
#[inline]
pub(super) fn convert(request: Request) -> Result<http::Request<Incoming>, Response> {
    let peer = request.peer();
    let framing = request.framing();
    let mut converted = http::Request::new(Incoming::default());
    // One allocation for all values. The head itself is returned to its decoder.
    let bytes = Bytes::copy_from_slice(request.bytes());
    *converted.method_mut() = method(&request)?;
    *converted.uri_mut() = uri(&request, &bytes)?;
    *converted.version_mut() = match request.version() {
        h1::Version::Http10 => Version::HTTP_10,
        h1::Version::Http11 => Version::HTTP_11,
        h1::Version::Http2 => Version::HTTP_2,
    };
    *converted.headers_mut() = headers(&request, &bytes)?;
    if let Some(address) = peer {
        converted.extensions_mut().insert(PeerAddr(address));
    }
    let (_, body) = request.into_parts();
    *converted.body_mut() = Incoming::new(body, framing);
    Ok(converted)
}

fn method(head: &Head) -> Result<http::Method, Response> {
    Ok(match head.method() {
        h1::Method::Get => http::Method::GET,
        h1::Method::Head => http::Method::HEAD,
        h1::Method::Post => http::Method::POST,
        h1::Method::Put => http::Method::PUT,
        h1::Method::Delete => http::Method::DELETE,
        h1::Method::Options => http::Method::OPTIONS,
        h1::Method::Patch => http::Method::PATCH,
        h1::Method::Trace => http::Method::TRACE,
        h1::Method::Connect => http::Method::CONNECT,
        h1::Method::Other => {
            http::Method::from_bytes(head.method_text().as_bytes()).map_err(|_| bad_request())?
        }
    })
}

fn uri(head: &Head, bytes: &Bytes) -> Result<Uri, Response> {
    let range = head.target_range();
    if range.len() == 1 && head.target_form() == TargetForm::Origin {
        return Ok(Uri::from(PathAndQuery::from_static("/")));
    }
    Uri::from_maybe_shared(bytes.slice(range)).map_err(|_| bad_request())
}

fn headers(head: &Head, bytes: &Bytes) -> Result<HeaderMap, Response> {
    let mut headers = HeaderMap::with_capacity(head.field_count());
    for (name, value) in head.field_ranges() {
        let name = HeaderName::from_bytes(&bytes[name]).map_err(|_| bad_request())?;
        let value = HeaderValue::from_maybe_shared(bytes.slice(value)).map_err(|_| bad_request())?;
        headers.try_append(name, value).map_err(|_| bad_request())?;
    }
    Ok(headers)
}

#[cold]
fn bad_request() -> Response {
    Response::text("400 Bad Request: unsupported request target or header field\n").with_status(400)
}
