//! Directory listings in HTML and JSON.
//!
//! File names are untrusted input: any user with write permission can choose them. They are escaped everywhere, and
//! the page loads and executes nothing (see [`CONTENT_SECURITY_POLICY`]). Only names that can be requested are
//! listed: no hidden files, and no names that [`path`](super::path) rejects. Links are relative to the directory,
//! so its URL must end with a slash.

mod entries;
mod format;
mod html;
mod json;

pub use entries::{Contents, Listing};
pub use format::Format;
pub use html::CONTENT_SECURITY_POLICY;
