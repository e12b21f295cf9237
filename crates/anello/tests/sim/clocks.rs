//! Clocks of simulated hosts, statistics of links, and duplicated datagrams.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::{Duration, UNIX_EPOCH};

use anello::net::UdpSocket;
use anello::sim::{LinkOptions, SimModel, Simulation};
use anello::time::{Instant, advance, interval, interval_at, sleep, system_now, timeout};
use anello::yield_now;

use crate::common::{poll_once, run_on_each, simulated_drivers};

const MODELS: [SimModel; 2] = [SimModel::Completion, SimModel::Readiness];

#[test]
fn wall_clocks_differ_between_hosts_and_survive_restarts() {
    let mut sim = Simulation::builder().start_time(UNIX_EPOCH + Duration::from_secs(1000)).build();
    sim.host("b", async || {
        let ahead = Duration::from_secs(1060)..Duration::from_secs(1070);
        assert!(ahead.contains(&system_now().duration_since(UNIX_EPOCH).expect("a time after 1970")));
        Ok(())
    });
    sim.set_system_time("b", sim.system_time("b") + Duration::from_secs(60));
    let control = sim.control();
    sim.client("a", async move {
        sleep(Duration::from_secs(3)).await;
        let start = Instant::now();
        control.set_system_time("a", UNIX_EPOCH - Duration::from_secs(3));
        assert!(system_now() < UNIX_EPOCH);
        assert!(start.elapsed() < Duration::from_millis(1), "the monotonic clock is not affected");
        control.restart("b");
        sleep(Duration::from_secs(4)).await;
        assert!(system_now() > UNIX_EPOCH);
        Ok(())
    });
    sim.run().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn drift_changes_timers_that_are_running() {
    for model in MODELS {
        for (ppm, expected) in [(0, 10.0), (1_000_000, 6.0), (-500_000, 18.0)] {
            let mut sim = Simulation::builder().model(model).build();
            let control = sim.control();
            sim.client("a", async move {
                let (start, system_start) = (Instant::now(), system_now());
                let sleeping = anello::spawn(sleep(Duration::from_secs(10)));
                sleep(Duration::from_secs(2)).await;
                control.set_clock_drift("a", ppm);
                sleeping.await?;
                assert_eq!(start.elapsed().as_secs(), 10, "by its own clock");
                assert_eq!(system_now().duration_since(system_start).expect("later").as_secs(), 10);
                let elapsed = control.elapsed().as_secs_f64();
                assert!((elapsed - expected).abs() < 0.01, "{model:?} {ppm}: {elapsed}");
                Ok(())
            });
            sim.run().unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn drift_concerns_intervals_and_slow_disks() {
    for ppm in [250_000, -250_000] {
        let mut sim = Simulation::builder().build();
        let control = sim.control();
        sim.client("a", async move {
            let mut ticks = interval(Duration::from_millis(100));
            for _ in 0..=10 {
                ticks.tick().await;
            }
            let elapsed = control.elapsed().as_secs_f64() * f64::from(1_000_000 + ppm) / 1e6;
            assert!((elapsed - 1.0).abs() < 0.01, "{elapsed}");
            let start = control.elapsed();
            anello::fs::read("/proc/version").await?;
            let elapsed = control.elapsed() - start;
            // The disk has a clock of its own.
            assert!(elapsed.abs_diff(Duration::from_secs(1)) < Duration::from_millis(1), "{elapsed:?}");
            Ok(())
        });
        sim.set_clock_drift("a", ppm);
        sim.set_disk_delay("a", Duration::from_secs(1)..=Duration::from_secs(1));
        sim.run().unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn datagrams_are_duplicated_and_reordered_and_links_count_packets() {
    let mut sim = Simulation::builder().link(LinkOptions::default().duplicates(300).loss(200)).build();
    sim.host("b", async || {
        std::future::pending::<()>().await;
        Ok(())
    });
    let receiver = async {
        let socket = UdpSocket::bind("0.0.0.0:5").expect("a socket");
        let (mut numbers, mut buffer) = (Vec::new(), [0; 10]);
        while let Ok(received) = timeout(Duration::from_secs(1), socket.recv_from(&mut buffer)).await {
            let (length, _) = received.expect("a datagram");
            assert_eq!(length, 1);
            numbers.push(buffer[0]);
        }
        numbers
    };
    sim.client("receiver", async move {
        let numbers = receiver.await;
        let distinct: BTreeSet<_> = numbers.iter().collect();
        assert!((100..200).contains(&distinct.len()), "{} of 200 arrived", distinct.len());
        assert!(numbers.len() > distinct.len() + 10, "some arrived twice");
        assert!(!numbers.is_sorted(), "some overtook others");
        let has_late_duplicate = (0..200).any(|number| {
            let mut positions = (0..numbers.len()).filter(|index| numbers[*index] == number);
            matches!((positions.next(), positions.next()), (Some(one), Some(other)) if other > one + 1)
        });
        assert!(has_late_duplicate, "a duplicate can arrive after other datagrams");
        Ok(())
    });
    sim.client("sender", async {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        for number in 0..200 {
            socket.send_to(&[number], "receiver:5").await?;
            sleep(Duration::from_micros(100)).await;
        }
        Ok(())
    });
    sim.run().unwrap_or_else(|error| panic!("{error}"));
    let statistics = sim.link_statistics("sender", "receiver");
    assert_eq!((statistics.packets, statistics.bytes), (200, 200));
    assert!((20..80).contains(&statistics.lost), "{} datagrams are lost", statistics.lost);
    assert_eq!(sim.link_statistics("receiver", "sender").packets, 0);
    assert_eq!(sim.link_statistics("sender", "b").packets, 0);
}

#[test]
fn commands_take_effect_while_running_for_a_period() {
    let mut sim = Simulation::builder().build();
    sim.host("b", async || Ok(()));
    let control = sim.control();
    sim.client("a", async move {
        control.crash("b");
        sleep(Duration::from_secs(1)).await;
        assert!(!control.is_running("b"));
        Ok(())
    });
    sim.run_for(Duration::from_secs(2)).unwrap_or_else(|error| panic!("{error}"));
    assert!(!sim.is_running("b"));
}

#[test]
fn virtual_clock_is_exact() {
    run_on_each(simulated_drivers(), async |setup| {
        let started = Instant::now();
        for nanoseconds in [1, 999, 1_000_000, 131_072, 3_600_000_000_007] {
            let before = Instant::now();
            advance(Duration::from_nanos(nanoseconds)).await;
            assert_eq!(before.elapsed(), Duration::from_nanos(nanoseconds), "{}", setup.name);
            sleep(Duration::from_nanos(nanoseconds)).await;
            assert_eq!(before.elapsed(), Duration::from_nanos(2 * nanoseconds), "{}", setup.name);
        }
        let mut ticks = interval_at(Instant::now() + Duration::from_millis(3), Duration::from_millis(3));
        let first = Instant::now();
        for tick in 1..10 {
            assert_eq!(ticks.tick().await - first, Duration::from_millis(3) * tick, "{}", setup.name);
            assert_eq!(first.elapsed(), Duration::from_millis(3) * tick, "{}", setup.name);
        }
        assert!(timeout(Duration::from_millis(7), pending::<()>()).await.is_err());
        assert_eq!(first.elapsed(), Duration::from_millis(34), "{}", setup.name);
        // Time passes for code that only reads the clock, or only yields.
        let deadline = Instant::now() + Duration::from_micros(100);
        while Instant::now() < deadline {}
        let deadline = Instant::now() + Duration::from_micros(100);
        let mut timer = sleep(Duration::from_micros(100));
        while poll_once(&mut timer).await.is_none() {
            yield_now().await;
        }
        assert!(
            Instant::now() >= deadline && started.elapsed() < Duration::from_secs(7201),
            "{}",
            setup.name
        );
    });
}
