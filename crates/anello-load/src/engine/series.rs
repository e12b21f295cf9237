//! Combines the intervals of all threads, and adds the measurements of the server process and the machine.
//!
//! All threads end their intervals at the same scheduled times, without communicating. An interval is complete when
//! every thread has reported its part, has reported a later part (a delayed thread skips intervals), or has finished.

use std::collections::BTreeMap;

use crate::model::interval::{Counts, Interval};
use crate::system::machine;
use crate::system::process::{ProcessMeter, ProcessUsage};

/// Intervals of one measurement, over all threads.
pub(crate) struct Series {
    /// For each thread, the lowest interval number that it can still report.
    next_indexes: Vec<u64>,
    parts: BTreeMap<u64, Interval>,
    samples: BTreeMap<u64, Sample>,
    /// Sample at the start of the first incomplete interval.
    last: Sample,
    /// Times of the first and last samples, and the time between samples.
    first_ns: u64,
    end_ns: u64,
    interval_ns: u64,
    next_sample_index: u64,
    /// Added to the start of each interval.
    offset_ns: u64,
}

impl Series {
    /// The intervals cover `first_ns` to `end_ns`. The first starts `offset_ns` after the first interval of the run.
    pub fn new(threads: usize, first_ns: u64, end_ns: u64, interval_ns: u64, offset_ns: u64) -> Self {
        Self {
            next_indexes: vec![0; threads],
            parts: BTreeMap::new(),
            samples: BTreeMap::new(),
            last: Sample::default(),
            first_ns,
            end_ns,
            interval_ns,
            next_sample_index: 0,
            offset_ns,
        }
    }

    /// Returns the time of the next sample, or `None` after the last one.
    pub fn sample_due_ns(&self) -> Option<u64> {
        let due_ns = |number: u64| {
            self.first_ns.saturating_add(number.saturating_mul(self.interval_ns)).min(self.end_ns)
        };
        (self.next_sample_index == 0 || due_ns(self.next_sample_index - 1) < self.end_ns)
            .then(|| due_ns(self.next_sample_index))
    }

    pub fn add_sample(&mut self, sample: Sample) {
        match self.next_sample_index.checked_sub(1) {
            None => self.last = sample,
            Some(number) => drop(self.samples.insert(number, sample)),
        }
        self.next_sample_index += 1;
    }

    pub fn add_part(&mut self, thread: usize, number: u64, part: Interval) {
        self.next_indexes[thread] = number + 1;
        self.parts.entry(number).and_modify(|sum| sum.add(&part)).or_insert(part);
    }

    /// Marks a thread as finished and adds its remaining measurements.
    pub fn finish_thread(&mut self, thread: usize, rest: Interval) {
        // If the thread finished early, `rest` belongs to an interval in which other threads are still active.
        let number = (rest.start_ns / self.interval_ns).max(self.next_indexes[thread]);
        let no_counts = Counts { offered: rest.counts.offered.map(|_| 0), ..Counts::default() };
        if rest.elapsed_ns > 0 || rest.requests > 0 || rest.counts != no_counts {
            self.add_part(thread, number, rest);
        }
        self.next_indexes[thread] = u64::MAX;
    }

    /// Returns the next complete interval, if any. Calls `take_sample` if there is no sample for its end.
    pub fn next_complete(&mut self, take_sample: impl FnOnce() -> Sample) -> Option<Interval> {
        let (&number, _) = self.parts.first_key_value()?;
        if self.next_indexes.iter().any(|&next| next <= number) {
            return None;
        }
        let mut interval = self.parts.remove(&number)?;
        let sample = self.samples.remove(&number).unwrap_or_else(take_sample);
        self.samples = self.samples.split_off(&number);
        let (server, stolen_ns) =
            (sample.server.zip(self.last.server), sample.stolen_ns.zip(self.last.stolen_ns));
        interval.server = server.map(|(now, before)| now.since(&before));
        interval.stolen_ns = stolen_ns.map(|(now, before)| now.saturating_sub(before));
        self.last = sample;
        interval.start_ns = interval.start_ns.saturating_add(self.offset_ns);
        Some(interval)
    }
}

/// Counters for the server process and the machine at a point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    server: Option<ProcessUsage>,
    stolen_ns: Option<u64>,
}

pub(crate) struct Sampler {
    server: Option<ProcessMeter>,
    cores: Vec<usize>,
}

impl Sampler {
    /// `cores` are the cores of the load generator. If empty, all cores that the current thread can run on are used.
    pub fn new(server_pid: Option<u32>, mut cores: Vec<usize>) -> std::io::Result<Self> {
        let server = server_pid.map(ProcessMeter::new).transpose()?;
        if cores.is_empty() {
            cores = machine::current_thread_cores().unwrap_or_default();
        }
        if let Some(pid) = server_pid {
            cores.extend(machine::cores_of(pid).unwrap_or_default());
        }
        Ok(Self { server, cores })
    }

    pub fn take_sample(&mut self) -> Sample {
        Sample {
            // If the server has exited, no error is reported here, because its exit causes connection errors.
            server: self.server.as_mut().and_then(|meter| meter.read().ok()),
            stolen_ns: machine::stolen_ns(&self.cores).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn part(number: u64, requests: u64) -> Interval {
        Interval { elapsed_ns: SECOND_NS, requests, ..Interval::empty(number * SECOND_NS, false) }
    }

    fn sample(stolen_ns: u64) -> Sample {
        Sample { server: None, stolen_ns: Some(stolen_ns) }
    }

    fn requests_and_stolen(series: &mut Series) -> Option<(u64, u64, u64)> {
        let interval = series.next_complete(|| sample(100))?;
        Some((interval.start_ns / SECOND_NS, interval.requests, interval.stolen_ns?))
    }

    #[test]
    fn interval_is_complete_after_reports_of_all_threads() {
        let mut series = Series::new(2, 5 * SECOND_NS, 8 * SECOND_NS, SECOND_NS, 20 * SECOND_NS);
        let mut dues = Vec::new();
        while let Some(due_ns) = series.sample_due_ns() {
            dues.push(due_ns / SECOND_NS);
            series.add_sample(sample(dues.len() as u64 * dues.len() as u64));
        }
        assert_eq!(dues, [5, 6, 7, 8]);
        series.add_part(0, 0, part(0, 1));
        series.add_part(0, 1, part(1, 2));
        assert_eq!(requests_and_stolen(&mut series), None);
        series.add_part(1, 0, part(0, 10));
        assert_eq!(requests_and_stolen(&mut series), Some((20, 11, 3)));
        assert_eq!(requests_and_stolen(&mut series), None);
        // The other thread was delayed and skips interval 1.
        series.add_part(1, 2, part(1, 20));
        assert_eq!(requests_and_stolen(&mut series), Some((21, 2, 5)));
        series.add_part(0, 2, part(2, 4));
        assert_eq!(requests_and_stolen(&mut series), Some((21, 24, 7)));
        series.finish_thread(0, Interval { elapsed_ns: 0, ..part(3, 0) });
        series.finish_thread(1, part(3, 3));
        assert_eq!(requests_and_stolen(&mut series), Some((23, 3, 84)));
        assert_eq!(requests_and_stolen(&mut series), None);
    }

    #[test]
    fn finished_thread_does_not_delay_others() {
        let mut series = Series::new(2, 0, 2 * SECOND_NS, SECOND_NS, 0);
        series.add_sample(sample(0));
        series.finish_thread(0, part(0, 7));
        series.add_part(1, 0, part(0, 1));
        assert_eq!(requests_and_stolen(&mut series), Some((0, 8, 100)));
        series.add_part(1, 1, part(1, 1));
        assert_eq!(requests_and_stolen(&mut series), Some((1, 1, 0)));
    }

    #[test]
    fn empty_measurement_has_one_sample() {
        let mut series = Series::new(1, 5, 5, SECOND_NS, 0);
        assert_eq!(series.sample_due_ns(), Some(5));
        series.add_sample(sample(1));
        assert_eq!(series.sample_due_ns(), None);
        series.finish_thread(0, part(0, 1));
        assert_eq!(requests_and_stolen(&mut series), Some((0, 1, 99)));
    }
}
