//! Panics of code that misbehaves on purpose.

use std::any::Any;
use std::cell::Cell;
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
        && !is_expected(&*payload)
    {
        resume_unwind(payload);
    }
}

thread_local! {
    static MAY_LOSE_TIMERS: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function in which a future may also find that its runtime has been dropped before the deadline of a timer.
pub fn contain_lost_timers(run: impl FnOnce()) {
    MAY_LOSE_TIMERS.set(true);
    contain(run);
    MAY_LOSE_TIMERS.set(false);
}

fn is_expected(payload: &(dyn Any + Send)) -> bool {
    let message = payload.downcast_ref::<&str>();
    let is_lost_timer = message.is_some_and(|it| it.starts_with("the runtime of a timer was dropped"));
    payload.is::<Deliberate>() || is_lost_timer && MAY_LOSE_TIMERS.get()
}

/// Does not print expected panics from now on. The memory for their captured output would appear to be leaked.
pub fn silence() {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| add_panic_hook(|info| !is_expected(info.payload())));
}
