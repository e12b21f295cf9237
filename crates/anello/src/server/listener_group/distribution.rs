//! Connection counts for the members, and the choice of the member that serves a connection.
//!
//! A member counts each connection that it accepts. A member whose count exceeds the mean by more than the slack
//! transfers the connection to the member with the lowest count. The common case costs two atomic additions and no
//! lock. The counts include closed connections, so short-lived connections are also distributed.
//!
//! # Invariants
//! - The total is the sum of the counts of the participating members, except for additions in flight on other threads.
//! - A member participates from its first call to `accept` until it leaves. Its count starts at the mean, so it does
//!   not receive more connections than the other members. For the same reason, the count of a member whose queue is
//!   full is raised without assigning a connection to it.
//! - Everything except counting accepted connections happens under the group's lock.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Policy for distributing connections over the members of a [`ListenerGroup`](super::ListenerGroup).
///
/// ```
/// use anello::net::TcpListener;
/// use anello::server::{Distribution, ListenerGroup};
///
/// // Connections that stay open for hours, such as WebSockets.
/// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
/// assert_eq!(group.distribution(), Distribution::Balanced);
/// group.set_distribution(Distribution::LeastLoaded);
/// assert_eq!(group.distribution(), Distribution::LeastLoaded);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distribution {
    /// A member that has been assigned more connections than the mean of all members transfers further connections to
    /// the member with the fewest. No member exceeds the mean by more than 8 connections. Each member that has called
    /// [`accept`](super::GroupMember::accept) receives its share until it is dropped. If it stops calling `accept`, up
    /// to 1024 connections are queued for it, or 16 if it does not [accept
    /// ahead](super::GroupMember::set_accept_ahead).
    #[default]
    Balanced,
    /// Each connection goes to the member with the fewest open connections; if several have the fewest, the member that
    /// accepted it keeps it. A connection is open until its stream is closed or
    /// [detached](crate::net::StreamSocket::into_std), and is counted for another member once it has
    /// [moved](crate::net::StreamSocket::move_to) there. Connections that were accepted under another distribution are
    /// not counted. Each connection locks the group and occupies an entry in a hash table, so use this for long-lived
    /// connections.
    ///
    /// While no connection closes, the counts differ by at most 1. For 10 or more connections on two workers, the
    /// busiest therefore has at most 1.1 times the mean. Three connections are distributed 2 to 1, which is the best
    /// possible.
    LeastLoaded,
    /// Each member serves the connections that the kernel assigns to it. With one socket per member (`SO_REUSEPORT`),
    /// the kernel selects the socket by a hash of the addresses, or by the core on which the connection arrives
    /// ([`steer_by_core`](super::ListenerGroup::steer_by_core)). With a shared socket, one member may receive most of
    /// the connections.
    Kernel,
}

/// Bounds for the slack, which is the amount by which a member's count can exceed the mean. Within these bounds, the
/// slack is one sixteenth of the mean. Long-lived connections are few and should be distributed evenly. Many
/// short-lived connections are distributed well enough by the kernel: with 4 workers and one socket per worker, 2.5 %
/// of them are transferred. With a slack of 1, 26 % would be transferred.
const MIN_SLACK: u64 = 2;
const MAX_SLACK: u64 = 8;

#[derive(Debug)]
pub(super) struct Balance {
    distribution: AtomicU8,
    members: Box<[Member]>,
    participants: AtomicU64,
    total: AtomicU64,
}

/// Counters for one member, on a separate cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Member {
    assigned: AtomicU64,
    /// Whether connections may have been transferred to this member. Can be read without the lock.
    has_transferred: AtomicBool,
}

impl Balance {
    pub fn new(members: usize) -> Self {
        Self {
            distribution: AtomicU8::new(Distribution::default() as u8),
            members: (0..members).map(|_| Member::default()).collect(),
            participants: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    pub fn set(&self, distribution: Distribution) {
        self.distribution.store(distribution as u8, Ordering::Relaxed);
    }

    pub fn distribution(&self) -> Distribution {
        let distribution = self.distribution.load(Ordering::Relaxed);
        let all = [Distribution::Balanced, Distribution::LeastLoaded, Distribution::Kernel];
        all.into_iter().find(|known| *known as u8 == distribution).unwrap_or_default()
    }

    /// Counts a connection for a member if connections are balanced. Returns `true` if the member should serve the
    /// connection, and `false` if it should transfer it.
    #[inline]
    pub fn count(&self, member: usize) -> bool {
        if self.distribution.load(Ordering::Relaxed) != Distribution::Balanced as u8 {
            return true;
        }
        let assigned = self.members[member].assigned.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        let mean = total / self.participants.load(Ordering::Relaxed).max(1);
        assigned <= mean + (mean / 16).clamp(MIN_SLACK, MAX_SLACK)
    }

    pub fn assigned(&self, member: usize) -> u64 {
        self.members[member].assigned.load(Ordering::Relaxed)
    }

    /// Adds the member to the participating members, with a count equal to the mean.
    pub fn join(&self, member: usize) {
        let others = self.participants.fetch_add(1, Ordering::Relaxed);
        let mean = self.total.load(Ordering::Relaxed).checked_div(others).unwrap_or(0);
        self.raise(member, mean);
    }

    /// Removes the member and its count.
    pub fn leave(&self, member: usize) {
        self.participants.fetch_sub(1, Ordering::Relaxed);
        let assigned = self.members[member].assigned.swap(0, Ordering::Relaxed);
        self.total.fetch_sub(assigned, Ordering::Relaxed);
    }

    /// Raises a member's count to `to` without assigning a connection.
    pub fn raise(&self, member: usize, to: u64) {
        let previous = self.members[member].assigned.fetch_max(to, Ordering::Relaxed);
        self.total.fetch_add(to.saturating_sub(previous), Ordering::Relaxed);
    }

    pub fn transfer(&self, from: usize, to: usize) {
        self.members[from].assigned.fetch_sub(1, Ordering::Relaxed);
        self.members[to].assigned.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether connections may have been transferred to the member.
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

    fn joined_balance(members: usize) -> Balance {
        let balance = Balance::new(members);
        (0..members).for_each(|member| balance.join(member));
        balance
    }

    #[test]
    fn member_keeps_connections_up_to_slack() {
        // With n connections on one of 4 members, the mean is n / 4.
        let balance = joined_balance(4);
        assert_eq!((0..10).take_while(|_| balance.count(0)).count(), 2);
        let many = joined_balance(4);
        (0..4).for_each(|member| many.raise(member, 1000));
        assert_eq!((0..20).take_while(|_| many.count(0)).count(), 10);
        let single = joined_balance(1);
        assert!((0..1000).all(|_| single.count(0)));
    }

    #[test]
    fn joining_member_starts_at_mean() {
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
        assert!((0..8).all(|_| balance.count(0)), "two members participate");
    }

    #[test]
    fn kernel_distribution_transfers_nothing() {
        let balance = joined_balance(2);
        balance.set(Distribution::Kernel);
        assert!((0..1000).all(|_| balance.count(0)));
        assert_eq!(balance.distribution(), Distribution::Kernel);
    }
}
