//! Panics that are nobody's, which must not reach those who run beside.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does what may panic; `told` says then in the log what panicked.
#[inline]
pub(super) fn contain(told: &'static str, what: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(what)) {
        tracing::error!("{told}");
        // What it panicked with may panic, too.
        std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
    }
}
