//! Conversion of requests.

use std::rc::Rc;
use std::thread;

use anello::net::UnixStream;
use anello_http::service::{PeerAddr, ProtocolSwitch};
use anello_http::{RequestBodyError, Server};
use anello_test::{main_drivers_and_sim, run_on_each};
use http_body_util::{BodyExt, Full};

use super::*;

#[test]
fn head_is_converted() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let uri = request.uri();
            let values: Vec<_> =
                request.headers().get_all("x-list").iter().map(|value| value.as_bytes()).collect();
            let text = format!(
                "{} {:?} {:?} {} {:?} {:?} {}",
                request.method(),
                uri.scheme_str(),
                uri.authority().map(|authority| authority.as_str()),
                uri.path(),
                uri.query(),
                request.version(),
                String::from_utf8_lossy(&values.concat()),
            );
            http::Response::new(Full::<Bytes>::from(text))
        });
        for (line, fields, expected) in [
            ("GET /", "X-List: a\r\nX-LIST: b\r\n", "GET None None / None HTTP/1.1 ab"),
            ("PURGE /a/b?c=d", "", "PURGE None None /a/b Some(\"c=d\") HTTP/1.1 "),
            ("GET HTTP://e.com:80/a?b", "", "GET Some(\"http\") Some(\"e.com:80\") /a Some(\"b\") HTTP/1.1 "),
            ("GET http://e.com", "", "GET Some(\"http\") Some(\"e.com\") / None HTTP/1.1 "),
            ("OPTIONS *", "", "OPTIONS None None * None HTTP/1.1 "),
        ] {
            let response = exchange(address, format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            assert_eq!(response.text(), expected);
        }
        let response = exchange(address, "GET / HTTP/1.0\r\n\r\n").await;
        assert_eq!(response.text(), "GET None None / None HTTP/1.0 ");
        // The crate `http` accepts fewer bytes than the decoder.
        let response = exchange(address, "GET /a<b HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(response.status, 400);
    });
}

#[test]
fn repeated_heads_are_converted_independently() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |mut request: http::Request<Incoming>| {
            let value = request.headers().get("x-a").map(|value| value.to_str().expect("text").to_owned());
            let text = format!("{} {} {value:?}", request.method(), request.uri());
            // Later requests must not contain these changes.
            request.headers_mut().insert("x-a", http::HeaderValue::from_static("changed"));
            *request.uri_mut() = http::Uri::from_static("/changed");
            http::Response::new(Full::<Bytes>::from(text))
        });
        let mut client = Client::connect(address).await;
        for (line, value) in [("GET /a", "1"), ("GET /b?c", "1"), ("POST /b?c", "1"), ("POST /b?c", "2")] {
            for _ in 0..4 {
                let head = format!("{line} HTTP/1.1\r\nHost: h\r\nX-A: {value}\r\n\r\n");
                client.send(head.as_bytes()).await;
                let response = client.response_to("GET").await.expect("response");
                assert_eq!(response.text(), format!("{line} Some(\"{value}\")"));
            }
        }
    });
}

#[test]
fn connect_target_is_an_authority() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let text = format!("{:?} {:?}", request.uri().host(), request.uri().port_u16());
            http::Response::builder().status(403).body(Full::<Bytes>::from(text)).expect("valid response")
        });
        let response = exchange(address, "CONNECT e.com:443 HTTP/1.1\r\nHost: e.com:443\r\n\r\n").await;
        assert_eq!((response.status, response.text()), (403, "Some(\"e.com\") Some(443)"));
    });
}

#[test]
fn body_has_frames_length_and_trailers() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let mut body = request.into_body();
            let (exact, ended) = (body.size_hint().exact(), body.is_end_stream());
            let (mut bytes, mut trailers) = (0, String::new());
            while let Some(frame) = body.frame().await {
                match frame.expect("valid body").into_data() {
                    Ok(data) => bytes += data.len(),
                    Err(frame) => trailers = format!("{:?}", frame.into_trailers().expect("trailers")),
                }
            }
            assert!(body.is_end_stream() && body.frame().await.is_none());
            assert_eq!(body.size_hint().exact(), Some(0));
            http::Response::new(Full::<Bytes>::from(format!("{exact:?} {ended} {bytes} {trailers}")))
        });
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.text(), "Some(0) true 0 ");
        client.send(post("/", "", "ciao")).await;
        assert_eq!(client.response().await.expect("response").text(), "Some(4) false 4 ");
        let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("{head}4\r\nciao\r\n0\r\nChecksum: 17\r\n\r\n")).await;
        let response = client.response().await.expect("response");
        assert_eq!(response.text(), "None false 4 {\"checksum\": \"17\"}");
    });
}

#[test]
fn client_is_told_to_continue_when_body_is_read() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let body = request.into_body().collect().await.expect("complete body");
            http::Response::new(Full::<Bytes>::from(body.to_bytes()))
        });
        let mut client = Client::connect(address).await;
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n").await;
        assert_eq!(client.response().await.expect("interim response").status, 100);
        client.send("ciao").await;
        assert_eq!(client.response().await.expect("response").text(), "ciao");
    });
}

#[test]
fn body_on_another_thread_returns_error() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let mut body = request.into_body();
            let reading = thread::spawn(move || {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                let frame = std::pin::Pin::new(&mut body).poll_frame(&mut context);
                matches!(frame, std::task::Poll::Ready(Some(Err(RequestBodyError::Io(_)))))
            });
            let is_error = reading.join().expect("no panic when the body is dropped");
            http::Response::new(Full::<Bytes>::from(is_error.to_string()))
        });
        assert_eq!(exchange(address, post("/", "", "ciao")).await.text(), "true");
    });
}

#[test]
fn peer_address_is_available_and_can_be_an_extension() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let service = tower::service_fn(async |request: http::Request<Incoming>| {
            let extension = request.extensions().get().map(|&PeerAddr(address)| address);
            assert_eq!(request.body().peer_addr(), extension);
            Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from(format!("{extension:?}"))))
        });
        let handler = Rc::new(service::handler(service::with_peer_addr(service, PeerAddr)));
        let tcp_handler = Rc::clone(&handler);
        let tcp_handler = async move |request| tcp_handler(request).await;
        let (_server, address) = serve(ServerOptions::default(), tcp_handler);
        let mut client = Client::connect(address).await;
        let expected = format!("{:?}", Some(client.stream.local_addr().expect("local address")));
        for _ in 0..2 {
            assert_eq!(client.get("/").await.text(), expected);
        }
        let (stream, mut unix_client) = UnixStream::pair().expect("pair");
        let serving =
            anello::spawn(async move { Server::builder().build().serve_connection(stream, &*handler).await });
        unix_client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.expect("send");
        let response = unix_client.recv().await.expect("response").expect("response");
        assert!(response.ends_with(b"\r\n\r\nNone"));
        drop((response, unix_client));
        serving.await.expect("no panic").expect("connection closed");
    });
}

#[test]
fn connection_switches_to_another_protocol() {
    run_on_each(main_drivers_and_sim(), async |_| {
        let address = serve_fn(async |request: http::Request<Incoming>| {
            let mut response = http::Response::new(Full::<Bytes>::from(""));
            *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("x-kept", http::HeaderValue::from_static("yes"));
            if request.uri().path() == "/" {
                response.extensions_mut().insert(ProtocolSwitch::new("echo", async |mut upgraded| {
                    while let Ok(Some(bytes)) = upgraded.recv().await {
                        upgraded.write_all(&bytes).await.expect("send");
                    }
                }));
            }
            response
        });
        let head =
            |path| format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
        let mut client = Client::connect(address).await;
        client.send(head("/")).await;
        let response = client.response().await.expect("response");
        assert_eq!((response.status, response.field("Upgrade")), (101, Some("echo")));
        assert_eq!((response.field("x-kept"), response.field("Connection")), (Some("yes"), Some("upgrade")));
        client.send("ciao").await;
        assert_eq!(client.read_exact(4).await, b"ciao");
        assert_eq!(exchange(address, head("/without")).await.status, 500);
        assert_eq!(exchange(address, "GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.status, 426);
    });
}
