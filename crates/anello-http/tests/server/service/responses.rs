//! Conversion of responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use anello_test::{main_drivers_and_sim, run_on_each};
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tower::service_fn;

use super::*;

/// A body that yields frames, and is pending once before each frame if `is_slow`.
struct Frames {
    frames: std::vec::IntoIter<Frame<Bytes>>,
    exact: Option<u64>,
    is_slow: bool,
    is_pending: bool,
}

impl Frames {
    fn new(parts: &[&'static str], exact: Option<u64>, is_slow: bool) -> Self {
        let frames: Vec<_> =
            parts.iter().map(|part| Frame::data(Bytes::from_static(part.as_bytes()))).collect();
        Self { frames: frames.into_iter(), exact, is_slow, is_pending: false }
    }

    fn with_trailers(self, trailers: &[(&'static str, &'static str)]) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in trailers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let frames: Vec<_> = self.frames.chain([Frame::trailers(map)]).collect();
        Self { frames: frames.into_iter(), ..self }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.is_pending = self.is_slow && !self.is_pending;
        if self.is_pending {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.frames.next().map(Ok))
    }

    fn size_hint(&self) -> SizeHint {
        self.exact.map(SizeHint::with_exact).unwrap_or_default()
    }
}

fn framing(response: &ClientResponse) -> (Option<&str>, Option<&str>, &str) {
    (response.field("Content-Length"), response.field("Transfer-Encoding"), response.text())
}

#[test]
fn bodies_are_sent_with_length_or_chunked() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let is_slow = request.uri().query().is_some();
            http::Response::new(match request.uri().path() {
                "/empty" => Frames::new(&[], None, is_slow),
                "/one" => Frames::new(&["ciao"], None, is_slow),
                "/many" => Frames::new(&["ci", "", "ao", "!"], None, is_slow),
                "/exact" => Frames::new(&["ci", "a", "o"], Some(4), is_slow),
                "/trailers" => Frames::new(&["ciao"], None, is_slow)
                    .with_trailers(&[("checksum", "17"), ("content-length", "5")]),
                "/only-trailers" => Frames::new(&[], None, is_slow).with_trailers(&[("checksum", "17")]),
                _ => Frames::new(&["ciao"], Some(4), is_slow).with_trailers(&[("checksum", "17")]),
            })
        });
        let mut client = Client::connect(address).await;
        for (path, expected) in [
            ("/empty", (Some("0"), None, "")),
            ("/empty?", (None, Some("chunked"), "")),
            ("/one", (Some("4"), None, "ciao")),
            ("/one?", (None, Some("chunked"), "ciao")),
            ("/many", (None, Some("chunked"), "ciao!")),
            ("/many?", (None, Some("chunked"), "ciao!")),
            ("/exact", (Some("4"), None, "ciao")),
            ("/exact?", (Some("4"), None, "ciao")),
            ("/exact-with-trailers", (Some("4"), None, "ciao")),
        ] {
            assert_eq!(framing(&client.get(path).await), expected, "{path}");
        }
        for (path, end) in [
            ("/trailers", "4\r\nciao\r\n0\r\nchecksum: 17\r\n\r\n"),
            ("/trailers?", "4\r\nciao\r\n0\r\nchecksum: 17\r\n\r\n"),
            ("/only-trailers", "\r\n\r\n0\r\nchecksum: 17\r\n\r\n"),
        ] {
            let mut client = Client::connect(address).await;
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).await;
            let mut received = Vec::new();
            while let Some(chunk) = client.stream.recv().await.expect("response") {
                received.extend_from_slice(&chunk);
            }
            let text = String::from_utf8(received).expect("UTF-8 text");
            assert!(text.ends_with(end), "{path}: {text}");
        }
    });
}

#[test]
fn responses_without_body_keep_their_fields() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let response = http::Response::builder();
            let (response, body) = match request.uri().path() {
                "/declared" => (response.header("content-length", "12"), Frames::new(&[], Some(0), false)),
                "/exact" => (response, Frames::new(&["ciao"], Some(4), false)),
                "/omitted" => (response, Frames::new(&[], Some(0), false)),
                status => (response.status(&status[1..]), Frames::new(&["ciao"], Some(4), false)),
            };
            response.header("x-kept", "yes").body(body).expect("valid response")
        });
        let mut client = Client::connect(address).await;
        for (method, path, status, length) in [
            ("HEAD", "/declared", 200, Some("12")),
            ("HEAD", "/exact", 200, Some("4")),
            ("HEAD", "/omitted", 200, None),
            ("GET", "/204", 204, None),
            ("GET", "/205", 205, Some("0")),
            ("GET", "/304", 304, None),
            ("GET", "/exact", 200, Some("4")),
        ] {
            client.send(format!("{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            let response = client.response_to(method).await.expect("response");
            let fields = (response.field("Content-Length"), response.field("x-kept"));
            assert_eq!((response.status, fields), (status, (length, Some("yes"))), "{method} {path}");
        }
    });
}

#[test]
fn reserved_fields_of_application_are_interpreted() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let response = http::Response::builder();
            let (response, exact) = match request.uri().path() {
                "/coding" => {
                    (response.header("transfer-encoding", "gzip").header("keep-alive", "a"), Some(4))
                }
                "/wrong" => (response.header("content-length", "5"), Some(4)),
                "/declared" => (response.header("content-length", "4"), None),
                "/date" => (response.header("date", "Thu, 01 Jan 1970 00:00:00 GMT"), Some(4)),
                "/upgrade" => (response.status(426).header("upgrade", "echo"), Some(4)),
                _ => (response.header("connection", "x, Close"), Some(4)),
            };
            response.body(Frames::new(&["ciao"], exact, true)).expect("valid response")
        });
        let mut client = Client::connect(address).await;
        for path in ["/coding", "/wrong", "/declared"] {
            let response = client.get(path).await;
            assert_eq!(framing(&response), (Some("4"), None, "ciao"), "{path}");
            assert_eq!(response.field("Keep-Alive"), None);
        }
        let response = client.get("/date").await;
        let dates: Vec<_> =
            response.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("date")).collect();
        assert_eq!((dates.len(), &*dates[0].1), (1, "Thu, 01 Jan 1970 00:00:00 GMT"));
        let response = client.get("/upgrade").await;
        assert_eq!(
            (response.field("Upgrade"), response.field("Connection")),
            (Some("echo"), Some("upgrade"))
        );
        assert_eq!(client.get("/close").await.field("Connection"), Some("close"));
        assert!(client.is_eof().await);
    });
}

#[test]
fn failed_bodies_truncate_response() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let (_server, address) = serve(
            ServerOptions::default(),
            service::from_fn(async |request: http::Request<Incoming>| {
                let items = [Ok(Frame::data(Bytes::from_static(b"beginning"))), Err("on purpose")];
                let items = items.into_iter().skip(usize::from(request.uri().path() == "/first"));
                http::Response::new(http_body_util::StreamBody::new(futures_util::stream::iter(items)))
            }),
        );
        for (path, is_sent) in [("/", true), ("/first", false)] {
            let mut client = Client::connect(address).await;
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            let mut received = Vec::new();
            while let Ok(Some(chunk)) = client.stream.recv().await {
                received.extend_from_slice(&chunk);
            }
            let text = String::from_utf8(received).expect("UTF-8 text");
            assert_eq!(text.contains("beginning"), is_sent, "{text}");
            assert!(text.contains("chunked") && !text.ends_with("0\r\n\r\n"), "{text}");
        }
    });
}

#[test]
fn errors_and_panics_of_service_become_500() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let service = service_fn(async |request: http::Request<Incoming>| match request.uri().path() {
            "/panic" => panic!("on purpose"),
            "/error" => Err("on purpose"),
            _ => {
                let body =
                    http_body_util::StreamBody::new(futures_util::stream::poll_fn(|_| panic!("on purpose")));
                let body: http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible> = body.boxed_unsync();
                Ok(http::Response::new(body))
            }
        });
        let (_server, address) = serve(ServerOptions::default(), service::handler(service));
        for path in ["/panic", "/error", "/panic-in-body"] {
            let response = exchange(address, format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            assert_eq!(response.status, 500, "{path}");
        }
    });
}

#[test]
fn large_body_is_sent_completely() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let large = Bytes::from("0123456789".repeat(50_000));
        let expected = large.clone();
        let address =
            serve_fn(async move |_: http::Request<Incoming>| http::Response::new(Full::new(large.clone())));
        let response = exchange(address, "GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(response.field("Content-Length"), Some("500000"));
        assert!(response.body == expected);
    });
}
