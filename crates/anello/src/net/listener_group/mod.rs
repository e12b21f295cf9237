//! Listening sockets that outlive the workers which accept from them.
//!
//! ```text
//!   ListenerGroup ── sockets, who accepts from which, open │ paused │ closed     any thread
//!      │    │    └── connections that were accepted for a member that has stopped, or transferred to another one
//!   member member                                                               one for each worker
//! ```
//!
//! With one socket for each worker (`SO_REUSEPORT`), the kernel resets whoever waits at a socket that is closed, unless
//! `net.ipv4.tcp_migrate_req` is set. So the group keeps every socket, a member accepts from duplicates, and when one is
//! gone a neighbour goes on with what was its.
//!
//! A member that accepts looks at one atomic number that is not written meanwhile; the lock is taken when that has changed,
//! and when connections are transferred ([`distribution`]).

mod closed;
mod distribution;
mod state;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use self::closed::Closed;
pub use self::distribution::Distribution;
pub use self::state::PendingConnections;
use self::state::{Group, GroupAcceptSink, GroupState, MemberState};
use super::listener::{Accepted, BACKLOG, EXHAUSTED_RETRY_DELAY, Listener, is_exhausted, warn_exhausted};
use super::stream::Inner;
use super::wait_queue::WaitQueue;
use super::{Stream, TcpListener, TcpStream, UnixListener, UnixStream};
use crate::driver::{StreamOption, log, try_accept};
use crate::executor::{Shared, current};
use crate::time::sleep;

/// Listening sockets that several workers accept from, and that outlive each of them. Clones are the same one.
///
/// Each worker [joins](Self::join) and accepts. Connections are distributed evenly ([`Distribution`]): a worker that was given
/// more than the others transfers further ones to them. When a worker ends early, by an error or a panic, its neighbour accepts what
/// waits at its sockets, and what the kernel had accepted for it. Any thread may [pause](Self::pause) and
/// [resume](Self::resume) accepting, as when another process is to take the sockets over, and [close](Self::close) it.
///
/// ```
/// use anello::net::{ListenerGroup, TcpListener, TcpStream, PendingConnections};
///
/// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let address = socket.local_addr()?;
/// let group = ListenerGroup::<TcpListener>::new(vec![socket], 1);
/// anello::Runtime::new()?.block_on(async {
///     let member = group.join(0);
///     let _client = TcpStream::connect(address).await?;
///     group.close(PendingConnections::Serve);
///     // The client was there before.
///     assert!(member.accept().await?.is_some());
///     assert!(member.accept().await?.is_none());
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ListenerGroup<L> {
    group: Arc<Group>,
    kind: PhantomData<fn() -> L>,
}

/// What a group may be of: [`TcpListener`]s or [`UnixListener`]s. No other type can be one.
pub trait GroupListener: sealed::Sealed + 'static {
    /// The sockets that a group is made of.
    type Std: Into<OwnedFd> + From<OwnedFd>;
    /// What is accepted.
    type Stream: Stream;

    #[doc(hidden)]
    fn stream(inner: Inner) -> Self::Stream;

    /// Of one that the driver has accepted.
    #[doc(hidden)]
    fn accepted(inner: Inner) -> io::Result<Self::Stream> {
        Ok(Self::stream(inner))
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::TcpListener {}
    impl Sealed for super::UnixListener {}
}

impl GroupListener for TcpListener {
    type Std = std::net::TcpListener;
    type Stream = TcpStream;

    fn stream(inner: Inner) -> TcpStream {
        TcpStream::new(inner)
    }
}

impl GroupListener for UnixListener {
    type Std = std::os::unix::net::UnixListener;
    type Stream = UnixStream;

    fn stream(inner: Inner) -> UnixStream {
        UnixStream::new(inner)
    }

    fn accepted(inner: Inner) -> io::Result<UnixStream> {
        // Unlike TCP, this is not inherited from the listener.
        inner.set(StreamOption::UrgentInline)?;
        Ok(UnixStream::new(inner))
    }
}

impl<L: GroupListener> ListenerGroup<L> {
    /// A group of these sockets, which listen already, for so many members. With fewer sockets than members, several accept
    /// from the same one; with more, a member accepts from several.
    pub fn new(sockets: Vec<L::Std>, members: usize) -> Self {
        Self::in_stage(sockets, members, GroupState::Open)
    }

    /// The same, which accepts nothing until it is [resumed](Self::resume).
    pub fn new_paused(sockets: Vec<L::Std>, members: usize) -> Self {
        Self::in_stage(sockets, members, GroupState::Paused)
    }

    fn in_stage(sockets: Vec<L::Std>, members: usize, group_state: GroupState) -> Self {
        let sockets = sockets.into_iter().map(Into::into).collect();
        Self { group: Group::new(sockets, members, group_state), kind: PhantomData }
    }

    /// The member of this number, from 0, on this thread's runtime. It is gone when dropped.
    ///
    /// # Panics
    /// When there is no such number, when it has joined before, or when no runtime runs on this thread.
    pub fn join(&self, member: usize) -> GroupMember<L> {
        let shared = current();
        let before = {
            let mut state = self.group.lock();
            std::mem::replace(&mut state.slots[member].member_state, MemberState::Active)
        };
        assert_eq!(before, MemberState::Joining, "member {member} has joined the group before");
        GroupMember {
            group: Arc::clone(&self.group),
            member,
            shared,
            listeners: RefCell::default(),
            first: Cell::new(0),
            seen: Cell::new(0),
            waiting: RefCell::new(None),
            wait_queue: WaitQueue::default(),
            accepts_ahead: Cell::new(true),
            closing_sockets: RefCell::new(None),
            kind: PhantomData,
        }
    }

    /// Duplicates of its sockets, to be given to another process; none when it is closed.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn sockets(&self) -> io::Result<Vec<L::Std>> {
        let state = self.group.lock();
        let sockets = state.sockets.iter().flatten();
        sockets.map(|socket| socket.try_clone().map(L::Std::from)).collect()
    }

    /// Has every member stop accepting. What the kernel had accepted before is still given to the members; once they have
    /// [applied](Self::wait_applied), what comes waits in the sockets' own queues, for this process or another that has them. Does
    /// nothing to a group that is closed.
    pub fn pause(&self) {
        self.go_to(GroupState::Paused);
    }

    /// Has every member accept. Does nothing to a group that is closed.
    pub fn resume(&self) {
        self.go_to(GroupState::Open);
    }

    fn go_to(&self, group_state: GroupState) {
        self.group.change(|state| {
            if !matches!(state.group_state, GroupState::Closed(_)) {
                state.group_state = group_state;
            }
        });
    }

    /// Sets how connections are distributed over the members from now on; [balanced](Distribution::Balanced) by default.
    pub fn set_distribution(&self, distribution: Distribution) {
        self.group.balance.set(distribution);
    }

    /// Returns how connections are distributed over the members.
    pub fn distribution(&self) -> Distribution {
        self.group.balance.distribution()
    }

    /// Waits, blocking the thread, until every member that is not gone has joined, and accepts, has stopped or has ended as
    /// it was told last; how many those are.
    ///
    /// # Errors
    /// When a member has not answered in time.
    pub fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        self.group.wait_applied(timeout)
    }

    /// Ends accepting for good: what the kernel has accepted is still given to the members, and what waits in its queues, if
    /// it is to be served; then every [`accept`](GroupMember::accept) returns `None`. Does nothing to a group that is
    /// closed. Of one that is paused, what waits is left. As long as there are no descriptors for what is to be served, the
    /// members wait for some.
    pub fn close(&self, waiting: PendingConnections) {
        self.group.change(|state| {
            state.group_state = match state.group_state {
                GroupState::Open => GroupState::Closed(waiting),
                GroupState::Paused => GroupState::Closed(PendingConnections::Leave),
                closed => closed,
            };
        });
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.group.lock().group_state, GroupState::Closed(_))
    }

    /// Waits until it is closed, by whomever. Cancel-safe.
    pub fn closed(&self) -> impl Future<Output = ()> + '_ {
        Closed::new(&self.group)
    }
}

impl<L> Clone for ListenerGroup<L> {
    fn clone(&self) -> Self {
        Self { group: Arc::clone(&self.group), kind: PhantomData }
    }
}

impl<L> fmt::Debug for ListenerGroup<L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ListenerGroup").field("group", &self.group).finish()
    }
}

/// A worker's part of a [`ListenerGroup`].
pub struct GroupMember<L> {
    group: Arc<Group>,
    member: usize,
    shared: Rc<Shared>,
    /// With the number of the socket in the group.
    listeners: RefCell<Vec<(usize, Listener)>>,
    /// The listener that is asked first, so that a busy one does not keep the others waiting. Behind the last listener
    /// come the connections that were transferred to this member.
    first: Cell<usize>,
    /// The version of the state that was followed.
    seen: Cell<u64>,
    /// The waker that the group has.
    waiting: RefCell<Option<Waker>>,
    wait_queue: WaitQueue,
    accepts_ahead: Cell<bool>,
    /// The group is closed: sockets at which connections may still wait, and how many are accepted at most.
    closing_sockets: RefCell<Option<Vec<(OwnedFd, u32)>>>,
    kind: PhantomData<fn() -> L>,
}

/// What comes of a look at everything.
enum AcceptStep {
    Accepted(Inner),
    /// Accepted elsewhere: a descriptor in blocking mode.
    Inherited(OwnedFd),
    /// Accepted here for another member: a descriptor in blocking mode.
    Transfer(OwnedFd),
    Closed,
    Failed(io::Error),
    /// No descriptors left for what waits at the listener of this place, or for a listener.
    Exhausted(Option<usize>, io::Error),
}

impl<L: GroupListener> GroupMember<L> {
    /// The next connection; `None` when the group is closed and all that was to be served has been returned.
    ///
    /// Accepts as [`TcpListener::accept`] and [`UnixListener::accept`] do. Cancel-safe: a connection accepted for a dropped
    /// future goes to the next call.
    ///
    /// # Errors
    /// When the kernel refuses for a reason that is not one client's own.
    pub async fn accept(&self) -> io::Result<Option<L::Stream>> {
        loop {
            let mut ticket = self.wait_queue.ticket();
            match poll_fn(|context| ticket.poll(context, || self.poll_next(context))).await {
                AcceptStep::Accepted(inner) => return L::accepted(inner).map(Some),
                AcceptStep::Inherited(descriptor) => {
                    if let Some(stream) = import::<L>(descriptor) {
                        return Ok(Some(stream));
                    }
                }
                AcceptStep::Transfer(descriptor) => {
                    if let Some(descriptor) = self.group.transfer(self.member, descriptor)
                        && let Some(stream) = import::<L>(descriptor)
                    {
                        return Ok(Some(stream));
                    }
                }
                AcceptStep::Closed => return Ok(None),
                AcceptStep::Failed(error) => return Err(error),
                AcceptStep::Exhausted(index, error) => {
                    self.refuse(index, &error);
                    sleep(EXHAUSTED_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Sets whether the driver may accept connections before [`accept`](Self::accept) is called for them, as
    /// [`TcpListener::set_accept_ahead`] does, of all sockets of this member. Without it, up to 16 connections that other
    /// members have accepted wait for this one ([`Distribution::Balanced`]).
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        if self.accepts_ahead.replace(accepts_ahead) != accepts_ahead {
            self.group.set_accept_ahead(self.member, accepts_ahead);
            self.listeners.borrow().iter().for_each(|(_, listener)| listener.set_accept_ahead(accepts_ahead));
        }
    }

    /// Refuses who waits, if it is for the listener of that place that there are no descriptors.
    fn refuse(&self, index: Option<usize>, error: &io::Error) {
        let listeners = self.listeners.borrow();
        match index.and_then(|index| listeners.get(index)) {
            Some((_, listener)) => listener.refuse(error),
            None => warn_exhausted(error, 0),
        }
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<AcceptStep> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        // Before the look: what changes behind it wakes.
        self.wait(context.waker());
        let version = self.group.version();
        if self.seen.get() != version {
            if let Some(next) = self.apply_state() {
                return Poll::Ready(next);
            }
            self.seen.set(version);
        }
        if let Some(closing_sockets) = &mut *self.closing_sockets.borrow_mut() {
            return Poll::Ready(self.accept_closing(closing_sockets));
        }
        let listeners = self.listeners.borrow();
        let (count, first) = (listeners.len() + 1, self.first.get());
        for index in (0..count).map(|step| (first + step) % count) {
            let Some((_, listener)) = listeners.get(index) else {
                let Some(transferred) = self.group.take_transferred(self.member) else { continue };
                self.first.set(index + 1);
                self.shared.spend_budget(0);
                return Poll::Ready(AcceptStep::Inherited(transferred));
            };
            let keeps = || self.group.balance.count(self.member);
            if let Poll::Ready(accepted) = listener.poll_accept_if(context, keeps) {
                self.first.set(index + 1);
                return Poll::Ready(match accepted {
                    Ok(Accepted::Stream(inner)) => AcceptStep::Accepted(inner),
                    Ok(Accepted::Descriptor(descriptor)) => AcceptStep::Transfer(descriptor),
                    Err(error) if is_exhausted(&error) => AcceptStep::Exhausted(Some(index), error),
                    Err(error) => AcceptStep::Failed(error),
                });
            }
        }
        Poll::Pending
    }

    /// Has the group wake this task from now on.
    #[inline]
    fn wait(&self, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.as_ref().is_none_or(|before| !before.will_wake(waker)) {
            *waiting = Some(waker.clone());
            let waker = Some(waker.clone());
            let before = std::mem::replace(&mut self.group.lock().slots[self.member].waker, waker);
            // Not under the lock.
            drop(before);
        }
    }

    /// Does as the state says. What there is to return at once is returned before the state is followed to its end.
    #[cold]
    fn apply_state(&self) -> Option<AcceptStep> {
        let group_state = {
            let mut state = self.group.lock();
            if let Some(left) = self.group.take_accepted(&mut state, self.member) {
                self.shared.spend_budget(0);
                return Some(AcceptStep::Inherited(left));
            }
            state.group_state
        };
        match group_state {
            GroupState::Open => self.open().err().map(|error| match is_exhausted(&error) {
                // The state is not followed yet: it is tried again.
                true => AcceptStep::Exhausted(None, error),
                false => AcceptStep::Failed(error),
            }),
            GroupState::Paused | GroupState::Closed(_) => {
                self.release();
                self.confirm_released(group_state)
            }
        }
    }

    /// Accepts from all sockets that are this member's.
    fn open(&self) -> io::Result<()> {
        let mut listeners = self.listeners.borrow_mut();
        let mut state = self.group.lock();
        if state.group_state != GroupState::Open {
            // Changed since it was looked at, and looked at again.
            return Ok(());
        }
        for socket in state.slots[self.member].sockets.clone() {
            let is_open = listeners.iter().any(|(open, _)| *open == socket);
            if let (false, Some(descriptor)) = (is_open, &state.sockets[socket]) {
                let listener = Listener::import(descriptor.try_clone()?)?;
                listener.set_accept_ahead(self.accepts_ahead.get());
                if state.has_other(socket, self.member) {
                    listener.share();
                }
                listeners.push((socket, listener));
            }
        }
        self.group.settled(&mut state, self.member);
        Ok(())
    }

    /// Gives all listeners up; the group inherits.
    fn release(&self) {
        let listeners = self.listeners.take();
        if listeners.is_empty() {
            return;
        }
        self.group.lock().slots[self.member].releasing += listeners.len();
        close_listeners(&self.group, self.member, listeners);
        // Of what was inherited at once.
        self.group.change(|_| ());
    }

    /// The member has settled when the kernel has let go of its listeners and nothing waits to be served.
    fn confirm_released(&self, group_state: GroupState) -> Option<AcceptStep> {
        let mut state = self.group.lock();
        if state.slots[self.member].releasing > 0 || state.group_state != group_state {
            return None;
        }
        if let Some(left) = self.group.take_accepted(&mut state, self.member) {
            self.shared.spend_budget(0);
            return Some(AcceptStep::Inherited(left));
        }
        if let GroupState::Closed(waiting) = group_state
            && self.closing_sockets.borrow().is_none()
        {
            let sockets = state.slots[self.member].sockets.clone();
            let taken = sockets.into_iter().filter_map(|socket| state.sockets[socket].take());
            let closing_sockets =
                taken.filter(|_| waiting == PendingConnections::Serve).map(|socket| (socket, BACKLOG));
            *self.closing_sockets.borrow_mut() = Some(closing_sockets.collect());
        }
        self.group.settled(&mut state, self.member);
        None
    }

    /// Accepts what still waits, socket by socket, and closes them.
    fn accept_closing(&self, closing_sockets: &mut Vec<(OwnedFd, u32)>) -> AcceptStep {
        while let Some((socket, left)) = closing_sockets.last_mut() {
            match try_accept(socket) {
                Ok(connection) if *left > 0 => {
                    *left -= 1;
                    self.shared.spend_budget(0);
                    return AcceptStep::Inherited(connection);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Connections that end leave theirs.
                Err(error) if is_exhausted(&error) => return AcceptStep::Exhausted(None, error),
                Ok(_) => {
                    tracing::warn!(accepted = BACKLOG, "a socket is closed while connections wait at it")
                }
                Err(error) => tracing::warn!(%error, "connections that wait at a socket are reset"),
            }
            closing_sockets.pop();
        }
        AcceptStep::Closed
    }
}

/// Takes over a connection that was accepted elsewhere.
fn import<L: GroupListener>(descriptor: OwnedFd) -> Option<L::Stream> {
    match Inner::import(descriptor) {
        Ok(inner) => Some(L::stream(inner)),
        Err(error) => {
            tracing::debug!(%error, "a connection broke before it was served");
            None
        }
    }
}

/// Gives these listeners of a member up; the group inherits what the kernel has accepted for them.
fn close_listeners(group: &Arc<Group>, member: usize, listeners: Vec<(usize, Listener)>) {
    let sink = Arc::new(GroupAcceptSink { group: Arc::clone(group), member });
    for (_, listener) in listeners {
        listener.close_with_sink(Arc::clone(&sink) as _);
    }
}

impl<L> Drop for GroupMember<L> {
    fn drop(&mut self) {
        let listeners = self.listeners.take();
        let (successor, waker) = {
            let mut state = self.group.lock();
            state.slots[self.member].releasing += listeners.len();
            (self.group.leave(&mut state, self.member), state.slots[self.member].waker.take())
        };
        // Not under the lock.
        drop(waker);
        close_listeners(&self.group, self.member, listeners);
        if let Some(successor) = successor {
            let worker = self.member;
            log(|| {
                tracing::warn!(
                    worker,
                    successor,
                    "a worker has ended: another one accepts from its sockets from now on"
                );
            });
        }
        self.group.change(|_| ());
    }
}

impl<L> fmt::Debug for GroupMember<L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GroupMember").field("member", &self.member).finish_non_exhaustive()
    }
}
