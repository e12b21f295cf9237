//! States that only a fault in this crate or in the kernel can cause.

use super::log::log_event;

/// Reports an impossible state. Panics in debug builds, so that tests fail. In release builds, logs an error; the caller
/// then fails the affected object, because a peer or the kernel must not be able to stop the worker.
#[cold]
#[inline(never)]
#[track_caller]
pub(in crate::driver) fn report_impossible(message: &'static str) {
    debug_assert!(false, "{message}");
    log_event!(ERROR, "{message} (please report this fault)");
}

/// On simulated kernels, tables with at most this number of entries are checked after every turn.
#[cfg(debug_assertions)]
const MAX_CHECKED_ENTRIES_SIMULATED: u64 = 1024;

/// On a real kernel, tables with at most this number of entries are checked after each of the first turns.
#[cfg(debug_assertions)]
const MAX_CHECKED_ENTRIES: u64 = 16;

/// Number of those first turns.
#[cfg(debug_assertions)]
const MAX_CHECKED_TURNS: u64 = 1000;

/// Other tables are checked at most once in this number of turns.
#[cfg(debug_assertions)]
const MIN_CHECK_INTERVAL: u64 = 64;

/// Returns `true` if tables with this number of entries are to be checked in this turn. A check visits every entry, so its
/// interval grows with their number.
#[cfg(debug_assertions)]
pub(crate) fn is_check_due(entries: usize, turns: u64, is_simulated: bool) -> bool {
    let entries = entries as u64;
    if is_simulated && entries <= MAX_CHECKED_ENTRIES_SIMULATED {
        return true;
    }
    if entries <= MAX_CHECKED_ENTRIES && turns < MAX_CHECKED_TURNS {
        return true;
    }
    turns.is_multiple_of(MIN_CHECK_INTERVAL.max(entries / MAX_CHECKED_ENTRIES))
}
