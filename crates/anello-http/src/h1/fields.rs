//! Received fields, and fields to send.

use std::ops::Range;

use super::syntax;

/// Start of the examples: the trailers of a decoded body.
macro_rules! trailers {
    () => {
        "use anello_http::h1::{ChunkedDecoder, ChunkedEvent, Limits};\n\n\
         let mut input = &b\"0\\r\\nChecksum: 17\\r\\nNote: a\\r\\nNote: b\\r\\n\\r\\n\"[..];\n\
         let event = ChunkedDecoder::new(Limits::default()).decode(&mut input)?;\n\
         let Some(ChunkedEvent::End(Some(trailers))) = event else { panic!() };"
    };
}

/// Received fields, in order, with the section that contains them. Names are compared case-insensitively.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Fields {
    pub bytes: Vec<u8>,
    ranges: Vec<FieldRange>,
    /// One bit for each name length, modulo 64. Most names that are looked up are absent, and this bit set rules them
    /// out without a search.
    lengths: u64,
}

#[derive(Debug, PartialEq)]
pub(super) struct FieldRange {
    pub name: Range<u32>,
    pub value: Range<u32>,
}

impl Fields {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
        self.lengths = 0;
    }

    #[inline]
    pub fn push(&mut self, range: FieldRange) {
        self.lengths |= 1 << ((range.name.end - range.name.start) % 64);
        self.ranges.push(range);
    }

    pub fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.ranges.capacity() * size_of::<FieldRange>()
    }

    pub fn slice(&self, range: Range<u32>) -> &[u8] {
        self.bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    fn name(&self, range: &FieldRange) -> &[u8] {
        self.slice(range.name.clone())
    }

    fn value(&self, range: &FieldRange) -> &[u8] {
        self.slice(range.value.clone())
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn get(&self, index: u32) -> Option<&[u8]> {
        self.ranges.get(index as usize).map(|range| self.value(range))
    }

    pub fn ranges(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let range = |range: &Range<u32>| range.start as usize..range.end as usize;
        self.ranges.iter().map(move |field| (range(&field.name), range(&field.value)))
    }

    #[inline]
    pub fn iter_bytes(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.ranges.iter().map(|range| (self.name(range), self.value(range)))
    }

    #[inline]
    pub fn has_length_of(&self, lengths: u64) -> bool {
        self.lengths & lengths != 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        // A name is a token, and therefore ASCII.
        let text = move |range: &FieldRange| str::from_utf8(self.name(range)).unwrap_or_default();
        self.ranges.iter().map(move |range| (text(range), self.value(range)))
    }

    #[inline]
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        if !self.has_length_of(1 << (name.len() % 64)) {
            return None;
        }
        let is_named = |range: &&FieldRange| self.name(range).eq_ignore_ascii_case(name.as_bytes());
        self.ranges.iter().find(is_named).map(|range| self.value(range))
    }

    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let ranges = if self.has_length_of(1 << (name.len() % 64)) { &self.ranges[..] } else { &[] };
        let is_named = move |range: &&FieldRange| self.name(range).eq_ignore_ascii_case(name.as_bytes());
        ranges.iter().filter(is_named).map(|range| self.value(range))
    }
}

/// The trailer fields of a chunked body.
///
/// Fields that affect framing, routing or the interpretation of the message are not allowed in trailers and are
/// omitted. An application can therefore safely merge trailers into the fields of the head (RFC 9110, section 6.5.1).
///
/// ```
#[doc = trailers!()]
/// assert_eq!(trailers.fields().count(), 3);
/// assert_eq!(trailers.field("checksum"), Some(&b"17"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default, PartialEq)]
pub struct Trailers(Fields);

impl Trailers {
    /// Parses a section that the scanner has accepted: each line has a name, a colon and a value.
    pub(super) fn read(section: &[u8]) -> Self {
        let mut fields = Fields { bytes: section.to_vec(), ..Fields::default() };
        let (mut lines, mut start) = (section.split(|&byte| byte == b'\n'), 0);
        while let Some(line) = lines.next().filter(|line| line.len() > 1) {
            let text = line.strip_suffix(b"\r").unwrap_or(line);
            let name_bytes = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
            let after_colon = text.get(name_bytes + 1..).unwrap_or_default();
            let value_start = start + text.len() - after_colon.trim_ascii_start().len();
            let value_end = value_start + syntax::trim(after_colon).len();
            if !is_forbidden_trailer(&text[..name_bytes]) {
                let range = |start: usize, end: usize| start as u32..end as u32;
                let (name, value) = (range(start, start + name_bytes), range(value_start, value_end));
                fields.push(FieldRange { name, value });
            }
            start += line.len() + 1;
        }
        Self(fields)
    }

    /// Converts valid fields. Fields that are not allowed in trailers are omitted.
    #[cfg(feature = "http2")]
    pub(crate) fn from_headers(headers: &http::HeaderMap) -> Self {
        let mut section = FieldBlock::default();
        for (name, value) in headers {
            section.push_valid(name.as_str(), value.as_bytes());
        }
        Self::read(section.as_bytes())
    }

    /// Returns `true` if there are no trailers.
    ///
    /// ```
    #[doc = trailers!()]
    /// assert!(!trailers.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Returns the fields in order: the name as received, and the value without surrounding whitespace.
    ///
    /// ```
    #[doc = trailers!()]
    /// let names: Vec<_> = trailers.fields().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["Checksum", "Note", "Note"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter()
    }

    /// Returns the first value of this field, ignoring the case of the name.
    ///
    /// ```
    #[doc = trailers!()]
    /// assert_eq!(trailers.field("NOTE"), Some(&b"a"[..]));
    /// assert_eq!(trailers.field("Other"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.0.first(name)
    }

    /// Returns all values of this field, ignoring the case of the name.
    ///
    /// ```
    #[doc = trailers!()]
    /// assert_eq!(trailers.fields_named("note").collect::<Vec<_>>(), [b"a", b"b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fields_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.named(name)
    }
}

pub(crate) fn is_forbidden_trailer(name: &[u8]) -> bool {
    // Fields for framing, routing, conditional requests and authentication, and fields that describe the content.
    const FORBIDDEN: &str = "connection content-length host keep-alive max-forwards proxy-connection te trailer \
        transfer-encoding upgrade \
        authorization cache-control cookie expect if-match if-modified-since if-none-match if-range \
        if-unmodified-since pragma proxy-authorization range forwarded x-forwarded-for x-forwarded-host \
        x-forwarded-proto \
        content-encoding content-range content-type set-cookie content-location";
    FORBIDDEN.split(' ').any(|forbidden| name.eq_ignore_ascii_case(forbidden.as_bytes()))
}

/// The name of a field to send: a token, and not one of the fields that [`ResponseHead`](super::ResponseHead) writes
/// itself.
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
    /// Checks a field name.
    ///
    /// ```
    /// use anello_http::h1::{FieldName, InvalidField};
    ///
    /// assert_eq!(FieldName::new("X-Robots-Tag")?.as_str(), "X-Robots-Tag");
    /// assert_eq!(FieldName::new("X Robots"), Err(InvalidField::Name));
    /// assert_eq!(FieldName::new("Date"), Err(InvalidField::Reserved));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`InvalidField::Name`] if the name is not a token. Returns [`InvalidField::Reserved`] for `Connection`,
    /// `Content-Length`, `Keep-Alive`, `Transfer-Encoding` and `Upgrade`, which are determined by the request and the
    /// body, and for `Date`, which the server adds.
    pub const fn new(name: &'a str) -> Result<Self, InvalidField> {
        if !syntax::is_token(name.as_bytes()) {
            return Err(InvalidField::Name);
        }
        let reserved = ["connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade"];
        let mut index = 0;
        while index < reserved.len() {
            if syntax::is_same(name.as_bytes(), reserved[index].as_bytes()) {
                return Err(InvalidField::Reserved);
            }
            index += 1;
        }
        Ok(Self(name))
    }

    /// Returns the name as it is sent.
    ///
    /// ```
    /// use anello_http::h1::FieldName;
    ///
    /// assert_eq!(FieldName::CONTENT_TYPE.as_str(), "Content-Type");
    /// ```
    pub const fn as_str(&self) -> &'a str {
        self.0
    }
}

/// Defines a constant per field name. Each has an example, which writes the field.
macro_rules! names {
    ($($constant:ident = $name:literal, $value:literal;)+) => {
        impl FieldName<'static> {$(
            #[doc = concat!(
                "`", $name, "`.\n\n```\n",
                "use anello_http::h1::{FieldBlock, FieldName};\n\n",
                "let mut fields = FieldBlock::default();\n",
                "fields.push(FieldName::", stringify!($constant), ", b", stringify!($value), ")?;\n",
                "assert!(fields.as_bytes().starts_with(b\"", $name, ": \"));\n",
                "# Ok::<(), anello_http::h1::InvalidField>(())\n```"
            )]
            pub const $constant: Self = Self::constant($name);
        )+}
    };
}

names! {
    ACCEPT_RANGES = "Accept-Ranges", "bytes";
    ALLOW = "Allow", "GET, HEAD";
    CACHE_CONTROL = "Cache-Control", "no-store";
    CONTENT_ENCODING = "Content-Encoding", "br";
    CONTENT_RANGE = "Content-Range", "bytes 0-4/10";
    CONTENT_TYPE = "Content-Type", "text/css";
    ETAG = "ETag", "\"17\"";
    LAST_MODIFIED = "Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT";
    LOCATION = "Location", "/elsewhere";
    RETRY_AFTER = "Retry-After", "120";
    SERVER = "Server", "example";
    VARY = "Vary", "Accept-Encoding";
}

impl FieldName<'static> {
    /// Checks a constant field name.
    ///
    /// ```
    /// use anello_http::h1::FieldName;
    ///
    /// const ROBOTS: FieldName<'static> = FieldName::constant("X-Robots-Tag");
    /// assert_eq!(ROBOTS.as_str(), "X-Robots-Tag");
    /// ```
    ///
    /// # Panics
    /// Panics if [`FieldName::new`] returns an error. In a constant, this is a compile error.
    pub const fn constant(name: &'static str) -> Self {
        match Self::new(name) {
            Ok(name) => name,
            Err(InvalidField::Reserved) => panic!("reserved field name: ResponseHead writes this field"),
            Err(_) => panic!("invalid byte in field name"),
        }
    }
}

/// Fields to send, checked and encoded once and used for many responses, for example for a cached file.
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
    /// ```
    /// use anello_http::h1::{FieldBlock, FieldName, InvalidField};
    ///
    /// let mut block = FieldBlock::default();
    /// block.push(FieldName::VARY, b"Accept")?.push(FieldName::ALLOW, b"GET")?;
    /// assert_eq!(block.push(FieldName::SERVER, b"a\nb"), Err(InvalidField::Value));
    /// assert_eq!(block.as_bytes(), b"Vary: Accept\r\nAllow: GET\r\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`InvalidField::Value`], without adding anything, if the value contains a control byte such as CR, LF or
    /// NUL.
    #[inline]
    pub fn push(&mut self, name: FieldName<'_>, value: &[u8]) -> Result<&mut Self, InvalidField> {
        write_field(&mut self.0, name, value)?;
        Ok(self)
    }

    pub(crate) const fn empty() -> Self {
        Self(Vec::new())
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the names and values of the fields.
    #[cfg(feature = "http2")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let lines = self.0.split(|&byte| byte == b'\n').filter_map(|line| line.strip_suffix(b"\r"));
        lines.filter_map(|line| {
            let name_bytes = line.iter().position(|&byte| byte == b':')?;
            Some((&line[..name_bytes], line.get(name_bytes + 2..)?))
        })
    }

    /// Adds a field whose name and value have been checked. The name may be reserved.
    #[inline]
    pub(crate) fn push_valid(&mut self, name: &str, value: &[u8]) {
        write_valid(&mut self.0, name, value);
    }

    /// Returns the encoded lines, each with its line ending.
    ///
    /// ```
    /// use anello_http::h1::{FieldBlock, FieldName};
    ///
    /// let mut block = FieldBlock::default();
    /// assert_eq!(block.as_bytes(), b"");
    /// block.push(FieldName::ETAG, b"\"17\"")?;
    /// assert_eq!(block.as_bytes(), b"ETag: \"17\"\r\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[inline]
pub(super) fn write_field(out: &mut Vec<u8>, name: FieldName<'_>, value: &[u8]) -> Result<(), InvalidField> {
    if !syntax::is_value(value) {
        return Err(InvalidField::Value);
    }
    write_valid(out, name.0, value);
    Ok(())
}

/// Appends the line for a field that has been checked.
#[inline]
pub(super) fn write_valid(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The reason why a field cannot be sent.
///
/// ```
/// use anello_http::h1::{FieldName, InvalidField};
///
/// assert_eq!(FieldName::new(""), Err(InvalidField::Name));
/// assert_eq!(FieldName::new("Connection"), Err(InvalidField::Reserved));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidField {
    /// The name is not a token.
    #[error("invalid field name: use only letters, digits and !#$%&'*+-.^_`|~")]
    Name,
    /// The encoder writes this field itself, because it depends on the framing or the current time.
    #[error(
        "reserved field name: the server sets Connection, Content-Length, Date, Keep-Alive, Transfer-Encoding and \
         Upgrade"
    )]
    Reserved,
    /// The value contains a control byte. The peer would interpret the bytes after a line break as another field.
    #[error("invalid field value: control bytes such as CR, LF and NUL are not allowed (encode them)")]
    Value,
}
