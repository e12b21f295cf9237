//! A blocking client for HTTP/2 without TLS.

use std::io::{self, Read, Write};

use anello::net::{StreamFamily, StreamSocket, TcpStream, UnixStream};
use anello::{JoinHandle, Runtime};
use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;

/// The bytes of a client that requests `/hello.txt` once: preface, SETTINGS, HEADERS.
pub const GET_HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x11\x01\x05\0\0\0\x01\x82\x86\x41\x01h\x44\x0a/hello.txt";

/// The bytes of a client that requests `/large` once, with the largest windows: preface, SETTINGS, WINDOW_UPDATE, HEADERS.
pub const GET_LARGE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\
    \0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0\0\0\x0d\x01\x05\0\0\0\x01\x82\x86\x41\x01h\x44\x06/large";

/// A client connection. It makes progress only while a request is being sent.
pub struct Http2Client {
    requests: SendRequest<Bytes>,
    _connection: JoinHandle<()>,
    /// Dropped last: the others belong to it.
    runtime: Runtime,
}

impl Http2Client {
    pub fn connect(address: &str) -> Self {
        Self::connect_and_send(address, b"")
    }

    /// Connects to an IP address or a Unix socket, and sends these bytes before the preface.
    pub fn connect_and_send(address: &str, bytes: &[u8]) -> Self {
        let runtime = Runtime::new().expect("runtime");
        let (requests, connection) = runtime.block_on(async {
            match address.strip_prefix("unix:") {
                Some(path) => handshake(UnixStream::connect(path).await.expect("connect"), bytes).await,
                None => {
                    let address = address.parse::<std::net::SocketAddr>().expect("address");
                    handshake(TcpStream::connect(address).await.expect("connect"), bytes).await
                }
            }
        });
        Self { requests, _connection: connection, runtime }
    }

    /// Sends a request. Returns `None` if the server does not process it because it is shutting down, so that it can be
    /// repeated on another connection.
    pub fn send(&mut self, request: &http::Request<()>) -> Option<http::Response<Vec<u8>>> {
        let requests = self.requests.clone();
        let result = self.runtime.block_on(async {
            // This fails after GOAWAY. Nothing has been sent then.
            let Ok(mut requests) = requests.ready().await else { return Ok(None) };
            let (response, _) = requests.send_request(request.clone(), true)?;
            let (head, mut stream) = response.await?.into_parts();
            let mut body = Vec::new();
            while let Some(data) = stream.data().await {
                let data = data?;
                stream.flow_control().release_capacity(data.len())?;
                body.extend_from_slice(&data);
            }
            Ok(Some(http::Response::from_parts(head, body)))
        });
        result.unwrap_or_else(|error: h2::Error| {
            let is_refused = error.reason() == Some(Reason::REFUSED_STREAM)
                || error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
            assert!(is_refused, "request failed: {error}");
            None
        })
    }
}

async fn handshake<F: StreamFamily + 'static>(
    mut stream: StreamSocket<F>,
    first_bytes: &[u8],
) -> (SendRequest<Bytes>, JoinHandle<()>) {
    stream.write_all(first_bytes).await.expect("send");
    let (requests, connection) = h2::client::handshake(stream).await.expect("handshake");
    (requests, anello::spawn(async { connection.await.unwrap_or_default() }))
}

/// Sends requests in the form of HTTP/1.1 with HTTP/2, and returns the responses in that form.
pub struct TranslatingStream {
    client: Http2Client,
    request: Vec<u8>,
    response: io::Cursor<Vec<u8>>,
}

impl TranslatingStream {
    pub fn connect(address: &str) -> Self {
        Self::new(Http2Client::connect(address))
    }

    pub fn new(client: Http2Client) -> Self {
        Self { client, request: Vec::new(), response: io::Cursor::default() }
    }
}

impl Write for TranslatingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.request.extend_from_slice(bytes);
        if self.request.ends_with(b"\r\n\r\n") {
            let text = String::from_utf8(std::mem::take(&mut self.request)).expect("UTF-8");
            let mut lines = text.trim_end().split("\r\n");
            let mut words = lines.next().expect("request line").split(' ');
            let (method, path) = (words.next().expect("method"), words.next().expect("path"));
            let mut request = http::Request::builder().method(method).uri(format!("http://h{path}"));
            for line in lines {
                let (name, value) = line.split_once(": ").expect("field");
                if !matches!(name, "Host" | "Connection") {
                    request = request.header(name, value);
                }
            }
            let response = self.client.send(&request.body(()).expect("valid request")).expect("response");
            let mut text = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
            for (name, value) in response.headers() {
                text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
            }
            text.extend_from_slice(b"\r\n");
            text.extend_from_slice(response.body());
            self.response = io::Cursor::new(text);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TranslatingStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.response.read(bytes)
    }
}
