//! Servers for tests, with a blocking thread for each connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Address that test listeners bind to.
pub const ANY_PORT: &str = "127.0.0.1:0";

/// Stack of a connection's thread. Small, because some tests open many connections.
const STACK_BYTES: usize = 128 << 10;

/// Starts a server that calls `serve` for each connection on a thread of its own, and runs until the process exits.
/// Returns its address. `serve` reports the end of a connection, such as a reset by the client, as an error.
pub fn tcp_server(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind(ANY_PORT).expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || serve_on(&listener, serve));
    address
}

/// Serves connections like [`tcp_server`], on this thread and until the process exits.
pub fn serve_on(listener: &TcpListener, serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) {
    serve_all(listener.incoming(), serve);
}

/// Starts a server like [`tcp_server`] on a Unix socket with this path.
pub fn unix_server(path: &Path, serve: impl Fn(UnixStream) -> io::Result<()> + Send + Sync + 'static) {
    let listener = UnixListener::bind(path).expect("a new socket");
    thread::spawn(move || serve_all(listener.incoming(), serve));
}

fn serve_all<S: Send + 'static>(
    streams: impl Iterator<Item = io::Result<S>>,
    serve: impl Fn(S) -> io::Result<()> + Send + Sync + 'static,
) {
    let serve = Arc::new(serve);
    for stream in streams.map_while(Result::ok) {
        let serve = Arc::clone(&serve);
        // An error ends the connection, and is visible to the test in what its client receives.
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || serve(stream).ok());
        drop(thread.expect("a thread"));
    }
}

/// Sends back what `change` makes of each received chunk, until EOF.
///
/// # Errors
///
/// Returns the error of the stream.
pub fn answer(mut stream: impl Read + Write, mut change: impl FnMut(&mut [u8])) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    while let count @ 1.. = stream.read(&mut buffer)? {
        change(&mut buffer[..count]);
        stream.write_all(&buffer[..count])?;
    }
    Ok(())
}

/// Sends back each received chunk, until EOF.
///
/// # Errors
///
/// Returns the error of the stream.
pub fn echo(stream: impl Read + Write) -> io::Result<()> {
    answer(stream, |_| {})
}

/// HTTP/1.1 request with a body of known length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Method, as in `GET`.
    pub method: String,
    /// Target, as in `/index.html`.
    pub target: String,
    /// Header fields without line endings, as in `Host: localhost`.
    pub fields: Vec<String>,
    /// Body of the length in `Content-Length`.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the value of the first field with this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter().filter_map(|field| field.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Reads a request. Returns `None` at EOF.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            if line.trim_end().is_empty() {
                break;
            }
            lines.push(line.trim_end().to_owned());
        }
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let first = lines.first().ok_or_else(invalid)?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, target) = words.next().zip(words.next()).ok_or_else(invalid)?;
        let mut request = Self { method, target, fields: lines.split_off(1), body: Vec::new() };
        let length = request.field("Content-Length").map_or(Ok(0), str::parse).map_err(|_| invalid())?;
        request.body.resize(length, 0);
        reader.read_exact(&mut request.body)?;
        Ok(Some(request))
    }
}

/// Sends the bytes that `respond` returns for each request, until EOF, an empty response, or the response to a request
/// with `Connection: close`.
///
/// # Errors
///
/// Returns the error of the stream, or `InvalidData` for a request that cannot be parsed.
pub fn serve_http(stream: impl Read + Write, mut respond: impl FnMut(&Request) -> Vec<u8>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        let response = respond(&request);
        if response.is_empty() {
            break;
        }
        reader.get_mut().write_all(&response)?;
        if request.field("Connection") == Some("close") {
            break;
        }
    }
    Ok(())
}

/// Returns a response with this status, as in `200 OK`, and with the length of its body.
pub fn http_response(status: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;

    /// Sends the bytes and EOF, and returns the response.
    fn exchange(address: SocketAddr, message: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.write_all(message).expect("send succeeds");
        stream.shutdown(Shutdown::Write).expect("a half-close");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    }

    #[test]
    fn tcp_servers_serve_each_connection() {
        let server = tcp_server(|stream| answer(stream, |chunk| chunk.make_ascii_uppercase()));
        let open = TcpStream::connect(server).expect("a connection");
        assert_eq!(exchange(server, b"one"), "ONE");
        drop(open);
        assert_eq!(exchange(tcp_server(echo), b"two"), "two");
    }

    #[test]
    fn http_servers_read_bodies_and_pipelined_requests() {
        let server = tcp_server(|stream| {
            serve_http(stream, |request| match request.field("host") {
                Some("a") => http_response("200 OK", [request.target.as_bytes(), &request.body].concat()),
                _ => Vec::new(),
            })
        });
        let requests = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok\
                        GET /y HTTP/1.1\r\nHost: a\r\n\r\nGET /z HTTP/1.1\r\n\r\n";
        let closing = "GET /z HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".repeat(2);
        let expected = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n/z";
        assert_eq!(exchange(server, closing.as_bytes()), expected);
        let expected = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n/xok\
                        HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n/y";
        assert_eq!(exchange(server, requests.as_bytes()), expected);
    }
}
