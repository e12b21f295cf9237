//! Moving connections from busy workers to less busy ones.
//!
//! Each worker counts its own work. At the end of each interval, it publishes its load in a cache line of its own, and
//! compares it with the loads of the others ([`plan`]). Only an overloaded worker measures its connections, for one
//! interval, and then selects those to move ([`load`]). Requests therefore write no memory that another worker uses.

mod load;
mod plan;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use self::load::Load;
use self::plan::Loads;
use crate::sync::mpsc::error::TrySendError;
use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::time::{monotonic_now, sleep};

/// Time between two decisions of a worker. An overloaded worker needs two intervals to select connections and one to
/// move them.
const INTERVAL: Duration = Duration::from_millis(150);

/// Maximum number of connections that a worker has not yet received from the others. The others keep further ones.
const MAX_QUEUED_MOVES: usize = 1024;

/// Moves connections between the workers of a server, so that all workers are equally busy although some connections
/// have many more requests than others. Clones refer to the same rebalancer.
///
/// Each worker [joins](Self::join), [records](RebalancerMember::record) the work of its connections, and passes a
/// connection to another worker when `record` returns `true`. `T` is the type of a moved connection: a
/// [`DetachedStream`](super::DetachedStream), and everything that belongs to the connection.
///
/// A worker with more than 1.05 times the mean load moves connections, the busiest first, at most 256 in 150 ms. A
/// connection moves only if its new worker is then not busier than the old one. With an even load, nothing moves.
///
/// ```
/// use anello::net::TcpStream;
/// use anello::server::{AttachedStream, DetachedStream, Rebalancer, RebalancerMember};
///
/// type Member = RebalancerMember<DetachedStream>;
///
/// /// Echoes until the client disconnects, or the connection moves to another worker.
/// async fn serve(mut stream: TcpStream, member: &Member) -> std::io::Result<()> {
///     while let Some(chunk) = stream.recv().await? {
///         stream.send(chunk).await?;
///         // Any number that identifies the connection on this worker.
///         let connection = std::ptr::from_ref(&stream).addr();
///         if !member.record(connection, 1) {
///             continue;
///         }
///         let detached = DetachedStream::detach(stream).await?;
///         match member.move_connection(connection, detached) {
///             Ok(()) => return Ok(()),
///             // The other worker is shutting down.
///             Err(detached) => {
///                 let AttachedStream::Tcp(attached) = detached.attach()? else { unreachable!("a TCP connection") };
///                 stream = attached;
///             }
///         }
///     }
///     Ok(())
/// }
///
/// /// Serves the connections that other workers move here.
/// async fn serve_moved(member: &Member) -> std::io::Result<()> {
///     while let Some(detached) = member.recv().await {
///         let AttachedStream::Tcp(stream) = detached.attach()? else { continue };
///         // A server spawns a task.
///         serve(stream, member).await?;
///     }
///     Ok(())
/// }
/// # anello::example! {
/// let rebalancer = Rebalancer::new(1);
/// let member = rebalancer.join(0);
/// let listener = anello::net::TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?).await?;
/// client.write_all(b"ciao").await?;
/// client.shutdown().await?;
/// serve(listener.accept().await?, &member).await?;
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// member.close();
/// serve_moved(&member).await?;
/// # }
/// ```
#[derive(Debug)]
pub struct Rebalancer<T>(Arc<[Worker<T>]>);

/// State of a worker that other workers use.
#[derive(Debug)]
#[repr(align(64))]
struct Worker<T> {
    /// Work per second in the last interval.
    load: AtomicU64,
    moved: Sender<T>,
    /// Taken by the worker when it joins.
    receiver: Mutex<Option<Receiver<T>>>,
}

impl<T> Clone for Rebalancer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Rebalancer<T> {
    /// Creates a rebalancer for a number of workers.
    ///
    /// ```
    /// use anello::server::{DetachedStream, Rebalancer};
    ///
    /// let rebalancer = Rebalancer::<DetachedStream>::new(2);
    /// assert!(!rebalancer.join(0).record(7, 1), "the load is even");
    /// ```
    pub fn new(workers: usize) -> Self {
        let worker = || {
            let (moved, receiver) = channel(MAX_QUEUED_MOVES);
            Worker { load: AtomicU64::new(0), moved, receiver: Mutex::new(Some(receiver)) }
        };
        Self((0..workers).map(|_| worker()).collect())
    }

    /// Returns the membership of a worker, which stays on its thread.
    ///
    /// ```
    /// use anello::server::{DetachedStream, Rebalancer};
    ///
    /// let rebalancer = Rebalancer::<DetachedStream>::new(2);
    /// let (first, second) = (rebalancer.join(0), rebalancer.join(1));
    /// # drop((first, second));
    /// ```
    ///
    /// # Panics
    /// Panics if there is no such worker, or if the worker has joined before.
    #[track_caller]
    pub fn join(&self, worker: usize) -> RebalancerMember<T> {
        let count = self.0.len();
        assert!(worker < count, "no worker has index {worker} (there are {count} workers)");
        let receiver = self.0[worker].receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let receiver = receiver.unwrap_or_else(|| panic!("worker {worker} has joined before"));
        RebalancerMember {
            workers: Arc::clone(&self.0),
            worker,
            load: Load::default(),
            receiver: RefCell::new(receiver),
            interval_start: Cell::new(None),
        }
    }
}

/// Membership of a worker in a [`Rebalancer`].
///
/// ```
/// use anello::server::{DetachedStream, Rebalancer, RebalancerMember};
///
/// let member: RebalancerMember<DetachedStream> = Rebalancer::new(1).join(0);
/// assert!(!member.record(7, 1), "a single worker has no other to move to");
/// ```
#[derive(Debug)]
pub struct RebalancerMember<T> {
    workers: Arc<[Worker<T>]>,
    worker: usize,
    load: Load,
    receiver: RefCell<Receiver<T>>,
    /// Time at which the interval started, on the runtime's clock.
    interval_start: Cell<Option<Duration>>,
}

impl<T> RebalancerMember<T> {
    /// Records `work` of a connection, such as 1 for a request. Returns `true` if the connection should move at its next
    /// opportunity: the caller then detaches it and calls [`move_connection`](Self::move_connection).
    ///
    /// `connection` is any number that identifies the connection on this worker. Costs a few instructions, and no shared
    /// memory, unless the worker is overloaded.
    ///
    /// ```
    /// # use anello::server::{DetachedStream, Rebalancer};
    /// let member = Rebalancer::<DetachedStream>::new(2).join(0);
    /// assert!(!member.record(7, 1));
    /// ```
    #[inline]
    pub fn record(&self, connection: usize, work: u64) -> bool {
        self.load.record(connection, work)
    }

    /// Sends a connection for which [`record`](Self::record) returned `true` to its new worker, whose
    /// [`recv`](Self::recv) returns it.
    ///
    /// ```
    /// # use anello::server::Rebalancer;
    /// let member = Rebalancer::new(2).join(0);
    /// assert_eq!(member.move_connection(7, "not selected"), Err("not selected"));
    /// ```
    ///
    /// # Errors
    /// Returns `moved` if the connection should no longer move, or its new worker receives no more connections, or has
    /// not yet received 1024 of them. The caller continues to serve it.
    pub fn move_connection(&self, connection: usize, moved: T) -> Result<(), T> {
        let Some(target) = self.load.take_target(connection) else { return Err(moved) };
        self.workers[target].moved.try_send(moved).map_err(TrySendError::into_inner)
    }

    /// Receives the next connection that another worker moves here. Returns `None` once the member is
    /// [closed](Self::close) and all connections have been received. Cancel-safe.
    ///
    /// Also compares the loads every 150 ms, so connections are moved away only while a task is waiting in `recv`.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::server::{DetachedStream, Rebalancer};
    /// let member = Rebalancer::<DetachedStream>::new(2).join(0);
    /// member.close();
    /// assert!(member.recv().await.is_none());
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub async fn recv(&self) -> Option<T> {
        loop {
            let mut interval = pin!(sleep(self.left_of_interval()));
            let received = poll_fn(|context| {
                if let Poll::Ready(moved) = self.receiver.borrow_mut().poll_recv(context) {
                    return Poll::Ready(Some(moved));
                }
                interval.as_mut().poll(context).map(|()| None)
            });
            if let Some(moved) = received.await {
                return moved;
            }
            self.end_interval(monotonic_now());
        }
    }

    fn left_of_interval(&self) -> Duration {
        let now = monotonic_now();
        let start = self.interval_start.get().unwrap_or(now);
        self.interval_start.set(Some(start));
        (start + INTERVAL).saturating_sub(now)
    }

    fn end_interval(&self, now: Duration) {
        let start = self.interval_start.replace(Some(now)).unwrap_or(now);
        let work = self.load.take_work();
        let per_second = u128::from(work) * 1_000_000_000 / now.saturating_sub(start).as_nanos().max(1);
        let own = &self.workers[self.worker].load;
        own.store(u64::try_from(per_second).unwrap_or(u64::MAX), Ordering::Relaxed);
        let is_open =
            |(index, worker): &(usize, &Worker<T>)| *index == self.worker || !worker.moved.is_closed();
        let open = self.workers.iter().enumerate().filter(is_open);
        let loads = open.map(|(index, worker)| (index, worker.load.load(Ordering::Relaxed))).collect();
        self.load.decide(&Loads { loads, worker: self.worker }, work);
    }

    /// Refuses further connections from other workers, and selects no more to move away. A worker that shuts down closes
    /// its member before it drains its connections.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::server::{DetachedStream, Rebalancer};
    /// let member = Rebalancer::<DetachedStream>::new(1).join(0);
    /// member.close();
    /// assert!(member.recv().await.is_none());
    /// # }
    /// ```
    pub fn close(&self) {
        self.load.reset();
        self.receiver.borrow_mut().close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two members, and the connections of the first that are selected to move.
    fn overloaded_member() -> (RebalancerMember<usize>, RebalancerMember<usize>, Vec<usize>) {
        let rebalancer = Rebalancer::new(2);
        let (busy, idle) = (rebalancer.join(0), rebalancer.join(1));
        busy.interval_start.set(Some(Duration::ZERO));
        for interval in 1..3 {
            assert!((0..10).all(|connection| !busy.record(connection, 1000)), "not measured yet");
            busy.end_interval(INTERVAL * interval);
        }
        let selected: Vec<usize> = (0..10).filter(|&connection| busy.record(connection, 1)).collect();
        assert_eq!(selected.len(), 5, "half of the load");
        (busy, idle, selected)
    }

    #[test]
    fn selected_connections_are_received_by_other_worker() {
        let (busy, idle, selected) = overloaded_member();
        assert_eq!(busy.move_connection(10, 10), Err(10), "not selected");
        for &connection in &selected {
            assert_eq!(busy.move_connection(connection, connection), Ok(()));
            assert!(!busy.record(connection, 1), "already moved");
        }
        idle.close();
        crate::Runtime::new().unwrap().block_on(async {
            for &connection in &selected {
                assert_eq!(idle.recv().await, Some(connection));
            }
            assert_eq!(idle.recv().await, None);
        });
    }

    #[test]
    fn closed_member_receives_no_connections() {
        let (busy, idle, selected) = overloaded_member();
        idle.close();
        assert_eq!(busy.move_connection(selected[0], 0), Err(0));
        // A closed member is no target either.
        for interval in 3..6 {
            (0..10).for_each(|connection| _ = busy.record(connection, 1000));
            busy.end_interval(INTERVAL * interval);
            assert!((0..10).all(|connection| !busy.record(connection, 1)));
        }
    }

    #[test]
    fn member_that_receives_nothing_holds_a_limited_number_of_connections() {
        let (busy, idle, selected) = overloaded_member();
        for connection in 0..MAX_QUEUED_MOVES {
            busy.workers[1].moved.try_send(connection).unwrap();
        }
        assert_eq!(busy.move_connection(selected[0], selected[0]), Err(selected[0]));
        drop(idle);
    }

    #[test]
    fn selection_ends_after_interval_and_when_member_closes() {
        let (busy, _idle, selected) = overloaded_member();
        busy.end_interval(INTERVAL * 3);
        assert!(!busy.record(selected[0], 1));
        let (busy, _idle, selected) = overloaded_member();
        busy.close();
        assert!(!busy.record(selected[0], 1));
        assert_eq!(busy.move_connection(selected[0], 0), Err(0));
    }
}
