//! Response construction for files and errors.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use anello::log_event;
use bytes::Bytes;
use rustix::io::Errno;

use super::cache::{Contents, Entry, Variant};
use super::fields::RequestFields;
use super::multipart::{Boundary, Multipart};
use super::negotiate::{Choice, negotiate};
use super::range::{ByteRange, ContentRange, MAX_EXCESS_BYTES, Selection, select};
use crate::h1::FieldName;
use crate::message::{Body, BodyPart, Response};

#[inline]
pub(super) fn full_response(variant: &Variant) -> Response {
    let body = match &variant.contents {
        Contents::Encoded(response) => return Response::encoded(Rc::clone(response)),
        Contents::Memory(bytes) => Body::from(bytes.clone()),
        Contents::File(file) => Body::file(file.clone(), 0, variant.stamp.size_bytes),
    };
    Response::new(200).with_shared_fields(Rc::clone(&variant.fields)).with_body(body)
}

pub(super) fn range_response(entry: &Entry, variant: &Variant, range: &[u8]) -> Response {
    let size_bytes = variant.stamp.size_bytes;
    match select(range, size_bytes) {
        Selection::Whole => full_response(variant),
        Selection::One(range) => {
            let content_range = ContentRange::of(range, size_bytes).to_string();
            Response::new(206)
                .with_shared_fields(Rc::clone(&variant.fields))
                .with_valid_field(FieldName::CONTENT_RANGE, content_range.as_bytes())
                .with_body(Body::parts(vec![range_body_part(variant, range)]))
        }
        // The parts of a multipart response cannot have a content coding, so send the whole variant.
        Selection::Several(_) if variant.coding.is_some() => full_response(variant),
        Selection::Several(ranges) => multipart_response(variant, &ranges),
        Selection::Unsatisfiable => {
            let content_range = ContentRange::unsatisfiable(size_bytes).to_string();
            let response = text_response(416, "no requested range overlaps the file");
            with_vary(entry, response.with_valid_field(FieldName::CONTENT_RANGE, content_range.as_bytes()))
        }
    }
}

/// Returns the page with this status in the negotiated content coding. If no coding is acceptable, returns the
/// uncompressed page, so that the client still receives an error message.
///
/// The page does not represent the requested file (RFC 9110, section 8.8). The response therefore has no validators, no
/// `Accept-Ranges`, and no `Cache-Control` from the cache rules. With validators, clients would revalidate the page as
/// if it were that file.
pub(super) fn error_page(page: &Entry, choice: Choice, status: u16) -> Response {
    let variant = match choice {
        Choice::Encoded(coding) => page.variant(coding),
        Choice::Identity | Choice::NotAcceptable => &page.identity,
    };
    let response = full_response(variant)
        .with_status(status)
        .with_shared_fields(Rc::default())
        .with_valid_field(FieldName::CONTENT_TYPE, variant.media_type.as_bytes());
    let response = match variant.coding {
        Some(coding) => response.with_valid_field(FieldName::CONTENT_ENCODING, coding.token().as_bytes()),
        None => response,
    };
    with_vary(page, response)
}

/// Adds `Vary` to a response that is not built from the fields of a variant, such as an error. If the file has
/// precompressed variants, the response depends on `Accept-Encoding`, and caches must not reuse it for clients that
/// accept other codings.
pub(super) fn with_vary(entry: &Entry, response: Response) -> Response {
    if entry.encoded.is_empty() && entry.compressible.is_empty() {
        response
    } else {
        response.with_valid_field(FieldName::VARY, b"Accept-Encoding")
    }
}

/// Returns `None` if no variant is acceptable.
pub(super) fn select_variant<'e>(entry: &'e Entry, fields: &RequestFields<'_>) -> Option<&'e Variant> {
    match negotiate(&fields.accept_encoding, entry.codings()) {
        Choice::Identity => Some(&entry.identity),
        Choice::Encoded(coding) => Some(entry.variant(coding)),
        Choice::NotAcceptable => None,
    }
}

pub(super) fn not_acceptable(entry: &Entry) -> Response {
    with_vary(entry, text_response(406, "no available encoding matches Accept-Encoding"))
}

fn multipart_response(variant: &Variant, ranges: &[ByteRange]) -> Response {
    let mut random = [0; 16];
    if anello::fill_random(&mut random).is_err() {
        // Without random data, the boundary would be predictable, so send the whole file.
        return full_response(variant);
    }
    let boundary = Boundary::from_random(u128::from_ne_bytes(random));
    let size_bytes = variant.stamp.size_bytes;
    let multipart = Multipart::new(ranges, size_bytes, &variant.media_type, boundary);
    if multipart.length_bytes() > size_bytes.saturating_add(MAX_EXCESS_BYTES) {
        return full_response(variant);
    }
    let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
    for (head, range) in multipart.parts() {
        parts.push(BodyPart::Bytes(Bytes::copy_from_slice(head)));
        parts.push(range_body_part(variant, range));
    }
    parts.push(BodyPart::Bytes(Bytes::copy_from_slice(multipart.end())));
    // Each part has its own `Content-Type`, so use the fields without the file's media type.
    Response::new(206)
        .with_shared_fields(Rc::clone(&variant.not_modified_fields))
        .with_valid_field(FieldName::CONTENT_TYPE, multipart.content_type().as_bytes())
        .with_body(Body::parts(parts))
}

fn range_body_part(variant: &Variant, range: ByteRange) -> BodyPart {
    let slice = |bytes: &Bytes| BodyPart::Bytes(bytes.slice(range.first as usize..=range.last as usize));
    match &variant.contents {
        Contents::Encoded(response) => slice(&response.body()),
        Contents::Memory(bytes) => slice(bytes),
        Contents::File(file) => {
            BodyPart::File { file: file.clone(), offset: range.first, length: range.length_bytes() }
        }
    }
}

pub(super) fn text_response(status: u16, line: &str) -> Response {
    Response::text(format!("{status} {}: {line}\n", crate::h1::reason_phrase(status))).with_status(status)
}

/// Returns `true` if the file is reported to clients as missing. This includes inaccessible files and paths that lead
/// outside the document root.
pub(super) fn is_missing(error: &io::Error) -> bool {
    use Errno as E;
    let missing =
        [E::NOENT, E::NOTDIR, E::LOOP, E::XDEV, E::NAMETOOLONG, E::ACCESS, E::PERM, E::NXIO, E::INVAL];
    Errno::from_io_error(error).is_some_and(|errno| missing.contains(&errno))
}

/// Returns `true` if the file exists but the server has no permission to open it.
pub(super) fn is_forbidden(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM))
}

pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Logs errors of files at most once every ten seconds per worker, because clients can cause them repeatedly.
#[derive(Debug, Default)]
pub(super) struct FileErrorLog {
    logged_at: Cell<Option<Duration>>,
    suppressed: Cell<u64>,
}

impl FileErrorLog {
    /// Logs an error that occurs at this time, with the path of the file relative to the document root.
    pub fn log(&self, path: &str, error: &io::Error, now: Duration) {
        const LOG_INTERVAL: Duration = Duration::from_secs(10);
        if self.logged_at.get().is_some_and(|previous| now.saturating_sub(previous) < LOG_INTERVAL) {
            return self.suppressed.set(self.suppressed.get() + 1);
        }
        self.logged_at.set(Some(now));
        log_event!(ERROR, path, %error, suppressed = self.suppressed.take(), "cannot open or read file");
    }
}

pub(super) fn error_response(error: &io::Error) -> Response {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => {
            text_response(503, "out of file descriptors or memory, try again later")
        }
        _ => text_response(500, "cannot read the file"),
    }
}
