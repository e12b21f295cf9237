//! Dropped streams that are still sending accepted bytes, and are aborted after a timeout.
//!
//! One task with one timer serves all streams of a runtime. Nearly every stream finishes by the next turn, so entries
//! are small (two words), and finished ones are removed before the queue grows.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::driver::Key;
use crate::executor::Shared;
use crate::time::sleep;

/// Maximum time for which a dropped stream continues to send accepted bytes.
const LINGER: Duration = Duration::from_secs(30);

/// Dropped streams in the order of their deadlines. Some entries may be finished.
#[derive(Debug, Default)]
struct LingerQueue {
    /// Deadline in nanoseconds and key of each stream.
    streams: VecDeque<(u64, Key)>,
    task_running: bool,
}

/// Limits the time for which a dropped stream continues to send accepted bytes.
pub(super) fn linger(shared: &Rc<Shared>, key: Key) {
    let Some(mut queue) = linger_queue(shared) else { return };
    if queue.streams.len() == queue.streams.capacity() {
        let driver = shared.driver.borrow();
        queue.streams.retain(|(_, key)| driver.holds(*key));
    }
    let deadline_ns = shared.now_ns().saturating_add(LINGER.as_nanos() as u64);
    queue.streams.push_back((deadline_ns, key));
    if !std::mem::replace(&mut queue.task_running, true) {
        shared.spawn(abort_expired(Rc::clone(shared))).detach();
    }
}

fn linger_queue(shared: &Shared) -> Option<RefMut<'_, LingerQueue>> {
    shared.extension::<RefCell<LingerQueue>>().map(RefCell::borrow_mut)
}

/// Aborts each stream at its deadline. Returns when the queue is empty.
async fn abort_expired(shared: Rc<Shared>) {
    let next_unfinished = || {
        let mut queue = linger_queue(&shared)?;
        let driver = shared.driver.borrow();
        let next = std::iter::from_fn(|| queue.streams.pop_front()).find(|(_, key)| driver.holds(*key));
        queue.task_running = next.is_some();
        next
    };
    while let Some((deadline_ns, key)) = next_unfinished() {
        sleep(Duration::from_nanos(deadline_ns.saturating_sub(shared.now_ns()))).await;
        shared.driver.borrow_mut().abort(key);
    }
}
