//! Counts of the connections that were assigned to each member, and the choice of the member that gets the next one.
//!
//! # Design
//! A member counts each connection that it accepts. One whose count is above the mean by more than the slack transfers the
//! connection to the member with the lowest count. The common case costs two atomic additions and no lock. Counts are of
//! connections over time, not of open ones, so that short connections are distributed, too.
//!
//! # Invariants
//! - The total is the sum of the counts of the members that take part, but for additions in flight on other threads.
//! - A member takes part from its first call of `accept` until it leaves. It starts at the mean, so that it gets no more than the
//!   others from then on. A member that has no room for its connection loses its turn, for the same reason.
//! - All but the counting of accepted connections happens under the lock of the group.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How connections are distributed over the members of a [`ListenerGroup`](super::ListenerGroup).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distribution {
    /// A member that was assigned more connections than the mean of all members transfers further ones to the member with
    /// the fewest. No member is ahead of the mean by more than 8 connections. Each member that has called
    /// [`accept`](super::GroupMember::accept) gets its part until it is dropped: up to 1024 connections wait for one that
    /// does not call it again, or 16 if it does not [accept ahead](super::GroupMember::set_accept_ahead).
    #[default]
    Balanced,
    /// Each member serves what the kernel gives it. With a socket for each member (`SO_REUSEPORT`) this is random, by a hash
    /// of the addresses; from a shared socket, one member may get most.
    Kernel,
}

/// How far a member's count may be above the mean: a sixteenth, within these bounds. The few connections of clients that
/// stay should be distributed evenly. Of many short ones the kernel distributes well enough, with a socket for each of 4
/// workers, for all but 2.5 % to be served where they are accepted; with a slack of 1 it would be 26 %.
const MIN_SLACK: u64 = 2;
const MAX_SLACK: u64 = 8;

/// The counts of all members.
#[derive(Debug)]
pub(super) struct Balance {
    is_on: AtomicBool,
    members: Box<[Member]>,
    taking_part: AtomicU64,
    total: AtomicU64,
}

/// Each on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Member {
    assigned: AtomicU64,
    /// A hint for a look without the lock: connections were transferred to this member.
    has_transferred: AtomicBool,
}

impl Balance {
    pub fn new(members: usize) -> Self {
        Self {
            is_on: AtomicBool::new(true),
            members: (0..members).map(|_| Member::default()).collect(),
            taking_part: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    pub fn set(&self, distribution: Distribution) {
        self.is_on.store(distribution == Distribution::Balanced, Ordering::Relaxed);
    }

    pub fn distribution(&self) -> Distribution {
        match self.is_on.load(Ordering::Relaxed) {
            true => Distribution::Balanced,
            false => Distribution::Kernel,
        }
    }

    /// Counts a connection for a member. Returns whether the member is to serve it, or else to transfer it.
    #[inline]
    pub fn count(&self, member: usize) -> bool {
        if !self.is_on.load(Ordering::Relaxed) {
            return true;
        }
        let assigned = self.members[member].assigned.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        let mean = total / self.taking_part.load(Ordering::Relaxed).max(1);
        assigned <= mean + (mean / 16).clamp(MIN_SLACK, MAX_SLACK)
    }

    pub fn assigned(&self, member: usize) -> u64 {
        self.members[member].assigned.load(Ordering::Relaxed)
    }

    /// The member takes part from now on.
    pub fn join(&self, member: usize) {
        let others = self.taking_part.fetch_add(1, Ordering::Relaxed);
        let mean = self.total.load(Ordering::Relaxed).checked_div(others).unwrap_or(0);
        self.raise(member, mean);
    }

    /// The member does not take part any more.
    pub fn leave(&self, member: usize) {
        self.taking_part.fetch_sub(1, Ordering::Relaxed);
        let assigned = self.members[member].assigned.swap(0, Ordering::Relaxed);
        self.total.fetch_sub(assigned, Ordering::Relaxed);
    }

    /// Raises a member's count, without a connection.
    pub fn raise(&self, member: usize, to: u64) {
        let before = self.members[member].assigned.fetch_max(to, Ordering::Relaxed);
        self.total.fetch_add(to.saturating_sub(before), Ordering::Relaxed);
    }

    /// A connection that was counted for one member is another's.
    pub fn transfer(&self, from: usize, to: usize) {
        self.members[from].assigned.fetch_sub(1, Ordering::Relaxed);
        self.members[to].assigned.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether connections may have been transferred to the member.
    #[inline]
    pub fn has_transferred(&self, member: usize) -> bool {
        self.members[member].has_transferred.load(Ordering::Relaxed)
    }

    pub fn set_transferred(&self, member: usize, has: bool) {
        self.members[member].has_transferred.store(has, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(balance: &Balance) -> Vec<u64> {
        (0..balance.members.len()).map(|member| balance.assigned(member)).collect()
    }

    fn of(members: usize) -> Balance {
        let balance = Balance::new(members);
        (0..members).for_each(|member| balance.join(member));
        balance
    }

    #[test]
    fn member_keeps_up_to_the_slack() {
        // Of n connections at one of 4 members, the mean is n / 4.
        let balance = of(4);
        assert_eq!((0..10).take_while(|_| balance.count(0)).count(), 2);
        let many = of(4);
        (0..4).for_each(|member| many.raise(member, 1000));
        assert_eq!((0..20).take_while(|_| many.count(0)).count(), 10);
    }

    #[test]
    fn single_member_keeps_everything() {
        let balance = of(1);
        assert!((0..1000).all(|_| balance.count(0)));
    }

    #[test]
    fn member_that_joins_starts_at_the_mean() {
        let balance = Balance::new(3);
        balance.join(0);
        balance.join(1);
        for _ in 0..100 {
            balance.count(0);
            balance.count(1);
        }
        balance.join(2);
        assert_eq!(counts(&balance), [100, 100, 100]);
        balance.leave(1);
        assert_eq!((counts(&balance), balance.total.load(Ordering::Relaxed)), (vec![100, 0, 100], 200));
        assert!((0..8).all(|_| balance.count(0)), "two take part");
    }

    #[test]
    fn kernel_distribution_transfers_nothing() {
        let balance = of(2);
        balance.set(Distribution::Kernel);
        assert!((0..1000).all(|_| balance.count(0)));
        assert_eq!(balance.distribution(), Distribution::Kernel);
    }
}
