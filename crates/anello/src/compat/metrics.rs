//! Counters of the runtime, passed to the recorder of the `metrics` crate.

use metrics::{SharedString, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::RuntimeMetrics;

/// Name, description and value, and whether it is a gauge.
type Metric = (String, &'static str, u64, bool);

impl RuntimeMetrics {
    /// Passes the counters to the recorder of the [`metrics`](https://docs.rs/metrics) crate (feature `metrics`), with
    /// the label `worker`.
    ///
    /// Call this method at regular intervals on each worker. It costs a few microseconds and does not affect the worker
    /// between two calls. The names of the counters of the driver have the prefix `anello_driver_`, the others
    /// `anello_runtime_`. Counters end in `_total`. The longest poll is in seconds, and missing unless it is measured.
    ///
    /// ```
    /// use std::time::Duration;
    /// use anello::RuntimeMetrics;
    ///
    /// async fn report(worker: usize) {
    ///     let mut interval = anello::time::interval(Duration::from_secs(10));
    ///     loop {
    ///         interval.tick().await;
    ///         RuntimeMetrics::current().unwrap_or_default().record(worker.to_string());
    ///     }
    /// }
    ///
    /// RuntimeMetrics::describe();
    /// anello::Runtime::new()?.block_on(async {
    ///     anello::spawn(report(0)).detach();
    /// });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn record(&self, worker: impl Into<SharedString>) {
        let worker = worker.into();
        for (name, _, value, is_gauge) in self.entries() {
            if is_gauge {
                gauge!(name, "worker" => worker.clone()).set(value as f64);
            } else {
                counter!(name, "worker" => worker.clone()).absolute(value);
            }
        }
        if let Some(longest) = self.longest_poll {
            gauge!(LONGEST_POLL, "worker" => worker).set(longest.as_secs_f64());
        }
    }

    /// Passes the descriptions and units of the counters to the recorder. Call this function once, after the recorder
    /// has been installed and before the first call to [`record`](Self::record), which has an example.
    ///
    /// ```
    /// use std::cell::RefCell;
    ///
    /// use anello::RuntimeMetrics;
    /// use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};
    ///
    /// /// Keeps the names of the gauges. An application uses the recorder of an exporter instead.
    /// #[derive(Default)]
    /// struct Names(RefCell<Vec<String>>);
    ///
    /// impl metrics::Recorder for Names {
    ///     fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
    ///         self.0.borrow_mut().push(key.as_str().to_owned());
    ///     }
    /// #     fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    /// #     fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    /// #     fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
    /// #         Counter::noop()
    /// #     }
    /// #     fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
    /// #         Gauge::noop()
    /// #     }
    /// #     fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
    /// #         Histogram::noop()
    /// #     }
    ///     // The other methods are omitted.
    /// }
    ///
    /// let recorder = Names::default();
    /// metrics::with_local_recorder(&recorder, RuntimeMetrics::describe);
    /// assert!(recorder.0.borrow().contains(&"anello_runtime_tasks".to_owned()));
    /// ```
    pub fn describe() {
        for (name, description, _, is_gauge) in Self::default().entries() {
            let unit = if name == FILE_BYTES { Unit::Bytes } else { Unit::Count };
            if is_gauge {
                describe_gauge!(name, unit, description);
            } else {
                describe_counter!(name, unit, description);
            }
        }
        describe_gauge!(LONGEST_POLL, Unit::Seconds, "Longest poll since the start.");
    }

    fn entries(&self) -> impl Iterator<Item = Metric> {
        let driver = self.driver.entries().map(|entry| {
            let suffix = if entry.is_gauge { "" } else { "_total" };
            let name = format!("anello_driver_{}{suffix}", entry.name);
            (name, entry.description, entry.value, entry.is_gauge)
        });
        let runtime = [
            ("anello_runtime_spawned_tasks_total", "Tasks spawned.", self.spawned_tasks, false),
            ("anello_runtime_polls_total", "Polls of tasks.", self.polls, false),
            ("anello_runtime_tasks", "Unfinished tasks.", self.tasks, true),
            ("anello_runtime_timers", "Pending timers.", self.timers, true),
        ];
        driver.chain(runtime.map(|(name, text, value, is_gauge)| (name.to_owned(), text, value, is_gauge)))
    }
}

const FILE_BYTES: &str = "anello_driver_file_bytes_total";
const LONGEST_POLL: &str = "anello_runtime_longest_poll_seconds";
