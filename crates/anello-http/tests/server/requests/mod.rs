//! Basic server behavior on every driver: the server responds to requests in order, however they arrive.

mod bodies;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::time::sleep;
use anello::yield_now;
use anello_http::h1::{EncodedResponse, FieldBlock, FieldName, Method};
use anello_http::{Body, Request, RequestBodyError, Response, ServerOptions};
use anello_test::{main_drivers_and_sim, run_on_each};
use bytes::Bytes;
use futures_core::Stream;

use crate::common::versions::{VERSIONS, Version, with_all_versions};
use crate::common::{Client, serve, wait_until};

/// A handler that responds with the request.
async fn mirror(mut request: Request) -> Response {
    let line = format!("{} {}", request.method_text(), request.target());
    match request.body().collect().await {
        Ok(body) => Response::text([line.as_bytes(), b" ", &body].concat()),
        Err(RequestBodyError::Rejected(rejection)) => Response::new(rejection.status),
        Err(_) => Response::new(400),
    }
}

/// A body stream that is pending once before each of its ten chunks.
struct PausingStream(u32);

impl Stream for PausingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.0 += 1;
        if self.0 % 2 == 1 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready((self.0 <= 20).then(|| Ok(Bytes::from(format!("chunk {};", self.0 / 2)))))
    }
}

async fn read_status_line(client: &mut Client) -> String {
    let line = client.read_line().await;
    while !client.read_line().await.is_empty() {}
    line
}

#[test]
fn connection_serves_requests_in_order() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        let mut client = Client::connect(address).await;
        for number in 0..5 {
            let response = client.get(&format!("/{number}")).await;
            assert_eq!((response.status, response.text()), (200, &*format!("GET /{number} ")));
            assert!(response.field("Date").is_some() && response.field("Connection").is_none());
        }
        client.send("HEAD /head HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let response = client.response_to("HEAD").await.expect("response");
        assert_eq!((response.field("Content-Length"), &*response.body), (Some("11"), &b""[..]));
        client.send("GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        let response = client.response().await.expect("response");
        assert_eq!((response.text(), response.field("Connection")), ("GET /last ", Some("close")));
        assert!(client.is_eof().await);
    });
}

#[test]
fn http_10_clients_receive_http_10_framing() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) =
            serve(ServerOptions::default(), async |request: Request| match request.path() {
                "/stream" => Response::new(200).with_body(Body::stream(PausingStream(0))),
                _ => Response::text("known"),
            });
        let mut client = Client::connect(address).await;
        client.send("GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let response = client.response().await.expect("response");
        assert_eq!((response.text(), response.field("Connection")), ("known", Some("keep-alive")));
        client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let response = client.response().await.expect("response");
        let expected: String = (1..=10).map(|number| format!("chunk {number};")).collect();
        assert_eq!((response.text(), response.field("Transfer-Encoding")), (&*expected, None));
        assert!(client.is_eof().await);
    });
}

#[test]
fn fault_24_ten_thousand_pipelined_requests_are_served_in_order_without_blocking_others() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        let count = 10_000;
        let (deep, mut other) = (Client::connect(address).await, Client::connect(address).await);
        let requests: String = (0..count).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: h\r\n\r\n")).collect();
        let (mut reader, mut writer) = deep.stream.into_split();
        let sending = anello::spawn(async move { writer.write_all(requests.as_bytes()).await });
        assert_eq!(other.get("/other").await.text(), "GET /other ");
        let mut received = Vec::new();
        let expected: Vec<String> = (0..count).map(|n| format!("GET /{n} ")).collect();
        let is_complete = |received: &[u8]| received.ends_with(expected[count - 1].as_bytes());
        while !is_complete(&received) {
            received.extend_from_slice(&reader.recv().await.expect("receive").expect("more data"));
        }
        sending.await.expect("task completes").expect("send");
        let text = String::from_utf8(received).expect("UTF-8 text");
        let bodies =
            text.split("\r\n\r\n").skip(1).map(|part| part.split("HTTP/1.1").next().unwrap_or_default());
        assert!(bodies.eq(expected.iter().map(String::as_str)));
        assert_eq!(other.get("/still").await.text(), "GET /still ");
    });
}

#[test]
fn invalid_request_is_rejected_and_closes_connection() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET /\u{0} HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            (format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(10_000)), 414),
            (format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "a".repeat(1 << 20)), 431),
            ("GET / HTTP/3.0\r\nHost: h\r\n\r\n".to_owned(), 505),
            ("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx".to_owned(), 400),
        ] {
            let mut client = Client::connect(address).await;
            // A valid request before the invalid one is served first.
            let requests = format!("GET /before HTTP/1.1\r\nHost: h\r\n\r\n{request}");
            let (mut reader, mut writer) = client.stream.into_split();
            let sending = anello::spawn(async move {
                writer.write_all(requests.as_bytes()).await.ok();
                writer
            });
            let mut received = Vec::new();
            while let Ok(Some(chunk)) = reader.recv().await {
                received.extend_from_slice(&chunk);
            }
            let text = String::from_utf8_lossy(&received);
            let (before, after) = text.split_once("GET /before ").expect("first response");
            assert!(before.starts_with("HTTP/1.1 200 OK\r\n"), "{before}");
            assert!(after.starts_with(&format!("HTTP/1.1 {status} ")), "{after}");
            assert!(after.contains("\r\nConnection: close\r\n"), "{after}");
            drop(sending.await);
            client = Client::connect(address).await;
            assert_eq!(client.get("/others").await.text(), "GET /others ");
        }
    });
}

#[test]
fn rejections_of_head_requests_have_no_content() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let mut options = ServerOptions::default();
        options.limits.max_body_bytes = 10;
        let (_server, address) = serve(options, mirror);
        for (request, status) in [
            ("HEAD / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("HEAD /\u{0}".to_owned(), 400),
            ("HEAD / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n".to_owned(), 413),
            (format!("HEAD /{}", "a".repeat(10_000)), 414),
            ("HEAD / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: x\r\n\r\n".to_owned(), 417),
            (format!("HEAD / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "a".repeat(1 << 20)), 431),
            ("HEAD / HTTP/3.0\r\nHost: h\r\n\r\n".to_owned(), 505),
        ] {
            // Send the request in one part, then with the method in a separate part.
            for (first, rest) in [("", &*request), request.split_at(3), request.split_at(5)] {
                let (mut reader, mut writer) = Client::connect(address).await.stream.into_split();
                let (first, rest) = (first.to_owned(), rest.to_owned());
                let sending = anello::spawn(async move {
                    writer.write_all(first.as_bytes()).await.ok();
                    yield_now().await;
                    writer.write_all(rest.as_bytes()).await.ok();
                    writer
                });
                let mut received = Vec::new();
                while let Ok(Some(chunk)) = reader.recv().await {
                    received.extend_from_slice(&chunk);
                }
                let text = String::from_utf8_lossy(&received);
                assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
                assert!(
                    text.contains("\r\nContent-Length: ") && text.find("\r\n\r\n") == Some(text.len() - 4),
                    "{text}"
                );
                drop(sending.await);
            }
        }
    });
}

#[test]
fn higher_minor_versions_are_processed_as_1_1() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        let mut client = Client::connect(address).await;
        for version in ["1.2", "1.9", "1.1"] {
            client.send(format!("GET /{version} HTTP/{version}\r\nHost: [v1.x]:1\r\n\r\n")).await;
            let response = client.response().await.expect("response");
            assert_eq!((response.status, response.text()), (200, &*format!("GET /{version} ")));
        }
    });
}

#[test]
fn fault_23_half_closed_client_receives_complete_response() {
    run_on_each(main_drivers_and_sim(), async |_| {
        for version in VERSIONS {
            let large = Bytes::from(vec![b'x'; 3 << 20]);
            let options = with_all_versions(ServerOptions::default());
            let (server, address) = serve(options, async move |_: Request| Response::text(large.clone()));
            let mut client = Client::connect(address).await;
            client.send(version.whole_get()).await;
            client.stream.shutdown().await.expect("shut down");
            assert_eq!(version.read_body_bytes(&mut client).await, 3 << 20, "{version:?}");
            while version == &Version::Http2 && !client.is_eof().await {
                // GOAWAY
                client.take_received();
            }
            assert!(client.is_eof().await, "{version:?}");
            wait_until(|| server.connections() == 0).await;
        }
    });
}

#[test]
fn invalid_responses_become_500() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), async |_: Request| Response::new(99));
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.status, 500);
        assert!(client.is_eof().await);
        // The response to HEAD has no body.
        let mut client = Client::connect(address).await;
        client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(read_status_line(&mut client).await.starts_with("HTTP/1.1 500 "));
        assert!(client.is_eof().await);
    });
}

/// A body stream of one chunk, which is ready immediately.
struct SingleChunk(Option<&'static str>);

impl Stream for SingleChunk {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Bytes::from(bytes))))
    }
}

#[test]
fn failed_response_does_not_affect_previous_ones() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (_server, address) =
            serve(ServerOptions::default(), async |request: Request| match request.path() {
                "/short" => Response::new(200)
                    .with_body(Body::stream_with_length(100, SingleChunk(Some("ten bytes.")))),
                "/long" => {
                    Response::new(200).with_body(Body::stream_with_length(5, SingleChunk(Some("ten bytes."))))
                }
                _ => Response::text("valid"),
            });
        for path in ["/short", "/long"] {
            let mut client = Client::connect(address).await;
            let valid = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
            client.send(format!("{valid}{valid}GET {path} HTTP/1.1\r\nHost: h\r\n\r\n{valid}")).await;
            for _ in 0..2 {
                assert_eq!(client.response().await.expect("response").text(), "valid", "{setup}: {path}");
            }
            while !client.is_eof().await {
                let rest = client.take_received();
                assert!(!rest.ends_with(b"valid"), "{setup}: {path}: {}", rest.escape_ascii());
            }
        }
    });
}

#[test]
fn handler_sees_method_fields_and_peer() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), async |request: Request| {
            assert_eq!(request.method(), Method::Delete);
            let value = request.field("x-value").unwrap_or_default();
            let response =
                Response::new(202).field(FieldName::constant("X-Echo"), value).expect("valid field value");
            response.with_body(format!("{:?}", request.peer().map(|peer| peer.ip())))
        });
        let mut client = Client::connect(address).await;
        client.send("DELETE /a HTTP/1.1\r\nHost: h\r\nX-Value:  some thing \r\n\r\n").await;
        let response = client.response().await.expect("response");
        assert_eq!((response.status, response.field("X-Echo")), (202, Some("some thing")));
        assert_eq!(response.text(), "Some(127.0.0.1)");
    });
}

#[test]
fn upgrades_to_another_protocol() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (server, address) =
            serve(ServerOptions::default(), async |request: Request| match request.upgrade() {
                Some(protocol) => Response::upgrade(protocol, async |mut upgraded| {
                    while let Ok(Some(bytes)) = upgraded.recv().await {
                        upgraded.write_all(&bytes.to_ascii_uppercase()).await.expect("send");
                    }
                    upgraded.shutdown().await.expect("shut down");
                }),
                None => Response::upgrade_required("shout"),
            });
        let mut client = Client::connect(address).await;
        let response = client.get("/").await;
        assert_eq!((response.status, response.field("Upgrade")), (426, Some("shout")));
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: shout\r\n\r\nciao").await;
        let response = client.response().await.expect("response");
        assert_eq!((response.status, response.field("Upgrade")), (101, Some("shout")));
        let mut received = client.take_received();
        client.send(" mondo").await;
        while received.len() < 10 {
            received.extend_from_slice(&client.stream.recv().await.expect("receive").expect("more data"));
        }
        assert_eq!(received, b"CIAO MONDO");
        client.stream.shutdown().await.expect("shut down");
        assert!(client.is_eof().await);
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn upgrade_requires_matching_request() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (_server, address) =
            serve(ServerOptions::default(), async |request: Request| match request.path() {
                "/bare" => Response::new(101),
                "/split" => Response::upgrade("chat\r\nSet-Cookie: a", async |_| {}),
                "/list" => Response::upgrade("CHAT, other", async |_| {}),
                _ => Response::upgrade("chat", async |_| {}),
            });
        let upgrade_fields = "Connection: upgrade\r\nUpgrade: none\r\nUpgrade: other/1, Chat ,other\r\n";
        for (line, fields, status, upgrade, connection) in [
            ("GET / HTTP/1.1", "", 426, Some("chat"), Some("upgrade")),
            ("GET / HTTP/1.1", "Upgrade: chat\r\n", 426, Some("chat"), Some("upgrade")),
            (
                "GET / HTTP/1.1",
                "Connection: upgrade\r\nUpgrade: chats\r\n",
                426,
                Some("chat"),
                Some("upgrade"),
            ),
            ("GET / HTTP/1.0", upgrade_fields, 426, Some("chat"), Some("close, upgrade")),
            ("GET /bare HTTP/1.1", upgrade_fields, 500, None, Some("close")),
            ("GET /split HTTP/1.1", upgrade_fields, 500, None, None),
            ("GET /list HTTP/1.1", upgrade_fields, 101, Some("CHAT, other"), Some("upgrade")),
            ("GET / HTTP/1.1", upgrade_fields, 101, Some("chat"), Some("upgrade")),
        ] {
            let mut client = Client::connect(address).await;
            client.send(format!("{line}\r\nHost: h\r\n{fields}\r\n")).await;
            let response = client.response().await.expect("response");
            let result = (response.status, response.field("Upgrade"), response.field("Connection"));
            assert_eq!(result, (status, upgrade, connection), "{setup}: {line} {fields}");
            if status == 426 && line.ends_with("1.1") {
                assert_eq!(client.get("/").await.status, 426, "{setup}: the connection is reused");
            }
        }
    });
}

#[test]
fn panicking_handler_returns_500_and_does_not_affect_others() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (server, address) = serve(ServerOptions::default(), async |mut request: Request| {
            match request.path() {
                "/at-once" => panic!("on purpose, immediately"),
                "/in-body" => {
                    request.body().next().await.ok();
                    panic!("on purpose, in the middle of a body")
                }
                _ => sleep(Duration::from_millis(5)).await,
            }
            if request.path() == "/later" {
                panic!("on purpose, later");
            }
            Response::text("well")
        });
        let mut other_client = Client::connect(address).await;
        assert_eq!(other_client.get("/").await.text(), "well");
        for request in [
            "GET /at-once HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /later HTTP/1.1\r\nHost: h\r\n\r\n",
            "POST /in-body HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf",
        ] {
            let mut client = Client::connect(address).await;
            client.send(request).await;
            let response = client.response().await.expect("response");
            assert_eq!((response.status, response.field("Connection")), (500, Some("close")), "{request}");
            assert!(client.is_eof().await, "{request}");
        }
        assert_eq!(other_client.get("/").await.text(), "well");
        drop(other_client);
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn encoded_response_can_be_modified() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let mut fields = FieldBlock::default();
        fields.push(FieldName::CONTENT_TYPE, b"text/plain").expect("valid field");
        let encoded = Rc::new(EncodedResponse::new(fields, b"known"));
        let (_server, address) = serve(ServerOptions::default(), async move |request: Request| {
            let response = Response::encoded(Rc::clone(&encoded));
            match request.path() {
                "/status" => response.with_status(404),
                "/field" => response.field(FieldName::VARY, b"Origin").expect("valid field"),
                "/body" => response.with_body("other body"),
                "/close" => response.with_connection_close(),
                _ => response,
            }
        });
        let mut client = Client::connect(address).await;
        for (path, status, text) in [
            ("/", 200, "known"),
            ("/status", 404, "known"),
            ("/field", 200, "known"),
            ("/body", 200, "other body"),
        ] {
            let response = client.get(path).await;
            assert_eq!((response.status, response.text()), (status, text), "{path}");
            assert_eq!(response.field("Content-Type"), Some("text/plain"), "{path}");
            assert_eq!(response.field("Vary").is_some(), path == "/field", "{path}");
            assert!(response.field("Date").is_some(), "{path}");
        }
        client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let response = client.response_to("HEAD").await.expect("response");
        assert_eq!((response.field("Content-Length"), &*response.body), (Some("5"), &b""[..]));
        client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let response = client.response().await.expect("response");
        assert_eq!((response.text(), response.field("Connection")), ("known", Some("keep-alive")));
        let response = client.get("/close").await;
        assert_eq!((response.text(), response.field("Connection")), ("known", Some("close")));
        assert!(client.is_eof().await);
    });
}
