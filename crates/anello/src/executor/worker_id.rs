//! Numbers that identify the runtimes of a process.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The number of a runtime. No other runtime that exists has it.
#[derive(Debug)]
pub(super) struct WorkerId(u32);

struct Ids {
    next: u32,
    in_use: BTreeSet<u32>,
}

/// The mailbox uses the highest bit as a flag.
const MAX_ID: u32 = u32::MAX >> 1;

static IDS: Mutex<Ids> = Mutex::new(Ids { next: 0, in_use: BTreeSet::new() });

impl Ids {
    /// Returns the next number that is not in use, so that a number is reused as late as possible.
    fn take(&mut self) -> u32 {
        loop {
            let id = self.next;
            self.next = if id == MAX_ID { 0 } else { id + 1 };
            if self.in_use.insert(id) {
                return id;
            }
        }
    }
}

impl WorkerId {
    pub fn new() -> Self {
        Self(IDS.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    pub fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for WorkerId {
    fn drop(&mut self) {
        IDS.lock().unwrap_or_else(PoisonError::into_inner).in_use.remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_in_use_is_skipped_after_the_last_one() {
        let mut ids = Ids { next: MAX_ID - 1, in_use: BTreeSet::from([0, 1, 3]) };
        assert_eq!([ids.take(), ids.take(), ids.take(), ids.take()], [MAX_ID - 1, MAX_ID, 2, 4]);
        ids.in_use.remove(&3);
        assert_eq!(ids.take(), 5, "the freed number is reused later");
    }
}
