//! Bodies of requests that are read in tasks of their own, as what must not be left half done is.

mod common;

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
use bytes::Bytes;
use futures_core::Stream;

use common::{Client, drivers, for_each_driver, serve, wait_until, with_long_timeouts};

/// How far a task has come with a body.
#[derive(Default)]
struct Reading {
    /// It has had to wait.
    waits: Cell<bool>,
    end: RefCell<Option<Result<Vec<u8>, RequestBodyError>>>,
}

impl Reading {
    fn is_aborted(&self) -> bool {
        let end = self.end.borrow();
        assert!(!matches!(*end, Some(Ok(_))), "more of it came than was sent");
        matches!(&*end, Some(Err(RequestBodyError::Io(error))) if error.kind() == io::ErrorKind::NotConnected)
    }
}

/// Reads a body in a task of its own, to its end or until it is told that there is none.
fn read_in_task(mut body: RequestBody, reading: &Rc<Reading>) {
    let reading = Rc::clone(reading);
    spawn(async move {
        let mut whole = Vec::new();
        let end = loop {
            let piece = poll_fn(|context| {
                let polled = body.poll_next(context);
                reading.waits.set(polled.is_pending());
                polled
            });
            match piece.await {
                Ok(Some(piece)) => whole.extend_from_slice(&piece),
                Ok(None) => break Ok(whole),
                Err(error) => break Err(error),
            }
        };
        reading.end.replace(Some(end));
        // The body itself is kept for good.
        pending::<()>().await;
        drop(body);
    })
    .detach();
}

/// A piece, and then nothing until it is told to end.
struct Stalling {
    has_begun: bool,
    ends: Rc<Cell<bool>>,
}

impl Stream for Stalling {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Some(Ok(Bytes::from_static(b"piece"))));
        }
        if self.ends.get() {
            return Poll::Ready(None);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[test]
fn a_task_that_waits_for_a_body_is_told_of_the_answer_and_keeps_nothing_open() {
    for_each_driver(drivers(), async |kind| {
        for streams in [false, true] {
            let (reading, ends) = (Rc::new(Reading::default()), Rc::new(Cell::new(false)));
            let (shown, told) = (Rc::clone(&reading), Rc::clone(&ends));
            let (server, address) = serve(with_long_timeouts(), async move |request: Request| {
                if request.path() == "/next" {
                    return Response::text("next");
                }
                read_in_task(request.into_parts().1, &shown);
                wait_until(|| shown.waits.get()).await;
                if streams {
                    // It is read on meanwhile.
                    let (has_begun, ends) = (false, Rc::clone(&told));
                    return Response::new(504).with_body(Body::stream(Stalling { has_begun, ends }));
                }
                Response::text("too late").with_status(504)
            });
            let mut client = Client::connect(address).await;
            client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf").await;
            wait_until(|| reading.waits.get()).await;
            ends.set(true);
            assert_eq!(client.response().await.expect("an answer").status, 504, "{kind}");
            wait_until(|| reading.is_aborted()).await;
            // What nobody reads any more is out of the way of what comes next.
            client.send(" doneGET /next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            assert_eq!(client.response().await.expect("an answer").text(), "next", "{kind}");
            assert!(client.is_eof().await, "{kind}");
            wait_until(|| server.connections() == 0).await;
        }
    });
}

#[test]
fn a_task_that_waits_for_a_body_is_told_of_the_end_of_its_connection() {
    for_each_driver(drivers(), async |_| {
        let reading = Rc::new(Reading::default());
        let shown = Rc::clone(&reading);
        let (server, address) = serve(with_long_timeouts(), async move |request: Request| {
            read_in_task(request.into_parts().1, &shown);
            pending().await
        });
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf").await;
        wait_until(|| reading.waits.get()).await;
        server.abort_connections();
        wait_until(|| server.connections() == 0).await;
        wait_until(|| reading.end.borrow().is_some()).await;
        assert!(client.is_eof().await);
    });
}

#[test]
fn a_client_is_asked_for_its_body_by_a_task_that_reads_it() {
    for_each_driver(drivers(), async |kind| {
        let (_server, address) = serve(with_long_timeouts(), async |request: Request| {
            let (head, mut body) = request.into_parts();
            let is_later = head.path() == "/later";
            let reading = spawn(async move {
                if is_later {
                    // The connection waits already.
                    sleep(Duration::from_millis(20)).await;
                }
                body.collect().await
            });
            Response::text(reading.await.expect("it ends").expect("a body"))
        });
        let mut client = Client::connect(address).await;
        for path in ["/", "/later"] {
            let framing = "Content-Length: 4\r\nExpect: 100-continue";
            client.send(format!("PUT {path} HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n")).await;
            assert_eq!(client.response().await.expect("an answer").status, 100, "{kind}");
            client.send("body").await;
            assert_eq!(client.response().await.expect("an answer").text(), "body", "{kind}");
        }
    });
}

#[test]
fn a_connection_goes_over_to_another_protocol_though_its_body_was_kept() {
    for_each_driver(drivers(), async |kind| {
        let reading = Rc::new(Reading::default());
        let shown = Rc::clone(&reading);
        let (server, address) = serve(with_long_timeouts(), async move |request: Request| {
            read_in_task(request.into_parts().1, &shown);
            wait_until(|| shown.waits.get()).await;
            Response::upgrade("greeting", async |mut upgraded| {
                upgraded.write_all(b"ciao").await.expect("sends");
                upgraded.shutdown().await.expect("ends");
            })
        });
        let mut client = Client::connect(address).await;
        let fields = "Connection: upgrade\r\nUpgrade: greeting\r\nContent-Length: 9";
        client.send(format!("PUT / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\nhalf")).await;
        assert_eq!(client.response().await.expect("an answer").status, 101, "{kind}");
        wait_until(|| reading.is_aborted()).await;
        client.send(" done").await;
        assert_eq!(client.exactly(4).await, b"ciao", "{kind}");
        assert!(client.is_eof().await, "{kind}");
        wait_until(|| server.connections() == 0).await;
    });
}

/// So many large pieces, and then none for good.
struct Burst(usize);

const PIECE_BYTES: usize = 256 * 1024;

impl Stream for Burst {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                Poll::Ready(Some(Ok(Bytes::from(vec![b'#'; PIECE_BYTES]))))
            }
            None => Poll::Pending,
        }
    }
}

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn fault_20_who_takes_nothing_is_noticed_though_its_body_comes_meanwhile() {
    for_each_driver(drivers(), async |kind| {
        let reading = Rc::new(Reading::default());
        let shown = Rc::clone(&reading);
        let mut options = with_long_timeouts();
        options.send_timeout = SHORT;
        let (server, address) = serve(options, async move |request: Request| {
            read_in_task(request.into_parts().1, &shown);
            Response::new(200).with_body(Body::stream(Burst(usize::MAX)))
        });
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\r\nhalf").await;
        for rest in ["more", "done"] {
            wait_until(|| reading.waits.get()).await;
            // Until there is no room any more.
            sleep(SHORT / 4).await;
            client.send(rest).await;
        }
        wait_until(|| server.connections() == 0).await;
        assert!(matches!(&*reading.end.borrow(), Some(Ok(body)) if body == b"halfmoredone"), "{kind}");
    });
}

#[test]
fn fault_19_a_body_that_stops_is_noticed_though_its_answer_had_to_wait_for_room() {
    for_each_driver(drivers(), async |kind| {
        const PIECES: usize = 40;
        let reading = Rc::new(Reading::default());
        let shown = Rc::clone(&reading);
        let mut options = with_long_timeouts();
        options.body_timeout = SHORT * 10;
        let (server, address) = serve(options, async move |request: Request| {
            read_in_task(request.into_parts().1, &shown);
            Response::new(200).with_body(Body::stream(Burst(PIECES)))
        });
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf").await;
        wait_until(|| reading.waits.get()).await;
        sleep(SHORT).await;
        let mut taken_bytes = 0;
        while taken_bytes < PIECES * PIECE_BYTES {
            let Ok(Some(chunk)) = client.stream.recv().await else { break };
            taken_bytes += chunk.len();
        }
        // It says no more, and its answer goes on for ever.
        wait_until(|| reading.end.borrow().is_some()).await;
        assert!(!matches!(*reading.end.borrow(), Some(Ok(_))), "{kind}");
        drop(client);
        server.abort_connections();
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn a_connection_does_not_go_over_with_a_body_in_the_way() {
    for_each_driver(drivers(), async |kind| {
        let (_server, address) = serve(with_long_timeouts(), async |_: Request| {
            Response::upgrade("greeting", async |mut upgraded| {
                upgraded.write_all(b"ciao").await.expect("sends");
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
            assert_eq!(client.response().await.expect("an answer").status, 413, "{kind}: {framing}");
            client.stream.shutdown().await.expect("ends");
            assert!(client.is_eof().await, "{kind}: {framing}");
        }
    });
}
