//! Aborts streams that were dropped, or shut down by a handle, and send accepted bytes without progress.
//!
//! One task with one timer serves all streams of a runtime.

use std::rc::Rc;
use std::time::Duration;

use crate::driver::{Key, WakeQueue};
use crate::executor::Shared;
use crate::time::sleep;

/// Limits the time for which a stream continues to send accepted bytes without progress.
pub(super) fn linger(shared: &Rc<Shared>, key: Key) {
    let mut lingering = shared.sockets.lingering.borrow_mut();
    let is_task_running = !lingering.is_empty();
    lingering.push(key, &*shared.driver.borrow(), shared.now_ns());
    drop(lingering);
    if !is_task_running {
        shared.spawn(abort_without_progress(Rc::clone(shared))).detach();
    }
}

/// Returns when no streams are left.
async fn abort_without_progress(shared: Rc<Shared>) {
    loop {
        let now_ns = shared.now_ns();
        let mut wakes = WakeQueue::default();
        let next_check_ns = {
            let mut lingering = shared.sockets.lingering.borrow_mut();
            lingering.check(&mut *shared.driver.borrow_mut(), now_ns, &mut wakes);
            lingering.next_check_ns()
        };
        // Nothing may be borrowed here: a waker can run arbitrary code. If no stream was left before, one that it drops
        // starts another task.
        wakes.call();
        let Some(next_check_ns) = next_check_ns else { return };
        sleep(Duration::from_nanos(next_check_ns - now_ns)).await;
    }
}
