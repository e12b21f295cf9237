//! Runs a test on several set-ups.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use crate::availability::is_available;
use crate::repeat::PrintOnPanic;
use crate::selection::Selection;
use crate::watchdog::Watched;
use crate::{Setup, all_drivers, both_drivers, hang_timeout, is_own_process, simulated_drivers};

/// Number of set-ups on which a test runs at the same time: as many as there are by default. With all of them, the timeouts
/// of a test would expire before the work of the others is done.
const RUNS_AT_A_TIME: usize = 4;

/// Runs the test on the two Linux drivers with their default options.
pub fn on_both_drivers(test: impl Fn(&Setup) + Send + Sync + 'static) {
    on_each(both_drivers(), test);
}

/// Runs the test on all selected set-ups on Linux.
pub fn on_every_driver(test: impl Fn(&Setup) + Send + Sync + 'static) {
    on_each(all_drivers(), test);
}

/// Runs the test on all selected set-ups, including the simulated kernels. The test may use only the runtime's sockets.
pub fn on_every_driver_and_sim(test: impl Fn(&Setup) + Send + Sync + 'static) {
    on_each(all_drivers().into_iter().chain(simulated_drivers()).collect(), test);
}

/// Runs the test under the watchdog on each of these set-ups that is available, unless `ANELLO_TEST_SETUP` excludes it.
/// Each run has its own thread. Several run at the same time, because most tests wait more than they compute, except in a
/// [process of the test's own](crate::in_own_process), whose resources they would share.
///
/// # Panics
///
/// Panics if the test fails or hangs, after it has printed the command that repeats the test on this set-up.
pub fn on_each(setups: Vec<Setup>, test: impl Fn(&Setup) + Send + Sync + 'static) {
    on_each_included(setups, &(Arc::new(test) as Arc<dyn Fn(&Setup) + Send + Sync>));
}

/// Runs the test like [`on_each`]. Compiled once for all tests, like [`Setup::run`].
fn on_each_included(setups: Vec<Setup>, test: &Arc<dyn Fn(&Setup) + Send + Sync>) {
    let selection = Selection::current();
    let (included, excluded): (Vec<_>, Vec<_>) =
        setups.into_iter().partition(|setup| selection.is_included(setup.name));
    if included.is_empty() {
        let names: Vec<_> = excluded.iter().map(|setup| setup.name).collect();
        eprintln!("skipped: none of the test's set-ups is selected ({})", names.join(", "));
    }
    let start = |setup: Setup| {
        let test = Arc::clone(test);
        (setup.name, Watched::start(setup.name, move || test(&setup)))
    };
    let join = |(name, run): (_, Watched<()>)| {
        let _print_on_panic = PrintOnPanic::new(name);
        run.join(hang_timeout());
    };
    let available: Vec<_> = included.into_iter().filter(is_available).collect();
    for setups in available.chunks(if is_own_process() { 1 } else { RUNS_AT_A_TIME }) {
        let runs: Vec<_> = setups.iter().cloned().map(start).collect();
        runs.into_iter().for_each(join);
    }
}

/// Runs an asynchronous test like [`on_each`], with a runtime of the set-up.
///
/// # Panics
///
/// Panics if the test fails or hangs.
pub fn run_on_each<F: Future<Output = ()>>(
    setups: Vec<Setup>,
    test: impl Fn(Setup) -> F + Send + Sync + 'static,
) {
    on_each(setups, move |setup| setup.run(test(setup.clone())));
}

/// Returns those of the set-ups that are available here and that `ANELLO_TEST_SETUP` does not exclude, for tests that run
/// on them in a loop, without a watchdog. If the iterator is dropped during a panic, it prints the command that repeats
/// the test on the last set-up.
pub fn each_available(setups: Vec<Setup>) -> impl Iterator<Item = Setup> {
    let mut running = None;
    let included = setups.into_iter().filter(|setup| Selection::current().is_included(setup.name));
    included.filter(is_available).inspect(move |setup| {
        drop(running.replace(PrintOnPanic::new(setup.name)));
    })
}

/// Runs the test at the same time on the two Linux drivers, which it receives as values of the command line's option
/// `--driver`. The test may borrow.
///
/// # Panics
///
/// Panics if the test fails, after it has printed the command that repeats the test on this driver.
pub fn on_each_driver_flag(test: impl Fn(&'static str) + Sync) {
    on_each_borrowing(both_drivers(), |setup| test(setup.name));
}

/// Runs the test like [`on_each`], but without a watchdog, so that it may borrow.
///
/// # Panics
///
/// Panics if the test fails.
pub fn on_each_borrowing(setups: Vec<Setup>, test: impl Fn(&Setup) + Sync) {
    let setups: Vec<_> = each_available(setups).collect();
    thread::scope(|scope| {
        let test = &test;
        let runs: Vec<_> = setups.iter().map(|setup| scope.spawn(move || test(setup))).collect();
        for (setup, run) in setups.iter().zip(runs) {
            let _print_on_panic = PrintOnPanic::new(setup.name);
            run.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

/// Returns the selected drivers that are available here, as values of the command line's option `--driver`: `uring`,
/// `epoll`. If a test fails in a loop over them, the command is printed that repeats it on the current driver.
pub fn driver_flags() -> impl Iterator<Item = &'static str> {
    each_available(both_drivers()).map(|setup| setup.name)
}
