//! HTTP/1.1: encoding of requests, and decoding and verification of responses.

pub(crate) mod decoder;
mod reference;

use std::cell::RefCell;

use bytes::Bytes;

use crate::model::config::HttpLoad;
use crate::model::errors::{ConnectionError, ErrorKind};
use crate::wire::message::{ReceiveResult, ReplyCheck, RequestId};
use decoder::{Decoder, Head, HeadCache, Part};
use reference::{BodyMatch, Comparison, Reference};

pub(crate) use reference::References;

/// Creates the reference bodies for all paths. They are unset unless the load specifies an expected body.
pub(crate) fn references(load: &HttpLoad) -> References {
    let reference = || load.expected_body.clone().map(Reference::expected).unwrap_or_default();
    load.paths.iter().map(|_| reference()).collect()
}

#[derive(Debug)]
pub(crate) struct HttpShared {
    pages: Vec<Page>,
    references: References,
    verify: bool,
    expected_status: Vec<u16>,
}

/// A path that is requested.
#[derive(Debug)]
struct Page {
    path: String,
    request: Bytes,
    /// Head of the last response to this path, on any connection.
    head: RefCell<HeadCache>,
}

/// Receive state of one connection.
#[derive(Debug, Default)]
pub(crate) struct HttpReplyDecoder {
    decoder: Decoder,
    response: Response,
    /// Set if the server will close the connection after the last response.
    pub closes_connection: bool,
}

#[derive(Debug, Default)]
struct Response {
    status: u16,
    body_bytes: u64,
    comparison: Comparison,
}

impl HttpShared {
    pub fn new(load: &HttpLoad, verify: bool, references: References) -> Self {
        let page = |path: &String| Page {
            path: path.clone(),
            request: request(load, path).into(),
            head: RefCell::new(HeadCache::new(&load.method)),
        };
        Self {
            pages: load.paths.iter().map(page).collect(),
            references,
            verify,
            expected_status: load.expected_status.clone(),
        }
    }

    /// Returns the index of the page requested by `id`. A connection requests all pages in turn, and consecutive
    /// connections start with different pages.
    #[inline]
    fn page(&self, id: RequestId) -> usize {
        match self.pages.len() {
            1 => 0,
            count => (id.connection.wrapping_add(id.sequence) % count as u64) as usize,
        }
    }

    #[inline]
    pub fn requests(&self, id: RequestId, count: usize) -> Bytes {
        let first = &self.pages[self.page(id)].request;
        if count == 1 {
            return first.clone();
        }
        let mut all = Vec::with_capacity(first.len() * count);
        for sequence in (id.sequence..).take(count) {
            all.extend_from_slice(&self.pages[self.page(RequestId { sequence, ..id })].request);
        }
        all.into()
    }
}

impl HttpReplyDecoder {
    #[inline]
    pub fn receive(&mut self, shared: &HttpShared, id: RequestId, bytes: &mut &[u8]) -> ReceiveResult {
        let page = shared.page(id);
        if self.decoder.is_between_responses()
            && let Some((head, head_bytes)) = shared.pages[page].head.borrow().find(bytes)
            && let Some(body_bytes) = head.body_bytes().and_then(|bytes| usize::try_from(bytes).ok())
            && let Some(body) = bytes[head_bytes..].get(..body_bytes)
        {
            // Fast path: nearly all responses arrive complete and with the cached head.
            *bytes = &bytes[head_bytes + body_bytes..];
            self.set_head(head);
            self.add_body(body, shared, page);
            return Ok(Some(self.finish(shared, page)));
        }
        self.receive_parts(shared, page, bytes)
    }

    fn receive_parts(&mut self, shared: &HttpShared, page: usize, bytes: &mut &[u8]) -> ReceiveResult {
        let mut cache = shared.pages[page].head.borrow_mut();
        loop {
            let part = self.decoder.next(bytes, &mut cache).map_err(|cause| {
                ConnectionError::new(ErrorKind::Malformed, format!("invalid HTTP response: {cause}"))
            })?;
            match part {
                None => return Ok(None),
                Some(Part::Head(head)) => self.set_head(head),
                Some(Part::Body(data)) => self.add_body(data, shared, page),
                Some(Part::End) => return Ok(Some(self.finish(shared, page))),
            }
        }
    }

    /// Returns the result of the check if EOF completes the response.
    pub fn finish_at_eof(&mut self, shared: &HttpShared, id: RequestId) -> Option<ReplyCheck> {
        self.decoder.finish_at_eof().then(|| self.finish(shared, shared.page(id)))
    }

    pub fn is_within_response(&self) -> bool {
        !self.decoder.is_between_responses()
    }

    #[inline]
    fn set_head(&mut self, head: Head) {
        self.response.status = head.status;
        self.closes_connection = head.closes_connection;
    }

    #[inline]
    fn add_body(&mut self, data: &[u8], shared: &HttpShared, page: usize) {
        let Response { comparison, body_bytes, .. } = &mut self.response;
        if shared.verify {
            comparison.update(&shared.references, page, *body_bytes, data);
        }
        *body_bytes += data.len() as u64;
    }

    #[inline]
    fn finish(&mut self, shared: &HttpShared, page: usize) -> ReplyCheck {
        let Response { status, body_bytes, comparison } = std::mem::take(&mut self.response);
        let path = &shared.pages[page].path;
        if !shared.expected_status.is_empty() && !shared.expected_status.contains(&status) {
            return ReplyCheck::invalid(ErrorKind::WrongStatus, || {
                format!("{path}: unexpected status {status}")
            });
        }
        if !shared.verify {
            return ReplyCheck::Valid;
        }
        match comparison.finish(&shared.references, page, body_bytes) {
            BodyMatch::Equal => ReplyCheck::Valid,
            BodyMatch::LengthDiffers(expected) => ReplyCheck::invalid(ErrorKind::WrongLength, || {
                format!("{path}: body has {body_bytes} bytes (expected {expected})")
            }),
            BodyMatch::BytesDiffer => ReplyCheck::invalid(ErrorKind::WrongBytes, || {
                format!("{path}: body differs from the expected body")
            }),
        }
    }
}

fn request(load: &HttpLoad, path: &str) -> Vec<u8> {
    let has_header = |name: &str| load.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
    let mut text = format!("{} {path} HTTP/1.1\r\n", load.method);
    if !has_header("host") {
        text += &format!("Host: {}\r\n", load.host);
    }
    for (name, value) in &load.headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !load.keep_alive && !has_header("connection") {
        text += "Connection: close\r\n";
    }
    // RFC 9110, section 8.6: these methods anticipate a body, so an empty one also has a length.
    if !load.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&load.method.as_str()) {
        text += &format!("Content-Length: {}\r\n", load.body.len());
    }
    let mut request = (text + "\r\n").into_bytes();
    request.extend_from_slice(&load.body);
    request
}
