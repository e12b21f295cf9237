//! Panics in code of the application that the runtime calls where no task of its own can receive them: destructors of
//! wakers, of owners of bytes and of results, and the `tracing` subscriber.

use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may panic and never unwinds; `message` is logged if it does.
#[inline]
pub(crate) fn catch_and_log_panic(message: &'static str, run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        log_panic(message, panic);
    }
}

#[cold]
#[inline(never)]
fn log_panic(message: &'static str, panic: Box<dyn Any + Send>) {
    log(|| tracing::error!("{message}"));
    drop_payload(panic);
}

/// Logs where nothing may unwind: a `tracing` subscriber is code of the application, and may panic.
#[cold]
#[inline(never)]
pub(crate) fn log(write: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(write)) {
        drop_payload(panic);
    }
}

/// Drops what was panicked with, whose destructor may panic, too: what that panics with is leaked.
fn drop_payload(panic: Box<dyn Any + Send>) {
    forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
}
