//! Tests of the proxy and the service on the simulator.

#![forbid(unsafe_code)]

mod common;

use std::io::{self, ErrorKind};
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::sim::{Simulation, check};
use anello::time::{Instant, sleep, timeout};
use common::request;
use tutorial::service::{self, Shared};
use tutorial::{echo, proxy};

/// Adds the hosts `service` and `proxy`, which forwards its port 80 to the service.
fn add_hosts(sim: &mut Simulation) {
    let shared = Shared::new("secret");
    sim.host("service", move || {
        let shared = shared.clone();
        async move {
            let listener = TcpListener::bind("0.0.0.0:80")?;
            service::serve(listener, shared, 0).await.map(|_| ())
        }
    });
    sim.host("proxy", async || {
        let listener = TcpListener::bind("0.0.0.0:80")?;
        let accept = async || listener.accept().await.map(Some);
        proxy::serve(accept, proxy::Options::new("service:80")).await.map(|_| ())
    });
}

#[test]
fn proxy_closes_connection_if_service_is_unreachable() {
    check("proxy_closes_connection_if_service_is_unreachable", 0..10, |seed| {
        let mut sim = Simulation::builder().seed(seed).build();
        add_hosts(&mut sim);
        let control = sim.control();
        sim.client("client", async move {
            control.partition("proxy", "service");
            let start = Instant::now();
            let error = request("proxy:80", "GET", "/cities/Roma").await.expect_err("no response");
            assert!(
                [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind()),
                "{error}"
            );
            assert!(start.elapsed() >= Duration::from_secs(5), "the connect timeout");
            control.repair("proxy", "service");
            let (status, _) = request("proxy:80", "PUT", "/cities/Roma/visitors/1").await?;
            assert_eq!(status, 200);
            Ok(())
        });
        sim.run()
    });
}

#[test]
fn visitors_are_counted_exactly_once() {
    check("visitors_are_counted_exactly_once", 0..20, |seed| {
        let mut sim = Simulation::builder().seed(seed).build();
        add_hosts(&mut sim);
        let control = sim.control();
        sim.client("partitions", async move {
            for _ in 0..20 {
                sleep(Duration::from_millis(control.random() % 200)).await;
                control.partition("proxy", "service");
                sleep(Duration::from_millis(control.random() % 200)).await;
                control.repair("proxy", "service");
            }
            Ok(())
        });
        sim.client("client", async {
            for id in 0..20 {
                let path = format!("/cities/Roma/visitors/{id}");
                // Retry until there is a response.
                let body = loop {
                    let attempt = request("proxy:80", "PUT", &path);
                    if let Ok(Ok((200, body))) = timeout(Duration::from_millis(100), attempt).await {
                        break body;
                    }
                };
                assert_eq!(body, format!(r#"{{"name":"Roma","visitors":{}}}"#, id + 1));
            }
            Ok(())
        });
        sim.run()
    });
}

#[test]
fn proxy_receives_no_more_than_server_reads() {
    check("proxy_receives_no_more_than_server_reads", 0..5, |seed| {
        let mut sim = Simulation::builder().seed(seed).build();
        sim.host("server", async || {
            let listener = TcpListener::bind("0.0.0.0:80")?;
            let _unread = listener.accept().await?;
            std::future::pending().await
        });
        sim.host("proxy", async || {
            let listener = TcpListener::bind("0.0.0.0:80")?;
            let accept = async || listener.accept().await.map(Some);
            proxy::serve(accept, proxy::Options::new("server:80")).await.map(|_| ())
        });
        sim.client("client", async {
            let mut stream = TcpStream::connect("proxy:80").await?;
            let mut sent = 0;
            while let Ok(result) = timeout(Duration::from_secs(1), stream.send(vec![0; 64 << 10])).await {
                result?;
                sent += 64 << 10;
            }
            assert!(sent < 16 << 20, "{sent} bytes");
            Ok(())
        });
        sim.run()
    });
}

#[test]
fn drain_ends_after_timeout() {
    check("drain_ends_after_timeout", 0..5, |seed| {
        let mut sim = Simulation::builder().seed(seed).build();
        sim.host("server", async || echo::serve(TcpListener::bind("0.0.0.0:80")?).await);
        sim.client("proxy", async {
            let listener = TcpListener::bind("0.0.0.0:80")?;
            // Stops accepting after one second.
            let start = Instant::now();
            let accept = async || match timeout(Duration::from_secs(1), listener.accept()).await {
                Ok(client) => client.map(Some),
                Err(_) => Ok(None),
            };
            let aborted = proxy::serve(accept, proxy::Options::new("server:80")).await?;
            assert_eq!(aborted, 1, "the client never closes its connection");
            assert!(start.elapsed() >= Duration::from_secs(11));
            Ok(())
        });
        sim.client("client", async {
            let mut stream = TcpStream::connect("proxy:80").await?;
            stream.send("ciao").await?;
            assert_eq!(stream.recv().await?.as_deref(), Some(&b"ciao"[..]));
            // The proxy resets the connection, which has not ended.
            let error = stream.recv().await.expect_err("not an EOF");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            Ok::<_, io::Error>(())
        });
        sim.run()
    });
}
