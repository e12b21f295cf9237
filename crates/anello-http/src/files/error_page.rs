//! Custom page for an error response.

use std::rc::Rc;

use super::cache::Entry;
use super::negotiate::Choice;
use super::response::{full_response, with_vary};
use crate::h1::FieldName;
use crate::message::Response;

/// Returns the page with the given status in the negotiated content coding. If no coding is acceptable, the
/// uncompressed page is sent so that the client always gets the error text.
///
/// The page does not represent the requested file (RFC 9110, section 8.8). The response therefore has no
/// validators, which would make clients revalidate it as that file, no `Accept-Ranges`, and no `Cache-Control` from
/// the cache rules.
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
