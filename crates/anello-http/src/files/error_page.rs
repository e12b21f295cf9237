//! A page in the place of a file that is missing.

use std::rc::Rc;

use super::cache::Entry;
use super::negotiate::Choice;
use super::response::{full_response, or_internal_error, with_vary};

use crate::h1::FieldName;
use crate::response::Response;

/// The page as an answer of this status, in the encoding that was chosen: plain where none is acceptable, so that what is
/// wrong is told in any case.
///
/// It is no state of the file that was asked for. So it has no validators, which would have clients ask whether that file has
/// changed, offers no ranges, and is not kept for as long as a rule says of files (RFC 9110, section 8.8).
pub(super) fn error_page(page: &Entry, choice: Choice, status: u16) -> Response {
    let variant = match choice {
        Choice::Encoded(coding) => page.variant(coding),
        Choice::Identity | Choice::NotAcceptable => &page.identity,
    };
    let response = full_response(variant).with_status(status).with_shared_fields(Rc::default());
    let response = or_internal_error(response.field(FieldName::CONTENT_TYPE, variant.media_type.as_bytes()));
    let response = match variant.coding {
        Some(coding) => {
            or_internal_error(response.field(FieldName::CONTENT_ENCODING, coding.token().as_bytes()))
        }
        None => response,
    };
    with_vary(page, response)
}
