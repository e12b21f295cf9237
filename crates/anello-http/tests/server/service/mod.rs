//! Services on the types of the crate `http`, on every driver.

mod apps;
mod layers;
mod requests;
mod responses;

use std::convert::Infallible;
use std::net::SocketAddr;

use anello_http::ServerOptions;
use anello_http::service::{self, Incoming};
use axum::Router;
use bytes::Bytes;
use http_body::Body;

use crate::common::{Client, ClientResponse, serve};

/// Serves an application and returns its address.
fn serve_app(app: Router) -> SocketAddr {
    serve(ServerOptions::default(), service::handler(app)).1
}

/// Serves a function and returns its address.
fn serve_fn<B>(function: impl AsyncFn(http::Request<Incoming>) -> http::Response<B> + 'static) -> SocketAddr
where
    B: Body<Data = Bytes, Error = Infallible> + 'static,
{
    serve(ServerOptions::default(), service::from_fn(function)).1
}

/// Sends a request on a new connection and returns the response.
async fn exchange(address: SocketAddr, request: impl AsRef<[u8]>) -> ClientResponse {
    let request = request.as_ref();
    let method = request.split(|&byte| byte == b' ').next().expect("method");
    let mut client = Client::connect(address).await;
    client.send(request).await;
    client.response_to(str::from_utf8(method).expect("UTF-8 method")).await.expect("response")
}

/// Returns a request with a body of known length.
fn post(path: &str, fields: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
}
