//! Content negotiation for precompressed variants (RFC 9110, section 12.5.3).
//!
//! A variant is a file in the same directory: `app.js.br`, `app.js.zst` and `app.js.gz` are variants of `app.js`.
//! Codings with equal weight are preferred in this order, usually from the smallest result to the largest; the
//! uncompressed file comes last.

use std::cmp::Reverse;

use super::fields::FieldLines;
use crate::h1::trim;

/// Content coding of a precompressed file.
///
/// ```
/// use anello_http::files::negotiate::Coding;
///
/// assert_eq!((Coding::Gzip.token(), Coding::Gzip.suffix()), ("gzip", ".gz"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Coding {
    /// Brotli (RFC 7932).
    Brotli,
    /// Zstandard (RFC 8878).
    Zstandard,
    /// gzip (RFC 1952).
    Gzip,
}

impl Coding {
    /// All codings, in order of preference.
    ///
    /// ```
    /// use anello_http::files::negotiate::Coding;
    ///
    /// let variants = Coding::ALL.map(|coding| format!("app.js{}", coding.suffix()));
    /// assert_eq!(variants, ["app.js.br", "app.js.zst", "app.js.gz"]);
    /// ```
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstandard, Self::Gzip];

    /// Returns the `Content-Encoding` value.
    ///
    /// ```
    /// use anello_http::files::negotiate::Coding;
    ///
    /// assert_eq!(Coding::Brotli.token(), "br");
    /// ```
    pub fn token(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Returns the suffix that is appended to the file name.
    ///
    /// ```
    /// use anello_http::files::negotiate::Coding;
    ///
    /// assert_eq!(Coding::Zstandard.suffix(), ".zst");
    /// ```
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstandard => ".zst",
            Self::Gzip => ".gz",
        }
    }
}

/// Set of content codings, for example the variants of a file.
///
/// ```
/// use anello_http::files::FileOptions;
/// use anello_http::files::negotiate::{Coding, Codings};
///
/// let precompressed = Codings::NONE.with(Coding::Gzip).with(Coding::Brotli);
/// let options = FileOptions::default().precompressed(precompressed);
/// assert!(options.precompressed.contains(Coding::Gzip));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings {
    bits: u8,
}

impl Codings {
    /// The empty set.
    ///
    /// ```
    /// use anello_http::files::negotiate::Codings;
    ///
    /// assert!(Codings::NONE.is_empty());
    /// assert_eq!(Codings::NONE, Codings::default());
    /// ```
    pub const NONE: Self = Self { bits: 0 };

    /// All codings.
    ///
    /// ```
    /// use anello_http::files::negotiate::{Coding, Codings};
    ///
    /// assert!(Coding::ALL.into_iter().all(|coding| Codings::ALL.contains(coding)));
    /// ```
    pub const ALL: Self = Self { bits: 0b111 };

    /// Returns the set with `coding` added.
    ///
    /// ```
    /// use anello_http::files::negotiate::{Coding, Codings};
    ///
    /// const GZIP: Codings = Codings::NONE.with(Coding::Gzip);
    /// assert!(GZIP.contains(Coding::Gzip) && !GZIP.contains(Coding::Brotli));
    /// ```
    #[must_use]
    pub const fn with(self, coding: Coding) -> Self {
        Self { bits: self.bits | (1 << coding as u8) }
    }

    /// Returns `true` if the set contains `coding`.
    ///
    /// ```
    /// use anello_http::files::negotiate::{Coding, Codings};
    ///
    /// assert!(Codings::ALL.contains(Coding::Brotli));
    /// assert!(!Codings::NONE.contains(Coding::Brotli));
    /// ```
    pub const fn contains(self, coding: Coding) -> bool {
        self.bits & (1 << coding as u8) != 0
    }

    /// Returns `true` if the set is empty.
    ///
    /// ```
    /// use anello_http::files::negotiate::{Coding, Codings};
    ///
    /// assert!(Codings::NONE.is_empty());
    /// assert!(!Codings::NONE.with(Coding::Gzip).is_empty());
    /// ```
    pub const fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// Returns the codings in order of preference.
    ///
    /// ```
    /// use anello_http::files::negotiate::{Coding, Codings};
    ///
    /// let codings: Codings = [Coding::Gzip, Coding::Brotli].into_iter().collect();
    /// assert_eq!(codings.iter().collect::<Vec<_>>(), [Coding::Brotli, Coding::Gzip]);
    /// ```
    pub fn iter(self) -> impl Iterator<Item = Coding> {
        Coding::ALL.into_iter().filter(move |&coding| self.contains(coding))
    }
}

impl FromIterator<Coding> for Codings {
    fn from_iter<I: IntoIterator<Item = Coding>>(codings: I) -> Self {
        codings.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Result of content negotiation.
///
/// ```
/// use anello_http::files::fields::FieldLines;
/// use anello_http::files::negotiate::{Choice, Coding, Codings, negotiate};
///
/// let choice = |accept_encoding: &'static str| {
///     negotiate(&FieldLines::from_iter([accept_encoding.as_bytes()]), Codings::NONE.with(Coding::Gzip))
/// };
/// assert_eq!(choice("gzip, br"), Choice::Encoded(Coding::Gzip));
/// assert_eq!(choice("br"), Choice::Identity);
/// assert_eq!(choice("br, identity;q=0"), Choice::NotAcceptable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The uncompressed file, without `Content-Encoding`.
    Identity,
    /// The variant with this coding.
    Encoded(Coding),
    /// No representation is acceptable: respond with 406. Happens only if the client explicitly excludes the
    /// uncompressed file (`identity;q=0` or `*;q=0`).
    NotAcceptable,
}

/// Selects a representation of a file for a request with these `Accept-Encoding` lines. Without the field, the
/// uncompressed file is selected. A file without variants is not negotiated: the uncompressed file is selected
/// regardless of the field.
///
/// ```
/// use anello_http::files::fields::FieldLines;
/// use anello_http::files::negotiate::{Choice, Coding, Codings, negotiate};
/// let lines: FieldLines<'_> = [&b"gzip, deflate, br"[..]].into_iter().collect();
/// assert_eq!(negotiate(&lines, Codings::ALL), Choice::Encoded(Coding::Brotli));
/// ```
#[inline]
pub fn negotiate(accept_encoding: &FieldLines<'_>, variants: Codings) -> Choice {
    if variants.is_empty() {
        return Choice::Identity;
    }
    if accept_encoding.is_present() { choose(accept_encoding, variants) } else { Choice::Identity }
}

fn choose(accept_encoding: &FieldLines<'_>, variants: Codings) -> Choice {
    let mut codings = [None; Coding::ALL.len()];
    // The wildcard `*` stands for everything that is not listed.
    let (mut identity, mut wildcard) = (None, None);
    for (token, quality) in weighted(accept_encoding) {
        let is = |name: &str| token.eq_ignore_ascii_case(name.as_bytes());
        let slot = match Coding::ALL.into_iter().find(|coding| is(coding.token())) {
            Some(coding) => &mut codings[coding as usize],
            // Alias of `gzip` (RFC 9110, section 8.4.1.3).
            None if is("x-gzip") => &mut codings[Coding::Gzip as usize],
            None if is("identity") => &mut identity,
            None if is("*") => &mut wildcard,
            None => continue,
        };
        // If an element is listed more than once, the last weight applies.
        *slot = Some(quality);
    }
    // A coding is not acceptable unless it is listed or covered by the wildcard.
    let quality_of = |coding: Coding| codings[coding as usize].or(wildcard).unwrap_or(0);
    let acceptable = variants.iter().filter(|&coding| quality_of(coding) > 0);
    let best = acceptable.min_by_key(|&coding| Reverse(quality_of(coding)));
    match (best, identity.or(wildcard)) {
        // If the uncompressed file has no weight, it is acceptable, but every acceptable coding is preferred to it.
        (Some(coding), identity) if identity.is_none_or(|identity| quality_of(coding) >= identity) => {
            Choice::Encoded(coding)
        }
        (None, Some(0)) => Choice::NotAcceptable,
        _ => Choice::Identity,
    }
}

/// Quality value in thousandths: 0 means "not acceptable", 1000 is the highest preference.
pub(super) type Quality = u16;

/// Returns the members of a list such as `br, gzip;q=0.8, *;q=0`, without parameters, and their weights (RFC 9110,
/// section 12.4.2). Empty members and members with a malformed weight are skipped, because their meaning is unknown.
pub(super) fn weighted<'a>(lines: &FieldLines<'a>) -> impl Iterator<Item = (&'a [u8], Quality)> {
    lines.iter().flat_map(|line| line.split(|&byte| byte == b',')).filter_map(|member| {
        let mut parts = member.split(|&byte| byte == b';').map(trim);
        let token = parts.next().filter(|token| !token.is_empty())?;
        let weight = parts.find_map(|parameter| match parameter {
            [b'q' | b'Q', b'=', weight @ ..] => Some(parse_weight(weight)),
            _ => None,
        });
        // A member without a weight has the highest preference.
        Some((token, weight.unwrap_or(Some(1000))?))
    })
}

/// Parses `0` or `1` with up to three decimals. Returns `None` for other input and values above 1.
fn parse_weight(weight: &[u8]) -> Option<Quality> {
    let (integer, decimals) = match weight {
        [integer @ (b'0' | b'1')] => (integer, &[][..]),
        [integer @ (b'0' | b'1'), b'.', decimals @ ..] if decimals.len() <= 3 => (integer, decimals),
        _ => return None,
    };
    let mut quality = Quality::from(integer - b'0') * 1000;
    let mut unit = 100;
    for decimal in decimals {
        quality += decimal.is_ascii_digit().then(|| Quality::from(decimal - b'0'))? * unit;
        unit /= 10;
    }
    (quality <= 1000).then_some(quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighted_text(lines: &[&'static str]) -> Vec<(&'static str, Quality)> {
        let lines: FieldLines<'static> = lines.iter().map(|line| line.as_bytes()).collect();
        let text = |(token, quality)| (std::str::from_utf8(token).unwrap(), quality);
        weighted(&lines).map(text).collect()
    }

    #[test]
    fn members_have_their_weights() {
        assert_eq!(
            weighted_text(&["br, gzip;q=0.8 ,*;q=0", "a;Q=1.000;b=c, d ; x=y ; q=0.05,e;q=1."]),
            [("br", 1000), ("gzip", 800), ("*", 0), ("a", 1000), ("d", 50), ("e", 1000)]
        );
    }

    #[test]
    fn malformed_members_are_skipped() {
        let malformed = "a;q=,b;q=2,c;q=1.001,d;q=0.0001,e;q=-1,f;q=.5,g;q=0,5,h;q=0.x,;q=1,, ,i;q=0.5 x";
        assert_eq!(weighted_text(&[malformed]), [("g", 0), ("5", 1000)]);
        assert!(weighted_text(&[]).is_empty() && weighted_text(&[""]).is_empty());
    }
}
