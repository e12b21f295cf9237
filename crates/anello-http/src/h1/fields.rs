//! Fields: those that were received, and those that are sent.

use std::fmt;

use super::syntax;

/// Fields that were received, in their order, with the bytes that they are in. Names are compared without regard to case.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// All of the head or trailer section.
    pub bytes: Vec<u8>,
    ranges: Vec<FieldRange>,
    /// A bit for each length that a name has, modulo 64: most names that are asked for are not there, and this says so
    /// without a look at any.
    lengths: u64,
}

/// Where a field is.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldRange {
    pub name_start: u32,
    pub name_end: u32,
    pub value_start: u32,
    pub value_end: u32,
}

impl Fields {
    /// Forgets all, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
        self.lengths = 0;
    }

    #[inline]
    pub fn push(&mut self, range: FieldRange) {
        self.lengths |= 1 << ((range.name_end - range.name_start) % 64);
        self.ranges.push(range);
    }

    /// Memory that is held, in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.ranges.capacity() * size_of::<FieldRange>()
    }

    pub fn slice(&self, start: u32, end: u32) -> &[u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    fn name(&self, range: &FieldRange) -> &[u8] {
        self.slice(range.name_start, range.name_end)
    }

    fn value(&self, range: &FieldRange) -> &[u8] {
        self.slice(range.value_start, range.value_end)
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The value of the field with this place in the order.
    pub fn at(&self, index: u32) -> Option<&[u8]> {
        self.ranges.get(index as usize).map(|range| self.value(range))
    }

    #[inline]
    pub fn iter_bytes(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.ranges.iter().map(|range| (self.name(range), self.value(range)))
    }

    /// Whether a name has one of these lengths, modulo 64, each of which is a bit.
    #[inline]
    pub fn has_length_of(&self, lengths: u64) -> bool {
        self.lengths & lengths != 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        // A name is a token, so it is text.
        let text = move |range: &FieldRange| str::from_utf8(self.name(range)).unwrap_or_default();
        self.ranges.iter().map(move |range| (text(range), self.value(range)))
    }

    #[inline]
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        if !self.has_length(name) {
            return None;
        }
        let is_named = |range: &&FieldRange| self.name(range).eq_ignore_ascii_case(name.as_bytes());
        self.ranges.iter().find(is_named).map(|range| self.value(range))
    }

    /// Whether a name is as long as this one, modulo 64.
    #[inline]
    fn has_length(&self, name: &str) -> bool {
        self.lengths >> (name.len() % 64) & 1 == 1
    }

    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let ranges = if self.has_length(name) { &self.ranges[..] } else { &[] };
        let is_named = move |range: &&FieldRange| self.name(range).eq_ignore_ascii_case(name.as_bytes());
        ranges.iter().filter(is_named).map(|range| self.value(range))
    }
}

/// The fields behind a body in chunks.
///
/// Fields that must not come there, because they say how the message is framed, routed or understood, are left out: who
/// merges trailers into the head's fields is not deceived (RFC 9110, section 6.5.1).
#[derive(Debug, Default)]
pub struct Trailers(Fields);

impl Trailers {
    /// Reads a section that the scanner has found to be right: lines of a name, a colon and a value.
    pub(super) fn read(section: &[u8]) -> Self {
        let mut fields = Fields { bytes: section.to_vec(), ..Fields::default() };
        let (mut lines, mut start) = (section.split(|&byte| byte == b'\n'), 0);
        while let Some(line) = lines.next().filter(|line| line.len() > 1) {
            let text = line.strip_suffix(b"\r").unwrap_or(line);
            let name_bytes = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
            let behind = text.get(name_bytes + 1..).unwrap_or_default();
            let value_start = start + name_bytes + 1 + (behind.len() - behind.trim_ascii_start().len());
            let value_end = value_start + syntax::trim(behind).len();
            if !is_forbidden(&text[..name_bytes]) {
                let [name_start, name_end, value_start, value_end] =
                    [start, start + name_bytes, value_start, value_end].map(|offset| offset as u32);
                fields.push(FieldRange { name_start, name_end, value_start, value_end });
            }
            start += line.len() + 1;
        }
        Self(fields)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The fields in their order: name as received, value without the blanks around it.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter()
    }

    /// The first value of this name, in whichever case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.0.first(name)
    }

    /// All values of this name, in whichever case.
    pub fn fields_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.named(name)
    }
}

/// Whether a field must not be a trailer.
fn is_forbidden(name: &[u8]) -> bool {
    const FORBIDDEN: [&str; 31] = [
        // How the message is framed and where it goes.
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "max-forwards",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        // What is asked for, and by whom.
        "authorization",
        "cache-control",
        "cookie",
        "expect",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "pragma",
        "proxy-authorization",
        "range",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        // How the content is to be read.
        "content-encoding",
        "content-range",
        "content-type",
        "set-cookie",
        "content-location",
    ];
    FORBIDDEN.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden.as_bytes()))
}

/// The name of a field that is sent: a token, and none of those that [`ResponseHead`](super::ResponseHead) writes itself.
///
/// ```
/// use anello_http::h1::FieldName;
///
/// const ROBOTS: FieldName<'static> = FieldName::constant("X-Robots-Tag"); // checked by the compiler
/// assert_eq!(ROBOTS.as_str(), "X-Robots-Tag");
/// assert!(FieldName::new("X-Robots Tag").is_err());
/// assert!(FieldName::new("Content-Length").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldName<'a>(&'a str);

impl<'a> FieldName<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// When it is no token, or is `Connection`, `Content-Length`, `Keep-Alive`, `Transfer-Encoding` or `Upgrade`, which
    /// follow from the request and the body, or `Date`, which is the present time and comes once.
    pub const fn new(name: &'a str) -> Result<Self, InvalidField> {
        if !syntax::is_token(name.as_bytes()) {
            return Err(InvalidField::Name);
        }
        let written = ["connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade"];
        let mut index = 0;
        while index < written.len() {
            if syntax::is_same(name.as_bytes(), written[index].as_bytes()) {
                return Err(InvalidField::Reserved);
            }
            index += 1;
        }
        Ok(Self(name))
    }

    /// The name as it is sent.
    #[must_use]
    pub const fn as_str(&self) -> &'a str {
        self.0
    }
}

impl FieldName<'static> {
    /// `Accept-Ranges`.
    pub const ACCEPT_RANGES: Self = Self::constant("Accept-Ranges");
    /// `Allow`.
    pub const ALLOW: Self = Self::constant("Allow");
    /// `Cache-Control`.
    pub const CACHE_CONTROL: Self = Self::constant("Cache-Control");
    /// `Content-Encoding`.
    pub const CONTENT_ENCODING: Self = Self::constant("Content-Encoding");
    /// `Content-Range`.
    pub const CONTENT_RANGE: Self = Self::constant("Content-Range");
    /// `Content-Type`.
    pub const CONTENT_TYPE: Self = Self::constant("Content-Type");
    /// `ETag`.
    pub const ETAG: Self = Self::constant("ETag");
    /// `Last-Modified`.
    pub const LAST_MODIFIED: Self = Self::constant("Last-Modified");
    /// `Location`.
    pub const LOCATION: Self = Self::constant("Location");
    /// `Retry-After`.
    pub const RETRY_AFTER: Self = Self::constant("Retry-After");
    /// `Server`.
    pub const SERVER: Self = Self::constant("Server");
    /// `Vary`.
    pub const VARY: Self = Self::constant("Vary");

    /// A name that is part of the program, for constants.
    ///
    /// # Panics
    /// As [`FieldName::new`] fails; in a constant, the compiler reports it.
    #[must_use]
    pub const fn constant(name: &'static str) -> Self {
        match Self::new(name) {
            Ok(name) => name,
            Err(InvalidField::Reserved) => panic!("this field is written by ResponseHead"),
            Err(_) => panic!("the name of a field has a byte that no token has"),
        }
    }
}

/// Fields that are sent, checked and encoded once and used for many answers: what is known of a file in a cache, say.
///
/// ```
/// use anello_http::h1::{FieldBlock, FieldName};
///
/// let mut block = FieldBlock::default();
/// block.push(FieldName::CONTENT_TYPE, b"text/css")?.push(FieldName::VARY, b"Accept-Encoding")?;
/// assert_eq!(block.as_bytes(), b"Content-Type: text/css\r\nVary: Accept-Encoding\r\n");
/// assert!(block.push(FieldName::LOCATION, b"/a\r\nSet-Cookie: b").is_err());
/// # Ok::<(), anello_http::h1::InvalidField>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldBlock(Vec<u8>);

impl FieldBlock {
    /// Adds a field.
    ///
    /// # Errors
    /// When the value has a control byte such as CR, LF or NUL; nothing is added then.
    #[inline]
    pub fn push(&mut self, name: FieldName<'_>, value: &[u8]) -> Result<&mut Self, InvalidField> {
        write_field(&mut self.0, name, value)?;
        Ok(self)
    }

    /// The lines, each with its line end.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Appends a field's line, or nothing.
#[inline]
pub(super) fn write_field(out: &mut Vec<u8>, name: FieldName<'_>, value: &[u8]) -> Result<(), InvalidField> {
    if !syntax::is_value(value) {
        return Err(InvalidField::Value);
    }
    write_valid(out, name.0, value);
    Ok(())
}

/// Appends a field's line.
#[inline]
pub(super) fn write_valid(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Why a field is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidField {
    /// The name is no token.
    Name,
    /// The field is one that the encoder writes itself: how the message is framed, or when it was sent.
    Reserved,
    /// The value has a control byte: what follows a line end in it would be taken for another field.
    Value,
}

impl fmt::Display for InvalidField {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Name => "the name of a field may only have letters, digits and !#$%&'*+-.^_`|~",
            Self::Reserved => {
                "Connection, Content-Length, Keep-Alive, Transfer-Encoding and Upgrade follow from the request and the \
                 body, and Date is the present time: leave the field out, and give the body's length"
            }
            Self::Value => "the value of a field may not have control bytes such as CR, LF and NUL: encode them",
        })
    }
}

impl std::error::Error for InvalidField {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_are_read_and_those_that_could_deceive_left_out() {
        let section =
            b"A: 1 \r\nContent-length: 5\r\nb:\t 2 3\t\r\nEmpty:\r\nBlank:  \r\na:3\r\nHOST: x\r\n\r\n";
        let trailers = Trailers::read(section);
        let fields: Vec<_> = trailers.fields().collect();
        let expected: [(&str, &[u8]); 5] =
            [("A", b"1"), ("b", b"2 3"), ("Empty", b""), ("Blank", b""), ("a", b"3")];
        assert_eq!(fields, expected);
        assert_eq!(trailers.field("B"), Some(&b"2 3"[..]));
        assert_eq!(trailers.fields_named("a").collect::<Vec<_>>(), [b"1", b"3"]);
        assert_eq!(trailers.field("content-length"), None);
        assert!(Trailers::read(b"\r\n").is_empty() && !trailers.is_empty());
    }

    #[test]
    fn names_that_split_or_frame_are_refused() {
        for name in ["", "a b", "a:", "a\r\nb", "a\0", "ä", "a\t"] {
            assert_eq!(FieldName::new(name), Err(InvalidField::Name), "{name:?}");
        }
        for name in ["connection", "CONTENT-LENGTH", "dAte", "Keep-alive", "transfer-Encoding", "Upgrade"] {
            assert_eq!(FieldName::new(name), Err(InvalidField::Reserved), "{name}");
        }
    }

    #[test]
    fn values_with_controls_are_refused_and_leave_nothing() {
        let mut block = FieldBlock::default();
        for value in [&b"a\r"[..], b"\n", b"a\0b", b"\x7f", b"a long value, and then\x1b"] {
            assert_eq!(block.push(FieldName::VARY, value), Err(InvalidField::Value));
        }
        assert_eq!(block.as_bytes(), b"");
        block.push(FieldName::VARY, b"tab\tand \xff").unwrap();
        assert_eq!(block.as_bytes(), b"Vary: tab\tand \xff\r\n");
    }
}
