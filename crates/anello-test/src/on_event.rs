//! A subscriber of `tracing` for tests.

use tracing::span::{Attributes, Id, Record};
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
