//! Conversion of requests.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use http::Version;
use tower_service::Service;

use super::incoming::Incoming;
use super::router;
use crate::h1::{self, Head};
use crate::message::{Request, Response};

/// The address of the client, as an extension of requests; see [`with_peer_addr`].
///
/// ```
/// use anello_http::service::PeerAddr;
///
/// let address = PeerAddr(([127, 0, 0, 1], 3000).into());
/// assert!(address.0.ip().is_loopback());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Wraps a service so that its requests have an extension with the address of the client. `extension` makes it from the
/// address, and is usually [`PeerAddr`] or axum's `ConnectInfo` (feature `tokio` of axum).
///
/// Requests on Unix sockets, and on connections that the client has closed, do not get the extension. Services
/// that receive an [`Incoming`] can also call [`Incoming::peer_addr`].
///
/// ```
/// # anello::example! {
/// use std::net::SocketAddr;
///
/// use anello_http::service;
/// use axum::Router;
/// use axum::extract::ConnectInfo;
/// use axum::routing::get;
///
#[doc = listener!()]
/// let client = async |ConnectInfo(address): ConnectInfo<SocketAddr>| address.ip().to_string();
/// let app = Router::new().route("/", get(client));
/// anello_http::serve(listener, service::with_peer_addr(app, ConnectInfo)).detach();
/// assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\n127.0.0.1"));
/// # }
/// ```
///
/// # Panics
/// Panics if the service is a [router](super#routers-of-axum) that cannot be built.
pub fn with_peer_addr<S, T>(
    service: S,
    extension: impl Fn(SocketAddr) -> T + Clone + 'static,
) -> impl Service<http::Request<Incoming>, Response = S::Response, Error = S::Error, Future = S::Future>
+ Clone
+ 'static
where
    S: Service<http::Request<Incoming>> + Clone + 'static,
    T: Clone + Send + Sync + 'static,
{
    WithPeerAddr { service: router::build(service), extension }
}

#[derive(Clone)]
struct WithPeerAddr<S, F> {
    service: S,
    extension: F,
}

impl<S, F, T> Service<http::Request<Incoming>> for WithPeerAddr<S, F>
where
    S: Service<http::Request<Incoming>>,
    F: Fn(SocketAddr) -> T,
    T: Clone + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Incoming>) -> S::Future {
        if let Some(address) = request.body().peer_addr() {
            request.extensions_mut().insert((self.extension)(address));
        }
        self.service.call(request)
    }
}

/// Converts a request. Returns an error response if the crate `http` does not accept it.
#[inline]
pub(super) fn convert(mut request: Request) -> Result<http::Request<Incoming>, Response> {
    let (body, peer) = request.take_body();
    let mut converted = http::Request::new(Incoming::new(body, peer, request.framing()));
    *converted.method_mut() = method(&request)?;
    *converted.uri_mut() = request.head_mut().uri().ok_or_else(bad_request)?;
    *converted.version_mut() = match request.version() {
        h1::Version::Http10 => Version::HTTP_10,
        h1::Version::Http11 => Version::HTTP_11,
        h1::Version::Http2 => Version::HTTP_2,
    };
    *converted.headers_mut() = request.head_mut().header_map().ok_or_else(bad_request)?;
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

#[cold]
fn bad_request() -> Response {
    Response::text("400 Bad Request: unsupported request target or header field\n").with_status(400)
}
