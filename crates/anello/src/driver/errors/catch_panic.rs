//! Containment of panics in application code that the runtime calls outside of tasks: wakers and their destructors, the
//! destructors of sent buffers and task results, and the `tracing` subscriber.

use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may panic. A panic does not propagate; `message` is logged instead.
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

/// Logs a message without propagating panics, because a `tracing` subscriber is application code and may panic.
#[cold]
#[inline(never)]
pub(crate) fn log(write: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(write)) {
        drop_payload(panic);
    }
}

/// Drops a panic payload. The destructor of the payload may panic too; the payload of that panic is leaked.
fn drop_payload(panic: Box<dyn Any + Send>) {
    forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
}
