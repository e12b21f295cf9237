//! Subscribers of `tracing` for tests.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Metadata, Subscriber};

/// Calls a function with each event. Spans are disabled.
pub struct OnEvent<F>(pub F);

impl<F: Fn(&Event<'_>) + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Panics in each event that a crate of this workspace sends on this thread, until the guard is dropped. Also returns
/// the number of these events.
pub fn panic_in_events() -> (Arc<AtomicUsize>, DefaultGuard) {
    let events = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&events);
    let guard = set_default(OnEvent(move |event: &Event<'_>| {
        if event.metadata().target().starts_with("anello") {
            counted.fetch_add(1, Ordering::Relaxed);
            resume_unwind(Box::new("deliberate panic in a subscriber"));
        }
    }));
    (events, guard)
}
