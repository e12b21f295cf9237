//! Limit on concurrent operations.

use std::future::Future;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, SemaphorePermit, TryAcquireError};

use super::delegate::delegate;
use crate::executor::Coop;

/// Number of permits, which tasks acquire and return. Limits the number of concurrent operations.
///
/// Waiting tasks get permits in FIFO order.
///
/// ```
/// # anello::Runtime::new()?.block_on(async {
/// use std::sync::Arc;
///
/// use anello::sync::Semaphore;
///
/// let connections = Arc::new(Semaphore::new(2));
/// for request in 0..10 {
///     let permit = Arc::clone(&connections).acquire_owned().await.expect("the semaphore is not closed");
///     anello::spawn(async move {
///         // At most two of these tasks exist at a time.
///         drop((request, permit));
///     })
///     .detach();
/// }
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Semaphore = Coop<tokio::sync::Semaphore>;

impl Semaphore {
    /// Maximum number of permits: `usize::MAX >> 3`.
    ///
    /// ```
    /// use anello::sync::Semaphore;
    ///
    /// let unlimited = Semaphore::new(Semaphore::MAX_PERMITS);
    /// assert_eq!(unlimited.available_permits(), usize::MAX >> 3);
    /// ```
    pub const MAX_PERMITS: usize = tokio::sync::Semaphore::MAX_PERMITS;

    /// Creates a semaphore with `permits` free permits.
    ///
    /// ```
    /// # anello::Runtime::new()?.block_on(async {
    /// let connections = anello::sync::Semaphore::new(2);
    /// let (_one, _other) = (connections.acquire().await?, connections.acquire().await?);
    /// assert!(connections.try_acquire().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[track_caller]
    pub fn new(permits: usize) -> Self {
        assert!(permits <= Self::MAX_PERMITS, "cannot create semaphore: more than MAX_PERMITS permits");
        Coop(tokio::sync::Semaphore::new(permits))
    }

    /// Creates a semaphore in a constant or static. See [`new`](Self::new).
    ///
    /// ```
    /// use anello::sync::Semaphore;
    ///
    /// static CONNECTIONS: Semaphore = Semaphore::const_new(2);
    /// assert_eq!(CONNECTIONS.available_permits(), 2);
    /// ```
    ///
    /// # Panics
    /// Panics if `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[track_caller]
    pub const fn const_new(permits: usize) -> Self {
        assert!(permits <= Self::MAX_PERMITS, "cannot create semaphore: more than MAX_PERMITS permits");
        Coop(tokio::sync::Semaphore::const_new(permits))
    }
}

delegate! {
    impl[] Semaphore {
        /// Waits for a permit. Cancel-safe, but a dropped future loses its position among the waiting tasks.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let connections = anello::sync::Semaphore::new(1);
        /// let permit = connections.acquire().await?;
        /// assert_eq!(connections.available_permits(), 0);
        /// drop(permit);
        /// assert_eq!(connections.available_permits(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Waits for `count` permits. Cancel-safe like [`acquire`](Self::acquire).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let memory_mib = anello::sync::Semaphore::new(64);
        /// let permit = memory_mib.acquire_many(48).await?;
        /// assert_eq!((permit.num_permits(), memory_mib.available_permits()), (48, 16));
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire_many(&self, count: u32) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Waits for a permit, and returns one that owns a reference to the semaphore. Cancel-safe like
        /// [`acquire`](Self::acquire).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::sync::Arc;
        ///
        /// let connections = Arc::new(anello::sync::Semaphore::new(1));
        /// let permit = Arc::clone(&connections).acquire_owned().await?;
        /// // The task can outlive this function: it owns the permit.
        /// anello::spawn(async move { drop(permit) }).await?;
        /// assert_eq!(connections.available_permits(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, AcquireError>;

        /// Waits for `count` permits that own a reference to the semaphore. Cancel-safe like
        /// [`acquire`](Self::acquire).
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// use std::sync::Arc;
        ///
        /// let memory_mib = Arc::new(anello::sync::Semaphore::new(64));
        /// let permit = Arc::clone(&memory_mib).acquire_many_owned(48).await?;
        /// assert_eq!(memory_mib.available_permits(), 16);
        /// anello::spawn(async move { drop(permit) }).await?;
        /// assert_eq!(memory_mib.available_permits(), 64);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire_many_owned(
            self: Arc<Self>, count: u32
        ) -> Result<OwnedSemaphorePermit, AcquireError>;

        /// Acquires a permit if one is free.
        ///
        /// ```
        /// let connections = anello::sync::Semaphore::new(1);
        /// let permit = connections.try_acquire()?;
        /// assert!(connections.try_acquire().is_err());
        /// drop(permit);
        /// assert!(connections.try_acquire().is_ok());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if no permit is free or the semaphore is closed.
        direct fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError>;

        /// Acquires `count` permits if they are free.
        ///
        /// ```
        /// let memory_mib = anello::sync::Semaphore::new(64);
        /// let _permit = memory_mib.try_acquire_many(48)?;
        /// assert!(memory_mib.try_acquire_many(48).is_err());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if too few permits are free or the semaphore is closed.
        direct fn try_acquire_many(&self, count: u32) -> Result<SemaphorePermit<'_>, TryAcquireError>;

        /// Acquires a permit that owns a reference to the semaphore, if one is free.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let connections = Arc::new(anello::sync::Semaphore::new(1));
        /// let permit = Arc::clone(&connections).try_acquire_owned()?;
        /// assert!(Arc::clone(&connections).try_acquire_owned().is_err());
        /// drop(permit);
        /// assert_eq!(connections.available_permits(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if no permit is free or the semaphore is closed.
        direct fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError>;

        /// Acquires `count` permits that own a reference to the semaphore, if they are free.
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// let memory_mib = Arc::new(anello::sync::Semaphore::new(64));
        /// let permit = Arc::clone(&memory_mib).try_acquire_many_owned(48)?;
        /// assert_eq!(permit.num_permits(), 48);
        /// assert!(Arc::clone(&memory_mib).try_acquire_many_owned(48).is_err());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if too few permits are free or the semaphore is closed.
        direct fn try_acquire_many_owned(
            self: Arc<Self>, count: u32
        ) -> Result<OwnedSemaphorePermit, TryAcquireError>;

        /// Blocks the thread until a permit is free, and acquires it. For threads without a runtime.
        ///
        /// ```
        /// let connections = anello::sync::Semaphore::new(1);
        /// let permit = connections.blocking_acquire()?;
        /// assert_eq!(connections.available_permits(), 0);
        /// drop(permit);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        blocking fn blocking_acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Blocks the thread until `count` permits are free, and acquires them. For threads without a runtime.
        ///
        /// ```
        /// let memory_mib = anello::sync::Semaphore::new(64);
        /// let _permit = memory_mib.blocking_acquire_many(48)?;
        /// assert_eq!(memory_mib.available_permits(), 16);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        blocking fn blocking_acquire_many(&self, count: u32) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Returns the number of free permits.
        ///
        /// ```
        /// let connections = anello::sync::Semaphore::new(2);
        /// let _permit = connections.try_acquire()?;
        /// assert_eq!(connections.available_permits(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn available_permits(&self) -> usize;

        /// Adds free permits.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let requests = anello::sync::Semaphore::new(0);
        /// // A task could do this once per second to limit the rate of requests.
        /// requests.add_permits(10);
        /// // A permit that is forgotten is not returned.
        /// requests.acquire().await?.forget();
        /// assert_eq!(requests.available_permits(), 9);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Panics
        /// Panics if the number of free permits exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
        direct fn add_permits(&self, count: usize);

        /// Removes up to `count` free permits, and returns the number removed.
        ///
        /// ```
        /// let connections = anello::sync::Semaphore::new(10);
        /// // Lowers the limit.
        /// assert_eq!(connections.forget_permits(4), 4);
        /// assert_eq!(connections.available_permits(), 6);
        /// ```
        direct fn forget_permits(&self, count: usize) -> usize;

        /// Closes the semaphore: waiting and later calls fail. Acquired permits stay valid.
        ///
        /// ```
        /// # anello::Runtime::new()?.block_on(async {
        /// let connections = anello::sync::Semaphore::new(1);
        /// let permit = connections.acquire().await?;
        /// connections.close();
        /// assert!(connections.acquire().await.is_err());
        /// assert_eq!(permit.num_permits(), 1);
        /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        direct fn close(&self);

        /// Returns whether the semaphore is closed.
        ///
        /// ```
        /// let connections = anello::sync::Semaphore::new(1);
        /// assert!(!connections.is_closed());
        /// connections.close();
        /// assert!(connections.is_closed());
        /// ```
        direct fn is_closed(&self) -> bool;
    }
}
