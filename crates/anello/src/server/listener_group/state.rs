//! State shared by the members of a group: the sockets, their assignment to members, and the queued connections.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::distribution::Balance;
use super::pending::PendingConnections;
use crate::driver::{AcceptSink, DetachedConnection, DetachedSocket, OpenCount, OpenCounts, wake_all};
use crate::executor::flush_wakes_before_blocking;

/// Maximum number of connections transferred to a member but not yet accepted by it. With 4 workers, this is one
/// worker's share of a burst that fills a backlog.
const MAX_TRANSFERRED: usize = 1024;

/// The same limit for a member that does not accept connections in advance. It suffices for the connections that
/// another worker accepts before this member runs again.
const MAX_TRANSFERRED_WITHOUT_AHEAD: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    Open,
    Paused,
    Closed(PendingConnections),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MemberState {
    #[default]
    Joining,
    Active,
    Departed,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub member_state: MemberState,
    /// Indices into [`State::sockets`].
    pub sockets: Vec<usize>,
    /// Group state that the member has applied completely.
    pub applied_state: Option<GroupState>,
    /// Number of released listeners that the kernel still holds.
    pub releasing: usize,
    pub waker: Option<Waker>,
    /// Whether the member participates in balancing: it has applied a state and has not left.
    pub participates: bool,
    /// Connections that another member has accepted for this one.
    pub transferred: VecDeque<AcceptedConnection>,
    max_transferred: usize,
}

/// A connection that is not attached to a driver.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    pub connection: DetachedConnection,
    /// Set if open connections are counted ([`Distribution::LeastLoaded`]): the share in the count of the member to
    /// which the connection is assigned.
    pub open_count: Option<OpenCount>,
}

impl AcceptedConnection {
    pub fn new(socket: DetachedSocket, open_count: Option<OpenCount>) -> Self {
        Self { connection: DetachedConnection::new(socket), open_count }
    }
}

impl From<DetachedSocket> for AcceptedConnection {
    fn from(socket: DetachedSocket) -> Self {
        Self::new(socket, None)
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub group_state: GroupState,
    pub slots: Vec<Slot>,
    /// `None` once a socket is closed.
    pub sockets: Vec<Option<DetachedSocket>>,
    /// Connections that were accepted for released listeners.
    pub unclaimed: VecDeque<AcceptedConnection>,
    /// Wakers of the tasks waiting for the group to close, keyed by an ID that is never reused.
    pub close_wakers: BTreeMap<u64, Waker>,
    next_waker_id: u64,
}

#[derive(Debug)]
pub(super) struct Group {
    state: Mutex<State>,
    /// Incremented when members must read the state. Members need no lock while it is unchanged.
    version: AtomicU64,
    changed: Condvar,
    pub balance: Balance,
    /// Numbers of open connections. Increased only under the lock, so that two members cannot choose the same one.
    pub open_counts: Arc<OpenCounts>,
}

impl Group {
    pub fn new(sockets: Vec<DetachedSocket>, members: usize, group_state: GroupState) -> Arc<Self> {
        let slots = (0..members).map(|member| Slot {
            sockets: assigned_sockets(member, members, sockets.len()),
            max_transferred: MAX_TRANSFERRED,
            ..Slot::default()
        });
        let state = Mutex::new(State {
            group_state,
            slots: slots.collect(),
            sockets: sockets.into_iter().map(Some).collect(),
            unclaimed: VecDeque::new(),
            close_wakers: BTreeMap::new(),
            next_waker_id: 0,
        });
        let (version, changed) = (AtomicU64::new(1), Condvar::new());
        let (balance, open_counts) = (Balance::new(members), OpenCounts::new(members));
        Arc::new(Self { state, version, changed, balance, open_counts })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        // Except for the clone function of wakers, no application code runs while the lock is held. Wakers are called
        // and dropped after the lock is released, because either can drop a task that owns a member.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.lock();
            change(&mut state);
            self.version.fetch_add(1, Ordering::Release);
            let mut wakers = state.members_wakers();
            if matches!(state.group_state, GroupState::Closed(_)) {
                wakers.extend(std::mem::take(&mut state.close_wakers).into_values());
            }
            wakers
        };
        self.changed.notify_all();
        wake_all(wakers);
    }

    /// Records that a member has applied the current state. The first call includes the member in balancing.
    pub fn set_applied(&self, state: &mut State, member: usize) {
        state.slots[member].applied_state = Some(state.group_state);
        if !std::mem::replace(&mut state.slots[member].participates, true) {
            self.balance.join(member);
        }
        self.changed.notify_all();
    }

    /// Removes a member. Returns the member that takes over its sockets, if any.
    pub fn leave(&self, state: &mut State, member: usize) -> Option<usize> {
        if std::mem::take(&mut state.slots[member].participates) {
            self.balance.leave(member);
        }
        self.open_counts.set_worker(member, None);
        state.leave(member)
    }

    /// Sets whether connections may be queued for the member before it calls `accept`. Connections already queued stay
    /// queued.
    pub fn set_accept_ahead(&self, member: usize, accepts_ahead: bool) {
        let max_transferred = if accepts_ahead { MAX_TRANSFERRED } else { MAX_TRANSFERRED_WITHOUT_AHEAD };
        self.lock().slots[member].max_transferred = max_transferred;
    }

    /// Counts an open connection for the member with the fewest, among the members that have room for it. The member
    /// that has accepted the connection always has room, and is preferred to others with the same count.
    #[cold]
    #[inline(never)]
    pub fn assign_to_least_loaded(&self, from: usize) -> OpenCount {
        let state = self.lock();
        let participants = state.slots.iter().enumerate().filter(|(_, slot)| slot.has_room());
        let members = participants.map(|(member, _)| member).chain([from]);
        let least_loaded = members.min_by_key(|member| (self.open_counts.get(*member), *member != from));
        OpenCount::new(&self.open_counts, least_loaded.unwrap_or(from))
    }

    /// Transfers a connection from the member that accepted and counted it to the member to which it is assigned, or
    /// else to the member with the lowest count. Returns the connection if it stays with the member that accepted it.
    #[cold]
    #[inline(never)]
    pub fn transfer(&self, from: usize, connection: AcceptedConnection) -> Option<AcceptedConnection> {
        let mut state = self.lock();
        // A pausing member applies the state under this lock, once its queue is empty. The queue must then stay empty,
        // so connections are transferred only while the group is open.
        let target = (state.group_state == GroupState::Open).then(|| match &connection.open_count {
            Some(open) => Some(open.member()).filter(|target| state.slots[*target].has_room()),
            None => self.target(&state, from).inspect(|target| self.balance.transfer(from, *target)),
        });
        let Some(target) = target.flatten() else { return Some(connection) };
        let slot = &mut state.slots[target];
        debug_assert_ne!(
            slot.member_state,
            MemberState::Departed,
            "invariant 17: a connection is transferred to a member that has left"
        );
        let waker = slot.waker.clone();
        slot.transferred.push_back(connection);
        self.balance.set_transferred(target, true);
        drop(state);
        // The waker is called even if another worker has woken the member, because that wake-up may stay queued for
        // a long time.
        wake_all(waker);
        None
    }

    /// Returns the member with the lowest count, if that count plus one is lower than the count of member `from`.
    fn target(&self, state: &State, from: usize) -> Option<usize> {
        let assigned = self.balance.assigned(from);
        let participants = state.slots.iter().enumerate().filter(|(_, slot)| slot.participates);
        let counts = participants.filter_map(|(member, slot)| {
            if !slot.has_room() {
                self.balance.raise(member, assigned);
                return None;
            }
            Some((self.balance.assigned(member), member))
        });
        counts.min().filter(|(count, _)| count + 1 < assigned).map(|(_, member)| member)
    }

    /// Returns the next connection that was transferred to the member.
    #[inline]
    pub fn take_transferred(&self, member: usize) -> Option<AcceptedConnection> {
        if !self.balance.has_transferred(member) {
            return None;
        }
        self.pop_transferred(&mut self.lock(), member)
    }

    /// Returns the next connection that was accepted for this member, or for a member that could not serve it.
    pub fn take_accepted(&self, state: &mut State, member: usize) -> Option<AcceptedConnection> {
        self.pop_transferred(state, member).or_else(|| {
            let unclaimed = state.unclaimed.pop_front()?;
            self.balance.count(member);
            Some(unclaimed)
        })
    }

    fn pop_transferred(&self, state: &mut State, member: usize) -> Option<AcceptedConnection> {
        let transferred = &mut state.slots[member].transferred;
        let connection = transferred.pop_front();
        debug_assert!(
            connection.is_none() || state.slots[member].member_state != MemberState::Departed,
            "invariant 17: a connection was transferred to a member that has left"
        );
        let transferred = &state.slots[member].transferred;
        self.balance.set_transferred(member, !transferred.is_empty());
        connection
    }

    /// Blocks until every member that has not left has applied the current state. Returns the number of these members.
    pub fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        flush_wakes_before_blocking();
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |state| state.late_members() > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (count, late) = (state.present().count(), state.late_members());
        if late == 0 {
            return Ok(count);
        }
        let message =
            format!("timed out after {timeout:?}: {late} of {count} workers have not applied the change");
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

impl Slot {
    /// Returns whether connections can be transferred to the member.
    fn has_room(&self) -> bool {
        self.participates && self.transferred.len() < self.max_transferred
    }
}

impl State {
    fn members_wakers(&self) -> Vec<Waker> {
        self.slots.iter().filter_map(|slot| slot.waker.clone()).collect()
    }

    /// Returns whether another member accepts from the socket.
    pub fn has_other(&self, socket: usize, member: usize) -> bool {
        let mut others = self.slots.iter().enumerate().filter(|(other, _)| *other != member);
        others.any(|(_, slot)| slot.member_state != MemberState::Departed && slot.sockets.contains(&socket))
    }

    fn present(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.member_state != MemberState::Departed)
    }

    /// Returns the number of present members that have not applied the current state.
    fn late_members(&self) -> usize {
        self.present().filter(|slot| slot.applied_state != Some(self.group_state)).count()
    }

    /// Marks a member as departed. Returns the next present member, which takes over the sockets that no other member
    /// accepts from. Connections transferred to the departed member can be accepted by any member. The sockets are
    /// closed if the group is closed or no member is left. If no member is left, unclaimed connections are also closed.
    pub fn leave(&mut self, member: usize) -> Option<usize> {
        let slot = &mut self.slots[member];
        debug_assert_ne!(
            slot.member_state,
            MemberState::Departed,
            "invariant 17: a member leaves its group twice"
        );
        slot.member_state = MemberState::Departed;
        let mut sockets = std::mem::take(&mut slot.sockets);
        self.unclaimed.append(&mut slot.transferred);
        if self.present().next().is_none() {
            self.unclaimed.clear();
        }
        sockets.retain(|socket| self.sockets[*socket].is_some() && !self.has_other(*socket, member));
        if sockets.is_empty() {
            return None;
        }
        let count = self.slots.len();
        let mut neighbours = (1..count).map(|distance| (member + distance) % count);
        let successor =
            neighbours.find(|neighbour| self.slots[*neighbour].member_state != MemberState::Departed);
        match successor.filter(|_| !matches!(self.group_state, GroupState::Closed(_))) {
            Some(successor) => {
                self.slots[successor].sockets.extend(sockets);
                self.slots[successor].applied_state = None;
                Some(successor)
            }
            None => {
                sockets.into_iter().for_each(|socket| drop(self.sockets[socket].take()));
                None
            }
        }
    }
}

/// Returns the sockets assigned to a member: one if there are as many sockets as members. With more sockets, a member
/// can have several. With fewer, it has one, which it can share with other members.
fn assigned_sockets(member: usize, members: usize, sockets: usize) -> Vec<usize> {
    match sockets {
        0 => Vec::new(),
        _ if sockets < members => vec![member % sockets],
        _ => (member..sockets).step_by(members).collect(),
    }
}

/// The waker of a task waiting for the group to close.
pub(super) struct CloseWaiter<'a> {
    pub group: &'a Group,
    /// Key of the waker in `close_wakers`, once `poll` has stored the waker there.
    pub id: Option<u64>,
}

impl CloseWaiter<'_> {
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut state = self.group.lock();
        if matches!(state.group_state, GroupState::Closed(_)) {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert(state.next_waker_id);
        state.next_waker_id = state.next_waker_id.max(id + 1);
        let replaced = state.close_wakers.insert(id, waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for CloseWaiter<'_> {
    fn drop(&mut self) {
        let waker = self.id.and_then(|id| self.group.lock().close_wakers.remove(&id));
        drop(waker);
    }
}

/// Accept sink of a member's listeners.
#[derive(Debug)]
pub(super) struct GroupAcceptSink {
    pub group: Arc<Group>,
    pub member: usize,
}

impl AcceptSink for GroupAcceptSink {
    fn accept(&self, connection: DetachedSocket) {
        let connection = AcceptedConnection::from(connection);
        let mut state = self.group.lock();
        if state.present().next().is_none() {
            return;
        }
        state.unclaimed.push_back(connection);
        self.group.version.fetch_add(1, Ordering::Release);
    }

    fn listener_released(&self) {
        let releasing = &mut self.group.lock().slots[self.member].releasing;
        debug_assert_ne!(*releasing, 0, "invariant 17: a listener of a group is released twice");
        *releasing -= 1;
        self.group.version.fetch_add(1, Ordering::Release);
    }

    fn wakers(&self) -> Vec<Waker> {
        self.group.lock().members_wakers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assigned_sockets_cover_all_sockets_and_members() {
        let assigned = |members, sockets| -> Vec<Vec<usize>> {
            (0..members).map(|member| assigned_sockets(member, members, sockets)).collect()
        };
        assert_eq!(assigned(2, 2), [[0], [1]]);
        assert_eq!(assigned(2, 5), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(assigned(3, 1), [[0], [0], [0]]);
        assert_eq!(assigned(5, 2), [[0], [1], [0], [1], [0]]);
        assert_eq!(assigned(2, 0), [vec![], Vec::<usize>::new()]);
    }

    fn group(members: usize, sockets: usize, group_state: GroupState) -> Arc<Group> {
        let socket = || std::os::unix::net::UnixStream::pair().unwrap().0.into();
        Group::new((0..sockets).map(|_| socket()).collect(), members, group_state)
    }

    #[test]
    fn departed_member_sockets_move_to_next_present_member() {
        let group = group(4, 4, GroupState::Open);
        let mut state = group.lock();
        assert_eq!(state.leave(1), Some(2));
        assert_eq!(state.leave(2), Some(3));
        assert_eq!(state.leave(3), Some(0));
        let mut sockets = state.slots[0].sockets.clone();
        sockets.sort_unstable();
        assert_eq!(sockets, [0, 1, 2, 3]);
        // No member is left.
        assert_eq!(state.leave(0), None);
        assert!(state.sockets.iter().all(Option::is_none));
    }

    #[test]
    fn shared_socket_stays_and_socket_of_closed_group_is_closed_when_member_leaves() {
        let shared = group(3, 1, GroupState::Open);
        let mut state = shared.lock();
        assert_eq!((state.leave(0), state.leave(2)), (None, None));
        assert!(state.sockets[0].is_some());
        let closed = group(2, 2, GroupState::Closed(PendingConnections::Leave));
        let mut state = closed.lock();
        assert_eq!(state.leave(0), None);
        assert!(state.sockets[0].is_none() && state.sockets[1].is_some());
    }

    #[test]
    fn unclaimed_connections_are_closed_when_last_member_leaves() {
        let group = group(2, 1, GroupState::Open);
        let sink = GroupAcceptSink { group: Arc::clone(&group), member: 0 };
        let accept = || {
            let (connection, client) = std::os::unix::net::UnixStream::pair().unwrap();
            sink.accept(connection.into());
            client
        };
        let is_closed = |mut client: std::os::unix::net::UnixStream| {
            client.set_nonblocking(true).unwrap();
            matches!(io::Read::read(&mut client, &mut [0]), Ok(0))
        };
        group.lock().leave(0);
        let (kept, unclaimed) = (accept(), accept());
        assert!(!is_closed(kept), "the other member can accept it");
        group.lock().leave(1);
        assert!(is_closed(unclaimed));
        assert!(is_closed(accept()));
    }

    /// Returns a group whose members have all applied the state, and a function that returns a descriptor to transfer.
    fn joined_group(members: usize, group_state: GroupState) -> (Arc<Group>, impl Fn() -> DetachedSocket) {
        let group = group(members, 1, group_state);
        for member in 0..members {
            group.set_applied(&mut group.lock(), member);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        (group, move || null.try_clone().unwrap().into())
    }

    /// Counts connections that arrive at the first member, and returns how many are transferred.
    fn arrive(group: &Group, connection: impl Fn() -> DetachedSocket, count: usize) -> usize {
        let transfers =
            |_: &usize| !group.balance.count(0) && group.transfer(0, connection().into()).is_none();
        (0..count).filter(transfers).count()
    }

    fn assigned(group: &Group) -> Vec<u64> {
        (0..group.lock().slots.len()).map(|member| group.balance.assigned(member)).collect()
    }

    #[test]
    fn connection_is_transferred_to_member_with_lowest_count() {
        let (group, connection) = joined_group(3, GroupState::Open);
        (0..4).for_each(|_| _ = group.balance.count(0));
        group.balance.count(1);
        assert!(group.transfer(0, connection().into()).is_none());
        assert_eq!(assigned(&group), [3, 1, 1]);
        assert!(group.take_transferred(1).is_none());
        assert!(group.take_transferred(2).is_some() && group.take_transferred(2).is_none());
        // A transfer does not help if the other member would then have as many connections as this one.
        group.balance.transfer(0, 1);
        assert_eq!(assigned(&group), [2, 2, 1]);
        assert!(group.transfer(0, connection().into()).is_some());
    }

    #[test]
    fn nothing_is_transferred_unless_group_is_open() {
        for group_state in [GroupState::Paused, GroupState::Closed(PendingConnections::Serve)] {
            let (group, connection) = joined_group(2, group_state);
            (0..10).for_each(|_| _ = group.balance.count(0));
            assert!(group.transfer(0, connection().into()).is_some());
        }
    }

    #[test]
    fn count_of_full_member_is_raised_without_connection() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
        let (group, connection) = joined_group(2, GroupState::Open);
        assert_eq!(arrive(&group, &connection, 3 * MAX_TRANSFERRED), MAX_TRANSFERRED);
        let counts = assigned(&group);
        assert_eq!(arrive(&group, &connection, 100), 0);
        // The full member's count was raised in the meantime. When the member has room again, it receives no more than
        // half of the connections.
        while group.take_transferred(1).is_some() {}
        let transferred = arrive(&group, &connection, 100);
        assert!((40..=60).contains(&transferred), "{transferred} of 100; {counts:?}");
    }

    #[test]
    fn member_without_accept_ahead_has_short_queue() {
        let (group, connection) = joined_group(2, GroupState::Open);
        group.set_accept_ahead(1, false);
        assert_eq!(arrive(&group, &connection, 1000), MAX_TRANSFERRED_WITHOUT_AHEAD);
        group.set_accept_ahead(1, true);
        assert!(arrive(&group, &connection, 1000) > MAX_TRANSFERRED_WITHOUT_AHEAD);
    }

    #[test]
    fn transferred_connections_of_departed_member_go_to_another_member() {
        let (group, connection) = joined_group(2, GroupState::Open);
        (0..4).for_each(|_| _ = group.balance.count(0));
        assert!(group.transfer(0, connection().into()).is_none());
        let mut state = group.lock();
        group.leave(&mut state, 1);
        assert!(group.take_accepted(&mut state, 0).is_some());
        assert!(group.take_accepted(&mut state, 0).is_none());
        // The only member keeps all connections.
        assert!((0..100).all(|_| group.balance.count(0)));
    }

    fn assigned_to(group: &Group, from: usize) -> (usize, OpenCount) {
        let open_count = group.assign_to_least_loaded(from);
        (open_count.member(), open_count)
    }

    #[test]
    fn connection_is_assigned_to_member_with_fewest_open_connections() {
        let (group, _) = joined_group(3, GroupState::Open);
        let (first, first_open) = assigned_to(&group, 1);
        assert_eq!(first, 1, "the accepting member keeps it unless another has fewer");
        let (second, second_open) = assigned_to(&group, 1);
        assert_eq!(second, 0);
        let (third, _third_open) = assigned_to(&group, 0);
        assert_eq!((third, group.open_counts.all()), (2, vec![1, 1, 1]));
        drop((first_open, second_open));
        assert_eq!(assigned_to(&group, 2).0, 0);
    }

    #[test]
    fn member_without_room_or_departed_is_not_assigned_connections() {
        let (group, connection) = joined_group(2, GroupState::Open);
        group.set_accept_ahead(1, false);
        let mut kept = Vec::new();
        loop {
            let open_count = group.assign_to_least_loaded(0);
            let is_kept = open_count.member() == 0;
            let accepted = AcceptedConnection::new(connection(), Some(open_count));
            match is_kept {
                true => kept.push(accepted),
                false => assert!(group.transfer(0, accepted).is_none()),
            }
            if kept.len() == 2 * MAX_TRANSFERRED_WITHOUT_AHEAD {
                break;
            }
        }
        assert_eq!(group.lock().slots[1].transferred.len(), MAX_TRANSFERRED_WITHOUT_AHEAD);
        group.leave(&mut group.lock(), 1);
        assert_eq!(assigned_to(&group, 0).0, 0);
        // The queued connections are counted for the departed member until another one takes them.
        while group.take_accepted(&mut group.lock(), 0).is_some() {}
        assert_eq!(group.open_counts.get(1), 0);
    }

    #[test]
    fn assigned_connection_stays_if_target_is_full_or_group_is_paused() {
        let (group, connection) = joined_group(2, GroupState::Paused);
        let open_count = Some(OpenCount::new(&group.open_counts, 1));
        let accepted = AcceptedConnection::new(connection(), open_count);
        assert!(group.transfer(0, accepted).is_some());
        assert_eq!(group.open_counts.all(), [0, 0], "dropped with the connection");
    }
}
