//! Channels, locks and other synchronisation primitives.
//!
//! | item | purpose |
//! |---|---|
//! | [`mpsc`] | queue from several senders to one receiver, bounded or not |
//! | [`oneshot`] | one value from one sender to one receiver |
//! | [`broadcast`] | queue from several senders to several receivers, each of which receives every value |
//! | [`watch`] | the latest value, from several senders to several receivers |
//! | [`Mutex`], [`RwLock`] | locks whose guards can be held across an await point |
//! | [`Semaphore`] | limit on concurrent operations |
//! | [`Notify`], [`Barrier`], [`OnceCell`], [`SetOnce`] | one event, a rendezvous, one initialisation, one value |
//! | [`CancellationToken`] | request to stop, passed to a tree of tasks |
//! | [`local`] | channels between tasks of one worker, which need no atomic operations |
//!
//! # Between workers
//!
//! Except in [`local`], every item can be used by tasks on different workers, by tasks of other runtimes, and, with the
//! `blocking_` methods, by other threads. A task that is woken by a task of another worker is notified as described at
//! [`Handle::spawn`](crate::Handle::spawn): through the ring (`MSG_RING`, Linux 5.18) if both workers use io_uring.
//! A notification through the ring can be delayed until the task that wakes yields. A task therefore must not block its
//! thread until the task that it has woken has run.
//!
//! A task on the same worker is woken without a notification. Data that only one worker uses needs no lock at all:
//! tasks of a worker can share it in an `Rc<RefCell<T>>`, as long as no borrow is held across an await point.
//!
//! # Budget
//!
//! Every asynchronous operation consumes one unit of the budget of the running task, as the operations of sockets and
//! timers do (see [`consume_budget`](crate::task::consume_budget)). A task that sends to a channel which is never full,
//! or receives from one which is never empty, yields when its budget is exhausted.
//!
//! # Differences from tokio
//!
//! The items have the names and methods of `tokio::sync`, whose implementations they contain. They are aliases of
//! [`Coop`](crate::task::Coop), which adds the budget: inside a tokio type, tokio's budget applies, which is unlimited
//! outside a tokio runtime. [`CancellationToken`] has the methods of `tokio_util::sync::CancellationToken`, and is
//! implemented here.

pub mod broadcast;
mod cancellation;
mod delegate;
mod event;
pub mod local;
mod lock;
pub mod mpsc;
pub mod oneshot;
mod semaphore;
pub mod watch;

pub use cancellation::{CancellationToken, DropGuard, DropGuardRef};
pub use event::{Barrier, Notified, Notify, OnceCell, OwnedNotified, SetOnce};
pub use lock::{Mutex, RwLock};
pub use semaphore::Semaphore;
pub use tokio::sync::{
    AcquireError, BarrierWaitResult, MappedMutexGuard, MutexGuard, OwnedMappedMutexGuard, OwnedMutexGuard,
    OwnedRwLockMappedWriteGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit,
    RwLockMappedWriteGuard, RwLockReadGuard, RwLockWriteGuard, SemaphorePermit, SetError, SetOnceError,
    TryAcquireError, TryLockError,
};
