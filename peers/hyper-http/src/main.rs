//! HTTP/1.1 on hyper and tokio, based on the server in hyper's guide: one task per connection and a function that
//! responds from memory. It uses the current-thread runtime on one core and the multi-thread runtime with one worker
//! per core on several.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use peer_flags::{ACCEPT_RETRY, Flags, HttpFlags, Ready, listen};
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

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_fixed =
        matches!(*request.method(), Method::GET | Method::HEAD) && request.uri().path() == "/fixed";
    Ok(if is_fixed {
        let mut response = Response::new(Full::new(Bytes::from_static(b"Hello, World!")));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        response
    } else {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    })
}
