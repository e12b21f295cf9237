//! Content negotiation for precompressed variants (RFC 9110, section 12.5.3).
//!
//! A variant is a file in the same directory: `app.js.br`, `app.js.zst` and `app.js.gz` are variants of `app.js`.
//! Codings with equal weight are preferred in this order, usually from the smallest result to the largest; the
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

    /// Returns the `Content-Encoding` value.
    pub fn token(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Returns the suffix that is appended to the file name.
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
    pub const fn contains(self, coding: Coding) -> bool {
        self.bits & (1 << coding as u8) != 0
    }

    /// Returns `true` if the set is empty.
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

/// Weights from `Accept-Encoding`; `None` for codings that are not listed. If a coding is listed more than once, the
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

    /// Returns the weight of the uncompressed file. `None` means that it is acceptable but has no weight: every
    /// acceptable coding is then preferred.
    fn identity_quality(&self) -> Option<Quality> {
        self.identity.or(self.wildcard)
    }
}
