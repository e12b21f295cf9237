//! Request heads: the request line and the fields.

use std::ops::Range;

use super::fields::Fields;
use super::framing::FramingDecision;
use super::types::{Method, RequestContext, RequestFraming, TargetForm, Version};

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
}

impl Parts {
    /// Returns `true` if `text` starts with the fields of this head and these fields have the same meaning in the new
    /// head.
    #[inline]
    pub fn has_same_fields(&self, text: &[u8], version: Version, max_fields: usize) -> bool {
        // The head may come from a decoder with other limits, so check the field limit again and rule out a body, to
        // which another limit applies.
        let is_same = self.version == version && self.decision.framing == RequestFraming::None;
        let section = self.fields.slice(0..self.section_bytes);
        is_same && !section.is_empty() && text.starts_with(section) && self.fields.len() <= max_fields
    }

    pub fn clear(&mut self) {
        self.fields.clear();
        self.section_bytes = 0;
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

    /// Returns the bytes to which [`field_ranges`](Self::field_ranges) and [`target_range`](Self::target_range) refer.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.fields.bytes
    }

    /// Returns the names and values of the fields.
    pub(crate) fn field_ranges(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        self.0.fields.ranges()
    }

    pub(crate) fn field_count(&self) -> usize {
        self.0.fields.len()
    }

    pub(crate) fn target_range(&self) -> Range<usize> {
        let line = self.0.section_bytes as usize;
        line + self.0.method_end as usize + 1..line + self.0.target_end as usize
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
