//! HTTP/1.1 on xitca-web, based on its examples: handlers that respond from memory, echo a body or stream one, with
//! epoll or io_uring (`--driver epoll|io_uring`). It has one worker thread per core, which also accepts, and a thread
//! that waits for the end.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use peer_flags::{HttpFlags, Ready, listen};
use rustix::net::sockopt::set_tcp_nodelay;
use serde::Serialize;
use xitca_web::App;
use xitca_web::body::{Body, Frame, ResponseBody};
use xitca_web::bytes::Bytes;
use xitca_web::handler::handler_service;
use xitca_web::handler::json::Json;
use xitca_web::http::WebResponse;
use xitca_web::http::header::{CONTENT_TYPE, HeaderValue};
use xitca_web::route::{get, post};

/// Keep-alive timeout. The default of 5 s would close connections when the load pauses.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// A tenth of the body of `/stream`.
static CHUNK: [u8; 10 * 1024] = [b'x'; 10 * 1024];

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

fn main() -> io::Result<()> {
    let HttpFlags { flags, choice_index, .. } = HttpFlags::with_choice("--driver", &["epoll", "io_uring"]);
    let details = ["driver=epoll", "driver=io_uring"][choice_index];
    let listener = listen(flags.addr, false)?;
    // Accepted sockets inherit the option.
    set_tcp_nodelay(&listener, true)?;
    let ready = Ready::new(1, listener.local_addr()?, details);
    let server = App::new()
        .at("/fixed", get(handler_service(fixed)))
        .at("/json", get(handler_service(async || Json::<Message>(Message { message: "Hello, World!" }))))
        .at("/echo", post(handler_service(async |body: Bytes| bytes(body, "application/octet-stream"))))
        .at("/stream", get(handler_service(streamed)))
        .serve();
    let server = if choice_index == 1 { server.enable_io_uring() } else { server };
    // SIGTERM ends the process immediately.
    let server = server.worker_threads(flags.threads()).keep_alive_timeout(KEEP_ALIVE).disable_signal();
    let server = server.listen(listener)?.run();
    ready.announce()?;
    server.wait()
}

async fn fixed() -> WebResponse {
    bytes(Bytes::from_static(b"Hello, World!"), "text/plain")
}

fn bytes(body: Bytes, media_type: &'static str) -> WebResponse {
    let mut response = WebResponse::new(ResponseBody::bytes(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

async fn streamed() -> WebResponse {
    WebResponse::new(ResponseBody::boxed(Chunks(10)))
}

/// A streamed body with this number of chunks left. Not a `StreamBody`, which takes the number of items of the stream,
/// if it is known, as the length of the body.
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
        Poll::Ready(Some(Ok(Frame::Data(Bytes::from_static(&CHUNK)))))
    }
}
