//! Starts of examples in the documentation. Lines that start with `# ` are hidden.

/// Creates a listener on loopback, and a function that connects to it, sends a request and returns the response.
macro_rules! listener {
    () => {
        "# let listener = anello::net::TcpListener::bind(\"127.0.0.1:0\")?;\n\
         # let address = listener.local_addr()?;\n\
         # let exchange = async |request: &str| {\n\
         #     let mut stream = anello::net::TcpStream::connect(address).await?;\n\
         #     stream.write_all(request.as_bytes()).await?;\n\
         #     let mut response = Vec::new();\n\
         #     while let Some(chunk) = stream.recv().await? {\n\
         #         response.extend_from_slice(&chunk);\n\
         #     }\n\
         #     Ok::<_, std::io::Error>(String::from_utf8_lossy(&response).into_owned())\n\
         # };\n\
         // `listener` accepts connections; `exchange` connects to it, sends a request and returns the response."
    };
}

/// Starts an access log in a temporary directory, and creates an entry.
macro_rules! access_log {
    () => {
        "use anello_http::observe::access_log::*;\n\n\
         # let directory = tempfile::tempdir()?;\n\
         # let path = directory.path().join(\"access.log\");\n\
         let log = AccessLog::start(AccessLogOptions::default().target(LogTarget::File(path.clone())))?;\n\
         let peer = FormattedPeer::new(([203, 0, 113, 9], 4711).into());\n\
         # let (referer, user_agent) = (None, None);\n\
         let (request, status, body_bytes) = (RequestLine::read(b\"GET / HTTP/1.1\"), 200, 5);\n\
         let (unix_time_ns, duration_us) = (1_790_000_000_000_000_000, 750);\n\
         # #[rustfmt::skip]\n\
         let entry = LogEntry { unix_time_ns, duration_us, peer: &peer, request, status, body_bytes, referer, user_agent };"
    };
}

/// Creates the metrics of a worker, and a function that renders them.
macro_rules! metrics {
    () => {
        "use anello_http::h1::Method;\n\
         use anello_http::observe::metrics::*;\n\n\
         let metrics = ServerMetrics::new(MetricsOptions::default());\n\
         let worker = metrics.worker(0).expect(\"not in use\");\n\
         let scrape = || {\n\
         \u{20}   let mut text = Vec::new();\n\
         \u{20}   metrics.render(None, &mut text);\n\
         \u{20}   String::from_utf8(text).expect(\"the text is UTF-8\")\n\
         };"
    };
}

/// Creates a function that upgrades a connection to a server, and returns what the client receives.
macro_rules! upgraded {
    () => {
        "use anello_http::server::Upgraded;\n\n\
         # use anello_http::{Request, Response, Server};\n\
         # async fn run(handler: impl AsyncFn(Upgraded) + 'static) -> std::io::Result<String> {\n\
         #     let listener = anello::net::TcpListener::bind(\"127.0.0.1:0\")?;\n\
         #     let mut client = anello::net::TcpStream::connect(listener.local_addr()?).await?;\n\
         #     let handler = std::rc::Rc::new(handler);\n\
         #     let upgrade = async move |_: Request| {\n\
         #         let handler = std::rc::Rc::clone(&handler);\n\
         #         Response::upgrade(\"echo\", async move |upgraded| handler(upgraded).await)\n\
         #     };\n\
         #     Server::builder().build().serve(listener, upgrade).detach();\n\
         #     client.write_all(b\"GET / HTTP/1.1\\r\\nHost: a\\r\\nConnection: upgrade\\r\\n\").await?;\n\
         #     client.write_all(b\"Upgrade: echo\\r\\n\\r\\nciao\").await?;\n\
         #     client.shutdown().await?;\n\
         #     let mut response = Vec::new();\n\
         #     while let Some(chunk) = client.recv().await? {\n\
         #         response.extend_from_slice(&chunk);\n\
         #     }\n\
         #     Ok(String::from_utf8_lossy(&response).into_owned())\n\
         # }\n\
         // `run` upgrades a connection, sends `ciao` to the handler, and returns what the client receives."
    };
}

/// Writes a self-signed certificate and its key to a temporary directory.
macro_rules! certificate {
    () => {
        "use anello_http::Server;\n\
         use anello_http::server::TlsConfig;\n\n\
         # use std::io::Error;\n\
         # let directory = tempfile::tempdir()?;\n\
         # let path = directory.path();\n\
         # let key = rcgen::generate_simple_self_signed([\"localhost\".to_owned()]).map_err(Error::other)?;\n\
         # std::fs::write(path.join(\"cert.pem\"), key.cert.pem())?;\n\
         # std::fs::write(path.join(\"key.pem\"), key.signing_key.serialize_pem())?;\n\
         // The directory `path` contains a certificate and its key."
    };
}
