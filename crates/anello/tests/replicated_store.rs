//! The simulation of the example `replicated_store`.

#[allow(dead_code, reason = "the main function of the example is not used")]
#[path = "../examples/replicated_store.rs"]
mod store;

use anello::sim::check;

/// Number of seeds: `ANELLO_SEEDS`, which `.ci/nightly` sets to 10,000.
fn seeds() -> u64 {
    std::env::var("ANELLO_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20)
}

#[test]
fn correct_store_is_linearizable() {
    check("correct_store_is_linearizable", 0..seeds(), |seed| store::run(seed, false));
}

#[test]
fn early_acknowledgement_is_found() {
    let mut errors = (0..1000).filter_map(|seed| store::run(seed, true).err());
    assert!(errors.any(|error| error.contains("not linearizable")), "no seed shows the bug");
}
