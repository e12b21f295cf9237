//! A client for HTTP/2, and its frames.

use std::net::SocketAddr;

use anello::net::TcpStream;
use anello::{JoinHandle, spawn};
use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::HeaderMap;

/// The preface of a client, with empty SETTINGS.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// `GET / HTTP/2` with the authority `h`, as a header block.
pub const HEADERS: &[u8] = b"\x82\x84\x86\x41\x01h";

/// The largest flow-control window.
const MAX_WINDOW_BYTES: u32 = (1 << 31) - 1;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the bytes of a client that requests `/` once and accepts a response of any length.
pub fn whole_get() -> Vec<u8> {
    // SETTINGS_INITIAL_WINDOW_SIZE
    let settings = [&[0, 4][..], &MAX_WINDOW_BYTES.to_be_bytes()].concat();
    let window = (MAX_WINDOW_BYTES - 65_535).to_be_bytes();
    let frames = [frame(4, 0, 0, &settings), frame(8, 0, 0, &window), frame(1, 5, 1, HEADERS)].concat();
    [&PREFACE[..24], &frames].concat()
}

/// A client connection. It is closed when this value is dropped.
pub struct Client {
    pub requests: SendRequest<Bytes>,
    /// Returns an error if the connection fails.
    pub connection: JoinHandle<Result<(), h2::Error>>,
}

/// A complete response.
#[derive(Debug)]
pub struct ClientResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &Builder::new()).await
    }

    pub async fn connect_with(address: SocketAddr, builder: &Builder) -> Self {
        let stream = TcpStream::connect(address).await.expect("connect");
        let (requests, connection) = builder.handshake(stream).await.expect("handshake");
        Self { requests, connection: spawn(connection) }
    }

    /// Sends the head of a request.
    pub async fn start(
        &mut self,
        request: http::Request<()>,
        is_end: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut ready = self.requests.clone().ready().await.expect("connection is open");
        ready.send_request(request, is_end).expect("valid request")
    }

    pub async fn send(&mut self, request: http::Request<()>) -> ClientResponse {
        let (response, _) = self.start(request, true).await;
        complete(response).await.expect("response")
    }

    pub async fn get(&mut self, path: &str) -> ClientResponse {
        self.send(request("GET", path)).await
    }

    pub async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> ClientResponse {
        let (response, mut stream) = self.start(request("POST", path), false).await;
        stream.send_data(body.into(), true).expect("send body");
        complete(response).await.expect("response")
    }

    /// Waits until the server closes the connection.
    pub async fn closed(self) -> Result<(), h2::Error> {
        let Self { requests, connection } = self;
        let result = connection.await.expect("task completes");
        drop(requests);
        result
    }
}

impl ClientResponse {
    pub fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("UTF-8 body")
    }
}

pub fn request(method: &str, path: &str) -> http::Request<()> {
    let uri = format!("http://localhost{path}");
    http::Request::builder().method(method).uri(uri).body(()).expect("valid request")
}

pub async fn complete(response: ResponseFuture) -> Result<ClientResponse, h2::Error> {
    let (head, mut stream) = response.await?.into_parts();
    let (body, trailers) = read(&mut stream).await?;
    Ok(ClientResponse { status: head.status.as_u16(), headers: head.headers, body, trailers })
}

pub async fn read(stream: &mut RecvStream) -> Result<(Vec<u8>, HeaderMap), h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok((body, stream.trailers().await?.unwrap_or_default()))
}
