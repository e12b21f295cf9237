//! A limit for repeated warnings in the log, because clients can cause some of them at will.
//!
//! It applies to all lines, also to those of other crates, which have no limits of their own.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use super::terminal::Messages;

/// Period in which at most [`MAX_LINES`] are logged by one line of code.
const PERIOD: Duration = Duration::from_secs(10);
const MAX_LINES: u64 = 10;

/// Suppresses warnings and errors that one line of code logs too often. Lines of the other levels are always logged:
/// they have been requested.
#[derive(Default)]
pub struct LogLimit(Mutex<HashMap<Identifier, Lines>>);

/// The lines that were logged by one line of code.
struct Lines {
    period_start: Instant,
    /// Number of lines in this period, including suppressed lines.
    count: u64,
}

impl LogLimit {
    /// Counts a line. Returns `None` if it is suppressed, otherwise the number of lines that were suppressed before it.
    fn count(&self, callsite: Identifier, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.entry(callsite).or_insert(Lines { period_start: now, count: 0 });
        let mut suppressed = 0;
        if now.saturating_duration_since(lines.period_start) >= PERIOD {
            suppressed = lines.count.saturating_sub(MAX_LINES);
            *lines = Lines { period_start: now, count: 0 };
        }
        lines.count += 1;
        (lines.count <= MAX_LINES).then_some(suppressed)
    }
}

impl<S: Subscriber> Filter<S> for LogLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let count = self.count(event.metadata().callsite(), Instant::now());
        if let Some(suppressed @ 1..) = count {
            // Ignored, as for every line of the log.
            writeln!(Messages, "anello: {suppressed} more lines like the next one were suppressed").ok();
        }
        count.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Written {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn repeated_warnings_of_other_crates_are_suppressed() {
        let written = Written::default();
        let log = tracing_subscriber::fmt::layer().with_writer(written.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(log.with_filter(LogLimit::default()));
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                // The same macro as in other crates, not that of this workspace.
                tracing::event!(target: "h2::proto", Level::WARN, number, "too many resets");
                tracing::event!(target: "h2::proto", Level::INFO, number, "requested");
            }
            tracing::event!(Level::WARN, "another one");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let count = |text_part: &str| text.lines().filter(|line| line.contains(text_part)).count();
        assert_eq!(count("too many resets"), 10, "{text}");
        assert_eq!((count("requested"), count("another one")), (1000, 1));
    }

    #[test]
    fn suppressed_lines_are_counted_until_next_period() {
        let log_limit = LogLimit::default();
        let (callsite, start) = (Identifier(&NO_CALLSITE), Instant::now());
        for second in 0..9 {
            for _ in 0..10 {
                let is_logged = log_limit.count(callsite.clone(), start + Duration::from_secs(second));
                assert_eq!(is_logged, (second == 0).then_some(0));
            }
        }
        assert_eq!(log_limit.count(callsite.clone(), start + PERIOD), Some(80));
        assert_eq!(log_limit.count(callsite, start + PERIOD), Some(0));
    }

    static NO_CALLSITE: NoCallsite = NoCallsite;

    struct NoCallsite;

    impl tracing::Callsite for NoCallsite {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("not registered")
        }
    }
}
