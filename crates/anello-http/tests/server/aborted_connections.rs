//! Connections aborted in the middle of a response: the server releases their resources, and clients detect the
//! truncation.

use std::cell::Cell;
use std::fs;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::net::TcpListener;
use anello::spawn;
use anello_http::{Body, Request, Response, Server, ServerOptions};
use anello_test::{main_drivers, main_drivers_and_sim, on_each, run_on_each};
use bytes::Bytes;
use futures_core::Stream;

use crate::common::{Client, serve, wait_until};

const SHORT: Duration = Duration::from_millis(60);

/// Cause of an aborted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AbortCause {
    SendTimeout,
    RequestTimeout,
    DrainTimeout,
    ServerShutdown,
}

/// Returns options with which only the timeout for this cause can expire.
fn options(cause: AbortCause) -> ServerOptions {
    let long = Duration::from_secs(100_000);
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (long, long, long);
    (options.send_timeout, options.linger_timeout, options.drain_timeout) = (long, long, long);
    options.timer_resolution = Duration::from_millis(5);
    match cause {
        AbortCause::SendTimeout => options.send_timeout = SHORT,
        AbortCause::RequestTimeout => options.request_timeout = Some(SHORT),
        AbortCause::DrainTimeout => options.drain_timeout = SHORT,
        AbortCause::ServerShutdown => {}
    }
    options
}

/// Receives until the connection is closed. Returns the received bytes, and the error if the connection was not closed
/// cleanly.
async fn read_until_closed(client: &mut Client) -> (Vec<u8>, Option<io::ErrorKind>) {
    let mut received = Vec::new();
    loop {
        match client.stream.recv().await {
            Ok(Some(bytes)) => received.extend_from_slice(&bytes),
            Ok(None) => return (received, None),
            Err(error) => return (received, Some(error.kind())),
        }
    }
}

/// Returns the number of unsent bytes in the kernel for connections on this local port, including orphaned connections.
fn kernel_send_queue_bytes(port: u16) -> u64 {
    let sockets = fs::read_to_string("/proc/net/tcp").expect("read socket table");
    // The table can also contain tens of thousands of connections that other tests have closed.
    let port_column = format!(":{port:04X} ");
    let queued_bytes = sockets.lines().filter(|line| line.contains(&port_column)).filter_map(|line| {
        // Fields: number, local address, peer address, state, send queue:receive queue.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = fields[1].split_once(':').expect("address and port");
        let (send_queue, _) = fields[4].split_once(':').expect("queue sizes");
        let is_same_port = u16::from_str_radix(local_port, 16).expect("port number") == port;
        is_same_port.then(|| u64::from_str_radix(send_queue, 16).expect("queue size"))
    });
    queued_bytes.sum()
}

/// A body stream that yields one chunk and then stays pending.
struct StalledStream {
    has_started: bool,
}

impl Stream for StalledStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match mem::replace(&mut self.has_started, true) {
            false => Poll::Ready(Some(Ok(Bytes::from_static(b"chunk")))),
            true => Poll::Pending,
        }
    }
}

#[test]
fn client_detects_truncated_body() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        for cause in [AbortCause::RequestTimeout, AbortCause::DrainTimeout, AbortCause::ServerShutdown] {
            // The framing of a chunked body shows that it is incomplete. For a body that ends at EOF, the connection
            // must be reset.
            for (version, expected) in [("1.1", None), ("1.0", Some(io::ErrorKind::ConnectionReset))] {
                let (server, address) = serve(options(cause), async |_: Request| {
                    Response::new(200).with_body(Body::stream(StalledStream { has_started: false }))
                });
                let mut client = Client::connect(address).await;
                client.send(format!("GET / HTTP/{version}\r\nHost: h\r\n\r\n")).await;
                let mut received = Vec::new();
                while !received.windows(5).any(|window| window == b"chunk") {
                    received
                        .extend_from_slice(&client.stream.recv().await.expect("receive").expect("more data"));
                }
                match cause {
                    AbortCause::DrainTimeout => assert_eq!(server.drain().await, 1, "{setup}"),
                    AbortCause::ServerShutdown => server.abort_connections(),
                    AbortCause::SendTimeout | AbortCause::RequestTimeout => {}
                }
                let (more, error) = read_until_closed(&mut client).await;
                received.extend_from_slice(&more);
                assert!(!received.ends_with(b"\r\n0\r\n\r\n"), "{setup}: {cause:?}");
                assert_eq!(error, expected, "{setup}: {cause:?}, HTTP/{version}");
                wait_until(|| server.connections() == 0).await;
            }
        }
    });
}

#[test]
fn fault_20_aborted_connections_leave_no_data_in_kernel() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let has_kernel = !setup.is_simulated();
        for cause in [
            AbortCause::SendTimeout,
            AbortCause::RequestTimeout,
            AbortCause::DrainTimeout,
            AbortCause::ServerShutdown,
        ] {
            let large = Bytes::from(vec![b'x'; 32 << 20]);
            let has_request = Rc::new(Cell::new(false));
            let handler_started = Rc::clone(&has_request);
            let (server, address) = serve(options(cause), async move |_: Request| {
                handler_started.set(true);
                Response::text(large.clone())
            });
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            wait_until(|| has_request.get()).await;
            match cause {
                AbortCause::SendTimeout | AbortCause::RequestTimeout => {}
                AbortCause::DrainTimeout => assert_eq!(server.drain().await, 1, "{setup}: {cause:?}"),
                AbortCause::ServerShutdown => server.abort_connections(),
            }
            wait_until(|| server.connections() == 0).await;
            // The client is still connected but does not read.
            wait_until(|| !has_kernel || kernel_send_queue_bytes(address.port()) == 0).await;
            let (_, error) = read_until_closed(&mut client).await;
            assert_eq!(error, Some(io::ErrorKind::ConnectionReset), "{setup}: {cause:?}");
        }
    });
}

#[test]
fn aborted_connection_task_resets_connection() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let server = Server::builder().options(options(AbortCause::ServerShutdown)).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        let serving = server.clone();
        let connection = spawn(async move {
            let stream = listener.accept().await.expect("accept");
            let handler = async |_: Request| {
                Response::new(200).with_body(Body::stream(StalledStream { has_started: false }))
            };
            serving.serve_connection(stream, &handler).await
        });
        let mut client = Client::connect(address).await;
        client.send("GET / HTTP/1.0\r\nHost: h\r\n\r\n").await;
        let mut received = Vec::new();
        while !received.windows(5).any(|window| window == b"chunk") {
            received.extend_from_slice(&client.stream.recv().await.expect("receive").expect("more data"));
        }
        connection.abort();
        let (_, error) = read_until_closed(&mut client).await;
        assert_eq!(error, Some(io::ErrorKind::ConnectionReset), "{setup}");
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn dropped_runtime_resets_connections() {
    use std::io::{Read, Write};
    on_each(main_drivers(), |setup| {
        let runtime = setup.runtime();
        let client = runtime.block_on(async {
            let (_server, address) = serve(options(AbortCause::ServerShutdown), async |_: Request| {
                Response::new(200).with_body(Body::stream(StalledStream { has_started: false }))
            });
            let receiving = anello::spawn_blocking(move || {
                let mut client = std::net::TcpStream::connect(address).expect("connect");
                client.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("send");
                let mut received = Vec::new();
                while !received.ends_with(b"chunk") {
                    let mut bytes = [0; 1000];
                    let count = client.read(&mut bytes).expect("receive");
                    received.extend_from_slice(&bytes[..count]);
                }
                client
            });
            receiving.await.expect("task completes")
        });
        drop(runtime);
        let result = (&client).read(&mut [0; 10]);
        assert!(result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset), "{setup}");
    });
}
