//! Closing and reusing connections in cases where client and server could disagree.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use anello::spawn_blocking;
use anello::time::sleep;
use anello_http::{Body, Request, Response};
use anello_test::{main_drivers, main_drivers_and_sim, run_on_each};
use bytes::Bytes;
use futures_core::Stream;

use crate::common::{Client, serve, wait_until, with_long_timeouts};

#[test]
fn request_limit_does_not_reset_sending_client() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = with_long_timeouts();
        options.limits.max_requests_per_connection = 2;
        let (server, address) = serve(options, async |_: Request| Response::text("served"));
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.field("Connection"), None);
        let last = client.get("/").await;
        assert_eq!(last.field("Connection"), Some("close"));
        // The client learns about the close only from the response. A request that it sent before that must not cause a
        // reset.
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(matches!(client.stream.recv().await, Ok(None)), "{setup}");
        sleep(Duration::from_millis(50)).await;
        assert_eq!(server.connections(), 1, "{setup}: the server waits for the client to close");
        drop(client);
        wait_until(|| server.connections() == 0).await;
        // The server does not wait for a client that requested the close itself.
        let mut client = Client::connect(address).await;
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert_eq!(client.response().await.expect("response").text(), "served");
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn unread_body_is_not_passed_to_upgraded_protocol() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (server, address) = serve(with_long_timeouts(), async |_: Request| {
            Response::upgrade("echo", async |mut upgraded| {
                while let Ok(Some(bytes)) = upgraded.recv().await {
                    upgraded.write_all(&bytes).await.expect("send");
                }
            })
        });
        let head = "POST / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n";
        for (framing, body) in
            [("Content-Length: 5", "hello"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
        {
            let mut client = Client::connect(address).await;
            // The body arrives with the head, or in a separate segment.
            for split in [body.len(), 0] {
                if framing.starts_with("Transfer") && split == 0 {
                    // The length of the outstanding body is unknown, so the server closes the connection.
                    client = Client::connect(address).await;
                    client.send(format!("{head}{framing}\r\n\r\n")).await;
                    client.response().await;
                    assert!(client.is_eof().await, "{setup}");
                    continue;
                }
                client = Client::connect(address).await;
                client.send(format!("{head}{framing}\r\n\r\n{}", &body[..split])).await;
                assert_eq!(client.response().await.expect("response").status, 101, "{setup}");
                client.send(format!("{}other", &body[split..])).await;
                let mut echoed = Vec::new();
                while echoed.len() < 5 {
                    echoed
                        .extend_from_slice(&client.stream.recv().await.expect("receive").expect("more data"));
                }
                assert_eq!(echoed, b"other", "{setup}: {framing}, {split}");
            }
            drop(client);
        }
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn response_without_100_continue_does_not_wait_for_body() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (_server, address) = serve(with_long_timeouts(), async |mut request: Request| {
            // The handler polls the body once and then ignores it.
            poll_fn(|context| {
                assert!(request.body().poll_next(context).is_pending());
                Poll::Ready(())
            })
            .await;
            Response::text("no need")
        });
        let mut client = Client::connect(address).await;
        let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        client.send(head).await;
        let response = client.response().await.expect("response");
        assert_eq!((response.status, response.field("Connection")), (200, Some("close")), "{setup}");
        assert!(client.is_eof().await);
    });
}

/// A body stream that fails after its first chunk.
struct LargeFailingStream(Rc<Cell<bool>>);

impl Stream for LargeFailingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(Some(match self.0.replace(true) {
            false => Ok(Bytes::from(vec![b'x'; 20 << 10])),
            true => Err(io::Error::other("on purpose")),
        }))
    }
}

#[test]
fn failed_body_delimited_by_eof_resets_connection() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (server, address) = serve(with_long_timeouts(), async |_: Request| {
            Response::new(200).with_body(Body::stream(LargeFailingStream(Rc::default())))
        });
        let mut client = Client::connect(address).await;
        client.send("GET / HTTP/1.0\r\n\r\n").await;
        let error = loop {
            match client.stream.recv().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{setup}: the client cannot detect the truncation"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{setup}");
        wait_until(|| server.connections() == 0).await;
    });
}

/// A body stream that fails after its first chunk, which is small.
struct FailingStream {
    has_started: bool,
}

impl Stream for FailingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(Some(match std::mem::replace(&mut self.has_started, true) {
            false => Ok(Bytes::from_static(b"chunk")),
            true => Err(io::Error::other("on purpose")),
        }))
    }
}

#[test]
fn failed_response_does_not_truncate_previous_ones_while_client_sends() {
    const LARGE_BYTES: usize = 4 << 20;
    run_on_each(main_drivers(), async |setup| {
        let (server, address) = serve(with_long_timeouts(), async |request: Request| match request.path() {
            "/large" => Response::text(vec![b'#'; LARGE_BYTES]),
            _ => Response::new(200).with_body(Body::stream(FailingStream { has_started: false })),
        });
        let client = spawn_blocking(move || {
            let mut client = std::net::TcpStream::connect(address).expect("connect");
            let mut sender = client.try_clone().expect("duplicate socket");
            let sending = thread::spawn(move || {
                let large = "GET /large HTTP/1.1\r\nHost: h\r\n\r\n";
                let fails = "PUT /fails HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n";
                sender.write_all(format!("{large}{fails}").as_bytes()).expect("send");
                // Fails if the server has closed the connection.
                sender.write_all(&[b'x'; 1_000_000]).ok();
            });
            thread::sleep(Duration::from_millis(50));
            let mut received = Vec::new();
            let result = client.read_to_end(&mut received);
            sending.join().expect("task completes");
            (received, result.map_err(|error| error.kind()))
        });
        let (received, result) = client.await.expect("task completes");
        let received_bytes = received.iter().filter(|byte| **byte == b'#').count();
        assert_eq!(received_bytes, LARGE_BYTES, "{setup}: {result:?}");
        assert!(result.is_ok() && received.ends_with(b"5\r\nchunk\r\n"), "{setup}: {result:?}");
        wait_until(|| server.connections() == 0).await;
    });
}
