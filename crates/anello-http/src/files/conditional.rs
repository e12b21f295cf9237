//! Evaluation of preconditions (RFC 9110, section 13) for GET and HEAD requests.
//!
//! Preconditions are evaluated only if the response would otherwise be 200 or 206, not for missing files or redirects.
//! The order follows section 13.2.2:
//!
//! ```text
//!  If-Match ─────────────── none matches ──► 412
//!     or If-Unmodified-Since ─── modified ──► 412     (ignored if If-Match is present)
//!  If-None-Match ──────────── one matches ──► 304
//!     or If-Modified-Since ─── unmodified ──► 304     (ignored if If-None-Match is present)
//!  Range with If-Range ───────── no match ──► 200, the whole file
//! ```

use super::fields::{FieldLines, RequestFields};
use super::validator::{EntityTag, RequestTag, Validator};
use crate::h1::{HttpDate, trim};

/// Result of evaluating the preconditions of a request.
///
/// ```
/// # use anello_http::files::stamp::{FileStamp, Timestamp};
/// # use anello_http::files::validator::Validator;
/// use anello_http::files::conditional::{Outcome, evaluate};
/// use anello_http::files::fields::RequestFields;
/// # let stamp = FileStamp { size_bytes: 13, ..FileStamp::default() };
/// # let validator = Validator::of(&stamp, None, Timestamp { seconds: 60, nanoseconds: 0 });
///
/// let outcome = |name, value: &str| evaluate(&RequestFields::pick([(name, value.as_bytes())]), &validator);
/// assert_eq!(outcome("Accept", "*/*"), Outcome::Proceed);
/// assert_eq!(outcome("If-None-Match", validator.tag.as_str()), Outcome::NotModified);
/// assert_eq!(outcome("If-Match", "\"another\""), Outcome::PreconditionFailed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Respond as if the request had no preconditions.
    Proceed,
    /// The client has the current representation: respond with 304 and the same `ETag`, `Last-Modified`,
    /// `Cache-Control` and `Vary` as in a 200 response.
    NotModified,
    /// A precondition failed: respond with 412.
    PreconditionFailed,
}

/// Evaluates the preconditions of a GET or HEAD request against the validator of the selected variant.
///
/// ```
/// # use anello_http::files::stamp::{FileStamp, Timestamp};
/// # use anello_http::files::validator::Validator;
/// use anello_http::files::conditional::{Outcome, evaluate};
/// use anello_http::files::fields::RequestFields;
/// # let stamp = FileStamp { size_bytes: 13, ..FileStamp::default() };
/// # let validator = Validator::of(&stamp, None, Timestamp { seconds: 60, nanoseconds: 0 });
/// let fields = RequestFields::pick([("If-None-Match", validator.tag.as_str().as_bytes())]);
/// assert_eq!(evaluate(&fields, &validator), Outcome::NotModified);
/// ```
#[inline]
pub fn evaluate(fields: &RequestFields<'_>, validator: &Validator) -> Outcome {
    if fields.is_conditional() { evaluate_conditions(fields, validator) } else { Outcome::Proceed }
}

fn evaluate_conditions(fields: &RequestFields<'_>, validator: &Validator) -> Outcome {
    if fields.if_match.is_present() {
        if !any_tag_matches(&fields.if_match, &validator.tag, RequestTag::matches_strongly) {
            return Outcome::PreconditionFailed;
        }
    } else if was_modified_since(fields.if_unmodified_since, validator) == Some(true) {
        return Outcome::PreconditionFailed;
    }
    let is_current = if fields.if_none_match.is_present() {
        any_tag_matches(&fields.if_none_match, &validator.tag, RequestTag::matches_weakly)
    } else {
        was_modified_since(fields.if_modified_since, validator) == Some(false)
    };
    if is_current { Outcome::NotModified } else { Outcome::Proceed }
}

/// Returns the value of `Range`. Returns `None` if the request has no `Range`, or if `If-Range` does not match the
/// validator.
///
/// ```
/// # use anello_http::files::stamp::{FileStamp, Timestamp};
/// # use anello_http::files::validator::Validator;
/// use anello_http::files::conditional::applicable_range;
/// use anello_http::files::fields::RequestFields;
/// # let stamp = FileStamp { size_bytes: 13, ..FileStamp::default() };
/// # let validator = Validator::of(&stamp, None, Timestamp { seconds: 60, nanoseconds: 0 });
///
/// let range = ("Range", &b"bytes=0-4"[..]);
/// assert_eq!(applicable_range(&RequestFields::pick([range]), &validator), Some(range.1));
/// // The file has changed since the client received the first part.
/// let fields = RequestFields::pick([range, ("If-Range", b"\"old\"")]);
/// assert_eq!(applicable_range(&fields, &validator), None);
/// ```
#[inline]
pub fn applicable_range<'a>(fields: &RequestFields<'a>, validator: &Validator) -> Option<&'a [u8]> {
    fields.range.filter(|_| fields.if_range.is_none_or(|condition| if_range_matches(condition, validator)))
}

/// Returns `true` if `If-Range` matches the validator: an entity tag by strong comparison, or a date equal to
/// `Last-Modified` (RFC 9110, section 13.1.5). Every `Last-Modified` date that is sent is a strong validator (see
/// [`Validator`]).
fn if_range_matches(condition: &[u8], validator: &Validator) -> bool {
    let condition = trim(condition);
    match RequestTag::parse(condition) {
        Some((tag, rest)) => rest.is_empty() && tag.matches_strongly(&validator.tag),
        None => HttpDate::parse(condition).is_some_and(|date| validator.last_modified_seconds == Some(date)),
    }
}

/// Returns `true` if a tag in the list matches, or if the list is `*`. Malformed elements are skipped.
fn any_tag_matches<'a>(
    lines: &FieldLines<'a>,
    tag: &EntityTag,
    is_match: fn(&RequestTag<'a>, &EntityTag) -> bool,
) -> bool {
    lines.iter().any(|line| {
        let mut rest = trim(line);
        if rest == b"*" {
            return true;
        }
        while !rest.is_empty() {
            let (candidate, after) =
                RequestTag::parse(rest).map_or((None, rest), |(candidate, after)| (Some(candidate), after));
            let is_complete = matches!(trim(after), [] | [b',', ..]);
            if candidate.is_some_and(|candidate| is_complete && is_match(&candidate, tag)) {
                return true;
            }
            let comma = after.iter().position(|&byte| byte == b',');
            rest = comma.map_or(&[][..], |comma| trim(&after[comma + 1..]));
        }
        false
    })
}

/// Returns `None` if the date is missing or invalid, or if the validator has no date.
fn was_modified_since(date: Option<&[u8]>, validator: &Validator) -> Option<bool> {
    let date = HttpDate::parse(date?)?;
    Some(validator.last_modified_seconds? > date)
}
