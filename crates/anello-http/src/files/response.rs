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
pub(super) fn whole(variant: &Variant) -> Response {
    let body = match &variant.contents {
        Contents::Framed(answer) => return Response::encoded(Rc::clone(answer)),
        Contents::Memory(bytes) => Body::from(bytes.clone()),
        Contents::File(file) => Body::file(file.clone(), 0, variant.stamp.size_bytes),
    };
    Response::new(200).with_shared_fields(Rc::clone(&variant.fields)).with_body(body)
}

/// A part of this variant of the entry.
pub(super) fn part(entry: &Entry, variant: &Variant, range: &[u8]) -> Response {
    let size_bytes = variant.stamp.size_bytes;
    match select(range, size_bytes) {
        Selection::Whole => whole(variant),
        Selection::One(range) => {
            let response = Response::new(206).with_shared_fields(Rc::clone(&variant.fields));
            let content_range = ContentRange::of(range, size_bytes).to_string();
            let response = valid(response.field(FieldName::CONTENT_RANGE, content_range.as_bytes()));
            response.with_body(Body::parts(vec![bytes_of(variant, range)]))
        }
        // What is put together of several parts is not coded: nothing would tell that they are.
        Selection::Several(_) if variant.coding.is_some() => whole(variant),
        Selection::Several(ranges) => several(variant, &ranges),
        Selection::Unsatisfiable => {
            let content_range = ContentRange::unsatisfiable(size_bytes).to_string();
            let response = text(416, "the file has none of the bytes that the request asks for");
            varying(entry, valid(response.field(FieldName::CONTENT_RANGE, content_range.as_bytes())))
        }
    }
}

/// An answer without the fields of a variant. It is another one to who accepts other encodings, if the file has variants,
/// and says so, that no cache gives it to them.
pub(super) fn varying(entry: &Entry, response: Response) -> Response {
    if entry.coded.is_empty() {
        return response;
    }
    valid(response.field(FieldName::VARY, b"Accept-Encoding"))
}

fn several(variant: &Variant, ranges: &[ByteRange]) -> Response {
    let mut random = [0; 16];
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()) != Ok(random.len()) {
        // Without what nobody can guess, the whole file is as good an answer.
        return whole(variant);
    }
    let boundary = Boundary::from_random(u128::from_ne_bytes(random));
    let multipart = Multipart::new(ranges, variant.stamp.size_bytes, &variant.media_type, boundary);
    let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
    for (head, range) in multipart.parts() {
        parts.push(BodyPart::Bytes(bytes::Bytes::copy_from_slice(head)));
        parts.push(bytes_of(variant, range));
    }
    parts.push(BodyPart::Bytes(bytes::Bytes::copy_from_slice(multipart.end())));
    // The type of the parts is told with each of them.
    let response = Response::new(206).with_shared_fields(Rc::clone(&variant.not_modified_fields));
    let response = valid(response.field(FieldName::CONTENT_TYPE, multipart.content_type().as_bytes()));
    response.with_body(Body::parts(parts))
}

fn bytes_of(variant: &Variant, range: ByteRange) -> BodyPart {
    match &variant.contents {
        Contents::Framed(answer) => {
            BodyPart::Bytes(answer.body().slice(range.first as usize..=range.last as usize))
        }
        Contents::Memory(bytes) => BodyPart::Bytes(bytes.slice(range.first as usize..=range.last as usize)),
        Contents::File(file) => {
            BodyPart::File { file: file.clone(), offset: range.first, length: range.length_bytes() }
        }
    }
}

/// A line of text.
pub(super) fn text(status: u16, line: &str) -> Response {
    Response::text(format!("{status} {}: {line}\n", crate::h1::reason_phrase(status))).with_status(status)
}

/// The values are the program's own, or have been checked before.
pub(super) fn valid(response: Result<Response, InvalidField>) -> Response {
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
pub(super) fn is_short_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Logs that a file cannot be opened or read, once in ten seconds at most on each worker: clients may ask often.
pub(super) fn complain(error: &io::Error) {
    thread_local! {
        static COMPLAINED: Cell<(Option<Duration>, u64)> = const { Cell::new((None, 0)) };
    }
    const PAUSE: Duration = Duration::from_secs(10);
    let (before, unsaid) = COMPLAINED.get();
    let now = now();
    if before.is_some_and(|before| now.saturating_sub(before) < PAUSE) {
        return COMPLAINED.set((before, unsaid + 1));
    }
    COMPLAINED.set((Some(now), 0));
    tracing::error!(%error, unsaid, "a file could not be opened or read");
}

pub(super) fn failed(error: &io::Error) -> Response {
    complain(error);
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => {
            text(503, "the server is short of descriptors or memory: try again later")
        }
        _ => text(500, "the file cannot be read"),
    }
}
