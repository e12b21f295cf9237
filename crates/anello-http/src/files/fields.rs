//! The fields of a request that matter for a file, picked out in one pass over all of them.

/// The fields of a request that matter for a file. Values are as they came, without the spaces around them.
///
/// ```
/// use anello_http::files::fields::RequestFields;
/// let fields: [(&str, &[u8]); 3] = [("Host", b"a"), ("range", b"bytes=0-9"), ("Accept-Encoding", b"br, gzip")];
/// let picked = RequestFields::pick(fields);
/// assert_eq!(picked.range, Some(&b"bytes=0-9"[..]));
/// assert!(!picked.is_conditional());
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestFields<'a> {
    /// `If-Match`.
    pub if_match: FieldLines<'a>,
    /// `If-None-Match`.
    pub if_none_match: FieldLines<'a>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<&'a [u8]>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<&'a [u8]>,
    /// `If-Range`.
    pub if_range: Option<&'a [u8]>,
    /// `Range`.
    pub range: Option<&'a [u8]>,
    /// `Accept-Encoding`.
    pub accept_encoding: FieldLines<'a>,
    /// `Accept`.
    pub accept: FieldLines<'a>,
}

impl<'a> RequestFields<'a> {
    /// Picks from the fields of a request, given as name and value in any case and order. Lines of a list are kept
    /// together (memory is allocated only where there is more than one); another field that comes twice, which no
    /// client may send, counts as one with an empty value: nothing is found in it.
    #[inline]
    pub fn pick<N: AsRef<[u8]>>(fields: impl IntoIterator<Item = (N, &'a [u8])>) -> Self {
        let mut picked = Self::default();
        for (name, value) in fields {
            picked.take(name.as_ref(), value);
        }
        picked
    }

    /// The lengths of the names that are picked, each as a bit: most requests of programs have none of them.
    pub(super) const LENGTHS: u64 = 1 << 5 | 1 << 6 | 1 << 8 | 1 << 13 | 1 << 15 | 1 << 17 | 1 << 19;

    /// Whether there is a condition on whether to answer at all; `If-Range` is none.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.if_none_match.is_present()
            || self.if_modified_since.is_some()
            || self.if_match.is_present()
            || self.if_unmodified_since.is_some()
    }

    /// The length of a name tells most others apart with one comparison, and most clients write names as the standard
    /// does, which is compared in a few words instead of byte by byte.
    #[inline]
    fn take(&mut self, name: &[u8], value: &'a [u8]) {
        let is = |wanted: &str| name == wanted.as_bytes() || name.eq_ignore_ascii_case(wanted.as_bytes());
        match name.len() {
            5 if is("Range") => once(&mut self.range, value),
            6 if is("Accept") => self.accept.add(value),
            8 if is("If-Match") => self.if_match.add(value),
            8 if is("If-Range") => once(&mut self.if_range, value),
            13 if is("If-None-Match") => self.if_none_match.add(value),
            15 if is("Accept-Encoding") => self.accept_encoding.add(value),
            17 if is("If-Modified-Since") => once(&mut self.if_modified_since, value),
            19 if is("If-Unmodified-Since") => once(&mut self.if_unmodified_since, value),
            _ => {}
        }
    }
}

fn once<'a>(field: &mut Option<&'a [u8]>, value: &'a [u8]) {
    *field = Some(if field.is_some() { b"" } else { value });
}

/// The lines of a field whose value is a list: it may be spread over several of them (RFC 9110, section 5.3).
#[derive(Clone, Debug, Default)]
pub struct FieldLines<'a> {
    first: Option<&'a [u8]>,
    /// Hardly ever any: an empty one has no memory.
    others: Vec<&'a [u8]>,
}

impl<'a> FieldLines<'a> {
    /// Whether the request has the field.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.first.is_some()
    }

    /// The values of its lines, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.first.into_iter().chain(self.others.iter().copied())
    }

    fn add(&mut self, value: &'a [u8]) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.others.push(value);
        }
    }
}

impl<'a> FromIterator<&'a [u8]> for FieldLines<'a> {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(lines: I) -> Self {
        let mut all = Self::default();
        lines.into_iter().for_each(|line| all.add(line));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_in_any_case_among_others_of_its_length() {
        let fields: [(&str, &[u8]); 12] = [
            ("RANGE", b"1"),
            ("Accept", b"2"),
            ("Cookie", b"-"),
            ("if-match", b"4"),
            ("If-Range", b"5"),
            ("If-None-Match", b"6"),
            ("Accept-Encoding", b"7"),
            ("Accept-Language", b"-"),
            ("If-Modified-Since", b"8"),
            ("If-Unmodified-Since", b"9"),
            ("", b"-"),
            ("Accept-Encoding", b"7b"),
        ];
        let picked = RequestFields::pick(fields);
        assert_eq!(picked.range, Some(&b"1"[..]));
        assert_eq!(picked.accept.iter().collect::<Vec<_>>(), [b"2"]);
        assert_eq!(picked.if_match.iter().collect::<Vec<_>>(), [b"4"]);
        assert_eq!(picked.if_range, Some(&b"5"[..]));
        assert_eq!(picked.if_none_match.iter().collect::<Vec<_>>(), [b"6"]);
        assert_eq!(picked.accept_encoding.iter().collect::<Vec<_>>(), [&b"7"[..], b"7b"]);
        assert_eq!(picked.if_modified_since, Some(&b"8"[..]));
        assert_eq!(picked.if_unmodified_since, Some(&b"9"[..]));
    }

    #[test]
    fn the_lengths_are_those_of_the_names() {
        for bytes in 0..64 {
            let name = "x".repeat(bytes);
            let names = [
                "Range",
                "Accept",
                "If-Match",
                "If-Range",
                "If-None-Match",
                "Accept-Encoding",
                "If-Modified-Since",
                "If-Unmodified-Since",
            ];
            let is_one = names.iter().any(|known| known.len() == name.len());
            assert_eq!(RequestFields::LENGTHS >> bytes & 1 == 1, is_one, "{bytes}");
        }
    }

    #[test]
    fn a_field_that_may_come_once_and_comes_twice_says_nothing() {
        let twice: [(&str, &[u8]); 2] = [("Range", b"bytes=0-1"), ("Range", b"bytes=2-3")];
        assert_eq!(RequestFields::pick(twice).range, Some(&b""[..]));
    }

    #[test]
    fn conditions_are_noticed_and_an_if_range_is_none() {
        for name in ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"] {
            assert!(RequestFields::pick([(name, &b"x"[..])]).is_conditional(), "{name}");
        }
        let others = RequestFields::pick(["If-Range", "Range", "Accept"].map(|name| (name, &b"x"[..])));
        assert!(!others.is_conditional());
    }
}
