//! Fuzz target for request targets: see `tests/properties/path.rs`.

#![no_main]

#[path = "../../tests/properties/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::path::check(data));
