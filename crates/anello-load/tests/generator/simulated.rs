//! An open loop on simulated hosts, whose measurements must be those computed from the virtual times of the server.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use anello::net::TcpListener;
use anello::sim::{Control, LinkOptions, Simulation};
use anello::time::sleep;
use anello_load::{Arrivals, Interval, LoadConfig, Mode, Session, latency_histogram};
use hdrhistogram::Histogram;

const MESSAGE_BYTES: usize = 64;
const PER_SECOND: u64 = 50;
const DURATION: Duration = Duration::from_secs(3);
/// Start of the stall or partition, since the start of the simulation.
const FROM: Duration = Duration::from_micros(1_003_500);
const UNTIL: Duration = Duration::from_micros(2_003_500);
const LATENCY: Duration = Duration::from_millis(1);

/// Virtual time that the hosts need for the system calls of one request.
const TOLERANCE_NS: u64 = 20_000;

/// Times at which requests were received and replies were sent, since the start of the simulation.
type Log = Rc<RefCell<Vec<(Duration, Duration)>>>;

async fn serve(control: Control, log: Log, stalls: bool) -> std::io::Result<()> {
    let mut stream = TcpListener::bind("0.0.0.0:7")?.accept().await?;
    let mut message = [0; MESSAGE_BYTES];
    while stream.read_exact(&mut message).await.is_ok() {
        let received = control.elapsed();
        if stalls && (FROM..UNTIL).contains(&received) {
            sleep(UNTIL - received).await;
        }
        log.borrow_mut().push((received, control.elapsed()));
        stream.write_all(&message).await?;
        stream.flush().await?;
    }
    Ok(())
}

struct Outcome {
    start: Duration,
    interval: Interval,
    log: Vec<(Duration, Duration)>,
    partition: Range<Duration>,
}

fn run(stalls: bool) -> Outcome {
    let mut sim = Simulation::builder().link(LinkOptions::default().latency(LATENCY..=LATENCY)).build();
    let (control, log, started) = (sim.control(), Log::default(), Rc::new(RefCell::new(None)));
    let server_log = Rc::clone(&log);
    sim.host("server", move || serve(control.clone(), Rc::clone(&server_log), stalls));
    let load = LoadConfig {
        connections: 1,
        mode: Mode::Open { per_second: PER_SECOND, arrivals: Arrivals::Constant, seed: 1 },
        verify: true,
        ..LoadConfig::echo(SocketAddr::from((sim.ipv4("server"), 7)), MESSAGE_BYTES)
    };
    let (control, result) = (sim.control(), Rc::clone(&started));
    sim.client("load", async move {
        let mut session = Session::connect(&load).await?;
        let start = control.elapsed();
        let slice = session.run_slice(DURATION).await;
        *result.borrow_mut() = Some((start, slice.interval));
        Ok(())
    });
    let partition = Rc::new(RefCell::new(Duration::MAX..Duration::MAX));
    if !stalls {
        let (control, partition) = (sim.control(), Rc::clone(&partition));
        sim.client("operator", async move {
            sleep(FROM - control.elapsed()).await;
            control.partition("load", "server");
            // The timer can be late.
            let start = control.elapsed();
            sleep(UNTIL - control.elapsed()).await;
            control.repair("load", "server");
            *partition.borrow_mut() = start..control.elapsed();
            Ok(())
        });
    }
    sim.run().unwrap_or_else(|error| panic!("{error}\n{}", sim.trace()));
    let (start, interval) = started.take().expect("a result");
    Outcome { start, interval, log: log.take(), partition: partition.borrow().clone() }
}

/// Checks all percentiles of a histogram.
fn assert_quantiles(measured: &Histogram<u64>, expected_ns: impl Iterator<Item = u64>) {
    let mut expected = latency_histogram();
    for ns in expected_ns {
        expected.record(ns).expect("a recordable latency");
    }
    assert_eq!(measured.len(), expected.len());
    for percent in 0..=100 {
        let [measured, expected] =
            [measured, &expected].map(|histogram| histogram.value_at_quantile(f64::from(percent) / 100.0));
        // The histograms round to three digits.
        let tolerance_ns = TOLERANCE_NS + expected / 500;
        assert!(
            measured.abs_diff(expected) <= tolerance_ns,
            "p{percent}: {measured} instead of {expected} ns"
        );
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

#[test]
fn open_loop_measures_stalls_and_partitions_from_the_due_times() {
    for stalls in [true, false] {
        let Outcome { start, interval, log, partition } = run(stalls);
        assert_eq!((interval.requests, interval.counts.errors.total()), (150, 0));
        assert_eq!((interval.counts.unsent, log.len()), (0, 150));
        let arrives = |sent: Duration| {
            let at = sent + LATENCY;
            if partition.contains(&at) { partition.end } else { at }
        };
        let due = |index: u64| start + Duration::from_nanos(index * 1_000_000_000 / PER_SECOND);
        let corrected =
            (0..).zip(&log).map(|(index, (_, replied))| nanoseconds(arrives(*replied) - due(index)));
        assert_quantiles(&interval.latency, corrected);
        // A third of the requests was due in the second without replies, and half of these waited for more than 0.5 s.
        let p90_ns = interval.latency.value_at_quantile(0.9);
        assert!((500_000_000..900_000_000).contains(&p90_ns), "p90: {p90_ns} ns");
        let uncorrected = interval.uncorrected.expect("an open loop");
        if stalls {
            assert_quantiles(
                &uncorrected,
                log.iter().map(|(received, replied)| nanoseconds(*replied + 2 * LATENCY - *received)),
            );
        }
        assert!(uncorrected.value_at_quantile(0.99) < 10_000_000, "only one request was in flight");
    }
}
