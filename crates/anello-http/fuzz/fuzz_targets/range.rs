//! Fuzz target for `Range` fields: see `tests/properties/range.rs`.

#![no_main]

#[path = "../../tests/properties/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::range::check(data));
