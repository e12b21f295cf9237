//! File serving tests that need no I/O.

mod cache_control;
mod conditional;
mod cors;
mod fields;
mod listing;
mod media_type;
mod multipart;
mod negotiate;
mod options;
mod path;
mod range;
mod stamp;
mod validator;
