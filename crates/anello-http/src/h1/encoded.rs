//! Answers that are sent again and again.

use std::rc::Rc;

use bytes::Bytes;

use super::date::HttpDate;
use super::fields::FieldBlock;
use super::head::{Method, RequestContext, Version};
use super::response::{ResponseHead, write_content_length};

/// What follows the status line and the `Date` of a `200 OK`, encoded once for many answers: its fields, the length of its
/// body, and the body. An answer is then three copies, if the connection goes on.
///
/// ```
/// use anello_http::h1::{FieldBlock, FieldName, EncodedResponse};
/// use anello_http::{Request, Response};
/// use std::rc::Rc;
///
/// let mut fields = FieldBlock::default();
/// fields.push(FieldName::CONTENT_TYPE, b"text/plain")?;
/// let answer = Rc::new(EncodedResponse::new(fields, b"ciao\n"));
/// let handler = async move |_: Request| Response::encoded(Rc::clone(&answer));
/// # let _ = handler;
/// # Ok::<(), anello_http::h1::InvalidField>(())
/// ```
#[derive(Debug)]
pub struct EncodedResponse {
    fields: Rc<FieldBlock>,
    /// The lines of the fields, that of the length, the empty line, and the body.
    encoded: Bytes,
    head_bytes: usize,
}

impl EncodedResponse {
    /// Encodes an answer with these fields and this body.
    #[must_use]
    pub fn new(fields: FieldBlock, body: &[u8]) -> Self {
        let mut encoded = Vec::with_capacity(fields.as_bytes().len() + 48 + body.len());
        encoded.extend_from_slice(fields.as_bytes());
        write_content_length(&mut encoded, body.len() as u64);
        let head_bytes = encoded.len();
        encoded.extend_from_slice(body);
        Self { fields: Rc::new(fields), encoded: encoded.into(), head_bytes }
    }

    /// The fields.
    #[must_use]
    pub fn fields(&self) -> &Rc<FieldBlock> {
        &self.fields
    }

    /// The body, without a copy.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.encoded.slice(self.head_bytes..)
    }

    /// The length of the body, in bytes.
    #[must_use]
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.encoded.len() - self.head_bytes
    }

    /// Appends the whole answer, if it is one that says nothing of the connection. How much of the body was appended:
    /// nothing of it to `HEAD`. None, and nothing appended, for all other requests: these need a head of their own.
    #[inline]
    pub(crate) fn write(&self, out: &mut Vec<u8>, context: RequestContext, date: &HttpDate) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::{BodyLength, FieldName};

    /// The answer as it is encoded step by step.
    fn encode_directly(
        context: RequestContext,
        fields: &FieldBlock,
        body: &[u8],
        date: &HttpDate,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let mut head = ResponseHead::begin(&mut out, context, 200).unwrap();
        head.date(date).block(fields);
        let mut encoder = head.finish(BodyLength::Known(body.len() as u64));
        encoder.write(&mut out, body).unwrap();
        encoder.finish(&mut out).unwrap();
        out
    }

    #[test]
    fn it_is_what_the_steps_make_or_nothing() {
        let mut fields = FieldBlock::default();
        fields.push(FieldName::CONTENT_TYPE, b"text/plain").unwrap();
        let date = HttpDate::from_unix(1_790_000_000);
        for body in [&b""[..], b"ciao", &[7; 5000]] {
            let framed = EncodedResponse::new(fields.clone(), body);
            assert_eq!((framed.body_bytes(), &framed.body()[..]), (body.len(), body));
            for method in [Method::Get, Method::Head, Method::Post, Method::Options, Method::Connect] {
                for version in [Version::Http10, Version::Http11] {
                    for keeps_alive in [false, true] {
                        let context = RequestContext { version, method, keeps_alive };
                        let mut out = b"before".to_vec();
                        let sent = framed.write(&mut out, context, &date);
                        let is_plain = keeps_alive && version == Version::Http11 && method != Method::Connect;
                        assert_eq!(sent.is_some(), is_plain);
                        let expected = encode_directly(context, &fields, body, &date);
                        assert_eq!(&out[6..], if is_plain { &expected[..] } else { b"" });
                        let of_body = if method == Method::Head { 0 } else { body.len() };
                        assert!(sent.is_none_or(|sent| sent == of_body));
                    }
                }
            }
        }
    }
}
