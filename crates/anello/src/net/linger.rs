//! Dropped streams that still send accepted bytes, and are aborted after a timeout.
//!
//! One task with one timer serves all streams of a runtime. Nearly every stream is finished by the next turn.
//! Therefore an entry consists of two words, and finished entries are removed before the queue grows.

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
pub(crate) struct LingerQueue {
    streams: VecDeque<(u64, Key)>,
    /// Whether the task is running.
    task_running: bool,
}

impl LingerQueue {
    /// Adds a stream. Returns `true` if the caller must spawn the task.
    pub fn add(&mut self, shared: &Shared, key: Key) -> bool {
        let driver = shared.driver.borrow();
        if self.streams.len() == self.streams.capacity() {
            self.streams.retain(|(_, key)| driver.holds(*key));
        }
        let deadline_ns = driver.now_ns().saturating_add(LINGER.as_nanos() as u64);
        self.streams.push_back((deadline_ns, key));
        !std::mem::replace(&mut self.task_running, true)
    }

    /// Aborts each stream at its deadline. Returns when the queue is empty.
    pub async fn abort_expired(shared: Rc<Shared>) {
        loop {
            let Some((deadline_ns, key)) = shared.linger_queue.borrow_mut().pop_unfinished(&shared) else {
                return;
            };
            let left_ns = deadline_ns.saturating_sub(shared.now_ns());
            sleep(Duration::from_nanos(left_ns)).await;
            shared.driver.borrow_mut().abort(key);
        }
    }

    /// Removes and returns the next unfinished stream.
    fn pop_unfinished(&mut self, shared: &Shared) -> Option<(u64, Key)> {
        let driver = shared.driver.borrow();
        while let Some(stream) = self.streams.pop_front() {
            if driver.holds(stream.1) {
                return Some(stream);
            }
        }
        self.task_running = false;
        None
    }
}
