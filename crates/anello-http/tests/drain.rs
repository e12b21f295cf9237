//! The end of a server: whoever has come is answered.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::time::Duration;

use anello::Runtime;
use anello::net::{ListenerGroup, PendingConnections, TcpListener};
use anello::time::sleep;
use anello_http::{Request, Response, Server, ServerOptions};

use common::{Client, drivers, for_each_driver, real_drivers, serve, wait_until};

#[test]
fn fault_37_connections_that_were_accepted_last_are_answered_before_the_server_ends() {
    for kind in real_drivers() {
        let listener = StdTcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
        let waiting: Vec<StdTcpStream> = (0..40)
            .map(|_| {
                let mut client = StdTcpStream::connect(address).expect("connects");
                client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").expect("sends");
                client
            })
            .collect();
        let builder = Runtime::builder().driver(kind.clone()).driver_from_environment(false);
        builder.build().expect("the driver is to be had").block_on(async {
            let server = Server::builder().build();
            let accepting = server.serve(group.join(0), async |_: Request| Response::text("answered"));
            group.close(PendingConnections::Serve);
            // In a task, which has its turn as soon as the last one was accepted.
            let draining = anello::spawn(async move {
                accepting.await.expect("it ends");
                server.drain().await
            });
            assert_eq!(draining.await.expect("drained"), 0, "{kind}");
        });
        for mut client in waiting {
            let mut response = String::new();
            client.read_to_string(&mut response).expect("an answer");
            assert!(response.ends_with("\r\n\r\nanswered"), "{kind}: {response:?}");
        }
    }
}

#[test]
fn fault_37_a_connection_is_not_idle_for_as_long_as_the_server_was() {
    for_each_driver(drivers(), async |kind| {
        let mut options = ServerOptions::default();
        options.timer_resolution = Duration::from_millis(10);
        options.drain_min_idle = Duration::from_secs(1);
        let (server, address) = serve(options, async |_: Request| Response::text("answered"));
        // Nobody reads the clock meanwhile.
        sleep(Duration::from_millis(1200)).await;
        let mut client = Client::connect(address).await;
        wait_until(|| server.connections() == 1).await;
        let draining = anello::spawn({
            let server = server.clone();
            async move { server.drain().await }
        });
        let response = client.get("/").await;
        assert_eq!((response.text(), response.field("Connection")), ("answered", Some("close")), "{kind}");
        assert_eq!(draining.await.expect("drained"), 0, "{kind}");
    });
}
