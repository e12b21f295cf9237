//! Runs the correctness checks against correct and faulty servers that use blocking threads.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anello::net::{TcpListener as SimListener, TcpStream as SimStream};
use anello_test::tcp_server;

use crate::common::virtual_time::{self, for_each_simulated_kernel};

/// Starts a server with one thread for all connections. The thread calls `serve` for each connection that has data, and
/// closes the connection if `serve` returns `false`.
fn serial_server(serve: impl Fn(&mut TcpStream) -> bool + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let mut streams: Vec<TcpStream> = Vec::new();
        loop {
            streams.extend(listener.accept().map(|(stream, _)| stream));
            streams.retain_mut(|stream| {
                stream.set_nonblocking(true).unwrap();
                let peeked = stream.peek(&mut [0]);
                stream.set_nonblocking(false).unwrap();
                match peeked {
                    Ok(_) => serve(stream),
                    Err(error) => error.kind() == ErrorKind::WouldBlock,
                }
            });
            thread::sleep(Duration::from_millis(1));
        }
    });
    address
}

fn run<T>(future: impl Future<Output = T>) -> T {
    anello::Runtime::new().unwrap().block_on(future)
}

mod echo {
    use anello_load::check::{complete_bytes, many_connections, stalled_reader};

    use super::*;

    /// A test that takes longer than this has hung.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Starts a server that replies to each chunk with the result of `respond`, or closes the connection if it is
    /// `None`. `respond` is called with the number of bytes received, including this chunk, and with the chunk.
    fn server(respond: fn(usize, &[u8]) -> Option<Vec<u8>>) -> SocketAddr {
        tcp_server(move |mut stream| {
            let (mut total, mut buffer) = (0, [0; 16_384]);
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                total += count;
                let Some(reply) = respond(total, &buffer[..count]) else { break };
                stream.write_all(&reply)?;
            }
            Ok(())
        })
    }

    #[test]
    fn correct_server_passes_all_checks() {
        let target = server(|_, bytes| Some(bytes.to_vec()));
        run(async {
            assert!(complete_bytes(target, TIMEOUT).await.unwrap()[0].contains("1 MiB echoed correctly"));
            assert!(stalled_reader(target, TIMEOUT).await.unwrap()[0].contains("6 other connections"));
            assert!(
                many_connections(target, 40, TIMEOUT).await.unwrap()[0]
                    .starts_with("40 concurrent connections")
            );
        });
    }

    #[test]
    fn requests_are_sent_before_all_connections_are_open() {
        // Closes a connection if 100 others have sent no request, like a server with a timeout on a slow machine.
        static SILENT: AtomicUsize = AtomicUsize::new(0);
        let target = tcp_server(|mut stream| {
            let is_refused = SILENT.fetch_add(1, Ordering::SeqCst) >= 100;
            let mut buffer = [0; 16_384];
            let mut count = if is_refused { 0 } else { stream.read(&mut buffer)? };
            SILENT.fetch_sub(1, Ordering::SeqCst);
            while count > 0 {
                stream.write_all(&buffer[..count])?;
                count = stream.read(&mut buffer)?;
            }
            Ok(())
        });
        run(async {
            many_connections(target, 250, TIMEOUT).await.unwrap();
        });
    }

    #[test]
    fn corrupted_lost_and_duplicated_bytes_are_detected() {
        let corrupting = server(|total, bytes| {
            let mut reply = bytes.to_vec();
            if total > 100_000 {
                reply[0] ^= 1;
            }
            Some(reply)
        });
        let duplicating = server(|total, bytes| {
            Some(if total > 100_000 { [bytes, bytes].concat() } else { bytes.to_vec() })
        });
        let closing = server(|total, bytes| (total < 100_000).then(|| bytes.to_vec()));
        run(async {
            for (target, expected) in [(corrupting, "is wrong"), (duplicating, "is wrong")] {
                let error = complete_bytes(target, TIMEOUT).await.unwrap_err();
                assert!(error.contains(expected), "{error}");
                let error = stalled_reader(target, TIMEOUT).await.unwrap_err();
                assert!(error.starts_with("data for the stalled reader: byte "), "{error}");
            }
            let error = complete_bytes(closing, TIMEOUT).await.unwrap_err();
            assert!(error.contains("of 262147 bytes") || error.contains("of 65537 bytes"), "{error}");
        });
    }

    #[test]
    fn server_that_blocks_on_one_client_is_detected() {
        let target = serial_server(|stream| {
            let mut buffer = vec![0; 1 << 16];
            stream
                .read(&mut buffer)
                .is_ok_and(|count| count > 0 && stream.write_all(&buffer[..count]).is_ok())
        });
        run(async {
            complete_bytes(target, TIMEOUT).await.unwrap();
            let error = stalled_reader(target, Duration::from_secs(2)).await.unwrap_err();
            let expected = "message from another client during the stall: no complete reply within 2s";
            assert_eq!(error, expected);
        });
    }

    #[test]
    fn silent_server_times_out() {
        let timeout = Duration::from_millis(50);
        for_each_simulated_kernel(async || {
            let silent = virtual_time::server(async |mut stream: SimStream| {
                let mut total = 0;
                while let Some(chunk) = stream.recv().await? {
                    total += chunk.len();
                    if total <= 5 {
                        stream.write_all(&chunk).await?;
                    }
                }
                Ok(())
            });
            let error = complete_bytes(silent, timeout).await.unwrap_err();
            assert_eq!(error, "message of 3 bytes: no complete reply within 50ms");
            let error = many_connections(silent, 3, timeout).await.unwrap_err();
            assert!(error.starts_with("0 of 3 connections received a correct reply"), "{error}");
            let unused = SimListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            assert!(complete_bytes(unused, timeout).await.unwrap_err().contains("cannot connect"));
            assert!(many_connections(unused, 3, timeout).await.unwrap_err().contains("cannot open all"));
        });
    }
}

mod http {
    use std::net::Shutdown;
    use std::sync::OnceLock;

    use anello_load::check::http::{Page, complete_bytes, many_connections, stalled_reader};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// More than the buffers of two sockets can hold.
    const LARGE_BYTES: usize = 10 << 20;

    fn page(path: &str, bytes: usize) -> Page {
        let body: Vec<u8> = (0..bytes).map(|byte| (byte % 251) as u8).collect();
        Page { path: path.to_owned(), body: body.into(), answers_head: true }
    }

    fn pages() -> &'static [Page; 2] {
        static PAGES: OnceLock<[Page; 2]> = OnceLock::new();
        PAGES.get_or_init(|| [page("/small", 13), page("/large", LARGE_BYTES)])
    }

    /// Encodes a response with this status, header fields and body.
    fn response(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 {status}\r\n{fields}\r\n").as_bytes(), body].concat()
    }

    /// Returns the correct response to a request line.
    fn correct_response(line: &str) -> Vec<u8> {
        let is_requested = |page: &&Page| line.split(' ').nth(1) == Some(page.path.as_str());
        let Some(page) = pages().iter().find(is_requested) else {
            return response("404 Not Found", "Content-Length: 0\r\n", b"");
        };
        let body = if line.starts_with("HEAD ") { &[][..] } else { &page.body };
        response("200 OK", &format!("Content-Length: {}\r\n", page.body.len()), body)
    }

    /// Reads the head of a request. Returns its first line, or `None` at EOF.
    fn request(stream: &mut TcpStream) -> Option<String> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        String::from_utf8(head).ok()?.lines().next().map(str::to_owned)
    }

    /// Starts a server that closes the connection if `respond` returns an empty response.
    fn server(respond: fn(&str) -> Vec<u8>) -> SocketAddr {
        tcp_server(move |mut stream| {
            while let Some(line) = request(&mut stream) {
                let response = respond(&line);
                if response.is_empty() {
                    break;
                }
                stream.write_all(&response)?;
            }
            Ok(())
        })
    }

    fn complete(target: SocketAddr, pages: &[Page]) -> Result<Vec<String>, String> {
        run(complete_bytes(target, pages, TIMEOUT))
    }

    #[test]
    fn correct_server_passes_all_checks() {
        let target = server(correct_response);
        let [small, large] = pages();
        let details = complete(target, pages()).unwrap();
        assert_eq!(details, ["correct responses to GET, HEAD and GET over one connection: /small, /large"]);
        let details = run(stalled_reader(target, large, small, TIMEOUT)).unwrap();
        assert!(
            details[0].starts_with("2 responses of 10485760 bytes not read for a while; 6 other"),
            "{details:?}"
        );
        let details = run(many_connections(target, 40, small, TIMEOUT)).unwrap();
        assert_eq!(details, ["40 concurrent connections, each with a correct response to GET /small"]);
    }

    #[test]
    fn chunked_bodies_and_heads_without_length_are_accepted() {
        let target = server(|line| {
            let chunks = b"3\r\n\x00\x01\x02\r\nA\r\n\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\r\n0\r\n\r\n";
            let body = if line.starts_with("HEAD ") { &[][..] } else { chunks };
            response("200 OK", "Transfer-Encoding: chunked\r\n", body)
        });
        complete(target, &pages()[..1]).unwrap();
    }

    #[test]
    fn wrong_responses_are_detected() {
        let wrong_byte = server(|line| {
            let mut response = correct_response(line);
            if line.starts_with("GET /large ") {
                let last = response.len() - 1;
                response[last - 1000] ^= 1;
            }
            response
        });
        let body_after_head = server(|line| correct_response(&line.replace("HEAD ", "GET ")));
        let other_length = server(|line| match line.starts_with("HEAD ") {
            true => response("200 OK", "Content-Length: 12\r\n", b""),
            false => correct_response(line),
        });
        let too_short = server(|_| response("200 OK", "Content-Length: 5\r\n", &[0, 1, 2, 3, 4]));
        let too_long = server(|_| {
            response("200 OK", "Content-Length: 14\r\n", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
        });
        let twice = server(|line| [correct_response(line), correct_response(line)].concat());
        let absent = server(|_| response("404 Not Found", "Content-Length: 0\r\n", b""));
        let not_http = server(|_| b"Hello, World!\n\n".to_vec());
        for (target, expected) in [
            (wrong_byte, "GET /large: byte 10484759 of 10485760 is wrong"),
            (other_length, "HEAD /small: length is 12 bytes, but the response to GET has 13"),
            (too_short, "GET /small: body has 5 bytes (expected 13)"),
            (too_long, "GET /small: body has more than 13 bytes"),
            (absent, "GET /small: unexpected status 404"),
            (not_http, "GET /small: invalid HTTP response: "),
        ] {
            let error = complete(target, pages()).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        // Either error is possible: the body may arrive with the head or after it, and the duplicate response may
        // arrive with the original or later.
        let error = complete(body_after_head, pages()).unwrap_err();
        assert!(
            error.starts_with("HEAD /small: unexpected body")
                || error.starts_with("GET after HEAD /small: invalid HTTP"),
            "{error}"
        );
        let error = complete(twice, pages()).unwrap_err();
        assert!(
            error.contains(" /small: unexpected data after the response")
                || error.contains("unexpected body"),
            "{error}"
        );
    }

    #[test]
    fn head_may_be_rejected_by_handler_but_not_for_file() {
        let target = server(|line| match line.starts_with("HEAD ") {
            true => response("405 Method Not Allowed", "Content-Length: 19\r\n", b""),
            false => correct_response(line),
        });
        let [small, _] = pages();
        let handler = Page { answers_head: false, ..small.clone() };
        let details = complete(target, &[handler]).unwrap();
        assert_eq!(details[1], "HEAD /small: status 405 (accepted)");
        assert_eq!(complete(target, &pages()[..1]).unwrap_err(), "HEAD /small: unexpected status 405");
    }

    #[test]
    fn connections_not_kept_alive_are_detected() {
        let announcing = server(|line| {
            let page = pages().iter().find(|page| line.contains(&page.path)).unwrap();
            response("200 OK", "Connection: close\r\nContent-Length: 13\r\n", &page.body[..13])
        });
        let error = complete(announcing, pages()).unwrap_err();
        assert_eq!(error, "GET /small: connection not kept alive after the response");
        let closing_silently =
            server(|line| if line.starts_with("HEAD ") { Vec::new() } else { correct_response(line) });
        assert_eq!(complete(closing_silently, pages()).unwrap_err(), "HEAD /small: no response: EOF");
    }

    #[test]
    fn server_that_blocks_on_one_client_is_detected() {
        let target = serial_server(|stream| {
            request(stream).is_some_and(|line| stream.write_all(&correct_response(&line)).is_ok())
        });
        let [small, large] = pages();
        complete(target, pages()).unwrap();
        let error = run(stalled_reader(target, large, small, Duration::from_secs(2))).unwrap_err();
        assert_eq!(error, "response to another client during the stall: no complete reply within 2s");
    }

    #[test]
    fn lost_bytes_of_stalled_reader_are_detected() {
        let [small, large] = pages();
        let truncating = server(|line| match line.starts_with("GET /large ") {
            true => response("200 OK", &format!("Content-Length: {LARGE_BYTES}\r\n"), &[0, 1]),
            false => correct_response(line),
        });
        // The server's next response is treated as the rest of the body.
        let error = run(stalled_reader(truncating, large, small, TIMEOUT)).unwrap_err();
        assert!(error.starts_with("response to the stalled reader: byte 2 of 10485760 is wrong"), "{error}");
    }

    #[test]
    fn silent_server_times_out() {
        let timeout = Duration::from_millis(500);
        let [small, _] = pages();
        for_each_simulated_kernel(async || {
            let silent = virtual_time::server(async |mut stream: SimStream| {
                while stream.recv().await?.is_some() {}
                Ok(())
            });
            let error = complete_bytes(silent, &pages()[..1], timeout).await.unwrap_err();
            assert_eq!(error, "GET /small: no complete reply within 500ms");
            let error = many_connections(silent, 3, small, timeout).await.unwrap_err();
            assert!(error.starts_with("0 of 3 connections received a correct reply"), "{error}");
        });
        let wrong = server(|_| response("200 OK", "Content-Length: 13\r\n", &[7; 13]));
        let error = run(many_connections(wrong, 3, small, TIMEOUT)).unwrap_err();
        assert!(error.starts_with("0 of 3 connections received a correct reply: 3 × "), "{error}");
    }

    #[test]
    fn body_truncated_by_eof_is_detected() {
        let target = tcp_server(|mut stream| {
            request(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n\x00\x01")?;
            stream.shutdown(Shutdown::Both)
        });
        let error = complete(target, &pages()[..1]).unwrap_err();
        assert!(error.starts_with("GET /small: 2 of 13 bytes received, then "), "{error}");
    }
}
