//! Request header fields that are relevant for files, extracted in one pass.

/// Request header fields that are relevant for files. Values have no leading or trailing whitespace.
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
    /// `If-Match` lines.
    pub if_match: FieldLines<'a>,
    /// `If-None-Match` lines.
    pub if_none_match: FieldLines<'a>,
    /// Value of `If-Modified-Since`.
    pub if_modified_since: Option<&'a [u8]>,
    /// Value of `If-Unmodified-Since`.
    pub if_unmodified_since: Option<&'a [u8]>,
    /// Value of `If-Range`.
    pub if_range: Option<&'a [u8]>,
    /// Value of `Range`.
    pub range: Option<&'a [u8]>,
    /// `Accept-Encoding` lines.
    pub accept_encoding: FieldLines<'a>,
    /// `Accept` lines.
    pub accept: FieldLines<'a>,
}

impl<'a> RequestFields<'a> {
    /// Extracts the fields from an iterator of names and values. Names are compared case-insensitively. Multiple lines
    /// of a list field are kept in order; memory is allocated only for the second and subsequent lines. RFC 9110 does
    /// not allow a singleton field to occur more than once. If one does, its extracted value is empty, which no
    /// evaluation accepts.
    ///
    /// ```
    /// use anello_http::files::fields::RequestFields;
    ///
    /// let lines: [(&str, &[u8]); 3] =
    ///     [("Accept", b"text/html"), ("ACCEPT", b"application/json"), ("Cookie", b"a=b")];
    /// let fields = RequestFields::pick(lines);
    /// assert_eq!(fields.accept.iter().collect::<Vec<_>>(), [&b"text/html"[..], b"application/json"]);
    /// ```
    #[inline]
    pub fn pick<N: AsRef<[u8]>>(fields: impl IntoIterator<Item = (N, &'a [u8])>) -> Self {
        let mut picked = Self::default();
        for (name, value) in fields {
            picked.store(name.as_ref(), value);
        }
        picked
    }

    /// Lengths of relevant names, as a bit set. Most requests from clients other than browsers have no field names of
    /// these lengths.
    pub(super) const LENGTHS: u64 = 1 << 5 | 1 << 6 | 1 << 8 | 1 << 13 | 1 << 15 | 1 << 17 | 1 << 19;

    /// Returns `true` if the request has a precondition. `If-Range` is not a precondition here: it only affects
    /// `Range`.
    ///
    /// ```
    /// use anello_http::files::fields::RequestFields;
    ///
    /// let fields = RequestFields::pick([("If-None-Match", &b"\"17\""[..])]);
    /// assert!(fields.is_conditional());
    /// ```
    pub fn is_conditional(&self) -> bool {
        self.if_none_match.is_present()
            || self.if_modified_since.is_some()
            || self.if_match.is_present()
            || self.if_unmodified_since.is_some()
    }

    /// Stores the value if the field is relevant. The length of the name rules out most other fields. Most clients
    /// capitalize names as in the standard, so the slower case-insensitive comparison comes second.
    #[inline]
    fn store(&mut self, name: &[u8], value: &'a [u8]) {
        let is =
            |expected: &str| name == expected.as_bytes() || name.eq_ignore_ascii_case(expected.as_bytes());
        match name.len() {
            5 if is("Range") => set_once(&mut self.range, value),
            6 if is("Accept") => self.accept.add(value),
            8 if is("If-Match") => self.if_match.add(value),
            8 if is("If-Range") => set_once(&mut self.if_range, value),
            13 if is("If-None-Match") => self.if_none_match.add(value),
            15 if is("Accept-Encoding") => self.accept_encoding.add(value),
            17 if is("If-Modified-Since") => set_once(&mut self.if_modified_since, value),
            19 if is("If-Unmodified-Since") => set_once(&mut self.if_unmodified_since, value),
            _ => {}
        }
    }
}

fn set_once<'a>(field: &mut Option<&'a [u8]>, value: &'a [u8]) {
    *field = Some(if field.is_some() { b"" } else { value });
}

/// The lines of a list field. Its value can be split across several lines (RFC 9110, section 5.3).
///
/// ```
/// use anello_http::files::fields::FieldLines;
///
/// let lines: FieldLines<'_> = [&b"gzip"[..], b"br"].into_iter().collect();
/// assert!(lines.is_present());
/// assert_eq!(lines.iter().count(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct FieldLines<'a> {
    first: Option<&'a [u8]>,
    /// The second and subsequent lines. Usually empty, and an empty `Vec` does not allocate.
    further: Vec<&'a [u8]>,
}

impl<'a> FieldLines<'a> {
    /// Returns `true` if the request has the field.
    ///
    /// ```
    /// use anello_http::files::fields::{FieldLines, RequestFields};
    ///
    /// assert!(!FieldLines::default().is_present());
    /// assert!(RequestFields::pick([("Accept", &b"*/*"[..])]).accept.is_present());
    /// ```
    pub fn is_present(&self) -> bool {
        self.first.is_some()
    }

    /// Returns the values of the lines in order.
    ///
    /// ```
    /// use anello_http::files::fields::RequestFields;
    ///
    /// let fields = RequestFields::pick([("If-Match", &b"\"1\""[..]), ("If-Match", b"\"2\"")]);
    /// assert_eq!(fields.if_match.iter().collect::<Vec<_>>(), [b"\"1\"", b"\"2\""]);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.first.into_iter().chain(self.further.iter().copied())
    }

    fn add(&mut self, value: &'a [u8]) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.further.push(value);
        }
    }
}

impl<'a> FromIterator<&'a [u8]> for FieldLines<'a> {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(lines: I) -> Self {
        let mut field_lines = Self::default();
        lines.into_iter().for_each(|line| field_lines.add(line));
        field_lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_set_matches_field_names() {
        for bytes in 0..64 {
            let names = "Range Accept If-Match If-Range If-None-Match Accept-Encoding If-Modified-Since \
                If-Unmodified-Since";
            let is_relevant = names.split(' ').any(|name| name.len() == bytes);
            assert_eq!(RequestFields::LENGTHS >> bytes & 1 == 1, is_relevant, "{bytes}");
        }
    }
}
