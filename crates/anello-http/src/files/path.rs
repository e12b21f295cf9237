//! From the target of a request to a path below the served folder.
//!
//! What is accepted is a relative path of ordinary names, so that joining it to a folder cannot lead out of it but by
//! a symbolic link. Percent-encoding is undone once, by no more than that: `%252e` is the name `%2e`. Clients resolve
//! `.` and `..` before they send (RFC 3986, section 5.2.4), so who sends them, plain or encoded, wants something else;
//! they are refused, never resolved. Slashes in a row count as one.
//!
//! Nearly all targets are plain ASCII with nothing to decode: [`resolve`] looks at each of their bytes once and
//! allocates nothing.

mod spa_route;

use std::borrow::Cow;
use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub(super) use spa_route::may_be_spa_route;

/// Longest name within a path, in bytes: `NAME_MAX` of Linux. No file has a longer one.
pub const MAX_NAME_BYTES: usize = 255;

/// Longest path, in bytes: `PATH_MAX` of Linux less the NUL at its end.
pub const MAX_PATH_BYTES: usize = 4095;

/// The folder of which RFC 8615 wants that it can be reached although its name begins with a dot.
const WELL_KNOWN: &str = ".well-known";

/// What of a name is encoded in a link: all but the characters that never mean anything in a URL.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The same of a path, whose slashes stay.
const PATH: &AsciiSet = &NAME.remove(b'/');

/// What of a query is encoded when it is sent back: what a query may not have (RFC 3986, section 3.4). Percent signs are not
/// among it: the rest is as the client encoded it.
const QUERY: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Whether files are served whose name, or the name of a folder above them, begins with a dot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dotfiles {
    /// They are as if they did not exist, but for what lies in `.well-known` at the top (RFC 8615). They are often
    /// not meant to be seen: `.git`, `.env`, `.htpasswd`.
    #[default]
    Hide,
    /// They are files like others.
    Serve,
}

/// Where a target leads to below the served folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPath<'a> {
    relative: Cow<'a, str>,
    is_directory: bool,
    query: Option<&'a str>,
}

impl<'a> TargetPath<'a> {
    /// The path, relative to the served folder: names with single slashes between them, none of them empty, `.` or
    /// `..`; no slash at its beginning or end. Empty for the served folder itself.
    #[must_use]
    pub fn relative(&self) -> &str {
        &self.relative
    }

    /// Whether the target ended with a slash: it means a folder, and a file does not answer to it.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// What stands behind the question mark, as the client encoded it.
    #[must_use]
    pub fn query(&self) -> Option<&'a str> {
        self.query
    }

    /// Whether the last name has no extension, as those of pages that a script makes up in the browser: what the
    /// fallback of a single-page application answers for. For a name with one (`app.js`), a page in the place of what
    /// is missing would only hide that it is.
    #[must_use]
    pub fn has_no_extension(&self) -> bool {
        self.relative.rsplit('/').next().is_none_or(|name| !name.contains('.'))
    }

    /// The value of `Location` that leads to the same path with a slash at its end, with the query: where a folder is
    /// asked for without one. It begins with exactly one slash, so that it cannot lead to another host, and has only the
    /// characters that RFC 3986 allows.
    #[must_use]
    pub fn redirect_location(&self) -> String {
        let mut location = String::with_capacity(self.relative.len() + 2);
        location.push('/');
        if !self.relative.is_empty() {
            location.extend(utf8_percent_encode(&self.relative, PATH));
            location.push('/');
        }
        if let Some(query) = self.query {
            location.push('?');
            for (index, piece) in query.split('%').enumerate() {
                if index > 0 {
                    let is_encoded = matches!(piece.as_bytes(), [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit());
                    location.push_str(if is_encoded { "%" } else { "%25" });
                }
                location.extend(utf8_percent_encode(piece, QUERY));
            }
        }
        location
    }
}

/// A name as it stands in a link relative to its folder.
pub(super) fn encoded_name(name: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(name, NAME)
}

/// A path as it stands in a target.
pub(super) fn encoded_path(path: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(path, PATH)
}

/// Why a target leads to no file. Those of status 400 no ordinary client sends; those of 404 are answered as if there
/// were no such file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// Neither a path nor a URL of `http` or `https`, or with a `#`.
    InvalidForm,
    /// A `%` without two hexadecimal digits behind it.
    InvalidPercentEncoding,
    /// Not UTF-8 once decoded.
    InvalidUtf8,
    /// NUL or another control byte.
    ControlByte,
    /// A name that is `.` or `..`.
    DotSegment,
    /// An encoded slash, which no name can contain.
    EncodedSlash,
    /// A backslash, which some clients and tools take for a slash.
    Backslash,
    /// A name that begins with a dot, and such are hidden.
    Hidden,
    /// A name or path longer than Linux has them.
    TooLong,
}

impl PathError {
    /// The status that it is answered with: 400 or 404.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidForm
            | Self::InvalidPercentEncoding
            | Self::InvalidUtf8
            | Self::ControlByte
            | Self::DotSegment => 400,
            Self::EncodedSlash | Self::Backslash | Self::Hidden | Self::TooLong => 404,
        }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::InvalidForm => "the target is not a path that begins with a slash",
            Self::InvalidPercentEncoding => {
                "a % in the path is not followed by two hexadecimal digits; a literal one is %25"
            }
            Self::InvalidUtf8 => "the path is not UTF-8 once decoded",
            Self::ControlByte => "the path contains a control character",
            Self::DotSegment => "the path contains a . or .. segment; resolve it before sending",
            Self::EncodedSlash => "a name in the path contains a slash",
            Self::Backslash => "a name in the path contains a backslash",
            Self::Hidden => "a name in the path begins with a dot",
            Self::TooLong => "the path, or a name in it, is longer than a file's can be",
        })
    }
}

impl std::error::Error for PathError {}

/// Where a target leads to: what stands between method and version in a request line, a path (`/a/b?query`) or a URL
/// (`http://host/a/b`, whose host the caller looks at).
///
/// ```
/// use anello_http::files::path::{Dotfiles, PathError, resolve};
/// let path = resolve("/caf%C3%A9/menu.html?day=1", Dotfiles::Hide)?;
/// assert_eq!((path.relative(), path.is_directory(), path.query()), ("café/menu.html", false, Some("day=1")));
/// assert_eq!(resolve("/%2e%2e/etc/passwd", Dotfiles::Hide), Err(PathError::DotSegment));
/// # Ok::<(), PathError>(())
/// ```
///
/// # Errors
/// When it cannot lead to a file that is served.
#[inline]
pub fn resolve(target: &str, dotfiles: Dotfiles) -> Result<TargetPath<'_>, PathError> {
    match resolve_fast(target) {
        Some(path) => Ok(path),
        None => resolve_slow(target, dotfiles),
    }
}

/// What a byte may be on the short way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Plain,
    Dot,
    Slash,
    Query,
    Other,
}

static CLASSES: [Class; 256] = {
    let mut classes = [Class::Other; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        classes[byte as usize] = Class::Plain;
        byte += 1;
    }
    classes[b'.' as usize] = Class::Dot;
    classes[b'/' as usize] = Class::Slash;
    classes[b'?' as usize] = Class::Query;
    classes[b'%' as usize] = Class::Other;
    classes[b'#' as usize] = Class::Other;
    classes[b'\\' as usize] = Class::Other;
    classes
};

/// The short way, for targets of which each byte means itself, no name begins with a dot, and none can be too long.
/// None if it is not sure that all is well.
#[inline]
pub(super) fn resolve_fast(target: &str) -> Option<TargetPath<'_>> {
    let bytes = target.as_bytes();
    if bytes.first() != Some(&b'/') {
        return None;
    }
    let mut end = bytes.len();
    let mut after_slash = true;
    for (index, &byte) in bytes.iter().enumerate().skip(1) {
        match CLASSES[usize::from(byte)] {
            Class::Plain => after_slash = false,
            Class::Dot if !after_slash => {}
            Class::Slash if !after_slash => after_slash = true,
            Class::Query => {
                end = index;
                break;
            }
            Class::Dot | Class::Slash | Class::Other => return None,
        }
    }
    if end > MAX_NAME_BYTES {
        return None;
    }
    let query = target.get(end + 1..);
    // A `#` is not looked for behind a question mark.
    if query.is_some_and(|query| query.contains('#')) {
        return None;
    }
    let last = if after_slash { end.saturating_sub(1).max(1) } else { end };
    Some(TargetPath { relative: Cow::Borrowed(&target[1..last]), is_directory: after_slash, query })
}

#[cold]
fn resolve_slow(target: &str, dotfiles: Dotfiles) -> Result<TargetPath<'_>, PathError> {
    let (encoded, query) = split(target)?;
    check_encoding(encoded)?;
    let decoded = percent_decode_str(encoded).decode_utf8().map_err(|_| PathError::InvalidUtf8)?;
    let names = || decoded.split('/').filter(|name| !name.is_empty());
    for (index, name) in names().enumerate() {
        check_name(name, index == 0, dotfiles)?;
    }
    if decoded.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    let is_directory = decoded.is_empty() || decoded.ends_with('/');
    let relative = if decoded.contains("//") {
        Cow::Owned(names().collect::<Vec<_>>().join("/"))
    } else {
        match decoded {
            Cow::Borrowed(path) => Cow::Borrowed(without_outer_slashes(path)),
            Cow::Owned(path) => Cow::Owned(without_outer_slashes(&path).to_owned()),
        }
    };
    Ok(TargetPath { relative, is_directory, query })
}

/// The path of a target, still encoded, and its query. An empty path stands for `/`.
fn split(target: &str) -> Result<(&str, Option<&str>), PathError> {
    let path = if target.starts_with('/') { target } else { path_after_authority(target)? };
    if path.contains('#') {
        return Err(PathError::InvalidForm);
    }
    Ok(match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    })
}

/// What stands behind the host of a URL (RFC 9112, section 3.2.2).
fn path_after_authority(target: &str) -> Result<&str, PathError> {
    let scheme = |scheme: &str| {
        let head = target.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then(|| &target[scheme.len()..])
    };
    let rest = scheme("http://").or_else(|| scheme("https://")).ok_or(PathError::InvalidForm)?;
    match rest.find(['/', '?', '#']).unwrap_or(rest.len()) {
        0 => Err(PathError::InvalidForm),
        end => Ok(&rest[end..]),
    }
}

/// Whether every `%` has its digits, and none stands for a slash, which decoding would make one between names.
fn check_encoding(encoded: &str) -> Result<(), PathError> {
    for digits in digits(encoded) {
        if digits?.eq_ignore_ascii_case("2f") {
            return Err(PathError::EncodedSlash);
        }
    }
    Ok(())
}

/// The two digits behind each `%`.
fn digits(encoded: &str) -> impl Iterator<Item = Result<&str, PathError>> {
    encoded.split('%').skip(1).map(|behind| {
        let digits = behind.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        digits.ok_or(PathError::InvalidPercentEncoding)
    })
}

/// Whether a file of this name may be served; `at_top` if it lies in the served folder itself.
pub(super) fn check_name(name: &str, at_top: bool, dotfiles: Dotfiles) -> Result<(), PathError> {
    if matches!(name, "." | "..") {
        return Err(PathError::DotSegment);
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(PathError::ControlByte);
    }
    if name.contains('\\') {
        return Err(PathError::Backslash);
    }
    let is_well_known = at_top && name == WELL_KNOWN;
    if dotfiles == Dotfiles::Hide && name.starts_with('.') && !is_well_known {
        return Err(PathError::Hidden);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(PathError::TooLong);
    }
    Ok(())
}

fn without_outer_slashes(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path)
}

#[cfg(test)]
mod tests;
