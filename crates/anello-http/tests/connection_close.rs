//! How connections end, and go on, where the two sides could take it differently.

mod common;

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
use bytes::Bytes;
use futures_core::Stream;

use common::{Client, drivers, for_each_driver, real_drivers, serve, wait_until, with_long_timeouts};

#[test]
fn the_limit_of_requests_does_not_cut_what_the_client_still_sends() {
    for_each_driver(drivers(), async |kind| {
        let mut options = with_long_timeouts();
        options.limits.max_requests_per_connection = 2;
        let (server, address) = serve(options, async |_: Request| Response::text("answered"));
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.field("Connection"), None);
        let last = client.get("/").await;
        assert_eq!(last.field("Connection"), Some("close"));
        // The client cannot know that before it has read the answer: what it sends on must not reset the connection.
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(matches!(client.stream.recv().await, Ok(None)), "{kind}");
        sleep(Duration::from_millis(50)).await;
        assert_eq!(server.connections(), 1, "{kind}: it waits for the client's end");
        drop(client);
        wait_until(|| server.connections() == 0).await;
        // A client that says itself that it sends no more is not waited for.
        let mut client = Client::connect(address).await;
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert_eq!(client.response().await.expect("an answer").text(), "answered");
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn a_body_that_was_not_read_is_not_the_next_protocols() {
    for_each_driver(drivers(), async |kind| {
        let (server, address) = serve(with_long_timeouts(), async |_: Request| {
            Response::upgrade("echo", async |mut upgraded| {
                while let Ok(Some(bytes)) = upgraded.recv().await {
                    upgraded.write_all(&bytes).await.expect("sends");
                }
            })
        });
        let head = "POST / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n";
        for (framing, body) in
            [("Content-Length: 5", "hello"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
        {
            let mut client = Client::connect(address).await;
            // The body at once, or in a segment of its own.
            for cut in [body.len(), 0] {
                if framing.starts_with("Transfer") && cut == 0 {
                    // How much comes is not known: the connection ends.
                    client = Client::connect(address).await;
                    client.send(format!("{head}{framing}\r\n\r\n")).await;
                    client.response().await;
                    assert!(client.is_eof().await, "{kind}");
                    continue;
                }
                client = Client::connect(address).await;
                client.send(format!("{head}{framing}\r\n\r\n{}", &body[..cut])).await;
                assert_eq!(client.response().await.expect("an answer").status, 101, "{kind}");
                client.send(format!("{}other", &body[cut..])).await;
                let mut echoed = Vec::new();
                while echoed.len() < 5 {
                    echoed.extend_from_slice(&client.stream.recv().await.expect("bytes").expect("more"));
                }
                assert_eq!(echoed, b"other", "{kind}: {framing}, {cut}");
            }
            drop(client);
        }
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn a_client_that_was_not_asked_for_its_body_is_not_waited_for() {
    for_each_driver(drivers(), async |kind| {
        let (_server, address) = serve(with_long_timeouts(), async |mut request: Request| {
            // It wants the body, and then does not.
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
        let response = client.response().await.expect("an answer");
        assert_eq!((response.status, response.field("Connection")), (200, Some("close")), "{kind}");
        assert!(client.is_eof().await);
    });
}

/// Breaks behind its first piece.
struct Broken(Rc<Cell<bool>>);

impl Stream for Broken {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(Some(match self.0.replace(true) {
            false => Ok(Bytes::from(vec![b'x'; 20 << 10])),
            true => Err(io::Error::other("on purpose")),
        }))
    }
}

#[test]
fn a_broken_body_that_only_the_end_delimits_has_no_orderly_end() {
    for_each_driver(drivers(), async |kind| {
        let (server, address) = serve(with_long_timeouts(), async |_: Request| {
            Response::new(200).with_body(Body::stream(Broken(Rc::default())))
        });
        let mut client = Client::connect(address).await;
        client.send("GET / HTTP/1.0\r\n\r\n").await;
        let end = loop {
            match client.stream.recv().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{kind}: the client takes it for whole"),
                Err(error) => break error,
            }
        };
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset, "{kind}");
        wait_until(|| server.connections() == 0).await;
    });
}

/// An answer that fails after its first piece.
struct Failing {
    has_begun: bool,
}

impl Stream for Failing {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(Some(match std::mem::replace(&mut self.has_begun, true) {
            false => Ok(Bytes::from_static(b"piece")),
            true => Err(io::Error::other("on purpose")),
        }))
    }
}

#[test]
fn an_answer_that_fails_does_not_cut_those_before_it_though_the_client_still_sends() {
    const WHOLE_BYTES: usize = 4 << 20;
    for_each_driver(real_drivers(), async |kind| {
        let (server, address) = serve(with_long_timeouts(), async |request: Request| match request.path() {
            "/whole" => Response::text(vec![b'#'; WHOLE_BYTES]),
            _ => Response::new(200).with_body(Body::stream(Failing { has_begun: false })),
        });
        let client = spawn_blocking(move || {
            let mut client = std::net::TcpStream::connect(address).expect("connects");
            let mut sender = client.try_clone().expect("a duplicate");
            let sending = thread::spawn(move || {
                let whole = "GET /whole HTTP/1.1\r\nHost: h\r\n\r\n";
                let fails = "PUT /fails HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n";
                sender.write_all(format!("{whole}{fails}").as_bytes()).expect("sends");
                // It may be told that nobody wants more of it.
                sender.write_all(&[b'x'; 1_000_000]).ok();
            });
            thread::sleep(Duration::from_millis(50));
            let mut received = Vec::new();
            let ended = client.read_to_end(&mut received);
            sending.join().expect("it ends");
            (received, ended.map_err(|error| error.kind()))
        });
        let (received, ended) = client.await.expect("it ends");
        let whole_bytes = received.iter().filter(|byte| **byte == b'#').count();
        assert_eq!(whole_bytes, WHOLE_BYTES, "{kind}: {ended:?}");
        assert!(ended.is_ok() && received.ends_with(b"5\r\npiece\r\n"), "{kind}: {ended:?}");
        wait_until(|| server.connections() == 0).await;
    });
}
