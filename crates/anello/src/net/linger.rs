//! Streams that were dropped and still send what they had accepted: each is given up when its time is over.
//!
//! One task and one timer do this for all of a runtime. Nearly every stream is done by the next turn, so that an entry
//! is two words in a queue that is cleared of such before it grows.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::driver::Key;
use crate::executor::Shared;
use crate::time::sleep;

/// How long a dropped stream goes on sending what was accepted.
const LINGER: Duration = Duration::from_secs(30);

/// Dropped streams, in the order in which their time ends. May hold some that are done.
#[derive(Debug, Default)]
pub(crate) struct LingerQueue {
    streams: VecDeque<(u64, Key)>,
    /// Whether the task runs.
    task_running: bool,
}

impl LingerQueue {
    /// Adds a stream. Whether the task has to be spawned.
    pub fn add(&mut self, shared: &Shared, key: Key) -> bool {
        let driver = shared.driver.borrow();
        if self.streams.len() == self.streams.capacity() {
            self.streams.retain(|(_, key)| driver.holds(*key));
        }
        let deadline_ns = driver.now_ns().saturating_add(LINGER.as_nanos() as u64);
        self.streams.push_back((deadline_ns, key));
        !std::mem::replace(&mut self.task_running, true)
    }

    /// Closes each stream whose time is over; ends when none is left.
    pub async fn abort_expired(shared: Rc<Shared>) {
        loop {
            let Some((deadline_ns, key)) = shared.linger_queue.borrow_mut().next(&shared) else { return };
            let left_ns = deadline_ns.saturating_sub(shared.now_ns());
            sleep(Duration::from_nanos(left_ns)).await;
            shared.driver.borrow_mut().abort(key);
        }
    }

    /// The next that is not done.
    fn next(&mut self, shared: &Shared) -> Option<(u64, Key)> {
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
