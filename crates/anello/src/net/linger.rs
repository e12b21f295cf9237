//! Dropped streams that are still sending accepted bytes, and are aborted after a timeout.
//!
//! One task with one timer serves all streams of a runtime. Nearly every stream finishes by the next turn. Entries are
//! therefore small (two words), and finished entries are removed before the queue grows.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::driver::{Driver, Key};
use crate::executor::Shared;
use crate::time::sleep;

/// Maximum time for which a dropped stream continues to send accepted bytes.
const LINGER: Duration = Duration::from_secs(30);

/// Dropped streams in the order of their deadlines. Some entries may be finished.
#[derive(Debug, Default)]
struct LingerQueue {
    streams: VecDeque<(u64, Key)>,
    /// Whether the task is running.
    task_running: bool,
}

/// Limits the time for which a dropped stream continues to send accepted bytes.
pub(super) fn linger(shared: &Rc<Shared>, key: Key) {
    let must_spawn =
        linger_queue(shared).is_some_and(|queue| queue.borrow_mut().add(&shared.driver.borrow(), key));
    if must_spawn {
        shared.spawn(abort_expired(Rc::clone(shared))).detach();
    }
}

fn linger_queue(shared: &Shared) -> Option<&RefCell<LingerQueue>> {
    shared.extension()
}

/// Aborts each stream at its deadline. Returns when the queue is empty.
async fn abort_expired(shared: Rc<Shared>) {
    let next = || linger_queue(&shared)?.borrow_mut().pop_unfinished(&shared.driver.borrow());
    while let Some((deadline_ns, key)) = next() {
        sleep(Duration::from_nanos(deadline_ns.saturating_sub(shared.now_ns()))).await;
        shared.driver.borrow_mut().abort(key);
    }
}

impl LingerQueue {
    /// Adds a stream. Returns `true` if the caller must spawn the task.
    fn add(&mut self, driver: &Driver, key: Key) -> bool {
        if self.streams.len() == self.streams.capacity() {
            self.streams.retain(|(_, key)| driver.holds(*key));
        }
        let deadline_ns = driver.now_ns().saturating_add(LINGER.as_nanos() as u64);
        self.streams.push_back((deadline_ns, key));
        !std::mem::replace(&mut self.task_running, true)
    }

    /// Removes and returns the next unfinished stream.
    fn pop_unfinished(&mut self, driver: &Driver) -> Option<(u64, Key)> {
        let unfinished = std::iter::from_fn(|| self.streams.pop_front()).find(|(_, key)| driver.holds(*key));
        self.task_running = unfinished.is_some();
        unfinished
    }
}
