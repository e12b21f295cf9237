//! Requests and responses, and the choice of the version.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use anello::net::TcpStream;
use anello_http::h1::{FieldBlock, FieldName, RequestFraming, TargetForm, Version};
use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogTarget};
use anello_http::server::Http2Mode;
use anello_http::service::{self, Incoming};
use anello_http::{Body, Request, Response, Server};
use anello_test::{main_drivers, main_drivers_and_sim, run_on_each};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, Either, Full, StreamBody};

use super::{Client, ClientResponse, PREFACE, complete, options, request, serve};
use crate::common::{self, tls};

#[test]
fn handler_receives_request_in_http_1_form() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |request: Request| {
            let cookie = request.field("cookie").unwrap_or_default();
            let host = request.fields_named("host").collect::<Vec<_>>();
            assert_eq!((request.version(), request.target_form()), (Version::Http2, TargetForm::Origin));
            assert_eq!((request.framing(), request.peer().is_some()), (RequestFraming::None, true));
            assert_eq!((request.path(), request.query(), host), ("/a", Some("b=c"), vec![&b"localhost"[..]]));
            Response::text(format!("{} {}", request.method_text(), String::from_utf8_lossy(cookie)))
        });
        let mut client = Client::connect(address).await;
        for _ in 0..3 {
            let mut request = request("GET", "/a?b=c");
            for cookie in ["x=1", "y=2"] {
                request.headers_mut().append("cookie", HeaderValue::from_static(cookie));
            }
            request.headers_mut().insert("host", HeaderValue::from_static("other"));
            let response = client.send(request).await;
            assert_eq!((response.status, response.text()), (200, "GET x=1; y=2"), "{setup}");
            assert_eq!((response.field("content-length"), response.field("date").len()), ("12", 29));
        }
    });
}

/// A worker reuses the memory of a head, and the parsed fields of a repeated head.
#[test]
fn repeated_heads_keep_framing_of_their_version() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |mut request: Request| {
            let (version, framing) = (request.version(), request.framing());
            let body = request.body().collect().await.expect("body");
            Response::text(format!("{version:?} {framing:?} {}", body.len()))
        });
        for _ in 0..3 {
            let mut client = Client::connect(address).await;
            for _ in 0..3 {
                assert_eq!(client.post("/", "body").await.text(), "Http2 Chunked 4", "{setup}");
                assert_eq!(client.send(request("POST", "/")).await.text(), "Http2 None 0", "{setup}");
            }
            // The same bytes as the text of the head above, which has no body in this version.
            let mut stream = TcpStream::connect(address).await.expect("connect");
            for _ in 0..3 {
                stream.send("POST / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("send");
            }
            stream.shutdown().await.expect("shutdown");
            let mut responses = Vec::new();
            while let Some(chunk) = stream.recv().await.expect("response") {
                responses.extend_from_slice(&chunk);
            }
            let responses = String::from_utf8(responses).expect("ASCII");
            assert_eq!(responses.matches("Http11 None 0").count(), 3, "{setup}: {responses}");
        }
    });
}

/// The server serves only some of them as soon as it accepts them.
#[test]
fn requests_sent_together_are_all_served() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options().http2_max_concurrent_streams(200), async |request: Request| {
            Response::text(request.query().unwrap_or_default().to_owned())
        });
        let mut client = Client::connect(address).await;
        let mut responses = Vec::new();
        for number in 0..200 {
            let (response, _) = client.start(request("GET", &format!("/?{number}")), true).await;
            responses.push(complete(response));
        }
        for (number, response) in join_all(responses).await.into_iter().enumerate() {
            assert_eq!(response.expect("response").text(), number.to_string(), "{setup}");
        }
    });
}

#[test]
fn bodies_are_sent_and_received_in_full() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |mut request: Request| match request.path() {
            "/stream" => {
                let chunks = (0..50).map(|index| Ok(Bytes::from(vec![index; 5000])));
                let trailers = || {
                    let mut fields = FieldBlock::default();
                    fields.push(FieldName::constant("Checksum"), b"17").expect("valid field");
                    fields
                };
                let chunks = futures_util::stream::iter(chunks);
                Response::new(200).with_body(Body::stream_with_trailers(chunks, trailers))
            }
            "/none" => Response::new(204),
            _ => {
                let body = request.body().collect().await.expect("body");
                let trailers = request.body().trailers();
                let checksum = trailers.as_ref().and_then(|trailers| trailers.field("checksum"));
                let response = Response::new(200).with_body(body);
                match checksum {
                    Some(checksum) => {
                        response.field(FieldName::constant("Checksum"), checksum).expect("valid")
                    }
                    None => response,
                }
            }
        });
        let mut client = Client::connect(address).await;
        let sizes = [0, 1, 100, 16 * 1024, 70_000, 1_000_000];
        let mut responses = Vec::new();
        for size in sizes {
            let (response, mut stream) = client.start(request("POST", "/"), false).await;
            stream.send_data(vec![b'u'; size].into(), false).expect("send body");
            let trailers =
                HeaderMap::from_iter([("checksum".parse().expect("name"), HeaderValue::from(size))]);
            stream.send_trailers(trailers).expect("send trailers");
            responses.push(complete(response));
        }
        for (response, size) in join_all(responses).await.into_iter().zip(sizes) {
            let ClientResponse { body, headers, .. } = response.expect("response");
            assert_eq!((body.len(), &headers["checksum"]), (size, &HeaderValue::from(size)), "{setup}");
        }
        let streamed = client.get("/stream").await;
        assert_eq!((streamed.body.len(), streamed.field("content-length")), (250_000, ""));
        assert_eq!(streamed.trailers["checksum"], "17");
        let head = client.send(request("HEAD", "/")).await;
        assert_eq!((head.status, head.body.len(), head.field("content-length")), (200, 0, "0"));
        let none = client.get("/none").await;
        assert_eq!((none.status, none.field("content-length")), (204, ""));
    });
}

#[test]
fn incorrect_response_resets_only_its_stream() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |request: Request| {
            let chunks = |chunks: Vec<io::Result<Bytes>>| futures_util::stream::iter(chunks);
            let short = || Ok(Bytes::from_static(b"short"));
            match request.path() {
                "/panic" => panic!("intended"),
                "/status" => Response::new(99),
                "/short" => Response::new(200).with_body(Body::stream_with_length(9, chunks(vec![short()]))),
                "/long" => Response::new(200).with_body(Body::stream_with_length(2, chunks(vec![short()]))),
                "/error" => Response::new(200)
                    .with_body(Body::stream(chunks(vec![short(), Err(io::Error::other("no"))]))),
                "/upgrade" => Response::upgrade("echo", async |_| {}),
                _ => Response::text("fine"),
            }
        });
        let mut client = Client::connect(address).await;
        for path in ["/panic", "/status"] {
            assert_eq!(client.get(path).await.status, 500, "{setup}: {path}");
        }
        for (path, reason) in [
            ("/short", h2::Reason::INTERNAL_ERROR),
            ("/long", h2::Reason::INTERNAL_ERROR),
            ("/error", h2::Reason::INTERNAL_ERROR),
            ("/upgrade", h2::Reason::HTTP_1_1_REQUIRED),
        ] {
            let (response, _) = client.start(request("GET", path), true).await;
            let error = complete(response).await.expect_err("stream is reset");
            assert_eq!(error.reason(), Some(reason), "{setup}: {path}");
        }
        assert_eq!(client.get("/").await.text(), "fine", "{setup}");
    });
}

#[test]
fn expect_continue_is_answered_when_body_is_read() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |mut request: Request| {
            assert!(request.expects_continue());
            let body = request.body().collect().await.expect("body");
            Response::new(200).with_body(body)
        });
        let mut client = Client::connect(address).await;
        let mut request = request("POST", "/");
        request.headers_mut().insert("expect", HeaderValue::from_static("100-continue"));
        let (mut response, mut stream) = client.start(request, false).await;
        let informational = std::future::poll_fn(|context| response.poll_informational(context)).await;
        let informational = informational.expect("informational response").expect("no error");
        assert_eq!(informational.status(), 100, "{setup}");
        stream.send_data("ciao".into(), true).expect("send body");
        assert_eq!(complete(response).await.expect("response").text(), "ciao");
    });
}

#[test]
fn fault_31_version_is_detected_for_every_split_of_the_preface() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address =
            serve(options(), async |request: Request| Response::text(format!("{:?}", request.version())));
        for split in 1..=PREFACE.len() {
            let mut client = common::Client::connect(address).await;
            let (first, second) = PREFACE.split_at(split);
            client.send(first).await;
            anello::yield_now().await;
            client.send(second).await;
            // The server's preface is a SETTINGS frame.
            assert_eq!(client.read_exact(9).await[3], 4, "{setup}: {split}");
        }
        for start in ["P", "PR", "PRI", "PRI * HTTP/2.0\r\n\r\nSM\r"] {
            let mut client = common::Client::connect(address).await;
            client.send(start).await;
            anello::yield_now().await;
            let rest = "OPFIND / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            client.send(rest).await;
            let response = client.response().await.expect("response");
            let expected = if start.len() < 4 { (200, "Http11") } else { (505, response.text()) };
            assert_eq!((response.status, response.text()), expected, "{setup}: {start}");
        }
        let mut client = common::Client::connect(address).await;
        assert_eq!(client.get("/").await.text(), "Http11");
        assert_eq!(client.get("/").await.text(), "Http11");
        for mode in [Http2Mode::Off, Http2Mode::Tls] {
            let address = serve(options().http2(mode), async |_: Request| Response::text(""));
            let mut client = common::Client::connect(address).await;
            client.send(PREFACE).await;
            assert_eq!(client.response().await.expect("response").status, 505, "{setup}: {mode:?}");
        }
    });
}

#[test]
fn tls_clients_negotiate_the_version() {
    run_on_each(main_drivers(), async |setup| {
        for (mode, expected) in [(Http2Mode::Tls, "Http2"), (Http2Mode::Off, "Http11")] {
            let (config, client) = tls::pair();
            let server = Server::builder().options(options().http2(mode)).tls(config).build();
            let listener = anello::net::TcpListener::bind("127.0.0.1:0").expect("bind");
            let address = listener.local_addr().expect("local address");
            let handler = async |request: Request| {
                let version = format!("{:?} ", request.version());
                Response::text(version + &"x".repeat(200_000))
            };
            server.serve(listener, handler).detach();
            let mut client = (*client).clone();
            client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let stream = anello::net::TcpStream::connect(address).await.expect("connect");
            let name = "localhost".try_into().expect("valid name");
            let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
            let stream = connector.connect(name, stream).await.expect("TLS handshake");
            if mode == Http2Mode::Off {
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]), "{setup}");
                continue;
            }
            let (requests, connection) = h2::client::handshake(stream).await.expect("handshake");
            let mut client = Client { requests, connection: anello::spawn(connection) };
            for _ in 0..3 {
                let response = client.get("/").await;
                assert!(response.text().starts_with(expected), "{setup}");
                assert_eq!(response.body.len(), expected.len() + 1 + 200_000, "{setup}");
            }
        }
    });
}

#[test]
fn services_receive_requests_of_both_versions() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let handler = service::from_fn(async |request: http::Request<Incoming>| {
            let (head, body) = request.into_parts();
            assert_eq!(head.version, http::Version::HTTP_2);
            let body = body.collect().await.expect("body");
            let trailers = Frame::trailers(body.trailers().cloned().expect("trailers"));
            let frames = [Frame::data(body.to_bytes()), trailers].map(Ok::<_, io::Error>);
            http::Response::new(StreamBody::new(futures_util::stream::iter(frames)))
        });
        let address = serve(options(), handler);
        let mut client = Client::connect(address).await;
        let (response, mut stream) = client.start(request("POST", "/"), false).await;
        stream.send_data("ciao".into(), false).expect("send body");
        let trailers = HeaderMap::from_iter([("checksum".parse().expect("name"), HeaderValue::from(1))]);
        stream.send_trailers(trailers).expect("send trailers");
        let response = complete(response).await.expect("response");
        assert_eq!(
            (response.text(), &response.trailers["checksum"]),
            ("ciao", &HeaderValue::from(1)),
            "{setup}"
        );
    });
}

/// Responses of gRPC have trailers, and a body whose length is often known.
#[test]
fn trailers_follow_bodies_of_known_length() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let handler = service::from_fn(async |request: http::Request<Incoming>| {
            let is_slow = request.uri().query().is_some();
            let declared = request.uri().path() == "/declared";
            let data = Bytes::from_static(if request.uri().path() == "/empty" { b"" } else { b"ciao" });
            let body = Full::new(data).with_trailers(async move {
                if is_slow {
                    anello::yield_now().await;
                }
                Some(Ok(HeaderMap::from_iter([("grpc-status".parse().expect("name"), HeaderValue::from(0))])))
            });
            if declared {
                // The length of a stream is not known.
                let body = StreamBody::new(body.into_stream());
                let response = http::Response::builder().header("content-length", 4);
                response.body(Either::Left(body)).expect("valid response")
            } else {
                http::Response::new(Either::Right(body))
            }
        });
        let address = serve(options(), handler);
        let mut client = Client::connect(address).await;
        for (path, expected) in [("/empty", ""), ("/exact", "ciao"), ("/declared", "ciao")] {
            for query in ["", "?slow"] {
                let response = client.get(&format!("{path}{query}")).await;
                assert_eq!(response.text(), expected, "{setup}: {path}{query}");
                let status = response.trailers.get("grpc-status");
                assert_eq!(status, Some(&HeaderValue::from(0)), "{setup}: {path}{query}");
            }
            let mut http_1 = common::Client::connect(address).await;
            assert_eq!(http_1.get(path).await.text(), expected, "{setup}: {path}");
        }
        assert_eq!(client.get("/exact").await.field("content-length"), "4");
        let head = client.send(request("HEAD", "/exact")).await;
        assert_eq!((head.field("content-length"), head.trailers.len()), ("4", 0), "{setup}");
    });
}

#[test]
fn access_log_names_the_version() {
    run_on_each(main_drivers(), async |setup| {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("access.log");
        let log = AccessLogOptions::default().target(LogTarget::File(path.clone()));
        let log = AccessLog::start(log).expect("start log");
        let server = Server::builder().options(options()).access_log(log.worker(0)).build();
        let listener = anello::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        let reset = Rc::new(std::cell::Cell::new(0));
        let counted = Rc::clone(&reset);
        let accepting = server.serve(listener, async move |request: Request| {
            let _on_drop = super::OnDrop(Rc::clone(&counted));
            if request.path() == "/pending" {
                std::future::pending::<()>().await;
            }
            Response::text("ciao")
        });
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/a").await.text(), "ciao");
        let (response, mut stream) = client.start(request("GET", "/pending"), true).await;
        client.get("/b").await;
        stream.send_reset(h2::Reason::CANCEL);
        assert!(response.await.is_err());
        common::wait_until(|| reset.get() == 3).await;
        let mut long = request("GET", "/c");
        long.headers_mut().insert("x", HeaderValue::from_bytes(&[b'x'; 30_000]).expect("valid"));
        for _ in 0..3 {
            long.headers_mut().append("expect", HeaderValue::from_static("nothing"));
        }
        assert_eq!(client.send(long).await.status, 417);
        accepting.abort();
        client.connection.abort();
        common::wait_until(|| server.connections() == 0).await;
        drop((accepting, server));
        log.close().expect("close log");
        let lines = std::fs::read_to_string(path).expect("read log");
        let lines: Vec<_> =
            lines.lines().map(|line| line.split('"').skip(1).take(2).collect::<String>()).collect();
        let expected = [
            "GET /a HTTP/2.0 200 4 ",
            "GET /b HTTP/2.0 200 4 ",
            "GET /pending HTTP/2.0 499 0 ",
            "GET /c HTTP/2.0 417 ",
        ];
        assert!(
            lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)),
            "{setup}: {lines:?}"
        );
    });
}
