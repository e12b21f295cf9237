//! Connections that are broken off in the middle of an answer: what is left of them, and what their clients can tell.

mod common;

use std::cell::Cell;
use std::fs;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::net::TcpListener;
use anello::{DriverKind, spawn};
use anello_http::{Body, Request, Response, Server, ServerOptions};
use bytes::Bytes;
use futures_core::Stream;

use common::{Client, drivers, for_each_driver, serve, wait_until};

const SHORT: Duration = Duration::from_millis(60);

/// What breaks a connection off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AbortCause {
    SendTimeout,
    RequestTimeout,
    DrainTimeout,
    ServerShutdown,
}

/// All deadlines far away, but for this one.
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

/// What comes, and how it ends: in good order, or by an error.
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

/// How much the kernel holds for the clients of this port, whether or not anybody has the connection any more.
fn kernel_send_queue_bytes(port: u16) -> u64 {
    let sockets = fs::read_to_string("/proc/net/tcp").expect("a list of sockets");
    let held = sockets.lines().skip(1).filter_map(|line| {
        // Number, address, peer, state, bytes to be sent and bytes received.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = fields[1].split_once(':').expect("an address");
        let (to_send, _) = fields[4].split_once(':').expect("two numbers");
        let is_its = u16::from_str_radix(local_port, 16).expect("a port") == port;
        is_its.then(|| u64::from_str_radix(to_send, 16).expect("a number"))
    });
    held.sum()
}

/// A piece, and then none for ever.
struct Endless {
    is_begun: bool,
}

impl Stream for Endless {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match mem::replace(&mut self.is_begun, true) {
            false => Poll::Ready(Some(Ok(Bytes::from_static(b"piece")))),
            true => Poll::Pending,
        }
    }
}

#[test]
fn nobody_takes_half_a_body_for_a_whole_one() {
    for_each_driver(drivers(), async |kind| {
        for cause in [AbortCause::RequestTimeout, AbortCause::DrainTimeout, AbortCause::ServerShutdown] {
            // What is sent in chunks speaks for itself; where only the end of the connection is that of the body, it does.
            for (version, expected) in [("1.1", None), ("1.0", Some(io::ErrorKind::ConnectionReset))] {
                let (server, address) = serve(options(cause), async |_: Request| {
                    Response::new(200).with_body(Body::stream(Endless { is_begun: false }))
                });
                let mut client = Client::connect(address).await;
                client.send(format!("GET / HTTP/{version}\r\nHost: h\r\n\r\n")).await;
                let mut received = Vec::new();
                while !received.windows(5).any(|five| five == b"piece") {
                    received.extend_from_slice(&client.stream.recv().await.expect("bytes").expect("more"));
                }
                match cause {
                    AbortCause::DrainTimeout => assert_eq!(server.drain().await, 1, "{kind}"),
                    AbortCause::ServerShutdown => server.abort_connections(),
                    AbortCause::SendTimeout | AbortCause::RequestTimeout => {}
                }
                let (more, error) = read_until_closed(&mut client).await;
                received.extend_from_slice(&more);
                assert!(!received.ends_with(b"\r\n0\r\n\r\n"), "{kind}: {cause:?}");
                assert_eq!(error, expected, "{kind}: {cause:?}, HTTP/{version}");
                wait_until(|| server.connections() == 0).await;
            }
        }
    });
}

#[test]
fn fault_20_nothing_is_kept_for_clients_that_were_given_up() {
    for_each_driver(drivers(), async |kind| {
        let has_kernel = !matches!(kind, DriverKind::Sim(_));
        for cause in [
            AbortCause::SendTimeout,
            AbortCause::RequestTimeout,
            AbortCause::DrainTimeout,
            AbortCause::ServerShutdown,
        ] {
            let large = Bytes::from(vec![b'x'; 32 << 20]);
            let is_begun = Rc::new(Cell::new(false));
            let begun = Rc::clone(&is_begun);
            let (server, address) = serve(options(cause), async move |_: Request| {
                begun.set(true);
                Response::text(large.clone())
            });
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            wait_until(|| is_begun.get()).await;
            match cause {
                AbortCause::SendTimeout | AbortCause::RequestTimeout => {}
                AbortCause::DrainTimeout => assert_eq!(server.drain().await, 1, "{kind}: {cause:?}"),
                AbortCause::ServerShutdown => server.abort_connections(),
            }
            wait_until(|| server.connections() == 0).await;
            // The client is there, and reads nothing.
            wait_until(|| !has_kernel || kernel_send_queue_bytes(address.port()) == 0).await;
            let (_, error) = read_until_closed(&mut client).await;
            assert_eq!(error, Some(io::ErrorKind::ConnectionReset), "{kind}: {cause:?}");
        }
    });
}

#[test]
fn a_connection_that_its_program_drops_leaves_no_half_body_for_a_whole_one() {
    for_each_driver(drivers(), async |kind| {
        let server = Server::builder().options(options(AbortCause::ServerShutdown)).build();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = server.clone();
        let connection = spawn(async move {
            let stream = listener.accept().await.expect("a client");
            let handler =
                async |_: Request| Response::new(200).with_body(Body::stream(Endless { is_begun: false }));
            serving.serve_connection(stream, &handler).await
        });
        let mut client = Client::connect(address).await;
        client.send("GET / HTTP/1.0\r\nHost: h\r\n\r\n").await;
        let mut received = Vec::new();
        while !received.windows(5).any(|five| five == b"piece") {
            received.extend_from_slice(&client.stream.recv().await.expect("bytes").expect("more"));
        }
        connection.abort();
        let (_, error) = read_until_closed(&mut client).await;
        assert_eq!(error, Some(io::ErrorKind::ConnectionReset), "{kind}");
        wait_until(|| server.connections() == 0).await;
    });
}

#[test]
fn a_runtime_that_ends_leaves_no_half_body_for_a_whole_one() {
    use std::io::{Read, Write};
    for kind in common::real_drivers() {
        let runtime = anello::Runtime::builder().driver(kind.clone()).driver_from_environment(false).build();
        let runtime = runtime.expect("the driver is to be had");
        let client = runtime.block_on(async {
            let (_server, address) = serve(options(AbortCause::ServerShutdown), async |_: Request| {
                Response::new(200).with_body(Body::stream(Endless { is_begun: false }))
            });
            let asking = anello::spawn_blocking(move || {
                let mut client = std::net::TcpStream::connect(address).expect("connects");
                client.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sends");
                let mut received = Vec::new();
                while !received.ends_with(b"piece") {
                    let mut bytes = [0; 1000];
                    let count = client.read(&mut bytes).expect("bytes");
                    received.extend_from_slice(&bytes[..count]);
                }
                client
            });
            asking.await.expect("it ends")
        });
        drop(runtime);
        let ended = (&client).read(&mut [0; 10]);
        assert!(ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset), "{kind}");
    }
}
