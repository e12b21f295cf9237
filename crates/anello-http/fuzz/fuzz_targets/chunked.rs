//! Fuzz target for chunked bodies: see `tests/properties/chunked.rs`.

#![no_main]

#[path = "../../tests/properties/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::chunked::check(data));
