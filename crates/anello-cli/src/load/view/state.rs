//! The values that the view shows. Drawing does not change them.

use std::time::Duration;

use anello_load::{Event, Interval, Latency, LoadConfig, Mode, Phase, Progress};

use crate::load::table;

/// Maximum number of points in a chart. When it is reached, pairs of points are merged.
const MAX_POINTS: usize = 512;

/// The time axis has this length, or that of the measurement if that is shorter. It becomes longer when it is full.
const MIN_AXIS: Duration = Duration::from_secs(60);

pub struct LoadState {
    pub target: String,
    pub mode: String,
    /// Connections that the load opens.
    pub connections: usize,
    /// Length of the measurement, or of a step of a sweep.
    duration: Duration,
    /// Number of requests after which the load ends, if it is limited.
    pub max_requests: Option<u64>,
    is_open_loop: bool,
    pub is_sweep: bool,
    pub progress: Option<Progress>,
    /// Measurements of the last interval, and of all intervals so far.
    pub last: Option<Interval>,
    pub total: Option<Interval>,
    pub points: Vec<Point>,
    /// Start and end of each pause, in seconds since the start of the measurement. `None` if it has not ended.
    pub pauses: Vec<(f64, Option<f64>)>,
    /// Number of steps that are complete, and the time at which the current step started, in seconds.
    pub steps: usize,
    step_start_s: f64,
    /// `true` while the load is ending early.
    pub is_stopping: bool,
}

/// Measurements of one interval in the charts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub start_s: f64,
    pub end_s: f64,
    pub requests: f64,
    pub offered: Option<f64>,
    pub errors: u64,
}

impl Point {
    fn of(interval: &Interval) -> Self {
        Self {
            start_s: interval.start_ns as f64 / 1e9,
            end_s: interval.end_ns() as f64 / 1e9,
            requests: interval.requests as f64,
            offered: interval.counts.offered.map(|offered| offered as f64),
            errors: interval.counts.errors.total(),
        }
    }

    fn append(&mut self, next: &Self) {
        self.end_s = next.end_s;
        self.requests += next.requests;
        self.offered = self.offered.zip(next.offered).map(|(offered, next)| offered + next);
        self.errors += next.errors;
    }

    /// Converts a number in this interval to a rate per second.
    pub fn per_second(&self, count: f64) -> f64 {
        count / (self.end_s - self.start_s).max(1e-9)
    }
}

impl LoadState {
    pub fn new(load: &LoadConfig) -> Self {
        Self {
            target: load.target.to_string(),
            mode: table::mode(&load.mode)
                + &load.shard.as_ref().map_or(String::new(), |shard| format!(", shard {shard}")),
            connections: load.own_connections(),
            duration: load.duration,
            max_requests: load.requests,
            is_open_loop: !matches!(load.mode, Mode::Closed { .. }),
            is_sweep: matches!(load.mode, Mode::Sweep(_)),
            progress: None,
            last: None,
            total: None,
            points: Vec::new(),
            pauses: Vec::new(),
            steps: 0,
            step_start_s: 0.0,
            is_stopping: false,
        }
    }

    pub fn update(&mut self, event: &Event<'_>) {
        match event {
            Event::Progress(progress) => self.progress = Some(**progress),
            Event::Interval(interval) => self.add(interval),
            Event::Step(_) => {
                self.steps += 1;
                self.step_start_s = self.points.last().map_or(0.0, |point| point.end_s);
            }
            _ => {}
        }
    }

    fn add(&mut self, interval: &Interval) {
        self.points.push(Point::of(interval));
        if self.points.len() == MAX_POINTS {
            let merge = |pair: &[Point]| {
                let mut merged = pair[0];
                pair[1..].iter().for_each(|next| merged.append(next));
                merged
            };
            self.points = self.points.chunks(2).map(merge).collect();
        }
        match &mut self.total {
            Some(total) => total.append(interval),
            None => self.total = Some(interval.clone()),
        }
        self.last = Some(interval.clone());
    }

    /// A closed loop has no schedule that could be paused.
    pub fn can_pause(&self) -> bool {
        self.is_open_loop
    }

    pub fn is_paused(&self) -> bool {
        self.pauses.last().is_some_and(|(_, end_s)| end_s.is_none())
    }

    pub fn set_paused(&mut self, is_paused: bool) {
        let now_s = self.now_s();
        match self.pauses.last_mut() {
            Some((_, end_s @ None)) if !is_paused => *end_s = Some(now_s),
            _ if is_paused => self.pauses.push((now_s, None)),
            _ => {}
        }
    }

    /// Returns the time since the start of the measurement, in seconds.
    pub fn now_s(&self) -> f64 {
        let last_s = self.points.last().map_or(0.0, |point| point.end_s);
        let measuring = self.progress.filter(|progress| progress.phase == Phase::Measuring);
        measuring.map_or(0.0, |progress| self.step_start_s + progress.elapsed.as_secs_f64()).max(last_s)
    }

    /// Returns the end of the time axis, in seconds.
    pub fn axis_end_s(&self) -> f64 {
        let planned = if self.is_sweep { MIN_AXIS } else { self.duration.min(MIN_AXIS) };
        self.now_s().max(planned.as_secs_f64()).max(1e-3)
    }

    /// Returns the requests per second in the last interval, or since the start of the phase.
    pub fn rate(&self) -> f64 {
        let Some(progress) = &self.progress else { return 0.0 };
        let average = progress.requests as f64 / progress.elapsed.as_secs_f64().max(1e-3);
        let last = self.last.as_ref().filter(|_| progress.phase == Phase::Measuring);
        last.map_or(average, Interval::requests_per_second)
    }

    /// Returns the number of errors, including those while connecting if no interval has been measured yet.
    pub fn errors(&self) -> u64 {
        self.progress
            .map_or(0, |progress| progress.errors)
            .max(self.points.iter().map(|point| point.errors).sum())
    }

    /// Returns the latency in the last interval and in all intervals so far.
    pub fn latencies(&self) -> [Option<Latency>; 2] {
        [&self.last, &self.total].map(|interval| interval.as_ref().and_then(Interval::quantiles))
    }

    /// Divides the range of the latencies so far into buckets of equal ratio. Returns the upper bound of each bucket in
    /// nanoseconds, and its share of the requests.
    pub fn histogram(&self, buckets: usize) -> Vec<(f64, f64)> {
        let Some(total) = self.total.as_ref().filter(|total| !total.latency.is_empty() && buckets > 0) else {
            return Vec::new();
        };
        let latency = &total.latency;
        let (min, max) = (latency.min().max(1) as f64, latency.max().max(1) as f64);
        let ratio = (max / min).powf(1.0 / buckets as f64).max(1.0 + 1e-9);
        let mut shares: Vec<(f64, f64)> =
            (1..=buckets).map(|number| (min * ratio.powi(number as i32), 0.0)).collect();
        for value in latency.iter_recorded() {
            let position = (value.value_iterated_to() as f64 / min).max(1.0).ln() / ratio.ln();
            let index = (position as usize).min(buckets - 1);
            shares[index].1 += value.count_at_value() as f64 / latency.len() as f64;
        }
        shares
    }
}

#[cfg(test)]
pub mod tests {
    use std::net::SocketAddr;

    use anello_load::{Arrivals, latency_histogram};

    use super::*;

    /// Returns the state of an open loop of 1000 requests/s after `seconds` intervals, each with more requests than
    /// the previous interval.
    pub fn state(seconds: u64) -> LoadState {
        let mode = Mode::Open { per_second: 1000, arrivals: Arrivals::Constant, seed: 1 };
        let target = SocketAddr::from(([127, 0, 0, 1], 7000));
        let duration = Duration::from_secs(10);
        let load = LoadConfig { mode, duration, ..LoadConfig::echo(target, 128) };
        let mut state = LoadState::new(&load);
        for second in 0..seconds {
            state.update(&Event::Interval(&interval(second)));
        }
        state.update(&Event::Progress(&Progress {
            phase: Phase::Measuring,
            elapsed: Duration::from_secs(seconds),
            planned: load.duration,
            offered_per_second: Some(1000),
            connections: 49,
            requests: 0,
            errors: 0,
        }));
        state
    }

    fn interval(second: u64) -> Interval {
        let mut latency = latency_histogram();
        latency.record_n(100_000, 90).unwrap();
        latency.record_n(3_000_000, 10).unwrap();
        let mut interval = Interval { latency, ..Interval::empty(second * 1_000_000_000, true) };
        (interval.elapsed_ns, interval.requests) = (1_000_000_000, 100 * (second + 1));
        (interval.counts.offered, interval.load_cpu_ns) = (Some(1000), 250_000_000);
        interval
    }

    #[test]
    fn points_are_merged_when_there_are_too_many() {
        let state = state(MAX_POINTS as u64);
        assert!(state.points.len() < MAX_POINTS, "{}", state.points.len());
        let sum: f64 = state.points.iter().map(|point| point.requests).sum();
        assert_eq!(sum, state.total.as_ref().unwrap().requests as f64);
        assert!(state.points.windows(2).all(|pair| pair[0].end_s == pair[1].start_s));
        assert_eq!(state.axis_end_s(), 512.0);
    }

    #[test]
    fn histogram_has_all_requests() {
        let histogram = state(3).histogram(5);
        let shares: Vec<String> = histogram.iter().map(|(_, share)| format!("{share:.2}")).collect();
        assert_eq!(shares, ["0.90", "0.00", "0.00", "0.00", "0.10"]);
        assert!((histogram[4].0 / 3e6 - 1.0).abs() < 0.01, "{histogram:?}");
        assert!(state(0).histogram(5).is_empty());
    }

    #[test]
    fn pauses_have_start_and_end() {
        let mut state = state(3);
        state.set_paused(false);
        assert!(state.pauses.is_empty());
        state.set_paused(true);
        assert!(state.is_paused() && state.pauses == [(3.0, None)]);
        state.update(&Event::Interval(&interval(3)));
        state.set_paused(false);
        assert!(!state.is_paused() && state.pauses == [(3.0, Some(4.0))]);
    }
}
