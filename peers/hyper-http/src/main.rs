//! HTTP/1.1 on hyper and tokio, based on the server in hyper's guide: one task per connection and a function that
//! responds from memory, echoes a body or streams one. It uses the current-thread runtime on one core and the multi-thread runtime with one worker
//! per core on several.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use peer_flags::{ACCEPT_RETRY, Flags, HttpFlags, Ready, listen};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

fn main() -> io::Result<()> {
    let flags = HttpFlags::from_arguments().flags;
    let mut builder = match flags.threads() {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(flags.threads()).enable_all().build()?.block_on(serve(flags))
}

async fn serve(flags: Flags) -> io::Result<()> {
    let listener = listen(flags.addr, false)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    Ready::new(1, listener.local_addr()?, "driver=epoll").announce()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(async move {
                    if let Err(error) = serve_connection(stream).await {
                        eprintln!("connection: {error}");
                    }
                });
            }
            Err(error) => {
                eprintln!("accept: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond)).await?;
    Ok(())
}

/// A tenth of the body of `/stream`.
static CHUNK: [u8; 10 * 1024] = [b'x'; 10 * 1024];

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

/// A streamed body with this number of chunks left.
struct Chunks(u32);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
        self.0 = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&CHUNK)))))
    }
}

type ResponseBody = Either<Full<Bytes>, Chunks>;

async fn respond(request: Request<Incoming>) -> Result<Response<ResponseBody>, hyper::Error> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/fixed") => full(Bytes::from_static(b"Hello, World!"), "text/plain"),
        (&Method::GET, "/json") => {
            let text = serde_json::to_vec(&Message { message: "Hello, World!" });
            full(text.expect("a struct of strings").into(), "application/json")
        }
        (&Method::POST, "/echo") => {
            full(request.into_body().collect().await?.to_bytes(), "application/octet-stream")
        }
        (&Method::GET, "/stream") => Response::new(Either::Right(Chunks(10))),
        _ => {
            let mut response = Response::new(Either::Left(Full::default()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    })
}

fn full(bytes: Bytes, media_type: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::new(bytes)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
