//! Aborts dropped streams that are still sending accepted bytes after a timeout.
//!
//! One task with one timer serves all streams of a runtime. Nearly every stream finishes by the next turn, so entries
//! are small (two words), and finished ones are removed before the queue grows.

use std::rc::Rc;
use std::time::Duration;

use crate::driver::Key;
use crate::executor::Shared;
use crate::time::sleep;

/// Maximum time for which a dropped stream continues to send accepted bytes.
const LINGER: Duration = Duration::from_secs(30);

/// Limits the time for which a dropped stream continues to send accepted bytes.
pub(super) fn linger(shared: &Rc<Shared>, key: Key) {
    let mut lingering = shared.sockets.lingering.borrow_mut();
    let is_task_running = !lingering.is_empty();
    if lingering.len() == lingering.capacity() {
        let driver = shared.driver.borrow();
        lingering.retain(|(_, key)| driver.holds(*key));
    }
    lingering.push_back((shared.now_ns().saturating_add(LINGER.as_nanos() as u64), key));
    drop(lingering);
    if !is_task_running {
        shared.spawn(abort_expired(Rc::clone(shared))).detach();
    }
}

/// Aborts each stream at its deadline. Returns when no streams are left.
async fn abort_expired(shared: Rc<Shared>) {
    let next_deadline_ns = |now_ns| {
        let (mut lingering, mut driver) = (shared.sockets.lingering.borrow_mut(), shared.driver.borrow_mut());
        while let Some(&(deadline_ns, key)) = lingering.front() {
            if deadline_ns > now_ns && driver.holds(key) {
                return Some(deadline_ns);
            }
            driver.abort(key);
            lingering.pop_front();
        }
        None
    };
    loop {
        let now_ns = shared.now_ns();
        let Some(deadline_ns) = next_deadline_ns(now_ns) else { return };
        sleep(Duration::from_nanos(deadline_ns - now_ns)).await;
    }
}
