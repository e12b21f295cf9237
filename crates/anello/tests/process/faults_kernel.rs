//! Kernel faults: interrupted waits, exhausted resources and full queues. The numbers refer to
//! `docs/internals/faults.md`.

use std::io::{Read, Write};
use std::net::TcpStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::echo;
use anello::net::{TcpListener, TcpStream};
use anello::time::sleep;
use anello::{DriverKind, DriverOptions, Runtime, spawn};

use crate::common::usage::{freed_is_kept, raise_open_files};
use crate::common::{
    ANY_PORT, OwnProcess, Setup, all_drivers, assert_same_bytes, can_inject, exchange, in_own_process,
    is_own_process, is_uring_unavailable, on_both_drivers, on_each, on_every_driver, pair, pattern,
};
use crate::server::Server;

/// Checks that the runtime still works: transfers in both directions, a timer and another connection.
async fn check_runtime_works(seed: u64) {
    let (mut client, mut server) = pair().await.unwrap();
    let echoing = spawn(async move { echo(&mut server).await });
    for size in [1, 100, 5000, 100_000] {
        exchange(&mut client, &pattern(seed + size as u64, size)).await;
        let before = Instant::now();
        sleep(Duration::from_millis(1)).await;
        assert!(before.elapsed() >= Duration::from_millis(1), "an interrupted wait must not end a sleep");
    }
    client.shutdown().await.unwrap();
    assert!(client.recv().await.unwrap().is_none());
    assert_eq!(echoing.await.unwrap().unwrap(), 105_101);
}

#[test]
fn fault_01_interrupted_waits() {
    if is_own_process() || can_inject() {
        // A failed call has submitted nothing, so a later call must submit its operations.
        OwnProcess::injecting(&["/^(io_uring_enter|epoll_p?wait2?)$:error=EINTR:when=1+3"]).run(|| {
            on_every_driver(|setup| {
                let features = setup.runtime().driver().features;
                let features_expected = !setup.is_uring()
                    || setup.options.testing.disabled_features.multishot_receive
                    || setup.options.testing.disabled_features.buffer_ring
                    || features.contains("multishot-recv");
                assert!(features_expected, "{}: features lost to an interruption: {features}", setup.name);
                setup.run(check_runtime_works(1));
            });
        });
    }
}

#[test]
fn fault_01_signals_during_waits() {
    // Runs in a child process, because signals affect the whole process.
    in_own_process(|| {
        let caught = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&caught)).unwrap();
        on_every_driver(|setup| {
            // The kernel prefers to signal the main thread, whose ID is the process ID.
            let target = rustix::thread::gettid();
            let end = Arc::new(AtomicBool::new(false));
            let ended = Arc::clone(&end);
            let thread = std::thread::spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    rustix::process::kill_process(target, rustix::process::Signal::HUP).unwrap();
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            setup.run(check_runtime_works(2));
            end.store(true, Ordering::SeqCst);
            thread.join().unwrap();
        });
        assert!(caught.load(Ordering::SeqCst));
    });
}

#[test]
fn fault_03_spurious_eagain_on_reads() {
    if is_own_process() || can_inject() {
        OwnProcess::injecting(&["recvfrom:error=EAGAIN:when=2+3"]).run(|| {
            on_both_drivers(|setup| setup.run(read_despite_spurious_eagain()));
        });
    }
}

/// The kernel never fails a read with `EAGAIN` while bytes are available. After a spurious `EAGAIN`, the next bytes
/// wake the reader again. There must be room for these bytes, so the total is smaller than a receive window.
async fn read_despite_spurious_eagain() {
    let (client, mut server) = pair().await.unwrap();
    let message = pattern(3, 40_000);
    let sent = message.clone();
    let nudging = spawn(async move {
        let mut client = client;
        for part in sent.chunks(5000) {
            client.write_all(part).await.unwrap();
            sleep(Duration::from_micros(200)).await;
        }
        // Runs until the reader has received everything and closes.
        while client.write(b"nudge").await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    });
    let mut received = Vec::new();
    while received.len() < message.len() {
        received.extend_from_slice(&server.recv().await.unwrap().unwrap());
    }
    assert_same_bytes(&received[..message.len()], &message);
    drop(server);
    nudging.await.unwrap();
}

/// Returns the CPU time that an idle server uses, in percent of the time that has passed: at least one second.
fn idle_percentage(server: &mut Server) -> f64 {
    let (before, start) = (server.report(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let used = server.report().usage.processor - before.usage.processor;
    100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64()
}

fn connect(server: &Server) -> StdStream {
    let stream = StdStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(crate::common::scaled_timeout(Duration::from_secs(30)))).unwrap();
    stream
}

/// Returns whether the connection is served.
fn is_served(stream: &mut StdStream) -> bool {
    stream.write_all(b"?").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

#[test]
fn fault_04_no_descriptors_left() {
    on_both_drivers(|setup| {
        let mut server = Server::start(setup, Some(64));
        let clients: Vec<_> = (0..200).map(|_| connect(&server)).collect();
        let (mut served, mut refused) = (Vec::new(), 0);
        for mut client in clients {
            if is_served(&mut client) { served.push(client) } else { refused += 1 }
        }
        assert!(served.len() >= 20 && refused >= 100, "{} served, {refused} refused", served.len());
        assert!(server.report().rejected >= 100);
        // One client is waiting in the accept queue, and the server must not busy-loop.
        let percentage = idle_percentage(&mut server);
        assert!(percentage < 5.0, "{percentage} % of a core while idle");
        assert!(served.iter_mut().all(is_served), "existing connections must stay open");
        drop(served);
        // Once descriptors are available, new connections are served again.
        while !is_served(&mut connect(&server)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        server.stop();
    });
}

/// Opens `count` concurrent connections within one runtime. Each sends `rounds` requests, and every request must get a
/// response.
async fn many_clients(count: usize, rounds: u64, size: usize) {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = spawn(async move {
        for _ in 0..count {
            let mut stream = listener.accept().await.unwrap();
            spawn(async move { echo(&mut stream).await }).detach();
        }
    });
    let mut clients = Vec::new();
    for number in 0..count as u64 {
        clients.push(spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            for round in 0..rounds {
                exchange(&mut stream, &pattern(number << 8 | round, size)).await;
            }
            stream
        }));
    }
    let mut streams = Vec::new();
    for client in clients {
        streams.push(client.await.unwrap());
    }
    accepting.await.unwrap();
}

#[test]
fn fault_05_empty_buffer_ring() {
    let mut setups = crate::common::both_drivers();
    setups.push(setups[0].with(|options| options.testing.disabled_features.multishot_receive = true));
    setups.push(setups[0].with(|options| options.max_received_chunks = 1));
    for setup in &mut setups {
        (setup.options.testing.initial_receive_buffers, setup.options.max_receive_buffers) = (4, 4);
    }
    on_each(setups, |setup| {
        let runtime = setup.runtime();
        runtime.block_on(many_clients(256, 6, 3000));
        runtime.block_on(many_clients(256, 30, 10));
        if setup.is_uring() {
            assert!(runtime.metrics().driver.buffer_exhaustions > 0, "{:?}", runtime.metrics());
        }
    });
}

#[test]
fn fault_05_buffer_ring_grows_first() {
    on_each(vec![crate::common::both_drivers().remove(0)], |setup| {
        let runtime = setup.with(|options| options.testing.initial_receive_buffers = 1).runtime();
        runtime.block_on(many_clients(256, 20, 100));
        let metrics = runtime.metrics().driver;
        // The ring starts with one buffer and doubles repeatedly, so receive operations rarely run out of buffers.
        assert!((1..5000).contains(&metrics.buffer_exhaustions), "{metrics:?}");
    });
}

#[test]
fn fault_06_no_memory_to_map_ring() {
    in_own_process(|| {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let mut options = DriverOptions::default();
        (options.testing.sq_entries, options.testing.cq_entries) = (32_768, 65_536);
        let build = |kind| {
            Runtime::builder().driver(kind).options(options.clone()).driver_from_environment(false).build()
        };
        if let Err(error) = build(DriverKind::Uring) {
            assert!(is_uring_unavailable(&error), "{error:?}");
            return eprintln!("skipped: {error}");
        }
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let in_use = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
        // Enough memory for epoll and messages, but not for three megabytes of queues.
        let maximum = getrlimit(Resource::As).maximum;
        setrlimit(Resource::As, Rlimit { current: Some(in_use + (2 << 20)), maximum }).unwrap();
        let error = build(DriverKind::Uring).unwrap_err();
        let auto = build(DriverKind::Auto);
        setrlimit(Resource::As, Rlimit { current: maximum, maximum }).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("ulimit"), "{error}");
        let auto = auto.unwrap();
        assert_eq!((auto.driver().name, auto.driver().fallback_reason), ("epoll", Some(error.to_string())));
        auto.block_on(check_runtime_works(6));
    });
}

#[test]
fn fault_06_no_memory_for_all_receive_buffers() {
    if freed_is_kept() {
        return eprintln!("skipped: the checker's allocator needs more memory than the limits allow");
    }
    in_own_process(|| {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        for (room_bytes, options) in [
            // The first limit allows the queues and part of 64 MiB of buffers. The second allows no 1 MiB buffer.
            (24 << 20, DriverOptions::default()),
            (1 << 20, {
                let mut options = DriverOptions::default();
                (options.max_receive_buffers, options.receive_buffer_bytes) = (1, 1 << 20);
                options
            }),
        ] {
            let build = || {
                let builder = Runtime::builder().driver(DriverKind::Uring).options(options.clone());
                builder.driver_from_environment(false).build()
            };
            if let Err(error) = build() {
                assert!(is_uring_unavailable(&error), "{error:?}");
                return eprintln!("skipped: {error}");
            }
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let in_use = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
            let maximum = getrlimit(Resource::As).maximum;
            setrlimit(Resource::As, Rlimit { current: Some(in_use + room_bytes), maximum }).unwrap();
            let runtime = build();
            setrlimit(Resource::As, Rlimit { current: maximum, maximum }).unwrap();
            runtime.unwrap().block_on(check_runtime_works(6));
        }
    });
}

/// Returns all io_uring setups and epoll, with the options for a fault.
fn each_with(change: impl Fn(&mut DriverOptions)) -> Vec<Setup> {
    let mut setups = all_drivers();
    setups.retain(|setup| !setup.name.contains("small"));
    setups.iter_mut().for_each(|setup| change(&mut setup.options));
    setups
}

#[test]
fn fault_08_submission_queue_full() {
    assert!(raise_open_files() > 2100, "needs descriptors for 1000 connections");
    let mut setups = crate::common::both_drivers();
    setups.push(setups[0].with(|options| options.testing.disabled_features.cqe_skip = true));
    for setup in &mut setups {
        setup.options.testing.sq_entries = 2;
    }
    on_each(setups, |setup| setup.run(many_clients(1000, 3, 100)));
    on_each(each_with(|options| options.testing.sq_entries = 2), |setup| {
        setup.run(many_clients(50, 5, 2000))
    });
}

#[test]
fn fault_09_completion_queue_overflows() {
    let change =
        |options: &mut DriverOptions| (options.testing.sq_entries, options.testing.cq_entries) = (4, 4);
    on_each(each_with(change), |setup| {
        let runtime = setup.runtime();
        runtime.block_on(many_clients(100, 10, 300));
        let metrics = runtime.metrics().driver;
        if setup.is_uring() && setup.options.submission_polling.is_none() {
            assert!(metrics.completion_overflows > 0, "{}: {metrics:?}", setup.name);
        }
        runtime.block_on(async {
            while anello::current_driver_metrics().unwrap().sockets > 0 {
                anello::yield_now().await;
            }
        });
    });
}
