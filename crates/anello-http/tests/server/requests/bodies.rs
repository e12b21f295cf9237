//! Bodies of requests and responses.

use super::*;
use anello_test::{main_drivers_and_sim, run_on_each, simulated_drivers, smallest};
use futures_util::stream::{StreamExt, once};

#[test]
fn reads_bodies_with_content_length_and_chunked() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        let mut client = Client::connect(address).await;
        let large = "0123456789".repeat(20_000);
        let head = format!("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", large.len());
        client.send(head + &large).await;
        let response = client.response().await.expect("response");
        assert_eq!(response.text(), format!("POST /length {large}"));
        client
            .send("PUT /chunks HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nciao\r\n")
            .await;
        for part in ["6\r\n mon", "do\r", "\n0\r", "\n\r\n"] {
            sleep(Duration::from_millis(1)).await;
            client.send(part).await;
        }
        assert_eq!(client.response().await.expect("response").text(), "PUT /chunks ciao mondo");
        assert_eq!(client.get("/after").await.text(), "GET /after ");
    });
}

#[test]
fn sends_100_continue_when_handler_reads_body() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) =
            serve(ServerOptions::default(), async |request: Request| match request.path() {
                "/unread" => Response::new(403),
                _ => mirror(request).await,
            });
        let mut client = Client::connect(address).await;
        let head = |path: &str| {
            format!("PUT {path} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        };
        client.send(head("/read")).await;
        assert_eq!(client.response().await.expect("interim response").status, 100);
        client.send("ciao").await;
        assert_eq!(client.response().await.expect("response").text(), "PUT /read ciao");
        // The body has already arrived, so no 100 Continue is sent.
        client.send(head("/read") + "ciao").await;
        assert_eq!(client.response().await.expect("response").text(), "PUT /read ciao");
        client.send(head("/unread")).await;
        let response = client.response().await.expect("response");
        assert_eq!((response.status, response.field("Connection")), (403, Some("close")));
        assert!(client.is_eof().await);
    });
}

#[test]
fn fault_30_unread_body_is_discarded_or_closes_connection() {
    let mut setups = main_drivers_and_sim();
    // A part of the body has arrived when the handler responds.
    setups.extend(simulated_drivers().into_iter().map(|mut setup| {
        smallest(&mut setup.options);
        setup
    }));
    run_on_each(setups, async |_| {
        let mut options = ServerOptions::default();
        options.max_discarded_body_bytes = 1000;
        let (_server, address) = serve(options, async |_: Request| Response::text("unread"));
        for (length, is_chunked) in
            [(10, false), (1000, false), (1001, false), (500_000, false), (10, true), (5000, true)]
        {
            let client = Client::connect(address).await;
            let body = "x".repeat(length);
            let request = match is_chunked {
                false => format!("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}"),
                true => format!(
                    "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
                ),
            };
            let (mut reader, mut writer) = client.stream.into_split();
            let sending = anello::spawn(async move {
                let sent = writer.write_all(request.as_bytes()).await;
                let next = writer.write_all(b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n").await;
                (sent, next, writer)
            });
            // Expect two complete responses, or one that announces the close.
            let mut received = Vec::new();
            while let Ok(Some(chunk)) = reader.recv().await {
                received.extend_from_slice(&chunk);
                let text = String::from_utf8_lossy(&received);
                if text.matches("HTTP/1.1 200 OK").count() == 2 && text.ends_with("unread") {
                    break;
                }
            }
            let text = String::from_utf8(received).expect("UTF-8 text");
            let responses = text.matches("HTTP/1.1 200 OK").count();
            let is_last = text.contains("Connection: close");
            assert_eq!(responses, if is_last { 1 } else { 2 }, "{length} {is_chunked}: {text}");
            if length > 1000 && !is_chunked {
                assert!(is_last, "{length}");
            }
            drop(sending.await.expect("task completes"));
        }
    });
}

#[test]
fn fault_30_body_unread_by_streamed_response_is_discarded_up_to_the_limit() {
    let mut setups = simulated_drivers();
    // A part of the body has arrived when the handler responds.
    setups.iter_mut().for_each(|setup| smallest(&mut setup.options));
    run_on_each(setups, async |_| {
        let mut options = ServerOptions::default();
        options.max_discarded_body_bytes = 1000;
        let (_server, address) = serve(options, async |request: Request| {
            let chunks = once(async move {
                // The response could read the body until here.
                drop(request);
                Ok(Bytes::from_static(b"ten bytes."))
            });
            Response::new(200).with_body(Body::stream_with_length(10, chunks))
        });
        for (length, is_kept_alive) in [(1000, true), (1001, false)] {
            let mut client = Client::connect(address).await;
            let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
            client.send(head + &"x".repeat(length) + "GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert_eq!(client.response().await.expect("response").text(), "ten bytes.");
            assert_eq!(client.response().await.is_some(), is_kept_alive, "{length}");
        }
    });
}

#[test]
fn body_kept_after_its_response_does_not_read_next_request() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let kept_body = Rc::new(Cell::new(None));
        let (_server, address) = serve(ServerOptions::default(), async move |mut request: Request| {
            if request.path() == "/keep" {
                let (_, body) = request.into_parts();
                kept_body.set(Some(body));
                return Response::text("kept");
            }
            let polling =
                kept_body.take().map(|mut body| poll_fn(move |context| Poll::Ready(body.poll_next(context))));
            let polled = match polling {
                Some(polling) => polling.await,
                None => Poll::Pending,
            };
            assert!(matches!(polled, Poll::Ready(Err(_))), "{polled:?}");
            Response::text(request.body().collect().await.expect("complete body"))
        });
        let mut client = Client::connect(address).await;
        for (path, body) in [("/keep", "first"), ("/next", "second")] {
            client
                .send(format!(
                    "PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ))
                .await;
            let expected = if path == "/keep" { "kept" } else { "second" };
            assert_eq!(client.response().await.expect("response").text(), expected);
        }
    });
}

#[test]
fn streams_are_sent_and_failures_truncate_response() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), async |request: Request| {
            let failing = || {
                stream_of_items([Ok(Bytes::from_static(b"beginning")), Err(io::Error::other("on purpose"))])
            };
            match request.path() {
                "/stream" => Response::new(200).with_body(Body::stream(PausingStream(0))),
                "/broken" => Response::new(200).with_body(Body::stream(failing())),
                "/short" => Response::new(200).with_body(Body::stream_with_length(1000, PausingStream(0))),
                _ => Response::new(200).with_body(Body::stream_with_length(20, failing())),
            }
        });
        let mut client = Client::connect(address).await;
        let response = client.get("/stream").await;
        let expected: String = (1..=10).map(|number| format!("chunk {number};")).collect();
        assert_eq!((response.text(), response.field("Transfer-Encoding")), (&*expected, Some("chunked")));
        assert_eq!(client.get("/stream").await.text(), expected);
        for path in ["/broken", "/short", "/broken_of_known_length"] {
            let mut client = Client::connect(address).await;
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            let mut received = Vec::new();
            while let Ok(Some(chunk)) = client.stream.recv().await {
                received.extend_from_slice(&chunk);
            }
            let text = String::from_utf8_lossy(&received);
            assert!(
                text.starts_with("HTTP/1.1 200 OK\r\n") && !text.ends_with("0\r\n\r\n"),
                "{path}: {text}"
            );
        }
    });
}

/// The message ends with its last byte: the next request is not delayed by a stream that does not end.
#[test]
fn body_of_known_length_ends_although_its_stream_is_pending() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), async |request: Request| {
            let parts = stream_of_items([Ok(Bytes::from_static(b"ten ")), Ok(Bytes::from_static(b"bytes."))]);
            let length = if request.path() == "/empty" { 0 } else { 10 };
            let chunks = parts.take(length as usize).chain(futures_util::stream::pending());
            Response::new(200).with_body(Body::stream_with_length(length, chunks))
        });
        let mut client = Client::connect(address).await;
        for _ in 0..3 {
            assert_eq!(client.get("/empty").await.text(), "");
            assert_eq!(client.get("/").await.text(), "ten bytes.");
        }
    });
}

/// Returns a body stream of these items, which are ready immediately.
fn stream_of_items<const N: usize>(items: [io::Result<Bytes>; N]) -> impl Stream<Item = io::Result<Bytes>> {
    struct Items<I>(I);
    impl<I: Iterator<Item = io::Result<Bytes>> + Unpin> Stream for Items<I> {
        type Item = io::Result<Bytes>;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
            Poll::Ready(self.0.next())
        }
    }
    Items(items.into_iter())
}

/// A body stream that echoes the chunks of a request body as they arrive, up to a maximum number of chunks.
struct EchoStream {
    request: Request,
    remaining_chunks: usize,
}

impl Stream for EchoStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.remaining_chunks == 0 {
            return Poll::Ready(None);
        }
        let chunk = self.request.body().poll_next(context).map_err(io::Error::other);
        if let Poll::Ready(Ok(Some(_))) = &chunk {
            self.remaining_chunks -= 1;
        }
        chunk.map(Result::transpose)
    }
}

async fn echo(request: Request) -> Response {
    let remaining_chunks = if request.path() == "/few" { 2 } else { usize::MAX };
    Response::new(200).with_body(Body::stream(EchoStream { request, remaining_chunks }))
}

/// Reads one chunk of a chunked response.
async fn read_chunk(client: &mut Client) -> Vec<u8> {
    let size = usize::from_str_radix(client.read_line().await.trim(), 16).expect("chunk size");
    let bytes = client.read_exact(size).await;
    assert_eq!(client.read_line().await, "");
    bytes
}

/// Reads the head of a response. Returns the status line.
#[test]
fn response_is_streamed_while_request_body_arrives() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (server, address) = serve(ServerOptions::default(), echo);
        let mut client = Client::connect(address).await;
        for expect_field in ["", "Expect: 100-continue\r\n"] {
            let fields = format!("Host: h\r\nTransfer-Encoding: chunked\r\n{expect_field}\r\n");
            client.send(format!("POST /all HTTP/1.1\r\n{fields}")).await;
            if !expect_field.is_empty() {
                assert_eq!(read_status_line(&mut client).await, "HTTP/1.1 100 Continue");
            }
            for number in 0..50 {
                // The next chunk is sent only after this one has been echoed.
                let chunk = format!("chunk {number}");
                client.send(format!("{:x}\r\n{chunk}\r\n", chunk.len())).await;
                if number == 0 {
                    assert_eq!(read_status_line(&mut client).await, "HTTP/1.1 200 OK", "{setup}");
                }
                assert_eq!(read_chunk(&mut client).await, chunk.as_bytes(), "{setup}");
            }
            client.send("0\r\n\r\n").await;
            assert!(read_chunk(&mut client).await.is_empty());
        }
        // The unread rest of the body is small enough to be discarded before the next request.
        let few = "POST /few HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
        client.send(few).await;
        assert_eq!(read_status_line(&mut client).await, "HTTP/1.1 200 OK");
        assert_eq!(read_chunk(&mut client).await, b"a");
        client.send("1\r\nb\r\n").await;
        assert_eq!(read_chunk(&mut client).await, b"b");
        assert!(read_chunk(&mut client).await.is_empty());
        client
            .send("1\r\nc\r\n0\r\n\r\nPOST /all HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nnext")
            .await;
        assert_eq!(client.response().await.expect("response").text(), "next");
        drop(client);
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn trailers_follow_chunked_body() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), async |_: Request| {
            let trailers = || {
                let (mut block, name) =
                    (FieldBlock::default(), FieldName::new("Checksum").expect("valid name"));
                block.push(name, b"42").expect("valid value");
                block
            };
            Response::new(200).with_body(Body::stream_with_trailers(PausingStream(0), trailers))
        });
        let mut client = Client::connect(address).await;
        for _ in 0..2 {
            client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert_eq!(client.response_to("HEAD").await.expect("response").status, 200);
            assert_eq!(read_status_line(&mut client).await, "HTTP/1.1 200 OK");
            for number in 1..=10 {
                assert_eq!(read_chunk(&mut client).await, format!("chunk {number};").as_bytes());
            }
            for line in ["0", "Checksum: 42", ""] {
                assert_eq!(client.read_line().await, line);
            }
        }
        // An HTTP/1.0 client receives a body that is delimited by EOF.
        client.send("GET / HTTP/1.0\r\n\r\n").await;
        let response = client.response().await.expect("response");
        assert!(response.text().ends_with("chunk 10;"), "{}", response.text());
        assert!(client.is_eof().await);
    });
}
