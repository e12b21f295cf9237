//! Request bodies that outlive their handler, with and without TLS: the connection takes its input back when the
//! response ends, whatever the handler has done with the body, and serves the requests that the client has pipelined.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anello::net::TcpListener;
use anello::spawn;
use anello_http::{Body, Request, RequestBody, RequestBodyError, Response, Server};
use anello_test::{main_drivers_and_sim, run_on_each};
use bytes::Bytes;
use futures_core::Stream;
use rustls::ClientConfig;

use crate::common::stream_client::ByteStreamClient;
use crate::common::{boxed, tls, wait_until, with_long_timeouts};

/// A server, and a client that is connected to it.
struct Session {
    server: Server,
    address: SocketAddr,
    config: Option<Arc<ClientConfig>>,
    client: ByteStreamClient,
    received: String,
}

impl Session {
    async fn start<H>(with_tls: bool, handler: H) -> Self
    where
        H: AsyncFn(Request) -> Response + 'static,
    {
        let builder = Server::builder().options(with_long_timeouts());
        let (builder, config) = if with_tls {
            let (server, client) = tls::pair();
            (builder.tls(server), Some(client))
        } else {
            (builder, None)
        };
        let server = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        server.serve(listener, boxed(handler)).detach();
        let client = ByteStreamClient::connect(address, config.as_ref()).await;
        Self { server, address, config, client, received: String::new() }
    }

    async fn reconnect(&mut self) {
        self.client = ByteStreamClient::connect(self.address, self.config.as_ref()).await;
        self.received.clear();
    }

    async fn send(&mut self, bytes: &str) {
        self.client.send(bytes.as_bytes()).await;
    }

    /// Receives responses up to this text, which must be the end of a response. Returns them.
    async fn receive(&mut self, end: &str) -> String {
        loop {
            if let Some(start) = self.received.find(end) {
                let rest = self.received.split_off(start + end.len());
                return mem::replace(&mut self.received, rest);
            }
            let bytes = self.client.receive().await;
            assert!(!bytes.is_empty(), "EOF before {end:?}, after {:?}", self.received);
            self.received.push_str(str::from_utf8(&bytes).expect("UTF-8"));
        }
    }

    /// Receives a response with status 200 that ends with this text.
    async fn receive_ok(&mut self, end: &str) {
        let response = self.receive(end).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response:?}");
        assert_eq!(response.matches("HTTP/1.1").count(), 1, "{response:?}");
        assert!(!response.contains("Connection: close"), "{response:?}");
    }

    /// Receives a response with status 200, after which the server closes the connection.
    async fn receive_last(&mut self, end: &str) {
        let response = self.receive(end).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response:?}");
        assert!(response.contains("Connection: close\r\n"), "{response:?}");
        assert_eq!(self.client.receive().await, b"", "{response:?}");
    }
}

fn on_each_transport<F: Future<Output = ()>>(test: impl Fn(bool) -> F + Clone + Send + Sync + 'static) {
    run_on_each(main_drivers_and_sim(), move |_| {
        let test = test.clone();
        async move {
            for with_tls in [false, true] {
                test(with_tls).await;
            }
        }
    });
}

const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";

fn put(path: &str, length: usize) -> String {
    format!("PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n")
}

/// A response whose body is a stream, which does not use the request body.
fn streamed(text: &'static str) -> Response {
    Response::new(200).with_body(Body::stream(Once(Some(text))))
}

/// End of the response of [`streamed`].
fn streamed_end(text: &str) -> String {
    format!("{text}\r\n0\r\n\r\n")
}

/// A body stream of one chunk.
struct Once(Option<&'static str>);

impl Stream for Once {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(self.0.take().map(|text| Ok(text.into())))
    }
}

/// Reads a body that must be at its end because its response is complete.
fn check_ended(body: &mut RequestBody) {
    for _ in 0..2 {
        match body.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(RequestBodyError::Io(error))) if error.kind() == io::ErrorKind::NotConnected => {}
            other => panic!("{other:?}"),
        }
        assert!(body.trailers().is_none());
    }
}

/// Progress of a task that is reading a body.
#[derive(Default)]
struct BodyReader {
    /// `true` once the task has waited for data.
    has_waited: Cell<bool>,
    result: RefCell<Option<Result<Vec<u8>, RequestBodyError>>>,
}

impl BodyReader {
    /// Reads a body in a new task, which keeps it.
    fn spawn(mut body: RequestBody) -> Rc<Self> {
        let reader = Rc::new(Self::default());
        let task_reader = Rc::clone(&reader);
        spawn(async move {
            let mut received = Vec::new();
            let result = loop {
                let part = poll_fn(|context| {
                    let polled = body.poll_next(context);
                    task_reader.has_waited.set(task_reader.has_waited.get() || polled.is_pending());
                    polled
                });
                match part.await {
                    Ok(Some(part)) => received.extend_from_slice(&part),
                    Ok(None) => break Ok(received),
                    Err(error) => break Err(error),
                }
            };
            task_reader.result.replace(Some(result));
            pending::<()>().await;
            drop(body);
        })
        .detach();
        reader
    }

    /// Waits until the body can no longer be read.
    async fn wait_ended(&self) {
        wait_until(|| self.result.borrow().is_some()).await;
        match self.result.take() {
            Some(Err(RequestBodyError::Io(error))) if error.kind() == io::ErrorKind::NotConnected => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn kept_body_ends_with_response() {
    on_each_transport(async |with_tls| {
        let kept = Rc::new(RefCell::new(Vec::new()));
        let handler_kept = Rc::clone(&kept);
        let mut session = Session::start(with_tls, async move |request: Request| {
            let (head, mut body) = request.into_parts();
            match head.path() {
                "/next" => return Response::text("next"),
                "/unread" => {}
                "/read" => {
                    // The bodies of the earlier requests do not receive the data of this one.
                    handler_kept.borrow_mut().iter_mut().for_each(check_ended);
                    assert_eq!(body.collect().await.expect("complete body"), b"complete");
                    assert!(matches!(body.next().await, Ok(None)));
                }
                path => panic!("{path}"),
            }
            handler_kept.borrow_mut().push(body);
            Response::text("kept")
        })
        .await;
        for _ in 0..3 {
            for path in ["/unread", "/read"] {
                session.send(&format!("{}complete{NEXT}", put(path, 8))).await;
                session.receive_ok("kept").await;
                session.receive_ok("next").await;
                kept.borrow_mut().iter_mut().for_each(check_ended);
            }
        }
        assert_eq!(kept.borrow().len(), 6);
        // The bodies do not keep the connection open.
        session.reconnect().await;
        wait_until(|| session.server.connections() <= 1).await;
        kept.borrow_mut().iter_mut().for_each(check_ended);
    });
}

#[test]
fn body_moved_to_task_ends_with_response() {
    on_each_transport(async |with_tls| {
        let readers = Rc::new(RefCell::new(Vec::new()));
        let handler_readers = Rc::clone(&readers);
        let mut session = Session::start(with_tls, async move |request: Request| {
            let (head, body) = request.into_parts();
            if head.path() == "/next" {
                return Response::text("next");
            }
            let reader = BodyReader::spawn(body);
            handler_readers.borrow_mut().push(Rc::clone(&reader));
            match head.path() {
                "/awaited" => {
                    wait_until(|| reader.result.borrow().is_some()).await;
                    Response::text("awaited")
                }
                "/whole" => {
                    wait_until(|| reader.has_waited.get()).await;
                    Response::text("whole")
                }
                _ => {
                    wait_until(|| reader.has_waited.get()).await;
                    streamed("streamed")
                }
            }
        })
        .await;
        session.send(&format!("{}half done{NEXT}", put("/awaited", 9))).await;
        session.receive_ok("awaited").await;
        session.receive_ok("next").await;
        assert!(matches!(&*readers.borrow()[0].result.borrow(), Some(Ok(body)) if body == b"half done"));
        for (path, end) in [("/whole", "whole".to_owned()), ("/streamed", streamed_end("streamed"))] {
            session.send(&format!("{}half", put(path, 9))).await;
            session.receive_ok(&end).await;
            // The waiting task is woken, and does not receive the rest of the body.
            let reader = Rc::clone(readers.borrow().last().expect("a reader"));
            reader.wait_ended().await;
            session.send(&format!(" done{NEXT}")).await;
            session.receive_ok("next").await;
        }
    });
}

#[test]
fn closed_connection_ends_body_in_task() {
    on_each_transport(async |with_tls| {
        let readers = Rc::new(RefCell::new(Vec::new()));
        let handler_readers = Rc::clone(&readers);
        let mut session = Session::start(with_tls, async move |request: Request| {
            if request.path() == "/next" {
                return Response::text("next");
            }
            let reader = BodyReader::spawn(request.into_parts().1);
            handler_readers.borrow_mut().push(reader);
            pending().await
        })
        .await;
        // With TLS, the client sends its request only after it has received the handshake.
        session.send(NEXT).await;
        session.receive_ok("next").await;
        session.send(&format!("{}half", put("/", 9))).await;
        wait_until(|| readers.borrow().first().is_some_and(|reader| reader.has_waited.get())).await;
        session.server.abort_connections();
        wait_until(|| session.server.connections() == 0).await;
        let reader = Rc::clone(&readers.borrow()[0]);
        wait_until(|| reader.result.borrow().is_some()).await;
        // The task may have run between the end of the stream and the end of the connection.
        assert!(matches!(&*reader.result.borrow(), Some(Err(RequestBodyError::Io(_)))));
    });
}

#[test]
fn forgotten_body_ends_with_response() {
    on_each_transport(async |with_tls| {
        let mut session = Session::start(with_tls, async |request: Request| {
            let (head, mut body) = request.into_parts();
            match head.path() {
                "/next" => return Response::text("next"),
                "/dropped" => {
                    drop(body);
                    return streamed("dropped");
                }
                path if path.starts_with("/half") => {
                    assert_eq!(body.next().await.expect("data").as_deref(), Some(&b"half"[..]));
                }
                _ => {}
            }
            mem::forget(body);
            if head.path().ends_with("stream") { streamed("forgotten") } else { Response::text("forgotten") }
        })
        .await;
        for _ in 0..2 {
            for path in ["/unread", "/half", "/unread-stream", "/half-stream"] {
                let is_streamed = path.ends_with("stream");
                let end = if is_streamed { streamed_end("forgotten") } else { "forgotten".to_owned() };
                session.send(&format!("{}half", put(path, 9))).await;
                session.receive_ok(&end).await;
                session.send(&format!(" done{NEXT}{NEXT}")).await;
                session.receive_ok("next").await;
                session.receive_ok("next").await;
            }
        }
        // No leaked body is mistaken for the body of this request, which nothing reads: without `100 Continue`, it is
        // unknown whether the client sends the body, and the connection is closed.
        let fields = "Content-Length: 9\r\nExpect: 100-continue";
        session.send(&format!("PUT /dropped HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n")).await;
        session.receive_last(&streamed_end("dropped")).await;
        session.reconnect().await;
        wait_until(|| session.server.connections() == 1).await;
    });
}

#[test]
fn half_read_body_is_discarded_up_to_limit() {
    on_each_transport(async |with_tls| {
        let mut session = Session::start(with_tls, async |request: Request| {
            let (head, mut body) = request.into_parts();
            if head.path() == "/next" {
                return Response::text("next");
            }
            assert_eq!(body.next().await.expect("data").as_deref(), Some(&b"half"[..]));
            drop(body);
            if head.path() == "/stream" { streamed("dropped") } else { Response::text("dropped") }
        })
        .await;
        for (path, end) in [("/", "dropped".to_owned()), ("/stream", streamed_end("dropped"))] {
            session.send(&format!("{}half", put(path, 9))).await;
            session.receive_ok(&end).await;
            session.send(&format!(" done{NEXT}{NEXT}")).await;
            session.receive_ok("next").await;
            session.receive_ok("next").await;
        }
        // The client sends more than the server discards.
        session.send(&format!("{}half", put("/", 1 << 20))).await;
        session.receive_last("dropped").await;
    });
}

#[test]
fn stream_reads_body_until_it_drops_it() {
    /// Sends the request body back up to the word "stop".
    struct Echo(Option<RequestBody>);

    impl Stream for Echo {
        type Item = io::Result<Bytes>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
            let Some(body) = &mut self.0 else { return Poll::Ready(None) };
            let polled = body.poll_next(context).map(|part| part.map_err(io::Error::other).transpose());
            if matches!(&polled, Poll::Ready(Some(Ok(part))) if &part[..] == b"stop") {
                self.0 = None;
            }
            polled
        }
    }

    on_each_transport(async |with_tls| {
        let mut session = Session::start(with_tls, async |request: Request| match request.path() {
            "/next" => Response::text("next"),
            _ => Response::new(200).with_body(Body::stream(Echo(Some(request.into_parts().1)))),
        })
        .await;
        for last in ["stop", "done"] {
            session.send(&put("/", 9)).await;
            session.send("half").await;
            assert!(session.receive("half\r\n").await.starts_with("HTTP/1.1 200 OK\r\n"));
            session.send(last).await;
            session.receive(&format!("{last}\r\n")).await;
            // After "stop", the rest is discarded.
            session.send(&format!("!{NEXT}{NEXT}")).await;
            session.receive("0\r\n\r\n").await;
            session.receive_ok("next").await;
            session.receive_ok("next").await;
        }
    });
}
