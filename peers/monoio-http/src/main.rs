//! HTTP/1.1 on monoio-http and monoio's io_uring driver, based on its example server: one runtime per core, and for
//! each connection one task that reads requests and one that responds from memory.

#![forbid(unsafe_code)]

use std::io;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode};
use monoio::io::Splitable;
use monoio::io::sink::{Sink, SinkExt};
use monoio::io::stream::Stream;
use monoio::net::{TcpListener, TcpStream};
use monoio_http::common::error::HttpError;
use monoio_http::common::request::Request;
use monoio_http::common::response::Response;
use monoio_http::h1::codec::decoder::RequestDecoder;
use monoio_http::h1::codec::encoder::GenericEncoder;
use monoio_http::h1::payload::{FixedPayload, Payload};
use monoio_http::util::spsc::{SPSCReceiver, spsc_pair};
use peer_flags::{ACCEPT_RETRY, HttpFlags, Ready, thread_per_core};

fn main() -> io::Result<()> {
    let flags = HttpFlags::from_arguments().flags;
    thread_per_core(&flags, "driver=io_uring", |_, listener, ready| {
        monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build()?.block_on(serve(listener, ready))
    })
}

async fn serve(listener: std::net::TcpListener, ready: &Ready) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    ready.announce()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                monoio::spawn(async move {
                    if let Err(error) = serve_connection(stream).await {
                        eprintln!("connection: {error}");
                    }
                });
            }
            Err(error) => {
                eprintln!("accept: {error}");
                // The timer driver is off, as in the example. Each accept passes through the ring, so other tasks run.
                std::thread::sleep(ACCEPT_RETRY);
            }
        }
    }
}

async fn serve_connection(stream: TcpStream) -> Result<(), HttpError> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let mut requests = RequestDecoder::new(reader);
    let (mut sender, receiver) = spsc_pair();
    monoio::spawn(async move {
        if let Err(error) = respond_to_all(receiver, GenericEncoder::new(writer)).await {
            eprintln!("connection: {error}");
        }
    });
    while let Some(request) = requests.next().await {
        if sender.send(request?).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn respond_to_all(
    mut requests: SPSCReceiver<Request>,
    mut responses: impl Sink<Response, Error = impl Into<HttpError>>,
) -> Result<(), HttpError> {
    while let Some(request) = requests.recv().await {
        responses.send_and_flush(respond(&request)).await.map_err(Into::into)?;
    }
    Ok(())
}

fn respond(request: &Request) -> Response {
    let is_fixed = *request.method() == Method::GET && request.uri().path() == "/fixed";
    if is_fixed {
        let body = FixedPayload::new(Bytes::from_static(b"Hello, World!"));
        let mut response = Response::new(Payload::Fixed(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        response
    } else {
        let mut response = Response::new(Payload::None);
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    }
}
