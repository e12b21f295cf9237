//! Panics in handlers and response bodies. A panic closes the connection and affects no other client.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::h1::FieldBlock;
use crate::message::{ChunkStream, MakeTrailers, Response};

/// Awaits a handler. Returns a 500 response if it panics.
#[inline]
pub(crate) async fn catch_handler_panic(mut handler: Pin<&mut impl Future<Output = Response>>) -> Response {
    let completion = poll_fn(|context| {
        // As after a panic in a task, the handler's own state may be inconsistent.
        match catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context))) {
            Ok(poll_result) => poll_result.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    });
    completion.await.unwrap_or_else(|panic| panic_response(&*panic))
}

/// Polls for the next chunk of a body. A panic is returned as an error, after which the body must not be polled again.
pub(crate) fn next_chunk(
    chunks: &mut ChunkStream,
    context: &mut Context<'_>,
) -> Poll<Option<io::Result<Bytes>>> {
    let poll_result = catch_unwind(AssertUnwindSafe(|| chunks.as_mut().poll_next(context)));
    poll_result.unwrap_or_else(|panic| Poll::Ready(Some(Err(body_panic_error(&*panic)))))
}

pub(crate) fn make_trailers(trailers: MakeTrailers) -> io::Result<FieldBlock> {
    catch_unwind(AssertUnwindSafe(trailers)).map_err(|panic| body_panic_error(&*panic))
}

#[cold]
fn body_panic_error(panic: &(dyn Any + Send)) -> io::Error {
    let message = panic_message(panic);
    tracing::error!(message, "a response body panicked; aborting the response");
    io::Error::other(format!("response body panicked: {message}"))
}

#[cold]
fn panic_response(panic: &(dyn Any + Send)) -> Response {
    let message = panic_message(panic);
    tracing::error!(message, "a handler panicked; sending 500");
    Response::text("500 Internal Server Error: handler panicked\n").with_status(500).with_connection_close()
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
