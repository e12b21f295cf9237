//! Counters of workers.

use std::sync::mpsc;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::time::sleep;
use anello::{DriverKind, Runtime, RuntimeMetrics, spawn, yield_now};

use crate::common::{
    ANY_PORT, all_drivers, assert_same_bytes, both_drivers, kernel_version, on_each, on_every_driver_and_sim,
    pair, pattern, short_or_long, simulated_drivers,
};

#[test]
fn tasks_polls_and_timers_are_counted() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let unused = runtime.metrics();
        assert_eq!((unused.tasks, unused.spawned_tasks, unused.polls, unused.timers), (0, 0, 0, 0));
        runtime.block_on(async {
            let before = RuntimeMetrics::current().expect("a runtime");
            let sleeping: Vec<_> = (0..3).map(|_| spawn(sleep(Duration::from_secs(1000)))).collect();
            let short = spawn(async {
                for _ in 0..10 {
                    yield_now().await;
                }
            });
            short.await.expect("no panic");
            let during = RuntimeMetrics::current().expect("a runtime");
            assert_eq!((during.tasks, during.spawned_tasks, during.timers), (3, 4, 3), "{}", setup.name);
            // Three polls of the sleeping tasks, and eleven of the other one.
            assert!(during.polls >= before.polls + 14, "{}: {before:?} {during:?}", setup.name);
            for task in sleeping {
                task.abort();
                task.await.expect_err("the task is aborted");
            }
        });
        let after = runtime.metrics();
        assert_eq!((after.tasks, after.spawned_tasks, after.timers), (0, 4, 0), "{}", setup.name);
        assert_eq!(after.longest_poll, None);
        assert_eq!(RuntimeMetrics::current(), None);
    });
}

#[test]
fn receive_ring_shrinks_after_burst() {
    const STREAMS: usize = 40;
    // `IORING_REGISTER_PBUF_STATUS`.
    let can_shrink = kernel_version() >= (6, 8);
    let mut setups = vec![both_drivers().remove(0)];
    setups.extend(simulated_drivers().into_iter().filter(|setup| setup.name == "sim-completion"));
    for setup in &mut setups {
        (setup.options.testing.initial_receive_buffers, setup.options.max_receive_buffers) = (2, 64);
    }
    on_each(setups, move |setup| {
        let ring_buffers = || RuntimeMetrics::current().expect("a runtime").driver.ring_buffers;
        setup.run(async {
            let mut pairs = Vec::new();
            for _ in 0..STREAMS {
                pairs.push(pair().await.expect("a connection"));
            }
            assert_eq!(ring_buffers(), 2, "{}", setup.name);
            // On the real clock, the ring takes six seconds to shrink.
            let bursts = if setup.is_uring() { short_or_long(1, 2) } else { 2 };
            for burst in 0..bursts {
                let mut held = Vec::new();
                for (number, (client, server)) in pairs.iter_mut().enumerate() {
                    client.send(pattern((burst + number) as u64, 1000)).await.expect("send succeeds");
                    held.push(server.recv().await.expect("receive succeeds").expect("not EOF"));
                }
                assert_eq!(ring_buffers(), 64, "{}", setup.name);
                for (number, chunk) in held.iter().enumerate() {
                    assert_same_bytes(chunk, &pattern((burst + number) as u64, 1000));
                }
                drop(held);
                if setup.is_uring() {
                    // Some traffic continues.
                    while ring_buffers() > 2 && can_shrink {
                        sleep(Duration::from_millis(100)).await;
                        let (client, server) = &mut pairs[0];
                        client.send(&b"ciao"[..]).await.expect("send succeeds");
                        let received = server.recv().await.expect("receive succeeds");
                        assert_eq!(received.as_deref(), Some(&b"ciao"[..]));
                    }
                } else {
                    // Without traffic, the worker itself wakes up.
                    sleep(Duration::from_secs(1000)).await;
                    assert_eq!(ring_buffers(), 2, "{}", setup.name);
                }
            }
        });
    });
}

#[test]
fn receive_ring_shrinks_while_few_buffers_are_in_use() {
    const STREAMS: usize = 40;
    let mut setups = simulated_drivers();
    setups.retain(|setup| setup.name == "sim-completion");
    for setup in &mut setups {
        (setup.options.testing.initial_receive_buffers, setup.options.max_receive_buffers) = (2, 64);
    }
    on_each(setups, |setup| {
        let driver = || RuntimeMetrics::current().expect("a runtime").driver;
        setup.run(async {
            let mut held = Vec::new();
            for number in 0..STREAMS {
                let (mut client, mut server) = pair().await.expect("a connection");
                client.send(pattern(number as u64, 1000)).await.expect("send succeeds");
                let chunk = server.recv().await.expect("receive succeeds").expect("not EOF");
                held.push((client, server, bytes::Bytes::from(chunk)));
            }
            assert_eq!(driver().ring_buffers, 64);
            sleep(Duration::from_secs(60)).await;
            assert_eq!(driver().ring_buffers, 64, "in use");
            let turns = driver().turns;
            sleep(Duration::from_secs(10_000)).await;
            assert!(driver().turns < turns + 20, "an idle worker wakes up");
            // The buffers return on another thread.
            let kept = held.split_off(STREAMS - 3);
            let (streams, bytes): (Vec<_>, Vec<_>) =
                held.into_iter().map(|(client, server, bytes)| ((client, server), bytes)).unzip();
            std::thread::spawn(move || drop(bytes)).join().expect("no panic");
            sleep(Duration::from_secs(60)).await;
            assert_eq!(driver().ring_buffers, 6, "twice the number in use");
            for (number, (_, _, bytes)) in kept.iter().enumerate() {
                assert_same_bytes(bytes, &pattern((STREAMS - 3 + number) as u64, 1000));
            }
            drop((kept, streams));
            sleep(Duration::from_secs(60)).await;
            assert_eq!(driver().ring_buffers, 2);
        });
    });
}

#[test]
fn operations_and_leased_buffers_are_counted() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        runtime.block_on(async {
            let (mut client, mut server) = pair().await.expect("a connection");
            let mut held = Vec::new();
            for _ in 0..20 {
                client.send(&b"ciao"[..]).await.expect("send succeeds");
                let chunk = server.recv().await.expect("receive succeeds").expect("not EOF");
                server.send(bytes::Bytes::copy_from_slice(&chunk)).await.expect("send succeeds");
                assert_eq!(client.recv().await.expect("receive succeeds").as_deref(), Some(&b"ciao"[..]));
            }
            let before = RuntimeMetrics::current().expect("a runtime").driver;
            assert_eq!(before.buffers_leased, 0, "{}: {before:?}", setup.name);
            client.send(&b"ciao"[..]).await.expect("send succeeds");
            held.push(server.recv().await.expect("receive succeeds").expect("not EOF"));
            let during = RuntimeMetrics::current().expect("a runtime").driver;
            assert_eq!(during.buffers_leased, 1, "{}: {during:?}", setup.name);
            drop(held);
            let after = RuntimeMetrics::current().expect("a runtime").driver;
            assert_eq!(after.buffers_leased, 0, "{}: {after:?}", setup.name);
            assert!(after.turns > 0 && after.completions > 0, "{}: {after:?}", setup.name);
            assert!(after.completions_per_turn() > 0.0, "{}: {after:?}", setup.name);
        });
        let driver = runtime.metrics().driver;
        let is_completion_model = ["uring", "completion"].iter().any(|model| setup.name.contains(model));
        match is_completion_model {
            true => assert!(driver.submissions > 0, "{}: {driver:?}", setup.name),
            false => assert_eq!(driver.submissions, 0, "{}: {driver:?}", setup.name),
        }
    });
}

#[test]
fn number_of_completions_matches_operations_on_uring() {
    on_each(vec![both_drivers().remove(0)], |setup| {
        let runtime = setup.runtime();
        runtime.block_on(async {
            let count = || RuntimeMetrics::current().expect("a runtime").driver;
            let (mut client, mut server) = pair().await.expect("a connection");
            // The first receives of a connection are one-shot.
            for _ in 0..3 {
                client.send(&b"ciao"[..]).await.expect("send succeeds");
                server.recv().await.expect("receive succeeds").expect("not EOF");
            }
            let before = count();
            for _ in 0..100 {
                client.send(&b"ciao"[..]).await.expect("send succeeds");
                server.recv().await.expect("receive succeeds").expect("not EOF");
            }
            let after = count();
            // The receive stays armed, and a send posts no completion.
            assert_eq!(after.submissions - before.submissions, 100, "{before:?} {after:?}");
            assert_eq!(after.completions - before.completions, 100, "{before:?} {after:?}");
        });
    });
}

#[test]
fn handle_returns_counters_of_other_thread() {
    on_each(both_drivers(), |setup| {
        let (send_handle, handles) = mpsc::channel();
        let (stop, stopped) = stop_signal();
        let setup_of_worker = setup.clone();
        let worker = std::thread::spawn(move || {
            let runtime = setup_of_worker.runtime();
            send_handle.send(runtime.handle()).expect("a receiver");
            runtime.block_on(async {
                let listener = TcpListener::bind(ANY_PORT).expect("a port");
                let address = listener.local_addr().expect("an address");
                let _client = TcpStream::connect(address).await.expect("a connection");
                let _server = listener.accept().await.expect("a connection");
                stopped.await
            })
        });
        let handle = handles.recv().expect("a handle");
        let runtime = setup.runtime();
        let metrics = runtime.block_on(async {
            loop {
                let metrics = handle.metrics().await.expect("the runtime is running");
                if metrics.driver.sockets == 3 {
                    return metrics;
                }
            }
        });
        assert_eq!((metrics.driver.accepted, metrics.tasks), (1, 1), "{}: {metrics:?}", setup.name);
        drop(stop);
        worker.join().expect("no panic");
        assert!(runtime.block_on(handle.metrics()).is_err(), "the runtime has been dropped");
    });
}

/// Returns a sender, and a future that completes when the sender is dropped.
fn stop_signal() -> (tokio::io::DuplexStream, impl Future<Output = ()>) {
    let (stop, mut stopped) = tokio::io::duplex(1);
    let stopped = async move {
        use tokio::io::AsyncReadExt;
        assert_eq!(stopped.read(&mut [0]).await.expect("EOF"), 0);
    };
    (stop, stopped)
}

#[test]
fn longest_poll_is_measured_only_on_request() {
    on_each(all_drivers(), |setup| {
        let block = || std::thread::sleep(Duration::from_millis(3));
        for in_task in [false, true] {
            let runtime = setup.builder().measure_polls(true).build().expect("a runtime");
            match in_task {
                true => runtime.block_on(async { spawn(async move { block() }).await.expect("no panic") }),
                false => runtime.block_on(async { block() }),
            }
            let longest = runtime.metrics().longest_poll;
            assert!(longest >= Some(Duration::from_millis(3)), "{}: {longest:?}", setup.name);
        }
        let runtime = setup.runtime();
        runtime.block_on(async { block() });
        assert_eq!(runtime.metrics().longest_poll, None);
    });
}

#[test]
fn measured_poll_takes_only_clock_reads_of_virtual_time() {
    on_each(simulated_drivers(), |setup| {
        let runtime = setup.builder().measure_polls(true).build().expect("a runtime");
        runtime.block_on(async { spawn(async {}).await.expect("no panic") });
        let longest = runtime.metrics().longest_poll.expect("polls are measured");
        assert!(longest < Duration::from_micros(1), "{}: {longest:?}", setup.name);
    });
}

#[test]
fn runtime_without_operations_has_no_completions_per_turn() {
    let runtime = Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false).build();
    assert_eq!(runtime.expect("a runtime").metrics().driver.completions_per_turn(), 0.0);
}
