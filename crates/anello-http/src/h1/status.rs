//! Status codes and their reason phrases.

use http::StatusCode;

/// Returns `true` if a final response can have this status.
pub(super) fn is_final(status: u16) -> bool {
    (200..=999).contains(&status)
}

/// Returns the reason phrase of a status, or an empty string if it is not registered.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        // The `http` crate uses older names.
        203 => "Non-Authoritative Information",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        _ => {
            StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default()
        }
    }
}
