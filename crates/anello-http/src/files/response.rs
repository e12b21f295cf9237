//! The answers that a file leads to, or its absence.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;

use super::cache::{Contents, Entry, Variant, now};
use super::multipart::{Boundary, Multipart};
use super::range::{ByteRange, ContentRange, Selection, select};
use crate::body::{Body, BodyPart};
use crate::h1::{FieldName, InvalidField};
use crate::response::Response;

/// The whole file, as it lies.
#[inline]
pub(super) fn full_response(variant: &Variant) -> Response {
    let body = match &variant.contents {
        Contents::Encoded(answer) => return Response::encoded(Rc::clone(answer)),
        Contents::Memory(bytes) => Body::from(bytes.clone()),
        Contents::File(file) => Body::file(file.clone(), 0, variant.stamp.size_bytes),
    };
    Response::new(200).with_shared_fields(Rc::clone(&variant.fields)).with_body(body)
}

/// A part of this variant of the entry.
pub(super) fn range_response(entry: &Entry, variant: &Variant, range: &[u8]) -> Response {
    let size_bytes = variant.stamp.size_bytes;
    match select(range, size_bytes) {
        Selection::Whole => full_response(variant),
        Selection::One(range) => {
            let response = Response::new(206).with_shared_fields(Rc::clone(&variant.fields));
            let content_range = ContentRange::of(range, size_bytes).to_string();
            let response =
                or_internal_error(response.field(FieldName::CONTENT_RANGE, content_range.as_bytes()));
            response.with_body(Body::parts(vec![range_body_part(variant, range)]))
        }
        // What is put together of several parts is not coded: nothing would tell that they are.
        Selection::Several(_) if variant.coding.is_some() => full_response(variant),
        Selection::Several(ranges) => multipart_response(variant, &ranges),
        Selection::Unsatisfiable => {
            let content_range = ContentRange::unsatisfiable(size_bytes).to_string();
            let response = text_response(416, "the file has none of the bytes that the request asks for");
            with_vary(
                entry,
                or_internal_error(response.field(FieldName::CONTENT_RANGE, content_range.as_bytes())),
            )
        }
    }
}

/// An answer without the fields of a variant. It is another one to who accepts other encodings, if the file has variants,
/// and says so, that no cache gives it to them.
pub(super) fn with_vary(entry: &Entry, response: Response) -> Response {
    if entry.encoded.is_empty() {
        return response;
    }
    or_internal_error(response.field(FieldName::VARY, b"Accept-Encoding"))
}

fn multipart_response(variant: &Variant, ranges: &[ByteRange]) -> Response {
    let mut random = [0; 16];
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()) != Ok(random.len()) {
        // Without what nobody can guess, the whole file is as good an answer.
        return full_response(variant);
    }
    let boundary = Boundary::from_random(u128::from_ne_bytes(random));
    let multipart = Multipart::new(ranges, variant.stamp.size_bytes, &variant.media_type, boundary);
    let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
    for (head, range) in multipart.parts() {
        parts.push(BodyPart::Bytes(bytes::Bytes::copy_from_slice(head)));
        parts.push(range_body_part(variant, range));
    }
    parts.push(BodyPart::Bytes(bytes::Bytes::copy_from_slice(multipart.end())));
    // The type of the parts is told with each of them.
    let response = Response::new(206).with_shared_fields(Rc::clone(&variant.not_modified_fields));
    let response =
        or_internal_error(response.field(FieldName::CONTENT_TYPE, multipart.content_type().as_bytes()));
    response.with_body(Body::parts(parts))
}

fn range_body_part(variant: &Variant, range: ByteRange) -> BodyPart {
    match &variant.contents {
        Contents::Encoded(answer) => {
            BodyPart::Bytes(answer.body().slice(range.first as usize..=range.last as usize))
        }
        Contents::Memory(bytes) => BodyPart::Bytes(bytes.slice(range.first as usize..=range.last as usize)),
        Contents::File(file) => {
            BodyPart::File { file: file.clone(), offset: range.first, length: range.length_bytes() }
        }
    }
}

/// A line of text.
pub(super) fn text_response(status: u16, line: &str) -> Response {
    Response::text(format!("{status} {}: {line}\n", crate::h1::reason_phrase(status))).with_status(status)
}

/// The values are the program's own, or have been checked before.
pub(super) fn or_internal_error(response: Result<Response, InvalidField>) -> Response {
    response.unwrap_or_else(|invalid| {
        tracing::error!(%invalid, "an answer was sent as 500");
        Response::new(500)
    })
}

/// Whether there is no such file, as far as clients are to know: what would lead outside does not exist for them.
pub(super) fn is_missing(error: &io::Error) -> bool {
    use Errno as E;
    let missing =
        [E::NOENT, E::NOTDIR, E::LOOP, E::XDEV, E::NAMETOOLONG, E::ACCESS, E::PERM, E::NXIO, E::INVAL];
    Errno::from_io_error(error).is_some_and(|errno| missing.contains(&errno))
}

/// Whether it is there, but not for the server.
pub(super) fn is_forbidden(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM))
}

/// Whether there are no descriptors left.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Logs that a file cannot be opened or read, once in ten seconds at most on each worker: clients may ask often.
pub(super) fn log_file_error(error: &io::Error) {
    thread_local! {
        static LAST_LOGGED: Cell<(Option<Duration>, u64)> = const { Cell::new((None, 0)) };
    }
    const LOG_INTERVAL: Duration = Duration::from_secs(10);
    let (previous, suppressed) = LAST_LOGGED.get();
    let now = now();
    if previous.is_some_and(|previous| now.saturating_sub(previous) < LOG_INTERVAL) {
        return LAST_LOGGED.set((previous, suppressed + 1));
    }
    LAST_LOGGED.set((Some(now), 0));
    tracing::error!(%error, suppressed, "a file could not be opened or read");
}

pub(super) fn error_response(error: &io::Error) -> Response {
    log_file_error(error);
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => {
            text_response(503, "the server is short of descriptors or memory: try again later")
        }
        _ => text_response(500, "the file cannot be read"),
    }
}
