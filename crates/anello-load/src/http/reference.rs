//! The right answer of each path: the first that was whole, or what was expected from the beginning.
//!
//! One response of a path is kept, and the others are compared with it as they come. Of those that come before it is
//! whole a digest is remembered and not the body, so that the memory of a load does not grow with its connections.
//!
//! ```text
//!                      nobody keeps one          whole, and like the first
//!   NotBegun ─────────► Kept ─────────────────────────────────────────────► body known
//!      │  │                │ too long
//!      │  │                ▼
//!      │  └──────────── Digest   (somebody keeps one, or it is known to be too long)
//!      └─────────────── Pieces   (the body is known)
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flate2::Crc;

/// Longest body that is kept.
const LONGEST_KEPT_BYTES: usize = 64 << 20;

/// The right answers of all paths, shared by all threads.
pub(crate) type References = Arc<[Reference]>;

/// The right answer of one path, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    /// Of the first body that was whole.
    digest: OnceLock<Digest>,
    body: OnceLock<Bytes>,
    /// A response is kept to become the body.
    is_being_kept: AtomicBool,
}

/// What is remembered of a body that is not kept. Tells accidents apart, not attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    bytes: u64,
    crc32: u32,
}

/// What a whole body was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Right,
    /// That many bytes would have been right.
    OtherLength(u64),
    OtherBytes,
}

/// A body on its way, beside the right one.
#[derive(Debug, Default)]
pub(super) enum Comparison {
    #[default]
    NotBegun,
    Pieces {
        bytes: u64,
        differ: bool,
    },
    Kept(Kept),
    Digest {
        bytes: u64,
        crc: Crc,
    },
}

/// A body that is kept, to be compared with.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    references: References,
    page: usize,
}

impl Reference {
    /// One that is known from the beginning.
    pub fn expected(body: Bytes) -> Self {
        let digest = Digest::of(&body);
        Self {
            digest: OnceLock::from(digest),
            body: OnceLock::from(body),
            is_being_kept: AtomicBool::new(false),
        }
    }

    /// Whether the right body is known to be longer than any that is kept.
    fn is_too_long(&self) -> bool {
        self.digest.get().is_some_and(|right| right.bytes > LONGEST_KEPT_BYTES as u64)
    }

    /// What a body with this digest is. The first is right.
    fn judge(&self, digest: Digest) -> Judgement {
        let right = self.digest.get_or_init(|| digest);
        if digest.bytes != right.bytes {
            Judgement::OtherLength(right.bytes)
        } else if digest.crc32 != right.crc32 {
            Judgement::OtherBytes
        } else {
            Judgement::Right
        }
    }
}

impl Digest {
    fn of(body: &[u8]) -> Self {
        let mut crc = Crc::new();
        crc.update(body);
        Self { bytes: body.len() as u64, crc32: crc.sum() }
    }
}

impl Comparison {
    /// The next piece of the body.
    #[inline]
    pub fn piece(&mut self, references: &References, page: usize, data: &[u8]) {
        if let Self::NotBegun = self {
            *self = Self::begin(references, page);
        }
        match self {
            Self::Pieces { bytes, differ } => {
                let from = usize::try_from(*bytes).unwrap_or(usize::MAX);
                let to = from.saturating_add(data.len());
                *bytes += data.len() as u64;
                let right = references[page].body.get().map_or(&[][..], |body| &body[..]);
                // What is beyond the reference is a matter of length.
                *differ |=
                    (right.get(from..to.min(right.len()))).is_some_and(|right| *right != data[..right.len()]);
            }
            Self::Kept(kept) if kept.bytes.len() + data.len() > LONGEST_KEPT_BYTES => {
                let mut crc = Crc::new();
                crc.update(&kept.bytes);
                crc.update(data);
                *self = Self::Digest { bytes: (kept.bytes.len() + data.len()) as u64, crc };
            }
            Self::Kept(kept) => kept.bytes.extend_from_slice(data),
            Self::Digest { bytes, crc } => {
                *bytes += data.len() as u64;
                crc.update(data);
            }
            Self::NotBegun => {}
        }
    }

    fn begin(references: &References, page: usize) -> Self {
        let reference = &references[page];
        if reference.body.get().is_some() {
            Self::Pieces { bytes: 0, differ: false }
        } else if reference.is_too_long() || reference.is_being_kept.swap(true, Ordering::Relaxed) {
            Self::Digest { bytes: 0, crc: Crc::new() }
        } else {
            Self::Kept(Kept { bytes: Vec::new(), references: Arc::clone(references), page })
        }
    }

    /// The body is whole.
    #[inline]
    pub fn finish(self, references: &References, page: usize) -> Judgement {
        let reference = &references[page];
        match self {
            Self::Pieces { bytes, differ } => {
                let right = reference.body.get().map_or(0, |body| body.len() as u64);
                if bytes != right {
                    Judgement::OtherLength(right)
                } else if differ {
                    Judgement::OtherBytes
                } else {
                    Judgement::Right
                }
            }
            Self::Kept(mut kept) => {
                let judgement = reference.judge(Digest::of(&kept.bytes));
                if judgement == Judgement::Right {
                    // Another may have become it between our look at `body` and the claim to keep one.
                    reference.body.get_or_init(|| std::mem::take(&mut kept.bytes).into());
                }
                judgement
            }
            Self::Digest { bytes, crc } => reference.judge(Digest { bytes, crc32: crc.sum() }),
            Self::NotBegun => reference.judge(Digest::of(&[])),
        }
    }
}

impl Drop for Kept {
    /// Another one may be kept, where this one did not become the body: it was wrong, too long, or its connection broke.
    fn drop(&mut self) {
        self.references[self.page].is_being_kept.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> References {
        [Reference::default()].into()
    }

    fn body(references: &References, pieces: &[&[u8]]) -> Comparison {
        let mut comparison = Comparison::default();
        pieces.iter().for_each(|piece| comparison.piece(references, 0, piece));
        comparison
    }

    fn judged(references: &References, pieces: &[&[u8]]) -> Judgement {
        body(references, pieces).finish(references, 0)
    }

    #[test]
    fn the_first_whole_body_is_right_however_it_was_cut() {
        let references = unknown();
        assert_eq!(judged(&references, &[b"hel", b"lo"]), Judgement::Right);
        for (pieces, judgement) in [
            (&[&b"hello"[..]][..], Judgement::Right),
            (&[b"h", b"ello"], Judgement::Right),
            (&[b"h", b"allo"], Judgement::OtherBytes),
            (&[b"hell"], Judgement::OtherLength(5)),
            (&[b"hello", b"!"], Judgement::OtherLength(5)),
            (&[], Judgement::OtherLength(5)),
        ] {
            assert_eq!(judged(&references, pieces), judgement, "{pieces:?}");
        }
    }

    #[test]
    fn those_that_come_while_one_is_kept_are_judged_without_being_kept() {
        let references = unknown();
        let kept = body(&references, &[b"hel"]);
        assert!(matches!(kept, Comparison::Kept(_)));
        let other = body(&references, &[b"he", b"llo"]);
        assert!(matches!(other, Comparison::Digest { bytes: 5, .. }));
        assert_eq!(other.finish(&references, 0), Judgement::Right, "the first that is whole");
        assert_eq!(judged(&references, &[b"hallo"]), Judgement::OtherBytes);
        let mut kept = kept;
        kept.piece(&references, 0, b"p!");
        assert_eq!(kept.finish(&references, 0), Judgement::OtherBytes);
        assert!(references[0].body.get().is_none(), "what is wrong is not compared with");
        assert_eq!(judged(&references, &[b"hello"]), Judgement::Right, "another is kept");
        assert!(references[0].body.get().is_some());
    }

    #[test]
    fn when_the_connection_breaks_another_body_is_kept() {
        let references = unknown();
        drop(body(&references, &[b"hel"]));
        assert!(matches!(body(&references, &[b"h"]), Comparison::Kept(_)));
    }

    #[test]
    fn empty_bodies_are_compared_like_others() {
        let references = unknown();
        assert_eq!(judged(&references, &[]), Judgement::Right);
        assert_eq!(judged(&references, &[b"x"]), Judgement::OtherLength(0));
        assert_eq!(judged(&references, &[]), Judgement::Right);
    }

    #[test]
    fn what_is_too_long_to_be_kept_is_judged_by_its_digest() {
        let references = unknown();
        let piece = vec![7; LONGEST_KEPT_BYTES / 2 + 1];
        let long = body(&references, &[&piece, &piece]);
        assert!(matches!(long, Comparison::Digest { .. }));
        assert_eq!(long.finish(&references, 0), Judgement::Right);
        assert_eq!(judged(&references, &[&piece, &piece]), Judgement::Right);
        assert_eq!(judged(&references, &[&piece, &piece[1..], b"8"]), Judgement::OtherBytes);
    }
}
