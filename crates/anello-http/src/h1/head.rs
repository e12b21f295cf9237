//! The head of a request: its line and its fields.

use super::fields::Fields;
use super::framing::RequestFraming;

/// The head of a request, checked: what it says of its body and its connection holds together.
///
/// It owns its bytes, and is as cheap to move as a pointer. [`Decoder::recycle`](super::Decoder::recycle) takes it back:
/// the next head allocates nothing then, and if it has the same fields, they are not parsed again.
#[derive(Debug, Default)]
pub struct Head(pub(super) Box<Parts>);

/// What is known of a head.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The bytes of the fields, and behind them those of the request line; see [`Parts::has_same_fields`].
    pub fields: Fields,
    /// The length of the former, with the empty line.
    pub section_bytes: u32,
    pub method: Method,
    pub version: Version,
    pub form: TargetForm,
    pub framing: RequestFraming,
    /// What version and fields say.
    pub may_keep_alive: bool,
    /// And whether another request may come at all.
    pub keeps_alive: bool,
    pub expects_continue: bool,
    /// The places of `Host` and of an `Upgrade` that counts, in the order of fields.
    pub host: Option<u32>,
    pub upgrade: Option<u32>,
    /// Where the method ends in the request line; the target begins one byte behind it.
    pub method_end: u32,
    pub target_end: u32,
    /// The host in the target, if it has one; the path begins behind it.
    pub host_start: u32,
    pub host_end: u32,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// `GET`.
    #[default]
    Get,
    /// `HEAD`: as `GET`, but the answer has no body.
    Head,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `DELETE`.
    Delete,
    /// `OPTIONS`.
    Options,
    /// `PATCH`.
    Patch,
    /// `TRACE`.
    Trace,
    /// `CONNECT`: asks for a tunnel.
    Connect,
    /// Another one: [`Head::method_text`] has it.
    Other,
}

impl Method {
    /// The method of this name; case matters.
    #[inline]
    pub(super) fn of(text: &[u8]) -> Self {
        match text {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"PATCH" => Self::Patch,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// The version that a request is processed as. Requests of other major versions are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1, or a higher minor version.
    #[default]
    Http11,
}

/// The form of a request's target (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// A path that begins with `/`, perhaps with a query.
    #[default]
    Origin,
    /// A whole URL of http or https, as proxies are asked; servers must understand it, too.
    Absolute,
    /// A host and a port, of `CONNECT`.
    Authority,
    /// `*`, of `OPTIONS`: the server as a whole.
    Asterisk,
}

/// What of a request decides how its answer is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    /// The version of the request.
    pub version: Version,
    /// Its method.
    pub method: Method,
    /// Whether the connection may go on after the answer.
    pub keeps_alive: bool,
}

impl RequestContext {
    /// For the response to a request that is refused.
    pub(super) const fn refused(method: Method) -> Self {
        Self { version: Version::Http11, method, keeps_alive: false }
    }
}

impl Parts {
    /// Whether `text` begins with the fields that are here, and they would come to the same again.
    #[inline]
    pub fn has_same_fields(&self, text: &[u8], version: Version, max_fields: usize) -> bool {
        // Another decoder's limits may be others, so what is limited is looked at again: bodies are not.
        let is_same = self.version == version && self.framing == RequestFraming::None;
        let section = self.fields.slice(0, self.section_bytes);
        is_same && !section.is_empty() && text.starts_with(section) && self.fields.len() <= max_fields
    }

    /// Forgets all, but keeps the memory.
    pub fn forget(&mut self) {
        self.fields.clear();
        self.section_bytes = 0;
    }
}

impl Head {
    /// The method.
    #[inline]
    #[must_use]
    pub fn method(&self) -> Method {
        self.0.method
    }

    /// The method as received.
    #[must_use]
    pub fn method_text(&self) -> &str {
        self.text(0, self.0.method_end)
    }

    /// The target as received: ASCII without blanks, controls or `#`. [`Head::path`] and [`Head::query`] have its parts.
    #[must_use]
    pub fn target(&self) -> &str {
        self.text(self.0.method_end + 1, self.0.target_end)
    }

    /// The same, as bytes.
    #[inline]
    pub(crate) fn target_bytes(&self) -> &[u8] {
        let line = self.0.section_bytes;
        self.0.fields.slice(line + self.0.method_end + 1, line + self.0.target_end)
    }

    /// The form of the target.
    #[must_use]
    pub fn target_form(&self) -> TargetForm {
        self.0.form
    }

    /// The path of the target, neither decoded nor normalised; it begins with `/`. That of a URL without one is `/`; the
    /// other forms have none, which is the empty text.
    #[must_use]
    pub fn path(&self) -> &str {
        let (path, _) = self.path_and_query();
        match self.0.form {
            TargetForm::Absolute if path.is_empty() => "/",
            TargetForm::Origin | TargetForm::Absolute => path,
            TargetForm::Authority | TargetForm::Asterisk => "",
        }
    }

    /// What stands behind the first `?` of the target, if there is one.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.path_and_query().1
    }

    fn path_and_query(&self) -> (&str, Option<&str>) {
        let start = self.0.host_end.max(self.0.method_end + 1);
        let text = self.text(start, self.0.target_end);
        match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        }
    }

    /// The version.
    #[inline]
    #[must_use]
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The host that is asked for, with its port if it says one: that of the target, if it has one, else that of the
    /// `Host` field. None, or empty, if the client does not say.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        if self.0.host_end > 0 {
            return Some(self.text(self.0.host_start, self.0.host_end));
        }
        str::from_utf8(self.0.fields.at(self.0.host?)?).ok()
    }

    /// All fields in their order: the name as received, and the value without the blanks around it, in which there are no
    /// control bytes but tabs.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.fields.iter()
    }

    /// The same, with their names as bytes.
    #[inline]
    pub(crate) fn field_bytes(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.fields.iter_bytes()
    }

    /// Whether a name has one of the lengths in this set, of which bit n stands for those of n bytes and n + 64.
    #[inline]
    pub(crate) fn has_length_of(&self, lengths: u64) -> bool {
        self.0.fields.has_length_of(lengths)
    }

    /// The first value of this name, in whichever case.
    #[must_use]
    #[inline]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.0.fields.first(name)
    }

    /// All values of this name, in whichever case, in their order.
    #[inline]
    pub fn fields_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.fields.named(name)
    }

    /// How the body is delimited.
    #[inline]
    #[must_use]
    pub fn framing(&self) -> RequestFraming {
        self.0.framing
    }

    /// Whether the connection may go on after this request: its version and `Connection` say so, and it is not the last
    /// one that the limit allows.
    #[inline]
    #[must_use]
    pub fn keeps_alive(&self) -> bool {
        self.0.keeps_alive
    }

    /// Whether the client would have it go on, whatever the limit.
    #[inline]
    pub(crate) fn may_keep_alive(&self) -> bool {
        self.0.may_keep_alive
    }

    /// Whether the client waits for a `100 Continue` before it sends the body, of which there is one.
    #[inline]
    #[must_use]
    pub fn expects_continue(&self) -> bool {
        self.0.expects_continue
    }

    /// The protocols that the client would like to go on with: the first `Upgrade` field, when `Connection` names it and
    /// the version is HTTP/1.1.
    #[must_use]
    pub fn upgrade(&self) -> Option<&str> {
        str::from_utf8(self.0.fields.at(self.0.upgrade?)?).ok()
    }

    /// What the answer needs to know when the head is gone.
    #[inline]
    #[must_use]
    pub fn context(&self) -> RequestContext {
        RequestContext { version: self.0.version, method: self.0.method, keeps_alive: self.0.keeps_alive }
    }

    /// The length of the head on the wire, in bytes.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        self.0.fields.bytes.len()
    }

    /// A part of the request line.
    fn text(&self, start: u32, end: u32) -> &str {
        // Method, target and host have been found to be ASCII.
        let line = self.0.section_bytes;
        str::from_utf8(self.0.fields.slice(line + start, line + end)).unwrap_or_default()
    }
}
