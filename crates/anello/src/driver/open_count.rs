//! Numbers of open connections of several workers. Each counted connection holds a share, which the driver drops when it
//! releases the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of open connections of the members of a group.
#[derive(Debug)]
pub(crate) struct OpenCounts(Box<[MemberCount]>);

/// Count of one member, on a separate cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct MemberCount {
    open: AtomicU64,
}

impl OpenCounts {
    pub fn new(members: usize) -> Arc<Self> {
        Arc::new(Self((0..members).map(|_| MemberCount::default()).collect()))
    }

    pub fn get(&self, member: usize) -> u64 {
        self.0[member].open.load(Ordering::Relaxed)
    }

    /// Returns the count of each member.
    pub fn all(&self) -> Vec<u64> {
        (0..self.0.len()).map(|member| self.get(member)).collect()
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
        let (first, second) = (OpenCount::new(&counts, 0), OpenCount::new(&counts, 0));
        assert_eq!(counts.all(), [2, 0, 0]);
        let second = second.move_to(1);
        assert_eq!((counts.all(), second.member()), (vec![1, 1, 0], 1));
        drop(first);
        assert_eq!(counts.all(), [0, 1, 0]);
        drop(second.move_to(1));
        assert_eq!(counts.all(), [0, 0, 0]);
    }
}
