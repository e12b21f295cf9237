//! Helpers shared by the server tests, and a client that gives access to the raw bytes.
//!
//! Test results do not depend on timing. Deadline tests check only that the deadline expires, and that other
//! connections are still served in the meantime.

pub mod http2;
pub mod log;
pub mod site;
pub mod stream_client;
pub mod tls;
pub mod versions;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::time::timeout;
use anello_http::observe::metrics::ServerMetrics;
use anello_http::{Request, Response, Server, ServerOptions};
use anello_test::hang_timeout;

/// Returns options whose timeouts are too long to expire during a test.
pub fn with_long_timeouts() -> ServerOptions {
    let long = Duration::from_secs(100_000);
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (long, long, long);
    (options.send_timeout, options.linger_timeout) = (long, long);
    options
}

/// Returns a handler of a type that all tests share: the code of a connection is generic in the handler, and compiling it
/// takes a third of a second.
pub fn boxed<H>(handler: H) -> impl AsyncFn(Request) -> Response + 'static
where
    H: AsyncFn(Request) -> Response + 'static,
{
    type Responding = Pin<Box<dyn Future<Output = Response>>>;
    fn unboxed(handler: Box<dyn Fn(Request) -> Responding>) -> impl AsyncFn(Request) -> Response {
        async move |request| handler(request).await
    }
    let handler = Rc::new(handler);
    unboxed(Box::new(move |request| {
        let handler = Rc::clone(&handler);
        Box::pin(async move { handler(request).await })
    }))
}

/// Starts a server on this thread with these options. Returns the server and its address.
pub fn serve<H>(options: ServerOptions, handler: H) -> (Server, SocketAddr)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let server = Server::builder().options(options).build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("local address");
    server.serve(listener, boxed(handler)).detach();
    (server, address)
}

/// A client connection.
pub struct Client {
    pub stream: TcpStream,
    received: Vec<u8>,
}

/// A parsed response.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientResponse {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl ClientResponse {
    pub fn field(&self, name: &str) -> Option<&str> {
        let field = self.fields.iter().find(|(field_name, _)| field_name.eq_ignore_ascii_case(name));
        field.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8 body")
    }
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.expect("connect"), received: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("send");
    }

    /// Sends a GET request without a body and returns the response.
    pub async fn get(&mut self, path: &str) -> ClientResponse {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        self.response().await.expect("response")
    }

    /// Reads the next response, which must not be a response to HEAD. Returns `None` if the server closed the
    /// connection.
    pub async fn response(&mut self) -> Option<ClientResponse> {
        self.response_to("GET").await
    }

    /// Reads the next response, given the method of its request. Returns `None` if the server closed the connection.
    pub async fn response_to(&mut self, method: &str) -> Option<ClientResponse> {
        let head_bytes = loop {
            if let Some(position) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                break position + 4;
            }
            if !self.receive_more().await {
                assert!(self.received.is_empty(), "truncated: {:?}", String::from_utf8_lossy(&self.received));
                return None;
            }
        };
        let head = String::from_utf8(self.received.drain(..head_bytes).collect()).expect("UTF-8 head");
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().expect("status line");
        let status =
            status_line.split(' ').nth(1).expect("status code").parse().expect("numeric status code");
        let fields: Vec<_> = lines
            .map(|line| line.split_once(": ").expect("header field"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut response = ClientResponse { status, fields, body: Vec::new() };
        response.body = self.body(&response, method).await;
        Some(response)
    }

    async fn body(&mut self, response: &ClientResponse, method: &str) -> Vec<u8> {
        if method == "HEAD" || matches!(response.status, 100..=199 | 204 | 304) {
            return Vec::new();
        }
        if let Some(length) = response.field("Content-Length") {
            return self.read_exact(length.parse().expect("numeric length")).await;
        }
        let mut body = Vec::new();
        if response.field("Transfer-Encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(self.read_line().await.trim(), 16).expect("chunk size");
                body.extend(self.read_exact(size).await);
                assert_eq!(self.read_line().await, "");
                if size == 0 {
                    return body;
                }
            }
        }
        while self.receive_more().await {}
        body.append(&mut self.received);
        body
    }

    /// Reads a line and returns it without its line ending.
    pub async fn read_line(&mut self) -> String {
        loop {
            if let Some(position) = self.received.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.received.drain(..position + 2).collect();
                return String::from_utf8_lossy(&line[..position]).into_owned();
            }
            assert!(self.receive_more().await, "EOF within a line");
        }
    }

    /// Reads exactly this many bytes.
    pub async fn read_exact(&mut self, length: usize) -> Vec<u8> {
        while self.received.len() < length {
            assert!(self.receive_more().await, "EOF after {} of {length} bytes", self.received.len());
        }
        self.received.drain(..length).collect()
    }

    /// Receives more bytes. Returns `false` at EOF or if the connection was reset.
    async fn receive_more(&mut self) -> bool {
        match self.stream.recv().await {
            Ok(Some(chunk)) => {
                self.received.extend_from_slice(&chunk);
                true
            }
            Ok(None) => false,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Removes and returns the received bytes that do not belong to a parsed response.
    pub fn take_received(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.received)
    }

    /// Waits for the server to close the connection. Returns `false` if more bytes arrive first.
    pub async fn is_eof(&mut self) -> bool {
        self.received.is_empty() && !self.receive_more().await
    }
}

/// Waits until the condition is true.
pub async fn wait_until(condition: impl Fn() -> bool) {
    let polling = async {
        while !condition() {
            anello::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(hang_timeout(), polling).await.expect("condition not met in time");
}

/// Returns the value of a metric; 0 if it has no sample.
pub fn metric_value(metrics: &ServerMetrics, name: &str) -> usize {
    let mut text = Vec::new();
    metrics.render(None, &mut text);
    let text = String::from_utf8(text).expect("UTF-8 metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().expect("numeric value"))
}
