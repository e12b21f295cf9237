//! A waker of an application that panics.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

/// Panics in each call, and counts the calls.
#[derive(Default)]
pub struct PanicsOnWake(AtomicUsize);

impl PanicsOnWake {
    /// Returns the number of calls.
    pub fn calls(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for PanicsOnWake {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Without the panic hook, whose output would hide that of a failure.
        resume_unwind(Box::new("deliberate panic in a waker"));
    }
}
