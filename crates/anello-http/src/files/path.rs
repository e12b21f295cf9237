//! Resolution of request targets to paths below the document root.
//!
//! An accepted path is a relative path of ordinary names. Joined to a directory, it can therefore lead out of that
//! directory only through a symbolic link. Percent-encoding is decoded exactly once: `%252e` is the name `%2e`. Clients
//! remove `.` and `..` segments before they send a request (RFC 3986, section 5.2.4), so a target with dot segments,
//! literal or encoded, is rejected and never resolved. Consecutive slashes count as one.
//!
//! Nearly all targets are plain ASCII without percent-encoding. For these, [`resolve`] examines each byte once and
//! allocates nothing.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Maximum length of a name in a path, in bytes: `NAME_MAX` on Linux.
///
/// ```
/// use anello_http::files::path::{Dotfiles, MAX_NAME_BYTES, PathError, resolve};
///
/// let name = "a".repeat(MAX_NAME_BYTES);
/// assert!(resolve(&format!("/{name}"), Dotfiles::Hide).is_ok());
/// assert_eq!(resolve(&format!("/{name}a"), Dotfiles::Hide), Err(PathError::TooLong));
/// ```
pub const MAX_NAME_BYTES: usize = 255;
/// Maximum length of a path, in bytes: `PATH_MAX` on Linux, without the terminating NUL.
///
/// ```
/// use anello_http::files::path::{Dotfiles, MAX_PATH_BYTES, PathError, resolve};
///
/// let target = "/a".repeat(MAX_PATH_BYTES);
/// assert_eq!(resolve(&target, Dotfiles::Hide), Err(PathError::TooLong));
/// ```
pub const MAX_PATH_BYTES: usize = 4095;
/// Reserved for well-known URIs (RFC 8615). It is served even though its name starts with a dot.
const WELL_KNOWN: &str = ".well-known";
/// Characters that are percent-encoded in a name: all except the unreserved characters of RFC 3986.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Slashes are not percent-encoded in a path.
const PATH: &AsciiSet = &NAME.remove(b'/');

/// Characters that are percent-encoded in a query, because RFC 3986 does not allow them (section 3.4). The percent sign
/// is excluded because the client has already used it to encode the query.
const QUERY: &AsciiSet = {
    const SET: AsciiSet = CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'[').add(b'\\');
    &SET.add(b']').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}')
};

/// Policy for hidden files, which are files whose path contains a name that starts with a dot.
///
/// ```
/// use anello_http::files::path::{Dotfiles, PathError, resolve};
///
/// assert_eq!(resolve("/.git/config", Dotfiles::Hide), Err(PathError::Hidden));
/// assert!(resolve("/.git/config", Dotfiles::Serve).is_ok());
/// assert!(resolve("/.well-known/security.txt", Dotfiles::Hide).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dotfiles {
    /// Treats hidden files as missing, except those below `.well-known` in the document root (RFC 8615). Dotfiles such
    /// as `.git`, `.env` and `.htpasswd` are often not meant to be public.
    #[default]
    Hide,
    /// Serves hidden files like other files.
    Serve,
}

/// Path below the document root that a request target resolves to.
///
/// ```
/// use anello_http::files::path::{Dotfiles, TargetPath, resolve};
///
/// let path: TargetPath<'_> = resolve("/docs/?page=2", Dotfiles::Hide)?;
/// assert_eq!((path.relative(), path.is_directory(), path.query()), ("docs", true, Some("page=2")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPath<'a> {
    relative: Cow<'a, str>,
    is_directory: bool,
    query: Option<&'a str>,
}

impl<'a> TargetPath<'a> {
    /// Returns the path relative to the document root: names separated by single slashes, without a leading or trailing
    /// slash. No name is empty, `.` or `..`. The path is empty for the document root itself.
    ///
    /// ```
    /// use anello_http::files::path::{Dotfiles, resolve};
    ///
    /// assert_eq!(resolve("//caf%C3%A9//menu.html", Dotfiles::Hide)?.relative(), "café/menu.html");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn relative(&self) -> &str {
        &self.relative
    }

    /// Returns `true` if the target ends with a slash. It then refers to a directory and does not match a file.
    ///
    /// ```
    /// use anello_http::files::path::{Dotfiles, resolve};
    ///
    /// assert!(resolve("/docs/", Dotfiles::Hide)?.is_directory());
    /// assert!(!resolve("/docs", Dotfiles::Hide)?.is_directory());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// Returns the part after the question mark, as the client encoded it.
    ///
    /// ```
    /// use anello_http::files::path::{Dotfiles, resolve};
    ///
    /// assert_eq!(resolve("/docs?page=%32", Dotfiles::Hide)?.query(), Some("page=%32"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn query(&self) -> Option<&'a str> {
        self.query
    }

    /// Returns `true` if the last path segment has no extension, as is usual for routes of a single-page application.
    /// If the server responded to a request for a missing asset (`app.js`) with the page of the application, the error
    /// would go unnoticed.
    ///
    /// ```
    /// use anello_http::files::path::{Dotfiles, resolve};
    ///
    /// assert!(resolve("/users/17", Dotfiles::Hide)?.has_no_extension());
    /// assert!(!resolve("/app.js", Dotfiles::Hide)?.has_no_extension());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn has_no_extension(&self) -> bool {
        self.relative.rsplit('/').next().is_none_or(|name| !name.contains('.'))
    }

    /// Returns the `Location` of a redirect to the same path with a trailing slash and the same query, for requests that
    /// name a directory without the slash. It starts with exactly one slash, so it cannot lead to another host, and
    /// contains only characters that RFC 3986 allows.
    ///
    /// ```
    /// use anello_http::files::path::{Dotfiles, resolve};
    ///
    /// let path = resolve("/caf%C3%A9?page=2", Dotfiles::Hide)?;
    /// assert_eq!(path.redirect_location(), "/caf%C3%A9/?page=2");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn redirect_location(&self) -> String {
        let mut location = match self.relative() {
            "" => "/".to_owned(),
            path => format!("/{}/", encoded_path(path)),
        };
        for (index, part) in self.query.into_iter().flat_map(|query| query.split('%')).enumerate() {
            let is_encoded = matches!(part.as_bytes(), [high, low, ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit());
            location += if index == 0 {
                "?"
            } else if is_encoded {
                "%"
            } else {
                "%25"
            };
            location.extend(utf8_percent_encode(part, QUERY));
        }
        location
    }
}

pub(super) fn encoded_name(name: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(name, NAME)
}

pub(super) fn encoded_path(path: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(path, PATH)
}

/// Reason why a target does not resolve to a file. Ordinary clients cause no errors with status 400. For errors with
/// status 404, the response is the same as for a missing file.
///
/// ```
/// use anello_http::files::path::{Dotfiles, PathError, resolve};
///
/// assert_eq!(resolve("/100%", Dotfiles::Hide), Err(PathError::InvalidPercentEncoding));
/// assert_eq!(resolve("/a%2Fb", Dotfiles::Hide), Err(PathError::EncodedSlash));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The target is neither a path nor an `http` or `https` URL, or it contains a `#`.
    #[error("the target is neither a path that starts with a slash nor an http or https URL")]
    InvalidForm,
    /// A `%` is not followed by two hexadecimal digits.
    #[error("invalid percent-encoding: % must be followed by two hexadecimal digits (a literal % is %25)")]
    InvalidPercentEncoding,
    /// The decoded path is not valid UTF-8.
    #[error("the decoded path is not valid UTF-8")]
    InvalidUtf8,
    /// The path contains NUL or another control byte.
    #[error("the path contains a control character")]
    ControlByte,
    /// A name is `.` or `..`.
    #[error("the path contains a . or .. segment (resolve it before sending the request)")]
    DotSegment,
    /// A name contains an encoded slash, which file names cannot contain.
    #[error("a name in the path contains a slash")]
    EncodedSlash,
    /// A name contains a backslash, which some clients and tools treat as a slash.
    #[error("a name in the path contains a backslash")]
    Backslash,
    /// A name starts with a dot, and dotfiles are hidden.
    #[error("a name in the path starts with a dot")]
    Hidden,
    /// The path or a name in it is longer than Linux allows.
    #[error("the path or a name in it is too long")]
    TooLong,
}

impl PathError {
    /// Returns the status of the response: 400 or 404.
    ///
    /// ```
    /// use anello_http::files::path::PathError;
    ///
    /// assert_eq!(PathError::DotSegment.status(), 400);
    /// assert_eq!(PathError::Hidden.status(), 404);
    /// ```
    pub fn status(self) -> u16 {
        if matches!(self, Self::EncodedSlash | Self::Backslash | Self::Hidden | Self::TooLong) {
            404
        } else {
            400
        }
    }
}

/// Resolves the target in a request line: a path (`/a/b?query`) or a URL (`http://host/a/b`). The caller must check the
/// host of a URL.
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
/// Returns an error if the target cannot refer to a served file.
#[inline]
pub fn resolve(target: &str, dotfiles: Dotfiles) -> Result<TargetPath<'_>, PathError> {
    resolve_fast(target).map_or_else(|| resolve_slow(target, dotfiles), Ok)
}

/// Resolves a target without copying. Handles targets without percent-encoding, without names that start with a
/// dot, and without names that could exceed the limits. Returns `None` for all others, which need [`resolve_slow`].
#[inline]
pub(super) fn resolve_fast(target: &str) -> Option<TargetPath<'_>> {
    let bytes = target.as_bytes();
    if bytes.first() != Some(&b'/') {
        return None;
    }
    let mut end = bytes.len();
    let mut after_slash = true;
    for (index, &byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            b'.' if !after_slash => {}
            b'/' if !after_slash => after_slash = true,
            b'?' => {
                end = index;
                break;
            }
            b'.' | b'/' | b'%' | b'#' | b'\\' => return None,
            b'!'..=b'~' => after_slash = false,
            _ => return None,
        }
    }
    if end > MAX_NAME_BYTES {
        return None;
    }
    let query = target.get(end + 1..);
    // The loop stops at the question mark, so check the query for `#` here.
    if query.is_some_and(|query| query.contains('#')) {
        return None;
    }
    let relative_end = if after_slash { end.saturating_sub(1).max(1) } else { end };
    Some(TargetPath { relative: Cow::Borrowed(&target[1..relative_end]), is_directory: after_slash, query })
}

#[cold]
fn resolve_slow(target: &str, dotfiles: Dotfiles) -> Result<TargetPath<'_>, PathError> {
    let (encoded, query) = split_query(target)?;
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
            Cow::Borrowed(path) => Cow::Borrowed(strip_outer_slashes(path)),
            Cow::Owned(path) => Cow::Owned(strip_outer_slashes(&path).to_owned()),
        }
    };
    Ok(TargetPath { relative, is_directory, query })
}

/// Returns `true` if a target can be a route of a single-page application: its last segment has no extension (see
/// [`TargetPath::has_no_extension`]). Names need not be valid file names.
///
/// An application may percent-encode arbitrary text as a name, for example `AC/DC`. A name can therefore contain a
/// slash or a backslash, or be too long for a file. All other checks still apply, and they treat an encoded slash or
/// backslash as a separator: `/..%2Fetc` and `/.git%5Cconfig` are not routes.
pub(super) fn may_be_spa_route(target: &str, dotfiles: Dotfiles) -> bool {
    let Ok((encoded, _)) = split_query(target) else { return false };
    if escape_digits(encoded).any(|digits| digits.is_err()) {
        return false;
    }
    let Ok(decoded) = percent_decode_str(encoded).decode_utf8() else { return false };
    let mut names = decoded.split(['/', '\\']).filter(|name| !name.is_empty()).enumerate();
    let names_are_allowed = names.all(|(index, name)| {
        matches!(check_name(name, index == 0, dotfiles), Ok(()) | Err(PathError::TooLong))
    });
    let last = encoded.rsplit('/').find(|name| !name.is_empty()).unwrap_or_default();
    names_are_allowed && percent_decode_str(last).all(|byte| byte != b'.')
}

/// Splits a target into the path, still encoded, and the query. An empty path stands for `/`.
fn split_query(target: &str) -> Result<(&str, Option<&str>), PathError> {
    let path = if target.starts_with('/') { target } else { path_after_authority(target)? };
    if path.contains('#') {
        return Err(PathError::InvalidForm);
    }
    Ok(path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query))))
}

fn path_after_authority(target: &str) -> Result<&str, PathError> {
    let strip_scheme = |scheme: &str| {
        let prefix = target.get(..scheme.len())?;
        prefix.eq_ignore_ascii_case(scheme).then(|| &target[scheme.len()..])
    };
    let rest = strip_scheme("http://").or_else(|| strip_scheme("https://")).ok_or(PathError::InvalidForm)?;
    match rest.find(['/', '?', '#']).unwrap_or(rest.len()) {
        0 => Err(PathError::InvalidForm),
        end => Ok(&rest[end..]),
    }
}

/// Checks that every `%` is followed by two hexadecimal digits and that no slash is encoded, because decoding it
/// would create a separator.
fn check_encoding(encoded: &str) -> Result<(), PathError> {
    for digits in escape_digits(encoded) {
        if digits?.eq_ignore_ascii_case("2f") {
            return Err(PathError::EncodedSlash);
        }
    }
    Ok(())
}

fn escape_digits(encoded: &str) -> impl Iterator<Item = Result<&str, PathError>> {
    encoded.split('%').skip(1).map(|rest| {
        let digits = rest.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        digits.ok_or(PathError::InvalidPercentEncoding)
    })
}

/// Checks that a file with this name may be served. `at_top` is `true` for names in the document root itself.
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
    if name.len() > MAX_NAME_BYTES { Err(PathError::TooLong) } else { Ok(()) }
}

fn strip_outer_slashes(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// Generates targets from fragments that attackers and clients use.
    fn targets() -> impl Strategy<Value = String> {
        const FRAGMENTS: &str = "/ // . .. ... a bc %2e %2E %2f %5c \\ %00 %0a %25 %252e ü %c3%bc %c0%ae %ff % %4 ? # \
            %20 .well-known http:// host * : \u{7f} a.b ~ \u{202e}";
        let fragments: Vec<_> = FRAGMENTS.split(' ').chain([" "]).collect();
        let targets =
            prop::collection::vec(select(fragments), 0..12).prop_map(|fragments| fragments.concat());
        prop_oneof![targets.clone().prop_map(|rest| format!("/{rest}")), targets, any::<String>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rejected_targets_are_spa_routes_only_for_invalid_names(target in targets(), serve_dotfiles in any::<bool>()) {
            let dotfiles = if serve_dotfiles { Dotfiles::Serve } else { Dotfiles::Hide };
            let is_spa_route = may_be_spa_route(&target, dotfiles);
            match resolve(&target, dotfiles) {
                Ok(path) => prop_assert_eq!(is_spa_route, path.has_no_extension()),
                Err(PathError::EncodedSlash | PathError::Backslash | PathError::TooLong) => {
                    let decoded = percent_decode_str(split_query(&target).unwrap().0).decode_utf8_lossy();
                    let has_dot_segment = decoded.split(['/', '\\']).any(|name| matches!(name, "." | ".."));
                    prop_assert!(!(is_spa_route && has_dot_segment));
                }
                Err(_) => prop_assert!(!is_spa_route),
            }
        }
    }
}
