//! Limit on concurrent operations.

use std::future::Future;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, SemaphorePermit, TryAcquireError};

use super::delegate::delegate;
use crate::executor::Coop;

/// Number of permits, which tasks acquire and return. Limits the number of concurrent operations.
///
/// Waiting tasks get permits in the order in which they began to wait.
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
    pub const MAX_PERMITS: usize = tokio::sync::Semaphore::MAX_PERMITS;

    /// Creates a semaphore with `permits` free permits.
    ///
    /// # Panics
    /// Panics if `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[track_caller]
    pub fn new(permits: usize) -> Self {
        Coop(tokio::sync::Semaphore::new(permits))
    }

    /// Creates a semaphore in a constant or static. See [`new`](Self::new).
    ///
    /// # Panics
    /// Panics if `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[track_caller]
    pub const fn const_new(permits: usize) -> Self {
        Coop(tokio::sync::Semaphore::const_new(permits))
    }
}

delegate! {
    impl[] Semaphore {
        /// Waits for a permit. Cancel-safe, but a dropped future loses its position among the waiting tasks.
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Waits for `count` permits. Cancel-safe like [`acquire`](Self::acquire).
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire_many(&self, count: u32) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Waits for a permit, and returns one that owns a reference to the semaphore. Cancel-safe like
        /// [`acquire`](Self::acquire).
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, AcquireError>;

        /// Waits for `count` permits that own a reference to the semaphore. Cancel-safe like
        /// [`acquire`](Self::acquire).
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        async fn acquire_many_owned(
            self: Arc<Self>, count: u32
        ) -> Result<OwnedSemaphorePermit, AcquireError>;

        /// Acquires a permit if one is free.
        ///
        /// # Errors
        /// Returns an error if no permit is free or the semaphore is closed.
        direct fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError>;

        /// Acquires `count` permits if they are free.
        ///
        /// # Errors
        /// Returns an error if too few permits are free or the semaphore is closed.
        direct fn try_acquire_many(&self, count: u32) -> Result<SemaphorePermit<'_>, TryAcquireError>;

        /// Acquires a permit that owns a reference to the semaphore, if one is free.
        ///
        /// # Errors
        /// Returns an error if no permit is free or the semaphore is closed.
        direct fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError>;

        /// Acquires `count` permits that own a reference to the semaphore, if they are free.
        ///
        /// # Errors
        /// Returns an error if too few permits are free or the semaphore is closed.
        direct fn try_acquire_many_owned(
            self: Arc<Self>, count: u32
        ) -> Result<OwnedSemaphorePermit, TryAcquireError>;

        /// Blocks the thread until a permit is free, and acquires it. For threads without a runtime.
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        blocking fn blocking_acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Blocks the thread until `count` permits are free, and acquires them. For threads without a runtime.
        ///
        /// # Errors
        /// Returns an error if the semaphore is closed.
        blocking fn blocking_acquire_many(&self, count: u32) -> Result<SemaphorePermit<'_>, AcquireError>;

        /// Returns the number of free permits.
        direct fn available_permits(&self) -> usize;

        /// Adds free permits.
        ///
        /// # Panics
        /// Panics if the number of free permits exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
        direct fn add_permits(&self, count: usize);

        /// Removes up to `count` free permits, and returns the number removed.
        direct fn forget_permits(&self, count: usize) -> usize;

        /// Closes the semaphore: waiting and later calls fail. Acquired permits stay valid.
        direct fn close(&self);

        /// Returns whether the semaphore is closed.
        direct fn is_closed(&self) -> bool;
    }
}
