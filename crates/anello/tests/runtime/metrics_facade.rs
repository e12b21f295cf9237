//! Counters passed to the recorder of the `metrics` crate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anello::RuntimeMetrics;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use crate::common::{on_both_drivers, pair};

/// Stores the values and the described units, by metric name.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    values: BTreeMap<String, f64>,
    units: BTreeMap<String, Option<Unit>>,
}

/// A handle to one metric.
struct Metric {
    name: String,
    recorded: Recorded,
}

impl Metric {
    fn set_value(&self, value: f64) {
        self.recorded.0.lock().unwrap().values.insert(self.name.clone(), value);
    }
}

impl CounterFn for Metric {
    fn increment(&self, _value: u64) {
        panic!("{} is incremented", self.name);
    }

    fn absolute(&self, value: u64) {
        self.set_value(value as f64);
    }
}

impl GaugeFn for Metric {
    fn increment(&self, _value: f64) {
        panic!("{} is incremented", self.name);
    }

    fn decrement(&self, _value: f64) {
        panic!("{} is decremented", self.name);
    }

    fn set(&self, value: f64) {
        self.set_value(value);
    }
}

impl Recorded {
    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
        assert_eq!(labels, [("worker", "7")]);
        Arc::new(Metric { name: key.name().to_owned(), recorded: self.clone() })
    }

    fn describe(&self, key: &KeyName, unit: Option<Unit>) {
        self.0.lock().unwrap().units.insert(key.as_str().to_owned(), unit);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _description: SharedString) {
        assert!(key.as_str().ends_with("_total"), "{}", key.as_str());
        self.describe(&key, unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _description: SharedString) {
        assert!(!key.as_str().ends_with("_total"), "{}", key.as_str());
        self.describe(&key, unit);
    }

    fn describe_histogram(&self, _key: KeyName, _unit: Option<Unit>, _description: SharedString) {
        panic!("there are no histograms")
    }

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }

    fn register_histogram(&self, _key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        panic!("there are no histograms")
    }
}

#[test]
fn recorded_values_are_those_of_snapshot() {
    on_both_drivers(|setup| {
        let runtime = setup.builder().measure_polls(true).build().expect("a runtime");
        runtime.block_on(async {
            let (mut client, mut server) = pair().await.expect("a connection");
            client.send(&b"ciao"[..]).await.expect("send succeeds");
            anello::spawn(async move { server.recv().await.map(|chunk| chunk.is_some()) })
                .await
                .expect("no panic")
                .expect("receive succeeds");
            let snapshot = RuntimeMetrics::current().expect("a runtime");
            let recorded = Recorded::default();
            metrics::with_local_recorder(&recorded, || {
                RuntimeMetrics::describe();
                snapshot.record("7");
            });
            let State { values, units } = &*recorded.0.lock().unwrap();
            assert_eq!(values.keys().collect::<Vec<_>>(), units.keys().collect::<Vec<_>>());
            let value = |name: &str| values[name];
            assert_eq!(value("anello_driver_accepted_total"), 1.0);
            assert_eq!(value("anello_driver_sends_total"), snapshot.driver.sends as f64);
            assert_eq!(value("anello_driver_turns_total"), snapshot.driver.turns as f64);
            assert_eq!(value("anello_runtime_spawned_tasks_total"), 1.0);
            assert_eq!(value("anello_runtime_polls_total"), snapshot.polls as f64);
            assert_eq!(value("anello_driver_sockets"), snapshot.driver.sockets as f64);
            let longest = snapshot.longest_poll.expect("polls are measured").as_secs_f64();
            assert_eq!(value("anello_runtime_longest_poll_seconds"), longest);
            assert_eq!(units["anello_driver_file_bytes_total"], Some(Unit::Bytes));
            assert_eq!(units["anello_runtime_longest_poll_seconds"], Some(Unit::Seconds));
        });
    });
}
