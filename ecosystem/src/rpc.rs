//! A server and a channel for gRPC services of the crate `tonic`, in place of its transport, which requires the tokio
//! runtime.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::compat::{HyperExecutor, HyperTimer};
use anello::net::{TcpListener, TcpStream};
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower_service::Service;

use crate::tcp::TcpConnector;

/// Serves a generated gRPC service on each connection, without TLS.
///
/// # Errors
/// Returns the error of the listener. A failed connection is printed.
pub async fn serve<S>(listener: TcpListener, service: S) -> std::io::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + 'static,
{
    loop {
        let stream = listener.accept().await?;
        let service = service.clone();
        anello::spawn(async move {
            if let Err(error) = serve_connection(stream, service).await {
                eprintln!("connection failed: {error}");
            }
        })
        .detach();
    }
}

/// Serves one connection. A call ends with `DEADLINE_EXCEEDED` if its deadline passes before it has responded. A call
/// that the client has cancelled is dropped.
async fn serve_connection<S>(stream: TcpStream, service: S) -> hyper::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + 'static,
{
    let respond = service_fn(move |request: Request<Incoming>| {
        let time_limit = time_limit(request.headers());
        // Generated services are always ready.
        let call = service.clone().call(request);
        async move {
            let Some(time_limit) = time_limit else { return call.await };
            match anello::time::timeout(time_limit, call).await {
                Ok(response) => response,
                Err(_) => Ok(Status::deadline_exceeded("the deadline has passed").into_http()),
            }
        }
    });
    http2::Builder::new(HyperExecutor).timer(HyperTimer).serve_connection(stream, respond).await
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
