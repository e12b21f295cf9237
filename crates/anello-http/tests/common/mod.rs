//! What the tests of the server share: the drivers to run on, and a client that sees bytes.
//!
//! Time decides nothing: where a deadline is tested, only that it strikes, and what else goes on meanwhile.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod site;
pub mod stream_client;
pub mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::time::timeout;
use anello::{DriverKind, Runtime, SimModel, SimOptions};
use anello_http::observe::metrics::ServerMetrics;
use anello_http::{Request, Response, Server, ServerOptions};

/// A test that takes so long hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

fn hang_timeout() -> Duration {
    HANG_TIMEOUT * std::env::var("ANELLO_PATIENCE").map_or(1, |factor| factor.parse().expect("a number"))
}

/// The drivers that can be had here, and the simulated kernels.
pub fn drivers() -> Vec<DriverKind> {
    let mut kinds = real_drivers();
    for model in [SimModel::Completion, SimModel::Readiness] {
        let mut options = SimOptions::default();
        options.model = model;
        kinds.push(DriverKind::Sim(options));
    }
    kinds
}

/// The drivers that can be had here.
pub fn real_drivers() -> Vec<DriverKind> {
    let mut kinds = vec![DriverKind::Epoll];
    match Runtime::builder().driver(DriverKind::Uring).driver_from_environment(false).build() {
        Ok(_) => kinds.push(DriverKind::Uring),
        Err(error) => eprintln!("uring: skipped: {error}"),
    }
    kinds
}

/// Runs a test on each of these, each on a thread of its own, which is given up when it hangs.
pub fn for_each_driver<F: Future<Output = ()>>(
    kinds: Vec<DriverKind>,
    test: impl Fn(DriverKind) -> F + Clone + Send + 'static,
) {
    for kind in kinds {
        let (done, is_done) = mpsc::channel();
        // A simulated kernel by its seed, too, which replays what happened.
        let name = if matches!(kind, DriverKind::Sim(_)) { format!("{kind:?}") } else { kind.to_string() };
        let test = test.clone();
        let running = thread::spawn(move || {
            let builder = Runtime::builder().driver(kind.clone()).driver_from_environment(false);
            builder.build().expect("the driver is to be had").block_on(test(kind));
            done.send(()).ok();
        });
        match is_done.recv_timeout(hang_timeout()) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}: the test hangs"),
            _ => {
                if let Err(panic) = running.join() {
                    eprintln!("on {name}:");
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// Options with which no deadline decides anything.
pub fn with_long_timeouts() -> ServerOptions {
    let long = Duration::from_secs(100_000);
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (long, long, long);
    (options.send_timeout, options.linger_timeout) = (long, long);
    options
}

/// Starts a server of this thread with these options.
pub fn serve<H>(options: ServerOptions, handler: H) -> (Server, SocketAddr)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let server = Server::builder().options(options).build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    server.serve(listener, handler).detach();
    (server, address)
}

/// A client's connection.
pub struct Client {
    pub stream: TcpStream,
    received: Vec<u8>,
}

/// An answer, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientResponse {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl ClientResponse {
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.expect("connects"), received: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("sends");
    }

    /// A whole request without a body.
    pub async fn get(&mut self, path: &str) -> ClientResponse {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        self.response().await.expect("an answer")
    }

    /// The next answer to something other than HEAD; `None` when the server has ended the connection.
    pub async fn response(&mut self) -> Option<ClientResponse> {
        self.response_to("GET").await
    }

    /// The next answer to this method.
    pub async fn response_to(&mut self, method: &str) -> Option<ClientResponse> {
        let end = loop {
            if let Some(at) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more().await {
                assert!(self.received.is_empty(), "cut: {:?}", String::from_utf8_lossy(&self.received));
                return None;
            }
        };
        let head = String::from_utf8(self.received.drain(..end).collect()).expect("a head of text");
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().expect("a status line");
        let status = status_line.split(' ').nth(1).expect("a status").parse().expect("a number");
        let fields: Vec<_> = lines
            .map(|line| line.split_once(": ").expect("a field"))
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
            return self.exactly(length.parse().expect("a length")).await;
        }
        let mut body = Vec::new();
        if response.field("Transfer-Encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(self.line().await.trim(), 16).expect("a size");
                body.extend(self.exactly(size).await);
                assert_eq!(self.line().await, "");
                if size == 0 {
                    return body;
                }
            }
        }
        while self.more().await {}
        body.append(&mut self.received);
        body
    }

    /// A line, with its end taken off.
    pub async fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.received.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.received.drain(..at + 2).collect();
                return String::from_utf8_lossy(&line[..at]).into_owned();
            }
            assert!(self.more().await, "ended within a line");
        }
    }

    /// So many bytes.
    pub async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.received.len() < length {
            assert!(self.more().await, "ended after {} of {length} bytes", self.received.len());
        }
        self.received.drain(..length).collect()
    }

    async fn more(&mut self) -> bool {
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

    /// What was received and is not of an answer.
    pub fn take_received(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.received)
    }

    /// Whether the server ends the connection, without another byte.
    pub async fn is_eof(&mut self) -> bool {
        self.received.is_empty() && !self.more().await
    }
}

/// Waits until something is so.
pub async fn wait_until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            anello::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(hang_timeout(), waiting).await.expect("it never is");
}

/// What the metrics say of this one.
pub fn count_of(metrics: &ServerMetrics, name: &str) -> usize {
    let mut text = Vec::new();
    metrics.render(None, &mut text);
    let text = String::from_utf8(text).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().expect("a number"))
}
