//! Conversion of responses.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_core::Stream;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::{Body as HttpBody, Frame};

use super::switch::ProtocolSwitch;
use crate::h1::{FieldBlock, Method, Version, elements, is_forbidden_trailer};
use crate::message::{Body, Request, Response, spare_fields};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// An empty box for a body, kept for the next response.
pub(super) type SpareBox<B> = Cell<Option<Pin<Box<Option<B>>>>>;

/// Properties of the request on which the conversion of its response depends.
#[derive(Clone, Copy)]
pub(super) struct RequestKind {
    is_head: bool,
    /// `true` if a body whose length is known can have trailers.
    is_http2: bool,
}

impl RequestKind {
    pub fn of(request: &Request) -> Self {
        Self { is_head: request.method() == Method::Head, is_http2: request.version() == Version::Http2 }
    }
}

/// Converts a response. Polls its body once or twice, so that a body that is complete is not streamed.
#[inline]
pub(super) fn convert<B>(
    response: http::Response<B>,
    request: RequestKind,
    spare: &SpareBox<B>,
    context: &mut Context<'_>,
) -> Response
where
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let (mut parts, body) = response.into_parts();
    let switch = match parts.status {
        StatusCode::SWITCHING_PROTOCOLS => parts.extensions.remove().and_then(ProtocolSwitch::into_response),
        _ => None,
    };
    let is_switch = switch.is_some();
    let mut converted = switch.unwrap_or_else(|| Response::new(parts.status.as_u16()));
    let mut fields = spare_fields();
    for (name, value) in &parts.headers {
        match name.as_str() {
            "connection" => {
                let is_close = |option: &[u8]| option.eq_ignore_ascii_case(b"close");
                converted.closes |= elements(value.as_bytes()).any(is_close);
            }
            "content-length" | "keep-alive" | "transfer-encoding" => {}
            "upgrade" if is_switch => {}
            "upgrade" => {
                if let Ok(protocol) = value.to_str()
                    && !protocol.is_empty()
                {
                    converted = converted.with_upgrade(protocol.to_owned(), None);
                }
            }
            name => {
                converted.has_date |= name == "date";
                fields.push_valid(name, value.as_bytes());
            }
        }
    }
    converted.fields = fields;
    converted.body = match parts.status.as_u16() {
        101 | 204 | 205 | 304 => Body::empty(),
        _ if request.is_head => head_body(&body, &parts.headers),
        _ => {
            let exact = body.size_hint().exact();
            if exact == Some(0) && !request.is_http2 || body.is_end_stream() {
                Body::empty()
            } else {
                first_frames(body, exact, &parts.headers, request, spare, context)
            }
        }
    };
    converted
}

/// Returns the body of a response to `HEAD`, of which only the length is sent.
#[cold]
fn head_body(body: &impl HttpBody, headers: &HeaderMap) -> Body {
    // A service that omits the body of a response to `HEAD` does not state that the resource is empty.
    let exact = body.size_hint().exact().filter(|&bytes| bytes > 0);
    declared_length(headers).or(exact).map_or_else(|| Body::stream(NoFrames), Body::unsent)
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

struct NoFrames;

impl Stream for NoFrames {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(None)
    }
}

#[inline]
fn first_frames<B>(
    body: B,
    exact: Option<u64>,
    headers: &HeaderMap,
    request: RequestKind,
    spare: &SpareBox<B>,
    context: &mut Context<'_>,
) -> Body
where
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let mut frames = spare.take().unwrap_or_else(|| Box::pin(None));
    frames.as_mut().set(Some(body));
    let (mut first, mut second) = (None, None);
    match poll_frame(&mut frames, context) {
        Poll::Pending => {}
        Poll::Ready(None) => return Body::empty(),
        Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
            Err(frame) => first = Some(Ok(frame.map_data(into_bytes))),
            Ok(data) => {
                let data = into_bytes(data);
                let is_end = exact == Some(data.len() as u64) && !request.is_http2
                    || frames.as_ref().as_pin_ref().is_none_or(|body| body.is_end_stream());
                let next = if is_end { Poll::Ready(None) } else { poll_frame(&mut frames, context) };
                if let Poll::Ready(None) = next {
                    frames.as_mut().set(None);
                    spare.set(Some(frames));
                    return data.into();
                }
                first = Some(Ok(Frame::data(data)));
                if let Poll::Ready(Some(frame)) = next {
                    second = Some(into_io(frame));
                }
            }
        },
        Poll::Ready(Some(error)) => first = Some(into_io(error)),
    }
    let trailers = Rc::default();
    let frames = Frames { first, second, body: frames, trailers: Rc::clone(&trailers) };
    match exact.or_else(|| declared_length(headers)) {
        Some(length) if !request.is_http2 => Body::stream_with_length(length, frames),
        length => {
            let make = move || trailers.take().map(block).unwrap_or_default();
            Body::stream_with_length_and_trailers(length, frames, make)
        }
    }
}

type PollFrame<B> = Poll<Option<Result<Frame<<B as HttpBody>::Data>, <B as HttpBody>::Error>>>;

#[inline]
fn poll_frame<B: HttpBody>(body: &mut Pin<Box<Option<B>>>, context: &mut Context<'_>) -> PollFrame<B> {
    body.as_mut().as_pin_mut().map_or(Poll::Ready(None), |body| body.poll_frame(context))
}

/// The data of a body whose first frames may have been received already.
struct Frames<B> {
    first: Option<io::Result<Frame<Bytes>>>,
    second: Option<io::Result<Frame<Bytes>>>,
    body: Pin<Box<Option<B>>>,
    trailers: Rc<Cell<Option<HeaderMap>>>,
}

impl<B: HttpBody<Error: Into<BoxError>>> Stream for Frames<B> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            let received = self.first.take();
            let frame = match received.or_else(|| self.second.take()) {
                Some(frame) => frame,
                None => match ready!(poll_frame(&mut self.body, context)) {
                    Some(frame) => into_io(frame),
                    None => return Poll::Ready(None),
                },
            };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Err(other)) => {
                    if let Ok(trailers) = other.into_trailers() {
                        self.trailers.set(Some(trailers));
                    }
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

fn into_io<D: Buf, E: Into<BoxError>>(frame: Result<Frame<D>, E>) -> io::Result<Frame<Bytes>> {
    frame.map(|frame| frame.map_data(into_bytes)).map_err(io::Error::other)
}

/// Returns the remaining bytes, without a copy if they are `Bytes`.
fn into_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

fn block(trailers: HeaderMap) -> FieldBlock {
    let mut block = FieldBlock::default();
    let is_allowed =
        |(name, _): &(&HeaderName, &HeaderValue)| !is_forbidden_trailer(name.as_str().as_bytes());
    for (name, value) in trailers.iter().filter(is_allowed) {
        block.push_valid(name.as_str(), value.as_bytes());
    }
    block
}
