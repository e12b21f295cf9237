//! Counters of the runtime, passed to the recorder of the `metrics` crate.

use metrics::{SharedString, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::RuntimeMetrics;

/// Name, description and value of a counter or gauge.
type Metric<T> = (&'static str, &'static str, T);

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
        for (name, _, value) in self.counters() {
            counter!(name, "worker" => worker.clone()).absolute(value);
        }
        for (name, _, value) in self.gauges() {
            gauge!(name, "worker" => worker.clone()).set(value as f64);
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
        let metrics = Self::default();
        for (name, description, _) in metrics.counters() {
            let unit = if name == FILE_BYTES { Unit::Bytes } else { Unit::Count };
            describe_counter!(name, unit, description);
        }
        for (name, description, _) in metrics.gauges() {
            describe_gauge!(name, Unit::Count, description);
        }
        describe_gauge!(LONGEST_POLL, Unit::Seconds, "Longest poll since the start.");
    }

    fn counters(&self) -> [Metric<u64>; 15] {
        let Self { driver, spawned_tasks, polls, .. } = self;
        [
            ("anello_driver_accepted_total", "Connections accepted.", driver.accepted),
            ("anello_driver_refused_total", "Connections rejected for lack of descriptors.", driver.refused),
            ("anello_driver_receives_total", "Receives that returned bytes.", driver.receives),
            ("anello_driver_sends_total", "Sends that sent all their bytes.", driver.sends),
            ("anello_driver_short_sends_total", "Sends that needed several attempts.", driver.short_sends),
            ("anello_driver_zero_copy_sends_total", "Zero-copy sends.", driver.zero_copy_sends),
            (FILE_BYTES, "Bytes sent from files.", driver.file_bytes),
            (
                "anello_driver_buffer_exhaustions_total",
                "Receives that found no receive buffer.",
                driver.buffer_exhaustions,
            ),
            (
                "anello_driver_late_completions_total",
                "Completions for sockets that were already closed.",
                driver.late_completions,
            ),
            (
                "anello_driver_completion_overflows_total",
                "Overflows of the completion queue.",
                driver.completion_overflows,
            ),
            ("anello_driver_turns_total", "System calls that submit or wait.", driver.turns),
            ("anello_driver_submissions_total", "Operations submitted.", driver.submissions),
            ("anello_driver_completions_total", "Completions or events received.", driver.completions),
            ("anello_runtime_spawned_tasks_total", "Tasks spawned.", *spawned_tasks),
            ("anello_runtime_polls_total", "Polls of tasks.", *polls),
        ]
    }

    fn gauges(&self) -> [Metric<u64>; 4] {
        [
            ("anello_driver_sockets", "Open sockets.", self.driver.sockets),
            (
                "anello_driver_buffers_leased",
                "Receive buffers that contain data.",
                self.driver.buffers_leased,
            ),
            ("anello_runtime_tasks", "Unfinished tasks.", self.tasks),
            ("anello_runtime_timers", "Pending timers.", self.timers),
        ]
    }
}

const FILE_BYTES: &str = "anello_driver_file_bytes_total";
const LONGEST_POLL: &str = "anello_runtime_longest_poll_seconds";
