//! What the members of a group share: who accepts from which socket, and whether at all.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::driver::Heir;

/// What becomes of connections that wait in the kernel's queues when a group is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// They are accepted and served, at most 4096 of each socket; then the socket is closed. What the kernel completes in
    /// between is reset.
    Served,
    /// They are left to another process that has the same sockets.
    Left,
}

/// Whether the members accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    Paused,
    Closed(Waiting),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Expected,
    Here,
    Gone,
}

/// One member, as the others see it.
#[derive(Debug)]
pub(super) struct Slot {
    pub presence: Presence,
    /// The sockets that it accepts from.
    pub sockets: Vec<usize>,
    /// The stage that it has followed to its end.
    pub settled: Option<Stage>,
    /// Listeners that it has given up, of which the kernel has not let go.
    pub releasing: usize,
    pub waker: Option<Waker>,
}

#[derive(Debug)]
pub(super) struct State {
    pub stage: Stage,
    pub slots: Vec<Slot>,
    /// `None` are closed.
    pub sockets: Vec<Option<OwnedFd>>,
    /// Connections that were accepted for listeners which had been given up.
    pub orphans: VecDeque<OwnedFd>,
    /// Who waits for the group to be closed, by numbers that are given once.
    pub awaiting_close: BTreeMap<u64, Waker>,
    numbers_given: u64,
}

#[derive(Debug)]
pub(super) struct Group {
    state: Mutex<State>,
    /// Rises whenever members have to look at the state, so that they need no lock as long as they have not.
    version: AtomicU64,
    changed: Condvar,
}

impl Group {
    pub fn new(sockets: Vec<OwnedFd>, members: usize, stage: Stage) -> Arc<Self> {
        let slots = (0..members).map(|member| Slot {
            presence: Presence::Expected,
            sockets: share_of(member, members, sockets.len()),
            settled: None,
            releasing: 0,
            waker: None,
        });
        let state = State {
            stage,
            slots: slots.collect(),
            sockets: sockets.into_iter().map(Some).collect(),
            orphans: VecDeque::new(),
            awaiting_close: BTreeMap::new(),
            numbers_given: 0,
        };
        Arc::new(Self { state: Mutex::new(state), version: AtomicU64::new(1), changed: Condvar::new() })
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
            if matches!(state.stage, Stage::Closed(_)) {
                wakers.extend(std::mem::take(&mut state.awaiting_close).into_values());
            }
            wakers
        };
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A member has settled in the present stage.
    pub fn settled(&self, state: &mut State, member: usize) {
        state.slots[member].settled = Some(state.stage);
        self.changed.notify_all();
    }

    /// Blocks until every member that is not gone has settled in the present stage; how many those are.
    pub fn settle(&self, within: Duration) -> io::Result<usize> {
        // No deadline is as good as one that the clock does not count to.
        let deadline = Instant::now().checked_add(within);
        let mut state = self.lock();
        loop {
            let stage = state.stage;
            let present = state.slots.iter().filter(|slot| slot.presence != Presence::Gone);
            let (count, late) = present.fold((0, 0), |(count, late), slot| {
                (count + 1, late + usize::from(slot.settled != Some(stage)))
            });
            if late == 0 {
                return Ok(count);
            }
            let left = deadline.map_or(within, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let message = format!("{late} of {count} workers have not answered within {within:?}");
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
        let number = number.unwrap_or(self.numbers_given);
        self.numbers_given = self.numbers_given.max(number + 1);
        (number, self.awaiting_close.insert(number, waker))
    }

    /// Whether another member than this one accepts from the socket.
    fn has_other(&self, socket: usize, member: usize) -> bool {
        let mut others = self.slots.iter().enumerate().filter(|(other, _)| *other != member);
        others.any(|(_, slot)| slot.presence != Presence::Gone && slot.sockets.contains(&socket))
    }

    /// Whether every member is gone, so that nobody will take what is inherited.
    fn is_deserted(&self) -> bool {
        self.slots.iter().all(|slot| slot.presence == Presence::Gone)
    }

    /// A member is gone: its neighbour, whom this returns, gets the sockets that nobody else accepts from. When the group is
    /// closed, or nobody is left, these are closed, and in the latter case what was inherited, too.
    pub fn leave(&mut self, member: usize) -> Option<usize> {
        let slot = &mut self.slots[member];
        slot.presence = Presence::Gone;
        let mut sockets = std::mem::take(&mut slot.sockets);
        if self.is_deserted() {
            self.orphans.clear();
        }
        sockets.retain(|socket| self.sockets[*socket].is_some() && !self.has_other(*socket, member));
        if sockets.is_empty() {
            return None;
        }
        let count = self.slots.len();
        let mut neighbours = (1..count).map(|distance| (member + distance) % count);
        let heir = neighbours.find(|neighbour| self.slots[*neighbour].presence != Presence::Gone);
        match heir.filter(|_| !matches!(self.stage, Stage::Closed(_))) {
            Some(heir) => {
                self.slots[heir].sockets.extend(sockets);
                self.slots[heir].settled = None;
                Some(heir)
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
fn share_of(member: usize, members: usize, sockets: usize) -> Vec<usize> {
    match sockets {
        0 => Vec::new(),
        _ if sockets < members => vec![member % sockets],
        _ => (member..sockets).step_by(members).collect(),
    }
}

/// The group, as the heir of a listener of one member.
#[derive(Debug)]
pub(super) struct GroupHeir {
    pub group: Arc<Group>,
    pub member: usize,
}

impl Heir for GroupHeir {
    fn inherit(&self, connection: OwnedFd) {
        let mut state = self.group.lock();
        if state.is_deserted() {
            return;
        }
        state.orphans.push_back(connection);
        self.group.version.fetch_add(1, Ordering::Release);
    }

    fn let_go(&self) {
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
        (0..members).map(|member| share_of(member, members, sockets)).collect()
    }

    #[test]
    fn every_socket_has_a_member_and_every_member_a_socket() {
        assert_eq!(shares(2, 2), [[0], [1]]);
        assert_eq!(shares(2, 5), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(shares(3, 1), [[0], [0], [0]]);
        assert_eq!(shares(5, 2), [[0], [1], [0], [1], [0]]);
        assert_eq!(shares(2, 0), [vec![], Vec::<usize>::new()]);
    }

    fn group(members: usize, sockets: usize, stage: Stage) -> Arc<Group> {
        let socket = || std::os::unix::net::UnixStream::pair().unwrap().0.into();
        Group::new((0..sockets).map(|_| socket()).collect(), members, stage)
    }

    #[test]
    fn the_next_neighbour_that_is_there_inherits() {
        let group = group(4, 4, Stage::Open);
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
        let group = group(3, 1, Stage::Open);
        let mut state = group.lock();
        assert_eq!((state.leave(0), state.leave(2)), (None, None));
        assert!(state.sockets[0].is_some());
    }

    #[test]
    fn what_is_inherited_is_closed_when_the_last_member_is_gone() {
        let group = group(2, 1, Stage::Open);
        let heir = GroupHeir { group: Arc::clone(&group), member: 0 };
        let inherit = || {
            let (connection, client) = std::os::unix::net::UnixStream::pair().unwrap();
            heir.inherit(connection.into());
            client
        };
        let is_closed = |mut client: std::os::unix::net::UnixStream| {
            client.set_nonblocking(true).unwrap();
            matches!(io::Read::read(&mut client, &mut [0]), Ok(0))
        };
        group.lock().leave(0);
        let (kept, before) = (inherit(), inherit());
        assert!(!is_closed(kept), "the other member takes it");
        group.lock().leave(1);
        assert!(is_closed(before));
        assert!(is_closed(inherit()));
    }

    #[test]
    fn what_a_closed_group_leaves_is_closed() {
        let group = group(2, 2, Stage::Closed(Waiting::Left));
        let mut state = group.lock();
        assert_eq!(state.leave(0), None);
        assert!(state.sockets[0].is_none() && state.sockets[1].is_some());
    }
}
