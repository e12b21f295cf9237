//! Containment of panics in application code that the runtime calls outside of tasks: wakers and their destructors, the
//! destructors of sent buffers and task results. `log.rs` does the same for the `tracing` subscriber.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::log::{drop_payload, log_event};

// Invariant 16 holds because every call of application code by the driver is in one of these functions.

/// Runs code that may panic. A panic does not propagate; `message` is logged instead.
#[doc(hidden)]
#[inline]
pub fn catch_and_log_panic(message: &'static str, run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        log_panic(message, panic);
    }
}

#[cold]
#[inline(never)]
fn log_panic(message: &'static str, panic: Box<dyn Any + Send>) {
    let panic = rethrow_broken_invariant(panic);
    log_event!(ERROR, "{message}");
    drop_payload(panic);
}

/// Resumes a panic that an assertion on an invariant of this crate has caused, so that tests fail. Returns the payloads
/// of all other panics, which are those of application code. Does nothing in release builds, or if another panic is
/// unwinding.
pub(crate) fn rethrow_broken_invariant(panic: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let is_broken_invariant = text.is_some_and(|text| text.contains("invariant "));
    if cfg!(debug_assertions) && is_broken_invariant && !std::thread::panicking() {
        resume_unwind(panic);
    }
    panic
}
