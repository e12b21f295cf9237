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
const MAX_REFERENCE_BYTES: usize = 64 << 20;

/// The right answers of all paths, shared by all threads.
pub(crate) type References = Arc<[Reference]>;

/// The right answer of one path, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    /// Of the first body that was whole.
    digest: OnceLock<Digest>,
    body: OnceLock<Bytes>,
    /// A response is kept to become the body.
    is_being_recorded: AtomicBool,
}

/// What is remembered of a body that is not kept. Tells accidents apart, not attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    bytes: u64,
    crc32: u32,
}

/// What a whole body was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyMatch {
    Equal,
    /// That many bytes would have been right.
    LengthDiffers(u64),
    BytesDiffer,
}

/// A body on its way, beside the right one.
#[derive(Debug, Default)]
pub(super) enum Comparison {
    #[default]
    NotStarted,
    WithReference {
        bytes: u64,
        differ: bool,
    },
    Recording(RecordedBody),
    Digest {
        bytes: u64,
        crc: Crc,
    },
}

/// A body that is kept, to be compared with.
#[derive(Debug)]
pub(super) struct RecordedBody {
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
            is_being_recorded: AtomicBool::new(false),
        }
    }

    /// Whether the right body is known to be longer than any that is kept.
    fn is_too_long(&self) -> bool {
        self.digest.get().is_some_and(|expected| expected.bytes > MAX_REFERENCE_BYTES as u64)
    }

    /// What a body with this digest is. The first is right.
    fn compare_digest(&self, digest: Digest) -> BodyMatch {
        let expected = self.digest.get_or_init(|| digest);
        if digest.bytes != expected.bytes {
            BodyMatch::LengthDiffers(expected.bytes)
        } else if digest.crc32 != expected.crc32 {
            BodyMatch::BytesDiffer
        } else {
            BodyMatch::Equal
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
    pub fn update(&mut self, references: &References, page: usize, data: &[u8]) {
        if let Self::NotStarted = self {
            *self = Self::start(references, page);
        }
        match self {
            Self::WithReference { bytes, differ } => {
                let from = usize::try_from(*bytes).unwrap_or(usize::MAX);
                let to = from.saturating_add(data.len());
                *bytes += data.len() as u64;
                let expected = references[page].body.get().map_or(&[][..], |body| &body[..]);
                // What is beyond the reference is a matter of length.
                *differ |= (expected.get(from..to.min(expected.len())))
                    .is_some_and(|expected| *expected != data[..expected.len()]);
            }
            Self::Recording(recorded) if recorded.bytes.len() + data.len() > MAX_REFERENCE_BYTES => {
                let mut crc = Crc::new();
                crc.update(&recorded.bytes);
                crc.update(data);
                *self = Self::Digest { bytes: (recorded.bytes.len() + data.len()) as u64, crc };
            }
            Self::Recording(recorded) => recorded.bytes.extend_from_slice(data),
            Self::Digest { bytes, crc } => {
                *bytes += data.len() as u64;
                crc.update(data);
            }
            Self::NotStarted => {}
        }
    }

    fn start(references: &References, page: usize) -> Self {
        let reference = &references[page];
        if reference.body.get().is_some() {
            Self::WithReference { bytes: 0, differ: false }
        } else if reference.is_too_long() || reference.is_being_recorded.swap(true, Ordering::Relaxed) {
            Self::Digest { bytes: 0, crc: Crc::new() }
        } else {
            Self::Recording(RecordedBody { bytes: Vec::new(), references: Arc::clone(references), page })
        }
    }

    /// The body is whole.
    #[inline]
    pub fn finish(self, references: &References, page: usize) -> BodyMatch {
        let reference = &references[page];
        match self {
            Self::WithReference { bytes, differ } => {
                let expected = reference.body.get().map_or(0, |body| body.len() as u64);
                if bytes != expected {
                    BodyMatch::LengthDiffers(expected)
                } else if differ {
                    BodyMatch::BytesDiffer
                } else {
                    BodyMatch::Equal
                }
            }
            Self::Recording(mut recorded) => {
                let body_match = reference.compare_digest(Digest::of(&recorded.bytes));
                if body_match == BodyMatch::Equal {
                    // Another may have become it between our look at `body` and the claim to keep one.
                    reference.body.get_or_init(|| std::mem::take(&mut recorded.bytes).into());
                }
                body_match
            }
            Self::Digest { bytes, crc } => reference.compare_digest(Digest { bytes, crc32: crc.sum() }),
            Self::NotStarted => reference.compare_digest(Digest::of(&[])),
        }
    }
}

impl Drop for RecordedBody {
    /// Another one may be kept, where this one did not become the body: it was wrong, too long, or its connection broke.
    fn drop(&mut self) {
        self.references[self.page].is_being_recorded.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty_references() -> References {
        [Reference::default()].into()
    }

    fn body(references: &References, chunks: &[&[u8]]) -> Comparison {
        let mut comparison = Comparison::default();
        chunks.iter().for_each(|chunk| comparison.update(references, 0, chunk));
        comparison
    }

    fn compare(references: &References, chunks: &[&[u8]]) -> BodyMatch {
        body(references, chunks).finish(references, 0)
    }

    #[test]
    fn the_first_whole_body_is_right_however_it_was_cut() {
        let references = empty_references();
        assert_eq!(compare(&references, &[b"hel", b"lo"]), BodyMatch::Equal);
        for (chunks, body_match) in [
            (&[&b"hello"[..]][..], BodyMatch::Equal),
            (&[b"h", b"ello"], BodyMatch::Equal),
            (&[b"h", b"allo"], BodyMatch::BytesDiffer),
            (&[b"hell"], BodyMatch::LengthDiffers(5)),
            (&[b"hello", b"!"], BodyMatch::LengthDiffers(5)),
            (&[], BodyMatch::LengthDiffers(5)),
        ] {
            assert_eq!(compare(&references, chunks), body_match, "{chunks:?}");
        }
    }

    #[test]
    fn those_that_come_while_one_is_kept_are_judged_without_being_kept() {
        let references = empty_references();
        let recorded = body(&references, &[b"hel"]);
        assert!(matches!(recorded, Comparison::Recording(_)));
        let other = body(&references, &[b"he", b"llo"]);
        assert!(matches!(other, Comparison::Digest { bytes: 5, .. }));
        assert_eq!(other.finish(&references, 0), BodyMatch::Equal, "the first that is whole");
        assert_eq!(compare(&references, &[b"hallo"]), BodyMatch::BytesDiffer);
        let mut recorded = recorded;
        recorded.update(&references, 0, b"p!");
        assert_eq!(recorded.finish(&references, 0), BodyMatch::BytesDiffer);
        assert!(references[0].body.get().is_none(), "what is wrong is not compared with");
        assert_eq!(compare(&references, &[b"hello"]), BodyMatch::Equal, "another is kept");
        assert!(references[0].body.get().is_some());
    }

    #[test]
    fn when_the_connection_breaks_another_body_is_kept() {
        let references = empty_references();
        drop(body(&references, &[b"hel"]));
        assert!(matches!(body(&references, &[b"h"]), Comparison::Recording(_)));
    }

    #[test]
    fn empty_bodies_are_compared_like_others() {
        let references = empty_references();
        assert_eq!(compare(&references, &[]), BodyMatch::Equal);
        assert_eq!(compare(&references, &[b"x"]), BodyMatch::LengthDiffers(0));
        assert_eq!(compare(&references, &[]), BodyMatch::Equal);
    }

    #[test]
    fn what_is_too_long_to_be_kept_is_judged_by_its_digest() {
        let references = empty_references();
        let chunk = vec![7; MAX_REFERENCE_BYTES / 2 + 1];
        let long = body(&references, &[&chunk, &chunk]);
        assert!(matches!(long, Comparison::Digest { .. }));
        assert_eq!(long.finish(&references, 0), BodyMatch::Equal);
        assert_eq!(compare(&references, &[&chunk, &chunk]), BodyMatch::Equal);
        assert_eq!(compare(&references, &[&chunk, &chunk[1..], b"8"]), BodyMatch::BytesDiffer);
    }
}
