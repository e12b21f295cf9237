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
    contain_if(|_| false, run);
}

/// Calls a function in which a future may also find that its runtime has been dropped before the deadline of a timer.
pub fn contain_lost_timers(run: impl FnOnce()) {
    contain_if(|message| message.starts_with("the runtime of a timer was dropped"), run);
}

fn contain_if(is_expected: impl Fn(&str) -> bool, run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
        && !payload.is::<Deliberate>()
        && !payload.downcast_ref::<&str>().is_some_and(|message| is_expected(message))
    {
        resume_unwind(payload);
    }
}

/// Does not print deliberate panics from now on.
pub fn silence() {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| add_panic_hook(|info| !info.payload().is::<Deliberate>()));
}
