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
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::pin::pin;
///
/// let is_ready = anello::sync::Notify::new();
/// let mut notified = pin!(is_ready.notified());
/// assert!(!notified.as_mut().enable());
/// // Reaches the future although it has not been polled.
/// is_ready.notify_waiters();
/// notified.await;
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Notified<'a> = Coop<tokio::sync::futures::Notified<'a>>;

/// Future returned by [`Notify::notified_owned`].
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::sync::Arc;
///
/// use anello::sync::{Notify, OwnedNotified};
///
/// let is_ready = Arc::new(Notify::new());
/// let notified: OwnedNotified = Arc::clone(&is_ready).notified_owned();
/// let task = anello::spawn(notified);
/// is_ready.notify_one();
/// task.await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let is_ready = anello::sync::Notify::new();
    /// is_ready.notify_one();
    /// is_ready.notified().await;
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new() -> Self {
        Coop(tokio::sync::Notify::new())
    }

    /// Creates a `Notify` in a constant or static.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::Notify;
    ///
    /// static IS_READY: Notify = Notify::const_new();
    /// std::thread::spawn(|| IS_READY.notify_one());
    /// IS_READY.notified().await;
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub const fn const_new() -> Self {
        Coop(tokio::sync::Notify::const_new())
    }

    /// Waits for a notification. Cancel-safe: a future that is dropped after it has received the notification of
    /// [`notify_one`](Self::notify_one) passes it on.
    ///
    /// The future receives the notifications of [`notify_waiters`](Self::notify_waiters) from its creation on, and
    /// those of `notify_one` from its first poll or [`enable`](Notified::enable) on.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let is_ready = anello::sync::Notify::new();
    /// // Created before the state is checked, so that a notification in between is not missed.
    /// let notified = is_ready.notified();
    /// is_ready.notify_waiters();
    /// notified.await;
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn notified(&self) -> Notified<'_> {
        cooperative(self.0.notified())
    }

    /// Waits for a notification like [`notified`](Self::notified), with a future that owns a reference.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use std::sync::Arc;
    ///
    /// let is_ready = Arc::new(anello::sync::Notify::new());
    /// // The future has no lifetime, so it can be spawned.
    /// let task = anello::spawn(Arc::clone(&is_ready).notified_owned());
    /// is_ready.notify_one();
    /// task.await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn notified_owned(self: Arc<Self>) -> OwnedNotified {
        cooperative(self.into_inner_arc().notified_owned())
    }
}

delegate! {
    impl[] Notify {
        /// Wakes the task that has waited longest. If no task waits, the next one to wait does not have to: at most one
        /// notification is kept.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let has_work = anello::sync::Notify::new();
        /// has_work.notify_one();
        /// has_work.notify_one();
        /// // One notification is kept, not two.
        /// has_work.notified().await;
        /// let second = anello::time::timeout(std::time::Duration::from_millis(1), has_work.notified());
        /// assert!(second.await.is_err());
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        direct fn notify_one(&self);

        /// Wakes the task that has waited for the shortest time; otherwise like [`notify_one`](Self::notify_one).
        ///
        /// ```
        /// use std::pin::pin;
        ///
        /// let has_work = anello::sync::Notify::new();
        /// let (mut first, mut last) = (pin!(has_work.notified()), pin!(has_work.notified()));
        /// first.as_mut().enable();
        /// last.as_mut().enable();
        /// has_work.notify_last();
        /// assert!(last.as_mut().enable());
        /// assert!(!first.as_mut().enable());
        /// ```
        direct fn notify_last(&self);

        /// Wakes all waiting tasks. No notification is kept.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::rc::Rc;
        ///
        /// let is_ready = Rc::new(anello::sync::Notify::new());
        /// let tasks = [(); 2].map(|()| {
        ///     let is_ready = Rc::clone(&is_ready);
        ///     anello::spawn(async move { is_ready.notified().await })
        /// });
        /// anello::task::yield_now().await;
        /// is_ready.notify_waiters();
        /// for task in tasks {
        ///     task.await?;
        /// }
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn notify_waiters(&self);
    }
}

impl Notified<'_> {
    /// Starts to wait without being polled. Returns `true` if a notification has been received.
    ///
    /// ```
    /// use std::pin::pin;
    ///
    /// let has_work = anello::sync::Notify::new();
    /// let mut notified = pin!(has_work.notified());
    /// assert!(!notified.as_mut().enable());
    /// has_work.notify_one();
    /// assert!(notified.as_mut().enable());
    /// ```
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.inner_pin().enable()
    }
}

impl OwnedNotified {
    /// Starts to wait without being polled. Returns `true` if a notification has been received.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::sync::Arc;
    ///
    /// let has_work = Arc::new(anello::sync::Notify::new());
    /// let mut notified = pin!(Arc::clone(&has_work).notified_owned());
    /// assert!(!notified.as_mut().enable());
    /// has_work.notify_one();
    /// assert!(notified.as_mut().enable());
    /// ```
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.inner_pin().enable()
    }
}

impl Barrier {
    /// Creates a barrier for `tasks` tasks. 0 has the same effect as 1.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let barrier = anello::sync::Barrier::new(1);
    /// // A barrier for one task does not wait.
    /// assert!(barrier.wait().await.is_leader());
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(tasks: usize) -> Self {
        Coop(tokio::sync::Barrier::new(tasks))
    }
}

delegate! {
    impl[] Barrier {
        /// Waits until the given number of tasks has called this method. The barrier can then be used again. One of the
        /// tasks is the leader. Not cancel-safe: a task whose future is dropped still counts as arrived.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::rc::Rc;
        ///
        /// let barrier = Rc::new(anello::sync::Barrier::new(3));
        /// let tasks = [(); 3].map(|()| {
        ///     let barrier = Rc::clone(&barrier);
        ///     anello::spawn(async move { barrier.wait().await.is_leader() })
        /// });
        /// let mut leaders = 0;
        /// for task in tasks {
        ///     leaders += u32::from(task.await?);
        /// }
        /// assert_eq!(leaders, 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        async fn wait(&self) -> BarrierWaitResult;
    }
}

impl<T> OnceCell<T> {
    /// Creates an empty cell.
    ///
    /// ```
    /// let cell = anello::sync::OnceCell::new();
    /// assert!(!cell.initialized());
    /// cell.set(42)?;
    /// assert_eq!(cell.get(), Some(&42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> Self {
        Coop(tokio::sync::OnceCell::new())
    }

    /// Creates an empty cell in a constant or static.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::OnceCell;
    ///
    /// static LIMIT: OnceCell<u32> = OnceCell::const_new();
    /// assert_eq!(*LIMIT.get_or_init(|| async { 42 }).await, 42);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub const fn const_new() -> Self {
        Coop(tokio::sync::OnceCell::const_new())
    }

    /// Creates a cell that contains `value` in a constant or static.
    ///
    /// ```
    /// static LIMIT: anello::sync::OnceCell<u32> = anello::sync::OnceCell::const_new_with(42);
    /// assert_eq!(LIMIT.get(), Some(&42));
    /// ```
    pub const fn const_new_with(value: T) -> Self {
        Coop(tokio::sync::OnceCell::const_new_with(value))
    }

    /// Creates a cell that contains `value`, or an empty one for `None`.
    ///
    /// ```
    /// use anello::sync::OnceCell;
    ///
    /// assert_eq!(OnceCell::new_with(Some(42)).get(), Some(&42));
    /// assert_eq!(OnceCell::<u32>::new_with(None).get(), None);
    /// ```
    pub fn new_with(value: Option<T>) -> Self {
        Coop(tokio::sync::OnceCell::new_with(value))
    }

    /// Returns the value. If the cell is empty, first writes the result of the future that `initialize` creates; other
    /// tasks wait for it. Cancel-safe: if the future is dropped or panics, the cell stays empty, and the next waiting
    /// task calls its own `initialize`.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let cell = anello::sync::OnceCell::new();
    /// assert_eq!(*cell.get_or_init(|| async { 42 }).await, 42);
    /// // The second future is not run.
    /// assert_eq!(*cell.get_or_init(|| async { unreachable!() }).await, 42);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn get_or_init<F: Future<Output = T>>(
        &self,
        initialize: impl FnOnce() -> F,
    ) -> impl Future<Output = &T> {
        cooperative(self.0.get_or_init(initialize))
    }

    /// Returns the value like [`get_or_init`](Self::get_or_init), with a future that can fail. Cancel-safe.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let cell = anello::sync::OnceCell::new();
    /// assert_eq!(cell.get_or_try_init(|| async { Err("unavailable") }).await, Err("unavailable"));
    /// assert_eq!(cell.get_or_try_init(|| async { Ok::<_, &str>(42) }).await, Ok(&42));
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
        ///
        /// ```
        /// let cell = anello::sync::OnceCell::new();
        /// assert!(!cell.initialized());
        /// cell.set(42)?;
        /// assert!(cell.initialized());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn initialized(&self) -> bool;

        /// Returns the value, or `None` if the cell is empty.
        ///
        /// ```
        /// let cell = anello::sync::OnceCell::new();
        /// assert_eq!(cell.get(), None);
        /// cell.set(42)?;
        /// assert_eq!(cell.get(), Some(&42));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn get(&self) -> Option<&T>;

        /// Returns the value, or `None` if the cell is empty.
        ///
        /// ```
        /// let mut cell = anello::sync::OnceCell::from(41);
        /// *cell.get_mut().expect("the cell has a value") += 1;
        /// assert_eq!(cell.get(), Some(&42));
        /// ```
        direct fn get_mut(&mut self) -> Option<&mut T>;

        /// Writes the value.
        ///
        /// ```
        /// let cell = anello::sync::OnceCell::new();
        /// assert!(cell.set(1).is_ok());
        /// assert!(cell.set(2).is_err());
        /// assert_eq!(cell.get(), Some(&1));
        /// ```
        ///
        /// # Errors
        /// Returns the value if the cell is not empty, or if a task is initialising it.
        direct fn set(&self, value: T) -> Result<(), SetError<T>>;

        /// Returns the value, or `None` if the cell is empty.
        ///
        /// ```
        /// assert_eq!(anello::sync::OnceCell::from(42).into_inner(), Some(42));
        /// assert_eq!(anello::sync::OnceCell::<u32>::new().into_inner(), None);
        /// ```
        direct fn into_inner(self) -> Option<T>;

        /// Takes the value, which leaves the cell empty.
        ///
        /// ```
        /// let mut cell = anello::sync::OnceCell::from(1);
        /// assert_eq!(cell.take(), Some(1));
        /// cell.set(2)?;
        /// assert_eq!(cell.get(), Some(&2));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn take(&mut self) -> Option<T>;
    }
}

impl<T> From<T> for SetOnce<T> {
    fn from(value: T) -> Self {
        Self::new_with(Some(value))
    }
}

impl<T> SetOnce<T> {
    /// Creates an empty cell.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let cell = anello::sync::SetOnce::new();
    /// assert_eq!(cell.get(), None);
    /// cell.set(42)?;
    /// assert_eq!(*cell.wait().await, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> Self {
        Coop(tokio::sync::SetOnce::new())
    }

    /// Creates an empty cell in a constant or static.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::SetOnce;
    ///
    /// static ADDRESS: SetOnce<&str> = SetOnce::const_new();
    /// std::thread::spawn(|| ADDRESS.set("127.0.0.1:80"));
    /// assert_eq!(*ADDRESS.wait().await, "127.0.0.1:80");
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub const fn const_new() -> Self {
        Coop(tokio::sync::SetOnce::const_new())
    }

    /// Creates a cell that contains `value` in a constant or static.
    ///
    /// ```
    /// static LIMIT: anello::sync::SetOnce<u32> = anello::sync::SetOnce::const_new_with(42);
    /// assert_eq!(LIMIT.get(), Some(&42));
    /// ```
    pub const fn const_new_with(value: T) -> Self {
        Coop(tokio::sync::SetOnce::const_new_with(value))
    }

    /// Creates a cell that contains `value`, or an empty one for `None`.
    ///
    /// ```
    /// use anello::sync::SetOnce;
    ///
    /// assert_eq!(SetOnce::new_with(Some(42)).get(), Some(&42));
    /// assert_eq!(SetOnce::<u32>::new_with(None).get(), None);
    /// ```
    pub fn new_with(value: Option<T>) -> Self {
        Coop(tokio::sync::SetOnce::new_with(value))
    }
}

delegate! {
    impl[T] SetOnce<T> {
        /// Waits until the cell contains a value, and returns it. Cancel-safe.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::rc::Rc;
        ///
        /// let cell = Rc::new(anello::sync::SetOnce::new());
        /// let reader = Rc::clone(&cell);
        /// let task = anello::spawn(async move { *reader.wait().await });
        /// cell.set(42)?;
        /// assert_eq!(task.await?, 42);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        async fn wait(&self) -> &T;

        /// Returns whether the cell contains a value.
        ///
        /// ```
        /// let cell = anello::sync::SetOnce::new();
        /// assert!(!cell.initialized());
        /// cell.set(42)?;
        /// assert!(cell.initialized());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn initialized(&self) -> bool;

        /// Returns the value, or `None` if the cell is empty.
        ///
        /// ```
        /// let cell = anello::sync::SetOnce::new();
        /// assert_eq!(cell.get(), None);
        /// cell.set(42)?;
        /// assert_eq!(cell.get(), Some(&42));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn get(&self) -> Option<&T>;

        /// Writes the value, and wakes all waiting tasks.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let cell = anello::sync::SetOnce::new();
        /// assert!(cell.set(1).is_ok());
        /// assert!(cell.set(2).is_err());
        /// assert_eq!(*cell.wait().await, 1);
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        ///
        /// # Errors
        /// Returns the value if the cell is not empty.
        direct fn set(&self, value: T) -> Result<(), SetOnceError<T>>;

        /// Returns the value, or `None` if the cell is empty.
        ///
        /// ```
        /// let cell = anello::sync::SetOnce::new();
        /// cell.set(42)?;
        /// assert_eq!(cell.into_inner(), Some(42));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn into_inner(self) -> Option<T>;
    }
}
