//! Locks whose guards can be held across an await point.

use std::future::Future;

use tokio::sync::{
    MutexGuard, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLockReadGuard,
    RwLockWriteGuard, TryLockError,
};

use super::delegate::delegate;
use crate::executor::Coop;

/// Mutual exclusion. The guard can be held across an await point; waiting tasks get the lock in the order in which they
/// began to wait.
///
/// If the guard is not held across an await point, `std::sync::Mutex` costs less, and within one worker a `RefCell`
/// suffices. A task that panics does not poison the lock.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::sync::Arc;
///
/// use anello::sync::Mutex;
///
/// let count = Arc::new(Mutex::new(0));
/// let tasks = [(); 3].map(|()| {
///     let count = Arc::clone(&count);
///     anello::spawn(async move { *count.lock().await += 1 })
/// });
/// for task in tasks {
///     task.await.expect("no task panics");
/// }
/// assert_eq!(*count.lock().await, 3);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Mutex<T> = Coop<tokio::sync::Mutex<T>>;

/// Lock for either any number of readers or one writer. The guards can be held across an await point.
///
/// Waiting tasks get the lock in the order in which they began to wait, so a writer is not starved. A task that holds a
/// read guard must not wait for another one: a writer between the two would block both.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// let routes = anello::sync::RwLock::new(vec!["/"]);
/// routes.write().await.push("/about");
/// let (one, other) = (routes.read().await, routes.try_read());
/// assert_eq!(one.len(), other.expect("a second reader").len());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type RwLock<T> = Coop<tokio::sync::RwLock<T>>;

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(value: T) -> Self {
        Coop(tokio::sync::Mutex::new(value))
    }

    /// Creates an unlocked mutex in a constant or static.
    pub const fn const_new(value: T) -> Self {
        Coop(tokio::sync::Mutex::const_new(value))
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

delegate! {
    impl[T] Mutex<T> {
        /// Returns the value.
        direct fn into_inner(self) -> T;
    }
}

delegate! {
    impl[T: ?Sized] Mutex<T> {
        /// Waits for the lock. Cancel-safe, but a dropped future loses its position among the waiting tasks.
        async fn lock(&self) -> MutexGuard<'_, T>;

        /// Waits for the lock, and returns a guard that owns a reference to the mutex. Cancel-safe like
        /// [`lock`](Self::lock).
        async fn lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T>;

        /// Takes the lock if it is free.
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError>;

        /// Takes the lock if it is free, and returns a guard that owns a reference to the mutex.
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_lock_owned(self: Arc<Self>) -> Result<OwnedMutexGuard<T>, TryLockError>;

        /// Blocks the thread until the lock is free, and takes it. For threads without a runtime.
        blocking fn blocking_lock(&self) -> MutexGuard<'_, T>;

        /// Blocks the thread until the lock is free, and returns a guard that owns a reference to the mutex. For
        /// threads without a runtime.
        blocking fn blocking_lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T>;

        /// Returns the value, which cannot be locked during this borrow.
        direct fn get_mut(&mut self) -> &mut T;
    }
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Coop(tokio::sync::RwLock::new(value))
    }

    /// Creates an unlocked lock in a constant or static.
    pub const fn const_new(value: T) -> Self {
        Coop(tokio::sync::RwLock::const_new(value))
    }

    /// Creates an unlocked lock with a limit on the number of readers.
    ///
    /// # Panics
    /// Panics if `max_readers` is greater than `u32::MAX >> 3`.
    #[track_caller]
    pub fn with_max_readers(value: T, max_readers: u32) -> Self {
        Coop(tokio::sync::RwLock::with_max_readers(value, max_readers))
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

delegate! {
    impl[T] RwLock<T> {
        /// Returns the value.
        direct fn into_inner(self) -> T;
    }
}

delegate! {
    impl[T: ?Sized] RwLock<T> {
        /// Waits until there is no writer. Cancel-safe, but a dropped future loses its position among the waiting
        /// tasks.
        async fn read(&self) -> RwLockReadGuard<'_, T>;

        /// Waits until there is no writer, and returns a guard that owns a reference to the lock. Cancel-safe like
        /// [`read`](Self::read).
        async fn read_owned(self: Arc<Self>) -> OwnedRwLockReadGuard<T>;

        /// Waits until there are no readers and no writer. Cancel-safe like [`read`](Self::read).
        async fn write(&self) -> RwLockWriteGuard<'_, T>;

        /// Waits until there are no readers and no writer, and returns a guard that owns a reference to the lock.
        /// Cancel-safe like [`read`](Self::read).
        async fn write_owned(self: Arc<Self>) -> OwnedRwLockWriteGuard<T>;

        /// Takes the lock as a reader if there is no writer.
        ///
        /// # Errors
        /// Returns an error if there is a writer, or a task is waiting to become one.
        direct fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError>;

        /// Takes the lock as a reader if there is no writer, and returns a guard that owns a reference to the lock.
        ///
        /// # Errors
        /// Returns an error if there is a writer, or a task is waiting to become one.
        direct fn try_read_owned(self: Arc<Self>) -> Result<OwnedRwLockReadGuard<T>, TryLockError>;

        /// Takes the lock as the writer if there are no readers and no writer.
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError>;

        /// Takes the lock as the writer if there are no readers and no writer, and returns a guard that owns a
        /// reference to the lock.
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_write_owned(self: Arc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError>;

        /// Blocks the thread until there is no writer, and takes the lock as a reader. For threads without a runtime.
        blocking fn blocking_read(&self) -> RwLockReadGuard<'_, T>;

        /// Blocks the thread until there are no readers and no writer, and takes the lock as the writer. For threads
        /// without a runtime.
        blocking fn blocking_write(&self) -> RwLockWriteGuard<'_, T>;

        /// Returns the value, which cannot be locked during this borrow.
        direct fn get_mut(&mut self) -> &mut T;
    }
}
