//! Identity of a task: its id, its name and the location where it was spawned.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::num::NonZeroU64;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a task, or a closure passed to [`spawn_blocking`](crate::spawn_blocking). No two of them have the same id
/// during the life of the process.
///
/// [`task::id`](crate::task::id) returns the id of the running task. Ids are ordered by the time of the spawn only for
/// tasks that were spawned by the same thread.
///
/// ```
/// # anello::example! {
/// let task = anello::spawn(async { anello::task::id() });
/// let id = task.id();
/// assert_eq!(task.await.ok(), Some(id));
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(NonZeroU64);

impl Id {
    /// Returns a new id. Threads take ids from the shared counter in blocks, so that they do not contend for it.
    #[inline]
    pub(super) fn next() -> Self {
        const BLOCK: u64 = 4096;
        static NEXT_BLOCK: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static NEXT: Cell<u64> = const { Cell::new(0) };
        }
        let mut id = NEXT.get();
        if id.is_multiple_of(BLOCK) {
            // The first number of a block is not used, so an id is never 0.
            id = NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed) + 1;
        }
        NEXT.set(id + 1);
        Self(NonZeroU64::new(id).unwrap_or(NonZeroU64::MAX))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Id({self})")
    }
}

/// What is known about a task without its future. Only the task's worker accesses it once the task has been spawned.
#[derive(Debug)]
pub(super) struct Info {
    pub id: Id,
    pub location: &'static Location<'static>,
    /// Allocated only for tasks that have a name or whose polls are measured.
    details: OnceCell<Box<Details>>,
}

#[derive(Debug, Default)]
pub(super) struct Details {
    pub name: Option<Arc<str>>,
    pub polls: Cell<u64>,
    pub longest_poll_ns: Cell<u64>,
}

/// Copy of an [`Info`] for other threads.
#[derive(Clone, Debug)]
pub(super) struct TaskIdentity {
    pub id: Id,
    pub name: Option<Arc<str>>,
    pub location: &'static Location<'static>,
}

impl Info {
    /// Returns the information of a new task that is spawned by the caller.
    #[inline]
    #[track_caller]
    pub fn new(name: Option<&str>) -> Self {
        let details = name.map(|name| Box::new(Details { name: Some(name.into()), ..Details::default() }));
        Self {
            id: Id::next(),
            location: Location::caller(),
            details: details.map_or_else(OnceCell::new, OnceCell::from),
        }
    }

    pub fn details(&self) -> Option<&Details> {
        self.details.get().map(|details| &**details)
    }

    pub fn name(&self) -> Option<&str> {
        self.details().and_then(|details| details.name.as_deref())
    }

    pub fn identity(&self) -> TaskIdentity {
        let name = self.details().and_then(|details| details.name.clone());
        TaskIdentity { id: self.id, name, location: self.location }
    }

    /// Adds a poll to the statistics of the task.
    #[cold]
    pub fn record_poll(&self, duration_ns: u64) {
        let details = self.details.get_or_init(Box::default);
        details.polls.set(details.polls.get() + 1);
        details.longest_poll_ns.set(details.longest_poll_ns.get().max(duration_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_several_threads_are_unique() {
        let take = || (0..10_000).map(|_| Id::next()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(take)).collect();
        let mut ids = take();
        assert!(ids.is_sorted(), "ids of one thread are ascending");
        for thread in threads {
            ids.extend(thread.join().expect("ids"));
        }
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
