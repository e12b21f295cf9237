//! Events and spans of `tracing`.
//!
//! The subscriber is application code: it can panic, and use the runtime. This file is the only one that calls it. The
//! libraries log with [`log_event!`](crate::log_event) and `log_span!`, which no lock must surround. `.ci/run rules`
//! rejects every other use of `tracing`.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// For [`log_event!`](crate::log_event) in other crates, which need no dependency of their own.
#[doc(hidden)]
pub use ::tracing;
use ::tracing::Span;
pub(crate) use ::tracing::field::display as display_field;
use ::tracing::span::Entered;

/// Sends an event to `tracing`, like the macros of that crate; the level comes first. A panic of the subscriber does not
/// propagate.
#[doc(hidden)]
#[macro_export]
macro_rules! log_event {
    ($level:ident, $($event:tt)+) => {
        if $crate::tracing::Level::$level <= $crate::tracing::level_filters::LevelFilter::current() {
            $crate::log_guarded(|| $crate::tracing::event!($crate::tracing::Level::$level, $($event)+));
        }
    };
}

pub(crate) use log_event;

/// Creates a [`LogSpan`] of level debug, like `debug_span!` of `tracing`.
macro_rules! log_span {
    ($($span:tt)+) => {
        match $crate::tracing::Level::DEBUG <= $crate::tracing::level_filters::LevelFilter::current() {
            true => $crate::driver::LogSpan::new(|| $crate::tracing::debug_span!($($span)+)),
            false => $crate::driver::LogSpan::none(),
        }
    };
}

pub(crate) use log_span;

/// Calls the subscriber. A panic does not propagate.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn log_guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(drop_payload).ok()
}

/// Drops a panic payload. The destructor of the payload may panic too; the payload of that panic is leaked.
pub(super) fn drop_payload(panic: Box<dyn Any + Send>) {
    forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
}

/// A span, or none if the subscriber is not interested. A panic of the subscriber does not propagate.
#[derive(Debug)]
pub(crate) struct LogSpan(Option<Span>);

/// The time in which a span is entered.
struct EnteredSpan<'a>(Option<Entered<'a>>);

/// A future that is polled and dropped in a span.
pub(crate) struct InSpan<F> {
    span: LogSpan,
    /// `None` after completion. Boxed, because pinning a field requires unsafe code.
    future: Option<Pin<Box<F>>>,
}

impl LogSpan {
    #[inline]
    pub const fn none() -> Self {
        Self(None)
    }

    pub fn new(create: impl FnOnce() -> Span) -> Self {
        Self(log_guarded(create).filter(|span| !span.is_disabled()))
    }

    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    fn enter(&self) -> EnteredSpan<'_> {
        EnteredSpan(self.0.as_ref().and_then(|span| log_guarded(|| span.enter())))
    }

    pub fn in_scope<T>(&self, run: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        run()
    }

    /// Awaits a future in the span.
    pub async fn run<T>(&self, mut future: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|context| self.in_scope(|| future.as_mut().poll(context))).await
    }

    pub fn instrument<F: Future>(self, future: F) -> InSpan<F> {
        InSpan { span: self, future: Some(Box::pin(future)) }
    }
}

impl Drop for LogSpan {
    #[inline]
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            log_guarded(|| drop(span));
        }
    }
}

impl Drop for EnteredSpan<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(entered) = self.0.take() {
            log_guarded(|| drop(entered));
        }
    }
}

impl<F: Future> Future for InSpan<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { span, future } = &mut *self;
        span.in_scope(|| {
            let polled = future.as_mut().expect("future polled after completion").as_mut().poll(context);
            if polled.is_ready() {
                *future = None;
            }
            polled
        })
    }
}

impl<F> Drop for InSpan<F> {
    fn drop(&mut self) {
        let Self { span, future } = self;
        span.in_scope(|| *future = None);
    }
}
