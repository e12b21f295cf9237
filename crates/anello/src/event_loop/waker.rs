//! Wake-ups of an event loop by other threads.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use crate::driver::{Key, Notifier};

/// Set in `Remote::notifications` if the application has called [`LoopWaker::wake`].
pub(super) const WAKE: u8 = 1;
/// Set in `Remote::notifications` if the file pool has finished operations.
pub(super) const FILES: u8 = 2;

/// The part of a loop that other threads use.
#[derive(Debug)]
struct Remote {
    notifications: AtomicU8,
    notifier: Notifier,
    /// Operations that the file pool has finished.
    finished_files: Mutex<Vec<Key>>,
}

impl Remote {
    /// Adds a notification. The first one since the last turn ends the wait.
    fn notify(&self, notification: u8) {
        if self.notifications.fetch_or(notification, Ordering::AcqRel) == 0 {
            self.notifier.notify();
        }
    }

    fn finished_files(&self) -> MutexGuard<'_, Vec<Key>> {
        // No application code runs while the lock is held, so a panic cannot poison it.
        self.finished_files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports that the file pool has finished an operation.
pub(super) struct FileWaker {
    remote: Arc<Remote>,
    key: Key,
}

impl FileWaker {
    pub fn new(waker: &LoopWaker, key: Key) -> Self {
        Self { remote: Arc::clone(&waker.remote), key }
    }
}

impl Wake for FileWaker {
    fn wake(self: Arc<Self>) {
        self.remote.finished_files().push(self.key);
        self.remote.notify(FILES);
    }
}

/// Ends the wait of an [`EventLoop`](super::EventLoop) from another thread. Cheap to clone.
///
/// ```
/// use anello::event_loop::{EventKind, EventLoop, Events};
///
/// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
/// let waker = event_loop.waker();
/// let thread = std::thread::spawn(move || waker.wake());
/// while events.is_empty() {
///     event_loop.turn(&mut events, None)?;
/// }
/// assert_eq!(events.iter().next().map(|event| event.kind()), Some(EventKind::Wake));
/// thread.join().expect("the thread does not panic");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoopWaker {
    remote: Arc<Remote>,
}

impl LoopWaker {
    pub(super) fn new(notifier: Notifier) -> Self {
        let (notifications, finished_files) = (AtomicU8::new(0), Mutex::default());
        Self { remote: Arc::new(Remote { notifications, notifier, finished_files }) }
    }

    /// Makes the current or next turn of the loop return with an event of the kind
    /// [`EventKind::Wake`](super::EventKind::Wake).
    ///
    /// Several calls before that turn cause one event. The first of them writes to an eventfd (`write(2)`). Has no
    /// effect once the loop has been dropped.
    ///
    /// ```
    /// # use anello::event_loop::{EventLoop, Events};
    /// # let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let waker = event_loop.waker();
    /// waker.wake();
    /// waker.wake();
    /// event_loop.turn(&mut events, None)?;
    /// assert_eq!(events.len(), 1, "both calls cause one event");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wake(&self) {
        self.remote.notify(WAKE);
    }

    pub(super) fn notifier(&self) -> Notifier {
        self.remote.notifier.clone()
    }

    #[inline]
    pub(super) fn is_notified(&self) -> bool {
        self.remote.notifications.load(Ordering::Relaxed) != 0
    }

    /// Returns the notifications since the last call.
    #[inline]
    pub(super) fn take_notifications(&self) -> u8 {
        if self.is_notified() { self.remote.notifications.swap(0, Ordering::AcqRel) } else { 0 }
    }

    pub(super) fn take_finished_files(&self) -> Vec<Key> {
        std::mem::take(&mut *self.remote.finished_files())
    }

    /// Closes the descriptors, which other handles must not keep open.
    pub(super) fn close(&self) {
        self.remote.notifier.close();
    }
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}
