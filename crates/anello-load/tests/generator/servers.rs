//! Loads against servers with known behaviour, correct and faulty, on every driver. The tests assert counts, never
//! upper bounds of durations. A test that hangs also counts as failed.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anello::Runtime;
use anello::net::TcpStream as SimStream;
use anello::time::sleep;
use anello_load::{Arrivals, ErrorKind, Event, LoadConfig, Mode, Phase, Protocol, Report, Session, run};
use anello_test::tcp_server;
use socket2::{Domain, Socket, Type};

use crate::common::virtual_time::{self, TOLERANCE, for_each_simulated_kernel};
use crate::common::{any_driver, drivers, reports, reset};

const MESSAGE_BYTES: usize = 1000;

fn runtimes() -> impl Iterator<Item = Runtime> {
    drivers().map(|driver| driver.build().unwrap())
}

/// Echoes messages. `change` can modify each message first and returns whether to continue.
fn echo(
    mut stream: TcpStream,
    mut change: impl FnMut(&mut TcpStream, &mut Vec<u8>) -> bool,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let mut message = vec![0; MESSAGE_BYTES];
        stream.read_exact(&mut message)?;
        if !change(&mut stream, &mut message) {
            return Ok(());
        }
        stream.write_all(&message)?;
    }
}

fn echo_server() -> SocketAddr {
    tcp_server(|stream| echo(stream, |_, _| true))
}

/// Returns a protocol with requests and replies of `message_bytes` bytes.
fn echo_protocol(message_bytes: usize) -> Protocol {
    Protocol::Messages { request_bytes: message_bytes, response_bytes: message_bytes }
}

/// Returns a short load run with verification enabled.
fn load(target: SocketAddr) -> LoadConfig {
    LoadConfig {
        connections: 7,
        duration: Duration::from_millis(30),
        verify: true,
        stall_timeout: Duration::from_secs(30),
        ..LoadConfig::echo(target, MESSAGE_BYTES)
    }
}

/// Returns a socket that is bound to a port but does not listen. Connections to it are refused.
fn bound_socket() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[test]
fn correct_server_yields_successful_report() {
    for verify in [true, false] {
        let load = LoadConfig {
            verify,
            warm_up: Duration::from_millis(5),
            server_pid: Some(std::process::id()),
            ..load(echo_server())
        };
        for report in reports(&load) {
            assert!(report.is_success(), "{report:?}");
            assert!(report.requests >= 7 && report.elapsed_ns > 0 && report.requests_per_second > 0.0);
            assert_eq!((report.connections_opened, report.connections_open_at_end), (7, 7));
            let latency = report.latency.unwrap();
            assert!(
                latency.min_ns > 0 && latency.p50_ns <= latency.p99_ns && latency.p99_ns <= latency.max_ns
            );
            assert_eq!(report.server.unwrap().pid, std::process::id());
            assert!(report.load_cpu_ns_per_request.unwrap() > 0.0);
            assert!(!report.interrupted && report.verified == verify);
        }
    }
}

#[test]
fn report_round_trips_through_json() {
    let outcome = run(&load(echo_server()), &any_driver(), |_| ControlFlow::Continue(()));
    let mut report = outcome.unwrap().report;
    // Numbers with few decimals, because formatting may lose the last digit of other numbers.
    report.requests_per_second = 1234.5;
    report.load_cpu_ns_per_request = Some(0.25);
    report.latency.as_mut().unwrap().mean_ns = 17.75;
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.starts_with(r#"{"schema":"anello-load","schema_version":3,"#), "{text}");
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

#[test]
fn messages_larger_than_all_buffers_are_received_completely() {
    let address = tcp_server(|mut stream| {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..count])?;
        }
    });
    let load = LoadConfig { connections: 2, protocol: echo_protocol(8 << 20), ..load(address) };
    for report in reports(&load) {
        assert!(report.is_success() && report.requests >= 2, "{report:?}");
    }
}

#[test]
fn slices_share_connections_and_leave_no_request_in_flight() {
    let accepted = Arc::new(AtomicU64::new(0));
    let served = Arc::new(AtomicU64::new(0));
    let counters = (Arc::clone(&accepted), Arc::clone(&served));
    let address = tcp_server(move |stream| {
        counters.0.fetch_add(1, Ordering::SeqCst);
        echo(stream, |_, _| {
            counters.1.fetch_add(1, Ordering::SeqCst);
            true
        })
    });
    for (round, runtime) in runtimes().enumerate() {
        runtime.block_on(async {
            let mut session = Session::connect(&load(address)).await.unwrap();
            assert!(session.connect_errors().is_empty());
            let mut requests = 0;
            let before = served.load(Ordering::SeqCst);
            for _ in 0..5 {
                let slice = session.run_slice(Duration::from_millis(3)).await;
                assert!(slice.interval.counts.errors.is_empty(), "{:?}", slice.interval.counts.errors);
                assert_eq!(slice.interval.latency.len(), slice.interval.requests);
                assert_eq!(slice.requests_by_connection.iter().sum::<u64>(), slice.interval.requests);
                requests += slice.interval.requests;
                assert_eq!(session.open_connections(), 7);
                assert_eq!(
                    served.load(Ordering::SeqCst) - before,
                    requests,
                    "every request is answered and counted"
                );
            }
            session.close().await;
        });
        assert_eq!(accepted.load(Ordering::SeqCst), 7 * (round as u64 + 1));
    }
}

#[test]
fn empty_slice_sends_one_request_per_connection() {
    for runtime in runtimes() {
        let slice = runtime.block_on(async {
            let mut session = Session::connect(&load(echo_server())).await.unwrap();
            session.run_slice(Duration::ZERO).await
        });
        assert_eq!(slice.interval.requests, 7);
    }
}

#[test]
fn latency_includes_server_delay() {
    const DELAY: Duration = Duration::from_millis(10);
    for_each_simulated_kernel(async || {
        let address = virtual_time::server(async |mut stream: SimStream| {
            loop {
                let mut message = [0; MESSAGE_BYTES];
                stream.read_exact(&mut message).await?;
                sleep(DELAY).await;
                stream.write_all(&message).await?;
            }
        });
        let (slice, _) = virtual_time::run(&load(address)).await;
        assert!(slice.interval.counts.errors.is_empty(), "{:?}", slice.interval.counts);
        let latency = slice.interval.quantiles().unwrap();
        // The histogram rounds by up to 0.1 %.
        let min_expected_ns = DELAY.as_nanos() as u64 * 998 / 1000;
        let max_expected_ns = (DELAY + 7 * TOLERANCE).as_nanos() as u64;
        assert!(latency.min_ns >= min_expected_ns && latency.max_ns <= max_expected_ns, "{latency:?}");
    });
}

#[test]
fn fault_44_replies_with_wrong_bytes_are_errors() {
    let requests = AtomicU64::new(0);
    let address = tcp_server(move |stream| {
        echo(stream, |_, message| {
            // Change the last byte of every third reply.
            if requests.fetch_add(1, Ordering::SeqCst).is_multiple_of(3) {
                message[MESSAGE_BYTES - 1] ^= 1;
            }
            true
        })
    });
    for report in reports(&load(address)) {
        assert!(report.errors.count(ErrorKind::WrongBytes) > 0 && !report.is_success(), "{report:?}");
        assert_eq!(report.errors.total(), report.errors.count(ErrorKind::WrongBytes));
        assert_eq!(report.connections_open_at_end, 7, "connections stay open");
    }
    let unverified = LoadConfig { verify: false, ..load(address) };
    assert!(reports(&unverified).all(|report| report.is_success()), "replies are not verified");
}

#[test]
fn fault_44_replies_to_other_requests_are_wrong_bytes() {
    let address = tcp_server(|stream| {
        let (mut previous, mut remaining) = (None, 4);
        echo(stream, move |_, message| {
            // Answer each request with the previous message. Close after four replies.
            if let Some(mut stale) = previous.replace(message.clone()) {
                std::mem::swap(message, &mut stale);
            }
            remaining -= 1;
            remaining >= 0
        })
    });
    let load = LoadConfig { connections: 1, duration: Duration::from_secs(600), ..load(address) };
    for report in reports(&load) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::WrongBytes)), (1, 3), "{report:?}");
    }
}

#[test]
fn fault_44_silent_server_causes_timeouts() {
    let address = tcp_server(|mut stream| {
        std::io::copy(&mut stream, &mut std::io::sink())?;
        Ok(())
    });
    let load = LoadConfig { stall_timeout: Duration::from_millis(50), ..load(address) };
    for report in reports(&load) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::Timeout)), (0, 7), "{report:?}");
        assert_eq!((report.errors.total(), report.connections_open_at_end, report.latency), (7, 0, None));
    }
}

#[test]
fn fault_44_server_without_reads_causes_timeouts() {
    let address = tcp_server(|stream| {
        thread::sleep(Duration::from_secs(600));
        drop(stream);
        Ok(())
    });
    let load = LoadConfig {
        protocol: echo_protocol(16 << 20),
        stall_timeout: Duration::from_millis(50),
        ..load(address)
    };
    for report in reports(&load) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::Timeout)), (0, 7), "{report:?}");
    }
}

#[test]
fn fault_44_trickling_server_causes_timeouts() {
    let address = tcp_server(|mut stream| {
        stream.set_nodelay(true)?;
        loop {
            stream.write_all(b"x")?;
            thread::sleep(Duration::from_millis(1));
        }
    });
    let load = LoadConfig {
        protocol: echo_protocol(1 << 20),
        verify: false,
        stall_timeout: Duration::from_millis(60),
        ..load(address)
    };
    for report in reports(&load) {
        assert_eq!(report.errors.count(ErrorKind::Timeout), 7, "{report:?}");
    }
}

#[test]
fn fault_44_stalling_server_causes_timeouts_and_earlier_replies_count() {
    let address = tcp_server(|stream| {
        let mut remaining = 5;
        echo(stream, |_, _| {
            if remaining == 0 {
                thread::sleep(Duration::from_secs(600));
            }
            remaining -= 1;
            true
        })
    });
    let load = LoadConfig {
        duration: Duration::from_secs(600),
        stall_timeout: Duration::from_millis(300),
        ..load(address)
    };
    for report in reports(&load) {
        assert_eq!(report.errors.count(ErrorKind::Timeout), 7, "{report:?}");
        // Fewer than 35 if the machine is so busy that regular replies exceed the timeout.
        assert!(report.requests <= 35 && report.latency.is_some() == (report.requests > 0), "{report:?}");
    }
}

#[test]
fn stalled_connection_does_not_reduce_reported_rate() {
    let accepted = AtomicU64::new(0);
    let address = tcp_server(move |stream| {
        let stalls = accepted.fetch_add(1, Ordering::SeqCst).is_multiple_of(7);
        echo(stream, |_, _| {
            if stalls {
                thread::sleep(Duration::from_secs(600));
            }
            true
        })
    });
    // The next timeout is used if the machine is so busy that regular replies exceed the previous one.
    let all = [1500, 15_000].into_iter().map(|stall_timeout_ms| {
        let stall_timeout = Duration::from_millis(stall_timeout_ms);
        let load = LoadConfig { duration: Duration::from_millis(100), stall_timeout, ..load(address) };
        reports(&load).collect::<Vec<_>>()
    });
    let mut all = all.skip_while(|reports| reports.iter().any(|report| report.errors.total() > 1));
    for report in all.next().expect("a run in which only one connection stalls") {
        let timeouts = report.errors.count(ErrorKind::Timeout);
        assert_eq!((timeouts, report.errors.total()), (1, 1), "{report:?}");
        assert!(report.elapsed_ns >= 1_500_000_000 && report.in_time_ns < report.elapsed_ns, "{report:?}");
        // The only requests answered after the planned end are those in flight at that time, at most one on each of the
        // other six connections.
        assert!(report.answered_in_time + 6 >= report.requests, "{report:?}");
        let per_second = report.answered_in_time as f64 * 1e9 / report.in_time_ns as f64;
        assert!((report.requests_per_second / per_second - 1.0).abs() < 1e-9, "{report:?}");
    }
}

#[test]
fn fault_44_reset_is_counted() {
    let address = tcp_server(|stream| {
        let mut remaining = 5;
        echo(stream, |stream, _| {
            remaining -= 1;
            if remaining < 0 {
                reset(stream);
            }
            remaining >= 0
        })
    });
    let open = Mode::Open { per_second: 1000, arrivals: Arrivals::Constant, seed: 1 };
    for mode in [Mode::Closed { think_time: Duration::ZERO }, open] {
        let load = LoadConfig { mode, duration: Duration::from_secs(600), ..load(address) };
        for report in reports(&load) {
            assert_eq!((report.requests, report.errors.count(ErrorKind::Reset)), (35, 7), "{report:?}");
            assert_eq!((report.errors.total(), report.connections_open_at_end), (7, 0));
            // No connection was left for the rest of the schedule.
            let offered = report.offered.map(|offered| (offered, report.unsent));
            assert!(offered.is_none_or(|offered| offered == (600_000, 600_000 - 42)), "{report:?}");
        }
    }
}

#[test]
fn fault_44_close_before_reply_is_counted() {
    let address = tcp_server(|stream| {
        let mut remaining = 5;
        echo(stream, |_, _| {
            remaining -= 1;
            remaining >= 0
        })
    });
    let load = LoadConfig { duration: Duration::from_secs(600), ..load(address) };
    for report in reports(&load) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::ClosedEarly)), (35, 7), "{report:?}");
    }
}

#[test]
fn fault_44_close_during_reply_is_counted() {
    let address = tcp_server(|stream| {
        echo(stream, |stream, message| {
            stream.write_all(&message[..MESSAGE_BYTES - 1]).unwrap();
            false
        })
    });
    for report in reports(&load(address)) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::TruncatedReply)), (0, 7), "{report:?}");
    }
}

#[test]
fn fault_44_excess_bytes_are_counted() {
    let address = tcp_server(|stream| {
        echo(stream, |_, message| {
            message.push(0);
            true
        })
    });
    // An extra byte may be mistaken for the first byte of the next reply. The excess then accumulates until it is
    // detected.
    let load = LoadConfig { verify: false, duration: Duration::from_secs(600), ..load(address) };
    for report in reports(&load) {
        assert_eq!((report.errors.count(ErrorKind::ExcessData), report.errors.total()), (7, 7), "{report:?}");
    }
}

#[test]
fn fault_44_failed_connection_does_not_affect_others() {
    let accepted = AtomicU64::new(0);
    let address = tcp_server(move |stream| {
        let fails = accepted.fetch_add(1, Ordering::SeqCst).is_multiple_of(7);
        echo(stream, |_, _| !fails)
    });
    for report in reports(&load(address)) {
        assert_eq!((report.errors.total(), report.connections_open_at_end), (1, 6), "{report:?}");
        assert!(report.requests >= 6);
    }
}

#[test]
fn fault_44_refused_connect_is_counted_per_connection() {
    let (_socket, address) = bound_socket();
    for sources in [Vec::new(), vec![IpAddr::from([127, 0, 0, 2])]] {
        for report in reports(&LoadConfig { source_addresses: sources.clone(), ..load(address) }) {
            assert_eq!(
                (report.errors.count(ErrorKind::Refused), report.errors.total()),
                (7, 7),
                "{report:?}"
            );
            assert_eq!((report.connections_opened, report.requests), (0, 0));
        }
    }
}

#[test]
fn fault_44_full_accept_queue_causes_connect_timeouts() {
    for sources in [Vec::new(), vec![IpAddr::from([127, 0, 0, 2])]] {
        // The kernel completes handshakes until the accept queue of this listener is full, and drops further SYN
        // packets.
        let (socket, address) = bound_socket();
        socket.listen(1).unwrap();
        let load = LoadConfig {
            connections: 20,
            max_concurrent_connects: 4,
            connect_timeout: Duration::from_millis(200),
            stall_timeout: Duration::from_millis(50),
            source_addresses: sources,
            ..load(address)
        };
        for report in reports(&load) {
            let [unconnected, stalled] =
                [ErrorKind::ConnectTimeout, ErrorKind::Timeout].map(|kind| report.errors.count(kind));
            assert!(unconnected > 0 && unconnected + stalled == 20, "{report:?}");
            assert_eq!((report.requests, report.connections_opened as u64), (0, stalled));
        }
    }
}

#[test]
fn connections_use_source_addresses_in_turn() {
    let (sender, clients) = mpsc::channel();
    let address = tcp_server(move |stream| {
        sender.send(stream.peer_addr()?.ip()).expect("the test is still receiving");
        echo(stream, |_, _| true)
    });
    let sources: Vec<IpAddr> = [2, 3, 4].map(|last| IpAddr::from([127, 0, 0, last])).to_vec();
    let load = LoadConfig { connections: 100, source_addresses: sources.clone(), ..load(address) };
    for report in reports(&load) {
        assert!(report.is_success() && report.connections_open_at_end == 100, "{report:?}");
        assert_eq!(report.source_addresses, sources);
        let clients: Vec<_> = clients.iter().take(100).collect();
        let counts = sources.iter().map(|source| clients.iter().filter(|client| *client == source).count());
        assert_eq!(counts.collect::<Vec<_>>(), [34, 33, 33]);
    }
}

#[test]
fn foreign_source_address_error_contains_address() {
    // An address from a range reserved for documentation, which is not assigned to this machine.
    let load = LoadConfig { source_addresses: vec![[192, 0, 2, 1].into()], ..load(echo_server()) };
    for report in reports(&load) {
        assert_eq!((report.errors.count(ErrorKind::Other), report.errors.total()), (7, 7), "{report:?}");
        let example = &report.errors.iter().next().unwrap().example;
        assert!(example.contains("192.0.2.1") && example.contains("ip address"), "{example}");
    }
}

#[test]
fn stop_returns_report_early() {
    let load = LoadConfig { duration: Duration::from_secs(3600), ..load(echo_server()) };
    for driver in drivers() {
        let outcome = run(&load, &driver, |event| match event {
            Event::Progress(progress) if progress.phase == Phase::Measuring && progress.requests > 0 => {
                assert_eq!(progress.connections, 7);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        let report = outcome.unwrap().report;
        assert!(report.interrupted && report.is_success(), "{report:?}");
    }
}

#[test]
fn stop_does_not_wait_for_stalled_server() {
    let address = tcp_server(|mut stream| {
        std::io::copy(&mut stream, &mut std::io::sink())?;
        Ok(())
    });
    let load = LoadConfig {
        duration: Duration::from_secs(3600),
        stall_timeout: Duration::from_secs(3600),
        ..load(address)
    };
    for driver in drivers() {
        let report = run(&load, &driver, |_| ControlFlow::Break(())).unwrap().report;
        assert!(report.interrupted && report.errors.is_empty() && !report.is_success(), "{report:?}");
        assert!(report.abandoned <= 7, "{report:?}");
    }
}

#[test]
fn missing_server_process_returns_error_before_load() {
    let load = LoadConfig { server_pid: Some(u32::MAX), ..load(echo_server()) };
    for driver in drivers() {
        let error = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains("process 4294967295"), "{error}");
    }
}
