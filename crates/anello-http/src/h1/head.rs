//! Request heads: the request line and the fields.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::fields::Fields;
use super::framing::FramingDecision;
use super::types::{Limits, Method, RequestContext, RequestFraming, TargetForm, Version};

/// Start of the examples: a decoded head.
macro_rules! head {
    () => {
        "use anello_http::h1::{Decoder, Event, Limits};\n\n\
         let received = b\"GET /search?q=ciao HTTP/1.1\\r\\nHost: example.com\\r\\nAccept: text/html\\r\\n\\\n\
         \u{20}   Connection: upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n\";\n\
         let decoded = Decoder::new(Limits::default()).decode(&mut &received[..]);\n\
         let Ok(Some(Event::Head(head))) = decoded else { panic!() };"
    };
}

/// A request head whose framing has been checked.
///
/// It owns its bytes and is as cheap to move as a pointer. [`Decoder::recycle`](super::Decoder::recycle) takes it back,
/// so the next head needs no allocation. If the next head has the same fields, they are not parsed again.
///
/// ```
#[doc = head!()]
/// assert_eq!((head.method_text(), head.path(), head.query()), ("GET", "/search", Some("q=ciao")));
/// assert_eq!(head.host(), Some("example.com"));
/// assert_eq!(head.field("accept"), Some(&b"text/html"[..]));
/// ```
#[derive(Debug, Default)]
pub struct Head(pub(super) Box<Parts>);

#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The bytes of the fields, followed by those of the request line; see [`Parts::has_same_fields`].
    pub fields: Fields,
    /// Length of the field section, including the empty line.
    pub section_bytes: u32,
    pub method: Method,
    pub version: Version,
    pub form: TargetForm,
    pub decision: FramingDecision,
    /// `true` if another request can follow. This also depends on the request limit.
    pub keeps_alive: bool,
    /// Index of the first `Host` field.
    pub host: Option<u32>,
    /// End of the method in the request line. The target starts one byte later.
    pub method_end: u32,
    pub target_end: u32,
    /// Start of the host in the target, if there is one. The path starts at `host_end`.
    pub host_start: u32,
    pub host_end: u32,
    pub repetition: Repetition,
    /// The fields as a map, once it has been requested for a head with repeated fields.
    headers: Option<HeaderMap>,
    /// The target, once it has been requested for a head that is repeated completely.
    pub uri: Option<Uri>,
}

/// The part of a head that is the same as in the previous head in the same memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Repetition {
    #[default]
    Nothing,
    Fields,
    All,
}

impl Parts {
    /// Returns the length of this head if `input` starts with it. A head of HTTP/2 has another meaning.
    #[inline]
    pub fn find_same(&self, input: &[u8], limits: &Limits) -> Option<usize> {
        if self.version == Version::Http2 {
            return None;
        }
        let (section, line) = self.fields.bytes.split_at_checked(self.section_bytes as usize)?;
        let is_same = !section.is_empty() && input.strip_prefix(line)?.starts_with(section);
        let is_short = line.len() <= limits.max_request_line_bytes.saturating_add(b"\r\n".len());
        (is_same && is_short && self.is_allowed(limits)).then_some(self.fields.bytes.len())
    }

    /// Returns `true` if `text` starts with the fields of this head and these fields have the same meaning in the new
    /// head.
    #[inline]
    pub fn has_same_fields(&self, text: &[u8], version: Version, limits: &Limits) -> bool {
        let section = self.fields.slice(0..self.section_bytes);
        let is_same = self.version == version && !section.is_empty() && text.starts_with(section);
        is_same && self.is_allowed(limits)
    }

    /// Checks the limits for fields, because the head may come from a decoder with other limits.
    #[inline]
    fn is_allowed(&self, limits: &Limits) -> bool {
        let is_long =
            matches!(self.decision.framing, RequestFraming::Length(bytes) if bytes > limits.max_body_bytes);
        !is_long && self.fields.len() <= limits.max_fields
    }

    pub fn clear(&mut self) {
        self.fields.clear();
        self.section_bytes = 0;
        self.headers = None;
    }
}

impl Head {
    /// Returns the method.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.method(), anello_http::h1::Method::Get);
    /// ```
    #[inline]
    pub fn method(&self) -> Method {
        self.0.method
    }

    /// Returns the method as received.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.method_text(), "GET");
    /// ```
    pub fn method_text(&self) -> &str {
        self.text(0, self.0.method_end)
    }

    /// Returns the target as received: ASCII without spaces, control bytes and `#`. See also [`Head::path`] and
    /// [`Head::query`].
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.target(), "/search?q=ciao");
    /// ```
    pub fn target(&self) -> &str {
        self.text(self.0.method_end + 1, self.0.target_end)
    }

    #[inline]
    pub(crate) fn target_bytes(&self) -> &[u8] {
        let line = self.0.section_bytes;
        self.0.fields.slice(line + self.0.method_end + 1..line + self.0.target_end)
    }

    /// Returns the form of the target.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.target_form(), anello_http::h1::TargetForm::Origin);
    /// ```
    pub fn target_form(&self) -> TargetForm {
        self.0.form
    }

    /// Returns the path of the target, neither decoded nor normalized. It starts with `/`. The path is `/` for a URL
    /// without a path, and empty for the authority and asterisk forms.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.path(), "/search");
    /// ```
    pub fn path(&self) -> &str {
        let (path, _) = self.path_and_query();
        match self.0.form {
            TargetForm::Absolute if path.is_empty() => "/",
            TargetForm::Origin | TargetForm::Absolute => path,
            TargetForm::Authority | TargetForm::Asterisk => "",
        }
    }

    /// Returns the query, which is the part of the target after the first `?`.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.query(), Some("q=ciao"));
    /// ```
    pub fn query(&self) -> Option<&str> {
        self.path_and_query().1
    }

    fn path_and_query(&self) -> (&str, Option<&str>) {
        let start = self.0.host_end.max(self.0.method_end + 1);
        let text = self.text(start, self.0.target_end);
        text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)))
    }

    /// Returns the version.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.version(), anello_http::h1::Version::Http11);
    /// ```
    #[inline]
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Returns the requested host, with its port if there is one: the host in the target, or otherwise the `Host`
    /// field. The result is `None` or empty if the client sent no host.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.host(), Some("example.com"));
    /// ```
    pub fn host(&self) -> Option<&str> {
        if self.0.host_end > 0 {
            return Some(self.text(self.0.host_start, self.0.host_end));
        }
        str::from_utf8(self.0.fields.get(self.0.host?)?).ok()
    }

    /// Returns all fields in order: the name as received, and the value without surrounding whitespace. A value
    /// contains no control bytes except tabs.
    ///
    /// ```
    #[doc = head!()]
    /// let names: Vec<_> = head.fields().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["Host", "Accept", "Connection", "Upgrade"]);
    /// ```
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.fields.iter()
    }

    #[inline]
    pub(crate) fn field_bytes(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.fields.iter_bytes()
    }

    #[inline]
    pub(crate) fn has_length_of(&self, lengths: u64) -> bool {
        self.0.fields.has_length_of(lengths)
    }

    /// Returns the fields as a map, or `None` if the crate `http` does not accept them. The map of a head with repeated
    /// fields is kept, because a copy of it is cheaper.
    pub(crate) fn header_map(&mut self) -> Option<HeaderMap> {
        let parts = &mut *self.0;
        if let Some(headers) = &parts.headers {
            return Some(headers.clone());
        }
        // One allocation for all values.
        let bytes = Bytes::copy_from_slice(parts.fields.slice(0..parts.section_bytes));
        let mut headers = HeaderMap::with_capacity(parts.fields.len());
        for (name, value) in parts.fields.ranges() {
            let name = HeaderName::from_bytes(&bytes[name]).ok()?;
            headers.try_append(name, HeaderValue::from_maybe_shared(bytes.slice(value)).ok()?).ok()?;
        }
        if parts.repetition != Repetition::Nothing {
            parts.headers = Some(headers.clone());
        }
        Some(headers)
    }

    /// Returns the target, or `None` if the crate `http` does not accept it. The target of a repeated head is kept.
    pub(crate) fn uri(&mut self) -> Option<Uri> {
        if let Some(uri) = &self.0.uri {
            return Some(uri.clone());
        }
        let uri = match (self.target_form(), self.target_bytes()) {
            (TargetForm::Origin, b"/") => return Some(PathAndQuery::from_static("/").into()),
            (TargetForm::Origin, target) => {
                PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(target)).ok()?.into()
            }
            (_, target) => Uri::from_maybe_shared(Bytes::copy_from_slice(target)).ok()?,
        };
        if self.0.repetition == Repetition::All {
            self.0.uri = Some(uri.clone());
        }
        Some(uri)
    }

    /// Returns the first value of this field, ignoring the case of the name.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.field("accept"), Some(&b"text/html"[..]));
    /// assert_eq!(head.field("Cookie"), None);
    /// ```
    #[inline]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.0.fields.first(name)
    }

    /// Returns all values of this field in order, ignoring the case of the name.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.fields_named("Upgrade").collect::<Vec<_>>(), [b"echo"]);
    /// ```
    #[inline]
    pub fn fields_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.fields.named(name)
    }

    /// Returns how the body is delimited.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.framing(), anello_http::h1::RequestFraming::None);
    /// ```
    #[inline]
    pub fn framing(&self) -> RequestFraming {
        self.0.decision.framing
    }

    /// Returns `true` if the connection can be kept alive after this request: the version and the `Connection` field of
    /// the request allow it, and the request limit has not been reached.
    ///
    /// ```
    #[doc = head!()]
    /// assert!(head.keeps_alive());
    /// ```
    #[inline]
    pub fn keeps_alive(&self) -> bool {
        self.0.keeps_alive
    }

    #[inline]
    pub(crate) fn may_keep_alive(&self) -> bool {
        self.0.decision.keeps_alive
    }

    /// Returns `true` if there is a body and the client waits for `100 Continue` before it sends the body.
    ///
    /// ```
    #[doc = head!()]
    /// assert!(!head.expects_continue(), "there is no body");
    /// ```
    #[inline]
    pub fn expects_continue(&self) -> bool {
        self.0.decision.expects_continue
    }

    /// Returns the protocols that the client offers to switch to: the first `Upgrade` field, if `Connection` names it
    /// and the version is HTTP/1.1.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.upgrade(), Some("echo"));
    /// ```
    pub fn upgrade(&self) -> Option<&str> {
        str::from_utf8(self.0.fields.get(self.0.decision.upgrade?)?).ok()
    }

    /// Returns the properties that the response encoder needs after the head has been dropped.
    ///
    /// ```
    #[doc = head!()]
    /// let context = head.context();
    /// assert_eq!((context.method, context.keeps_alive), (head.method(), head.keeps_alive()));
    /// ```
    #[inline]
    pub fn context(&self) -> RequestContext {
        RequestContext { version: self.0.version, method: self.0.method, keeps_alive: self.0.keeps_alive }
    }

    /// Returns the length of the received head in bytes.
    ///
    /// ```
    #[doc = head!()]
    /// assert_eq!(head.head_bytes(), received.len());
    /// ```
    pub fn head_bytes(&self) -> usize {
        self.0.fields.bytes.len()
    }

    fn text(&self, start: u32, end: u32) -> &str {
        // Method, target and host have been checked to be ASCII.
        let line = self.0.section_bytes;
        str::from_utf8(self.0.fields.slice(line + start..line + end)).unwrap_or_default()
    }
}
