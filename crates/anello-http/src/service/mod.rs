//! Services on the types of the crate `http`: axum applications, and every `tower::Service` with its layers.
//!
//! [`serve()`] is the short form, with default options. [`handler`] turns a service into a handler for
//! [`Server::serve`](crate::Server::serve), with which limits, timeouts, TLS, metrics, the access log and graceful
//! shutdown work as for every other handler. [`from_fn`] does the same for an async function from `http::Request` to
//! `http::Response`.
//!
//! ```
//! # anello::example! {
//! use anello_http::{Server, service};
//! use axum::Router;
//! use axum::routing::get;
//!
#![doc = listener!()]
//! let app = Router::new().route("/", get(async || "ciao"));
//! Server::builder().build().serve(listener, service::handler(app)).detach();
//! assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\nciao"));
//! # }
//! ```
//!
//! # Routers of axum
//!
//! The feature `axum` is required: with it, [`serve()`], [`handler`] and [`with_peer_addr`] build a router once with
//! `Router::with_state`, as `axum::serve` does. They panic if the service is a router that they cannot build: one without
//! the feature, of another version of axum than 0.8, or converted by `Router::into_service`, or a `MethodRouter` whose error
//! type is not `Infallible`.
//!
//! A router inside another service, such as a layer around the whole application, is not recognised. Add the layer with
//! `Router::layer`, or call `with_state(())` on the router before: otherwise, axum applies the layers of its routes again
//! for each request, and layers such as a concurrency limit lose their state.
//!
//! # Services
//!
//! A service runs on the thread of its connection and need not be `Send`. It is cloned for each request, and called
//! once the clone is ready (`poll_ready`), so layers that limit concurrency or shed load work. An error of the service
//! is logged, and the client receives 500. A panic has the same effect as in any other handler.
//!
//! # Requests
//!
//! The body is an [`Incoming`]. [`with_peer_addr`] adds the address of the client as an extension. The URI has
//! the form in which the client sent it (RFC 9112, section 3.2); a request whose target is not a valid `http::Uri`
//! receives 400. The fields and the URI of a head that is sent repeatedly are converted once, and then copied.
//!
//! # Responses
//!
//! A response whose body is complete after its first two polls is sent with its exact length, in the same write as its
//! head. Any other body is streamed like [`Body::stream`](crate::Body::stream), and also fails like it. Its length is
//! sent if its `size_hint` is exact or if the response has a `Content-Length` field. Otherwise it is chunked. Trailers are
//! sent over HTTP/2, and after chunked bodies; fields that are not allowed in trailers are omitted. The body is not
//! polled for `HEAD` and for the statuses 204, 205 and 304.
//!
//! These header fields of a response are not sent as they are:
//!
//! | field | effect |
//! |---|---|
//! | `Connection` | `close` closes the connection after the response. Other options are ignored. |
//! | `Content-Length` | Used if the length of the body is unknown, and for `HEAD`. Otherwise the length of the body is sent. |
//! | `Date` | Sent instead of the server's own date. |
//! | `Keep-Alive`, `Transfer-Encoding` | Ignored: the server decides. |
//! | `Upgrade` | Sent together with `Connection: upgrade`, for example in a 426 response. |
//!
//! # Other protocols
//!
//! [`ProtocolSwitch`] switches a connection to another protocol. `hyper::upgrade`, and therefore axum's WebSocket
//! extractor, work only on hyper's own connections, because no other crate can create hyper's `OnUpgrade`. Serve such
//! applications with hyper on anello (feature `compat-hyper` of the crate `anello`).

mod incoming;
mod request;
mod response;
mod router;
mod switch;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, ready};

use anello::JoinHandle;
use anello::log_event;
use http_body::Body as HttpBody;
use tower_service::Service;

use self::response::{BoxError, RequestKind, SpareBox};
use crate::message::{Request, Response};
use crate::server::{Accept, Server};

pub use incoming::Incoming;
pub use request::{PeerAddr, with_peer_addr};
pub use switch::ProtocolSwitch;

/// Serves an axum application, or another service, with default [`ServerOptions`](crate::ServerOptions): the same as
/// [`Server::serve`] with a [`handler`]. Runs until the returned task is aborted.
///
/// On several cores, call this function on each worker of [`anello::Workers`], with a clone of the application.
///
/// ```no_run
/// # anello::example! {
/// use anello::net::TcpListener;
/// use axum::Router;
/// use axum::routing::get;
///
/// let app = Router::new().route("/", get(async || "Hello, World!"));
/// let listener = TcpListener::bind("127.0.0.1:3000")?;
/// anello_http::serve(listener, app).await?;
/// # }
/// ```
///
/// # Panics
/// Panics if no runtime is running on this thread, or if the service is a [router](self#routers-of-axum) that cannot be
/// built.
pub fn serve<S, B>(listener: impl Accept, service: S) -> JoinHandle<()>
where
    S: Service<http::Request<Incoming>, Response = http::Response<B>, Error: Into<BoxError>>
        + Clone
        + 'static,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    Server::builder().build().serve(listener, handler(service))
}

/// Turns a service into a handler.
///
/// ```
/// # anello::example! {
/// use std::time::Duration;
///
/// use anello_http::{Server, service};
/// use axum::Router;
/// use axum::routing::post;
///
#[doc = listener!()]
/// let app = Router::new().route("/", post(async |body: String| body));
/// let builder = Server::builder().configure(|options| options.request_timeout = Some(Duration::from_secs(60)));
/// let server = builder.build();
/// let accepting = server.serve(listener, service::handler(app));
/// let response = exchange("POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nciao").await?;
/// assert!(response.ends_with("\r\n\r\nciao"));
/// accepting.abort();
/// server.drain().await;
/// # }
/// ```
///
/// # Panics
/// Panics if the service is a [router](self#routers-of-axum) that cannot be built.
pub fn handler<S, B>(service: S) -> impl AsyncFn(Request) -> Response + 'static
where
    S: Service<http::Request<Incoming>, Response = http::Response<B>, Error: Into<BoxError>>
        + Clone
        + 'static,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let service = router::build(service);
    let spare = SpareBox::default();
    async move |request: Request| {
        let mut service = service.clone();
        if let Err(error) = poll_fn(|context| service.poll_ready(context)).await {
            return service_failed(error.into());
        }
        let kind = RequestKind::of(&request);
        let response = match request::convert(request) {
            Ok(request) => service.call(request),
            Err(rejection) => return rejection,
        };
        let mut response = pin!(response);
        let converted = poll_fn(|context| match ready!(response.as_mut().poll(context)) {
            Ok(response) => Poll::Ready(response::convert(response, kind, &spare, context)),
            Err(error) => Poll::Ready(service_failed(error.into())),
        });
        converted.await
    }
}

/// Turns an async function from `http::Request` to `http::Response` into a handler. It need not be `Send`, unlike the
/// handlers of axum.
///
/// ```
/// # anello::example! {
/// use std::cell::Cell;
///
/// use anello_http::Server;
/// use anello_http::service::{self, Incoming};
///
#[doc = listener!()]
/// let requests = Cell::new(0);
/// let handler = service::from_fn(async move |request: http::Request<Incoming>| {
///     requests.set(requests.get() + 1);
///     let text = format!("{} {}", requests.get(), request.uri().path());
///     http::Response::new(text)
/// });
/// Server::builder().build().serve(listener, handler).detach();
/// assert!(exchange("GET /ciao HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\n1 /ciao"));
/// # }
/// ```
pub fn from_fn<F, B>(function: F) -> impl AsyncFn(Request) -> Response + 'static
where
    F: AsyncFn(http::Request<Incoming>) -> http::Response<B> + 'static,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let spare = SpareBox::default();
    async move |request: Request| {
        let kind = RequestKind::of(&request);
        let request = match request::convert(request) {
            Ok(request) => request,
            Err(rejection) => return rejection,
        };
        let mut response = pin!(function(request));
        let converted = poll_fn(|context| {
            let response = ready!(response.as_mut().poll(context));
            Poll::Ready(response::convert(response, kind, &spare, context))
        });
        converted.await
    }
}

#[cold]
fn service_failed(error: BoxError) -> Response {
    log_event!(ERROR, %error, "a service failed; sending 500");
    Response::text("500 Internal Server Error: service failed\n").with_status(500)
}
