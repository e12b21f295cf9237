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
mod member;
mod pending;
mod reuse_port;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

pub use self::distribution::Distribution;
pub use self::member::{GroupListener, GroupMember};
pub use self::pending::PendingConnections;
use self::state::{CloseWaiter, Group, GroupState, MemberState};
use crate::driver::DetachedSocket;
use crate::executor::current;

/// Listening sockets shared by several workers. The sockets outlive the workers. Clones refer to the same group.
///
/// Each worker [joins](Self::join) and accepts. Connections are distributed evenly ([`Distribution`]): a worker that
/// has been assigned more than its share transfers further connections to the other workers. If a worker exits early
/// because of an error or a panic, another worker accepts the connections pending on its sockets and those that the
/// kernel had already accepted for it. Any thread can [pause](Self::pause) and [resume](Self::resume) accepting, for
/// example to transfer the sockets to another process, and can [close](Self::close) the group.
///
/// ```
/// use anello::net::{TcpListener, TcpStream};
/// use anello::server::{ListenerGroup, PendingConnections};
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

impl<L: GroupListener> ListenerGroup<L> {
    /// Creates a group of `members` members from listening sockets. With fewer sockets than members, several members
    /// accept from the same socket. With more sockets than members, some members accept from several.
    ///
    /// ```
    /// # use anello::net::TcpListener;
    /// # use anello::server::ListenerGroup;
    /// // Two members accept from one socket.
    /// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let group = ListenerGroup::<TcpListener>::new(vec![socket], 2);
    /// assert_eq!(group.sockets()?.len(), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(sockets: Vec<L::Std>, members: usize) -> Self {
        Self::with_state(into_detached::<L>(sockets), members, GroupState::Open)
    }

    /// Creates a paused group, which accepts nothing until it is [resumed](Self::resume).
    ///
    /// ```
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::ListenerGroup;
    /// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// let group = ListenerGroup::<TcpListener>::new_paused(vec![socket], 1);
    /// anello::Runtime::new()?.block_on(async {
    ///     let member = group.join(0);
    ///     // The client waits in the accept queue.
    ///     let _client = TcpStream::connect(address).await?;
    ///     group.resume();
    ///     assert!(member.accept().await?.is_some());
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new_paused(sockets: Vec<L::Std>, members: usize) -> Self {
        Self::with_state(into_detached::<L>(sockets), members, GroupState::Paused)
    }

    fn with_state(sockets: Vec<DetachedSocket>, members: usize, group_state: GroupState) -> Self {
        Self { group: Group::new(sockets, members, group_state), kind: PhantomData }
    }

    /// Joins the group on this thread's runtime as the member with index `member`, counted from 0. Dropping the
    /// returned value leaves the group.
    ///
    /// # Panics
    /// Panics if the index is out of range, if the member has already joined, or if no runtime is running on this
    /// thread.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::ListenerGroup;
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let member = group.join(0);
    /// let client = TcpStream::connect(group.sockets()?[0].local_addr()?).await?;
    /// let server = member.accept().await?.expect("the group is open");
    /// assert_eq!(server.peer_addr()?, client.local_addr()?);
    /// # }
    /// ```
    #[track_caller]
    pub fn join(&self, member: usize) -> GroupMember<L> {
        let shared = current();
        {
            let mut state = self.group.lock();
            let members = state.slots.len();
            assert!(
                member < members,
                "cannot join group: no member {member} (the group has {members} members)"
            );
            let member_state = &mut state.slots[member].member_state;
            assert!(
                *member_state == MemberState::Joining,
                "cannot join group: member {member} has already joined"
            );
            *member_state = MemberState::Active;
        }
        self.group.open_counts.set_worker(member, Some(shared.worker_id()));
        GroupMember::new(Arc::clone(&self.group), member, shared)
    }

    /// Returns duplicates of the group's sockets for transfer to another process. After the group has been closed, the
    /// sockets that its members have closed are missing.
    ///
    /// # Errors
    /// Returns the error from `fcntl(2)` with `F_DUPFD_CLOEXEC`, for example if the process has no descriptors left, or
    /// `Unsupported` for sockets on a simulated host.
    ///
    /// ```
    /// # use anello::net::TcpListener;
    /// # use anello::server::ListenerGroup;
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
    /// let sockets: Vec<std::net::TcpListener> = group.sockets()?;
    /// assert_eq!(sockets[0].local_addr()?, sockets[1].local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn sockets(&self) -> io::Result<Vec<L::Std>> {
        let state = self.group.lock();
        let sockets = state.sockets.iter().flatten();
        sockets.map(|socket| socket.try_clone()?.into_descriptor().map(L::Std::from)).collect()
    }

    /// Pauses accepting in every member. Connections that the kernel has already accepted are still returned by the
    /// members. Once the members have [applied](Self::wait_applied) the change, new connections wait in the accept
    /// queues of the sockets, for this process or another process that shares the sockets. Has no effect on a closed
    /// group.
    ///
    /// ```
    /// # anello::example! {
    /// # use std::time::Duration;
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::ListenerGroup;
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let member = group.join(0);
    /// group.pause();
    /// let _client = TcpStream::connect(group.sockets()?[0].local_addr()?).await?;
    /// let accepted = anello::time::timeout(Duration::from_millis(1), member.accept()).await;
    /// assert!(accepted.is_err(), "the client waits in the accept queue");
    /// group.resume();
    /// assert!(member.accept().await?.is_some());
    /// # }
    /// ```
    pub fn pause(&self) {
        self.set_state(GroupState::Paused);
    }

    /// Resumes accepting in every member. Has no effect on a closed group.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::ListenerGroup;
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let member = group.join(0);
    /// group.pause();
    /// let _client = TcpStream::connect(group.sockets()?[0].local_addr()?).await?;
    /// group.resume();
    /// assert!(member.accept().await?.is_some());
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use anello::net::TcpListener;
    /// # use anello::server::{Distribution, ListenerGroup};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
    /// group.set_distribution(Distribution::Kernel);
    /// assert_eq!(group.distribution(), Distribution::Kernel);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_distribution(&self, distribution: Distribution) {
        self.group.balance.set(distribution);
    }

    /// Returns how connections are distributed over the members.
    ///
    /// ```
    /// # use anello::net::TcpListener;
    /// # use anello::server::{Distribution, ListenerGroup};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
    /// assert_eq!(group.distribution(), Distribution::Balanced);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn distribution(&self) -> Distribution {
        self.group.balance.distribution()
    }

    /// Returns the number of open connections of each member, ordered by member index. Counts the connections that were
    /// accepted under [`Distribution::LeastLoaded`] and are open, including those that wait for a call to
    /// [`accept`](GroupMember::accept).
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::{Distribution, ListenerGroup};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// group.set_distribution(Distribution::LeastLoaded);
    /// let member = group.join(0);
    /// let _client = TcpStream::connect(group.sockets()?[0].local_addr()?).await?;
    /// let _server = member.accept().await?;
    /// assert_eq!(group.open_connections(), [1]);
    /// # }
    /// ```
    pub fn open_connections(&self) -> Vec<u64> {
        self.group.open_counts.all()
    }

    /// Blocks the thread until every member has applied the last change, that is, until it is accepting, paused or
    /// closed. Ignores members that have left, but waits for members that have not joined yet. Returns the number of
    /// members.
    ///
    /// # Errors
    /// Returns `TimedOut` if a member has not applied the change within `timeout`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::Workers;
    /// # use anello::net::TcpListener;
    /// # use anello::server::{ListenerGroup, PendingConnections};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
    /// let joined = group.clone();
    /// let workers = Workers::builder().unpinned_workers(2).start(move |worker| {
    ///     let joined = joined.clone();
    ///     async move { joined.join(worker.index).accept().await.map(|accepted| accepted.is_none()) }
    /// })?;
    /// assert_eq!(group.wait_applied(Duration::from_secs(30))?, 2);
    /// group.close(PendingConnections::Leave);
    /// for is_closed in workers.join()? {
    ///     assert!(is_closed?);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait_applied(&self, timeout: Duration) -> io::Result<usize> {
        self.group.wait_applied(timeout)
    }

    /// Closes the group. The members still return connections that the kernel has accepted and, depending on `pending`,
    /// those in the accept queues. Then every [`accept`](GroupMember::accept) returns `None`. Has no effect on a closed
    /// group. A paused group leaves the pending connections in the accept queues. If no descriptors are available for
    /// connections to be served, the members wait until descriptors become available.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{TcpListener, TcpStream};
    /// # use anello::server::{ListenerGroup, PendingConnections};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let member = group.join(0);
    /// let _client = TcpStream::connect(group.sockets()?[0].local_addr()?).await?;
    /// group.close(PendingConnections::Serve);
    /// assert!(member.accept().await?.is_some());
    /// assert!(member.accept().await?.is_none());
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use anello::net::TcpListener;
    /// # use anello::server::{ListenerGroup, PendingConnections};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let clone = group.clone();
    /// group.close(PendingConnections::Leave);
    /// assert!(clone.is_closed());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_closed(&self) -> bool {
        matches!(self.group.lock().group_state, GroupState::Closed(_))
    }

    /// Waits until the group is closed by any of its clones. Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::TcpListener;
    /// # use anello::server::{ListenerGroup, PendingConnections};
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let clone = group.clone();
    /// let waiting = anello::spawn(async move { clone.closed().await });
    /// group.close(PendingConnections::Leave);
    /// waiting.await.expect("the task does not panic");
    /// assert!(group.is_closed());
    /// # }
    /// ```
    pub fn closed(&self) -> impl Future<Output = ()> + '_ {
        let mut waiter = CloseWaiter { group: &self.group, id: None };
        poll_fn(move |context| waiter.poll(context))
    }
}

fn into_detached<L: GroupListener>(sockets: Vec<L::Std>) -> Vec<DetachedSocket> {
    sockets.into_iter().map(DetachedSocket::from).collect()
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
