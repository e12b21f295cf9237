//! Checks the properties of the fuzz targets on every input in `fuzz/corpus`. These tests run on every platform and
//! without a fuzzer.

use std::fs;
use std::path::Path;

use crate::properties::h1_support::feed;
use crate::properties::{chunked, path, range, request, splits};
use anello_http::h1::Limits;

/// Returns the inputs of a fuzz target. Prints the name of each input, so that the last name identifies a failing
/// input.
fn corpus(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("directory entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", directory.display());
    files.into_iter().map(|file| {
        println!("{}", file.display());
        fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    })
}

#[test]
fn fault_31_request_corpus() {
    for text in corpus("request") {
        request::check(&text);
        let outcome = feed([&text[..]], Limits::default());
        for parts in splits::all_single_splits(&text) {
            let split_outcome = feed(parts.iter().copied(), Limits::default());
            assert_eq!(
                split_outcome,
                outcome,
                "parts of {:?} bytes",
                parts.iter().map(|part| part.len()).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn fault_28_chunked_body_corpus() {
    corpus("chunked").for_each(|text| chunked::check(&text));
}

#[test]
fn fault_32_path_corpus() {
    corpus("path").for_each(|target| path::check(&target));
}

#[test]
fn fault_36_range_corpus() {
    corpus("range").for_each(|range| range::check(&range));
}
