//! Wake-ups of an event loop by other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::Notifier;

/// The part of a loop that other threads use.
#[derive(Debug)]
struct Remote {
    is_notified: AtomicBool,
    notifier: Notifier,
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
        Self { remote: Arc::new(Remote { is_notified: AtomicBool::new(false), notifier }) }
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
        if !self.remote.is_notified.swap(true, Ordering::AcqRel) {
            self.remote.notifier.notify();
        }
    }

    pub(super) fn notifier(&self) -> Notifier {
        self.remote.notifier.clone()
    }

    #[inline]
    pub(super) fn is_notified(&self) -> bool {
        self.remote.is_notified.load(Ordering::Relaxed)
    }

    /// Returns `true` if there was a wake-up since the last call.
    #[inline]
    pub(super) fn take_notified(&self) -> bool {
        self.is_notified() && self.remote.is_notified.swap(false, Ordering::AcqRel)
    }

    /// Closes the descriptors, which other handles must not keep open.
    pub(super) fn close(&self) {
        self.remote.notifier.close();
    }
}

impl std::task::Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}
