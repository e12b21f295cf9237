//! The futures that wait for the same event.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use super::queue::wake_all;

/// Wakers of waiting futures. As a waker, wakes all of them in order of arrival, on any thread. A panic in one waker is
/// logged, and the others are still called.
#[derive(Debug, Default)]
pub(crate) struct WakerSet(Mutex<Wakers>);

#[derive(Debug, Default)]
struct Wakers {
    waiting: BTreeMap<u64, Waker>,
    /// Number of the last future that entered.
    last_number: u64,
}

/// A future that may wait. Dropping it removes its waker.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    set: &'a WakerSet,
    /// Set once the future has waited.
    number: Option<u64>,
}

impl WakerSet {
    pub fn place(&self) -> Place<'_> {
        Place { set: self, number: None }
    }

    /// Calls and removes all wakers. A future that still waits when it is polled again enters again.
    pub fn wake_all(&self) {
        let woken = take(&mut self.lock().waiting);
        wake_all(woken.into_values());
    }

    /// Wakers are called and dropped after the lock has been released, because both can run arbitrary code. So a panic
    /// cannot poison it.
    fn lock(&self) -> MutexGuard<'_, Wakers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakerSet {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

impl Place<'_> {
    /// Returns whether no other future waits.
    pub fn is_alone(&self) -> bool {
        self.set.lock().waiting.keys().all(|number| Some(*number) == self.number)
    }

    pub fn enter(&mut self, waker: &Waker) {
        let mut wakers = self.set.lock();
        let number = *self.number.get_or_insert_with(|| {
            wakers.last_number += 1;
            wakers.last_number
        });
        if wakers.waiting.get(&number).is_some_and(|current| current.will_wake(waker)) {
            return;
        }
        // Cloning a waker can run arbitrary code too.
        drop(wakers);
        let waker = waker.clone();
        let replaced = self.set.lock().waiting.insert(number, waker);
        drop(replaced);
    }

    pub fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        let own = self.set.lock().waiting.remove(&number);
        drop(own);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
