//! Tests of the components through their public API: the protocol, file serving, and observability. None of them does
//! I/O on a runtime.

#![forbid(unsafe_code)]

#[path = "../properties/mod.rs"]
mod properties;

mod corpus;
mod files;
mod h1;
mod observe;
