//! Puts the intervals of all threads together, and adds what is of the process and the machine.
//!
//! Every thread cuts its record at the same moments, by its own clock. Here the parts of the same number are added; an
//! interval is complete when every thread has told of it, of a later one (it was held up and left it out), or that it is
//! done.

use std::collections::BTreeMap;

use crate::interval::Interval;
use crate::machine;
use crate::process::{ProcessMeter, ProcessUsage};

/// The intervals of one stretch of load, of all threads.
pub(crate) struct Series {
    /// The next interval that each thread may tell of.
    next_indexes: Vec<u64>,
    parts: BTreeMap<u64, Interval>,
    samples: BTreeMap<u64, Sample>,
    /// Before all intervals that are not complete.
    last: Sample,
    /// Moments of samples: the first, the last, and the time between.
    first_ns: u64,
    end_ns: u64,
    interval_ns: u64,
    next_sample_index: u64,
    /// Added to the start of each interval.
    offset_ns: u64,
}

impl Series {
    /// For so many threads; the stretch is measured from `first_ns` to `end_ns`, which is `offset_ns` after the
    /// measurement began.
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

    /// When the process and the machine are to be looked at next; none when that is over.
    pub fn sample_due_ns(&self) -> Option<u64> {
        let due_ns = |number: u64| {
            self.first_ns.saturating_add(number.saturating_mul(self.interval_ns)).min(self.end_ns)
        };
        (self.next_sample_index == 0 || due_ns(self.next_sample_index - 1) < self.end_ns)
            .then(|| due_ns(self.next_sample_index))
    }

    /// Takes a look that was due.
    pub fn add_sample(&mut self, sample: Sample) {
        match self.next_sample_index {
            0 => self.last = sample,
            number => {
                self.samples.insert(number - 1, sample);
            }
        }
        self.next_sample_index += 1;
    }

    /// A thread's part of an interval.
    pub fn add_part(&mut self, thread: usize, number: u64, part: Interval) {
        self.next_indexes[thread] = number + 1;
        match self.parts.entry(number) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(part);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => entry.get_mut().add(&part),
        }
    }

    /// A thread is done; the rest of its record.
    pub fn finish_thread(&mut self, thread: usize, rest: Interval) {
        // Who ended early has its rest in the middle of the others.
        let number = (rest.start_ns / self.interval_ns).max(self.next_indexes[thread]);
        if rest.elapsed_ns > 0 || has_activity(&rest) {
            self.add_part(thread, number, rest);
        }
        self.next_indexes[thread] = u64::MAX;
    }

    /// The next interval that is complete. `now` is how things stand if nobody has looked at its end.
    pub fn next_complete(&mut self, now: impl FnOnce() -> Sample) -> Option<Interval> {
        let (&number, _) = self.parts.first_key_value()?;
        if self.next_indexes.iter().any(|&next| next <= number) {
            return None;
        }
        let mut interval = self.parts.remove(&number)?;
        let sample = self.samples.remove(&number).unwrap_or_else(now);
        self.samples = self.samples.split_off(&number);
        sample.since(&self.last).apply_to(&mut interval);
        self.last = sample;
        interval.start_ns = interval.start_ns.saturating_add(self.offset_ns);
        Some(interval)
    }
}

/// Whether there is anything in a record.
fn has_activity(rest: &Interval) -> bool {
    rest.requests > 0
        || !rest.errors.is_empty()
        || rest.unsent > 0
        || rest.abandoned > 0
        || rest.offered.is_some_and(|offered| offered > 0)
}

/// The server's process and the machine at some moment, or between two.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    server: Option<ProcessUsage>,
    stolen_ns: Option<u64>,
}

impl Sample {
    fn since(&self, earlier: &Self) -> Self {
        let both = |(now, before): (u64, u64)| now.saturating_sub(before);
        Self {
            server: self.server.zip(earlier.server).map(|(now, before)| now.since(&before)),
            stolen_ns: self.stolen_ns.zip(earlier.stolen_ns).map(both),
        }
    }

    fn apply_to(&self, interval: &mut Interval) {
        interval.server = self.server;
        interval.stolen_ns = self.stolen_ns;
    }
}

/// Looks at the server's process and at the machine.
pub(crate) struct Sampler {
    server: Option<ProcessMeter>,
    cores: Vec<usize>,
}

impl Sampler {
    /// For the server with this process id, if it is known, and a load on these cores.
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

    /// How things stand.
    pub fn take_sample(&mut self) -> Sample {
        Sample {
            // A server that is gone by now shows in the errors.
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
    fn parts_are_added_when_all_threads_have_told() {
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
        // The other thread was held up and leaves the second out.
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
    fn a_thread_that_ends_early_does_not_hold_the_others() {
        let mut series = Series::new(2, 0, 2 * SECOND_NS, SECOND_NS, 0);
        series.add_sample(sample(0));
        series.finish_thread(0, part(0, 7));
        series.add_part(1, 0, part(0, 1));
        assert_eq!(requests_and_stolen(&mut series), Some((0, 8, 100)));
        series.add_part(1, 1, part(1, 1));
        assert_eq!(requests_and_stolen(&mut series), Some((1, 1, 0)));
    }

    #[test]
    fn a_measurement_of_no_length_is_looked_at_once() {
        let mut series = Series::new(1, 5, 5, SECOND_NS, 0);
        assert_eq!(series.sample_due_ns(), Some(5));
        series.add_sample(sample(1));
        assert_eq!(series.sample_due_ns(), None);
        series.finish_thread(0, part(0, 1));
        assert_eq!(requests_and_stolen(&mut series), Some((0, 1, 99)));
    }
}
