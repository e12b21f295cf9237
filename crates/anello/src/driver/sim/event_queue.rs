//! Queue of future events on the shared virtual clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events ordered by time and, at the same time, by insertion.
///
/// The heap contains only positions, because an event is larger than its position and would be copied at each level.
#[derive(Debug)]
pub(super) struct EventQueue<T> {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    events: Vec<Option<T>>,
    vacant: Vec<u32>,
    inserted: u64,
}

impl<T> EventQueue<T> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), events: Vec::new(), vacant: Vec::new(), inserted: 0 }
    }

    pub fn push(&mut self, at_ns: u64, event: T) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.events.push(None);
            (self.events.len() - 1) as u32
        });
        self.events[index as usize] = Some(event);
        self.inserted += 1;
        self.heap.push(Reverse((at_ns, self.inserted, index)));
    }

    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// Removes the first event if it is due.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let Reverse((_, _, index)) = self.heap.pop()?;
        self.vacant.push(index);
        self.events[index as usize].take()
    }
}
