//! Locks whose guards can be held across an await point.

use std::future::Future;

use tokio::sync::{
    MutexGuard, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLockReadGuard,
    RwLockWriteGuard, TryLockError,
};

use super::delegate::delegate;
use crate::executor::Coop;

/// Mutual exclusion. The guard can be held across an await point; waiting tasks get the lock in FIFO order.
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

/// Lock that is held by any number of readers or by one writer. The guards can be held across an await point.
///
/// Waiting tasks get the lock in FIFO order, so a writer is not starved. A task that holds a read guard must not wait
/// for another one: a writer between the two would block both.
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
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let routes = anello::sync::Mutex::new(vec!["/"]);
    /// routes.lock().await.push("/about");
    /// assert_eq!(routes.into_inner(), ["/", "/about"]);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(value: T) -> Self {
        Coop(tokio::sync::Mutex::new(value))
    }

    /// Creates an unlocked mutex in a constant or static.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::Mutex;
    ///
    /// static ROUTES: Mutex<Vec<&str>> = Mutex::const_new(Vec::new());
    /// ROUTES.lock().await.push("/");
    /// assert_eq!(*ROUTES.lock().await, ["/"]);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let count = anello::sync::Mutex::new(1);
        /// *count.lock().await += 1;
        /// assert_eq!(count.into_inner(), 2);
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        direct fn into_inner(self) -> T;
    }
}

delegate! {
    impl[T: ?Sized] Mutex<T> {
        /// Waits for the lock. Cancel-safe, but a dropped future loses its position among the waiting tasks.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use anello::sync::Mutex;
        /// use anello::task::yield_now;
        ///
        /// let count = Mutex::new(1);
        /// let mut guard = count.lock().await;
        /// // No other task can change the value during this await.
        /// yield_now().await;
        /// *guard += 1;
        /// drop(guard);
        /// assert_eq!(*count.lock().await, 2);
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        async fn lock(&self) -> MutexGuard<'_, T>;

        /// Waits for the lock, and returns a guard that owns a reference to the mutex. Cancel-safe like
        /// [`lock`](Self::lock).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::sync::Arc;
        ///
        /// let count = Arc::new(anello::sync::Mutex::new(1));
        /// let mut guard = Arc::clone(&count).lock_owned().await;
        /// // The guard has no lifetime, so it can move into the task.
        /// anello::spawn(async move { *guard += 1 }).await?;
        /// assert_eq!(*count.lock().await, 2);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        async fn lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T>;

        /// Takes the lock if it is free.
        ///
        /// ```
        /// let count = anello::sync::Mutex::new(1);
        /// let guard = count.try_lock()?;
        /// assert!(count.try_lock().is_err());
        /// drop(guard);
        /// assert!(count.try_lock().is_ok());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError>;

        /// Takes the lock if it is free, and returns a guard that owns a reference to the mutex.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let count = Arc::new(anello::sync::Mutex::new(1));
        /// let guard = Arc::clone(&count).try_lock_owned()?;
        /// assert!(Arc::clone(&count).try_lock_owned().is_err());
        /// assert_eq!(*guard, 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_lock_owned(self: Arc<Self>) -> Result<OwnedMutexGuard<T>, TryLockError>;

        /// Blocks the thread until the lock is free, and takes it. For threads without a runtime.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let count = Arc::new(anello::sync::Mutex::new(1));
        /// let shared = Arc::clone(&count);
        /// let thread = std::thread::spawn(move || *shared.blocking_lock() += 1);
        /// thread.join().expect("the thread does not panic");
        /// assert_eq!(*count.blocking_lock(), 2);
        /// ```
        blocking fn blocking_lock(&self) -> MutexGuard<'_, T>;

        /// Blocks the thread until the lock is free, and returns a guard that owns a reference to the mutex. For
        /// threads without a runtime.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let count = Arc::new(anello::sync::Mutex::new(1));
        /// let guard = Arc::clone(&count).blocking_lock_owned();
        /// let thread = std::thread::spawn(move || *guard);
        /// assert_eq!(thread.join().expect("the thread does not panic"), 1);
        /// ```
        blocking fn blocking_lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T>;

        /// Returns the value, which cannot be locked during this borrow.
        ///
        /// ```
        /// let mut count = anello::sync::Mutex::new(1);
        /// // The exclusive borrow replaces the lock.
        /// *count.get_mut() += 1;
        /// assert_eq!(count.into_inner(), 2);
        /// ```
        direct fn get_mut(&mut self) -> &mut T;
    }
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let routes = anello::sync::RwLock::new(vec!["/"]);
    /// routes.write().await.push("/about");
    /// assert_eq!(routes.read().await.len(), 2);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(value: T) -> Self {
        Coop(tokio::sync::RwLock::new(value))
    }

    /// Creates an unlocked lock in a constant or static.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// use anello::sync::RwLock;
    ///
    /// static ROUTES: RwLock<Vec<&str>> = RwLock::const_new(Vec::new());
    /// ROUTES.write().await.push("/");
    /// assert_eq!(*ROUTES.read().await, ["/"]);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub const fn const_new(value: T) -> Self {
        Coop(tokio::sync::RwLock::const_new(value))
    }

    /// Creates an unlocked lock with a limit on the number of readers.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let routes = anello::sync::RwLock::with_max_readers(vec!["/"], 1);
    /// let reader = routes.read().await;
    /// assert!(routes.try_read().is_err(), "a second reader exceeds the limit");
    /// assert_eq!(reader.len(), 1);
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `max_readers` is greater than `u32::MAX >> 3`.
    #[track_caller]
    pub fn with_max_readers(value: T, max_readers: u32) -> Self {
        Coop(tokio::sync::RwLock::with_max_readers(value, max_readers))
    }

    /// Creates an unlocked lock with a limit on the number of readers in a constant or static. See
    /// [`with_max_readers`](Self::with_max_readers).
    ///
    /// ```
    /// use anello::sync::RwLock;
    ///
    /// static ROUTES: RwLock<Vec<&str>> = RwLock::const_with_max_readers(Vec::new(), 1);
    /// let reader = ROUTES.try_read()?;
    /// assert!(ROUTES.try_read().is_err(), "a second reader exceeds the limit");
    /// # drop(reader);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `max_readers` is greater than `u32::MAX >> 3`.
    #[track_caller]
    pub const fn const_with_max_readers(value: T, max_readers: u32) -> Self {
        Coop(tokio::sync::RwLock::const_with_max_readers(value, max_readers))
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
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let routes = anello::sync::RwLock::new(vec!["/"]);
        /// routes.write().await.push("/about");
        /// assert_eq!(routes.into_inner(), ["/", "/about"]);
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        direct fn into_inner(self) -> T;
    }
}

delegate! {
    impl[T: ?Sized] RwLock<T> {
        /// Waits until there is no writer. Cancel-safe, but a dropped future loses its position among the waiting
        /// tasks.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let routes = anello::sync::RwLock::new(vec!["/"]);
        /// let (one, other) = (routes.read().await, routes.read().await);
        /// assert_eq!(one.len(), other.len());
        /// assert!(routes.try_write().is_err());
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        async fn read(&self) -> RwLockReadGuard<'_, T>;

        /// Waits until there is no writer, and returns a guard that owns a reference to the lock. Cancel-safe like
        /// [`read`](Self::read).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::sync::Arc;
        ///
        /// let routes = Arc::new(anello::sync::RwLock::new(vec!["/"]));
        /// let reader = Arc::clone(&routes).read_owned().await;
        /// // The guard has no lifetime, so it can move into the task.
        /// assert_eq!(anello::spawn(async move { reader.len() }).await?, 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        async fn read_owned(self: Arc<Self>) -> OwnedRwLockReadGuard<T>;

        /// Waits until there are no readers and no writer. Cancel-safe like [`read`](Self::read).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let routes = anello::sync::RwLock::new(vec!["/"]);
        /// let mut writer = routes.write().await;
        /// writer.push("/about");
        /// assert!(routes.try_read().is_err());
        /// drop(writer);
        /// assert_eq!(routes.read().await.len(), 2);
        /// # });
        /// # Ok::<(), std::io::Error>(())
        /// ```
        async fn write(&self) -> RwLockWriteGuard<'_, T>;

        /// Waits until there are no readers and no writer, and returns a guard that owns a reference to the lock.
        /// Cancel-safe like [`read`](Self::read).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::sync::Arc;
        ///
        /// let routes = Arc::new(anello::sync::RwLock::new(vec!["/"]));
        /// let mut writer = Arc::clone(&routes).write_owned().await;
        /// anello::spawn(async move { writer.push("/about") }).await?;
        /// assert_eq!(routes.read().await.len(), 2);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        async fn write_owned(self: Arc<Self>) -> OwnedRwLockWriteGuard<T>;

        /// Takes the lock as a reader if there is no writer.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let routes = anello::sync::RwLock::new(vec!["/"]);
        /// assert_eq!(routes.try_read()?.len(), 1);
        /// let _writer = routes.write().await;
        /// assert!(routes.try_read().is_err());
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if there is a writer, or a task is waiting to become one.
        direct fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError>;

        /// Takes the lock as a reader if there is no writer, and returns a guard that owns a reference to the lock.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let routes = Arc::new(anello::sync::RwLock::new(vec!["/"]));
        /// let reader = Arc::clone(&routes).try_read_owned()?;
        /// assert!(routes.try_write().is_err());
        /// assert_eq!(*reader, ["/"]);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if there is a writer, or a task is waiting to become one.
        direct fn try_read_owned(self: Arc<Self>) -> Result<OwnedRwLockReadGuard<T>, TryLockError>;

        /// Takes the lock as the writer if there are no readers and no writer.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let routes = anello::sync::RwLock::new(vec!["/"]);
        /// routes.try_write()?.push("/about");
        /// let reader = routes.read().await;
        /// assert!(routes.try_write().is_err());
        /// assert_eq!(reader.len(), 2);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError>;

        /// Takes the lock as the writer if there are no readers and no writer, and returns a guard that owns a
        /// reference to the lock.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let routes = Arc::new(anello::sync::RwLock::new(vec!["/"]));
        /// let mut writer = Arc::clone(&routes).try_write_owned()?;
        /// writer.push("/about");
        /// assert!(routes.try_read().is_err());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the lock is taken.
        direct fn try_write_owned(self: Arc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError>;

        /// Blocks the thread until there is no writer, and takes the lock as a reader. For threads without a runtime.
        ///
        /// ```
        /// let routes = anello::sync::RwLock::new(vec!["/"]);
        /// let (one, other) = (routes.blocking_read(), routes.blocking_read());
        /// assert_eq!(one.len(), other.len());
        /// ```
        blocking fn blocking_read(&self) -> RwLockReadGuard<'_, T>;

        /// Blocks the thread until there are no readers and no writer, and takes the lock as the writer. For threads
        /// without a runtime.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let routes = Arc::new(anello::sync::RwLock::new(vec!["/"]));
        /// let shared = Arc::clone(&routes);
        /// let thread = std::thread::spawn(move || shared.blocking_write().push("/about"));
        /// thread.join().expect("the thread does not panic");
        /// assert_eq!(routes.blocking_read().len(), 2);
        /// ```
        blocking fn blocking_write(&self) -> RwLockWriteGuard<'_, T>;

        /// Returns the value, which cannot be locked during this borrow.
        ///
        /// ```
        /// let mut routes = anello::sync::RwLock::new(vec!["/"]);
        /// // The exclusive borrow replaces the lock.
        /// routes.get_mut().push("/about");
        /// assert_eq!(routes.into_inner().len(), 2);
        /// ```
        direct fn get_mut(&mut self) -> &mut T;
    }
}
