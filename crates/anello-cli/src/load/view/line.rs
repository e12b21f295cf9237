//! Progress line of `anello load` on standard error, shown only on a terminal.

use std::time::Duration;

use anello_load::{Event, Latency, Phase, Progress, Step};
use indicatif::ProgressBar;

use crate::common::format::{format_count, format_ns, group_digits};
use crate::common::output::progress_bar;

/// State of the progress line: elapsed time, current request rate, latency of the last interval, and errors.
pub struct ProgressLine {
    pub bar: ProgressBar,
    /// Number of requests after which the load ends, if it is limited.
    max_requests: Option<u64>,
    /// Latency of the last interval.
    latency: Option<Latency>,
    /// Phase, elapsed time and requests at the start of the current rate measurement.
    previous: Option<(Phase, Duration, u64)>,
    /// Requests per second.
    rate: f64,
    /// Whether `rate` was measured over a full second.
    is_full_second: bool,
}

impl ProgressLine {
    pub fn new(max_requests: Option<u64>) -> Self {
        let bar = progress_bar("{wide_bar} {percent}%  {msg}");
        Self { bar, max_requests, latency: None, previous: None, rate: 0.0, is_full_second: false }
    }

    pub fn update(&mut self, event: &Event<'_>) {
        match event {
            Event::Interval(interval) => self.latency = interval.quantiles(),
            Event::Progress(progress) => self.show(progress),
            Event::Step(step) => self.step(step),
            _ => {}
        }
    }

    /// Prints a line above the progress line at the end of a sweep step.
    fn step(&mut self, step: &Step) {
        let p99 = step.total.latency.map_or("-".to_owned(), |latency| format_ns(latency.p99_ns as f64));
        let (offered, answered) = (format_count(step.per_second), group_digits(step.answered_per_second));
        self.bar.println(format!("{offered} offered/s: {answered} answered/s, p99 {p99}"));
        (self.latency, self.previous) = (None, None);
    }

    fn show(&mut self, progress: &Progress) {
        let (elapsed, planned) = (progress.elapsed, progress.planned);
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let limit = self.max_requests.filter(|_| progress.phase == Phase::Measuring);
        self.bar.set_length(limit.unwrap_or(milliseconds(planned)));
        self.bar.set_position(limit.map_or(milliseconds(elapsed.min(planned)), |_| progress.requests));
        self.measure_rate(progress);
        let mut text = match progress.phase {
            Phase::Waiting => {
                let remaining = planned.saturating_sub(elapsed).as_secs();
                format!("waiting for the start time, {remaining} s left")
            }
            Phase::Connecting => "connecting".to_owned(),
            Phase::WarmUp => format!("warming up, {} requests/s", group_digits(self.rate)),
            _ => format!("{} requests/s", group_digits(self.rate)),
        };
        if let Some(offered) = progress.offered_per_second {
            text += &format!(" of {}", format_count(offered));
        }
        if let Some(latency) = &self.latency {
            let (p50, p99) = (format_ns(latency.p50_ns as f64), format_ns(latency.p99_ns as f64));
            text += &format!(", p50 {p50}, p99 {p99}");
        }
        text += &format!(", {} connections", progress.connections);
        if progress.errors > 0 {
            text += &format!(", {} errors", format_count(progress.errors));
        }
        self.bar.set_message(text);
    }

    fn measure_rate(&mut self, progress: &Progress) {
        let now = (progress.phase, progress.elapsed, progress.requests);
        let previous = self.previous.filter(|&(phase, elapsed, requests)| {
            phase == progress.phase && elapsed <= progress.elapsed && requests <= progress.requests
        });
        let (_, elapsed, requests) = previous.unwrap_or((progress.phase, Duration::ZERO, 0));
        let measured = progress.elapsed - elapsed;
        let is_full = previous.is_some() && measured >= Duration::from_millis(900);
        self.is_full_second &= previous.is_some();
        // During the first second of a phase, shows the rate so far.
        if is_full || !self.is_full_second {
            self.rate = (progress.requests - requests) as f64 / measured.as_secs_f64().max(1e-9);
        }
        if is_full || previous.is_none() {
            (self.is_full_second, self.previous) = (is_full, Some(now));
        }
    }
}
