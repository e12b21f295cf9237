//! What an HTTP server must do whatever its speed: the trials of [`super`], with answers that are known beforehand in the
//! place of echoes.
//!
//! [`complete_bytes`] asks for everything over one connection, by GET and by HEAD: bytes that are wrong, bodies where none
//! belong, connections that are not kept. [`stalled_reader`] asks for much and reads nothing, while others are served.
//! [`many_connections`] has thousands of connections ask at once. All do so under TLS where the server is to be asked so.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anello::time::{self, sleep};
use bytes::Bytes;

use super::{
    OTHER_CONNECTIONS, REQUESTS_PER_CONNECTION, STALL_SAMPLE_INTERVAL, STALL_SAMPLES, STALLED_BUFFER_BYTES,
    exchange_once_on_each, with_timeout,
};
use crate::config::{LoadConfig, Protocol};
use crate::connect;
use crate::http::decoder::{Decoder, Head, HeadCache, Part};
use crate::stream::{Address, Received, Stream};
use crate::tls::{self, Tls};

/// What requests name as their host.
const HOST: &str = "localhost";

/// Requests of the stalled reader: of two answers of 10 MiB the buffers of both sockets hold less than one, even where an
/// administrator has allowed twice the kernel's usual sizes.
const STALLED_REQUESTS: usize = 2;

/// Where a server is, and whether it is asked under TLS. An address alone is one without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address.
    pub address: SocketAddr,
    /// TLS; none for plain HTTP.
    pub tls: Option<Tls>,
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }
}

/// A path, and the answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// What is asked for.
    pub path: String,
    /// The body of the answer to GET, whose status is 200.
    pub body: Bytes,
    /// Whether HEAD must be answered with the same status. Servers of files do so by themselves; what is written on a
    /// framework answers the methods that it was written for, and may refuse this one.
    pub answers_head: bool,
}

/// Every page is asked for by GET, by HEAD and by GET again, all over one connection, which must be kept: bodies whole and
/// right, none after HEAD, and the same length told there, if one is told. `timeout` is for each answer.
///
/// # Errors
/// What was answered instead.
pub async fn complete_bytes(
    server: impl Into<Server>,
    pages: &[Page],
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let mut client = Connector::of(server).connect(timeout).await?;
    let mut without_head = Vec::new();
    for page in pages {
        let path = &page.path;
        for request in ["GET", "GET after HEAD"] {
            with_timeout(timeout, format!("{request} {path}"), client.get(page)).await?;
            if request == "GET" {
                let status = with_timeout(timeout, format!("HEAD {path}"), client.head(page)).await?;
                if status != 200 {
                    without_head
                        .push(format!("HEAD {path} was answered with status {status}, which it may be"));
                }
            }
        }
    }
    let paths: Vec<&str> = pages.iter().map(|page| page.path.as_str()).collect();
    let all = format!("answered right by GET, HEAD and GET over one connection: {}", paths.join(", "));
    Ok([vec![all], without_head].concat())
}

/// A client asks for `large` twice and reads nothing for a while; then others are served `small`, on connections from
/// before and on new ones; only when they are done the client reads, and all of both answers is right. So a server that
/// waits for one client alone is found. `large` must have more bytes than the buffers of two sockets hold. `timeout` is
/// for each of these.
///
/// # Errors
/// What the server did instead.
pub async fn stalled_reader(
    server: impl Into<Server>,
    large: &Page,
    small: &Page,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    const CONCURRENT_REQUEST: &str = "an answer beside a stalled reader";
    let connector = Connector::of(server);
    let mut others = Vec::new();
    for _ in 0..OTHER_CONNECTIONS {
        let mut client = connector.connect(timeout).await?;
        with_timeout(timeout, "a first answer", client.get(small)).await?;
        others.push(client);
    }
    let mut stalled = connector.connect(timeout).await?;
    stalled.stream.set_receive_buffer_bytes(STALLED_BUFFER_BYTES).map_err(|error| error.to_string())?;
    for _ in 0..STALLED_REQUESTS {
        with_timeout(timeout, "a request for much", stalled.send_request("GET", &large.path)).await?;
    }
    // What the server has sent cannot be seen from here without reading it.
    sleep(STALL_SAMPLE_INTERVAL * STALL_SAMPLES as u32).await;
    for _ in 0..OTHER_CONNECTIONS {
        others.push(connector.connect(timeout).await.map_err(|why| format!("{CONCURRENT_REQUEST}: {why}"))?);
    }
    for client in &mut others {
        for _ in 0..REQUESTS_PER_CONNECTION {
            with_timeout(timeout, CONCURRENT_REQUEST, client.get(small)).await?;
        }
    }
    for _ in 0..STALLED_REQUESTS {
        with_timeout(timeout, "what a stalled reader is owed", stalled.receive(large)).await?;
    }
    Ok(vec![format!(
        "{STALLED_REQUESTS} answers of {} bytes were not read for a while, {} other connections were served meanwhile, and \
         then all came right",
        large.body.len(),
        others.len()
    )])
}

/// So many connections at once, each with one GET of `page` that is answered right. `timeout` is for opening them, and
/// for each answer.
///
/// # Errors
/// How many failed, and how.
pub async fn many_connections(
    server: impl Into<Server>,
    connections: usize,
    page: &Page,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let server = server.into();
    let mut load = LoadConfig {
        connections,
        verify: true,
        connect_timeout: timeout,
        stall_timeout: timeout,
        ..LoadConfig::http(server.address, HOST, &page.path)
    };
    if let Protocol::Http(http) = &mut load.protocol {
        http.expected_body = Some(page.body.clone());
        http.tls = server.tls;
    }
    exchange_once_on_each(&load).await?;
    Ok(vec![format!(
        "{connections} connections at once, each with a GET of {} that was answered right",
        page.path
    )])
}

/// Where clients of a trial go.
struct Connector {
    address: Address,
    tls: Option<Rc<tls::TlsConnector>>,
}

impl Connector {
    fn of(server: impl Into<Server>) -> Self {
        let Server { address, tls } = server.into();
        Self { address: address.into(), tls: tls.as_ref().map(Tls::connector) }
    }

    async fn connect(&self, timeout: Duration) -> Result<Client, String> {
        let stream =
            match time::timeout(timeout, connect::connect(&self.address, None, self.tls.as_ref())).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return Err(format!("could not be connected to: {error}")),
                Err(_) => return Err(format!("could not be connected to within {timeout:?}")),
            };
        Ok(Client {
            stream,
            decoder: Decoder::default(),
            head_cache: HeadCache::default(),
            unread: Vec::new(),
        })
    }
}

/// One connection, over which one thing after the other is asked for.
struct Client {
    stream: Stream,
    decoder: Decoder,
    head_cache: HeadCache,
    /// Has come, and is not looked at yet.
    unread: Vec<u8>,
}

impl Client {
    async fn send_request(&mut self, method: &str, path: &str) -> Result<(), String> {
        let request = Bytes::from(format!("{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        let sent = poll_fn(|context| self.stream.poll_send(request.clone(), context)).await;
        sent.map_err(|error| format!("could not be asked for: {error}"))
    }

    async fn get(&mut self, page: &Page) -> Result<(), String> {
        self.send_request("GET", &page.path).await?;
        self.receive(page).await?;
        if self.unread.is_empty() { Ok(()) } else { Err("more came than was asked for".to_owned()) }
    }

    /// Asks for a head: its status. A body that follows it nevertheless is found here or, if it comes later, in front of the
    /// next answer.
    async fn head(&mut self, page: &Page) -> Result<u16, String> {
        self.send_request("HEAD", &page.path).await?;
        let head = self.receive_head().await?;
        self.decoder = Decoder::default();
        if !self.unread.is_empty() {
            return Err("a body came, and HEAD has none".to_owned());
        }
        let right = page.body.len() as u64;
        match head.status {
            200 => match head.body_bytes() {
                Some(bytes) if bytes != right => Err(format!("told {bytes} bytes, and GET has {right}")),
                _ => Ok(200),
            },
            status if page.answers_head => Err(format!("was answered with status {status}")),
            status => Ok(status),
        }
    }

    /// The next answer to GET, to its end.
    async fn receive(&mut self, page: &Page) -> Result<(), String> {
        let head = self.receive_head().await?;
        if head.status != 200 {
            return Err(format!("was answered with status {}", head.status));
        }
        let (right, mut received) = (&page.body, 0);
        loop {
            let mut input = self.unread.as_slice();
            let mut is_complete = false;
            while let Some(part) = self.decoder.next(&mut input, &mut self.head_cache).map_err(|why| why.0)? {
                match part {
                    Part::Body(data) => {
                        check_chunk(right, received, data)?;
                        received += data.len();
                    }
                    Part::Head(_) => return Err("a head came within a body".to_owned()),
                    Part::End => {
                        is_complete = true;
                        break;
                    }
                }
            }
            let rest = input.len();
            self.unread.drain(..self.unread.len() - rest);
            if is_complete {
                break;
            }
            self.read()
                .await
                .map_err(|why| format!("{received} of {} bytes came, then {why}", right.len()))?;
        }
        if received < right.len() {
            return Err(format!("has {received} bytes instead of {}", right.len()));
        }
        if head.closes_connection {
            return Err("the server closes the connection after its answer, and was not asked to".to_owned());
        }
        Ok(())
    }

    /// The head of the next answer.
    async fn receive_head(&mut self) -> Result<Head, String> {
        loop {
            let mut input = self.unread.as_slice();
            let part = self.decoder.next(&mut input, &mut self.head_cache);
            let part = part.map_err(|why| format!("no HTTP response: {}", why.0))?;
            let head = match part {
                Some(Part::Head(head)) => Some(head),
                Some(_) => return Err("a body came before its head".to_owned()),
                None => None,
            };
            let rest = input.len();
            self.unread.drain(..self.unread.len() - rest);
            match head {
                Some(head) => return Ok(head),
                None => self.read().await.map_err(|why| format!("instead of an answer {why}"))?,
            }
        }
    }

    /// Waits for more.
    async fn read(&mut self) -> Result<(), String> {
        match poll_fn(|context| self.stream.poll_receive(context)).await {
            Ok(None) => Err("the end".to_owned()),
            Ok(Some(received)) => {
                self.unread.extend_from_slice(&received);
                if let Received::Plaintext(plaintext) = received {
                    self.stream.recycle(plaintext);
                }
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Compares a piece of a body with what it must be, from byte `from` on.
fn check_chunk(right: &[u8], from: usize, chunk: &[u8]) -> Result<(), String> {
    let Some(expected) = right.get(from..from + chunk.len()) else {
        return Err(format!("has more than {} bytes", right.len()));
    };
    if expected == chunk {
        return Ok(());
    }
    let wrong = expected.iter().zip(chunk).take_while(|(right, came)| right == came).count();
    Err(format!("byte {} of {} is wrong", from + wrong, right.len()))
}

#[cfg(test)]
mod tests;
