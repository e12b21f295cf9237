//! Responses that are encoded once and sent many times.

use std::rc::Rc;

use bytes::Bytes;

use super::date::HttpDate;
use super::fields::FieldBlock;
use super::response::{ResponseHead, write_content_length};
use super::types::{Method, RequestContext, Version};

/// The part of a `200 OK` response after the status line and the `Date` field, encoded once for many responses: the
/// fields, the length of the body, and the body. On a connection that is kept alive, sending it takes three copies.
///
/// ```
/// use anello_http::h1::{FieldBlock, FieldName, EncodedResponse};
/// use anello_http::{Request, Response};
/// use std::rc::Rc;
///
/// let mut fields = FieldBlock::default();
/// fields.push(FieldName::CONTENT_TYPE, b"text/plain")?;
/// let response = Rc::new(EncodedResponse::new(fields, b"ciao\n"));
/// let handler = async move |_: Request| Response::encoded(Rc::clone(&response));
/// # let _ = handler;
/// # Ok::<(), anello_http::h1::InvalidField>(())
/// ```
#[derive(Debug)]
pub struct EncodedResponse {
    fields: Rc<FieldBlock>,
    /// The field lines, the `Content-Length` line, the empty line, and the body.
    encoded: Bytes,
    head_bytes: usize,
}

impl EncodedResponse {
    /// Encodes a response with these fields and this body.
    pub fn new(fields: FieldBlock, body: &[u8]) -> Self {
        let mut encoded = Vec::with_capacity(fields.as_bytes().len() + 48 + body.len());
        encoded.extend_from_slice(fields.as_bytes());
        write_content_length(&mut encoded, body.len() as u64);
        let head_bytes = encoded.len();
        encoded.extend_from_slice(body);
        Self { fields: Rc::new(fields), encoded: encoded.into(), head_bytes }
    }

    /// Returns the fields.
    pub fn fields(&self) -> &Rc<FieldBlock> {
        &self.fields
    }

    /// Returns the body without copying it.
    pub fn body(&self) -> Bytes {
        self.encoded.slice(self.head_bytes..)
    }

    /// Returns the length of the body in bytes.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.encoded.len() - self.head_bytes
    }

    /// Appends the complete response if it needs no `Connection` field. Returns the number of body bytes appended
    /// (0 for `HEAD`).
    ///
    /// Returns `None`, without appending anything, for all other requests. Their responses need a separate head.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, context: RequestContext, date: &HttpDate) -> Option<usize> {
        if !context.keeps_alive || context.version != Version::Http11 || context.method == Method::Connect {
            return None;
        }
        let bytes = if context.method == Method::Head { self.head_bytes } else { self.encoded.len() };
        out.reserve(ResponseHead::START_BYTES + bytes);
        ResponseHead::write_start(out, date);
        out.extend_from_slice(&self.encoded[..bytes]);
        Some(bytes - self.head_bytes)
    }
}
