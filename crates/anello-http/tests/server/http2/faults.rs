//! Faulty and hostile clients.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anello::time::sleep;
use anello_http::h1::Limits;
use anello_http::{Request, RequestBodyError, Response};
use anello_test::{main_drivers_and_sim, run_on_each};
use bytes::Bytes;
use h2::Reason;
use http::HeaderValue;

use super::{Client, HEADERS, OnDrop, PREFACE, complete, frame, options, request, serve};
use crate::common::versions::Version;
use crate::common::{self, wait_until};

/// Returns the head and the payload of the next frame.
async fn next_frame(client: &mut common::Client) -> (Vec<u8>, Vec<u8>) {
    let head = client.read_exact(9).await;
    let length = usize::from(head[1]) << 8 | usize::from(head[2]);
    (head, client.read_exact(length).await)
}

/// Reads frames until GOAWAY, and returns its error code.
async fn goaway(client: &mut common::Client) -> Reason {
    loop {
        let (head, payload) = next_frame(client).await;
        if head[3] == 7 {
            return u32::from_be_bytes(payload[4..8].try_into().expect("error code")).into();
        }
    }
}

/// Decrements a count when it is dropped.
struct Decrement(Rc<Cell<usize>>);

impl Drop for Decrement {
    fn drop(&mut self) {
        self.0.update(|count| count - 1);
    }
}

fn field(name: &'static str, bytes: usize) -> http::Request<()> {
    let mut request = request("GET", "/");
    request.headers_mut().insert(name, HeaderValue::from_bytes(&vec![b'x'; bytes]).expect("valid value"));
    request
}

#[test]
fn cancelled_stream_and_lost_connection_drop_their_handlers() {
    run_on_each(main_drivers_and_sim(), async |setup| {
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
        assert_eq!(started.get(), 5, "{setup}");
    });
}

#[test]
fn fault_25_limits_of_heads_and_bodies_hold() {
    run_on_each(main_drivers_and_sim(), async |setup| {
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
        assert_eq!(client.send(field("x", 9000)).await.status, 431, "{setup}");
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
fn fault_26_to_29_malformed_requests_reset_their_stream() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |_: Request| Response::text("ciao"));
        for block in [
            // Transfer-Encoding, Connection, Content-Length that does not match, is repeated, signed or huge, upper case,
            // an empty name, invalid bytes.
            &b"\x00\x11transfer-encoding\x07chunked"[..],
            b"\x00\x0aconnection\x05close",
            b"\x00\x0econtent-length\x015",
            b"\x00\x0econtent-length\x010\x00\x0econtent-length\x015",
            b"\x00\x0econtent-length\x02+0",
            b"\x00\x0econtent-length\x1499999999999999999999",
            b"\x00\x01X\x01y",
            b"\x00\x00\x01y",
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
                let (head, _) = next_frame(&mut client).await;
                kinds.push((head[3], head[8]));
                if head[3] == 0 && head[4] & 1 == 1 || head[3] == 7 {
                    break;
                }
            }
            let has_been_reset = kinds.contains(&(3, 1)) && kinds.contains(&(0, 3));
            assert!(has_been_reset || kinds.contains(&(7, 0)), "{setup}: {block:?}: {kinds:?}");
        }
    });
}

#[test]
fn fault_31_frames_are_parsed_identically_for_every_split() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |mut request: Request| {
            let body = request.body().collect().await.expect("body");
            let field = request.field("x").map(String::from_utf8_lossy);
            Response::text(format!("{field:?} {}", String::from_utf8_lossy(&body)))
        });
        // A head in two frames, a padded body in two frames, and their stream's trailers.
        let request = [
            PREFACE,
            &frame(1, 0, 1, b"\x83\x84\x86\x41\x01h"),
            &frame(9, 4, 1, b"\x00\x01x\x04ciao"),
            &frame(0, 8, 1, b"\x02first\0\0"),
            &frame(0, 0, 1, b"second"),
            &frame(1, 5, 1, b"\x00\x01t\x01y"),
        ]
        .concat();
        let mut expected = None;
        for split in 1..=request.len() {
            let mut client = common::Client::connect(address).await;
            let (first, second) = request.split_at(split);
            client.send(first).await;
            anello::yield_now().await;
            client.send(second).await;
            let mut body = Vec::new();
            loop {
                let (head, payload) = next_frame(&mut client).await;
                assert!(matches!(head[3], 0 | 1 | 4 | 8), "{setup}: {split}: frame {head:?}");
                if head[3] == 0 {
                    body.extend(payload);
                    if head[4] & 1 == 1 {
                        break;
                    }
                }
            }
            let body = String::from_utf8(body).expect("text");
            assert!(body.contains("ciao") && body.contains("firstsecond"), "{setup}: {split}: {body}");
            assert_eq!(*expected.get_or_insert_with(|| body.clone()), body, "{setup}: {split}");
        }
    });
}

#[test]
fn fault_24_concurrent_streams_are_limited() {
    run_on_each(main_drivers_and_sim(), async |setup| {
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
        for _ in 0..200 {
            responses.push(complete(client.start(request("GET", "/"), true).await.0));
        }
        for response in futures_util::future::join_all(responses).await {
            assert_eq!(response.expect("response").text(), "ciao");
        }
        assert!(max_active.get() <= 10, "{setup}: {max_active:?}");
        let mut raw = common::Client::connect(address).await;
        raw.send(PREFACE).await;
        // No request ends, so no response frees a stream.
        let heads: Vec<u8> = (0..11).flat_map(|index| frame(1, 4, index * 2 + 1, HEADERS)).collect();
        raw.send(heads).await;
        loop {
            let (head, payload) = next_frame(&mut raw).await;
            if head[3] == 3 {
                assert_eq!((head[8], payload[3]), (21, 7), "{setup}: REFUSED_STREAM");
                break;
            }
        }
    });
}

#[test]
fn floods_close_the_connection() {
    run_on_each(main_drivers_and_sim(), async |setup| {
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
            assert_ne!(goaway(&mut client).await, Reason::NO_ERROR, "{setup}: {name}");
            assert!(served.get() - before <= 100, "{setup}: {name}: {} requests", served.get() - before);
        }
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.text(), "ciao", "{setup}");
    });
}

#[test]
fn pings_do_not_delay_other_clients() {
    run_on_each(main_drivers_and_sim(), async |setup| {
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
            assert_eq!(client.get("/").await.text(), "ciao", "{setup}");
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
    run_on_each(main_drivers_and_sim(), async |setup| {
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
        assert_eq!(sent, 256 * 1024, "{setup}");
        // A response without reading the body stops the client (RFC 9113, section 8.1).
        let (response, mut stream) = client.start(request("POST", "/"), false).await;
        assert_eq!(complete(response).await.expect("response").text(), "ciao");
        let reset = std::future::poll_fn(|context| stream.poll_reset(context)).await;
        assert_eq!(reset.ok(), Some(Reason::NO_ERROR), "{setup}");
    });
}

#[test]
fn fault_30_unread_body_does_not_affect_later_requests() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |_: Request| Response::text("unread"));
        let mut client = Client::connect(address).await;
        // In total more than the window of the connection, which must grow again.
        for length in [10, 1000, 100_000, 250_000].repeat(10) {
            let (response, mut stream) = client.start(request("POST", "/"), false).await;
            // The server stops the client with RST_STREAM when it has sent its response.
            stream.send_data(vec![b'x'; length].into(), true).ok();
            assert_eq!(complete(response).await.expect("response").text(), "unread", "{setup}: {length}");
        }
        assert_eq!(client.get("/").await.text(), "unread", "{setup}");
    });
}

#[test]
fn fault_22_handler_is_dropped_on_reset_but_not_on_half_close() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let alive = Rc::new(Cell::new(0));
        let counted = Rc::clone(&alive);
        let (server, address) = common::serve(options(), async move |_: Request| {
            counted.update(|count| count + 1);
            let _on_drop = Decrement(Rc::clone(&counted));
            std::future::pending().await
        });
        let whole_get = Version::Http2.whole_get();
        let mut half_closed = common::Client::connect(address).await;
        half_closed.send(&whole_get).await;
        half_closed.stream.shutdown().await.expect("shut down");
        // One client resets its connection, and one closes it in an orderly way.
        let mut reset = common::Client::connect(address).await;
        reset.stream.set_linger(Some(Duration::ZERO)).ok();
        reset.send(&whole_get).await;
        let mut closed = common::Client::connect(address).await;
        closed.send(&whole_get).await;
        wait_until(|| alive.get() == 3).await;
        reset.stream.abort();
        drop(closed);
        wait_until(|| server.connections() == 1 && alive.get() == 1).await;
        // Wait for several timer ticks.
        sleep(options().timer_resolution * 3).await;
        assert_eq!((server.connections(), alive.get()), (1, 1), "{setup}");
        server.abort_connections();
        wait_until(|| server.connections() == 0).await;
        assert_eq!(alive.get(), 0, "{setup}");
    });
}

#[test]
fn fault_23_half_close_in_request_body_is_reported() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |mut request: Request| {
            let error = request.body().collect().await.expect_err("body is incomplete");
            Response::text(format!("{error:?}"))
        });
        let mut client = common::Client::connect(address).await;
        client.send([PREFACE, &frame(1, 4, 1, HEADERS), &frame(0, 0, 1, b"half")].concat()).await;
        client.stream.shutdown().await.expect("shut down");
        let bytes = Version::Http2.read_body_bytes(&mut client).await;
        assert!(bytes > 0, "{setup}");
    });
}

/// h2spec, checks 5.1.8 and 5.1.9. Whether the response precedes the reset depends on the timing there, but not here.
#[test]
fn frames_after_reset_are_errors_unless_response_is_complete() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let address = serve(options(), async |_: Request| Response::text("ciao"));
        for after in [frame(0, 1, 1, b"x"), frame(1, 5, 1, HEADERS)] {
            let after = [frame(3, 0, 1, &[0, 0, 0, 8]), after].concat();
            // In one write, so that no response is sent before the reset arrives.
            let mut client = common::Client::connect(address).await;
            client.send([PREFACE, &frame(1, 4, 1, HEADERS), &after].concat()).await;
            let (head, payload) = loop {
                let (head, payload) = next_frame(&mut client).await;
                assert!(!matches!(head[3], 0 | 1), "{setup}: response to a stream that was reset");
                if matches!(head[3], 3 | 7) {
                    break (head, payload);
                }
            };
            match head[3] {
                // RST_STREAM with STREAM_CLOSED
                3 => assert_eq!(payload, [0, 0, 0, 5], "{setup}"),
                // GOAWAY with PROTOCOL_ERROR, because HEADERS must not repeat an identifier (section 5.1.1)
                _ => assert_eq!(payload[4..], [0, 0, 0, 1], "{setup}"),
            }
            // The response ends with RST_STREAM, because the request is incomplete. What follows is ignored.
            let mut client = common::Client::connect(address).await;
            client.send([PREFACE, &frame(1, 4, 1, HEADERS)].concat()).await;
            while next_frame(&mut client).await.0[3] != 3 {}
            client.send([after, frame(6, 0, 0, b"12345678")].concat()).await;
            let (head, payload) = next_frame(&mut client).await;
            assert_eq!((head[3], &payload[..]), (6, &b"12345678"[..]), "{setup}");
        }
    });
}

#[test]
fn max_requests_per_connection_ends_in_goaway() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let limits = Limits { max_requests_per_connection: 3, ..Limits::default() };
        let address = serve(options().limits(limits), async |_: Request| Response::text("ciao"));
        let mut client = Client::connect(address).await;
        for _ in 0..3 {
            assert_eq!(client.get("/").await.text(), "ciao", "{setup}");
        }
        client.closed().await.expect("GOAWAY and EOF");
    });
}
