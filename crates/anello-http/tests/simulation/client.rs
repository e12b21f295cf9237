//! A client that checks all responses. It returns an error if the connection fails, and panics if a response is wrong.

use std::io::{self, ErrorKind};
use std::time::Duration;

use anello::net::{ReadHalf, TcpStream, WriteHalf};
use anello::sim::Control;
use anello::time::{sleep, timeout};
use futures_util::future::try_join;

use super::http2_client::Http2Client;
use super::pattern;
use super::servers::Stack;

/// Time limit for all requests that are sent together.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Sizes of the files that the server has. Each one is named after its size.
pub const FILE_BYTES: [u64; 4] = [0, 100, 5000, 200_000];

/// Number of the kinds of requests.
pub const KINDS: u64 = FILE_KIND + 1;

/// The kind that is an HTTP/1.0 request. The end of the connection marks the end of its response.
pub const HTTP_1_0_KIND: u64 = 6;

/// The kind that requests a file.
pub const FILE_KIND: u64 = 7;

/// A request and its expected response. The server repeats the number of the request in the response.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub number: u64,
    pub path: String,
    /// Body of a POST request. `None` for GET.
    pub body: Option<Vec<u8>>,
    /// The request over HTTP/1.1 or HTTP/1.0.
    request: Vec<u8>,
    /// Expected body of the response.
    expected: Vec<u8>,
    /// Set if the connection must be closed after the response, whose end marks the end of the body.
    is_last: bool,
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").into_bytes()
}

/// Returns a request with a body, chunked or with its length.
fn post(path: &str, body: &[u8], is_chunked: bool) -> Vec<u8> {
    let framing = match is_chunked {
        true => "Transfer-Encoding: chunked".to_owned(),
        false => format!("Content-Length: {}", body.len()),
    };
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: server\r\n{framing}\r\n\r\n").into_bytes();
    if !is_chunked {
        request.extend_from_slice(body);
        return request;
    }
    for chunk in body.chunks(3000) {
        request.extend(format!("{:x}\r\n", chunk.len()).bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
}

impl Exchange {
    /// Creates an exchange of one of the kinds, with a random number and random sizes.
    pub fn new(kind: u64, control: &Control) -> Self {
        let (number, size) = (control.random() >> 1, control.random());
        // Most bodies are small, so that many requests are in progress when a fault happens.
        let bytes = if size.is_multiple_of(8) { size % 60_000 } else { size % 3000 };
        let body = pattern(number, 0..bytes);
        let (path, sent_body, expected) = match kind {
            0 => (format!("/bytes/{number}/{bytes}"), None, body),
            1 | HTTP_1_0_KIND => (format!("/stream/{number}/{bytes}"), None, body),
            2 => (format!("/sized/{number}/{bytes}"), None, body),
            3 => (format!("/slow/{number}/{}", size % 6000), None, pattern(number, 0..10)),
            4 => (format!("/upload/{number}"), Some(body.clone()), digest(&body)),
            5 => (format!("/echo/{number}"), Some(body.clone()), body),
            _ => {
                let bytes = FILE_BYTES[size as usize % FILE_BYTES.len()];
                (format!("/files/{bytes}"), None, pattern(bytes, 0..bytes))
            }
        };
        let is_last = kind == HTTP_1_0_KIND;
        let request = match &sent_body {
            Some(body) => post(&path, body, size.is_multiple_of(2)),
            None if is_last => format!("GET {path} HTTP/1.0\r\n\r\n").into_bytes(),
            None => get(&path),
        };
        Self { number, path, body: sent_body, request, expected, is_last }
    }

    /// Checks a response.
    ///
    /// # Errors
    /// Returns an error if the server did not receive the request in time.
    pub fn check(&self, response: &Response) -> io::Result<()> {
        match response.status {
            200 => {}
            400 | 408 => return Err(ErrorKind::TimedOut.into()),
            status => panic!("status {status}"),
        }
        if let Some(number) = response.number {
            assert_eq!(number, self.number, "response to another request than {}", self.path);
        }
        let (expected, body) = (&self.expected, &response.body);
        assert!(body == expected, "{} instead of {} bytes: {}", body.len(), expected.len(), self.path);
        Ok(())
    }
}

/// Returns what the server responds to an upload: the number of bytes and a checksum.
pub fn digest(body: &[u8]) -> Vec<u8> {
    let sum = body.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("{} {sum}", body.len()).into_bytes()
}

/// A complete response.
pub struct Response {
    pub status: u16,
    /// Number of the request, unless it is for a file.
    pub number: Option<u64>,
    pub body: Vec<u8>,
    pub is_last: bool,
}

/// A connection to a server.
pub enum Connection {
    Http1(TcpStream),
    Http2(Http2Client),
}

impl Connection {
    /// Connects to a host, with a time limit.
    pub async fn open(host: &str, stack: Stack) -> io::Result<Self> {
        let stream = timeout(Duration::from_secs(5), TcpStream::connect((host, 80))).await??;
        match stack {
            Stack::Http2 => Ok(Self::Http2(Http2Client::new(stream).await?)),
            _ => Ok(Self::Http1(stream)),
        }
    }

    /// Sends all requests together, and checks the responses. Returns whether the connection can be used again.
    ///
    /// # Errors
    /// Returns an error if the connection fails, the time limit is reached or the server rejects a request.
    pub async fn exchange(&mut self, exchanges: &[Exchange], control: &Control) -> io::Result<bool> {
        let exchanged = async {
            match self {
                Self::Http1(stream) => {
                    let (reader, writer) = stream.split();
                    let receiving = receive_all(reader, exchanges);
                    Ok(try_join(send_all(writer, exchanges, control), receiving).await?.1)
                }
                Self::Http2(client) => client.exchange(exchanges, control).await.map(|()| true),
            }
        };
        timeout(EXCHANGE_TIMEOUT, exchanged).await?
    }
}

async fn send_all(
    mut writer: WriteHalf<&TcpStream>,
    exchanges: &[Exchange],
    control: &Control,
) -> io::Result<()> {
    let requests: Vec<u8> = exchanges.iter().flat_map(|exchange| exchange.request.iter().copied()).collect();
    let mut rest = &requests[..];
    while !rest.is_empty() {
        let bound = if control.random().is_multiple_of(2) { 50 } else { 10_000 };
        let (part, tail) = rest.split_at(rest.len().min(1 + (control.random() % bound) as usize));
        writer.write_all(part).await?;
        rest = tail;
        if control.random().is_multiple_of(16) {
            writer.flush().await?;
            sleep(Duration::from_millis(control.random() % 30)).await;
        }
    }
    writer.flush().await
}

async fn receive_all(reader: ReadHalf<&TcpStream>, exchanges: &[Exchange]) -> io::Result<bool> {
    let mut receiver = Receiver { reader, received: Vec::new() };
    let mut is_last = false;
    for exchange in exchanges {
        assert!(!is_last || !exchange.is_last, "the request that closes the connection is the last one");
        let response = receiver.response().await?;
        exchange.check(&response)?;
        is_last = response.is_last;
        if is_last {
            break;
        }
    }
    assert!(receiver.received.is_empty(), "bytes after the last response");
    Ok(!is_last)
}

struct Receiver<'a> {
    reader: ReadHalf<&'a TcpStream>,
    received: Vec<u8>,
}

impl Receiver<'_> {
    /// Receives more bytes. Returns `false` at EOF.
    async fn receive_more(&mut self) -> io::Result<bool> {
        let chunk = self.reader.recv().await?;
        self.received.extend_from_slice(chunk.as_deref().unwrap_or_default());
        Ok(chunk.is_some())
    }

    /// Like [`receive_more`](Self::receive_more), but fails at EOF.
    async fn require_more(&mut self) -> io::Result<()> {
        if self.receive_more().await? { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    async fn response(&mut self) -> io::Result<Response> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut head = httparse::Response::new(&mut fields);
            let parsed = head.parse(&self.received).expect("valid response head");
            let httparse::Status::Complete(head_bytes) = parsed else {
                self.require_more().await?;
                continue;
            };
            let field = |name: &str| {
                let found = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                found.map(|field| str::from_utf8(field.value).expect("UTF-8").to_owned())
            };
            let (status, is_http_1_0) = (head.code.expect("status"), head.version == Some(0));
            let (length, coding) = (field("content-length"), field("transfer-encoding"));
            let number = field("x-number").map(|number| number.parse().expect("number"));
            let mut is_last = is_http_1_0 || field("connection").is_some_and(|options| options == "close");
            self.received.drain(..head_bytes);
            let body = if let Some(length) = length {
                self.read_exact(length.parse().expect("length")).await?
            } else if coding.is_some() {
                self.read_chunks().await?
            } else {
                is_last = true;
                while self.receive_more().await? {}
                std::mem::take(&mut self.received)
            };
            return Ok(Response { status, number, body, is_last });
        }
    }

    async fn read_exact(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.received.len() < length {
            self.require_more().await?;
        }
        Ok(self.received.drain(..length).collect())
    }

    async fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let (line_bytes, chunk_bytes) = loop {
                match httparse::parse_chunk_size(&self.received).expect("chunk size") {
                    httparse::Status::Complete(parsed) => break parsed,
                    httparse::Status::Partial => self.require_more().await?,
                }
            };
            self.received.drain(..line_bytes);
            body.extend(self.read_exact(chunk_bytes as usize).await?);
            assert_eq!(self.read_exact(2).await?, b"\r\n");
            if chunk_bytes == 0 {
                return Ok(body);
            }
        }
    }
}
