//! Heads of HTTP/2 requests, in the form that handlers receive.
//!
//! The fields are written as an HTTP/1.1 head and parsed by the same parser, so that the same limits and checks apply.
//! The head of the previous request on the connection is reused, and its fields are not parsed again if they are the
//! same.

use http::{HeaderMap, header};

use super::decoder::{Decoder, Event};
use super::head::Head;
use super::parse::parse;
use super::rejection::Rejection;
use super::types::{Limits, RequestFraming, Version};

/// Reads the heads of the requests of one HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Http2Heads {
    limits: Limits,
    /// The head as text, kept for its capacity.
    text: Vec<u8>,
}

impl Http2Heads {
    pub fn new(limits: Limits) -> Self {
        Self { limits: limits.clamped(), text: Vec::new() }
    }

    /// Converts a head. `spare` is a head to reuse. `has_body` is `false` if the stream has ended.
    pub fn read(
        &mut self,
        request: &http::request::Parts,
        has_body: bool,
        spare: Option<Head>,
    ) -> Result<Head, Rejection> {
        self.write(request);
        let mut head = spare.unwrap_or_default();
        if head.0.version == Version::Http2 {
            // Undoes the changes below, so that the head can be compared with the text, which has this version. The text
            // contains no `Transfer-Encoding`, so `Chunked` was set below.
            head.0.version = Version::Http11;
            if head.0.decision.framing == RequestFraming::Chunked {
                head.0.decision.framing = RequestFraming::None;
            }
        }
        if !matches!(parse(&self.text, &self.limits, &mut head.0)?, Some(bytes) if bytes == self.text.len()) {
            head = match Decoder::new(self.limits).decode(&mut &self.text[..])? {
                Some(Event::Head(head)) => head,
                // Only a head that is longer than the limit is incomplete.
                _ => return Err(Rejection::new(431, "request head too long")),
            };
        }
        head.0.version = Version::Http2;
        head.0.keeps_alive = true;
        let decision = &mut head.0.decision;
        decision.upgrade = None;
        match decision.framing {
            RequestFraming::None if has_body => decision.framing = RequestFraming::Chunked,
            RequestFraming::Chunked => return Err(Rejection::bad("Transfer-Encoding in an HTTP/2 request")),
            _ => {}
        }
        let expects_continue = has_body && head.field("expect").is_some();
        head.0.decision.expects_continue = expects_continue;
        Ok(head)
    }

    fn write(&mut self, request: &http::request::Parts) {
        let (uri, text) = (&request.uri, &mut self.text);
        text.clear();
        text.extend_from_slice(request.method.as_str().as_bytes());
        text.push(b' ');
        match (uri.path_and_query(), uri.authority()) {
            // A request for a tunnel has only an authority.
            (None, Some(authority)) => text.extend_from_slice(authority.as_str().as_bytes()),
            (path, _) => text.extend_from_slice(path.map_or("/", |path| path.as_str()).as_bytes()),
        }
        text.extend_from_slice(b" HTTP/1.1\r\n");
        if let Some(authority) = uri.authority() {
            write_field(text, "host", authority.as_str().as_bytes());
        }
        write_fields(text, &request.headers, uri.authority().is_some());
        text.extend_from_slice(b"\r\n");
    }
}

fn write_fields(text: &mut Vec<u8>, headers: &HeaderMap, has_authority: bool) {
    for (name, value) in headers {
        // `:authority` replaces `Host` (RFC 9113, section 8.3.1).
        let is_host = has_authority && name == header::HOST;
        if !is_host && name != header::COOKIE {
            write_field(text, name.as_str(), value.as_bytes());
        }
    }
    // A client may split its cookies into several fields (RFC 9113, section 8.2.3).
    let mut separator: &[u8] = b"cookie: ";
    for value in headers.get_all(header::COOKIE) {
        text.extend_from_slice(separator);
        text.extend_from_slice(value.as_bytes());
        separator = b"; ";
    }
    if separator == b"; " {
        text.extend_from_slice(b"\r\n");
    }
}

fn write_field(text: &mut Vec<u8>, name: &str, value: &[u8]) {
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_with_a_body_can_expect_100_continue() {
        let mut heads = Http2Heads::new(Limits::default());
        let mut head = None;
        for (expect, has_body) in [(true, true), (true, false), (false, true), (false, false), (true, true)] {
            let mut request = http::Request::builder().uri("http://a/");
            if expect {
                request = request.header("expect", "100-continue");
            }
            let (request, ()) = request.body(()).unwrap().into_parts();
            let read = heads.read(&request, has_body, head.take()).unwrap();
            assert_eq!(read.expects_continue(), expect && has_body);
            assert_eq!((read.framing().has_body(), read.version()), (has_body, Version::Http2));
            head = Some(read);
        }
    }

    #[test]
    fn equal_http1_head_has_its_own_version() {
        let (request, ()) = http::Request::builder().uri("http://a/").body(()).unwrap().into_parts();
        let head = Http2Heads::new(Limits::default()).read(&request, false, None).unwrap();
        let mut decoder = Decoder::new(Limits::default());
        decoder.recycle(head);
        let event = decoder.decode(&mut &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..]).unwrap();
        assert!(matches!(event, Some(Event::Head(head)) if head.version() == Version::Http11));
    }

    #[test]
    fn transfer_coding_is_rejected() {
        let request = http::Request::builder().uri("http://a/").header("transfer-encoding", "chunked");
        let (request, ()) = request.body(()).unwrap().into_parts();
        for has_body in [true, false] {
            let rejection = Http2Heads::new(Limits::default()).read(&request, has_body, None).unwrap_err();
            assert_eq!(rejection.status, 400);
        }
    }
}
