//! Tests for the command line as a whole, its documentation, and the small commands.

#![forbid(unsafe_code)]

mod build_identity;
mod doctor;
mod documents;
mod manual;
#[path = "../serve/served/mod.rs"]
mod served;
mod values;
