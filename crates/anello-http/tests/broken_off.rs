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

use common::{Client, drivers, on_each, serve, until};

const SHORT: Duration = Duration::from_millis(60);

/// What breaks a connection off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    WriteTimeout,
    RequestTimeout,
    DrainTimeout,
    End,
}

/// All deadlines far away, but for this one.
fn options(by: By) -> ServerOptions {
    let long = Duration::from_secs(100_000);
    let mut options = ServerOptions::default();
    (options.header_timeout, options.keep_alive_timeout, options.body_timeout) = (long, long, long);
    (options.send_timeout, options.linger_timeout, options.drain_timeout) = (long, long, long);
    options.timer_resolution = Duration::from_millis(5);
    match by {
        By::WriteTimeout => options.send_timeout = SHORT,
        By::RequestTimeout => options.request_timeout = Some(SHORT),
        By::DrainTimeout => options.drain_timeout = SHORT,
        By::End => {}
    }
    options
}

/// What comes, and how it ends: in good order, or by an error.
async fn end_of(client: &mut Client) -> (Vec<u8>, Option<io::ErrorKind>) {
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
fn held_bytes(port: u16) -> u64 {
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
    on_each(drivers(), async |kind| {
        for by in [By::RequestTimeout, By::DrainTimeout, By::End] {
            // What is sent in chunks speaks for itself; where only the end of the connection is that of the body, it does.
            for (version, expected) in [("1.1", None), ("1.0", Some(io::ErrorKind::ConnectionReset))] {
                let (server, address) = serve(options(by), async |_: Request| {
                    Response::new(200).with_body(Body::stream(Endless { is_begun: false }))
                });
                let mut client = Client::connect(address).await;
                client.send(format!("GET / HTTP/{version}\r\nHost: h\r\n\r\n")).await;
                let mut received = Vec::new();
                while !received.windows(5).any(|five| five == b"piece") {
                    received.extend_from_slice(&client.stream.recv().await.expect("bytes").expect("more"));
                }
                match by {
                    By::DrainTimeout => assert_eq!(server.drain().await, 1, "{kind}"),
                    By::End => server.abort_connections(),
                    By::WriteTimeout | By::RequestTimeout => {}
                }
                let (more, error) = end_of(&mut client).await;
                received.extend_from_slice(&more);
                assert!(!received.ends_with(b"\r\n0\r\n\r\n"), "{kind}: {by:?}");
                assert_eq!(error, expected, "{kind}: {by:?}, HTTP/{version}");
                until(|| server.connections() == 0).await;
            }
        }
    });
}

#[test]
fn fault_20_nothing_is_kept_for_clients_that_were_given_up() {
    on_each(drivers(), async |kind| {
        let has_kernel = !matches!(kind, DriverKind::Sim(_));
        for by in [By::WriteTimeout, By::RequestTimeout, By::DrainTimeout, By::End] {
            let large = Bytes::from(vec![b'x'; 32 << 20]);
            let is_begun = Rc::new(Cell::new(false));
            let begun = Rc::clone(&is_begun);
            let (server, address) = serve(options(by), async move |_: Request| {
                begun.set(true);
                Response::text(large.clone())
            });
            let mut client = Client::connect(address).await;
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            until(|| is_begun.get()).await;
            match by {
                By::WriteTimeout | By::RequestTimeout => {}
                By::DrainTimeout => assert_eq!(server.drain().await, 1, "{kind}: {by:?}"),
                By::End => server.abort_connections(),
            }
            until(|| server.connections() == 0).await;
            // The client is there, and reads nothing.
            until(|| !has_kernel || held_bytes(address.port()) == 0).await;
            let (_, error) = end_of(&mut client).await;
            assert_eq!(error, Some(io::ErrorKind::ConnectionReset), "{kind}: {by:?}");
        }
    });
}

#[test]
fn a_connection_that_its_program_drops_leaves_no_half_body_for_a_whole_one() {
    on_each(drivers(), async |kind| {
        let server = Server::builder().options(options(By::End)).build();
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
        let (_, error) = end_of(&mut client).await;
        assert_eq!(error, Some(io::ErrorKind::ConnectionReset), "{kind}");
        until(|| server.connections() == 0).await;
    });
}

#[test]
fn a_runtime_that_ends_leaves_no_half_body_for_a_whole_one() {
    use std::io::{Read, Write};
    for kind in common::real_drivers() {
        let runtime = anello::Runtime::builder().driver(kind.clone()).driver_from_environment(false).build();
        let runtime = runtime.expect("the driver is to be had");
        let client = runtime.block_on(async {
            let (_server, address) = serve(options(By::End), async |_: Request| {
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
