//! Tests of the service.

#![forbid(unsafe_code)]

mod common;

use std::io;

use anello::net::TcpListener;
use anello::{DriverKind, Runtime};
use common::request;
use tutorial::service::{self, Shared};

#[test]
fn service_counts_each_visitor_once() -> io::Result<()> {
    for driver in [DriverKind::Auto, DriverKind::Epoll] {
        let runtime = Runtime::builder().driver(driver).build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?.to_string();
            anello::spawn(service::serve(listener, Shared::new("secret"), 0)).detach();

            let (status, _) = request(&address, "GET", "/cities/Roma").await?;
            assert_eq!(status, 404);
            for id in [1, 2, 1] {
                let (status, _) = request(&address, "PUT", &format!("/cities/Roma/visitors/{id}")).await?;
                assert_eq!(status, 200);
            }
            let (_, body) = request(&address, "GET", "/cities/Roma").await?;
            assert_eq!(body, r#"{"name":"Roma","visitors":2}"#);
            let (_, text) = request(&address, "GET", "/metrics").await?;
            assert!(text.contains("anello_http_requests_total{method=\"PUT\",status=\"2xx\"} 3\n"), "{text}");
            Ok::<_, io::Error>(())
        })?;
    }
    Ok(())
}

#[test]
fn requests_without_token_are_rejected() -> io::Result<()> {
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        anello::spawn(service::serve(listener, Shared::new("other"), 0)).detach();
        let (status, _) = request(&address, "GET", "/metrics").await?;
        assert_eq!(status, 401);
        Ok(())
    })
}
