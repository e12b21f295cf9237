//! What the fuzzer has kept (`fuzz/corpus`), and what was put there by hand, holds: the same properties of the same bytes,
//! everywhere and without a fuzzer.

#![forbid(unsafe_code)]

mod properties;

use std::fs;
use std::path::Path;

use anello_http::h1::Limits;
use properties::h1_support::feed;
use properties::{chunked, path, range, request, splits};

/// The inputs of a target. Their names are printed, so that the last one says which failed.
fn corpus(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.into_iter().map(|file| {
        println!("{}", file.display());
        fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    })
}

#[test]
fn fault_31_corpus_of_requests() {
    for text in corpus("request") {
        request::check(&text);
        let outcome = feed([&text[..]], Limits::default());
        for pieces in splits::all_single_splits(&text) {
            let cut = feed(pieces.iter().copied(), Limits::default());
            assert_eq!(
                cut,
                outcome,
                "cut as {:?}",
                pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn fault_28_corpus_of_chunked_bodies() {
    corpus("chunked").for_each(|text| chunked::check(&text));
}

#[test]
fn fault_32_corpus_of_paths() {
    corpus("path").for_each(|target| path::check(&target));
}

#[test]
fn fault_36_corpus_of_ranges() {
    corpus("range").for_each(|range| range::check(&range));
}
