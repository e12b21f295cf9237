//! Evaluation of preconditions (RFC 9110, section 13) for GET and HEAD requests.
//!
//! Preconditions are evaluated only if the response would otherwise be 200 or 206, not for missing files and
//! redirects. The order follows section 13.2.2:
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
#[must_use]
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
#[inline]
#[must_use]
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

/// Returns `true` if a tag in the list matches, or if the list is `*`. Malformed elements are skipped up to the
/// next comma.
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

/// Returns `true` if the file was modified after the date. Returns `None` if the date is missing or invalid, or if
/// the validator has no date.
fn was_modified_since(date: Option<&[u8]>, validator: &Validator) -> Option<bool> {
    let date = HttpDate::parse(date?)?;
    Some(validator.last_modified_seconds? > date)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Outcome::{NotModified, PreconditionFailed, Proceed};
    use super::*;
    use crate::files::stamp::{FileStamp, Timestamp};

    /// Modification time of the test file: 2026-09-21 14:13:20 UTC, a Monday.
    const MODIFIED: i64 = 1_790_000_000;
    const TAG: &str = "\"6ab13b80-0-d\"";
    const WEAK: &str = "W/\"6ab13b80-0-d\"";
    const MODIFIED_AT: &str = "Mon, 21 Sep 2026 14:13:20 GMT";
    const BEFORE: &str = "Mon, 21 Sep 2026 14:13:19 GMT";
    const AFTER: &str = "Mon, 21 Sep 2026 14:13:21 GMT";

    /// Validator of a file that was checked this long after its last change.
    fn validator_checked_after(after_nanoseconds: i64) -> Validator {
        let modified = Timestamp { seconds: MODIFIED, nanoseconds: 0 };
        let stamp = FileStamp { size_bytes: 13, modified, changed: modified, ..FileStamp::default() };
        let (seconds, nanoseconds) = (after_nanoseconds / 1_000_000_000, after_nanoseconds % 1_000_000_000);
        let now = Timestamp { seconds: MODIFIED + seconds, nanoseconds: nanoseconds as u32 };
        Validator::of(&stamp, None, now)
    }

    fn settled() -> Validator {
        validator_checked_after(60_000_000_000)
    }

    fn outcome_of(fields: &[(&str, &str)], validator: &Validator) -> Outcome {
        let fields = fields.iter().map(|&(name, value)| (name, value.as_bytes()));
        evaluate(&RequestFields::pick(fields), validator)
    }

    fn outcome(fields: &[(&str, &str)]) -> Outcome {
        outcome_of(fields, &settled())
    }

    #[test]
    fn test_validator_matches_constants() {
        assert_eq!(settled().tag.as_str(), TAG);
        assert_eq!(HttpDate::parse(MODIFIED_AT.as_bytes()), Some(MODIFIED as u64));
        assert_eq!(outcome(&[]), Proceed);
    }

    #[test]
    fn if_none_match_uses_weak_comparison() {
        let long = format!("{}{TAG}", "\"x\", ".repeat(1000));
        let matching = [
            TAG,
            WEAK,
            "*",
            " * ",
            "\"a\", \"6ab13b80-0-d\"",
            "\"a\",W/\"6ab13b80-0-d\" ,\"b\"",
            ",, \"6ab13b80-0-d\",",
            "\"a,b\", \"6ab13b80-0-d\"",
            "nonsense, \"6ab13b80-0-d\"",
            "\"\",\"6ab13b80-0-d\"",
            &long,
        ];
        for value in matching {
            assert_eq!(outcome(&[("If-None-Match", value)]), NotModified, "{value}");
        }
        let others = [
            "",
            "\"a\"",
            "6ab13b80-0-d",
            "\"6ab13b80-0-d",
            "\"6ab13b80-0-d\"x",
            "w/\"6ab13b80-0-d\"",
            "\"6AB13B80-0-D\"",
            "\"a\" \"6ab13b80-0-d\"",
            "*, \"a\"",
            "\"a,\"6ab13b80-0-d\"",
            "\"6ab13b80-0-d-br\"",
        ];
        for value in others {
            assert_eq!(outcome(&[("If-None-Match", value)]), Proceed, "{value}");
        }
        let spread = [("If-None-Match", "\"a\""), ("Host", "b"), ("if-none-match", TAG)];
        assert_eq!(outcome(&spread), NotModified, "lines form one list");
    }

    #[test]
    fn if_match_uses_strong_comparison() {
        for value in [TAG, "*", "\"a\", \"6ab13b80-0-d\""] {
            assert_eq!(outcome(&[("If-Match", value)]), Proceed, "{value}");
        }
        for value in [WEAK, "\"a\"", "", "nonsense"] {
            assert_eq!(outcome(&[("If-Match", value)]), PreconditionFailed, "{value}");
        }
        let unsettled = validator_checked_after(999_999_999);
        assert_eq!(outcome_of(&[("If-Match", TAG)], &unsettled), PreconditionFailed);
        assert_eq!(outcome_of(&[("If-Match", WEAK)], &unsettled), PreconditionFailed);
        assert_eq!(outcome_of(&[("If-None-Match", TAG)], &unsettled), NotModified);
    }

    #[test]
    fn dates_in_all_three_formats_are_compared_by_second() {
        assert_eq!(outcome(&[("If-Modified-Since", BEFORE)]), Proceed);
        assert_eq!(outcome(&[("If-Modified-Since", MODIFIED_AT)]), NotModified);
        assert_eq!(outcome(&[("If-Modified-Since", AFTER)]), NotModified);
        assert_eq!(outcome(&[("If-Modified-Since", "Monday, 21-Sep-26 14:13:20 GMT")]), NotModified);
        assert_eq!(outcome(&[("If-Modified-Since", "Mon Sep 21 14:13:20 2026")]), NotModified);
        assert_eq!(outcome(&[("If-Unmodified-Since", BEFORE)]), PreconditionFailed);
        assert_eq!(outcome(&[("If-Unmodified-Since", MODIFIED_AT)]), Proceed);
        assert_eq!(outcome(&[("If-Unmodified-Since", AFTER)]), Proceed);
    }

    #[test]
    fn invalid_dates_are_ignored() {
        let no_day = "Mon, 31 Feb 2026 14:13:20 GMT";
        for value in ["", "yesterday", "1790000000", no_day, "Mon, 21 Sep 2026 14:13:20", "\u{fe}"] {
            assert_eq!(outcome(&[("If-Modified-Since", value)]), Proceed, "{value}");
            assert_eq!(outcome(&[("If-Unmodified-Since", value)]), Proceed, "{value}");
        }
        let twice = [("If-Modified-Since", MODIFIED_AT), ("If-Modified-Since", MODIFIED_AT)];
        assert_eq!(outcome(&twice), Proceed);
    }

    #[test]
    fn tags_precede_dates_and_if_match_precedes_if_none_match() {
        let cases: [(&[(&str, &str)], Outcome); 8] = [
            (&[("If-Match", TAG), ("If-Unmodified-Since", BEFORE)], Proceed),
            (&[("If-Match", "\"a\""), ("If-Unmodified-Since", AFTER)], PreconditionFailed),
            (&[("If-None-Match", TAG), ("If-Modified-Since", BEFORE)], NotModified),
            (&[("If-None-Match", "\"a\""), ("If-Modified-Since", AFTER)], Proceed),
            (&[("If-Match", TAG), ("If-None-Match", TAG)], NotModified),
            (&[("If-Match", "\"a\""), ("If-None-Match", TAG)], PreconditionFailed),
            (&[("If-Unmodified-Since", BEFORE), ("If-None-Match", TAG)], PreconditionFailed),
            (&[("If-Unmodified-Since", AFTER), ("If-Modified-Since", AFTER)], NotModified),
        ];
        for (fields, expected) in cases {
            assert_eq!(outcome(fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn dates_are_ignored_without_last_modified() {
        let unsettled = validator_checked_after(0);
        assert_eq!(outcome_of(&[("If-Modified-Since", AFTER)], &unsettled), Proceed);
        assert_eq!(outcome_of(&[("If-Unmodified-Since", BEFORE)], &unsettled), Proceed);
    }

    fn range_of<'a>(if_range: &'a str, validator: &Validator) -> Option<&'a [u8]> {
        let fields = [("Range", &b"bytes=0-1"[..]), ("If-Range", if_range.as_bytes())];
        applicable_range(&RequestFields::pick(fields), validator)
    }

    #[test]
    fn range_applies_only_if_if_range_matches() {
        for value in [TAG, MODIFIED_AT, "Monday, 21-Sep-26 14:13:20 GMT"] {
            assert_eq!(range_of(value, &settled()), Some(&b"bytes=0-1"[..]), "{value}");
        }
        for value in ["", WEAK, "\"a\"", "*", BEFORE, AFTER, "\"6ab13b80-0-d\", \"a\"", "6ab13b80-0-d"] {
            assert_eq!(range_of(value, &settled()), None, "{value}");
        }
        let without = RequestFields::pick([("Range", &b"bytes=0-1"[..])]);
        assert_eq!(applicable_range(&without, &settled()), Some(&b"bytes=0-1"[..]));
        assert_eq!(applicable_range(&RequestFields::default(), &settled()), None);
    }

    #[test]
    fn if_range_never_matches_within_second_of_change() {
        for after_nanoseconds in [0, 1, 999_999_999] {
            for value in [TAG, WEAK, MODIFIED_AT] {
                assert_eq!(range_of(value, &validator_checked_after(after_nanoseconds)), None, "{value}");
            }
        }
        assert!(range_of(MODIFIED_AT, &validator_checked_after(1_000_000_000)).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_values_do_not_panic(value in any::<Vec<u8>>(), text in "[ ,*\"Wa/0-9MonSepGT:-]{0,60}") {
            for value in [&value[..], text.as_bytes()] {
                for name in ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"] {
                    let fields = RequestFields::pick([(name, value)]);
                    let outcome = evaluate(&fields, &settled());
                    prop_assert!(!name.contains("None") || outcome != PreconditionFailed);
                }
                prop_assert!(HttpDate::parse(value).is_none_or(|date| date < 253_402_300_800));
            }
        }

        #[test]
        fn tag_matches_at_every_list_position(
            before in prop::collection::vec("(W/)?\"[!#-~]{0,9}\"", 0..5),
            after in prop::collection::vec("(W/)?\"[!#-~]{0,9}\"", 0..5),
            comma in " {0,2},[ \t]{0,2}",
        ) {
            let mut tags = before;
            tags.push(TAG.to_owned());
            tags.extend(after);
            prop_assert_eq!(outcome(&[("If-None-Match", &tags.join(&comma))]), NotModified);
            prop_assert_eq!(outcome(&[("If-Match", &tags.join(&comma))]), Proceed);
        }
    }
}
