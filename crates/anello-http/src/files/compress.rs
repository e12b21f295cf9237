//! Compression of files while they are sent, for files without a precompressed variant.
//!
//! A response is compressed in slices: at most one slice of input and its output are in memory, plus the state of the
//! encoder, and other tasks run between two slices. Slow clients can keep many encoders alive, so their memory is limited
//! for the process. Above the limit, files are sent as they are stored.

use std::io;

use anello::fs::File;
use bytes::Bytes;
use futures_util::stream::unfold;

use super::cache::{Contents, Entry, wall_clock};
use super::conditional::{Outcome, evaluate};
use super::encoder::{Encoder, Reservation, encoder_bytes};
use super::fields::RequestFields;
pub(super) use super::negotiate::Choice;
use super::negotiate::{Coding, Codings, negotiate};
use super::options::FileOptions;
use super::response::{text_response, with_vary};
use super::stamp::FileStamp;
use super::validator::Validator;
use crate::h1::{FieldBlock, FieldName, InvalidField};
use crate::message::{Body, Response};

/// Smaller files are not compressed, because the result is hardly smaller.
const MIN_BYTES: u64 = 1024;
/// Input that is compressed at a time. The encoder of a file of one slice exists only while the slice is compressed.
const SLICE_BYTES: usize = 16 * 1024;

/// Returns the codings with which a file is compressed while it is sent.
pub(super) fn compressible(options: &FileOptions, media_type: &str, stamp: &FileStamp) -> Codings {
    let is_suitable = stamp.size_bytes >= MIN_BYTES && is_compressible(media_type);
    if is_suitable { options.compress } else { Codings::NONE }
}

/// Returns `true` if files of this type usually become smaller. Images, fonts, videos and archives are compressed
/// already.
fn is_compressible(media_type: &str) -> bool {
    const COMPRESSIBLE: [&str; 12] = [
        "application/javascript",
        "application/json",
        "application/manifest+json",
        "application/rtf",
        "application/toml",
        "application/vnd.apple.mpegurl",
        "application/vnd.ms-fontobject",
        "application/wasm",
        "application/x-ndjson",
        "application/xml",
        "application/yaml",
        "image/bmp",
    ];
    let essence = media_type.split(';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let is_text = essence.starts_with("text/") && essence != "text/event-stream";
    is_text
        || ["+json", "+xml", "+text"].iter().any(|suffix| essence.ends_with(suffix))
        || matches!(&*essence, "font/otf" | "font/ttf")
        || COMPRESSIBLE.contains(&&*essence)
}

/// Returns the coding with which the file is to be compressed, or `Identity` if it is to be sent as it is stored. A
/// precompressed variant has precedence, and so has the file itself if a part of it is requested.
pub(super) fn choose(entry: &Entry, fields: &RequestFields<'_>) -> Choice {
    let stored = negotiate(&fields.accept_encoding, entry.codings());
    if matches!(stored, Choice::Encoded(_)) || fields.range.is_some() {
        return Choice::Identity;
    }
    negotiate(&fields.accept_encoding, entry.compressible)
}

/// Returns the response to a request for a file that is to be compressed. `make_fields` returns the fields of a 304
/// response. Returns `None` if the encoders of the process already take `max_memory_bytes`: the file must then be sent as
/// it is stored.
pub(super) fn response(
    entry: &Entry,
    request: &RequestFields<'_>,
    coding: Coding,
    max_memory_bytes: usize,
    make_fields: impl FnOnce(&Validator) -> Result<FieldBlock, InvalidField>,
) -> Option<Response> {
    let variant = &entry.identity;
    let validator = Validator::of_compressed(&variant.stamp, coding, wall_clock());
    let outcome = evaluate(request, &validator);
    let response = match (outcome, make_fields(&validator)) {
        (Outcome::PreconditionFailed, _) => {
            let response = text_response(412, "the file does not satisfy the precondition");
            return Some(with_vary(entry, response));
        }
        (_, Err(_)) => return Some(text_response(500, "invalid header field")),
        (Outcome::NotModified, Ok(fields)) => return Some(Response { fields, ..Response::new(304) }),
        (Outcome::Proceed, Ok(fields)) => Response { fields, ..Response::new(200) },
    };
    let size_bytes = variant.stamp.size_bytes;
    let kept_bytes = if size_bytes <= SLICE_BYTES as u64 { 0 } else { encoder_bytes(coding, size_bytes) };
    let reservation = Reservation::new(kept_bytes, max_memory_bytes)?;
    let response = response
        .with_valid_field(FieldName::CONTENT_TYPE, variant.media_type.as_bytes())
        .with_valid_field(FieldName::CONTENT_ENCODING, coding.token().as_bytes())
        .with_body(body(&variant.contents, size_bytes, coding, reservation));
    Some(response)
}

/// Returns a body that compresses the contents as it is sent.
fn body(contents: &Contents, size_bytes: u64, coding: Coding, reservation: Reservation) -> Body {
    let source = match contents {
        Contents::Encoded(response) => Source::Memory(response.body()),
        Contents::Memory(bytes) => Source::Memory(bytes.clone()),
        Contents::File(file) => Source::File { file: file.clone(), offset: 0, left: size_bytes },
    };
    // The encoder is created when the body is first polled, which is never for HEAD.
    let state = Some((source, None));
    Body::stream(unfold(state, move |state| {
        let new_encoder = move || Encoder::new(coding, size_bytes);
        let _reservation = &reservation;
        async move {
            let (source, encoder) = state?;
            Some(match next_chunk(source, encoder, new_encoder).await {
                Ok((chunk, state)) => (Ok(chunk), state),
                Err(error) => (Err(error), None),
            })
        }
    }))
}

enum Source {
    Memory(Bytes),
    File { file: File, offset: u64, left: u64 },
}

/// Compresses slices until there is output. Returns no state after the last chunk.
async fn next_chunk(
    mut source: Source,
    mut encoder: Option<Encoder>,
    new_encoder: impl Fn() -> io::Result<Encoder>,
) -> io::Result<(Bytes, Option<(Source, Option<Encoder>)>)> {
    loop {
        let slice = source.next_slice().await?;
        // Created after the read, so that no other task runs while the encoder of a single slice exists.
        let mut current = encoder.take().map_or_else(&new_encoder, Ok)?;
        let mut chunk = current.encode(&slice)?;
        if source.is_empty() {
            chunk.extend(current.finish()?);
            return Ok((chunk.into(), None));
        }
        // Compressing a slice takes much longer than other operations that are counted by the task's budget.
        anello::yield_now().await;
        if !chunk.is_empty() {
            return Ok((chunk.into(), Some((source, Some(current)))));
        }
        encoder = Some(current);
    }
}

impl Source {
    fn is_empty(&self) -> bool {
        match self {
            Self::Memory(bytes) => bytes.is_empty(),
            Self::File { left, .. } => *left == 0,
        }
    }

    async fn next_slice(&mut self) -> io::Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(bytes.split_to(bytes.len().min(SLICE_BYTES))),
            Self::File { file, offset, left } => {
                let mut slice = vec![0; (*left).min(SLICE_BYTES as u64) as usize];
                let count = file.read_at(&mut slice, *offset).await?;
                if count == 0 {
                    let message = format!("file truncated while being sent: {left} bytes are missing");
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
                }
                slice.truncate(count);
                (*offset, *left) = (*offset + count as u64, *left - count as u64);
                Ok(slice.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressible_types_are_recognized() {
        for media_type in ["text/html; charset=utf-8", "TEXT/css", "image/svg+xml", "application/json"] {
            assert!(is_compressible(media_type), "{media_type}");
        }
        for media_type in ["image/png", "video/mp4", "application/zip", "text/event-stream", "font/woff2", ""]
        {
            assert!(!is_compressible(media_type), "{media_type}");
        }
    }
}
