//! Content negotiation for precompressed variants (RFC 9110, section 12.5.3).
//!
//! A variant is a file in the same directory: `app.js.br`, `app.js.zst` and `app.js.gz` are variants of `app.js`.
//! Codings with equal weight are preferred in this order, usually from the smallest to the largest result; the
//! uncompressed file comes last.

use super::fields::FieldLines;
use super::quality::{Quality, weighted};

/// Content coding of a precompressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstandard, Self::Gzip];

    /// Returns the value of `Content-Encoding`.
    #[must_use]
    pub fn token(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Returns the suffix that is appended to the file name.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstandard => ".zst",
            Self::Gzip => ".gz",
        }
    }
}

/// Set of content codings, for example the variants of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings {
    bits: u8,
}

impl Codings {
    /// The empty set.
    pub const NONE: Self = Self { bits: 0 };

    /// All codings.
    pub const ALL: Self = Self { bits: 0b111 };

    /// Returns the set with `coding` added.
    #[must_use]
    pub const fn with(self, coding: Coding) -> Self {
        Self { bits: self.bits | (1 << coding as u8) }
    }

    /// Returns `true` if the set contains `coding`.
    #[must_use]
    pub const fn contains(self, coding: Coding) -> bool {
        self.bits & (1 << coding as u8) != 0
    }

    /// Returns `true` if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// Returns the codings in order of preference.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The uncompressed file, without `Content-Encoding`.
    Identity,
    /// The variant with this coding.
    Encoded(Coding),
    /// No representation is acceptable: respond with 406. Requires that the client excludes the uncompressed file
    /// explicitly (`identity;q=0` or `*;q=0`).
    NotAcceptable,
}

/// Selects a representation of a file for a request with these lines of `Accept-Encoding`. Without the field, the
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
#[must_use]
pub fn negotiate(accept_encoding: &FieldLines<'_>, variants: Codings) -> Choice {
    if variants.is_empty() {
        return Choice::Identity;
    }
    if accept_encoding.is_present() { choose(accept_encoding, variants) } else { Choice::Identity }
}

fn choose(accept_encoding: &FieldLines<'_>, variants: Codings) -> Choice {
    let accepted = AcceptedCodings::parse(accept_encoding);
    let mut best = None;
    for coding in variants.iter() {
        let quality = accepted.coding_quality(coding);
        if quality > best.map_or(0, |(_, quality)| quality) {
            best = Some((coding, quality));
        }
    }
    match (best, accepted.identity_quality()) {
        (Some((coding, quality)), identity) if identity.is_none_or(|identity| quality >= identity) => {
            Choice::Encoded(coding)
        }
        (None, Some(0)) => Choice::NotAcceptable,
        _ => Choice::Identity,
    }
}

/// Weights in `Accept-Encoding`; `None` for codings that are not listed. If a coding is listed more than once, the
/// last weight applies.
#[derive(Default)]
struct AcceptedCodings {
    codings: [Option<Quality>; Coding::ALL.len()],
    identity: Option<Quality>,
    /// Weight of all codings that are not listed (`*`).
    wildcard: Option<Quality>,
}

impl AcceptedCodings {
    fn parse(accept_encoding: &FieldLines<'_>) -> Self {
        let mut accepted = Self::default();
        for (token, quality) in weighted(accept_encoding) {
            let is = |name: &str| token.eq_ignore_ascii_case(name.as_bytes());
            let slot = match Coding::ALL.into_iter().find(|coding| is(coding.token())) {
                Some(coding) => &mut accepted.codings[coding as usize],
                // Alias of `gzip` (RFC 9110, section 8.4.1.3).
                None if is("x-gzip") => &mut accepted.codings[Coding::Gzip as usize],
                None if is("identity") => &mut accepted.identity,
                None if is("*") => &mut accepted.wildcard,
                None => continue,
            };
            *slot = Some(quality);
        }
        accepted
    }

    /// Returns the weight of a coding. A coding is not acceptable unless it is listed or covered by `*`.
    fn coding_quality(&self, coding: Coding) -> Quality {
        self.codings[coding as usize].or(self.wildcard).unwrap_or(0)
    }

    /// Returns the weight of the uncompressed file. `None` means acceptable without a weight: every acceptable
    /// coding is then preferred.
    fn identity_quality(&self) -> Option<Quality> {
        self.identity.or(self.wildcard)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::Choice::{Encoded, Identity, NotAcceptable};
    use super::Coding::{Brotli, Gzip, Zstandard};
    use super::*;

    fn choice(accept_encoding: &str, variants: &[Coding]) -> Choice {
        let lines: FieldLines<'_> = [accept_encoding.as_bytes()].into_iter().collect();
        negotiate(&lines, variants.iter().copied().collect())
    }

    #[test]
    fn equal_weights_follow_preference_order() {
        const BROWSER: &str = "gzip, deflate, br, zstd";
        assert_eq!(choice(BROWSER, &[Gzip, Zstandard, Brotli]), Encoded(Brotli));
        assert_eq!(choice(BROWSER, &[Gzip, Zstandard]), Encoded(Zstandard));
        assert_eq!(choice(BROWSER, &[Gzip]), Encoded(Gzip));
        assert_eq!(choice("gzip, deflate", &[Brotli, Zstandard]), Identity);
    }

    #[test]
    fn highest_weight_is_selected() {
        let all = &Coding::ALL;
        let cases = [
            ("br;q=0.5, gzip;q=0.8", Encoded(Gzip)),
            ("br;q=0.5, zstd;q=0.501, gzip;q=0.5", Encoded(Zstandard)),
            ("br;q=0, gzip;q=0.001", Encoded(Gzip)),
            ("BR;Q=0.1, GZIP;q=0", Encoded(Brotli)),
            ("x-gzip", Encoded(Gzip)),
            ("*", Encoded(Brotli)),
            ("*;q=0.5, br;q=0", Encoded(Zstandard)),
            ("gzip;q=0.2, *;q=0.1", Encoded(Gzip)),
            ("br;q=0.2, *", Encoded(Zstandard)),
            ("deflate, *;q=0", NotAcceptable),
            ("*;q=0, gzip;q=0.1", Encoded(Gzip)),
            ("*;q=0", NotAcceptable),
            ("*;q=0, identity", Identity),
            ("identity", Identity),
            ("identity, gzip;q=0.9", Identity),
            ("identity;q=0.9, gzip;q=0.9", Encoded(Gzip)),
            ("identity;q=0.5, *;q=0.4", Identity),
            ("identity;q=0", NotAcceptable),
            ("identity;q=0, br", Encoded(Brotli)),
            ("identity;q=0, *", Encoded(Brotli)),
            ("gzip;q=0, br;q=0, zstd;q=0", Identity),
            ("gzip;q=0, br;q=0, zstd;q=0, identity;q=0", NotAcceptable),
            ("", Identity),
            ("nonsense", Identity),
            ("gzip;q=2", Identity),
            ("gzip;q=1;q=0", Encoded(Gzip)),
        ];
        for (accept_encoding, expected) in cases {
            assert_eq!(choice(accept_encoding, all), expected, "{accept_encoding}");
        }
        assert_eq!(
            choice("gzip;q=0.1, *;q=0.9", &[Gzip]),
            Identity,
            "the wildcard also covers the uncompressed file"
        );
    }

    #[test]
    fn multiple_lines_form_one_list() {
        let lines: FieldLines<'_> = [&b"gzip;q=0.5"[..], b"br"].into_iter().collect();
        assert_eq!(negotiate(&lines, Codings::ALL), Encoded(Brotli));
    }

    #[test]
    fn file_without_variants_is_not_negotiated() {
        let none = FieldLines::default();
        assert_eq!(negotiate(&none, Codings::ALL), Identity);
        let nothing_acceptable: FieldLines<'_> = [&b"*;q=0"[..]].into_iter().collect();
        assert_eq!(negotiate(&nothing_acceptable, Codings::NONE), Identity);
        assert_eq!(negotiate(&nothing_acceptable, Codings::NONE.with(Gzip)), NotAcceptable);
    }

    #[test]
    fn coding_set_contains_inserted_codings() {
        assert_eq!(Coding::ALL.into_iter().collect::<Codings>(), Codings::ALL);
        let some = Codings::NONE.with(Gzip).with(Brotli);
        assert_eq!(some.iter().collect::<Vec<_>>(), [Brotli, Gzip]);
        assert!(!some.contains(Zstandard) && Codings::NONE.is_empty() && !some.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn selected_coding_exists_and_is_accepted(
            members in prop::collection::vec(
                (select(vec!["br", "zstd", "gzip", "identity", "*", "deflate"]), 0..=1000_u16),
                0..6,
            ),
            bits in 0..8_u8,
        ) {
            let text: Vec<_> =
                members.iter().map(|(token, q)| format!("{token};q={}.{:03}", q / 1000, q % 1000)).collect();
            let weight = |name: &str| members.iter().rev().find(|(token, _)| *token == name).map(|(_, q)| *q);
            let variants = Codings { bits };
            let line = text.join(",");
            let lines: FieldLines<'_> = [line.as_bytes()].into_iter().collect();
            let identity = weight("identity").or(weight("*"));
            match negotiate(&lines, variants) {
                Encoded(coding) => {
                    prop_assert!(variants.contains(coding));
                    prop_assert!(weight(coding.token()).or(weight("*")).unwrap_or(0) > 0);
                }
                Identity => prop_assert!(variants.is_empty() || identity != Some(0)),
                NotAcceptable => prop_assert!(!variants.is_empty() && identity == Some(0)),
            }
        }
    }
}
