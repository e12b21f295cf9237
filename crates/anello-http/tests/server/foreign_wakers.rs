//! Connections polled with custom wakers, which can run arbitrary code when called.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use anello::net::TcpListener;
use anello::spawn;
use anello_http::{Body, Request, Response, Server, ServerOptions};
use anello_test::{main_drivers_and_sim, panic_in_events, run_on_each};
use bytes::Bytes;

use crate::common::{Client, wait_until, with_long_timeouts};

thread_local! {
    /// The connection, while it is not being polled.
    static CONNECTION: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>> = const { RefCell::new(None) };
    /// Whether the next wake drops the connection.
    static DROPS: Cell<bool> = const { Cell::new(false) };
    /// Whether each wake panics.
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

/// A waker that can drop the connection before it wakes the task, and panic afterwards.
struct CustomWaker(Waker);

impl Wake for CustomWaker {
    fn wake(self: Arc<Self>) {
        if DROPS.get() {
            let connection = CONNECTION.take();
            drop(connection);
        }
        self.0.wake_by_ref();
        if PANICS.get() {
            resume_unwind(Box::new("deliberate panic in a waker"));
        }
    }
}

/// Polls a connection until it completes or is dropped.
async fn drive(connection: impl Future<Output = ()> + 'static) {
    CONNECTION.replace(Some(Box::pin(connection)));
    poll_fn(|context| {
        let Some(mut connection) = CONNECTION.take() else { return Poll::Ready(()) };
        let waker = Waker::from(Arc::new(CustomWaker(context.waker().clone())));
        match connection.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => {
                CONNECTION.replace(Some(connection));
                Poll::Pending
            }
        }
    })
    .await;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum AbortCause {
    ServerShutdown,
    Request,
    Write,
}

#[test]
fn waker_called_on_abort_can_drop_connection() {
    run_on_each(main_drivers_and_sim(), async |_| {
        for cause in [AbortCause::ServerShutdown, AbortCause::Request, AbortCause::Write] {
            DROPS.set(false);
            let mut options: ServerOptions = with_long_timeouts();
            options.timer_resolution = Duration::from_millis(5);
            match cause {
                AbortCause::ServerShutdown => {}
                AbortCause::Request => options.request_timeout = Some(Duration::from_millis(60)),
                AbortCause::Write => options.send_timeout = Duration::from_millis(60),
            }
            let server = Server::builder().options(options).build();
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let address = listener.local_addr().expect("local address");
            let has_request = Rc::new(Cell::new(false));
            let (handler_started, serving) = (Rc::clone(&has_request), server.clone());
            spawn(async move {
                let stream = listener.accept().await.expect("accept");
                drive(async move {
                    let handler = async |_: Request| {
                        handler_started.set(true);
                        if cause == AbortCause::Write {
                            return Response::new(200).with_body(Body::from(Bytes::from(vec![0; 32 << 20])));
                        }
                        pending().await
                    };
                    serving.serve_connection(stream, &handler).await.ok();
                })
                .await;
            })
            .detach();
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            wait_until(|| has_request.get()).await;
            DROPS.set(cause != AbortCause::Write);
            if cause == AbortCause::Write {
                anello::time::sleep(Duration::from_millis(30)).await;
                DROPS.set(true);
            }
            if cause == AbortCause::ServerShutdown {
                server.abort_connections();
            }
            wait_until(|| server.connections() == 0).await;
        }
    });
}

#[test]
fn waker_called_by_body_can_drop_connection() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        DROPS.set(false);
        let server = Server::builder().options(with_long_timeouts()).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        let has_failed = Rc::new(Cell::new(false));
        let (body_failed, serving) = (Rc::clone(&has_failed), server.clone());
        spawn(async move {
            let stream = listener.accept().await.expect("accept");
            drive(async move {
                let handler = async |request: Request| {
                    let (mut body, body_failed) = (request.into_parts().1, Rc::clone(&body_failed));
                    spawn(async move {
                        anello::time::sleep(Duration::from_millis(20)).await;
                        DROPS.set(true);
                        assert!(body.next().await.is_err());
                        body_failed.set(true);
                    })
                    .detach();
                    pending().await
                };
                serving.serve_connection(stream, &handler).await.ok();
            })
            .await;
        })
        .detach();
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n").await;
        wait_until(|| has_failed.get()).await;
        assert_eq!(server.connections(), 0, "{setup}");
    });
}

#[test]
fn panicking_waker_and_subscriber_stop_no_deadline_of_others() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (events, _guard) = panic_in_events();
        DROPS.set(false);
        PANICS.set(true);
        let mut options: ServerOptions = with_long_timeouts();
        options.timer_resolution = Duration::from_millis(5);
        options.request_timeout = Some(Duration::from_millis(60));
        let server = Server::builder().options(options).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        let serving = server.clone();
        spawn(async move {
            let handler = async |_: Request| pending().await;
            let first = listener.accept().await.expect("accept");
            let connection = serving.clone();
            spawn(drive(async move {
                connection.serve_connection(first, &handler).await.ok();
            }))
            .detach();
            serving.serve(listener, handler).detach();
        })
        .detach();
        // The timeouts of the later clients also show that the clock continues.
        for _ in 0..2 {
            let mut clients = [Client::connect(address).await, Client::connect(address).await];
            for client in &mut clients {
                client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            }
            for client in &mut clients {
                assert!(client.is_eof().await, "{setup}");
            }
            wait_until(|| server.connections() == 0).await;
        }
        assert!(events.load(Ordering::Relaxed) > 0, "{setup}");
    });
}
