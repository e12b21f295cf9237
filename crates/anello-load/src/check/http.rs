//! Correctness checks for HTTP servers: the checks in [`check`](crate::check), with known responses instead of echoes,
//! over TLS if it is configured for the server.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anello::time::sleep;
use bytes::Bytes;

use crate::check::common::{
    OTHER_CONNECTIONS, STALLED_BUFFER_BYTES, check_chunk, connect_others, connect_within,
    exchange_once_on_each, serve_others, with_timeout,
};
use crate::model::config::{LoadConfig, Protocol};
use crate::model::tls::Tls;
use crate::wire::connect;
use crate::wire::http::decoder::{Decoder, Head, HeadCache, Part};
use crate::wire::stream::{Received, Stream};
use crate::wire::tls_stream::TlsConnector;

const HOST: &str = "localhost";

/// Number of requests that the stalled reader sends. With responses of 10 MiB, the buffers of both sockets hold less
/// than one response, even if their limits are twice the kernel's defaults.
const STALLED_REQUESTS: usize = 2;

const STALL_TIME: Duration = Duration::from_millis(400);

/// Address of a server, and its TLS configuration. A plain `SocketAddr` converts to a server without TLS.
#[derive(Clone, Debug)]
pub struct Server {
    /// Address of the server.
    pub address: SocketAddr,
    /// TLS configuration; `None` for plain HTTP.
    pub tls: Option<Tls>,
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }
}

/// A path and the expected response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Path of the request.
    pub path: String,
    /// Expected body of the response to GET. The expected status is 200.
    pub body: Bytes,
    /// Set if HEAD must return the same status as GET. File servers support HEAD for every file. An application built
    /// on a framework may support only GET and reject HEAD.
    pub answers_head: bool,
}

/// Checks the responses to GET, HEAD and another GET for every page, all over one connection that must be kept alive.
/// Bodies must be complete and correct. The response to HEAD must have no body. A length in this response must match
/// the length of the response to GET. `timeout` applies to each response.
pub async fn complete_bytes(
    server: impl Into<Server>,
    pages: &[Page],
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let mut client = connect(&server.into(), timeout).await?;
    let mut rejected_heads = Vec::new();
    for page in pages {
        let path = &page.path;
        for request in ["GET", "GET after HEAD"] {
            with_timeout(timeout, format!("{request} {path}"), client.get(page)).await?;
            if request == "GET" {
                let status = with_timeout(timeout, format!("HEAD {path}"), client.head(page)).await?;
                if status != 200 {
                    rejected_heads.push(format!("HEAD {path}: status {status} (accepted)"));
                }
            }
        }
    }
    let paths: Vec<&str> = pages.iter().map(|page| page.path.as_str()).collect();
    let summary = format!("correct responses to GET, HEAD and GET over one connection: {}", paths.join(", "));
    Ok([vec![summary], rejected_heads].concat())
}

/// Checks that the server handles a client that does not read.
///
/// The client requests `large` twice and does not read for a while. Requests for `small` on other connections, some
/// opened before the stall and some during it, must then be served. The client starts to read only after that, and both
/// responses must be correct. `large` must be larger than the buffers of both sockets. `timeout` applies to each of
/// these steps.
pub async fn stalled_reader(
    server: impl Into<Server>,
    large: &Page,
    small: &Page,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    const CONCURRENT_REQUEST: &str = "response to another client during the stall";
    let server = server.into();
    let connect = async || connect(&server, timeout).await;
    let request =
        async |what: &str, client: &mut Client| with_timeout(timeout, what, client.get(small)).await;
    let others = connect_others(connect, async |client| request("first response", client).await).await?;
    let mut stalled = connect().await?;
    let limited = stalled.stream.transport().set_receive_buffer_bytes(STALLED_BUFFER_BYTES);
    limited.map_err(|error| error.to_string())?;
    for _ in 0..STALLED_REQUESTS {
        let sent = stalled.send_request("GET", &large.path);
        with_timeout(timeout, "request for a large response", sent).await?;
    }
    // Without reading the data, the client cannot determine how much the server has sent.
    sleep(STALL_TIME).await;
    let request = async |client: &mut Client| request(CONCURRENT_REQUEST, client).await;
    serve_others(others, CONCURRENT_REQUEST, connect, request).await?;
    for _ in 0..STALLED_REQUESTS {
        with_timeout(timeout, "response to the stalled reader", stalled.receive(large)).await?;
    }
    Ok(vec![format!(
        "{STALLED_REQUESTS} responses of {} bytes not read for a while; {} other connections served meanwhile; all \
         responses correct",
        large.body.len(),
        2 * OTHER_CONNECTIONS
    )])
}

/// Opens concurrent connections and checks that each receives the correct response to one GET request for `page`.
/// `timeout` applies to opening each batch of at most 100 connections and to each response.
pub async fn many_connections(
    server: impl Into<Server>,
    connections: usize,
    page: &Page,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let server = server.into();
    let mut load = LoadConfig::http(server.address, HOST, &page.path);
    if let Protocol::Http(http) = &mut load.protocol {
        http.expected_body = Some(page.body.clone());
        http.tls = server.tls;
    }
    exchange_once_on_each(load, connections, timeout).await?;
    let path = &page.path;
    Ok(vec![format!("{connections} concurrent connections, each with a correct response to GET {path}")])
}

async fn connect(server: &Server, timeout: Duration) -> Result<Client, String> {
    let tls = server.tls.as_ref().map(|tls| Rc::new(TlsConnector::new(tls)));
    let address = server.address.into();
    let stream = connect_within(timeout, connect::connect(&address, None, tls.as_ref())).await?;
    let (decoder, head_cache) = (Decoder::default(), HeadCache::default());
    Ok(Client { stream, decoder, head_cache, unread: Vec::new() })
}

/// A client with a single connection.
struct Client {
    stream: Stream,
    decoder: Decoder,
    head_cache: HeadCache,
    /// Received bytes that have not been decoded.
    unread: Vec<u8>,
}

impl Client {
    async fn send_request(&mut self, method: &str, path: &str) -> Result<(), String> {
        let request = Bytes::from(format!("{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        let sent = poll_fn(|context| self.stream.poll_send(request.clone(), context)).await;
        sent.map_err(|error| format!("cannot send the request: {error}"))
    }

    async fn get(&mut self, page: &Page) -> Result<(), String> {
        self.send_request("GET", &page.path).await?;
        self.receive(page).await?;
        if self.unread.is_empty() { Ok(()) } else { Err("unexpected data after the response".to_owned()) }
    }

    /// Sends a HEAD request and returns the status. A body after the head is detected here or, if it arrives later,
    /// before the next response.
    async fn head(&mut self, page: &Page) -> Result<u16, String> {
        self.send_request("HEAD", &page.path).await?;
        let head = self.receive_head().await?;
        self.decoder = Decoder::default();
        if !self.unread.is_empty() {
            return Err("unexpected body".to_owned());
        }
        let expected_bytes = page.body.len() as u64;
        match (head.status, head.body_bytes()) {
            (200, Some(bytes)) if bytes != expected_bytes => {
                Err(format!("length is {bytes} bytes, but the response to GET has {expected_bytes}"))
            }
            (status, _) if status != 200 && page.answers_head => Err(format!("unexpected status {status}")),
            (status, _) => Ok(status),
        }
    }

    async fn receive(&mut self, page: &Page) -> Result<(), String> {
        let head = self.receive_head().await?;
        if head.status != 200 {
            return Err(format!("unexpected status {}", head.status));
        }
        let (expected_bytes, received) = (page.body.len(), Cell::new(0));
        let check_part = |part: Part<'_>| match part {
            Part::Body(data) => {
                check_chunk(&page.body, received.get(), data)?;
                received.set(received.get() + data.len());
                Ok(None)
            }
            Part::Head(_) => Err("unexpected head within a body".to_owned()),
            Part::End => Ok(Some(())),
        };
        let progress = || format!("{} of {expected_bytes} bytes received, then", received.get());
        self.receive_parts(check_part, progress).await?;
        if received.get() < expected_bytes {
            Err(format!("body has {} bytes (expected {expected_bytes})", received.get()))
        } else if head.closes_connection {
            Err("connection not kept alive after the response".to_owned())
        } else {
            Ok(())
        }
    }

    async fn receive_head(&mut self) -> Result<Head, String> {
        let take_head = |part: Part<'_>| match part {
            Part::Head(head) => Ok(Some(head)),
            _ => Err("unexpected body before the head".to_owned()),
        };
        self.receive_parts(take_head, || "no response:".to_owned()).await
    }

    /// Receives parts of a response until `on_part` returns a result. `progress` describes what has arrived so far, for
    /// the error message if nothing more arrives.
    async fn receive_parts<T>(
        &mut self,
        on_part: impl Fn(Part<'_>) -> Result<Option<T>, String>,
        progress: impl Fn() -> String,
    ) -> Result<T, String> {
        loop {
            let (mut input, mut result) = (self.unread.as_slice(), None);
            while result.is_none() {
                let part = self.decoder.next(&mut input, &mut self.head_cache);
                let part = part.map_err(|cause| format!("invalid HTTP response: {cause}"))?;
                let Some(part) = part else { break };
                result = on_part(part)?;
            }
            let rest = input.len();
            self.unread.drain(..self.unread.len() - rest);
            match result {
                Some(result) => return Ok(result),
                None => self.read().await.map_err(|cause| format!("{} {cause}", progress()))?,
            }
        }
    }

    async fn read(&mut self) -> Result<(), String> {
        match poll_fn(|context| self.stream.poll_receive(context)).await {
            Ok(None) => Err("EOF".to_owned()),
            Ok(Some(Received::Chunk(chunk))) => {
                self.unread.extend_from_slice(&chunk);
                Ok(())
            }
            Ok(Some(Received::Plaintext(plaintext))) => {
                self.unread.extend_from_slice(&plaintext);
                self.stream.recycle(plaintext);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
