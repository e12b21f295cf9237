//! Faulty and hostile clients.

use std::cell::Cell;
use std::rc::Rc;

use anello_http::h1::Limits;
use anello_http::{Request, RequestBodyError, Response};
use bytes::Bytes;
use h2::Reason;
use http::HeaderValue;

use super::common::{self, drivers, for_each_driver, wait_until};
use super::{Client, OnDrop, complete, options, request, serve};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// `GET / HTTP/2` with the authority `h`, as a header block.
const HEADERS: &[u8] = b"\x82\x84\x86\x41\x01h";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Reads frames until GOAWAY, and returns its error code.
async fn goaway(client: &mut common::Client) -> Reason {
    loop {
        let head = client.read_exact(9).await;
        let payload = client.read_exact(usize::from(head[1]) << 8 | usize::from(head[2])).await;
        if head[3] == 7 {
            return u32::from_be_bytes(payload[4..8].try_into().expect("error code")).into();
        }
    }
}

fn field(name: &'static str, bytes: usize) -> http::Request<()> {
    let mut request = request("GET", "/");
    request.headers_mut().insert(name, HeaderValue::from_bytes(&vec![b'x'; bytes]).expect("valid value"));
    request
}

#[test]
fn cancelled_stream_and_lost_connection_drop_their_handlers() {
    for_each_driver(drivers(), async |kind| {
        let (started, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (starts, drops) = (Rc::clone(&started), Rc::clone(&dropped));
        let (server, address) = common::serve(options(), async move |mut request: Request| {
            let _on_drop = OnDrop(Rc::clone(&drops));
            starts.update(|count| count + 1);
            if request.path() == "/body" {
                request.body().collect().await.expect_err("stream is reset");
            }
            if request.path() == "/" {
                return Response::text("ciao");
            }
            std::future::pending().await
        });
        let mut client = Client::connect(address).await;
        for path in ["/pending", "/body"] {
            let before = dropped.get();
            let (_response, mut stream) = client.start(request("POST", path), false).await;
            assert_eq!(client.get("/").await.text(), "ciao");
            stream.send_reset(Reason::CANCEL);
            wait_until(|| dropped.get() == before + 2).await;
        }
        let (_response, _stream) = client.start(request("GET", "/pending"), true).await;
        wait_until(|| started.get() == 5).await;
        client.connection.abort();
        wait_until(|| dropped.get() == 5 && server.connections() == 0).await;
        assert_eq!(started.get(), 5, "{kind}");
    });
}

#[test]
fn fault_25_limits_of_heads_and_bodies_hold() {
    for_each_driver(drivers(), async |kind| {
        let limits =
            Limits { max_head_bytes: 8192, max_fields: 20, max_body_bytes: 1000, ..Limits::default() };
        let address = serve(options().limits(limits), async |mut request: Request| {
            match request.body().collect().await {
                Ok(_) => Response::text("ciao"),
                Err(RequestBodyError::Rejected(rejection)) => Response::new(rejection.status),
                Err(error) => panic!("{error}"),
            }
        });
        let mut client = Client::connect(address).await;
        assert_eq!(client.send(field("x", 7000)).await.status, 200);
        assert_eq!(client.send(field("x", 9000)).await.status, 431, "{kind}");
        assert_eq!(client.send(request("GET", &"/x".repeat(5000))).await.status, 431);
        let mut many = request("GET", "/");
        for _ in 0..30 {
            many.headers_mut().append("x", HeaderValue::from_static("y"));
        }
        assert_eq!(client.send(many).await.status, 431);
        assert_eq!(client.post("/", vec![b'x'; 1000]).await.status, 200);
        assert_eq!(client.post("/", vec![b'x'; 1001]).await.status, 413);
        let mut long = request("POST", "/");
        long.headers_mut().insert("content-length", HeaderValue::from_static("1001"));
        let (response, _stream) = client.start(long, false).await;
        assert_eq!(complete(response).await.expect("response").status, 413);
        assert_eq!(client.get("/").await.text(), "ciao");
    });
}

#[test]
fn malformed_requests_reset_their_stream() {
    for_each_driver(drivers(), async |kind| {
        let address = serve(options(), async |_: Request| Response::text("ciao"));
        for block in [
            // Faults 26 to 29: Transfer-Encoding, Connection, Content-Length that does not match, upper case.
            &b"\x00\x11transfer-encoding\x07chunked"[..],
            b"\x00\x0aconnection\x05close",
            b"\x00\x0econtent-length\x015",
            b"\x00\x01X\x01y",
            b"\x00\x04:foo\x01y",
            b"\x00\x03x y\x01y",
            b"\x00\x01x\x03a\nb",
        ] {
            let mut client = common::Client::connect(address).await;
            client.send(PREFACE).await;
            client.send(frame(1, 5, 1, &[HEADERS, block].concat())).await;
            client.send(frame(1, 5, 3, HEADERS)).await;
            let mut kinds = Vec::new();
            loop {
                let head = client.read_exact(9).await;
                client.read_exact(usize::from(head[1]) << 8 | usize::from(head[2])).await;
                kinds.push((head[3], head[8]));
                if head[3] == 0 && head[4] & 1 == 1 || head[3] == 7 {
                    break;
                }
            }
            let has_been_reset = kinds.contains(&(3, 1)) && kinds.contains(&(0, 3));
            assert!(has_been_reset || kinds.contains(&(7, 0)), "{kind}: {block:?}: {kinds:?}");
        }
    });
}

#[test]
fn fault_24_concurrent_streams_are_limited() {
    for_each_driver(drivers(), async |kind| {
        let (active, max_active) = (Rc::new(Cell::new(0_usize)), Rc::new(Cell::new(0)));
        let observed = Rc::clone(&max_active);
        let address = serve(options().http2_max_concurrent_streams(10), async move |_: Request| {
            active.update(|count| count + 1);
            observed.set(observed.get().max(active.get()));
            anello::yield_now().await;
            active.update(|count| count - 1);
            Response::text("ciao")
        });
        let mut client = Client::connect(address).await;
        // The limit is known after the first response.
        client.get("/").await;
        let mut responses = Vec::new();
        for _ in 0..1000 {
            responses.push(complete(client.start(request("GET", "/"), true).await.0));
        }
        for response in futures_util::future::join_all(responses).await {
            assert_eq!(response.expect("response").text(), "ciao");
        }
        assert!(max_active.get() <= 10, "{kind}: {max_active:?}");
        let mut raw = common::Client::connect(address).await;
        raw.send(PREFACE).await;
        // No request ends, so no response frees a stream.
        let heads: Vec<u8> = (0..11).flat_map(|index| frame(1, 4, index * 2 + 1, HEADERS)).collect();
        raw.send(heads).await;
        loop {
            let head = raw.read_exact(9).await;
            let payload = raw.read_exact(usize::from(head[1]) << 8 | usize::from(head[2])).await;
            if head[3] == 3 {
                assert_eq!((head[8], payload[3]), (21, 7), "{kind}: REFUSED_STREAM");
                break;
            }
        }
    });
}

#[test]
fn floods_close_the_connection() {
    for_each_driver(drivers(), async |kind| {
        let served = Rc::new(Cell::new(0));
        let counted = Rc::clone(&served);
        let address = serve(options(), async move |request: Request| {
            counted.update(|count| count + 1);
            let mut request = request;
            request.body().collect().await.ok();
            Response::text("ciao")
        });
        let rapid_reset: Vec<u8> = (0..2000)
            .flat_map(|index| {
                [frame(1, 5, index * 2 + 1, HEADERS), frame(3, 0, index * 2 + 1, &[0, 0, 0, 8])].concat()
            })
            .collect();
        let continuation =
            [frame(1, 1, 1, HEADERS), frame(9, 0, 1, b"\x00\x01x\x01y").repeat(20_000)].concat();
        let empty_data = [frame(1, 4, 1, HEADERS), frame(0, 0, 1, b"").repeat(200_000)].concat();
        for (name, flood) in
            [("rapid reset", rapid_reset), ("CONTINUATION", continuation), ("empty DATA", empty_data)]
        {
            let before = served.get();
            let mut client = common::Client::connect(address).await;
            client.send(PREFACE).await;
            // The server may close the connection before it has read everything.
            client.stream.write_all(&flood).await.ok();
            assert_ne!(goaway(&mut client).await, Reason::NO_ERROR, "{kind}: {name}");
            assert!(served.get() - before <= 100, "{kind}: {name}: {} requests", served.get() - before);
        }
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.text(), "ciao", "{kind}");
    });
}

#[test]
fn pings_do_not_delay_other_clients() {
    for_each_driver(drivers(), async |kind| {
        let address = serve(options(), async |_: Request| Response::text("ciao"));
        let mut flooding = common::Client::connect(address).await;
        flooding.send(PREFACE).await;
        let pings = [frame(6, 0, 0, b"12345678"), frame(4, 0, 0, b"")].concat().repeat(10_000);
        let (mut reader, mut writer) = flooding.stream.into_split();
        let writing = anello::spawn(async move {
            writer.write_all(&pings).await.ok();
            writer
        });
        let mut client = Client::connect(address).await;
        for _ in 0..10 {
            assert_eq!(client.get("/").await.text(), "ciao", "{kind}");
        }
        let mut received = 0;
        while received < 10_000 * (17 + 9) {
            received += reader.recv().await.expect("receive").expect("open").len();
        }
        writing.await.expect("task completes");
    });
}

#[test]
fn unread_request_body_is_limited_to_its_window() {
    for_each_driver(drivers(), async |kind| {
        let address = serve(options(), async |request: Request| {
            if request.path() == "/pending" {
                std::future::pending::<()>().await;
            }
            Response::text("ciao")
        });
        let mut client = Client::connect(address).await;
        let (_response, mut stream) = client.start(request("POST", "/pending"), false).await;
        let mut sent = 0;
        // All that the client can send before the server answers another request.
        while sent < 10 << 20 {
            stream.reserve_capacity(64 * 1024);
            if stream.capacity() == 0 {
                client.get("/").await;
                if stream.capacity() == 0 {
                    break;
                }
            }
            let bytes = stream.capacity().min(64 * 1024);
            stream.send_data(Bytes::from(vec![0; bytes]), false).expect("send body");
            sent += bytes;
        }
        assert_eq!(sent, 256 * 1024, "{kind}");
        // A response without reading the body stops the client (RFC 9113, section 8.1).
        let (response, mut stream) = client.start(request("POST", "/"), false).await;
        assert_eq!(complete(response).await.expect("response").text(), "ciao");
        let reset = std::future::poll_fn(|context| stream.poll_reset(context)).await;
        assert_eq!(reset.ok(), Some(Reason::NO_ERROR), "{kind}");
    });
}

#[test]
fn max_requests_per_connection_ends_in_goaway() {
    for_each_driver(drivers(), async |kind| {
        let limits = Limits { max_requests_per_connection: 3, ..Limits::default() };
        let address = serve(options().limits(limits), async |_: Request| Response::text("ciao"));
        let mut client = Client::connect(address).await;
        for _ in 0..3 {
            assert_eq!(client.get("/").await.text(), "ciao", "{kind}");
        }
        client.closed().await.expect("GOAWAY and EOF");
    });
}
