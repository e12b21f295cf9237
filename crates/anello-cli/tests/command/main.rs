//! Tests for the command line as a whole, its documentation, and the small commands.

#![forbid(unsafe_code)]

mod build_identity;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod documents;
mod manual;
mod values;
