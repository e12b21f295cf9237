//! A hyper service on anello: HTTP/1.1, one thread, a timeout for request headers.
//!
//! Usage: `hyper_service [ADDRESS]`
//!
//! Prints its address and driver, and serves until it is terminated. `ANELLO_DRIVER` selects the driver. `GET /`
//! returns a greeting. `POST /echo` streams the request body back.

use std::convert::Infallible;
use std::time::Duration;
use std::{env, io};

use anello::Runtime;
use anello::compat::HyperTimer;
use anello::net::TcpListener;
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};

/// Timeout for a request's header section, including the idle time before the request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> io::Result<()> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let runtime = Runtime::new()?;
    let driver = runtime.driver().name;
    runtime.block_on(async {
        let listener = TcpListener::bind(address)?;
        println!("hyper_service ready addr={} driver={driver}", listener.local_addr()?);
        let mut server = http1::Builder::new();
        server.timer(HyperTimer).header_read_timeout(HEADER_TIMEOUT);
        loop {
            let stream = listener.accept().await?;
            let connection = server.serve_connection(stream, service_fn(respond));
            anello::spawn(async move {
                if let Err(error) = connection.await {
                    eprintln!("connection failed: {error}");
                }
            })
            .detach();
        }
    })
}

async fn respond(request: Request<Incoming>) -> Result<Response<Either<Full<Bytes>, Incoming>>, Infallible> {
    let mut response = match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => Response::new(Either::Left(Full::from("Hello, World!"))),
        (&Method::POST, "/echo") => return Ok(Response::new(Either::Right(request.into_body()))),
        _ => {
            let mut response = Response::new(Either::Left(Full::from("Not found: GET / or POST /echo\n")));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}
