//! The reference body of each path: the expected body, or the first complete body.
//!
//! Bodies that arrive while the first one is being recorded are reduced to a digest, so that the memory usage does not
//! grow with the number of connections.
//!
//! ```text
//!                body is known
//!   NotStarted ────────────────► WithReference
//!        │
//!        └─────────────────────► Digest   also recorded, unless another connection is recording, or the body is too
//!                                         long; becomes the reference if it equals the first complete body
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flate2::Crc;

/// Maximum length of a recorded body, in bytes.
const MAX_REFERENCE_BYTES: usize = 64 << 20;

/// References of all paths, shared by all threads.
pub(crate) type References = Arc<[Reference]>;

#[derive(Debug, Default)]
pub(crate) struct Reference {
    /// Digest of the first complete body.
    digest: OnceLock<Digest>,
    body: OnceLock<Bytes>,
    /// Set while a connection is recording a body.
    is_being_recorded: AtomicBool,
}

/// Digest of a body that is not recorded. It detects accidental differences, not deliberate ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    bytes: u64,
    crc32: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyMatch {
    Equal,
    /// Contains the expected length in bytes.
    LengthDiffers(u64),
    BytesDiffer,
}

impl BodyMatch {
    fn of(bytes: u64, expected_bytes: u64, is_equal: impl FnOnce() -> bool) -> Self {
        if bytes != expected_bytes {
            Self::LengthDiffers(expected_bytes)
        } else if is_equal() {
            Self::Equal
        } else {
            Self::BytesDiffer
        }
    }
}

/// Comparison of an arriving body with the reference.
#[derive(Debug, Default)]
pub(super) enum Comparison {
    #[default]
    NotStarted,
    WithReference {
        differs: bool,
    },
    Digest {
        crc: Crc,
        recorded: Option<RecordedBody>,
    },
}

#[derive(Debug)]
pub(super) struct RecordedBody {
    bytes: Vec<u8>,
    references: References,
    page: usize,
}

impl Reference {
    pub fn expected(body: Bytes) -> Self {
        Self { body: OnceLock::from(body), ..Self::default() }
    }
}

impl Comparison {
    /// Adds the next chunk of the body, which starts at `offset`.
    #[inline]
    pub fn update(&mut self, references: &References, page: usize, offset: u64, data: &[u8]) {
        if let Self::NotStarted = self {
            *self = Self::start(references, page);
        }
        match self {
            Self::WithReference { differs } => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(data.len());
                let expected = references[page].body.get().map_or(&[][..], |body| &body[..]);
                // `finish` reports bytes beyond the end of the reference as a wrong length.
                *differs |= (expected.get(start..end.min(expected.len())))
                    .is_some_and(|expected| *expected != data[..expected.len()]);
            }
            Self::Digest { crc, recorded } => {
                crc.update(data);
                if offset + data.len() as u64 > MAX_REFERENCE_BYTES as u64 {
                    *recorded = None;
                }
                if let Some(recorded) = recorded {
                    recorded.bytes.extend_from_slice(data);
                }
            }
            Self::NotStarted => {}
        }
    }

    fn start(references: &References, page: usize) -> Self {
        let reference = &references[page];
        if reference.body.get().is_some() {
            return Self::WithReference { differs: false };
        }
        let is_too_long =
            reference.digest.get().is_some_and(|expected| expected.bytes > MAX_REFERENCE_BYTES as u64);
        let is_recorded = !is_too_long && !reference.is_being_recorded.swap(true, Ordering::Relaxed);
        let recorded =
            is_recorded.then(|| RecordedBody { bytes: Vec::new(), references: Arc::clone(references), page });
        Self::Digest { crc: Crc::new(), recorded }
    }

    /// Returns the result for a complete body of `bytes` bytes.
    #[inline]
    pub fn finish(self, references: &References, page: usize, bytes: u64) -> BodyMatch {
        let reference = &references[page];
        match self {
            Self::WithReference { differs } => {
                let expected = reference.body.get().map_or(0, |body| body.len() as u64);
                BodyMatch::of(bytes, expected, || !differs)
            }
            Self::Digest { crc, recorded } => {
                // The first complete body sets the digest with which later bodies are compared.
                let digest = Digest { bytes, crc32: crc.sum() };
                let expected = reference.digest.get_or_init(|| digest);
                let body_match = BodyMatch::of(bytes, expected.bytes, || digest.crc32 == expected.crc32);
                if body_match == BodyMatch::Equal
                    && let Some(mut recorded) = recorded
                {
                    // Another connection may have set `body` between this connection's check and the start of its
                    // recording.
                    reference.body.get_or_init(|| std::mem::take(&mut recorded.bytes).into());
                }
                body_match
            }
            Self::NotStarted => Self::start(references, page).finish(references, page, bytes),
        }
    }
}

impl Drop for RecordedBody {
    /// Allows another body to be recorded. The recorded body does not become the reference if it was wrong or too long,
    /// or if its connection failed.
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

    fn bytes(chunks: &[&[u8]]) -> u64 {
        chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    fn body(references: &References, chunks: &[&[u8]]) -> Comparison {
        let mut comparison = Comparison::default();
        for (index, chunk) in chunks.iter().enumerate() {
            comparison.update(references, 0, bytes(&chunks[..index]), chunk);
        }
        comparison
    }

    fn compare(references: &References, chunks: &[&[u8]]) -> BodyMatch {
        body(references, chunks).finish(references, 0, bytes(chunks))
    }

    #[test]
    fn first_complete_body_becomes_reference() {
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
    fn bodies_are_compared_by_digest_during_recording() {
        let references = empty_references();
        let recorded = body(&references, &[b"hel"]);
        assert!(matches!(recorded, Comparison::Digest { recorded: Some(_), .. }));
        let other = body(&references, &[b"he", b"llo"]);
        assert!(matches!(other, Comparison::Digest { recorded: None, .. }));
        assert_eq!(
            other.finish(&references, 0, 5),
            BodyMatch::Equal,
            "the first complete body becomes the reference"
        );
        assert_eq!(compare(&references, &[b"hallo"]), BodyMatch::BytesDiffer);
        let mut recorded = recorded;
        recorded.update(&references, 0, 3, b"p!");
        assert_eq!(recorded.finish(&references, 0, 5), BodyMatch::BytesDiffer);
        assert!(references[0].body.get().is_none(), "a wrong body does not become the reference");
        assert_eq!(compare(&references, &[b"hello"]), BodyMatch::Equal, "a different body has been recorded");
        assert!(references[0].body.get().is_some());
    }

    #[test]
    fn dropped_recording_allows_another() {
        let references = empty_references();
        drop(body(&references, &[b"hel"]));
        assert!(matches!(body(&references, &[b"h"]), Comparison::Digest { recorded: Some(_), .. }));
    }

    #[test]
    fn empty_bodies_are_compared() {
        for references in [empty_references(), [Reference::expected(Bytes::new())].into()] {
            assert_eq!(compare(&references, &[]), BodyMatch::Equal);
            assert_eq!(compare(&references, &[b"x"]), BodyMatch::LengthDiffers(0));
            assert_eq!(compare(&references, &[]), BodyMatch::Equal);
        }
        assert_eq!(compare(&[Reference::expected("a".into())].into(), &[]), BodyMatch::LengthDiffers(1));
    }

    #[test]
    fn too_long_body_is_compared_by_digest() {
        let references = empty_references();
        let chunk = vec![7; MAX_REFERENCE_BYTES / 2 + 1];
        let long = body(&references, &[&chunk, &chunk]);
        assert!(matches!(long, Comparison::Digest { recorded: None, .. }));
        assert_eq!(long.finish(&references, 0, 2 * chunk.len() as u64), BodyMatch::Equal);
        assert_eq!(compare(&references, &[&chunk, &chunk]), BodyMatch::Equal);
        assert_eq!(compare(&references, &[&chunk, &chunk[1..], b"8"]), BodyMatch::BytesDiffer);
    }
}
