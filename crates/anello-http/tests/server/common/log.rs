//! Records the messages that the server logs.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use anello_test::OnEvent;
use tracing::field::Field;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level};

#[derive(Default)]
pub struct RecordedMessages(Arc<Mutex<Vec<(Level, String)>>>);

impl RecordedMessages {
    /// Records the messages of this thread until the guard is dropped.
    pub fn start() -> (Self, DefaultGuard) {
        let recorded = Self::default();
        let messages = Arc::clone(&recorded.0);
        let record_message = move |event: &Event<'_>| {
            event.record(&mut |field: &Field, value: &dyn Debug| {
                if field.name() == "message" {
                    let message = (*event.metadata().level(), format!("{value:?}"));
                    messages.lock().expect("not poisoned").push(message);
                }
            });
        };
        (recorded, set_default(OnEvent(record_message)))
    }

    /// Returns the messages that contain `text`.
    pub fn containing(&self, text: &str) -> Vec<(Level, String)> {
        let messages = self.0.lock().expect("not poisoned").clone();
        messages.into_iter().filter(|(_, message)| message.contains(text)).collect()
    }
}
