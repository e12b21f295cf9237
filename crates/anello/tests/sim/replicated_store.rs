//! The simulation of the example `replicated_store`.

#[allow(dead_code, reason = "the main function of the example is not used")]
#[path = "../../examples/replicated_store.rs"]
mod store;

use anello::sim::check;

use crate::common::seeds;

#[test]
fn correct_store_is_linearizable() {
    check("correct_store_is_linearizable", seeds(20), |seed| store::run(seed, false));
}

#[test]
fn early_acknowledgement_is_found() {
    let mut errors = (0..1000).filter_map(|seed| store::run(seed, true).err());
    assert!(errors.any(|error| error.contains("not linearizable")), "no seed shows the bug");
}
