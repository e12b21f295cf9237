//! Request bodies that are read in a separate task, as needed for work that must not be cancelled together with the
//! handler.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::spawn;
use anello::time::sleep;
use anello_http::{Body, Request, RequestBody, RequestBodyError, Response};
use anello_test::{main_drivers_and_sim, run_on_each};
use bytes::Bytes;
use futures_core::Stream;

use crate::common::{Client, serve, wait_until, with_long_timeouts};

/// Progress of a task that is reading a body.
#[derive(Default)]
struct BodyReader {
    /// Whether the last poll of the body returned `Pending`.
    is_pending: Cell<bool>,
    result: RefCell<Option<Result<Vec<u8>, RequestBodyError>>>,
}

impl BodyReader {
    fn is_aborted(&self) -> bool {
        let result = self.result.borrow();
        assert!(!matches!(*result, Some(Ok(_))), "received a complete body that was not sent");
        matches!(&*result, Some(Err(RequestBodyError::Io(error))) if error.kind() == io::ErrorKind::NotConnected)
    }
}

/// Reads a body in a new task until its end or an error.
fn read_in_task(mut body: RequestBody, reader: &Rc<BodyReader>) {
    let reader = Rc::clone(reader);
    spawn(async move {
        let mut received = Vec::new();
        let result = loop {
            let part = poll_fn(|context| {
                let polled = body.poll_next(context);
                reader.is_pending.set(polled.is_pending());
                polled
            });
            match part.await {
                Ok(Some(part)) => received.extend_from_slice(&part),
                Ok(None) => break Ok(received),
                Err(error) => break Err(error),
            }
        };
        reader.result.replace(Some(result));
        // The body itself is never dropped.
        pending::<()>().await;
        drop(body);
    })
    .detach();
}

/// A body stream that yields one chunk and then stays pending until `is_released` is set.
struct StallingStream {
    has_started: bool,
    is_released: Rc<Cell<bool>>,
}

impl Stream for StallingStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if !std::mem::replace(&mut self.has_started, true) {
            return Poll::Ready(Some(Ok(Bytes::from_static(b"chunk"))));
        }
        if self.is_released.get() {
            return Poll::Ready(None);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[test]
fn response_aborts_body_read_in_task_and_connection_is_reused() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for streams in [false, true] {
            let (reader, is_released) = (Rc::new(BodyReader::default()), Rc::new(Cell::new(false)));
            let (handler_reader, handler_released) = (Rc::clone(&reader), Rc::clone(&is_released));
            let (server, address) = serve(with_long_timeouts(), async move |request: Request| {
                if request.path() == "/next" {
                    return Response::text("next");
                }
                read_in_task(request.into_parts().1, &handler_reader);
                wait_until(|| handler_reader.is_pending.get()).await;
                if streams {
                    // The task continues to read the body while the response is being streamed.
                    let stream =
                        StallingStream { has_started: false, is_released: Rc::clone(&handler_released) };
                    return Response::new(504).with_body(Body::stream(stream));
                }
                Response::text("too late").with_status(504)
            });
            let mut client = Client::connect(address).await;
            client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf").await;
            wait_until(|| reader.is_pending.get()).await;
            is_released.set(true);
            assert_eq!(client.response().await.expect("response").status, 504, "{setup}");
            wait_until(|| reader.is_aborted()).await;
            // The unread rest of the body is discarded before the next request.
            client.send(" doneGET /next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            assert_eq!(client.response().await.expect("response").text(), "next", "{setup}");
            assert!(client.is_eof().await, "{setup}");
            wait_until(|| server.connections() == 0).await;
        }
    });
}

#[test]
fn closed_connection_aborts_body_read_in_task() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let reader = Rc::new(BodyReader::default());
        let handler_reader = Rc::clone(&reader);
        let (server, address) = serve(with_long_timeouts(), async move |request: Request| {
            read_in_task(request.into_parts().1, &handler_reader);
            pending().await
        });
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf").await;
        wait_until(|| reader.is_pending.get()).await;
        server.abort_connections();
        wait_until(|| server.connections() == 0).await;
        wait_until(|| reader.result.borrow().is_some()).await;
        assert!(client.is_eof().await);
    });
}

#[test]
fn body_read_in_task_triggers_100_continue() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (_server, address) = serve(with_long_timeouts(), async |request: Request| {
            let (head, mut body) = request.into_parts();
            let is_later = head.path() == "/later";
            let reading = spawn(async move {
                if is_later {
                    // Delayed until the connection is already waiting for the task.
                    sleep(Duration::from_millis(20)).await;
                }
                body.collect().await
            });
            Response::text(reading.await.expect("task completes").expect("complete body"))
        });
        let mut client = Client::connect(address).await;
        for path in ["/", "/later"] {
            let framing = "Content-Length: 4\r\nExpect: 100-continue";
            client.send(format!("PUT {path} HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n")).await;
            assert_eq!(client.response().await.expect("response").status, 100, "{setup}");
            client.send("body").await;
            assert_eq!(client.response().await.expect("response").text(), "body", "{setup}");
        }
    });
}

#[test]
fn upgrade_succeeds_while_body_is_kept_in_task() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let reader = Rc::new(BodyReader::default());
        let handler_reader = Rc::clone(&reader);
        let (server, address) = serve(with_long_timeouts(), async move |request: Request| {
            read_in_task(request.into_parts().1, &handler_reader);
            wait_until(|| handler_reader.is_pending.get()).await;
            Response::upgrade("greeting", async |mut upgraded| {
                upgraded.write_all(b"ciao").await.expect("send");
                upgraded.shutdown().await.expect("shut down");
            })
        });
        let mut client = Client::connect(address).await;
        let fields = "Connection: upgrade\r\nUpgrade: greeting\r\nContent-Length: 9";
        client.send(format!("PUT / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\nhalf")).await;
        assert_eq!(client.response().await.expect("response").status, 101, "{setup}");
        wait_until(|| reader.is_aborted()).await;
        client.send(" done").await;
        assert_eq!(client.read_exact(4).await, b"ciao", "{setup}");
        assert!(client.is_eof().await, "{setup}");
        wait_until(|| server.connections() == 0).await;
    });
}

/// A body stream that yields this number of large chunks and then stays pending.
struct Burst(usize);

const CHUNK_BYTES: usize = 256 * 1024;

impl Stream for Burst {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match self.0.checked_sub(1) {
            Some(remaining) => {
                self.0 = remaining;
                Poll::Ready(Some(Ok(Bytes::from(vec![b'#'; CHUNK_BYTES]))))
            }
            None => Poll::Pending,
        }
    }
}

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn fault_20_send_timeout_expires_while_body_arrives() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let reader = Rc::new(BodyReader::default());
        let handler_reader = Rc::clone(&reader);
        let mut options = with_long_timeouts();
        options.send_timeout = SHORT;
        let (server, address) = serve(options, async move |request: Request| {
            read_in_task(request.into_parts().1, &handler_reader);
            Response::new(200).with_body(Body::stream(Burst(usize::MAX)))
        });
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\r\nhalf").await;
        for rest in ["more", "done"] {
            wait_until(|| reader.is_pending.get()).await;
            // Leave time for the send buffers to fill up.
            sleep(SHORT / 4).await;
            client.send(rest).await;
        }
        wait_until(|| server.connections() == 0).await;
        assert!(matches!(&*reader.result.borrow(), Some(Ok(body)) if body == b"halfmoredone"), "{setup}");
    });
}

#[test]
fn fault_19_body_timeout_expires_after_response_was_blocked() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        const CHUNKS: usize = 40;
        let reader = Rc::new(BodyReader::default());
        let handler_reader = Rc::clone(&reader);
        let mut options = with_long_timeouts();
        options.body_timeout = SHORT * 10;
        let (server, address) = serve(options, async move |request: Request| {
            read_in_task(request.into_parts().1, &handler_reader);
            Response::new(200).with_body(Body::stream(Burst(CHUNKS)))
        });
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf").await;
        wait_until(|| reader.is_pending.get()).await;
        sleep(SHORT).await;
        let mut received_bytes = 0;
        while received_bytes < CHUNKS * CHUNK_BYTES {
            let Ok(Some(chunk)) = client.stream.recv().await else { break };
            received_bytes += chunk.len();
        }
        // The client sends nothing more and the response never completes.
        wait_until(|| reader.result.borrow().is_some()).await;
        assert!(!matches!(*reader.result.borrow(), Some(Ok(_))), "{setup}");
        drop(client);
        server.abort_connections();
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn upgrade_with_unread_body_is_rejected_with_413() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (_server, address) = serve(with_long_timeouts(), async |_: Request| {
            Response::upgrade("greeting", async |mut upgraded| {
                upgraded.write_all(b"ciao").await.expect("send");
            })
        });
        for framing in [
            "Content-Length: 4\r\nExpect: 100-continue",
            "Content-Length: 100000",
            "Transfer-Encoding: chunked",
        ] {
            let mut client = Client::connect(address).await;
            let fields = format!("Connection: upgrade\r\nUpgrade: greeting\r\n{framing}");
            client.send(format!("PUT / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n")).await;
            assert_eq!(client.response().await.expect("response").status, 413, "{setup}: {framing}");
            client.stream.shutdown().await.expect("shut down");
            assert!(client.is_eof().await, "{setup}: {framing}");
        }
    });
}
