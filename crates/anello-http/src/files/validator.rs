//! Validators of a file: `ETag` and `Last-Modified` (RFC 9110, section 8.8).
//!
//! # Contents of the entity tag
//!
//! The tag consists of the file size and the modification time in nanoseconds. It does not contain the inode number:
//! copies of a site on several machines must have the same tags, or caching and resumed downloads fail when the next
//! request reaches another machine. Inode numbers would also disclose file system internals (CVE-2003-1418). If the
//! modification time is a constant that a tool sets on every file ([Nix and others](FileStamp)), a file replaced by one
//! of the same size would keep its tag. In this case, the tag contains the change time, which differs between machines,
//! and there is no `Last-Modified`.
//!
//! In all other cases, a file keeps its tag if it is replaced by a file of the same size and exactly the same
//! modification time. This requires a tool that copies timestamps (`cp -p`, `rsync -t`) and a source with an unchanged
//! modification time. The server sends the new contents, but a client that revalidates the old ones gets a 304 response.
//!
//! # Strong and weak validators
//!
//! A strong tag guarantees that equal tags mean equal bytes. File timestamps cannot distinguish two changes within one
//! tick of the kernel clock. The tag is therefore weak while the last change is less than one second old, and
//! `Last-Modified`, which has a resolution of one second, is not sent at all. Consequently, every date that a client
//! sends back is a strong validator as defined in RFC 9110, section 8.8.2.2, no matter when the client received it.

use std::fmt;
use std::hash::BuildHasher;
use std::io::Write;

use foldhash::quality::FixedState;

use super::negotiate::Coding;
use super::stamp::{FileStamp, Timestamp};

/// Maximum length of a tag in bytes: `W/"c`, two numbers of up to 16 digits, one number of up to 8 digits, three
/// hyphens, and `zstd"`.
const TAG_BYTES: usize = 4 + 16 + 8 + 16 + 3 + 5;

/// Entity tag and modification date of a representation.
///
/// ```
/// use anello_http::files::stamp::{FileStamp, Timestamp};
/// use anello_http::files::validator::Validator;
///
/// let modified = Timestamp { seconds: 1_790_000_000, nanoseconds: 0 };
/// let stamp = FileStamp { size_bytes: 13, modified, changed: modified, ..FileStamp::default() };
/// let just_now = Validator::of(&stamp, None, modified);
/// assert!(!just_now.tag.is_strong(), "the file can still change within this clock tick");
/// assert_eq!(just_now.last_modified_seconds, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validator {
    /// Entity tag of the variant.
    pub tag: EntityTag,
    /// Modification time in seconds since 1970. `None` if it does not identify the state of the file.
    pub last_modified_seconds: Option<u64>,
}

impl Validator {
    /// Creates the validator for a file. `checked_at` is the time of the `fstat(2)` call according to the clock used
    /// for file timestamps (`clock_gettime(CLOCK_REALTIME)`), not the time of the response. A precompressed variant has
    /// its own file and stamp, and its tag also contains the coding.
    ///
    /// ```
    /// use anello_http::files::stamp::{FileStamp, Timestamp};
    /// use anello_http::files::validator::Validator;
    /// let modified = Timestamp { seconds: 1_790_000_000, nanoseconds: 5 };
    /// let stamp = FileStamp { size_bytes: 13, modified, changed: modified, ..FileStamp::default() };
    /// let checked_at = Timestamp { seconds: 1_790_000_060, nanoseconds: 0 };
    /// let validator = Validator::of(&stamp, None, checked_at);
    /// assert_eq!(validator.tag.as_str(), "\"6ab13b80-5-d\"");
    /// assert_eq!(validator.last_modified_seconds, Some(1_790_000_000));
    /// ```
    pub fn of(stamp: &FileStamp, coding: Option<Coding>, checked_at: Timestamp) -> Self {
        Self::new(stamp, coding, checked_at, true)
    }

    /// Returns the validator of a file that is compressed while it is sent. The tag is weak, because the bytes depend on
    /// the version of the encoder.
    #[cfg(feature = "compression")]
    pub(super) fn of_compressed(stamp: &FileStamp, coding: Coding, checked_at: Timestamp) -> Self {
        Self::new(stamp, Some(coding), checked_at, false)
    }

    fn new(stamp: &FileStamp, coding: Option<Coding>, checked_at: Timestamp, is_exact: bool) -> Self {
        let is_settled = stamp.is_settled(checked_at);
        let is_constant = stamp.has_constant_modified();
        let weak = if is_settled && is_exact { "" } else { "W/" };
        let (constant, time) = if is_constant { ("c", stamp.changed) } else { ("", stamp.modified) };
        let (seconds, nanoseconds) = (time.seconds.cast_unsigned(), time.nanoseconds);
        let (hyphen, coding) = coding.map_or(("", ""), |coding| ("-", coding.token()));
        let size_bytes = stamp.size_bytes;
        let tag = EntityTag::format(format_args!(
            "{weak}\"{constant}{seconds:x}-{nanoseconds:x}-{size_bytes:x}{hyphen}{coding}\""
        ));
        let is_past = stamp.modified.seconds < checked_at.seconds;
        let seconds = u64::try_from(stamp.modified.seconds).ok();
        Self { tag, last_modified_seconds: seconds.filter(|_| is_settled && is_past && !is_constant) }
    }
}

/// Entity tag, stored inline.
///
/// ```
/// # use anello_http::files::stamp::{FileStamp, Timestamp};
/// use anello_http::files::validator::Validator;
///
/// # let checked_at = Timestamp { seconds: 60, nanoseconds: 0 };
/// # let stamp = FileStamp { size_bytes: 13, ..FileStamp::default() };
/// let changed = FileStamp { size_bytes: 14, ..stamp };
/// let tag = Validator::of(&stamp, None, checked_at).tag;
/// assert_ne!(tag, Validator::of(&changed, None, checked_at).tag);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EntityTag {
    text: [u8; TAG_BYTES],
    length: u8,
}

impl EntityTag {
    /// Returns a strong tag for content in memory, built from its hash and length. The tag is the same on all
    /// machines with the same architecture and server version.
    pub(super) fn from_content(content: &[u8]) -> Self {
        let hash = FixedState::with_seed(0).hash_one(content);
        Self::format(format_args!("\"{hash:x}-{:x}\"", content.len()))
    }

    fn format(tag: fmt::Arguments<'_>) -> Self {
        let mut text = [0; TAG_BYTES];
        let mut rest = &mut text[..];
        let written = rest.write_fmt(tag);
        debug_assert!(written.is_ok(), "{tag} is too long");
        Self { length: (TAG_BYTES - rest.len()) as u8, text }
    }

    /// Returns the `ETag` value.
    ///
    /// ```
    /// # use anello_http::files::stamp::{FileStamp, Timestamp};
    /// use anello_http::files::validator::Validator;
    ///
    /// # let checked_at = Timestamp { seconds: 1_790_000_060, nanoseconds: 0 };
    /// let modified = Timestamp { seconds: 1_790_000_000, nanoseconds: 5 };
    /// let stamp = FileStamp { size_bytes: 13, modified, changed: modified, ..FileStamp::default() };
    /// assert_eq!(Validator::of(&stamp, None, checked_at).tag.as_str(), "\"6ab13b80-5-d\"");
    /// ```
    pub fn as_str(&self) -> &str {
        // The text is ASCII.
        std::str::from_utf8(&self.text[..usize::from(self.length)]).unwrap_or_default()
    }

    /// Returns `true` if the tag is strong: equal tags mean equal bytes.
    ///
    /// ```
    /// use anello_http::files::stamp::{FileStamp, Timestamp};
    /// use anello_http::files::validator::Validator;
    ///
    /// let stamp = FileStamp { size_bytes: 13, ..FileStamp::default() };
    /// let tag = |seconds| Validator::of(&stamp, None, Timestamp { seconds, nanoseconds: 0 }).tag;
    /// assert!(!tag(0).is_strong());
    /// assert!(tag(60).is_strong());
    /// ```
    pub fn is_strong(&self) -> bool {
        self.text[0] == b'"'
    }

    /// Returns the opaque tag, including the quotes.
    fn opaque(&self) -> &[u8] {
        let start = if self.is_strong() { 0 } else { 2 };
        &self.text[start..usize::from(self.length)]
    }
}

impl fmt::Debug for EntityTag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTag<'a> {
    is_weak: bool,
    /// Includes the quotes.
    opaque: &'a [u8],
}

impl<'a> RequestTag<'a> {
    /// Parses the tag at the start of a value (RFC 9110, section 8.8.3). Returns the tag and the remaining bytes,
    /// or `None` if the value does not start with a tag.
    pub fn parse(value: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (is_weak, quoted) = match value {
            [b'W', b'/', rest @ ..] => (true, rest),
            _ => (false, value),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        let end = inner.iter().position(|&byte| byte == b'"')? + 2;
        let (opaque, rest) = quoted.split_at(end);
        Some((Self { is_weak, opaque }, rest))
    }

    /// Strong comparison: both tags are strong and the opaque tags are equal.
    pub fn matches_strongly(&self, tag: &EntityTag) -> bool {
        !self.is_weak && tag.is_strong() && self.matches_weakly(tag)
    }

    /// Weak comparison: the opaque tags are equal.
    pub fn matches_weakly(&self, tag: &EntityTag) -> bool {
        self.opaque == tag.opaque()
    }
}
