//! Listening sockets that outlive the workers accepting from them.
//!
//! ```text
//!   ListenerGroup ── sockets, their members, open │ paused │ closed              any thread
//!      │    │    └── connections accepted for a stopped member, or transferred to another member
//!   member member                                                               one per worker
//! ```
//!
//! With one socket per worker (`SO_REUSEPORT`), closing a socket makes the kernel reset the connections in its accept
//! queue, unless `net.ipv4.tcp_migrate_req` is set. Therefore the group keeps every socket open, members accept from
//! duplicates, and another member takes over the sockets of a member that leaves.
//!
//! To accept a connection, a member only checks an atomic version number, which is written only when the group changes.
//! It takes the lock when the version has changed and when connections are transferred ([`distribution`]).

mod distribution;
mod reuse_port;
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

pub use self::distribution::Distribution;
pub use self::state::PendingConnections;
use self::state::{AcceptedConnection, CloseWaiter, Group, GroupAcceptSink, GroupState, MemberState, State};
use super::connection::Connection;
use super::family::StreamFamily;
use super::listener::{
    BACKLOG, EXHAUSTED_RETRY_DELAY, Listener, StreamListener, is_exhausted, warn_exhausted,
};
use super::stream::Stream;
use super::stream_socket::StreamSocket;
use crate::driver::{Accepted, OpenCount, log, try_accept};
use crate::executor::{Shared, WaitQueue, current};
use crate::time::sleep;

/// Listening sockets shared by several workers. The sockets outlive the workers. Clones refer to the same group.
///
/// Each worker [joins](Self::join) and accepts. Connections are distributed evenly ([`Distribution`]): a worker that
/// has been assigned more than its share transfers further connections to the other workers. If a worker exits early
/// because of an error or a panic, another worker accepts the connections pending on its sockets and those that the
/// kernel had already accepted for it. Any thread can [pause](Self::pause) and [resume](Self::resume) accepting, for
/// example to transfer the sockets to another process, and can [close](Self::close) the group.
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
///     // The client connected before the group was closed.
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

/// Listener type of a group: [`TcpListener`](super::TcpListener) or [`UnixListener`](super::UnixListener). This trait is
/// sealed.
pub trait GroupListener: sealed::Sealed + 'static {
    /// Type of the listening sockets from which a group is created.
    type Std: Into<OwnedFd> + From<OwnedFd>;
    /// Type of the accepted connections.
    type Stream: Stream;

    #[doc(hidden)]
    fn stream(connection: Connection) -> Self::Stream;
}

mod sealed {
    pub trait Sealed {}
    impl<F> Sealed for super::StreamListener<F> {}
}

impl<F: StreamFamily> GroupListener for StreamListener<F> {
    type Std = F::StdListener;
    type Stream = StreamSocket<F>;

    fn stream(connection: Connection) -> StreamSocket<F> {
        StreamSocket::new(connection)
    }
}

impl<L: GroupListener> ListenerGroup<L> {
    /// Creates a group of `members` members from listening sockets. With fewer sockets than members, several members
    /// accept from the same socket. With more sockets than members, some members accept from several.
    pub fn new(sockets: Vec<L::Std>, members: usize) -> Self {
        Self::with_state(sockets, members, GroupState::Open)
    }

    /// Creates a paused group, which accepts nothing until it is [resumed](Self::resume).
    pub fn new_paused(sockets: Vec<L::Std>, members: usize) -> Self {
        Self::with_state(sockets, members, GroupState::Paused)
    }

    fn with_state(sockets: Vec<L::Std>, members: usize, group_state: GroupState) -> Self {
        let sockets = sockets.into_iter().map(Into::into).collect();
        Self { group: Group::new(sockets, members, group_state), kind: PhantomData }
    }

    /// Joins the group on this thread's runtime as the member with index `member`, counted from 0. Dropping the
    /// returned value leaves the group.
    ///
    /// # Panics
    /// Panics if the index is out of range, if the member has already joined, or if no runtime is running on this
    /// thread.
    pub fn join(&self, member: usize) -> GroupMember<L> {
        let shared = current();
        let previous = {
            let mut state = self.group.lock();
            std::mem::replace(&mut state.slots[member].member_state, MemberState::Active)
        };
        assert_eq!(previous, MemberState::Joining, "member {member} has already joined the group");
        self.group.open_counts.set_worker(member, Some(shared.worker_id()));
        GroupMember {
            group: Arc::clone(&self.group),
            member,
            shared,
            listeners: RefCell::default(),
            first: Cell::new(0),
            applied_version: Cell::new(0),
            registered_waker: RefCell::new(None),
            wait_queue: WaitQueue::default(),
            accepts_ahead: Cell::new(true),
            closing_sockets: RefCell::new(None),
            kind: PhantomData,
        }
    }

    /// Returns duplicates of the group's sockets for transfer to another process. Returns an empty vector if the group
    /// is closed.
    ///
    /// # Errors
    /// Returns the error from `fcntl(2)` with `F_DUPFD_CLOEXEC`, for example if the process has no descriptors left.
    pub fn sockets(&self) -> io::Result<Vec<L::Std>> {
        let state = self.group.lock();
        let sockets = state.sockets.iter().flatten();
        sockets.map(|socket| socket.try_clone().map(L::Std::from)).collect()
    }

    /// Pauses accepting in every member. Connections that the kernel has already accepted are still returned by the
    /// members. Once the members have [applied](Self::wait_applied) the change, new connections wait in the accept
    /// queues of the sockets, for this process or another process that shares the sockets. Has no effect on a closed
    /// group.
    pub fn pause(&self) {
        self.set_state(GroupState::Paused);
    }

    /// Resumes accepting in every member. Has no effect on a closed group.
    pub fn resume(&self) {
        self.set_state(GroupState::Open);
    }

    fn set_state(&self, group_state: GroupState) {
        self.group.change(|state| {
            if !matches!(state.group_state, GroupState::Closed(_)) {
                state.group_state = group_state;
            }
        });
    }

    /// Sets how connections are distributed over the members from now on. The default is
    /// [`Balanced`](Distribution::Balanced).
    pub fn set_distribution(&self, distribution: Distribution) {
        self.group.balance.set(distribution);
    }

    /// Returns how connections are distributed over the members.
    pub fn distribution(&self) -> Distribution {
        self.group.balance.distribution()
    }

    /// Returns the number of open connections of each member, ordered by member index. Counts the connections that were
    /// accepted under [`Distribution::LeastLoaded`] and are open, including those that wait for a call to
    /// [`accept`](GroupMember::accept).
    pub fn open_connections(&self) -> Vec<u64> {
        self.group.open_counts.all()
    }

    /// Blocks the thread until every member has applied the last change, that is, until it is accepting, paused or
    /// closed. Ignores members that have left, but waits for members that have not joined yet. Returns the number of
    /// members.
    ///
    /// # Errors
    /// Returns `TimedOut` if a member has not applied the change within `timeout`.
    pub fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        self.group.wait_applied(timeout)
    }

    /// Closes the group. The members still return connections that the kernel has accepted and, depending on `pending`,
    /// those in the accept queues. Then every [`accept`](GroupMember::accept) returns `None`. Has no effect on a closed
    /// group. A paused group leaves the pending connections in the accept queues. If no descriptors are available for
    /// connections to be served, the members wait until descriptors become available.
    pub fn close(&self, pending: PendingConnections) {
        self.group.change(|state| {
            state.group_state = match state.group_state {
                GroupState::Open => GroupState::Closed(pending),
                GroupState::Paused => GroupState::Closed(PendingConnections::Leave),
                closed => closed,
            };
        });
    }

    /// Returns whether the group is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.group.lock().group_state, GroupState::Closed(_))
    }

    /// Waits until the group is closed by any of its clones. Cancel-safe.
    pub fn closed(&self) -> impl Future<Output = ()> + '_ {
        let mut waiter = CloseWaiter { group: &self.group, id: None };
        poll_fn(move |context| waiter.poll(context))
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

/// Membership of one worker in a [`ListenerGroup`].
pub struct GroupMember<L> {
    group: Arc<Group>,
    member: usize,
    shared: Rc<Shared>,
    /// Listeners, each with the index of its socket in the group.
    listeners: RefCell<Vec<(usize, Listener)>>,
    /// Index of the listener that is polled first. It rotates so that a busy listener does not starve the others. The
    /// index after the last listener stands for the connections transferred to this member.
    first: Cell<usize>,
    /// Version of the group state that this member has applied.
    applied_version: Cell<u64>,
    /// The waker that is registered with the group.
    registered_waker: RefCell<Option<Waker>>,
    wait_queue: WaitQueue,
    accepts_ahead: Cell<bool>,
    /// Set once the group is closed: sockets that may still have pending connections, and the remaining number of
    /// connections to accept from each.
    closing_sockets: RefCell<Option<Vec<(OwnedFd, u32)>>>,
    kind: PhantomData<fn() -> L>,
}

/// Outcome of polling all connection sources.
enum AcceptStep {
    Accepted(Connection),
    /// Connection that is not attached to this driver, for example because another member accepted it.
    Inherited(AcceptedConnection),
    /// Connection to be transferred to another member.
    Transfer(AcceptedConnection),
    Closed,
    Failed(io::Error),
    /// No descriptors are left. The second value is the number of clients that were rejected.
    Exhausted(io::Error, usize),
}

impl<L: GroupListener> GroupMember<L> {
    /// Accepts the next connection. Returns `None` once the group is closed and all connections to be served have been
    /// returned. Otherwise behaves like [`StreamListener::accept`], which also documents errors and cancel safety.
    pub async fn accept(&self) -> io::Result<Option<L::Stream>> {
        loop {
            let mut ticket = self.wait_queue.ticket();
            let connection = match poll_fn(|context| ticket.poll(context, || self.poll_next(context))).await {
                AcceptStep::Accepted(connection) => return Ok(Some(L::stream(connection))),
                AcceptStep::Inherited(connection) => Some(connection),
                AcceptStep::Transfer(connection) => self.group.transfer(self.member, connection),
                AcceptStep::Closed => return Ok(None),
                AcceptStep::Failed(error) => return Err(error),
                AcceptStep::Exhausted(error, refused) => {
                    warn_exhausted(&error, refused);
                    sleep(EXHAUSTED_RETRY_DELAY).await;
                    None
                }
            };
            match connection.map(|connection| self.attach(connection)) {
                Some(Ok(connection)) => return Ok(Some(L::stream(connection))),
                Some(Err(error)) => tracing::debug!(%error, "connection failed before it was served"),
                None => {}
            }
        }
    }

    /// Attaches a connection that this member serves to the driver.
    fn attach(&self, accepted: AcceptedConnection) -> io::Result<Connection> {
        let connection = Connection::import(accepted.descriptor)?;
        // The connection may have been assigned to another member, which has left or has no room for it.
        let open_count = match accepted.open_count {
            Some(open_count) => Some(open_count.move_to(self.member)),
            None => (self.group.balance.distribution() == Distribution::LeastLoaded)
                .then(|| OpenCount::new(&self.group.open_counts, self.member)),
        };
        if let Some(open_count) = open_count {
            connection.hold_open_count(open_count);
        }
        Ok(connection)
    }

    /// Sets whether the driver may accept connections before [`accept`](Self::accept) is called, for all sockets of
    /// this member; see [`StreamListener::set_accept_ahead`]. With `false`, at most 16 connections accepted by other
    /// members are queued for this member ([`Distribution::Balanced`]).
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        if self.accepts_ahead.replace(accepts_ahead) != accepts_ahead {
            self.group.set_accept_ahead(self.member, accepts_ahead);
            self.listeners.borrow().iter().for_each(|(_, listener)| listener.set_accept_ahead(accepts_ahead));
        }
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<AcceptStep> {
        if !self.shared.has_budget_or_yield(context) {
            return Poll::Pending;
        }
        // Register the waker before reading the version, so that a later change wakes this task.
        self.register(context.waker());
        let version = self.group.version();
        if self.applied_version.get() != version {
            if let Some(next) = self.apply_state() {
                return Poll::Ready(next);
            }
            self.applied_version.set(version);
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
            let mut open_count = None;
            let keeps = || match self.group.balance.distribution() {
                Distribution::LeastLoaded => {
                    let assigned = open_count.insert(self.group.assign_to_least_loaded(self.member));
                    assigned.member() == self.member
                }
                Distribution::Balanced | Distribution::Kernel => self.group.balance.count(self.member),
            };
            if let Poll::Ready(accepted) = listener.poll_accept_if(context, keeps) {
                self.first.set(index + 1);
                return Poll::Ready(match accepted {
                    Ok(Accepted::Stream(key)) => {
                        let connection = Connection::new(Rc::clone(&self.shared), key);
                        if let Some(open_count) = open_count {
                            connection.hold_open_count(open_count);
                        }
                        AcceptStep::Accepted(connection)
                    }
                    Ok(Accepted::Descriptor(descriptor)) => {
                        AcceptStep::Transfer(AcceptedConnection { descriptor, open_count })
                    }
                    Err(error) if is_exhausted(&error) => AcceptStep::Exhausted(error, listener.refuse()),
                    Err(error) => AcceptStep::Failed(error),
                });
            }
        }
        Poll::Pending
    }

    #[inline]
    fn register(&self, waker: &Waker) {
        let mut registered = self.registered_waker.borrow_mut();
        if registered.as_ref().is_none_or(|registered| !registered.will_wake(waker)) {
            *registered = Some(waker.clone());
            let replaced = self.group.lock().slots[self.member].waker.replace(waker.clone());
            // A waker must not be dropped while the group is locked.
            drop(replaced);
        }
    }

    /// Applies the group state. Ready connections are returned first, so applying the state may take several calls.
    #[cold]
    fn apply_state(&self) -> Option<AcceptStep> {
        let group_state = {
            let mut state = self.group.lock();
            if let Some(accepted) = self.take_accepted(&mut state) {
                return Some(accepted);
            }
            state.group_state
        };
        match group_state {
            GroupState::Open => self.open().err().map(|error| match is_exhausted(&error) {
                // The state is not marked as applied, so the next poll tries again.
                true => AcceptStep::Exhausted(error, 0),
                false => AcceptStep::Failed(error),
            }),
            GroupState::Paused | GroupState::Closed(_) => self.release(group_state),
        }
    }

    fn take_accepted(&self, state: &mut State) -> Option<AcceptStep> {
        let accepted = self.group.take_accepted(state, self.member)?;
        self.shared.spend_budget(0);
        Some(AcceptStep::Inherited(accepted))
    }

    fn open(&self) -> io::Result<()> {
        let mut listeners = self.listeners.borrow_mut();
        let mut state = self.group.lock();
        if state.group_state != GroupState::Open {
            // The state changed after it was read. The next poll applies the new state.
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
        self.group.set_applied(&mut state, self.member);
        Ok(())
    }

    /// Releases all listeners. Connections accepted for them go to the group. Reports the state as applied once the
    /// kernel has released the listeners and no accepted connection is queued.
    fn release(&self, group_state: GroupState) -> Option<AcceptStep> {
        let listeners = self.listeners.take();
        if !listeners.is_empty() {
            self.group.lock().slots[self.member].releasing += listeners.len();
            close_listeners(&self.group, self.member, listeners);
            // Wake the members so that they accept the connections already added to the group.
            self.group.change(|_| ());
        }
        let mut state = self.group.lock();
        if state.slots[self.member].releasing > 0 || state.group_state != group_state {
            return None;
        }
        if let Some(accepted) = self.take_accepted(&mut state) {
            return Some(accepted);
        }
        if let GroupState::Closed(pending) = group_state
            && self.closing_sockets.borrow().is_none()
        {
            let sockets = state.slots[self.member].sockets.clone();
            let closed = sockets.into_iter().filter_map(|socket| state.sockets[socket].take());
            let closing_sockets =
                closed.filter(|_| pending == PendingConnections::Serve).map(|socket| (socket, BACKLOG));
            *self.closing_sockets.borrow_mut() = Some(closing_sockets.collect());
        }
        self.group.set_applied(&mut state, self.member);
        None
    }

    /// Accepts the pending connections of each socket, then closes the socket.
    fn accept_closing(&self, closing_sockets: &mut Vec<(OwnedFd, u32)>) -> AcceptStep {
        while let Some((socket, left)) = closing_sockets.last_mut() {
            match try_accept(socket) {
                Ok(connection) if *left > 0 => {
                    *left -= 1;
                    self.shared.spend_budget(0);
                    return AcceptStep::Inherited(connection.into());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Descriptors become available when other connections close.
                Err(error) if is_exhausted(&error) => return AcceptStep::Exhausted(error, 0),
                Ok(_) => tracing::warn!(
                    accepted = BACKLOG,
                    "closing a socket with connections still in its accept queue"
                ),
                Err(error) => tracing::warn!(%error, "cannot accept pending connections; resetting them"),
            }
            closing_sockets.pop();
        }
        AcceptStep::Closed
    }
}

/// Closes listeners of a member. Connections that the kernel has accepted for them go to the group.
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
        // A waker must not be dropped while the group is locked.
        drop(waker);
        close_listeners(&self.group, self.member, listeners);
        if let Some(successor) = successor {
            let worker = self.member;
            let message = "worker exited; its listening sockets moved to another worker";
            log(|| tracing::warn!(worker, successor, "{message}"));
        }
        self.group.change(|_| ());
    }
}

impl<L> fmt::Debug for GroupMember<L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GroupMember").field("member", &self.member).finish_non_exhaustive()
    }
}
