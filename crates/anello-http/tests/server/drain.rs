//! Draining a server: accepted connections are served before it shuts down.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::time::Duration;

use anello::net::TcpListener;
use anello::server::{ListenerGroup, PendingConnections};
use anello::time::sleep;
use anello_http::files::Files;
use anello_http::files::options::FileOptions;
use anello_http::{Body, Request, Response, Server, ServerOptions};
use anello_test::{main_drivers, main_drivers_and_sim, on_each, run_on_each, simulated_drivers};
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use crate::common::versions::{VERSIONS, with_all_versions};
use crate::common::{Client, boxed, serve, tls, wait_until, with_long_timeouts};

#[test]
fn fault_37_drain_serves_connections_accepted_last() {
    on_each(main_drivers(), |setup| {
        let listener = StdTcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("local address");
        let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
        let clients: Vec<StdTcpStream> = (0..40)
            .map(|_| {
                let mut client = StdTcpStream::connect(address).expect("connect");
                client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").expect("send");
                client
            })
            .collect();
        setup.run(async {
            let server = Server::builder().build();
            let accepting = server.serve(group.join(0), async |_: Request| Response::text("served"));
            group.close(PendingConnections::Serve);
            // Draining runs in a task, so that it starts as soon as the last connection has been accepted.
            let draining = anello::spawn(async move {
                accepting.await.expect("accept loop finishes");
                server.drain().await
            });
            assert_eq!(draining.await.expect("drain completes"), 0, "{setup}");
        });
        for mut client in clients {
            let mut response = String::new();
            client.read_to_string(&mut response).expect("response");
            assert!(response.ends_with("\r\n\r\nserved"), "{setup}: {response:?}");
        }
    });
}

#[test]
fn fault_37_idle_time_starts_when_connection_is_accepted() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let mut options = ServerOptions::default();
        options.timer_resolution = Duration::from_millis(10);
        options.drain_min_idle = Duration::from_secs(1);
        let (server, address) = serve(options, async |_: Request| Response::text("served"));
        // The idle server does not update its cached clock during this time.
        sleep(Duration::from_millis(1200)).await;
        let mut client = Client::connect(address).await;
        wait_until(|| server.connections() == 1).await;
        let draining = anello::spawn({
            let server = server.clone();
            async move { server.drain().await }
        });
        let response = client.get("/").await;
        assert_eq!((response.text(), response.field("Connection")), ("served", Some("close")), "{setup}");
        assert_eq!(draining.await.expect("drain completes"), 0, "{setup}");
    });
}

const LARGE_BYTES: usize = 8 << 20;

/// Returns a response whose body is larger than all buffers.
async fn large_response(kind: &str, files: &Files, request: &Request) -> Response {
    match kind {
        "memory" => Response::text(Bytes::from(vec![b'#'; LARGE_BYTES])),
        "stream" => {
            let chunks = stream::repeat_with(|| Ok(Bytes::from(vec![b'#'; 10_000])));
            Response::new(200).with_body(Body::stream(chunks.take(LARGE_BYTES / 10_000)))
        }
        _ => files.handle(request).await,
    }
}

/// Runs on simulated kernels, where all buffers are certainly full after a second.
#[test]
fn fault_37_client_that_does_not_read_is_reset() {
    on_each(simulated_drivers(), |setup| {
        let directory = tempfile::tempdir().expect("temporary directory");
        fs::write(directory.path().join("index.html"), vec![b'#'; LARGE_BYTES]).expect("write file");
        for (version, alpn) in VERSIONS.iter().zip([&b"http/1.1"[..], b"h2"]) {
            for (kind, is_tls) in
                ["memory", "stream", "file"].map(|kind| [(kind, false), (kind, true)]).concat()
            {
                for is_drained in [false, true] {
                    let case = format!("{setup}: {version:?}, {kind}, TLS {is_tls}, drain {is_drained}");
                    let files = Files::open(directory.path(), FileOptions::default());
                    let files = files.expect("open document root");
                    setup.run(async {
                        let (tls, mut config) = tls::pair();
                        let mut builder = Server::builder().options(with_all_versions(with_long_timeouts()));
                        if is_tls {
                            builder = builder.tls(tls);
                        }
                        let server = builder.build();
                        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
                        let mut client = Client::connect(listener.local_addr().expect("local address")).await;
                        let handler =
                            async move |request: Request| large_response(kind, &files, &request).await;
                        server.serve(listener, boxed(handler)).detach();
                        if is_tls {
                            Arc::make_mut(&mut config).alpn_protocols = vec![alpn.to_vec()];
                            tls::send_request(&mut client.stream, config, &version.whole_get()).await;
                        } else {
                            client.send(version.whole_get()).await;
                        }
                        sleep(Duration::from_secs(1)).await;
                        match is_drained {
                            true => assert_eq!(server.drain().await, 1, "{case}"),
                            false => assert_eq!(server.abort_and_wait().await, 1, "{case}"),
                        }
                        let mut received = 0;
                        let end = loop {
                            match client.stream.recv().await {
                                Ok(Some(bytes)) => received += bytes.len(),
                                Ok(None) => break Ok(()),
                                Err(error) => break Err(error.kind()),
                            }
                        };
                        assert_eq!(
                            end,
                            Err(io::ErrorKind::ConnectionReset),
                            "{case}: after {received} bytes"
                        );
                        assert!(received < LARGE_BYTES, "{case}: {received} bytes");
                    });
                }
            }
        }
    });
}
