//! States that only a fault in this crate or in the kernel can cause.

use super::catch_panic::log;

/// Reports an impossible state. Panics in debug builds, so that tests fail. In release builds, logs an error; the caller
/// then fails the affected object, because a peer or the kernel must not be able to stop the worker.
#[cold]
#[inline(never)]
#[track_caller]
pub(in crate::driver) fn report_impossible(message: &'static str) {
    debug_assert!(false, "{message}");
    log(|| tracing::error!("{message} (please report this fault)"));
}

/// Tables with more entries than this are checked only every [`CHECK_INTERVAL`] turns.
#[cfg(debug_assertions)]
const MAX_CHECKED_ENTRIES: usize = 16;

#[cfg(debug_assertions)]
const CHECK_INTERVAL: u64 = 64;

/// Returns `true` if tables with this number of entries are to be checked in this turn. A check visits every entry, so
/// that a turn with thousands of entries would take many times as long.
#[cfg(debug_assertions)]
pub(crate) fn is_check_due(entries: usize, turns: u64) -> bool {
    entries <= MAX_CHECKED_ENTRIES || turns.is_multiple_of(CHECK_INTERVAL)
}
