//! What a connection sends: heads and small bodies gathered in one buffer, larger ones from where they lie.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use anello::fs::File;
use bytes::Bytes;

use super::panics::{make_trailers, next_chunk};
use super::timer::ConnectionTimer;
use super::transport::Sender;
use crate::body::{Body, BodyKind, BodyPart, ChunkStream, StreamEnd};
use crate::h1::{
    BodyEncoder, BodyLength, FieldBlock, HttpDate, Method, Rejection, RequestContext, ResponseFraming,
    ResponseHead,
};
use crate::response::{Response, Upgrade};

/// Bodies up to this length are copied behind their heads and sent with them.
pub(crate) const COPIED_BODY_BYTES: usize = 16 * 1024;

/// Answers are gathered until there is so much.
const FLUSH_THRESHOLD_BYTES: usize = 32 * 1024;

/// Larger bodies are handed over in pieces of so much, what the send queue of a socket holds: each has the time for writes
/// anew, and so a client that reads slowly is told from one that does not read.
const WRITE_CHUNK_BYTES: usize = 64 * 1024;

/// Memory that the buffer of a connection may keep when all was sent.
const MAX_RETAINED_BYTES: usize = 4 * 1024;

/// Larger buffers that wait for the next answers of this thread, whichever connection they are for, and the most of each.
const MAX_SPARE_BUFFERS: usize = 16;
const MAX_SPARE_BUFFER_BYTES: usize = 128 * 1024;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The sending side of a connection.
pub(crate) struct Output<W> {
    sender: W,
    buffer: Vec<u8>,
    timer: Rc<ConnectionTimer>,
    /// More than what was gathered was handed over, and may not be with the kernel.
    has_unflushed: bool,
    /// Bytes of the body of the answer at hand that were handed over.
    pub body_bytes: u64,
}

/// How an answer has ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Another may follow.
    KeepAlive,
    /// The last one.
    Close,
    /// What follows is of another protocol.
    Tunnel(Option<Box<Upgrade>>),
}

/// An answer was begun that its handler has not come to the end of.
#[derive(Debug)]
struct HandlerError(Box<dyn Error + Send + Sync>);

/// Whether an error is not one of the connection, but of the handler that has made the answer.
pub(crate) fn is_handler_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<HandlerError>())
}

/// The status that is sent for the one that a handler gave.
pub(crate) fn valid_status(status: u16) -> u16 {
    if matches!(status, 101 | 200..=999) { status } else { 500 }
}

/// What is sent instead of an answer that is none.
#[cold]
pub(crate) fn invalid_response_fallback() -> Response {
    Response::text("500 Internal Server Error: the server's program made no valid answer\n")
        .with_status(500)
        .with_connection_close()
}

impl<W: Sender> Output<W> {
    pub fn new(sender: W, timer: Rc<ConnectionTimer>) -> Self {
        Self { sender, buffer: Vec::new(), timer, has_unflushed: false, body_bytes: 0 }
    }

    /// Whether what was gathered should be sent before anything else is answered.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.buffer.len() >= FLUSH_THRESHOLD_BYTES
    }

    /// Whether nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Adds bytes as they are.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds the response to a request of this method that is refused.
    pub fn push_rejection(&mut self, rejection: &Rejection, method: Method, date: &HttpDate) {
        let start = self.buffer.len();
        rejection.write(&mut self.buffer, method, Some(date));
        let answer = &self.buffer[start..];
        let head_end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        self.body_bytes = head_end.map_or(0, |end| answer.len() - end - 4) as u64;
    }

    /// What sends.
    pub fn into_sender(self) -> W {
        self.sender
    }

    /// Sends what was gathered.
    #[inline]
    pub async fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        with_send_timer(&self.timer, self.sender.write_all(&self.buffer)).await?;
        self.release_buffer();
        Ok(())
    }

    /// What was gathered has gone. A large buffer serves the next answer of any connection: idle ones keep none.
    #[inline]
    fn release_buffer(&mut self) {
        self.buffer.clear();
        if self.buffer.capacity() > MAX_RETAINED_BYTES {
            let buffer = std::mem::take(&mut self.buffer);
            SPARE_BUFFERS.with_borrow_mut(|spare| {
                if spare.len() < MAX_SPARE_BUFFERS && buffer.capacity() <= MAX_SPARE_BUFFER_BYTES {
                    spare.push(buffer);
                }
            });
        }
    }

    /// Sends what was gathered, and waits until the kernel has what is left of a large body: it is with the client then that
    /// no more comes.
    #[inline]
    pub async fn flush_all(&mut self) -> io::Result<()> {
        self.flush().await?;
        if self.has_unflushed {
            with_send_timer(&self.timer, poll_fn(|context| self.sender.poll_flush(context))).await?;
            self.has_unflushed = false;
        }
        Ok(())
    }

    /// Sends what was gathered, and hands all of it to the socket, which goes on with it by itself whatever is done then.
    pub async fn flush_to_socket(&mut self) -> io::Result<()> {
        self.flush().await?;
        with_send_timer(&self.timer, poll_fn(|context| self.sender.poll_drive(context))).await
    }

    /// Goes on with what was handed over, while there is something else to wait for. A connection that is broken is told of
    /// by what is sent next.
    pub fn poll_progress(&mut self, context: &mut Context<'_>) {
        poll_progress(&mut self.sender, context);
    }

    /// Sends what was gathered, which more follows at once, or the end of this side.
    async fn flush_more(&mut self) -> io::Result<()> {
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            let sender = &mut self.sender;
            let written = poll_fn(|context| sender.poll_write_more(rest, context));
            rest = &rest[with_send_timer(&self.timer, written).await?..];
        }
        self.release_buffer();
        Ok(())
    }

    /// Sends all; nothing follows. What is left of a large body has its deadline here: once the stream is dropped, it would
    /// be a fixed one, whatever the client takes.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.flush_more().await?;
        self.flush_all().await?;
        with_send_timer(&self.timer, poll_fn(|context| self.sender.poll_close_notify(context))).await?;
        self.timer.set_body_ends_at_close(false);
        Ok(())
    }

    /// Ends this side when all has been sent.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush_more().await?;
        with_send_timer(&self.timer, poll_fn(|context| self.sender.poll_shutdown(context))).await?;
        self.timer.set_body_ends_at_close(false);
        Ok(())
    }

    /// Adds an answer, and sends of it what is not to be gathered.
    #[inline]
    pub async fn respond(
        &mut self,
        request_context: RequestContext,
        response: Response,
        date: &HttpDate,
        closes: bool,
    ) -> io::Result<Outcome> {
        if self.buffer.capacity() == 0
            && response.body().length().is_none_or(|bytes| bytes > MAX_RETAINED_BYTES as u64)
            && let Some(spare) = SPARE_BUFFERS.with_borrow_mut(Vec::pop)
        {
            self.buffer = spare;
        }
        if !closes
            && let Some(encoded) = response.as_encoded()
            && let Some(body_bytes) = encoded.write(&mut self.buffer, request_context, date)
        {
            self.body_bytes = body_bytes as u64;
            return Ok(Outcome::KeepAlive);
        }
        self.respond_slow(request_context, response, date, closes).await
    }

    /// Adds an answer that was not encoded before.
    async fn respond_slow(
        &mut self,
        request_context: RequestContext,
        response: Response,
        date: &HttpDate,
        closes: bool,
    ) -> io::Result<Outcome> {
        let response = if response.status() == valid_status(response.status()) {
            response
        } else {
            let status = response.status();
            tracing::error!(status, "a handler's answer had a status that is none, and was sent as 500");
            invalid_response_fallback()
        };
        let Response { status, shared, fields, body, closes: response_closes, upgrade } = response;
        // Before anything fails: those of the answer before are not this one's.
        self.body_bytes = 0;
        let mut head =
            ResponseHead::begin(&mut self.buffer, request_context, status).map_err(io::Error::other)?;
        head.date(date);
        if let Some(shared) = shared {
            head.block(&shared);
        }
        head.block(&fields);
        if closes || response_closes {
            head.close();
        }
        if let Some(upgrade) = &upgrade {
            head.upgrade(&upgrade.protocol).map_err(io::Error::other)?;
        }
        let length = body.length().map_or(BodyLength::Unknown, BodyLength::Known);
        let mut encoder = head.finish(length);
        let outcome = match encoder.framing() {
            ResponseFraming::Tunnel => Outcome::Tunnel(upgrade),
            _ if encoder.keeps_alive() => Outcome::KeepAlive,
            _ => Outcome::Close,
        };
        let body = match body.0 {
            BodyKind::Encoded(answer) => BodyKind::Bytes(answer.body()),
            other => other,
        };
        let mut trailers = FieldBlock::default();
        match body {
            BodyKind::Bytes(bytes) if bytes.len() <= COPIED_BODY_BYTES => {
                if encoder.sends_body() {
                    self.body_bytes = bytes.len() as u64;
                }
                encoder.write(&mut self.buffer, &bytes).map_err(io::Error::other)?;
            }
            BodyKind::Empty => {}
            _ if !encoder.sends_body() => return Ok(outcome),
            // Apart, so that connections are small.
            larger => trailers = Box::pin(self.send_body(&mut encoder, Body(larger))).await?,
        }
        encoder.finish_with_trailers(&mut self.buffer, &trailers).map_err(handler_error)?;
        Ok(outcome)
    }

    /// Sends a body that is not gathered; what is to follow it.
    #[inline(never)]
    async fn send_body(&mut self, encoder: &mut BodyEncoder, body: Body) -> io::Result<FieldBlock> {
        match body.0 {
            BodyKind::Empty => {}
            BodyKind::Encoded(answer) => self.send_bytes(encoder, answer.body()).await?,
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
                self.timer.set_body_ends_at_close(encoder.framing() == ResponseFraming::UntilClose);
                self.send_stream(encoder, chunks).await?;
                if let (StreamEnd::With(trailers), ResponseFraming::Chunked) = (end, encoder.framing()) {
                    return make_trailers(*trailers).map_err(handler_error);
                }
            }
        }
        Ok(FieldBlock::default())
    }

    async fn send_bytes(&mut self, encoder: &mut BodyEncoder, mut bytes: Bytes) -> io::Result<()> {
        if bytes.len() <= COPIED_BODY_BYTES {
            self.body_bytes += bytes.len() as u64;
            return encoder.write(&mut self.buffer, &bytes).map_err(handler_error);
        }
        if encoder.begin_chunk(&mut self.buffer, bytes.len()).map_err(handler_error)? {
            self.flush().await?;
            self.has_unflushed = true;
            while !bytes.is_empty() {
                let write_chunk = bytes.split_to(bytes.len().min(WRITE_CHUNK_BYTES));
                let length = write_chunk.len() as u64;
                with_send_timer(&self.timer, self.sender.send(write_chunk)).await?;
                self.body_bytes += length;
            }
            encoder.end_chunk(&mut self.buffer);
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
        let whole = usize::try_from(length).map_err(io::Error::other)?;
        if !encoder.begin_chunk(&mut self.buffer, whole).map_err(handler_error)? {
            return Ok(());
        }
        // The kernel may send it together with the beginning of the file.
        self.flush_more().await?;
        self.has_unflushed = true;
        let (timer, body_bytes) = (&self.timer, &mut self.body_bytes);
        // As it goes: when the connection breaks, this much of it has gone.
        let on_progress = |bytes: u64| {
            *body_bytes += bytes;
            timer.note_send_progress();
        };
        let sent = with_send_timer(timer, self.sender.send_file(file, offset, length, on_progress)).await?;
        if sent < length {
            // The client was told of more.
            let message = format!("a file ended after {sent} of {length} bytes that its answer promised");
            return Err(handler_error(io::Error::new(io::ErrorKind::UnexpectedEof, message)));
        }
        encoder.end_chunk(&mut self.buffer);
        Ok(())
    }

    async fn send_stream(&mut self, encoder: &mut BodyEncoder, mut chunks: ChunkStream) -> io::Result<()> {
        loop {
            // What is there goes out before the next piece is waited for.
            let mut next = pin!(poll_fn(|context| next_chunk(&mut chunks, context)));
            let first_poll = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
            let chunk = match first_poll {
                Poll::Ready(chunk) => chunk,
                Poll::Pending => {
                    self.flush().await?;
                    let sender = &mut self.sender;
                    // Of what was accepted, the socket may not have had room for the last.
                    let next = poll_fn(|context| {
                        let polled = next.as_mut().poll(context);
                        if polled.is_pending() {
                            poll_progress(sender, context);
                        }
                        polled
                    });
                    self.timer.cancellation.run_until_cancelled(next).await?
                }
            };
            let Some(chunk) = chunk else { return Ok(()) };
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    if encoder.framing() == ResponseFraming::UntilClose {
                        // An orderly end would be that of the body.
                        self.timer.reset();
                    } else {
                        // What there is is of use to nobody but who looks for the fault.
                        self.flush().await?;
                    }
                    return Err(handler_error(error));
                }
            };
            self.send_bytes(encoder, chunk).await?;
            if self.is_full() {
                self.flush().await?;
            }
        }
    }
}

fn handler_error(error: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::other(HandlerError(error.into()))
}

impl fmt::Display for HandlerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an answer was not brought to its end: {}", self.0)
    }
}

impl Error for HandlerError {}

/// As [`Output::poll_progress`].
fn poll_progress(sender: &mut impl Sender, context: &mut Context<'_>) {
    if let Poll::Ready(Err(error)) = sender.poll_drive(context) {
        tracing::debug!(%error, "a connection broke while its handler, or its answer's next piece, was waited for");
    }
}

/// Awaits what sends; what of it has to wait has a deadline.
#[inline]
async fn with_send_timer<T>(
    timer: &ConnectionTimer,
    sending: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut sending = pin!(sending);
    let mut has_waited = false;
    let result = poll_fn(|context| {
        let polled = sending.as_mut().poll(context);
        if polled.is_pending() {
            has_waited = true;
            timer.start_send_timer();
        }
        polled
    });
    let result = result.await;
    if has_waited {
        timer.note_send_progress();
    }
    result
}
