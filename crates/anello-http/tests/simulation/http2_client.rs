//! The exchanges over HTTP/2, with the client of the crate `h2`.

use std::io::{self, ErrorKind};
use std::time::Duration;

use anello::net::TcpStream;
use anello::sim::Control;
use anello::time::sleep;
use anello::{JoinHandle, spawn};
use bytes::Bytes;
use futures_util::future::{join, poll_fn, try_join_all};
use h2::client::{ResponseFuture, SendRequest, handshake};
use h2::{Error, SendStream};

use super::client::{Exchange, Response};

/// A client connection. It is closed when this value is dropped.
pub struct Http2Client {
    requests: SendRequest<Bytes>,
    _connection: JoinHandle<Result<(), Error>>,
}

impl Http2Client {
    pub async fn new(stream: TcpStream) -> io::Result<Self> {
        let (requests, connection) = handshake(stream).await.map_err(into_io)?;
        Ok(Self { requests, _connection: spawn(connection) })
    }

    /// Sends all requests together, and checks the responses.
    pub async fn exchange(&self, exchanges: &[Exchange], control: &Control) -> io::Result<()> {
        try_join_all(exchanges.iter().map(|exchange| self.request(exchange, control))).await.map(drop)
    }

    async fn request(&self, exchange: &Exchange, control: &Control) -> io::Result<()> {
        let method = if exchange.body.is_some() { "POST" } else { "GET" };
        let uri = format!("http://server{}", exchange.path);
        let request = http::Request::builder().method(method).uri(uri).body(()).expect("a valid request");
        let mut requests = self.requests.clone().ready().await.map_err(into_io)?;
        let (response, stream) = requests.send_request(request, exchange.body.is_none()).map_err(into_io)?;
        let sending = async {
            match &exchange.body {
                Some(body) => send(stream, body, control).await,
                None => Ok(()),
            }
        };
        // The server may reset the stream after a complete response, so only the response decides.
        let (_, response) = join(sending, receive(response)).await;
        exchange.check(&response.map_err(into_io)?)
    }
}

async fn send(mut stream: SendStream<Bytes>, mut body: &[u8], control: &Control) -> Result<(), Error> {
    while !body.is_empty() {
        let bound = if control.random().is_multiple_of(2) { 50 } else { 10_000 };
        let bytes = body.len().min(1 + (control.random() % bound) as usize);
        stream.reserve_capacity(bytes);
        let Some(capacity) = poll_fn(|context| stream.poll_capacity(context)).await else { break };
        let (part, rest) = body.split_at(capacity?.min(bytes));
        stream.send_data(Bytes::copy_from_slice(part), false)?;
        body = rest;
        if control.random().is_multiple_of(16) {
            sleep(Duration::from_millis(control.random() % 30)).await;
        }
    }
    stream.send_data(Bytes::new(), true)
}

async fn receive(response: ResponseFuture) -> Result<Response, Error> {
    let (head, mut stream) = response.await?.into_parts();
    let number = head.headers.get("x-number");
    let number = number.map(|number| number.to_str().expect("text").parse().expect("number"));
    let mut body = Vec::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk?;
        stream.flow_control().release_capacity(chunk.len())?;
        body.extend_from_slice(&chunk);
    }
    Ok(Response { status: head.status.as_u16(), number, body, is_last: false })
}

/// Converts an error of the connection or of a stream.
///
/// # Panics
/// Panics if the server has violated the protocol.
fn into_io(error: Error) -> io::Error {
    assert!(!error.is_library(), "{error}");
    match error.into_io() {
        // `tokio_util::codec` has no error kind for EOF within a frame.
        Some(error) if error.to_string() == "bytes remaining on stream" => ErrorKind::UnexpectedEof.into(),
        Some(error) => error,
        // A reset, a GOAWAY, or the use of a stream or connection that has received one.
        None => ErrorKind::ConnectionReset.into(),
    }
}
