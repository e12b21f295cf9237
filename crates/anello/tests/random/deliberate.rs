//! Panics of code that misbehaves on purpose.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::Once;
use std::thread;

use crate::common::add_panic_hook;

/// Payload of every deliberate panic.
pub struct Deliberate;

/// Panics, unless the thread is already panicking: a second panic would abort the process.
pub fn panic_deliberately() {
    if !thread::panicking() {
        panic_any(Deliberate);
    }
}

/// Calls a function in which code may panic deliberately.
pub fn contain(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
        && !payload.is::<Deliberate>()
    {
        resume_unwind(payload);
    }
}

/// Does not print deliberate panics from now on.
pub fn silence() {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| add_panic_hook(|info| !info.payload().is::<Deliberate>()));
}
