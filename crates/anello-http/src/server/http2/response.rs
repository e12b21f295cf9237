//! Responses on HTTP/2 streams.

use std::cell::RefCell;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use anello::fs::File;
use anello::log_event;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::timers::{StreamTimer, Task};
use crate::h1::{FieldBlock, HttpDate, Method};
use crate::message::{Body, BodyKind, BodyPart, ChunkStream, Response, StreamEnd, recycle_fields};
use crate::server::deadline::Timeout;
use crate::server::output::{call_trailers, next_chunk};
use crate::server::timer::{CancelReason, ConnectionTimer};

/// Amount of file data that a stream reads at a time.
const FILE_CHUNK_BYTES: usize = 64 * 1024;
/// Amount of file data that a stream reads even if the client accepts less at a time.
const MIN_FILE_CHUNK_BYTES: usize = 4 * 1024;

/// The sending side of one stream.
pub(super) struct ResponseSender {
    pub timer: Rc<StreamTimer>,
    pub connection: Rc<ConnectionTimer>,
    /// Number of body bytes of the response that were passed to the connection.
    pub body_bytes: u64,
}

/// The reason for which a stream ended without a complete response.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("stream reset by the client, or connection lost: {0}")]
    Client(h2::Error),
    #[error("{0} exceeded")]
    Timeout(Timeout),
    #[error("incomplete response: {0}")]
    Handler(Box<dyn Error + Send + Sync>),
}

impl From<h2::Error> for StreamError {
    fn from(error: h2::Error) -> Self {
        Self::Client(error)
    }
}

impl StreamError {
    /// Returns the code for the client.
    pub fn reason(&self) -> Reason {
        if matches!(self, Self::Handler(_)) { Reason::INTERNAL_ERROR } else { Reason::CANCEL }
    }

    #[cold]
    pub fn log(&self) {
        match self {
            Self::Client(error) => log_event!(DEBUG, %error, "handler or response body cancelled"),
            Self::Timeout(timeout) => CancelReason::Deadline(*timeout).log(),
            Self::Handler(error) => log_event!(ERROR, %error, "a response body failed; resetting the stream"),
        }
    }
}

fn handler_error(error: impl Into<Box<dyn Error + Send + Sync>>) -> StreamError {
    StreamError::Handler(error.into())
}

impl ResponseSender {
    /// Sends a response with a valid final status.
    pub async fn respond(
        &mut self,
        respond: &mut SendResponse<Bytes>,
        method: Method,
        response: Response,
    ) -> Result<(), StreamError> {
        let Some((mut stream, body)) = self.begin(respond, method, response)? else { return Ok(()) };
        // Boxed, so that the future of each stream is small.
        let sent = Box::pin(self.send_body(&mut stream, body)).await;
        sent.inspect_err(|error| stream.send_reset(error.reason()))
    }

    /// Sends the head, and a body in memory that the client accepts completely. Returns a body that remains to be sent.
    fn begin(
        &mut self,
        respond: &mut SendResponse<Bytes>,
        method: Method,
        response: Response,
    ) -> Result<Option<(SendStream<Bytes>, Body)>, StreamError> {
        let Response { status, shared, fields, body, has_date, .. } = response;
        let mut head = http::Response::new(());
        *head.status_mut() = StatusCode::from_u16(status).map_err(handler_error)?;
        let headers = head.headers_mut();
        if !has_date {
            append_date(headers, &self.connection.date());
        }
        if let Some(shared) = shared {
            append_fields(headers, &shared);
        }
        append_fields(headers, &fields);
        recycle_fields(fields);
        let is_bodiless = matches!(status, 204 | 205 | 304)
            || method == Method::Head
            || method == Method::Connect && (200..300).contains(&status);
        let length = body.length();
        match length {
            // RFC 9110, section 8.6: not in 204 and in responses to CONNECT; needless in 304.
            Some(bytes) if !matches!(status, 204 | 205 | 304) && method != Method::Connect => {
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
            }
            _ => {}
        }
        let has_trailers = matches!(body.0, BodyKind::Stream { end: StreamEnd::With(_), .. });
        let is_end = is_bodiless || length == Some(0) && !has_trailers;
        let mut stream = respond.send_response(head, is_end)?;
        if is_end {
            return Ok(None);
        }
        let bytes = match body.0 {
            BodyKind::Bytes(bytes) => bytes,
            BodyKind::Encoded(encoded) => encoded.body(),
            other => return Ok(Some((stream, Body(other)))),
        };
        stream.reserve_capacity(bytes.len());
        if stream.capacity() < bytes.len() {
            return Ok(Some((stream, bytes.into())));
        }
        self.body_bytes += bytes.len() as u64;
        stream.send_data(bytes, true)?;
        Ok(None)
    }

    async fn send_body(&mut self, stream: &mut SendStream<Bytes>, body: Body) -> Result<(), StreamError> {
        match body.0 {
            BodyKind::Empty => stream.send_data(Bytes::new(), true)?,
            BodyKind::Encoded(encoded) => self.send_bytes(stream, encoded.body(), true).await?,
            BodyKind::Bytes(bytes) => self.send_bytes(stream, bytes, true).await?,
            BodyKind::Parts { parts, .. } => self.send_parts(stream, parts).await?,
            BodyKind::Stream { chunks, end } => self.send_stream(stream, chunks, end).await?,
        }
        Ok(())
    }

    async fn send_parts(
        &mut self,
        stream: &mut SendStream<Bytes>,
        parts: Vec<BodyPart>,
    ) -> Result<(), StreamError> {
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            match part {
                BodyPart::Bytes(bytes) => self.send_bytes(stream, bytes, is_last).await?,
                BodyPart::File { file, offset, length } => {
                    self.send_file(stream, &file, offset, length, is_last).await?;
                }
            }
        }
        Ok(())
    }

    async fn send_bytes(
        &mut self,
        stream: &mut SendStream<Bytes>,
        mut bytes: Bytes,
        is_last: bool,
    ) -> Result<(), StreamError> {
        loop {
            let count = if bytes.is_empty() { 0 } else { self.capacity(stream, bytes.len()).await? };
            let part = bytes.split_to(count);
            self.body_bytes += part.len() as u64;
            let is_end = bytes.is_empty();
            if !part.is_empty() || is_last {
                stream.send_data(part, is_last && is_end)?;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    async fn send_file(
        &mut self,
        stream: &mut SendStream<Bytes>,
        file: &File,
        mut offset: u64,
        mut length: u64,
        is_last: bool,
    ) -> Result<(), StreamError> {
        while length > 0 {
            // Nothing is read until the client accepts data, so that a stream that is not read occupies no memory.
            let accepted = self.capacity(stream, FILE_CHUNK_BYTES).await?;
            let wanted = length.min(accepted.max(MIN_FILE_CHUNK_BYTES) as u64) as usize;
            let mut chunk = vec![0; wanted];
            let count = file.read_at(&mut chunk, offset).await.map_err(handler_error)?;
            if count == 0 {
                // The head announced a longer body.
                let message = format!("file truncated while being sent: {length} bytes are missing");
                return Err(handler_error(io::Error::new(io::ErrorKind::UnexpectedEof, message)));
            }
            chunk.truncate(count);
            (offset, length) = (offset + count as u64, length - count as u64);
            self.send_bytes(stream, chunk.into(), is_last && length == 0).await?;
        }
        if is_last && self.body_bytes == 0 {
            stream.send_data(Bytes::new(), true)?;
        }
        Ok(())
    }

    async fn send_stream(
        &mut self,
        stream: &mut SendStream<Bytes>,
        mut chunks: ChunkStream,
        end: StreamEnd,
    ) -> Result<(), StreamError> {
        let mut left = end.length();
        let has_trailers = matches!(end, StreamEnd::With(_));
        let trailers = loop {
            // At most one chunk is taken before the client accepts it: the end of the body needs no window.
            let chunk = poll_fn(|context| {
                if let Poll::Ready(error) = self.poll_cancelled(stream, context) {
                    return Poll::Ready(Err(error));
                }
                match next_chunk(&mut chunks, context) {
                    // The message has ended, whether or not the stream ever does.
                    Poll::Pending if left == Some(0) && !has_trailers => Poll::Ready(Ok(None)),
                    next => next.map(|chunk| chunk.transpose().map_err(handler_error)),
                }
            });
            let Some(chunk) = chunk.await? else {
                break if let StreamEnd::With(trailers) = end {
                    Some(call_trailers(trailers.make).map_err(handler_error)?)
                } else {
                    None
                };
            };
            if let Some(left) = &mut left {
                *left = left
                    .checked_sub(chunk.len() as u64)
                    .ok_or_else(|| handler_error("body is longer than its announced length"))?;
            }
            self.send_bytes(stream, chunk, false).await?;
        };
        if left.is_some_and(|left| left > 0) {
            return Err(handler_error("body is shorter than its announced length"));
        }
        let mut fields = HeaderMap::new();
        if let Some(trailers) = trailers {
            append_fields(&mut fields, &trailers);
        }
        if fields.is_empty() {
            stream.send_data(Bytes::new(), true)?
        } else {
            stream.send_trailers(fields)?
        }
        Ok(())
    }

    /// Waits until the client and the connection accept data, and returns how many bytes, at most `wanted`. The send
    /// timeout applies.
    async fn capacity(
        &mut self,
        stream: &mut SendStream<Bytes>,
        wanted: usize,
    ) -> Result<usize, StreamError> {
        stream.reserve_capacity(wanted);
        let available = stream.capacity().min(wanted);
        if available > 0 {
            self.timer.deadlines.note_send_progress(available as u64, self.connection.now());
            return Ok(available);
        }
        let result = poll_fn(|context| {
            if let Poll::Ready(error) = self.poll_cancelled(stream, context) {
                return Poll::Ready(Err(error));
            }
            let poll_result = loop {
                match stream.poll_capacity(context) {
                    // The window can have been reduced in the meantime.
                    Poll::Ready(Some(Ok(0))) => {}
                    Poll::Ready(Some(Ok(bytes))) => break Poll::Ready(Ok(bytes.min(wanted))),
                    Poll::Ready(Some(Err(error))) => break Poll::Ready(Err(error.into())),
                    Poll::Ready(None) => {
                        break Poll::Ready(Err(h2::Error::from(Reason::CANCEL).into()));
                    }
                    Poll::Pending => break Poll::Pending,
                }
            };
            if poll_result.is_pending() {
                self.timer.deadlines.start_send(self.connection.now());
            }
            poll_result
        });
        let result = result.await;
        let accepted = result.as_ref().map_or(0, |&bytes| bytes as u64);
        self.timer.deadlines.note_send_progress(accepted, self.connection.now());
        result
    }

    /// Completes when a deadline of the stream has expired or the client has reset the stream.
    fn poll_cancelled(&self, stream: &mut SendStream<Bytes>, context: &mut Context<'_>) -> Poll<StreamError> {
        if let Some(timeout) = self.timer.expired.get() {
            return Poll::Ready(StreamError::Timeout(timeout));
        }
        self.timer.register(Task::Server, context);
        match stream.poll_reset(context) {
            Poll::Ready(Ok(reason)) => Poll::Ready(h2::Error::from(reason).into()),
            Poll::Ready(Err(error)) => Poll::Ready(error.into()),
            Poll::Pending => Poll::Pending,
        }
    }
}

thread_local! {
    /// The last date that was sent. Its clones share their memory.
    static DATE: RefCell<Option<(HttpDate, HeaderValue)>> = const { RefCell::new(None) };
}

fn append_date(headers: &mut HeaderMap, date: &HttpDate) {
    // The destructor of another thread-local value can run a server after the date has been freed. The field is optional.
    let appended = DATE.try_with(|cached| {
        let mut cached = cached.borrow_mut();
        if !cached.as_ref().is_some_and(|(known, _)| known == date) {
            // A date is a valid value.
            let value = HeaderValue::from_bytes(date.as_bytes()).ok();
            *cached = value.map(|value| (*date, value));
        }
        if let Some((_, value)) = &*cached {
            headers.insert(header::DATE, value.clone());
        }
    });
    appended.ok();
}

/// The fields of the last response of this thread. Handlers often send the same fields repeatedly. They are then parsed
/// once, and their clones share their memory.
#[derive(Default)]
struct LastFields {
    block: Vec<u8>,
    /// Empty until the block has been sent twice.
    fields: Vec<(HeaderName, HeaderValue)>,
}

/// Longer blocks are not kept.
const MAX_KEPT_FIELDS_BYTES: usize = 1024;

thread_local! {
    static LAST_FIELDS: RefCell<LastFields> = RefCell::default();
}

fn append_fields(headers: &mut HeaderMap, block: &FieldBlock) {
    let bytes = block.as_bytes();
    if bytes.is_empty() {
        return;
    }
    if bytes.len() > MAX_KEPT_FIELDS_BYTES {
        return append_parsed_fields(headers, block);
    }
    let appended = LAST_FIELDS.try_with(|last| {
        let last = &mut *last.borrow_mut();
        if last.block != bytes {
            last.block.clear();
            last.block.extend_from_slice(bytes);
            last.fields.clear();
            return append_parsed_fields(headers, block);
        }
        if last.fields.is_empty() {
            last.fields.extend(parse_fields(block));
        }
        for (name, value) in &last.fields {
            headers.append(name, value.clone());
        }
    });
    if appended.is_err() {
        append_parsed_fields(headers, block);
    }
}

fn append_parsed_fields(headers: &mut HeaderMap, block: &FieldBlock) {
    for (name, value) in parse_fields(block) {
        headers.append(name, value);
    }
}

fn parse_fields(block: &FieldBlock) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    // The block contains only valid names and values.
    block.iter().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    })
}
