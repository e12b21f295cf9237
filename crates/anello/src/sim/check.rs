//! Runs of a test with many seeds.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Environment variable that selects one seed.
const SEED_VARIABLE: &str = "ANELLO_SEED";

thread_local! {
    /// Trace of the last simulation, or `None` outside of `check`.
    static TRACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the trace of a simulation that ends, if `check` is running.
pub(super) fn keep_trace(trace: impl FnOnce() -> String) {
    // Nothing is stored if the thread is exiting.
    TRACE
        .try_with(|last| {
            if let Some(last) = last.borrow_mut().as_mut() {
                *last = trace();
            }
        })
        .ok();
}

/// Runs a test with each seed, and reports the first seed that fails.
///
/// The report contains the trace of the last simulation of the failed run, and the command that replays it: the
/// environment variable `ANELLO_SEED` selects one seed. `name` is the name of the test function.
///
/// ```
/// use anello::sim::{Simulation, check};
///
/// // In a test: #[test] fn clients_finish() { ... }
/// check("clients_finish", 0..100, |seed| {
///     let mut sim = Simulation::builder().seed(seed).build();
///     sim.client("client", async { Ok(()) });
///     sim.run()
/// });
/// ```
///
/// # Panics
/// Panics if the test returns an error or panics, or if `ANELLO_SEED` is not a number.
#[track_caller]
pub fn check<E: Display>(name: &str, seeds: Range<u64>, test: impl Fn(u64) -> Result<(), E>) {
    let seeds = match std::env::var(SEED_VARIABLE) {
        Err(_) => seeds,
        Ok(text) => match text.parse::<u64>() {
            Ok(seed) => seed..seed.saturating_add(1),
            Err(error) => panic!("{SEED_VARIABLE}: invalid seed {text:?}: {error}"),
        },
    };
    let outer = TRACE.replace(Some(String::new()));
    for seed in seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| test(seed)));
        if matches!(outcome, Ok(Ok(()))) {
            continue;
        }
        let trace = TRACE.replace(outer).unwrap_or_default();
        eprintln!("last operations (seconds, host, operation, peer):\n{trace}");
        eprintln!("{name} failed with seed {seed}. To replay: {SEED_VARIABLE}={seed} cargo test {name}");
        match outcome {
            Err(panic) => resume_unwind(panic),
            Ok(Err(error)) => panic!("{name} failed with seed {seed}: {error}"),
            Ok(Ok(())) => unreachable!("the seed has failed"),
        }
    }
    TRACE.set(outer);
}
