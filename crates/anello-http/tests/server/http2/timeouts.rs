//! Timeouts and draining, on simulated kernels, whose clocks are virtual.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anello::spawn;
use anello::time::{monotonic_now, sleep};
use anello_http::h1::{FieldBlock, FieldName};
use anello_http::{Body, Request, RequestBodyError, Response, ServerOptions};
use anello_test::{run_on_each, simulated_drivers};
use bytes::Bytes;
use futures_util::StreamExt;
use h2::Reason;
use tracing::Level;

use super::{Client, OnDrop, complete, options, request, serve};
use crate::common::http2::whole_get;
use crate::common::log::RecordedMessages;
use crate::common::{self, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Asserts that a duration is the timeout, or at most a second longer.
fn assert_expired(elapsed: Duration, timeout: Duration) {
    assert!(elapsed >= timeout && elapsed <= timeout + SECOND, "{elapsed:?} instead of {timeout:?}");
}

fn large() -> Response {
    Response::text(Bytes::from(vec![b'#'; 8 << 20]))
}

#[test]
fn fault_21_idle_connection_is_closed_with_goaway() {
    run_on_each(simulated_drivers(), async |_| {
        let address =
            serve(options().keep_alive_timeout(SECOND * 5), async |_: Request| Response::text("ciao"));
        let mut client = Client::connect(address).await;
        client.get("/").await;
        sleep(SECOND * 3).await;
        client.get("/").await;
        let started = monotonic_now();
        // GOAWAY with NO_ERROR is no error for the client.
        client.closed().await.expect("GOAWAY and EOF");
        assert_expired(monotonic_now() - started, SECOND * 5);
    });
}

#[test]
fn connection_without_request_is_closed() {
    run_on_each(simulated_drivers(), async |_| {
        let address = serve(options().header_timeout(SECOND * 5), async |_: Request| Response::text("ciao"));
        let started = monotonic_now();
        let mut raw = common::Client::connect(address).await;
        raw.send("PRI * HTTP/2.0\r\n").await;
        Client::connect(address).await.closed().await.expect("GOAWAY and EOF");
        assert_expired(monotonic_now() - started, SECOND * 5);
        // The start of the preface is the head of a request with an unknown version.
        assert!(raw.response().await.is_none_or(|response| response.status == 505));
    });
}

#[test]
fn request_timeout_resets_stream_and_drops_handler() {
    run_on_each(simulated_drivers(), async |_| {
        let (recorded, _guard) = RecordedMessages::start();
        let dropped = Rc::new(Cell::new(0));
        let counted = Rc::clone(&dropped);
        let address = serve(options().request_timeout(Some(SECOND * 5)), async move |request: Request| {
            let _on_drop = OnDrop(Rc::clone(&counted));
            if request.path() == "/pending" {
                std::future::pending::<()>().await;
            }
            if request.path() == "/body" {
                return Response::new(200).with_body(Body::stream(futures_util::stream::pending()));
            }
            Response::text("ciao")
        });
        let mut client = Client::connect(address).await;
        for path in ["/pending", "/body"] {
            let started = monotonic_now();
            let (response, _) = client.start(request("GET", path), true).await;
            sleep(SECOND).await;
            assert_eq!(client.get("/").await.text(), "ciao");
            let error = complete(response).await.expect_err("stream is reset");
            assert_eq!(error.reason(), Some(Reason::CANCEL));
            assert_expired(monotonic_now() - started, SECOND * 5);
        }
        let message = "handler or response body cancelled: request_timeout exceeded".to_owned();
        assert_eq!(recorded.containing("exceeded"), vec![(Level::WARN, message); 2]);
        assert_eq!(dropped.get(), 4);
        assert_eq!(client.get("/").await.text(), "ciao");
    });
}

#[test]
fn slow_request_body_is_reported_to_its_handler() {
    run_on_each(simulated_drivers(), async |_| {
        let address = serve(options().body_timeout(SECOND * 5), async |mut request: Request| {
            match request.body().collect().await {
                Ok(body) => Response::new(200).with_body(body),
                Err(RequestBodyError::Rejected(rejection)) => Response::new(rejection.status),
                Err(error) => panic!("{error}"),
            }
        });
        let mut client = Client::connect(address).await;
        let started = monotonic_now();
        let (response, mut stream) = client.start(request("POST", "/"), false).await;
        stream.send_data("ci".into(), false).expect("send body");
        sleep(SECOND).await;
        assert_eq!(client.post("/", "ciao").await.text(), "ciao");
        let response = complete(response).await;
        assert_eq!(response.map(|response| response.status).ok(), Some(408));
        assert_expired(monotonic_now() - started, SECOND * 5);
    });
}

#[test]
fn fault_20_stream_that_is_not_read_is_reset() {
    run_on_each(simulated_drivers(), async |_| {
        let pulled = Rc::new(Cell::new(0));
        let counted = Rc::clone(&pulled);
        let address =
            serve(options().send_timeout(SECOND * 5), async move |request: Request| match request.path() {
                "/large" => large(),
                "/stream" => {
                    let counted = Rc::clone(&counted);
                    let chunks = std::iter::repeat_with(move || {
                        counted.update(|count| count + 1);
                        Ok(Bytes::from_static(&[b'#'; 10_000]))
                    });
                    Response::new(200).with_body(Body::stream(futures_util::stream::iter(chunks)))
                }
                _ => Response::text("ciao"),
            });
        let builder = h2::client::Builder::new().initial_connection_window_size(10 << 20).clone();
        let mut client = Client::connect_with(address, &builder).await;
        for path in ["/large", "/stream"] {
            let started = monotonic_now();
            let (response, _) = client.start(request("GET", path), true).await;
            let mut body = response.await.expect("head").into_body();
            // The other streams of the connection are not affected.
            sleep(SECOND).await;
            assert_eq!(client.get("/").await.text(), "ciao");
            let mut received = 0;
            let error = loop {
                // The data is not released, so the window does not grow.
                match body.data().await.expect("stream is reset") {
                    Ok(data) => received += data.len(),
                    Err(error) => break error,
                }
            };
            assert_eq!((error.reason(), received), (Some(Reason::CANCEL), 65_535));
            assert_expired(monotonic_now() - started, SECOND * 5);
        }
        // The handler's data is taken only as the client accepts it.
        assert!(pulled.get() <= 8, "{}", pulled.get());
    });
}

/// The client accepts no byte beyond the body, so that the server can send only the end of the message.
#[test]
fn body_of_the_size_of_the_window_ends() {
    const WINDOW: usize = 65_535;
    run_on_each(simulated_drivers(), async |_| {
        let address = serve(options().send_timeout(SECOND * 5), async |request: Request| {
            let bytes = Bytes::from(vec![b'#'; WINDOW]);
            let chunks = futures_util::stream::iter([Ok(bytes.slice(..10_000)), Ok(bytes.slice(10_000..))]);
            Response::new(200).with_body(match request.path() {
                "/bytes" => bytes.into(),
                "/stream" => Body::stream(chunks),
                "/length" => Body::stream_with_length(WINDOW as u64, chunks),
                "/pending" => {
                    Body::stream_with_length(WINDOW as u64, chunks.chain(futures_util::stream::pending()))
                }
                _ => Body::stream_with_trailers(chunks, || {
                    let mut fields = FieldBlock::default();
                    fields.push(FieldName::constant("Checksum"), b"17").expect("valid field");
                    fields
                }),
            })
        });
        for path in ["/bytes", "/stream", "/length", "/pending", "/trailers"] {
            let mut client = Client::connect_with(address, &h2::client::Builder::new()).await;
            let (response, _) = client.start(request("GET", path), true).await;
            let mut body = response.await.expect("head").into_body();
            let mut received = 0;
            while let Some(data) = body.data().await {
                received += data.expect("the body ends").len();
            }
            assert_eq!(received, WINDOW, "{path}");
            let trailers = body.trailers().await.expect("the message ends");
            assert_eq!(trailers.is_some(), path == "/trailers");
        }
    });
}

#[test]
fn fault_20_connection_that_is_not_read_is_reset() {
    run_on_each(simulated_drivers(), async |_| {
        let (recorded, _guard) = RecordedMessages::start();
        let (server, address) = common::serve(options().send_timeout(SECOND * 5), async |_: Request| large());
        let mut client = common::Client::connect(address).await;
        client.send(whole_get()).await;
        wait_until(|| server.connections() == 1).await;
        let started = monotonic_now();
        wait_until(|| server.connections() == 0).await;
        assert_expired(monotonic_now() - started, SECOND * 5);
        let message = "handler or response body cancelled: send_timeout exceeded".to_owned();
        assert_eq!(recorded.containing("exceeded"), [(Level::DEBUG, message)]);
    });
}

/// A window of one byte, which the client opens again each second.
#[test]
fn fault_20_stream_that_is_read_byte_by_byte_is_reset() {
    run_on_each(simulated_drivers(), async |_| {
        let (recorded, _guard) = RecordedMessages::start();
        let address = serve(options().send_timeout(SECOND * 5), async |request: Request| {
            if request.path() == "/stream" {
                let chunks = std::iter::repeat_with(|| Ok(Bytes::from_static(b"#")));
                return Response::new(200).with_body(Body::stream(futures_util::stream::iter(chunks)));
            }
            large()
        });
        let builder = h2::client::Builder::new().initial_window_size(1).clone();
        let mut client = Client::connect_with(address, &builder).await;
        for path in ["/large", "/stream"] {
            let started = monotonic_now();
            let (response, _) = client.start(request("GET", path), true).await;
            let mut body = response.await.expect("head").into_body();
            let mut received = 0;
            let error = loop {
                match body.data().await.expect("stream is reset") {
                    Ok(data) => {
                        received += data.len();
                        sleep(SECOND * 3 / 4).await;
                        body.flow_control().release_capacity(data.len()).expect("received");
                    }
                    Err(error) => break error,
                }
            };
            assert_eq!(error.reason(), Some(Reason::CANCEL), "{path}");
            assert!((4..10).contains(&received), "{path}: {received}");
            let elapsed = monotonic_now() - started;
            // The client notices the reset when it reads again.
            assert!(elapsed >= SECOND * 5 && elapsed <= SECOND * 8, "{path}: {elapsed:?}");
        }
        let message = "handler or response body cancelled: send_timeout exceeded".to_owned();
        assert_eq!(recorded.containing("exceeded"), vec![(Level::DEBUG, message); 2]);
    });
}

#[test]
fn fault_37_drain_announces_shutdown_and_finishes_streams() {
    run_on_each(simulated_drivers(), async |_| {
        let mut options = options();
        (options.drain_timeout, options.timer_resolution) = (SECOND * 1000, SECOND / 20);
        let (server, address) = common::serve(options, async |request: Request| {
            if request.path() == "/slow" {
                sleep(SECOND * 20).await;
                return large();
            }
            Response::text("ciao")
        });
        let (mut idle, mut busy) = (Client::connect(address).await, Client::connect(address).await);
        idle.get("/").await;
        let (response, _) = busy.start(request("GET", "/slow"), true).await;
        wait_until(|| server.connections() == 2).await;
        sleep(SECOND).await;
        let draining = spawn({
            let server = server.clone();
            async move { server.drain().await }
        });
        let started = monotonic_now();
        idle.closed().await.expect("GOAWAY and EOF");
        assert_expired(monotonic_now() - started, Duration::ZERO);
        sleep(SECOND).await;
        // The client has received GOAWAY: it starts no more requests.
        let refused = match busy.requests.clone().ready().await {
            Ok(mut ready) => match ready.send_request(request("GET", "/"), true) {
                Ok((response, _)) => complete(response).await.is_err(),
                Err(_) => true,
            },
            Err(_) => true,
        };
        assert!(refused);
        assert_eq!(complete(response).await.expect("response").body.len(), 8 << 20);
        busy.closed().await.expect("GOAWAY and EOF");
        assert_eq!(draining.await.expect("drain completes"), 0);
    });
}

#[test]
fn drain_timeout_cancels_handlers() {
    run_on_each(simulated_drivers(), async |_| {
        let options = ServerOptions::default().http2(options().http2).drain_timeout(SECOND * 3);
        let dropped = Rc::new(Cell::new(0));
        let counted = Rc::clone(&dropped);
        let (server, address) = common::serve(options, async move |_: Request| {
            let _on_drop = OnDrop(Rc::clone(&counted));
            std::future::pending().await
        });
        let mut client = Client::connect(address).await;
        let (response, _) = client.start(request("GET", "/"), true).await;
        wait_until(|| server.connections() == 1).await;
        sleep(SECOND).await;
        assert_eq!(server.drain().await, 1);
        assert_eq!(dropped.get(), 1);
        assert!(complete(response).await.is_err());
    });
}
