//! HTTP/1.1: the requests of a load, made once, and the responses of a connection, judged as they come.

pub(crate) mod decoder;
mod reference;

use std::cell::RefCell;

use bytes::Bytes;

use crate::config::HttpLoad;
use crate::errors::{ConnectionError, ErrorKind};
use crate::exchange::ReplyCheck;
use decoder::{DecodeError, Decoder, Head, HeadCache, Part};
use reference::{BodyMatch, Comparison, Reference};

pub(crate) use reference::References;

/// No references yet, or the one that is expected of every path.
pub(crate) fn references(load: &HttpLoad) -> References {
    let expected = || match &load.expected_body {
        None => Reference::default(),
        Some(body) => Reference::expected(body.clone()),
    };
    load.paths.iter().map(|_| expected()).collect()
}

/// What all connections of a thread share.
#[derive(Debug)]
pub(crate) struct HttpShared {
    /// One for each path.
    pages: Vec<Page>,
    references: References,
    verify: bool,
    expected_status: Vec<u16>,
}

#[derive(Debug)]
struct Page {
    path: String,
    request: Bytes,
    /// Of the last response to this path, on whichever connection.
    head: RefCell<HeadCache>,
}

/// The response that a connection is receiving.
#[derive(Debug, Default)]
pub(crate) struct HttpReplyDecoder {
    decoder: Decoder,
    response: Response,
    /// The server has said that it closes the connection after the last response.
    pub closes_connection: bool,
}

/// What is known of a response that is not whole.
#[derive(Debug, Default)]
struct Response {
    status: u16,
    body_bytes: u64,
    comparison: Comparison,
}

impl HttpShared {
    /// The requests that `load` asks for.
    pub fn new(load: &HttpLoad, verify: bool, references: References) -> Self {
        let page = |path: &String| Page {
            path: path.clone(),
            request: request(load, path).into(),
            head: RefCell::default(),
        };
        Self {
            pages: load.paths.iter().map(page).collect(),
            references,
            verify,
            expected_status: load.expected_status.clone(),
        }
    }

    /// The page that request number `sequence` of a connection asks for: all in turn, each connection from another one
    /// on.
    #[inline]
    fn page(&self, connection: u64, sequence: u64) -> usize {
        match self.pages.len() {
            1 => 0,
            count => (connection.wrapping_add(sequence) % count as u64) as usize,
        }
    }

    /// The bytes of `count` requests from number `sequence` on.
    #[inline]
    pub fn requests(&self, connection: u64, sequence: u64, count: usize) -> Bytes {
        let one = &self.pages[self.page(connection, sequence)].request;
        if count == 1 {
            return one.clone();
        }
        let mut all = Vec::with_capacity(one.len() * count);
        for sequence in (sequence..).take(count) {
            all.extend_from_slice(&self.pages[self.page(connection, sequence)].request);
        }
        all.into()
    }
}

impl HttpReplyDecoder {
    /// Takes what belongs to the response of request `sequence` off the front of `bytes`; the verdict if it is whole
    /// now.
    #[inline]
    pub fn receive(
        &mut self,
        shared: &HttpShared,
        connection: u64,
        sequence: u64,
        bytes: &mut &[u8],
    ) -> Result<Option<ReplyCheck>, ConnectionError> {
        let page = shared.page(connection, sequence);
        let known = self.decoder.peek(bytes, &shared.pages[page].head.borrow());
        if let Some((head, head_bytes)) = known
            && let Some(body_bytes) = head.body_bytes().and_then(|bytes| usize::try_from(bytes).ok())
            && let Some(body) = bytes[head_bytes..].get(..body_bytes)
        {
            // Nearly all responses come so: the same head, and whole.
            *bytes = &bytes[head_bytes + body_bytes..];
            self.begin(head);
            self.body(body, shared, page);
            return Ok(Some(self.finish(shared, page)));
        }
        self.receive_parts(shared, page, bytes)
    }

    fn receive_parts(
        &mut self,
        shared: &HttpShared,
        page: usize,
        bytes: &mut &[u8],
    ) -> Result<Option<ReplyCheck>, ConnectionError> {
        let mut cache = shared.pages[page].head.borrow_mut();
        loop {
            match self.decoder.next(bytes, &mut cache).map_err(|error| malformed_error(&error))? {
                None => return Ok(None),
                Some(Part::Head(head)) => self.begin(head),
                Some(Part::Body(data)) => self.body(data, shared, page),
                Some(Part::End) => return Ok(Some(self.finish(shared, page))),
            }
        }
    }

    /// The server has closed: the verdict if that was the end of a response, too.
    pub fn finish_at_eof(&mut self, shared: &HttpShared, connection: u64, sequence: u64) -> Option<ReplyCheck> {
        let page = shared.page(connection, sequence);
        self.decoder.finish_at_eof().then(|| self.finish(shared, page))
    }

    /// Whether some of a response has come, but not all.
    pub fn is_within_response(&self) -> bool {
        !self.decoder.is_between_responses()
    }

    #[inline]
    fn begin(&mut self, head: Head) {
        self.response.status = head.status;
        self.closes_connection = head.closes_connection;
    }

    #[inline]
    fn body(&mut self, data: &[u8], shared: &HttpShared, page: usize) {
        self.response.body_bytes += data.len() as u64;
        if shared.verify {
            self.response.comparison.update(&shared.references, page, data);
        }
    }

    /// The response is whole.
    #[inline]
    fn finish(&mut self, shared: &HttpShared, page: usize) -> ReplyCheck {
        let Response { status, body_bytes, comparison } = std::mem::take(&mut self.response);
        let path = &shared.pages[page].path;
        if !shared.expected_status.is_empty() && !shared.expected_status.contains(&status) {
            return ReplyCheck::invalid(ErrorKind::WrongStatus, || {
                format!("{path} was answered with status {status}")
            });
        }
        if !shared.verify {
            return ReplyCheck::Valid;
        }
        match comparison.finish(&shared.references, page) {
            BodyMatch::Equal => ReplyCheck::Valid,
            BodyMatch::LengthDiffers(expected) => ReplyCheck::invalid(ErrorKind::WrongLength, || {
                format!("{path} has {body_bytes} bytes instead of {expected}")
            }),
            BodyMatch::BytesDiffer => {
                ReplyCheck::invalid(ErrorKind::WrongBytes, || format!("{path} has other bytes than expected"))
            }
        }
    }
}

fn malformed_error(error: &DecodeError) -> ConnectionError {
    ConnectionError { kind: ErrorKind::Malformed, text: format!("no HTTP response: {}", error.0) }
}

/// The bytes of a request.
fn request(load: &HttpLoad, path: &str) -> Vec<u8> {
    let has_header = |name: &str| load.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
    let mut text = format!("GET {path} HTTP/1.1\r\n");
    if !has_header("host") {
        text += &format!("Host: {}\r\n", load.host);
    }
    for (name, value) in &load.headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !load.keep_alive && !has_header("connection") {
        text += "Connection: close\r\n";
    }
    (text + "\r\n").into_bytes()
}
