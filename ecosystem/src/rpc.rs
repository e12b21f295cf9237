//! A server and a channel for gRPC services of the crate `tonic`, in place of its transport, which requires the tokio
//! runtime.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::compat::{HyperExecutor, HyperTimer};
use anello::net::TcpListener;
use anello_http::Server;
use anello_http::server::Http2Mode;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower_service::Service;

use crate::tcp::TcpConnector;

/// Serves a generated gRPC service without TLS, with the server of `anello-http`. A call ends with `DEADLINE_EXCEEDED` if
/// its deadline passes before it has responded. A call that the client has cancelled is dropped.
pub async fn serve<S>(listener: TcpListener, service: S)
where
    S: Service<Request<anello_http::service::Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + 'static,
{
    let handler = anello_http::service::from_fn(async move |request: Request<_>| {
        let time_limit = time_limit(request.headers()).unwrap_or(Duration::MAX);
        // Generated services are always ready.
        let call = service.clone().call(request);
        match anello::time::timeout(time_limit, call).await {
            Ok(Ok(response)) => response,
            Err(_) => Status::deadline_exceeded("the deadline has passed").into_http(),
        }
    });
    let builder = Server::builder().configure(|options| {
        options.http2 = Http2Mode::Cleartext;
        // A call can send any number of messages, each of which tonic limits.
        options.limits.max_body_bytes = u64::MAX;
    });
    if let Err(error) = builder.build().serve(listener, handler).await {
        eprintln!("server failed: {error}");
    }
}

/// A connection to a gRPC server without TLS, which is opened by the first call and after failures.
///
/// Pass it to `with_origin` of a generated client. A call ends with `DEADLINE_EXCEEDED` if the time limit of its
/// request passes before the response.
#[derive(Clone, Debug)]
pub struct Channel(Client<TcpConnector, Body>);

impl Channel {
    /// Creates a channel, which does not connect yet.
    pub fn new() -> Self {
        Self(Client::builder(HyperExecutor).timer(HyperTimer).http2_only(true).build(TcpConnector))
    }
}

impl Default for Channel {
    fn default() -> Self {
        Self::new()
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, StdError>>>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let time_limit = time_limit(request.headers());
        let call = self.0.request(request);
        Box::pin(async move {
            let Some(time_limit) = time_limit else { return Ok(call.await?) };
            match anello::time::timeout(time_limit, call).await {
                Ok(response) => Ok(response?),
                Err(_) => Err(Status::deadline_exceeded("the deadline has passed").into()),
            }
        })
    }
}

/// Returns the duration in the field `grpc-timeout`: up to eight digits and a unit.
fn time_limit(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}
