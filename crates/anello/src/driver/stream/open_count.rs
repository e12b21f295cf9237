//! Numbers of open connections of several workers. Each counted connection holds a share, which the driver drops when it
//! releases the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of open connections of the members of a group.
#[derive(Debug)]
pub(crate) struct OpenCounts(Box<[MemberCount]>);

/// Count of one member, on a separate cache line.
#[derive(Debug)]
#[repr(align(64))]
struct MemberCount {
    open: AtomicU64,
    /// The member's worker, or `NO_WORKER`.
    worker: AtomicU64,
}

/// No worker has this ID.
const NO_WORKER: u64 = u64::MAX;

impl OpenCounts {
    pub fn new(members: usize) -> Arc<Self> {
        let member = || MemberCount { open: AtomicU64::new(0), worker: AtomicU64::new(NO_WORKER) };
        Arc::new(Self((0..members).map(|_| member()).collect()))
    }

    pub fn get(&self, member: usize) -> u64 {
        self.0[member].open.load(Ordering::Relaxed)
    }

    /// Returns the count of each member.
    pub fn all(&self) -> Vec<u64> {
        (0..self.0.len()).map(|member| self.get(member)).collect()
    }

    /// Sets or removes the worker of a member.
    pub fn set_worker(&self, member: usize, worker: Option<u64>) {
        self.0[member].worker.store(worker.unwrap_or(NO_WORKER), Ordering::Relaxed);
    }
}

/// One connection's share of a member's count. Dropping it runs no application code, so the driver may be borrowed.
#[derive(Debug)]
pub(crate) struct OpenCount {
    counts: Arc<OpenCounts>,
    member: usize,
}

impl OpenCount {
    /// Counts a connection of this member.
    pub fn new(counts: &Arc<OpenCounts>, member: usize) -> Self {
        counts.0[member].open.fetch_add(1, Ordering::Relaxed);
        Self { counts: Arc::clone(counts), member }
    }

    pub fn member(&self) -> usize {
        self.member
    }

    /// Counts the connection for another member instead.
    pub fn move_to(self, member: usize) -> Self {
        if member == self.member { self } else { Self::new(&self.counts, member) }
    }

    /// Counts the connection for the member that the worker is. Returns `None` if the worker is not in the group.
    pub fn move_to_worker(self, worker: u64) -> Option<Self> {
        let is_worker = |member: &MemberCount| member.worker.load(Ordering::Relaxed) == worker;
        let member = self.counts.0.iter().position(is_worker)?;
        Some(self.move_to(member))
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.counts.0[self.member].open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_counted_for_one_member_until_it_is_dropped() {
        let counts = OpenCounts::new(3);
        counts.set_worker(2, Some(7));
        let (first, second) = (OpenCount::new(&counts, 0), OpenCount::new(&counts, 0));
        assert_eq!(counts.all(), [2, 0, 0]);
        let second = second.move_to(1);
        assert_eq!((counts.all(), second.member()), (vec![1, 1, 0], 1));
        let second = second.move_to_worker(7).expect("worker 7 is in the group");
        assert_eq!((counts.all(), second.member()), (vec![1, 0, 1], 2));
        assert!(first.move_to_worker(8).is_none());
        assert_eq!(counts.all(), [0, 0, 1]);
        counts.set_worker(2, None);
        assert!(second.move_to_worker(7).is_none());
        assert_eq!(counts.all(), [0, 0, 0]);
    }
}
