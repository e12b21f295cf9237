//! Records the messages that the server logs.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::Field;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber, span};

#[derive(Clone, Default)]
pub struct RecordedMessages(Arc<Mutex<Vec<(Level, String)>>>);

impl RecordedMessages {
    /// Records the messages of this thread until the guard is dropped.
    pub fn start() -> (Self, DefaultGuard) {
        let recorded = Self::default();
        (recorded.clone(), set_default(recorded))
    }

    /// Returns the messages that contain `text`.
    pub fn containing(&self, text: &str) -> Vec<(Level, String)> {
        let messages = self.0.lock().expect("not poisoned").clone();
        messages.into_iter().filter(|(_, message)| message.contains(text)).collect()
    }
}

impl Subscriber for RecordedMessages {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "message" {
                let message = (*event.metadata().level(), format!("{value:?}"));
                self.0.lock().expect("not poisoned").push(message);
            }
        });
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
