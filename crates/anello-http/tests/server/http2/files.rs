//! Static files.

use std::rc::Rc;

use anello_http::Request;
use anello_http::files::Files;
use anello_http::files::negotiate::Codings;
use anello_http::files::options::FileOptions;
use anello_test::{main_drivers, run_on_each};
use http::{HeaderName, HeaderValue};

use super::{Client, complete, options, request, serve};
use crate::common::site::{pattern, site};

fn with_field(method: &str, path: &str, name: &'static str, value: &str) -> http::Request<()> {
    let mut request = request(method, path);
    let value = HeaderValue::from_str(value).expect("valid value");
    request.headers_mut().insert(HeaderName::from_static(name), value);
    request
}

#[test]
fn files_are_served_as_in_http_1() {
    run_on_each(main_drivers(), async |setup| {
        let directory = site();
        let file_options = FileOptions::default().listing(true).precompressed(Codings::ALL);
        let files = Rc::new(Files::open(directory.path(), file_options).expect("open document root"));
        let address = serve(options(), async move |request: Request| files.handle(&request).await);
        let mut client = Client::connect(address).await;
        for _ in 0..2 {
            // The second response comes from the cache.
            let hello = client.get("/hello.txt").await;
            assert_eq!(
                (hello.status, hello.text(), hello.field("accept-ranges")),
                (200, "Hello, world!", "bytes")
            );
        }
        let expected = pattern(3 << 20);
        let large = client.get("/large.bin").await;
        assert!((large.status, &large.body) == (200, &expected), "{setup}");
        let head = client.send(request("HEAD", "/large.bin")).await;
        assert_eq!((head.field("content-length"), head.body.len()), ("3145728", 0));
        let range = client.send(with_field("GET", "/large.bin", "range", "bytes=100000-299999")).await;
        assert!((range.status, &range.body[..]) == (206, &expected[100_000..300_000]), "{setup}");
        let ranges = client.send(with_field("GET", "/large.bin", "range", "bytes=0-0,1000000-1099999")).await;
        let content_length = ranges.field("content-length");
        assert_eq!((ranges.status, content_length), (206, &*ranges.body.len().to_string()));
        let many = format!("bytes={}", (0..1000).map(|start| format!("{start}-,")).collect::<String>());
        let many = client.send(with_field("GET", "/hello.txt", "range", many.trim_end_matches(','))).await;
        assert!(matches!(many.status, 200 | 416), "{setup}: fault 36: {}", many.status);
        let tag = large.field("etag").to_owned();
        let unmodified = client.send(with_field("GET", "/large.bin", "if-none-match", &tag)).await;
        assert_eq!((unmodified.status, unmodified.body.len()), (304, 0));
        let encoded = client.send(with_field("GET", "/app.js", "accept-encoding", "br")).await;
        assert_eq!((encoded.text(), encoded.field("content-encoding")), ("brotli", "br"));
        assert!(client.get("/docs/").await.text().contains("docs"));
        for (path, status) in
            [("/docs", 301), ("/nothing", 404), ("/%2e%2e/etc/passwd", 400), ("/a%00b", 400)]
        {
            assert_eq!(client.get(path).await.status, status, "{setup}: fault 32: {path}");
        }
        assert_eq!(client.send(request("DELETE", "/hello.txt")).await.status, 405);
        let mut responses = Vec::new();
        for _ in 0..10 {
            responses.push(complete(client.start(request("GET", "/large.bin"), true).await.0));
        }
        for response in futures_util::future::join_all(responses).await {
            assert!(response.expect("response").body == expected, "{setup}");
        }
    });
}

#[test]
fn fault_35_file_truncated_while_being_sent_resets_stream() {
    run_on_each(main_drivers(), async |setup| {
        let directory = site();
        let file_options = FileOptions::default().max_cache_bytes(0);
        let files = Rc::new(Files::open(directory.path(), file_options).expect("open document root"));
        let address = serve(options(), async move |request: Request| files.handle(&request).await);
        let mut client = Client::connect(address).await;
        let (response, _) = client.start(request("GET", "/large.bin"), true).await;
        let mut body = response.await.expect("head").into_body();
        body.data().await.expect("data").expect("no error");
        let file = std::fs::OpenOptions::new().write(true).open(directory.path().join("large.bin"));
        file.expect("open").set_len(100).expect("truncate");
        let error = super::read(&mut body).await.expect_err("stream is reset");
        assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR), "{setup}");
        assert_eq!(client.get("/hello.txt").await.status, 200);
    });
}
