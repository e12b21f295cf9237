//! Fuzz target for the requests of a connection: see `tests/properties/request.rs`.

#![no_main]

#[path = "../../tests/properties/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::request::check(data));
