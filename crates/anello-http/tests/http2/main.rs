//! HTTP/2, with the client of the crate `h2`, on every driver.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod files;
mod requests;
mod timeouts;

use std::net::SocketAddr;
use std::rc::Rc;

use anello::net::TcpStream;
use anello::{JoinHandle, spawn};
use anello_http::server::Http2Mode;
use anello_http::{Request, Response, ServerOptions};
use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use common::with_long_timeouts;

/// A client connection. It is closed when this value is dropped.
struct Client {
    requests: SendRequest<Bytes>,
    /// Returns an error if the connection fails.
    connection: JoinHandle<Result<(), h2::Error>>,
}

/// A complete response.
#[derive(Debug)]
struct ClientResponse {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: HeaderMap,
}

fn options() -> ServerOptions {
    with_long_timeouts().http2(Http2Mode::Cleartext)
}

fn serve<H>(options: ServerOptions, handler: H) -> SocketAddr
where
    H: AsyncFn(Request) -> Response + 'static,
{
    common::serve(options, handler).1
}

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &Builder::new()).await
    }

    async fn connect_with(address: SocketAddr, builder: &Builder) -> Self {
        let stream = TcpStream::connect(address).await.expect("connect");
        let (requests, connection) = builder.handshake(stream).await.expect("handshake");
        Self { requests, connection: spawn(connection) }
    }

    /// Sends the head of a request.
    async fn start(
        &mut self,
        request: http::Request<()>,
        is_end: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut ready = self.requests.clone().ready().await.expect("connection is open");
        ready.send_request(request, is_end).expect("valid request")
    }

    async fn send(&mut self, request: http::Request<()>) -> ClientResponse {
        let (response, _) = self.start(request, true).await;
        complete(response).await.expect("response")
    }

    async fn get(&mut self, path: &str) -> ClientResponse {
        self.send(request("GET", path)).await
    }

    async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> ClientResponse {
        let (response, mut stream) = self.start(request("POST", path), false).await;
        stream.send_data(body.into(), true).expect("send body");
        complete(response).await.expect("response")
    }

    /// Waits until the server closes the connection.
    async fn closed(self) -> Result<(), h2::Error> {
        let Self { requests, connection } = self;
        let result = connection.await.expect("task completes");
        drop(requests);
        result
    }
}

impl ClientResponse {
    fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("UTF-8 body")
    }
}

fn request(method: &str, path: &str) -> http::Request<()> {
    let uri = format!("http://localhost{path}");
    http::Request::builder().method(method).uri(uri).body(()).expect("valid request")
}

async fn complete(response: ResponseFuture) -> Result<ClientResponse, h2::Error> {
    let (head, mut stream) = response.await?.into_parts();
    let (body, trailers) = read(&mut stream).await?;
    Ok(ClientResponse { status: head.status.as_u16(), headers: head.headers, body, trailers })
}

async fn read(stream: &mut RecvStream) -> Result<(Vec<u8>, HeaderMap), h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok((body, stream.trailers().await?.unwrap_or_default()))
}

/// Sets a flag when it is dropped.
struct OnDrop(Rc<std::cell::Cell<usize>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.update(|count| count + 1);
    }
}
