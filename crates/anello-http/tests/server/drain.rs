//! Draining a server: accepted connections are served before it shuts down.

use std::io::{Read, Write};
use std::net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::time::Duration;

use anello::net::TcpListener;
use anello::server::{ListenerGroup, PendingConnections};
use anello::time::sleep;
use anello_http::{Request, Response, Server, ServerOptions};
use anello_test::{main_drivers, main_drivers_and_sim, on_each, run_on_each};

use crate::common::{Client, serve, wait_until};

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
