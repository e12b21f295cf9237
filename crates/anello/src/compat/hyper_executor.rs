//! Implementation of `hyper::rt::Executor`.

use std::future::Future;

use hyper::rt::Executor;

/// An executor that spawns hyper's background tasks (HTTP/2 needs one per stream) on the runtime of the calling thread.
///
/// It uses [`spawn`](crate::spawn), so the futures need not be `Send`.
///
/// ```
/// # async fn serve(stream: anello::net::TcpStream) -> hyper::Result<()> {
/// use anello::compat::{HyperExecutor, HyperTimer};
/// use http_body_util::Full;
/// use hyper::body::{Bytes, Incoming};
/// use hyper::server::conn::http2;
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
///     Ok(Response::new(Full::from("Hello, World!")))
/// }
///
/// http2::Builder::new(HyperExecutor).timer(HyperTimer).serve_connection(stream, service_fn(hello)).await
/// # }
/// ```
///
/// # Panics
/// [`execute`](Executor::execute) panics if no runtime is running on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct HyperExecutor;

impl<F> Executor<F> for HyperExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        crate::spawn(future).detach();
    }
}
