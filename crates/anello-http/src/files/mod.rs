//! Static files: what is decided about a request, and how it is answered.
//!
//! The decisions are pure: strings, bytes and numbers in, a decision out; no I/O, no clock. A request meets them in this
//! order:
//!
//! ```text
//!  target ──► path ──► the file is opened and looked at ──► stamp ─────────┐
//!                                                                           ▼
//!  fields ──► fields ──► negotiate (which variant) ──► validator (its ETag and Last-Modified)
//!                                                                           ▼
//!             200, 206 or 416 ◄── range, multipart ◄── conditional (304, 412, or on)
//! ```
//!
//! What a file's answers have in common is decided once, when it is first looked at: [`media_type`], [`cache_control`].
//! [`listing`] shows a folder, [`cors`] says who may read an answer from another site, [`options`] has what can be set.
//! On the usual way (a plain path, no condition, no range) nothing here allocates.

mod cache;
pub mod cache_control;
pub mod conditional;
pub mod cors;
mod document_root;
mod error_page;
pub mod fields;
pub mod listing;
mod listings;
pub mod media_type;
pub mod multipart;
pub mod negotiate;
pub mod options;
pub mod path;
mod quality;
pub mod range;
mod read;
mod response;
mod service;
pub mod stamp;
pub mod validator;

pub use self::options::FileOptions;
pub use self::service::{Files, FilesError};
