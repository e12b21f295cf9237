//! Static file serving: request evaluation and response construction.
//!
//! The modules that evaluate requests consist of pure functions of strings, bytes and numbers. They do no I/O and read
//! no clock. A request passes through them in this order:
//!
//! ```text
//!  target ──► path ──► open and fstat(2) the file ──► stamp ─────────┐
//!                                                                    ▼
//!  header ──► fields ──► negotiate (variant) ──► validator (ETag, Last-Modified)
//!                                                                    ▼
//!             200, 206 or 416 ◄── range, multipart ◄── conditional (304, 412 or proceed)
//! ```
//!
//! When a file enters the cache, [`media_type`], [`cache_control`] and [`headers`] determine the properties that all
//! responses for it share. [`listing`] renders directories, [`cors`] decides which other origins may read a response, and
//! [`options`] holds the configuration. For a request for a plain path without preconditions or ranges, these modules allocate no
//! memory.

mod cache;
pub mod cache_control;
#[cfg(feature = "compression")]
mod compress;
pub mod conditional;
pub mod cors;
mod document_root;
#[cfg(feature = "compression")]
mod encoder;
pub mod fields;
pub mod headers;
mod invalid_option;
pub mod listing;
mod listings;
pub mod media_type;
pub mod multipart;
pub mod negotiate;
pub mod options;
pub mod path;
pub mod range;
mod response;
mod service;
pub mod stamp;
pub mod validator;

pub use self::options::FileOptions;
pub use self::service::{Files, FilesError};
