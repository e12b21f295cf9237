//! What must hold of any bytes whatever. The fuzzer asks it of bytes that it makes up (`fuzz/fuzz_targets`), `fuzz_corpus.rs`
//! of those that it has kept, other tests of what they generate.

// Every program that has this uses some of it.
#![allow(dead_code)]

pub mod chunked;
#[path = "../h1_support/mod.rs"]
pub mod h1_support;
pub mod path;
pub mod range;
pub mod request;
pub mod splits;
