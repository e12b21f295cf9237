//! What the members of a group share: who accepts from which socket, and whether at all.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::distribution::Balance;
use crate::driver::{AcceptSink, wake_all};
use crate::executor::flush_wakes_before_blocking;

/// What becomes of connections that wait in the kernel's queues when a group is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingConnections {
    /// They are accepted and served, at most 4096 of each socket; then the socket is closed. What the kernel completes in
    /// between is reset.
    Serve,
    /// They are left to another process that has the same sockets.
    Leave,
}

/// Maximum number of connections that wait at a member after another one has transferred them to it: what each of 4 workers
/// gets of a burst that fills a backlog.
const MAX_TRANSFERRED: usize = 1024;

/// The same, for a member that does not accept ahead: room for what another worker accepts until this one has its turn.
const MAX_TRANSFERRED_WITHOUT_AHEAD: usize = 16;

/// Whether the members accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    Open,
    Paused,
    Closed(PendingConnections),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberState {
    Joining,
    Active,
    Departed,
}

/// One member, as the others see it.
#[derive(Debug)]
pub(super) struct Slot {
    pub member_state: MemberState,
    /// The sockets that it accepts from.
    pub sockets: Vec<usize>,
    /// The stage that it has followed to its end.
    pub settled: Option<GroupState>,
    /// Listeners that it has given up, of which the kernel has not let go.
    pub releasing: usize,
    pub waker: Option<Waker>,
    /// Whether it takes part in the balance: it has settled in a stage and has not left.
    pub takes_part: bool,
    /// Connections that another member has accepted for it.
    pub transferred: VecDeque<OwnedFd>,
    /// How many of these may wait.
    max_transferred: usize,
}

#[derive(Debug)]
pub(super) struct State {
    pub group_state: GroupState,
    pub slots: Vec<Slot>,
    /// `None` are closed.
    pub sockets: Vec<Option<OwnedFd>>,
    /// Connections that were accepted for listeners which had been given up.
    pub unclaimed: VecDeque<OwnedFd>,
    /// Who waits for the group to be closed, by numbers that are given once.
    pub close_wakers: BTreeMap<u64, Waker>,
    next_waiter_id: u64,
}

#[derive(Debug)]
pub(super) struct Group {
    state: Mutex<State>,
    /// Rises whenever members have to look at the state, so that they need no lock as long as they have not.
    version: AtomicU64,
    changed: Condvar,
    pub balance: Balance,
}

impl Group {
    pub fn new(sockets: Vec<OwnedFd>, members: usize, group_state: GroupState) -> Arc<Self> {
        let slots = (0..members).map(|member| Slot {
            member_state: MemberState::Joining,
            sockets: assigned_sockets(member, members, sockets.len()),
            settled: None,
            releasing: 0,
            waker: None,
            takes_part: false,
            transferred: VecDeque::new(),
            max_transferred: MAX_TRANSFERRED,
        });
        let balance = Balance::new(members);
        let state = State {
            group_state,
            slots: slots.collect(),
            sockets: sockets.into_iter().map(Some).collect(),
            unclaimed: VecDeque::new(),
            close_wakers: BTreeMap::new(),
            next_waiter_id: 0,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { state, version: AtomicU64::new(1), changed, balance })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        // No code of the program runs under the lock, but for what counts a waker that is copied: wakers are called and
        // dropped when it is free, because either may end a task that has a member.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Changes the state, and tells everybody.
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

    /// A member has settled in the present stage. From the first time on it takes part in the balance.
    pub fn settled(&self, state: &mut State, member: usize) {
        state.slots[member].settled = Some(state.group_state);
        if !std::mem::replace(&mut state.slots[member].takes_part, true) {
            self.balance.join(member);
        }
        self.changed.notify_all();
    }

    /// The member is gone. Returns the neighbour that gets its sockets, if any.
    pub fn leave(&self, state: &mut State, member: usize) -> Option<usize> {
        if std::mem::take(&mut state.slots[member].takes_part) {
            self.balance.leave(member);
        }
        state.leave(member)
    }

    /// Sets whether connections may wait at the member before it asks for them. What waits already stays.
    pub fn set_accept_ahead(&self, member: usize, accepts_ahead: bool) {
        let max_transferred = if accepts_ahead { MAX_TRANSFERRED } else { MAX_TRANSFERRED_WITHOUT_AHEAD };
        self.lock().slots[member].max_transferred = max_transferred;
    }

    /// Transfers a connection, which was counted for the member that has accepted it, to the member with the lowest count.
    /// Returns the connection if it stays with the member.
    #[cold]
    #[inline(never)]
    pub fn transfer(&self, from: usize, connection: OwnedFd) -> Option<OwnedFd> {
        let mut state = self.lock();
        // Members that pause settle under this lock, with nothing left to serve: from then on nothing may be added.
        let target = (state.group_state == GroupState::Open).then(|| self.target(&state, from)).flatten();
        let Some(target) = target else { return Some(connection) };
        self.balance.transfer(from, target);
        let slot = &mut state.slots[target];
        let waker = slot.waker.clone();
        slot.transferred.push_back(connection);
        self.balance.set_transferred(target, true);
        drop(state);
        // Also where others wait for the member: the wake-up for these may be queued by another worker, for long.
        wake_all(waker);
        None
    }

    /// The member with the lowest count, if that is lower than this member's will be.
    fn target(&self, state: &State, from: usize) -> Option<usize> {
        let assigned = self.balance.assigned(from);
        let mut target: Option<(u64, usize)> = None;
        for (member, slot) in state.slots.iter().enumerate().filter(|(_, slot)| slot.takes_part) {
            if slot.transferred.len() >= slot.max_transferred {
                self.balance.raise(member, assigned);
                continue;
            }
            let count = self.balance.assigned(member);
            if count + 1 < target.map_or(assigned, |(lowest, _)| lowest + 1) {
                target = Some((count, member));
            }
        }
        target.map(|(_, member)| member)
    }

    /// The next connection that was transferred to the member.
    #[inline]
    pub fn take_transferred(&self, member: usize) -> Option<OwnedFd> {
        if !self.balance.has_transferred(member) {
            return None;
        }
        self.pop_transferred(&mut self.lock(), member)
    }

    /// The next connection that the kernel has accepted for this member, or for one that could not take it.
    pub fn take_accepted(&self, state: &mut State, member: usize) -> Option<OwnedFd> {
        self.pop_transferred(state, member).or_else(|| {
            let unclaimed = state.unclaimed.pop_front()?;
            self.balance.count(member);
            Some(unclaimed)
        })
    }

    fn pop_transferred(&self, state: &mut State, member: usize) -> Option<OwnedFd> {
        let transferred = &mut state.slots[member].transferred;
        let connection = transferred.pop_front();
        self.balance.set_transferred(member, !transferred.is_empty());
        connection
    }

    /// Blocks until every member that is not gone has settled in the present stage; how many those are.
    pub fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        flush_wakes_before_blocking();
        // No deadline is as good as one that the clock does not count to.
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            let group_state = state.group_state;
            let present = state.slots.iter().filter(|slot| slot.member_state != MemberState::Departed);
            let (count, late) = present.fold((0, 0), |(count, late), slot| {
                (count + 1, late + usize::from(slot.settled != Some(group_state)))
            });
            if late == 0 {
                return Ok(count);
            }
            let left =
                deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let message = format!("{late} of {count} workers have not answered within {timeout:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn members_wakers(&self) -> Vec<Waker> {
        self.slots.iter().filter_map(|slot| slot.waker.clone()).collect()
    }

    /// Has this waker called when the group is closed; by which number it is known, and the waker that was known by it.
    pub fn await_close(&mut self, number: Option<u64>, waker: Waker) -> (u64, Option<Waker>) {
        let number = number.unwrap_or(self.next_waiter_id);
        self.next_waiter_id = self.next_waiter_id.max(number + 1);
        (number, self.close_wakers.insert(number, waker))
    }

    /// Whether another member than this one accepts from the socket.
    pub fn has_other(&self, socket: usize, member: usize) -> bool {
        let mut others = self.slots.iter().enumerate().filter(|(other, _)| *other != member);
        others.any(|(_, slot)| slot.member_state != MemberState::Departed && slot.sockets.contains(&socket))
    }

    /// Whether every member is gone, so that nobody will take what is inherited.
    fn has_no_members(&self) -> bool {
        self.slots.iter().all(|slot| slot.member_state == MemberState::Departed)
    }

    /// A member is gone: its neighbour, whom this returns, gets the sockets that nobody else accepts from, and any member
    /// what was transferred to it. When the group is
    /// closed, or nobody is left, these are closed, and in the latter case what was inherited, too.
    pub fn leave(&mut self, member: usize) -> Option<usize> {
        let slot = &mut self.slots[member];
        slot.member_state = MemberState::Departed;
        let mut sockets = std::mem::take(&mut slot.sockets);
        self.unclaimed.append(&mut slot.transferred);
        if self.has_no_members() {
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
                self.slots[successor].settled = None;
                Some(successor)
            }
            None => {
                sockets.into_iter().for_each(|socket| drop(self.sockets[socket].take()));
                None
            }
        }
    }
}

/// The sockets of one of so many members: of one each, or of several where there are more sockets, or of one that others
/// accept from, too, where there are fewer.
fn assigned_sockets(member: usize, members: usize, sockets: usize) -> Vec<usize> {
    match sockets {
        0 => Vec::new(),
        _ if sockets < members => vec![member % sockets],
        _ => (member..sockets).step_by(members).collect(),
    }
}

/// The group, as the accept sink of a listener of one member.
#[derive(Debug)]
pub(super) struct GroupAcceptSink {
    pub group: Arc<Group>,
    pub member: usize,
}

impl AcceptSink for GroupAcceptSink {
    fn accept(&self, connection: OwnedFd) {
        let mut state = self.group.lock();
        if state.has_no_members() {
            return;
        }
        state.unclaimed.push_back(connection);
        self.group.version.fetch_add(1, Ordering::Release);
    }

    fn listener_released(&self) {
        self.group.lock().slots[self.member].releasing -= 1;
        self.group.version.fetch_add(1, Ordering::Release);
    }

    fn wakers(&self) -> Vec<Waker> {
        self.group.lock().members_wakers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(members: usize, sockets: usize) -> Vec<Vec<usize>> {
        (0..members).map(|member| assigned_sockets(member, members, sockets)).collect()
    }

    #[test]
    fn every_socket_has_a_member_and_every_member_a_socket() {
        assert_eq!(shares(2, 2), [[0], [1]]);
        assert_eq!(shares(2, 5), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(shares(3, 1), [[0], [0], [0]]);
        assert_eq!(shares(5, 2), [[0], [1], [0], [1], [0]]);
        assert_eq!(shares(2, 0), [vec![], Vec::<usize>::new()]);
    }

    fn group(members: usize, sockets: usize, group_state: GroupState) -> Arc<Group> {
        let socket = || std::os::unix::net::UnixStream::pair().unwrap().0.into();
        Group::new((0..sockets).map(|_| socket()).collect(), members, group_state)
    }

    #[test]
    fn the_next_neighbour_that_is_there_inherits() {
        let group = group(4, 4, GroupState::Open);
        let mut state = group.lock();
        assert_eq!(state.leave(1), Some(2));
        assert_eq!(state.leave(2), Some(3));
        assert_eq!(state.leave(3), Some(0));
        let mut sockets = state.slots[0].sockets.clone();
        sockets.sort_unstable();
        assert_eq!(sockets, [0, 1, 2, 3]);
        // Nobody is left.
        assert_eq!(state.leave(0), None);
        assert!(state.sockets.iter().all(Option::is_none));
    }

    #[test]
    fn a_socket_that_others_accept_from_needs_no_heir() {
        let group = group(3, 1, GroupState::Open);
        let mut state = group.lock();
        assert_eq!((state.leave(0), state.leave(2)), (None, None));
        assert!(state.sockets[0].is_some());
    }

    #[test]
    fn what_is_inherited_is_closed_when_the_last_member_is_gone() {
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
        let (kept, before) = (accept(), accept());
        assert!(!is_closed(kept), "the other member takes it");
        group.lock().leave(1);
        assert!(is_closed(before));
        assert!(is_closed(accept()));
    }

    /// A group whose members have all settled, and some descriptor to transfer.
    fn settled_group(members: usize, group_state: GroupState) -> (Arc<Group>, impl Fn() -> OwnedFd) {
        let group = group(members, 1, group_state);
        for member in 0..members {
            group.settled(&mut group.lock(), member);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        (group, move || null.try_clone().unwrap().into())
    }

    /// Connections that the first member accepts.
    fn accept(group: &Group, count: usize) {
        for _ in 0..count {
            group.balance.count(0);
        }
    }

    fn assigned(group: &Group) -> Vec<u64> {
        (0..group.lock().slots.len()).map(|member| group.balance.assigned(member)).collect()
    }

    #[test]
    fn connection_is_transferred_to_the_member_with_the_lowest_count() {
        let (group, connection) = settled_group(3, GroupState::Open);
        accept(&group, 4);
        group.balance.count(1);
        assert!(group.transfer(0, connection()).is_none());
        assert_eq!(assigned(&group), [3, 1, 1]);
        assert!(group.take_transferred(1).is_none());
        assert!(group.take_transferred(2).is_some() && group.take_transferred(2).is_none());
        // Nothing is gained by a transfer to a member that would be as far ahead as this one is.
        group.balance.transfer(0, 1);
        assert_eq!(assigned(&group), [2, 2, 1]);
        assert!(group.transfer(0, connection()).is_some());
    }

    #[test]
    fn nothing_is_transferred_while_the_group_is_not_open() {
        for group_state in [GroupState::Paused, GroupState::Closed(PendingConnections::Serve)] {
            let (group, connection) = settled_group(2, group_state);
            accept(&group, 10);
            assert!(group.transfer(0, connection()).is_some());
        }
    }

    #[test]
    fn member_without_room_loses_its_turn() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
        let (group, connection) = settled_group(2, GroupState::Open);
        let arrive = |count: usize| {
            (0..count)
                .filter(|_| !group.balance.count(0) && group.transfer(0, connection()).is_none())
                .count()
        };
        assert_eq!(arrive(3 * MAX_TRANSFERRED), MAX_TRANSFERRED);
        let before = assigned(&group);
        assert_eq!(arrive(100), 0);
        // It has lost its turns: when it has room again, it gets no more than half.
        while group.take_transferred(1).is_some() {}
        let transferred = arrive(100);
        assert!((40..=60).contains(&transferred), "{transferred} of 100; {before:?}");
    }

    #[test]
    fn few_connections_wait_at_a_member_that_does_not_accept_ahead() {
        let (group, connection) = settled_group(2, GroupState::Open);
        group.set_accept_ahead(1, false);
        let arrive = || {
            (0..1000).filter(|_| !group.balance.count(0) && group.transfer(0, connection()).is_none()).count()
        };
        assert_eq!(arrive(), MAX_TRANSFERRED_WITHOUT_AHEAD);
        group.set_accept_ahead(1, true);
        assert!(arrive() > MAX_TRANSFERRED_WITHOUT_AHEAD);
    }

    #[test]
    fn what_was_transferred_to_a_member_that_leaves_is_taken_by_another() {
        let (group, connection) = settled_group(2, GroupState::Open);
        accept(&group, 4);
        assert!(group.transfer(0, connection()).is_none());
        let mut state = group.lock();
        group.leave(&mut state, 1);
        assert!(group.take_accepted(&mut state, 0).is_some());
        assert!(group.take_accepted(&mut state, 0).is_none());
        // Alone, it keeps everything.
        assert!((0..100).all(|_| group.balance.count(0)));
    }

    #[test]
    fn what_a_closed_group_leaves_is_closed() {
        let group = group(2, 2, GroupState::Closed(PendingConnections::Leave));
        let mut state = group.lock();
        assert_eq!(state.leave(0), None);
        assert!(state.sockets[0].is_none() && state.sockets[1].is_some());
    }
}
