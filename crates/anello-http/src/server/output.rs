//! The output of a connection: heads and small bodies are collected in a buffer; larger bodies are sent without
//! copying, together with the buffered bytes around them.

use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use anello::fs::File;
use anello::log_event;
use anello::net::SendBuf;
use bytes::Bytes;

use super::timer::{ConnectionTimer, Wait};
use crate::h1::{
    BodyEncoder, BodyError, BodyLength, CONTINUE, FieldBlock, Method, Rejection, RequestContext,
    ResponseFraming, ResponseHead,
};
use crate::message::{
    Body, BodyKind, BodyPart, COPIED_BODY_BYTES, ChunkStream, MakeTrailers, Response, StreamEnd, Upgrade,
    recycle_fields,
};
use crate::transport::{MAX_MOVED_BYTES, Sender};

const FLUSH_THRESHOLD_BYTES: usize = 32 * 1024;
/// Maximum number of bytes that are sent in one write without copying. The send timeout restarts with each write, so
/// that a slow client can be distinguished from one that does not read.
const MAX_WRITE_BYTES: usize = 128 * 1024;
/// Larger chunks are split into parts of this size.
const MAX_PART_BYTES: usize = 64 * 1024;
/// Minimum capacity of a buffer, which suffices for most heads and for the framing of a chunk.
const INITIAL_BUFFER_BYTES: usize = 256;
/// Number of parts for which memory is allocated at first.
const INITIAL_PARTS: usize = 8;
/// Maximum number of large buffers kept for reuse by the connections on a thread.
const MAX_SPARE_BUFFERS: usize = 16;
const MAX_SPARE_BUFFER_BYTES: usize = 128 * 1024;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Output<W> {
    pub sender: W,
    /// Responses that are sent together.
    buffer: Vec<u8>,
    /// Body data to be sent without copying, each preceded by the buffered bytes before this offset.
    parts: Vec<(usize, Bytes)>,
    /// Total length of `parts`.
    parts_bytes: usize,
    timer: Rc<ConnectionTimer>,
    /// `true` if body data that was sent without copying may not have reached the kernel yet.
    has_unflushed: bool,
    /// Number of body bytes of the current response that were buffered or passed to the sender.
    pub body_bytes: u64,
}

pub(crate) enum Outcome {
    KeepAlive,
    Close,
    Tunnel(Option<Box<Upgrade>>),
}

/// The error returned when a handler does not complete its response.
#[derive(Debug, thiserror::Error)]
#[error("incomplete response: {0}")]
struct HandlerError(Box<dyn Error + Send + Sync>);

/// Returns `true` if the error was caused by the handler, not by the connection.
pub(crate) fn is_handler_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<HandlerError>())
}

pub(crate) fn valid_status(status: u16) -> u16 {
    if matches!(status, 101 | 200..=999) { status } else { 500 }
}

#[cold]
pub(crate) fn invalid_response_fallback() -> Response {
    Response::text("500 Internal Server Error: handler returned an invalid response\n")
        .with_status(500)
        .with_connection_close()
}

impl<W: Sender> Output<W> {
    pub fn new(sender: W, timer: Rc<ConnectionTimer>) -> Self {
        Self {
            sender,
            buffer: Vec::new(),
            parts: Vec::new(),
            parts_bytes: 0,
            timer,
            has_unflushed: false,
            body_bytes: 0,
        }
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.buffer.len() >= FLUSH_THRESHOLD_BYTES || self.parts_bytes >= MAX_WRITE_BYTES
    }

    /// Returns `true` if nothing is buffered.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Appends `100 Continue`.
    pub fn push_continue(&mut self) {
        self.prepare_buffer().extend_from_slice(CONTINUE);
    }

    /// `method` is the method of the rejected request.
    pub fn push_rejection(&mut self, rejection: &Rejection, method: Method) {
        let start = self.buffer.len();
        self.prepare_buffer();
        rejection.write(&mut self.buffer, method, Some(&self.timer.date()));
        let response = &self.buffer[start..];
        let head_end = response.windows(4).position(|window| window == b"\r\n\r\n");
        self.body_bytes = head_end.map_or(0, |end| response.len() - end - 4) as u64;
    }

    #[inline]
    pub async fn flush(&mut self) -> io::Result<()> {
        if self.parts_bytes > 0 {
            return Box::pin(self.flush_parts()).await;
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.buffer.len();
        with_timer(&self.timer, bytes, self.sender.send(&mut self.buffer)).await?;
        self.release_buffer();
        Ok(())
    }

    /// Sends the buffered data and the parts between it in one write.
    #[inline(never)]
    async fn flush_parts(&mut self) -> io::Result<()> {
        let bytes = self.buffer.len() + self.parts_bytes;
        let pieces = self.take_pieces();
        self.release_buffer();
        self.has_unflushed = true;
        with_timer(&self.timer, bytes, self.sender.send_vectored(pieces)).await
    }

    /// Takes the parts, and the buffered data before, between and after them.
    fn take_pieces(&mut self) -> Vec<SendBuf> {
        // Taken, so that an idle connection retains no memory.
        let parts = mem::take(&mut self.parts);
        self.parts_bytes = 0;
        let is_moved = self.buffer.capacity() <= MAX_MOVED_BYTES;
        let mut pieces = Vec::with_capacity(parts.len() * 2 + 1);
        if is_moved && matches!(parts[..], [(end @ 1.., _)] if end == self.buffer.len()) {
            // One response, whose body is one part.
            pieces.push(SendBuf::from(mem::take(&mut self.buffer)));
            pieces.extend(parts.into_iter().map(|(_, body)| SendBuf::from(body)));
            return pieces;
        }
        let buffered = if is_moved {
            Bytes::from(mem::take(&mut self.buffer))
        } else {
            // The memory of a large buffer is reused.
            Bytes::copy_from_slice(&self.buffer)
        };
        let mut start = 0;
        for (end, part) in parts {
            if start < end {
                pieces.push(SendBuf::from(buffered.slice(start..end)));
            }
            pieces.push(SendBuf::from(part));
            start = end;
        }
        if start < buffered.len() {
            pieces.push(SendBuf::from(buffered.slice(start..)));
        }
        pieces
    }

    /// Sets an empty buffer if the last one was sent with its memory. Must be called before data is appended.
    #[inline]
    fn prepare_buffer(&mut self) -> &mut Vec<u8> {
        if self.buffer.capacity() == 0 {
            self.buffer = SendBuf::spare_vec();
            self.buffer.reserve(INITIAL_BUFFER_BYTES);
        }
        &mut self.buffer
    }

    /// Clears the buffer after its data has been sent. Large buffers are shared by the connections of the thread, so that
    /// idle connections retain none.
    #[inline]
    fn release_buffer(&mut self) {
        self.buffer.clear();
        if self.buffer.capacity() > MAX_MOVED_BYTES {
            let buffer = mem::take(&mut self.buffer);
            let kept = SPARE_BUFFERS.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < MAX_SPARE_BUFFERS && buffer.capacity() <= MAX_SPARE_BUFFER_BYTES {
                    spare.push(buffer);
                }
            });
            // The destructor of another thread-local value can run a server after the buffers have been freed.
            kept.ok();
        }
    }

    /// Sends the buffered data, and waits until the kernel has accepted the rest of a large body. After that, the
    /// server only has to wait for the client.
    #[inline]
    pub async fn flush_all(&mut self) -> io::Result<()> {
        self.flush().await?;
        if self.has_unflushed {
            with_timer(&self.timer, 0, poll_fn(|context| self.sender.poll_flush(context))).await?;
            self.has_unflushed = false;
        }
        Ok(())
    }

    /// Sends the buffered data, and waits until the kernel has accepted all of it.
    pub async fn flush_to_kernel(&mut self) -> io::Result<()> {
        self.has_unflushed = true;
        self.flush_all().await
    }

    /// Sends the buffered data and passes all of it to the socket, which then continues sending on its own.
    pub async fn flush_to_socket(&mut self) -> io::Result<()> {
        self.flush().await?;
        with_timer(&self.timer, 0, poll_fn(|context| self.sender.poll_drive(context))).await
    }

    /// Sends the buffered data with a hint to the kernel that more data, or the shutdown of the write half, follows
    /// immediately.
    async fn flush_more(&mut self) -> io::Result<()> {
        if self.parts_bytes > 0 {
            return Box::pin(self.flush_parts()).await;
        }
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            let sender = &mut self.sender;
            let write = poll_fn(|context| sender.poll_write_more(rest, context));
            let count = with_timer(&self.timer, 0, write).await?;
            self.timer.note_send_progress(count as u64);
            rest = &rest[count..];
        }
        self.release_buffer();
        Ok(())
    }

    /// Sends everything; no more data follows. Waits for the rest of a large body, because the send timeout of the server
    /// no longer applies once the stream is dropped.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.flush_more().await?;
        self.flush_all().await?;
        with_timer(&self.timer, 0, poll_fn(|context| self.sender.poll_close_notify(context))).await?;
        self.timer.deadlines.body_ends_at_close.set(false);
        Ok(())
    }

    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush_more().await?;
        with_timer(&self.timer, 0, poll_fn(|context| self.sender.poll_shutdown(context))).await?;
        self.timer.deadlines.body_ends_at_close.set(false);
        Ok(())
    }

    /// Appends a response, and sends the data that is not buffered.
    #[inline]
    pub async fn respond(&mut self, context: RequestContext, response: Response) -> io::Result<Outcome> {
        if self.buffer.capacity() == 0
            && response.body().length().is_none_or(|bytes| bytes > MAX_MOVED_BYTES as u64)
            && let Ok(Some(spare)) = SPARE_BUFFERS.try_with(|spare| spare.borrow_mut().pop())
        {
            self.buffer = spare;
        }
        self.prepare_buffer();
        if let Some(encoded) = response.as_encoded()
            && let Some(body_bytes) = encoded.write(&mut self.buffer, context, &self.timer.date())
        {
            self.body_bytes = body_bytes as u64;
            return Ok(Outcome::KeepAlive);
        }
        let (outcome, unsent) = self.buffer_response(context, response)?;
        if let Some((mut encoder, body)) = unsent {
            // Boxed, so that connections stay small.
            let trailers = Box::pin(self.send_body(&mut encoder, body)).await?;
            encoder.finish_with_trailers(self.prepare_buffer(), &trailers).map_err(handler_error)?;
        }
        Ok(outcome)
    }

    /// Appends the head of a response, and its body if it is short. Returns a body that remains to be sent.
    fn buffer_response(
        &mut self,
        context: RequestContext,
        mut response: Response,
    ) -> io::Result<(Outcome, Option<(BodyEncoder, Body)>)> {
        let status = response.status();
        if status != valid_status(status) {
            log_event!(ERROR, status, "a handler returned an invalid status; sending 500");
            response = invalid_response_fallback();
        }
        let Response { status, shared, fields, body, closes, has_date, upgrade } = response;
        // Reset before anything can fail, because the value still describes the previous response.
        self.body_bytes = 0;
        let mut head = ResponseHead::begin(&mut self.buffer, context, status).map_err(io::Error::other)?;
        if !has_date {
            head.date(&self.timer.date());
        }
        if let Some(shared) = shared {
            head.block(&shared);
        }
        head.block(&fields);
        recycle_fields(fields);
        if closes {
            head.close();
        }
        if let Some(upgrade) = &upgrade {
            head.upgrade(&upgrade.protocol).map_err(io::Error::other)?;
        }
        let mut encoder = head.finish(body.length().map_or(BodyLength::Unknown, BodyLength::Known));
        let outcome = match encoder.framing() {
            ResponseFraming::Tunnel => Outcome::Tunnel(upgrade),
            _ if encoder.keeps_alive() => Outcome::KeepAlive,
            _ => Outcome::Close,
        };
        let body = match body.0 {
            BodyKind::Encoded(encoded) => BodyKind::Bytes(encoded.body()),
            other => other,
        };
        match body {
            BodyKind::Bytes(bytes) if bytes.len() <= COPIED_BODY_BYTES => {
                if encoder.sends_body() {
                    self.body_bytes = bytes.len() as u64;
                }
                encoder.write(&mut self.buffer, &bytes).map_err(io::Error::other)?;
            }
            BodyKind::Empty => {}
            _ if !encoder.sends_body() => return Ok((outcome, None)),
            large_body => return Ok((outcome, Some((encoder, Body(large_body))))),
        }
        encoder.finish(&mut self.buffer).map_err(handler_error)?;
        Ok((outcome, None))
    }

    /// Sends a body without buffering it. Returns its trailers.
    #[inline(never)]
    async fn send_body(&mut self, encoder: &mut BodyEncoder, body: Body) -> io::Result<FieldBlock> {
        match body.0 {
            BodyKind::Empty => {}
            BodyKind::Encoded(encoded) => self.send_bytes(encoder, encoded.body()).await?,
            BodyKind::Bytes(bytes) => self.send_bytes(encoder, bytes).await?,
            BodyKind::Parts { parts, .. } => {
                for part in parts {
                    match part {
                        BodyPart::Bytes(bytes) => self.send_bytes(encoder, bytes).await?,
                        BodyPart::File { file, offset, length } => {
                            self.send_file(encoder, &file, offset, length).await?;
                        }
                    }
                }
            }
            BodyKind::Stream { chunks, end } => {
                let ends_at_close = encoder.framing() == ResponseFraming::UntilClose;
                self.timer.deadlines.body_ends_at_close.set(ends_at_close);
                self.send_stream(encoder, chunks).await?;
                if let (StreamEnd::With(trailers), ResponseFraming::Chunked) = (end, encoder.framing()) {
                    return call_trailers(trailers.make).map_err(handler_error);
                }
            }
        }
        Ok(FieldBlock::default())
    }

    async fn send_bytes(&mut self, encoder: &mut BodyEncoder, mut bytes: Bytes) -> io::Result<()> {
        if bytes.len() <= MAX_PART_BYTES.min(MAX_WRITE_BYTES - self.parts_bytes) {
            return self.buffer_chunk(encoder, bytes).map_err(handler_error);
        }
        if encoder.begin_chunk(self.prepare_buffer(), bytes.len()).map_err(handler_error)? {
            while !bytes.is_empty() {
                let part = bytes.split_to(bytes.len().min(MAX_PART_BYTES));
                if self.parts_bytes + part.len() > MAX_WRITE_BYTES {
                    self.flush().await?;
                }
                self.parts_bytes += part.len();
                self.body_bytes += part.len() as u64;
                self.parts.push((self.buffer.len(), part));
            }
            encoder.end_chunk(self.prepare_buffer());
        }
        Ok(())
    }

    async fn send_file(
        &mut self,
        encoder: &mut BodyEncoder,
        file: &File,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        let file_bytes = usize::try_from(length).map_err(io::Error::other)?;
        if !encoder.begin_chunk(self.prepare_buffer(), file_bytes).map_err(handler_error)? {
            return Ok(());
        }
        // Allows the kernel to send the head together with the start of the file.
        self.flush_more().await?;
        self.has_unflushed = true;
        let (timer, body_bytes) = (&self.timer, &mut self.body_bytes);
        // Counted during the transfer, so that the count is correct even if the connection fails.
        let on_progress = |bytes: u64| {
            *body_bytes += bytes;
            timer.note_send_progress(bytes);
        };
        let sent = with_timer(timer, 0, self.sender.send_file(file, offset, length, on_progress)).await?;
        if sent < length {
            // The head announced a longer body.
            let message = format!("file truncated while being sent: only {sent} of {length} bytes were sent");
            return Err(handler_error(io::Error::new(io::ErrorKind::UnexpectedEof, message)));
        }
        encoder.end_chunk(self.prepare_buffer());
        Ok(())
    }

    /// Buffers the chunks that are available. Returns the result of the last poll: a chunk that has not been buffered,
    /// the end of the stream, an error of the stream, or `Pending`.
    ///
    /// # Errors
    /// Returns an error if the body is longer than announced.
    fn buffer_chunks(
        &mut self,
        encoder: &mut BodyEncoder,
        chunks: &mut ChunkStream,
        context: &mut Context<'_>,
    ) -> io::Result<Poll<Option<io::Result<Bytes>>>> {
        loop {
            match next_chunk(chunks, context) {
                Poll::Ready(Some(Ok(chunk)))
                    if self.parts_bytes + chunk.len() <= MAX_WRITE_BYTES && !self.is_full() =>
                {
                    self.buffer_chunk(encoder, chunk).map_err(handler_error)?;
                }
                other => return Ok(other),
            }
        }
    }

    #[inline]
    fn buffer_chunk(&mut self, encoder: &mut BodyEncoder, chunk: Bytes) -> Result<(), BodyError> {
        self.body_bytes += chunk.len() as u64;
        if chunk.len() <= W::MAX_COPIED_BYTES {
            return encoder.write(self.prepare_buffer(), &chunk);
        }
        if encoder.begin_chunk(self.prepare_buffer(), chunk.len())? {
            if self.parts.is_empty() {
                self.parts.reserve(INITIAL_PARTS);
            }
            self.parts_bytes += chunk.len();
            self.parts.push((self.buffer.len(), chunk));
            encoder.end_chunk(self.prepare_buffer());
        }
        Ok(())
    }

    async fn send_stream(&mut self, encoder: &mut BodyEncoder, mut chunks: ChunkStream) -> io::Result<()> {
        loop {
            let buffered = poll_fn(|context| Poll::Ready(self.buffer_chunks(encoder, &mut chunks, context)));
            let chunk = match buffered.await? {
                Poll::Ready(chunk) => chunk,
                // The message has ended, whether or not the stream ever does.
                Poll::Pending if encoder.has_written_length() => return Ok(()),
                Poll::Pending => {
                    // The buffered data is sent before the task waits for the next chunk.
                    self.flush().await?;
                    let sender = &mut self.sender;
                    // The socket may not have accepted the end of the previous data yet.
                    let next = poll_fn(|context| {
                        let poll_result = next_chunk(&mut chunks, context);
                        if poll_result.is_pending() {
                            sender.poll_progress(context);
                        }
                        poll_result
                    });
                    self.timer.cancellation.run_until_cancelled(Wait::Response, next).await?
                }
            };
            let Some(chunk) = chunk else { return Ok(()) };
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    if encoder.framing() == ResponseFraming::UntilClose {
                        // An orderly close would mark the body as complete.
                        self.timer.shutdown_handle.reset();
                    } else {
                        // The incomplete response is only useful for debugging.
                        self.flush().await?;
                    }
                    return Err(handler_error(error));
                }
            };
            if self.is_full() {
                self.flush().await?;
            }
            self.send_bytes(encoder, chunk).await?;
        }
    }
}

fn handler_error(error: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::other(HandlerError(error.into()))
}

/// The send timeout applies while the operation is pending. `bytes` is the number of bytes that it sends, or 0 if that is
/// recorded elsewhere.
#[inline]
async fn with_timer<T>(
    timer: &ConnectionTimer,
    bytes: usize,
    send: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut send = pin!(send);
    let result = poll_fn(|context| {
        let poll_result = send.as_mut().poll(context);
        if poll_result.is_pending() {
            timer.deadlines.start_send(timer.now());
        }
        poll_result
    });
    let result = result.await;
    timer.note_send_progress(bytes as u64);
    result
}

// A panic in a handler or a response body closes the connection and affects no other client.

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

/// Returns the trailers of a body. A panic is returned as an error.
pub(crate) fn call_trailers(trailers: MakeTrailers) -> io::Result<FieldBlock> {
    catch_unwind(AssertUnwindSafe(trailers)).map_err(|panic| body_panic_error(&*panic))
}

#[cold]
fn body_panic_error(panic: &(dyn Any + Send)) -> io::Error {
    let message = panic_message(panic);
    log_event!(ERROR, message, "a response body panicked; aborting the response");
    io::Error::other(format!("response body panicked: {message}"))
}

#[cold]
fn panic_response(panic: &(dyn Any + Send)) -> Response {
    let message = panic_message(panic);
    log_event!(ERROR, message, "a handler panicked; sending 500");
    Response::text("500 Internal Server Error: handler panicked\n").with_status(500).with_connection_close()
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
