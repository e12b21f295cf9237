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

use super::panics::{next_piece, trailers_of};
use super::transport::Sender;
use super::watch::Watch;
use crate::body::{Body, BodyPart, Kind, Pieces, StreamEnd};
use crate::h1::{
    BodyEncoder, BodyLength, FieldBlock, HttpDate, Method, Rejection, RequestContext, ResponseFraming,
    ResponseHead,
};
use crate::response::{Response, Upgrade};

/// Bodies up to this length are copied behind their heads and sent with them.
pub(crate) const COPIED_BODY_BYTES: usize = 16 * 1024;

/// Answers are gathered until there is so much.
const GATHERED_BYTES: usize = 32 * 1024;

/// Larger bodies are handed over in pieces of so much, what the send queue of a socket holds: each has the time for writes
/// anew, and so a client that reads slowly is told from one that does not read.
const SLICE_BYTES: usize = 64 * 1024;

/// Memory that the buffer of a connection may keep when all was sent.
const KEPT_BYTES: usize = 4 * 1024;

/// Larger buffers that wait for the next answers of this thread, whichever connection they are for, and the most of each.
const MOST_SPARE_BUFFERS: usize = 16;
const SPARE_BYTES: usize = 128 * 1024;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The sending side of a connection.
pub(crate) struct Output<W> {
    sender: W,
    buffer: Vec<u8>,
    watch: Rc<Watch>,
    /// More than what was gathered was handed over, and may not be with the kernel.
    is_behind: bool,
    /// Bytes of the body of the answer at hand that were handed over.
    pub body_bytes: u64,
}

/// How an answer has ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Another may follow.
    KeepsAlive,
    /// The last one.
    Closes,
    /// What follows is of another protocol.
    Tunnel(Option<Box<Upgrade>>),
}

/// An answer was begun that its handler has not come to the end of.
#[derive(Debug)]
struct HandlerFailed(Box<dyn Error + Send + Sync>);

/// Whether an error is not one of the connection, but of the handler that has made the answer.
pub(crate) fn is_of_handler(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<HandlerFailed>())
}

/// The status that is sent for the one that a handler gave.
pub(crate) fn valid_status(status: u16) -> u16 {
    if matches!(status, 101 | 200..=999) { status } else { 500 }
}

/// What is sent instead of an answer that is none.
#[cold]
pub(crate) fn no_valid_answer() -> Response {
    Response::text("500 Internal Server Error: the server's program made no valid answer\n")
        .with_status(500)
        .with_connection_close()
}

impl<W: Sender> Output<W> {
    pub fn new(sender: W, watch: Rc<Watch>) -> Self {
        Self { sender, buffer: Vec::new(), watch, is_behind: false, body_bytes: 0 }
    }

    /// Whether what was gathered should be sent before anything else is answered.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.buffer.len() >= GATHERED_BYTES
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
    pub fn refuse(&mut self, refusal: &Rejection, method: Method, date: &HttpDate) {
        let start = self.buffer.len();
        refusal.write(&mut self.buffer, method, Some(date));
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
        watched(&self.watch, self.sender.write_all(&self.buffer)).await?;
        self.empty();
        Ok(())
    }

    /// What was gathered has gone. A large buffer serves the next answer of any connection: idle ones keep none.
    #[inline]
    fn empty(&mut self) {
        self.buffer.clear();
        if self.buffer.capacity() > KEPT_BYTES {
            let buffer = std::mem::take(&mut self.buffer);
            SPARE_BUFFERS.with_borrow_mut(|spare| {
                if spare.len() < MOST_SPARE_BUFFERS && buffer.capacity() <= SPARE_BYTES {
                    spare.push(buffer);
                }
            });
        }
    }

    /// Sends what was gathered, and waits until the kernel has what is left of a large body: it is with the client then that
    /// no more comes.
    #[inline]
    pub async fn settle(&mut self) -> io::Result<()> {
        self.flush().await?;
        if self.is_behind {
            watched(&self.watch, poll_fn(|context| self.sender.poll_flush(context))).await?;
            self.is_behind = false;
        }
        Ok(())
    }

    /// Sends what was gathered, and hands all of it to the socket, which goes on with it by itself whatever is done then.
    pub async fn hand_over(&mut self) -> io::Result<()> {
        self.flush().await?;
        watched(&self.watch, poll_fn(|context| self.sender.poll_pass_on(context))).await
    }

    /// Goes on with what was handed over, while there is something else to wait for. A connection that is broken is told of
    /// by what is sent next.
    pub fn pass_on(&mut self, context: &mut Context<'_>) {
        pass_on(&mut self.sender, context);
    }

    /// Sends what was gathered, which more follows at once, or the end of this side.
    async fn flush_more(&mut self) -> io::Result<()> {
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            let sender = &mut self.sender;
            let written = poll_fn(|context| sender.poll_write_more(rest, context));
            rest = &rest[watched(&self.watch, written).await?..];
        }
        self.empty();
        Ok(())
    }

    /// Sends all; nothing follows. What is left of a large body has its deadline here: once the stream is dropped, it would
    /// be a fixed one, whatever the client takes.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.flush_more().await?;
        self.settle().await?;
        watched(&self.watch, poll_fn(|context| self.sender.poll_goodbye(context))).await?;
        self.watch.set_ended_by_close(false);
        Ok(())
    }

    /// Ends this side when all has been sent.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush_more().await?;
        watched(&self.watch, poll_fn(|context| self.sender.poll_shutdown(context))).await?;
        self.watch.set_ended_by_close(false);
        Ok(())
    }

    /// Adds an answer, and sends of it what is not to be gathered.
    #[inline]
    pub async fn respond(
        &mut self,
        exchange: RequestContext,
        response: Response,
        date: &HttpDate,
        closes: bool,
    ) -> io::Result<Outcome> {
        if self.buffer.capacity() == 0
            && response.body().length().is_none_or(|bytes| bytes > KEPT_BYTES as u64)
            && let Some(spare) = SPARE_BUFFERS.with_borrow_mut(Vec::pop)
        {
            self.buffer = spare;
        }
        if !closes
            && let Some(framed) = response.as_framed()
            && let Some(body_bytes) = framed.write(&mut self.buffer, exchange, date)
        {
            self.body_bytes = body_bytes as u64;
            return Ok(Outcome::KeepsAlive);
        }
        self.respond_otherwise(exchange, response, date, closes).await
    }

    /// Adds an answer that was not encoded before.
    async fn respond_otherwise(
        &mut self,
        exchange: RequestContext,
        response: Response,
        date: &HttpDate,
        closes: bool,
    ) -> io::Result<Outcome> {
        let response = if response.status() == valid_status(response.status()) {
            response
        } else {
            let status = response.status();
            tracing::error!(status, "a handler's answer had a status that is none, and was sent as 500");
            no_valid_answer()
        };
        let Response { status, shared, fields, body, closes: response_closes, upgrade } = response;
        // Before anything fails: those of the answer before are not this one's.
        self.body_bytes = 0;
        let mut head = ResponseHead::begin(&mut self.buffer, exchange, status).map_err(io::Error::other)?;
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
        let outcome = match encoder.delivery() {
            ResponseFraming::Tunnel => Outcome::Tunnel(upgrade),
            _ if encoder.keeps_alive() => Outcome::KeepsAlive,
            _ => Outcome::Closes,
        };
        let body = match body.0 {
            Kind::Framed(answer) => Kind::Bytes(answer.body()),
            other => other,
        };
        let mut trailers = FieldBlock::default();
        match body {
            Kind::Bytes(bytes) if bytes.len() <= COPIED_BODY_BYTES => {
                if encoder.sends_body() {
                    self.body_bytes = bytes.len() as u64;
                }
                encoder.write(&mut self.buffer, &bytes).map_err(io::Error::other)?;
            }
            Kind::Empty => {}
            _ if !encoder.sends_body() => return Ok(outcome),
            // Apart, so that connections are small.
            larger => trailers = Box::pin(self.send_body(&mut encoder, Body(larger))).await?,
        }
        encoder.finish_with_trailers(&mut self.buffer, &trailers).map_err(handler_failed)?;
        Ok(outcome)
    }

    /// Sends a body that is not gathered; what is to follow it.
    #[inline(never)]
    async fn send_body(&mut self, encoder: &mut BodyEncoder, body: Body) -> io::Result<FieldBlock> {
        match body.0 {
            Kind::Empty => {}
            Kind::Framed(answer) => self.send_bytes(encoder, answer.body()).await?,
            Kind::Bytes(bytes) => self.send_bytes(encoder, bytes).await?,
            Kind::Parts { parts, .. } => {
                for part in parts {
                    match part {
                        BodyPart::Bytes(bytes) => self.send_bytes(encoder, bytes).await?,
                        BodyPart::File { file, offset, length } => {
                            self.send_file(encoder, &file, offset, length).await?;
                        }
                    }
                }
            }
            Kind::Stream { pieces, end } => {
                self.watch.set_ended_by_close(encoder.delivery() == ResponseFraming::UntilClose);
                self.send_stream(encoder, pieces).await?;
                if let (StreamEnd::With(trailers), ResponseFraming::Chunked) = (end, encoder.delivery()) {
                    return trailers_of(*trailers).map_err(handler_failed);
                }
            }
        }
        Ok(FieldBlock::default())
    }

    async fn send_bytes(&mut self, encoder: &mut BodyEncoder, mut bytes: Bytes) -> io::Result<()> {
        if bytes.len() <= COPIED_BODY_BYTES {
            self.body_bytes += bytes.len() as u64;
            return encoder.write(&mut self.buffer, &bytes).map_err(handler_failed);
        }
        if encoder.begin_chunk(&mut self.buffer, bytes.len()).map_err(handler_failed)? {
            self.flush().await?;
            self.is_behind = true;
            while !bytes.is_empty() {
                let slice = bytes.split_to(bytes.len().min(SLICE_BYTES));
                let length = slice.len() as u64;
                watched(&self.watch, self.sender.send(slice)).await?;
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
        if !encoder.begin_chunk(&mut self.buffer, whole).map_err(handler_failed)? {
            return Ok(());
        }
        // The kernel may send it together with the beginning of the file.
        self.flush_more().await?;
        self.is_behind = true;
        let (watch, body_bytes) = (&self.watch, &mut self.body_bytes);
        // As it goes: when the connection breaks, this much of it has gone.
        let moved = |bytes: u64| {
            *body_bytes += bytes;
            watch.has_room();
        };
        let sent = watched(watch, self.sender.send_file(file, offset, length, moved)).await?;
        if sent < length {
            // The client was told of more.
            let message = format!("a file ended after {sent} of {length} bytes that its answer promised");
            return Err(handler_failed(io::Error::new(io::ErrorKind::UnexpectedEof, message)));
        }
        encoder.end_chunk(&mut self.buffer);
        Ok(())
    }

    async fn send_stream(&mut self, encoder: &mut BodyEncoder, mut pieces: Pieces) -> io::Result<()> {
        loop {
            // What is there goes out before the next piece is waited for.
            let mut next = pin!(poll_fn(|context| next_piece(&mut pieces, context)));
            let at_hand = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
            let piece = match at_hand {
                Poll::Ready(piece) => piece,
                Poll::Pending => {
                    self.flush().await?;
                    let sender = &mut self.sender;
                    // Of what was accepted, the socket may not have had room for the last.
                    let next = poll_fn(|context| {
                        let polled = next.as_mut().poll(context);
                        if polled.is_pending() {
                            pass_on(sender, context);
                        }
                        polled
                    });
                    self.watch.ending.before(next).await?
                }
            };
            let Some(piece) = piece else { return Ok(()) };
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    if encoder.delivery() == ResponseFraming::UntilClose {
                        // An orderly end would be that of the body.
                        self.watch.reset();
                    } else {
                        // What there is is of use to nobody but who looks for the fault.
                        self.flush().await?;
                    }
                    return Err(handler_failed(error));
                }
            };
            self.send_bytes(encoder, piece).await?;
            if self.is_full() {
                self.flush().await?;
            }
        }
    }
}

fn handler_failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::other(HandlerFailed(error.into()))
}

impl fmt::Display for HandlerFailed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an answer was not brought to its end: {}", self.0)
    }
}

impl Error for HandlerFailed {}

/// As [`Output::pass_on`].
fn pass_on(sender: &mut impl Sender, context: &mut Context<'_>) {
    if let Poll::Ready(Err(error)) = sender.poll_pass_on(context) {
        tracing::debug!(%error, "a connection broke while its handler, or its answer's next piece, was waited for");
    }
}

/// Awaits what sends; what of it has to wait has a deadline.
#[inline]
async fn watched<T>(watch: &Watch, sending: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let mut sending = pin!(sending);
    let mut has_waited = false;
    let result = poll_fn(|context| {
        let polled = sending.as_mut().poll(context);
        if polled.is_pending() {
            has_waited = true;
            watch.wait_for_room();
        }
        polled
    });
    let result = result.await;
    if has_waited {
        watch.has_room();
    }
    result
}
