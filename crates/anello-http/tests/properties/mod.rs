//! Properties that hold for any input. The fuzz targets (`fuzz/fuzz_targets`) check them for generated inputs,
//! `components/corpus.rs` for the recorded corpus, and other tests for their own inputs.

#![allow(dead_code, reason = "each test binary uses a subset of these helpers")]

pub mod chunked;
pub mod h1_support;
pub mod path;
pub mod range;
pub mod request;
pub mod splits;
