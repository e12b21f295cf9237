//! Members of a group, which accept its connections.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::distribution::Distribution;
use super::pending::PendingConnections;
use super::state::{AcceptedConnection, Group, GroupAcceptSink, GroupState, State};
use crate::driver::{Accepted, DetachedSocket, OpenCount, log_event, try_accept};
use crate::executor::{Shared, WaitQueue};
use crate::net::{
    BACKLOG, ByteStream, Connection, EXHAUSTED_RETRY_DELAY, Listener, StreamFamily, StreamListener,
    StreamSocket, is_exhausted, warn_exhausted,
};
use crate::time::pause;

/// Listener type of a group: [`TcpListener`](crate::net::TcpListener) or [`UnixListener`](crate::net::UnixListener).
/// This trait is sealed.
///
/// ```
/// use anello::net::{ByteStream, TcpListener, TcpStream};
/// use anello::server::{GroupListener, ListenerGroup, PendingConnections};
///
/// /// Greets the clients of one member, over TCP or Unix sockets.
/// async fn greet<L: GroupListener>(group: ListenerGroup<L>) -> std::io::Result<()> {
///     let member = group.join(0);
///     while let Some(mut stream) = member.accept().await? {
///         stream.split().1.write_all(b"ciao").await?;
///     }
///     Ok(())
/// }
///
/// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
/// let address = group.sockets()?[0].local_addr()?;
/// anello::Runtime::new()?.block_on(async {
///     let greeting = anello::spawn(greet(group.clone()));
///     let mut client = TcpStream::connect(address).await?;
///     assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
///     group.close(PendingConnections::Leave);
///     greeting.await.expect("the task does not panic")
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait GroupListener: sealed::Sealed + 'static {
    /// Type of the listening sockets from which a group is created.
    type Std: Into<OwnedFd> + From<OwnedFd>;
    /// Type of the accepted connections.
    type Stream: ByteStream;

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

/// Membership of one worker in a [`ListenerGroup`](super::ListenerGroup).
///
/// ```
/// # anello::example! {
/// use anello::net::TcpListener;
/// use anello::server::{GroupMember, ListenerGroup, PendingConnections};
///
/// /// Returns the number of clients served.
/// async fn serve(member: &GroupMember<TcpListener>) -> std::io::Result<usize> {
///     let mut served = 0;
///     while let Some(_stream) = member.accept().await? {
///         served += 1;
///     }
///     Ok(served)
/// }
/// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
/// let member = group.join(0);
/// group.close(PendingConnections::Serve);
/// assert_eq!(serve(&member).await?, 0);
/// # }
/// ```
pub struct GroupMember<L> {
    group: Arc<Group>,
    member: usize,
    shared: Rc<Shared>,
    /// Listeners, each with the index of its socket in the group.
    pub(super) listeners: RefCell<Vec<(usize, Listener)>>,
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
    closing_sockets: RefCell<Option<Vec<(DetachedSocket, u32)>>>,
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

impl<L> GroupMember<L> {
    pub(super) fn new(group: Arc<Group>, member: usize, shared: Rc<Shared>) -> Self {
        Self {
            group,
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
}

impl<L: GroupListener> GroupMember<L> {
    /// Accepts the next connection. Returns `None` once the group is closed and all connections to be served have been
    /// returned. Otherwise behaves like [`StreamListener::accept`], which also documents errors and cancel safety.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::{ListenerGroup, PendingConnections};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let member = group.join(0);
    /// let client = TcpStream::connect(group.sockets()?[0].local_addr()?).await?;
    /// if let Some(server) = member.accept().await? {
    ///     assert_eq!(server.peer_addr()?, client.local_addr()?);
    /// }
    /// group.close(PendingConnections::Leave);
    /// assert!(member.accept().await?.is_none());
    /// # }
    /// ```
    pub async fn accept(&self) -> io::Result<Option<L::Stream>> {
        loop {
            let mut ticket = self.wait_queue.ticket();
            let connection =
                match poll_fn(|context| ticket.poll(context, |context| self.poll_next(context))).await {
                    AcceptStep::Accepted(connection) => return Ok(Some(L::stream(connection))),
                    AcceptStep::Inherited(connection) => Some(connection),
                    AcceptStep::Transfer(connection) => self.group.transfer(self.member, connection),
                    AcceptStep::Closed => return Ok(None),
                    AcceptStep::Failed(error) => return Err(error),
                    AcceptStep::Exhausted(error, rejected) => {
                        warn_exhausted(&self.shared, &error, rejected);
                        pause(EXHAUSTED_RETRY_DELAY).await;
                        None
                    }
                };
            match connection.map(|connection| self.attach(connection)) {
                Some(Ok(connection)) => return Ok(Some(L::stream(connection))),
                Some(Err(error)) => log_event!(DEBUG, %error, "connection failed before it was served"),
                None => {}
            }
        }
    }

    /// Attaches a connection that this member serves to the driver.
    fn attach(&self, accepted: AcceptedConnection) -> io::Result<Connection> {
        let connection = Connection::import(Rc::clone(&self.shared), accepted.connection.into_socket())?;
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
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::ListenerGroup;
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let member = group.join(0);
    /// member.set_accept_ahead(false);
    /// let _clients = [
    ///     TcpStream::connect(group.sockets()?[0].local_addr()?).await?,
    ///     TcpStream::connect(group.sockets()?[0].local_addr()?).await?,
    /// ];
    /// // The second connection stays in the accept queue, and uses no descriptor of this process.
    /// assert!(member.accept().await?.is_some());
    /// # }
    /// ```
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
                        connection.trace_accepted();
                        AcceptStep::Accepted(connection)
                    }
                    Ok(Accepted::Detached(socket)) => {
                        AcceptStep::Transfer(AcceptedConnection::new(socket, open_count))
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

    pub(super) fn open(&self) -> io::Result<()> {
        let mut listeners = self.listeners.borrow_mut();
        let mut state = self.group.lock();
        if state.group_state != GroupState::Open {
            // The state changed after it was read. The next poll applies the new state.
            return Ok(());
        }
        for socket in state.slots[self.member].sockets.clone() {
            let is_open = listeners.iter().any(|(open, _)| *open == socket);
            if let (false, Some(shared)) = (is_open, &state.sockets[socket]) {
                let listener = Listener::import(Rc::clone(&self.shared), shared.try_clone()?)?;
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
    fn accept_closing(&self, closing_sockets: &mut Vec<(DetachedSocket, u32)>) -> AcceptStep {
        while let Some((socket, left)) = closing_sockets.last_mut() {
            match try_accept(socket).map(AcceptedConnection::from) {
                Ok(connection) if *left > 0 => {
                    *left -= 1;
                    self.shared.spend_budget(0);
                    return AcceptStep::Inherited(connection);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Descriptors become available when other connections close.
                Err(error) if is_exhausted(&error) => return AcceptStep::Exhausted(error, 0),
                Ok(_) => log_event!(
                    WARN,
                    accepted = BACKLOG,
                    "closing a socket with connections still in its accept queue"
                ),
                Err(error) => log_event!(WARN, %error, "cannot accept pending connections; resetting them"),
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
            log_event!(WARN, worker, successor, "{message}");
        }
        self.group.change(|_| ());
    }
}

impl<L> fmt::Debug for GroupMember<L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GroupMember").field("member", &self.member).finish_non_exhaustive()
    }
}
