//! Events: notifications, barriers and cells that are initialised once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{BarrierWaitResult, SetError, SetOnceError};

use super::delegate::delegate;
use crate::executor::{Coop, cooperative};

/// Wakes one or all waiting tasks. A notification without a waiting task is kept for the next one.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::rc::Rc;
///
/// use anello::sync::Notify;
///
/// let is_ready = Rc::new(Notify::new());
/// let notifier = Rc::clone(&is_ready);
/// anello::spawn(async move { notifier.notify_one() }).detach();
/// is_ready.notified().await;
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Notify = Coop<tokio::sync::Notify>;

/// Future returned by [`Notify::notified`].
pub type Notified<'a> = Coop<tokio::sync::futures::Notified<'a>>;

/// Future returned by [`Notify::notified_owned`].
pub type OwnedNotified = Coop<tokio::sync::futures::OwnedNotified>;

/// Lets a number of tasks wait until all of them have arrived.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::rc::Rc;
///
/// let barrier = Rc::new(anello::sync::Barrier::new(2));
/// let other = Rc::clone(&barrier);
/// let task = anello::spawn(async move { other.wait().await.is_leader() });
/// let is_leader = barrier.wait().await.is_leader();
/// assert_ne!(is_leader, task.await.expect("the task does not panic"));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Barrier = Coop<tokio::sync::Barrier>;

/// Cell that is written once, by a future of which at most one runs at a time.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// let cell = anello::sync::OnceCell::new();
/// assert_eq!(*cell.get_or_init(|| async { 42 }).await, 42);
/// assert_eq!(cell.get(), Some(&42));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type OnceCell<T> = Coop<tokio::sync::OnceCell<T>>;

/// Cell that is written once, and for which tasks can wait.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::rc::Rc;
///
/// let cell = Rc::new(anello::sync::SetOnce::new());
/// let writer = Rc::clone(&cell);
/// anello::spawn(async move { writer.set(42) }).detach();
/// assert_eq!(*cell.wait().await, 42);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type SetOnce<T> = Coop<tokio::sync::SetOnce<T>>;

impl Notify {
    /// Creates a `Notify` without a pending notification.
    pub fn new() -> Self {
        Coop(tokio::sync::Notify::new())
    }

    /// Creates a `Notify` in a constant or static.
    pub const fn const_new() -> Self {
        Coop(tokio::sync::Notify::const_new())
    }

    /// Waits for a notification. Cancel-safe: a future that is dropped after it has received the notification of
    /// [`notify_one`](Self::notify_one) passes it on.
    ///
    /// The future receives the notifications of [`notify_waiters`](Self::notify_waiters) from its creation on, and
    /// those of `notify_one` from its first poll or [`enable`](Notified::enable) on.
    pub fn notified(&self) -> Notified<'_> {
        cooperative(self.0.notified())
    }

    /// Waits for a notification like [`notified`](Self::notified), with a future that owns a reference.
    pub fn notified_owned(self: Arc<Self>) -> OwnedNotified {
        cooperative(self.into_inner_arc().notified_owned())
    }
}

delegate! {
    impl[] Notify {
        /// Wakes the task that has waited longest. If no task waits, the next one to wait does not have to: at most one
        /// notification is kept.
        direct fn notify_one(&self);

        /// Wakes the task that has waited for the shortest time; otherwise like [`notify_one`](Self::notify_one).
        direct fn notify_last(&self);

        /// Wakes all waiting tasks. No notification is kept.
        direct fn notify_waiters(&self);
    }
}

impl Notified<'_> {
    /// Begins to wait without being polled. Returns `true` if a notification has been received.
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.inner_pin().enable()
    }
}

impl OwnedNotified {
    /// Begins to wait without being polled. Returns `true` if a notification has been received.
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.inner_pin().enable()
    }
}

impl Barrier {
    /// Creates a barrier for `tasks` tasks. 0 has the same effect as 1.
    pub fn new(tasks: usize) -> Self {
        Coop(tokio::sync::Barrier::new(tasks))
    }
}

delegate! {
    impl[] Barrier {
        /// Waits until the given number of tasks has called this method. The barrier can then be used again. One of the
        /// tasks is the leader. Not cancel-safe: a task whose future is dropped still counts as arrived.
        async fn wait(&self) -> BarrierWaitResult;
    }
}

impl<T> OnceCell<T> {
    /// Creates an empty cell.
    pub fn new() -> Self {
        Coop(tokio::sync::OnceCell::new())
    }

    /// Creates an empty cell in a constant or static.
    pub const fn const_new() -> Self {
        Coop(tokio::sync::OnceCell::const_new())
    }

    /// Creates a cell that contains `value`, or an empty one for `None`.
    pub fn new_with(value: Option<T>) -> Self {
        Coop(tokio::sync::OnceCell::new_with(value))
    }

    /// Returns the value. If the cell is empty, first writes the result of the future that `initialize` creates; other
    /// tasks wait for it. Cancel-safe: if the future is dropped or panics, the cell stays empty, and the next waiting
    /// task calls its own `initialize`.
    pub fn get_or_init<F: Future<Output = T>>(
        &self,
        initialize: impl FnOnce() -> F,
    ) -> impl Future<Output = &T> {
        cooperative(self.0.get_or_init(initialize))
    }

    /// Returns the value like [`get_or_init`](Self::get_or_init), with a future that can fail. Cancel-safe likewise.
    ///
    /// # Errors
    /// Returns the error of the future. The cell then stays empty.
    pub fn get_or_try_init<E, F: Future<Output = Result<T, E>>>(
        &self,
        initialize: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<&T, E>> {
        cooperative(self.0.get_or_try_init(initialize))
    }
}

impl<T> From<T> for OnceCell<T> {
    fn from(value: T) -> Self {
        Self::new_with(Some(value))
    }
}

delegate! {
    impl[T] OnceCell<T> {
        /// Returns whether the cell contains a value.
        direct fn initialized(&self) -> bool;

        /// Returns the value, or `None` if the cell is empty.
        direct fn get(&self) -> Option<&T>;

        /// Returns the value, or `None` if the cell is empty.
        direct fn get_mut(&mut self) -> Option<&mut T>;

        /// Writes the value.
        ///
        /// # Errors
        /// Returns the value if the cell is not empty, or if a task is initialising it.
        direct fn set(&self, value: T) -> Result<(), SetError<T>>;

        /// Returns the value, or `None` if the cell is empty.
        direct fn into_inner(self) -> Option<T>;

        /// Takes the value, which leaves the cell empty.
        direct fn take(&mut self) -> Option<T>;
    }
}

impl<T> SetOnce<T> {
    /// Creates an empty cell.
    pub fn new() -> Self {
        Coop(tokio::sync::SetOnce::new())
    }

    /// Creates an empty cell in a constant or static.
    pub const fn const_new() -> Self {
        Coop(tokio::sync::SetOnce::const_new())
    }

    /// Creates a cell that contains `value`, or an empty one for `None`.
    pub fn new_with(value: Option<T>) -> Self {
        Coop(tokio::sync::SetOnce::new_with(value))
    }
}

delegate! {
    impl[T] SetOnce<T> {
        /// Waits until the cell contains a value, and returns it. Cancel-safe.
        async fn wait(&self) -> &T;

        /// Returns whether the cell contains a value.
        direct fn initialized(&self) -> bool;

        /// Returns the value, or `None` if the cell is empty.
        direct fn get(&self) -> Option<&T>;

        /// Writes the value, and wakes all waiting tasks.
        ///
        /// # Errors
        /// Returns the value if the cell is not empty.
        direct fn set(&self, value: T) -> Result<(), SetOnceError<T>>;

        /// Returns the value, or `None` if the cell is empty.
        direct fn into_inner(self) -> Option<T>;
    }
}
