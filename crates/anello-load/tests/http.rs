//! The load over HTTP against servers of known behaviour, good and bad, on every driver.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anello_load::{Arrivals, ErrorKind, HttpLoad, Knee, LoadConfig, Mode, Protocol, Sweep};
use common::{reports, reset, server};

/// A server that reads heads of requests; `respond` gets each path, with its number on the connection, and says
/// whether to go on.
fn http_server(respond: impl Fn(&mut TcpStream, &str, u64) -> bool + Send + Sync + 'static) -> SocketAddr {
    server(move |mut stream| {
        stream.set_nodelay(true)?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        for number in 0.. {
            let Some(line) = lines.next().transpose()? else { return Ok(()) };
            let mut host = false;
            loop {
                let Some(field) = lines.next().transpose()? else { return Ok(()) };
                host |= field == "Host: test";
                if field.is_empty() {
                    break;
                }
            }
            let path = line.strip_prefix("GET ").and_then(|rest| rest.strip_suffix(" HTTP/1.1"));
            assert!(host, "every request names its host");
            if !respond(&mut stream, path.expect("a request of the right form"), number) {
                return Ok(());
            }
        }
        Ok(())
    })
}

fn respond(stream: &mut TcpStream, text: &str) -> bool {
    stream.write_all(text.as_bytes()).is_ok()
}

fn with_length(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A short load with checks.
fn load(target: SocketAddr, change: impl FnOnce(&mut HttpLoad)) -> LoadConfig {
    let mut load = LoadConfig {
        connections: 5,
        duration: Duration::from_millis(30),
        verify: true,
        stall_timeout: Duration::from_secs(30),
        ..LoadConfig::http(target, "test", "/")
    };
    if let Protocol::Http(http) = &mut load.protocol {
        change(http);
    }
    load
}

#[test]
fn all_ways_of_framing_and_all_paths_are_understood() {
    let address = http_server(|stream, path, number| match path {
        "/length" => respond(stream, &with_length("hello")),
        // The length of what is sent at once changes, so that heads and chunks are cut anywhere.
        "/chunked" => {
            let text =
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
            let (first, rest) = text.split_at(1 + number as usize % (text.len() - 1));
            respond(stream, first) && respond(stream, rest)
        }
        "/interim" => {
            respond(stream, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n")
                && respond(stream, &with_length(""))
        }
        _ => false,
    });
    for pipeline in [1, 4] {
        let load = load(address, |http| {
            http.paths = ["/length", "/chunked", "/interim"].map(str::to_owned).to_vec();
            http.pipeline_depth = pipeline;
        });
        for report in reports(&load) {
            assert!(report.is_success() && report.requests >= 5 * pipeline as u64, "{report:?}");
            assert_eq!((report.connections_left, report.connections_reopened), (5, 0));
        }
    }
}

#[test]
fn an_interim_response_that_comes_alone_is_not_the_answer() {
    // Other connections get theirs in the pause.
    let address = http_server(|stream, _, _| {
        let interim = respond(stream, "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n");
        thread::sleep(Duration::from_millis(3));
        interim && respond(stream, &with_length("hello"))
    });
    for report in reports(&load(address, |_| {})) {
        assert!(report.is_success() && report.connections_left == 5, "{report:?}");
    }
}

#[test]
fn a_server_that_closes_between_requests_is_connected_to_again_without_an_error() {
    let served = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&served);
    let address = http_server(move |stream, path, number| {
        counter.fetch_add(1, Ordering::SeqCst);
        match path {
            // Says so after the third.
            "/says" if number == 2 => {
                respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
                false
            }
            "/says" => respond(stream, &with_length("hello")),
            // The end of the connection is that of the response.
            _ => {
                respond(stream, "HTTP/1.1 200 OK\r\n\r\nhello");
                false
            }
        }
    });
    for path in ["/says", "/ends"] {
        for report in reports(&load(address, |http| http.paths = vec![path.to_owned()])) {
            assert!(report.is_success(), "{report:?}");
            assert_eq!((report.requests, report.connections_left), (served.swap(0, Ordering::SeqCst), 5));
            assert!(report.requests < 15 || report.connections_reopened > 0, "{report:?}");
        }
    }
}

#[test]
fn a_server_that_closes_between_requests_without_a_word_is_connected_to_again() {
    let served = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&served);
    let address = http_server(move |stream, _, number| {
        counter.fetch_add(1, Ordering::SeqCst);
        respond(stream, &with_length("hello"));
        if number == 2 {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // A request that is under way is taken, so that it does not make a reset of the end.
            std::io::copy(stream, &mut std::io::sink()).ok();
        }
        number < 2
    });
    let open = Mode::Open { per_second: 1000, arrivals: Arrivals::Constant, seed: 1 };
    for mode in [Mode::Closed { think_time: Duration::ZERO }, open] {
        let load = LoadConfig { mode, duration: Duration::from_millis(100), ..load(address, |_| {}) };
        for report in reports(&load) {
            assert!(report.is_success() && report.connections_left == 5, "{report:?}");
            assert_eq!(report.requests, served.swap(0, Ordering::SeqCst));
            assert!(report.requests <= 15 || report.connections_reopened > 0, "{report:?}");
            assert!(report.offered.is_none_or(|offered| offered == report.requests), "{report:?}");
        }
    }
}

#[test]
fn who_closes_long_after_a_request_has_not_answered_it() {
    let address = http_server(|stream, _, number| {
        if number == 0 {
            return respond(stream, &with_length("hello"));
        }
        thread::sleep(Duration::from_millis(1500));
        false
    });
    for report in reports(&LoadConfig { duration: Duration::from_secs(1), ..load(address, |_| {}) }) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::ClosedEarly)), (5, 5), "{report:?}");
        assert_eq!((report.errors.total(), report.connections_left), (5, 0), "{report:?}");
    }
}

#[test]
fn the_latency_of_a_request_that_is_sent_again_counts_from_the_first_time() {
    // The second request of a connection waits for its end, and has its answer on the next.
    let dropped = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&dropped);
    let address = http_server(move |stream, _, number| {
        if number == 0 {
            return respond(stream, &with_length("hello"));
        }
        counter.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(200));
        false
    });
    let one = LoadConfig { connections: 1, duration: Duration::from_millis(500), ..load(address, |_| {}) };
    for report in reports(&one) {
        let dropped = dropped.swap(0, Ordering::SeqCst);
        assert!(report.is_success() && (1..4).contains(&dropped), "{dropped} {report:?}");
        assert_eq!(report.requests, dropped + 1, "what began before the end is answered: {report:?}");
        assert!(report.latency.is_some_and(|latency| latency.max_ns >= 200_000_000), "{report:?}");
    }
    // What was sent behind the last response was sent in vain.
    let address = http_server(|stream, _, _| {
        thread::sleep(Duration::from_millis(50));
        respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        std::io::copy(stream, &mut std::io::sink()).ok();
        false
    });
    let one = load(address, |http| http.pipeline_depth = 4);
    let one = LoadConfig { connections: 1, duration: Duration::from_millis(400), ..one };
    for report in reports(&one) {
        assert!(report.is_success() && report.requests >= 4, "{report:?}");
        assert!(report.latency.is_some_and(|latency| latency.max_ns >= 190_000_000), "{report:?}");
    }
}

#[test]
fn a_load_that_nobody_answers_is_no_bottleneck() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let breaks = http_server(|_, _, _| false);
    for address in [nobody, breaks] {
        for report in reports(&load(address, |_| {})) {
            assert!(report.requests == 0 && !report.load_was_bottleneck, "{report:?}");
            // The clocks are not read at the same moment.
            assert!(report.load_busy_percent < 150.0, "{report:?}");
        }
    }
}

#[test]
fn a_server_that_closes_at_once_is_not_connected_to_without_a_pause() {
    let accepted = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&accepted);
    let address = server(move |stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        drop(stream);
        Ok(())
    });
    let load = LoadConfig {
        connections: 2,
        // The second connection has nothing to do in this time.
        mode: Mode::Open { per_second: 1, arrivals: Arrivals::Constant, seed: 1 },
        duration: Duration::from_millis(300),
        ..load(address, |_| {})
    };
    for report in reports(&load) {
        assert_eq!((report.requests, report.offered), (0, Some(1)), "{report:?}");
        // After 10, 20, 40 ms and so on.
        let accepted = accepted.swap(0, Ordering::SeqCst);
        assert!((3..15).contains(&accepted), "{accepted} connections: {report:?}");
    }
}

#[test]
fn a_servers_slow_close_is_not_taken_for_a_late_load() {
    let address = http_server(|stream, _, _| {
        respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx");
        thread::sleep(Duration::from_millis(400));
        false
    });
    let load = LoadConfig {
        connections: 1,
        mode: Mode::Open { per_second: 10, arrivals: Arrivals::Constant, seed: 1 },
        duration: Duration::from_millis(800),
        drain_timeout: Duration::from_secs(60),
        ..load(address, |http| http.keep_alive = false)
    };
    for report in reports(&load) {
        assert!(report.is_success() && report.requests == 8, "{report:?}");
        // Only the first finds nothing in its way; one that was due just after a close would be 300 ms late else.
        assert!(report.schedule_error.is_some_and(|error| error.max_ns < 250_000_000), "{report:?}");
    }
}

#[test]
fn a_sweep_with_a_connection_for_each_request_goes_on_to_its_end() {
    let address = http_server(|stream, _, _| {
        respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx");
        false
    });
    let sweep = Sweep {
        first: 100,
        last: 300,
        step: 100,
        arrivals: Arrivals::Constant,
        seed: 1,
        knee: Knee { min_answered_percent: 1, max_latency_factor: u32::MAX },
    };
    let load = LoadConfig {
        mode: Mode::Sweep(sweep),
        duration: Duration::from_millis(100),
        ..load(address, |http| http.keep_alive = false)
    };
    for report in reports(&load) {
        let offered: Vec<_> = report.steps.iter().map(|step| step.total.offered).collect();
        assert_eq!(offered, [10, 20, 30].map(Some), "{report:?}");
        assert!(report.is_success() && report.knee.is_none() && report.requests == 60, "{report:?}");
    }
}

#[test]
fn pipelined_requests_behind_the_last_response_are_sent_again() {
    let address = http_server(|stream, _, number| {
        let close = if number == 5 { "Connection: close\r\n" } else { "" };
        respond(stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{close}\r\nx"));
        if number == 5 {
            // What else has been sent is taken, so that the response is not lost by a reset.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            std::io::copy(stream, &mut std::io::sink()).ok();
        }
        number < 5
    });
    for report in reports(&load(address, |http| http.pipeline_depth = 4)) {
        assert!(report.is_success() && report.connections_left == 5, "{report:?}");
    }
}

#[test]
fn a_connection_for_each_request_is_opened_and_closed() {
    let accepted = Arc::new(AtomicU64::new(0));
    for says_so in [true, false] {
        let counter = Arc::clone(&accepted);
        let address = http_server(move |stream, _, number| {
            counter.fetch_add(1, Ordering::SeqCst);
            assert_eq!(number, 0, "one request a connection");
            let close = if says_so { "Connection: close\r\n" } else { "" };
            respond(stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{close}\r\nx")) && !says_so
        });
        for report in reports(&load(address, |http| http.keep_alive = false)) {
            assert!(report.is_success(), "{report:?}");
            assert_eq!((report.requests, report.connections_left), (accepted.swap(0, Ordering::SeqCst), 5));
        }
    }
}

#[test]
fn wrong_status_length_and_bytes_are_found_each_and_cost_no_connection() {
    let wrong = Arc::new([const { AtomicU64::new(0) }; 3]);
    let counters = Arc::clone(&wrong);
    let address = http_server(move |stream, _, number| {
        let (kind, text) = match number % 10 {
            3 => (0, "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".to_owned()),
            6 => (1, with_length("hell")),
            9 => (2, with_length("hallo")),
            _ => return respond(stream, &with_length("hello")),
        };
        counters[kind].fetch_add(1, Ordering::SeqCst);
        respond(stream, &text)
    });
    let kinds = [ErrorKind::WrongStatus, ErrorKind::WrongLength, ErrorKind::WrongBytes];
    for report in reports(&load(address, |_| {})) {
        let made = [0, 1, 2].map(|kind: usize| wrong[kind].swap(0, Ordering::SeqCst));
        assert_eq!(kinds.map(|kind| report.errors.count(kind)), made, "{report:?}");
        assert_eq!((report.errors.total(), report.connections_left), (made.iter().sum(), 5));
    }
}

#[test]
fn fields_that_are_asked_for_are_in_every_request() {
    let fields = [("Accept", "text/plain"), ("X-Token", "let: me in")];
    let address = server(move |mut stream| {
        let mut lines = BufReader::new(stream.try_clone()?).lines().map_while(Result::ok);
        loop {
            let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            if head.is_empty() {
                return Ok(());
            }
            let has = |(name, value)| head.contains(&format!("{name}: {value}"));
            let body = if fields.into_iter().all(has) { "all" } else { "too few" };
            stream.write_all(with_length(body).as_bytes())?;
        }
    });
    for pipeline in [1, 4] {
        for count in [0, 1, 2] {
            let load = load(address, |http| {
                let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
                http.headers = fields[..count].iter().map(owned).collect();
                http.pipeline_depth = pipeline;
                http.expected_body = Some(b"all"[..].into());
            });
            for report in reports(&load) {
                let wrong = report.errors.count(ErrorKind::WrongLength);
                let some = (report.requests > 0, wrong > 0, report.errors.total() == wrong);
                assert_eq!(some, (count == 2, count < 2, true), "{report:?}");
            }
        }
    }
}

#[test]
fn what_is_expected_may_be_named() {
    let address =
        http_server(|stream, _, _| respond(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!"));
    let expect = |status: &[u16], body: &'static [u8]| {
        load(address, |http| {
            http.expected_status = status.to_vec();
            http.expected_body = Some(body.into());
        })
    };
    for status in [&[404, 200][..], &[]] {
        assert!(reports(&expect(status, b"no!")).all(|report| report.is_success()));
        for (body, kind) in [(&b"no?"[..], ErrorKind::WrongBytes), (b"no", ErrorKind::WrongLength)] {
            for report in reports(&expect(status, body)) {
                assert_eq!(
                    (report.requests, report.errors.total()),
                    (0, report.errors.count(kind)),
                    "{report:?}"
                );
                assert!(report.errors.total() >= 5);
            }
        }
    }
}

#[test]
fn fault_44_what_is_no_response_costs_the_connection() {
    for (text, kind) in [
        ("SSH-2.0-OpenSSH_9.6\r\n", ErrorKind::Malformed),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", ErrorKind::Malformed),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello", ErrorKind::Malformed),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, world", ErrorKind::ExcessData),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", ErrorKind::TruncatedReply),
        ("HTTP/1.1 200 OK\r\nContent-Le", ErrorKind::TruncatedReply),
        ("", ErrorKind::ClosedEarly),
    ] {
        let address = http_server(move |stream, _, _| {
            respond(stream, text);
            false
        });
        for report in reports(&load(address, |_| {})) {
            assert_eq!((report.errors.count(kind), report.errors.total()), (5, 5), "{text:?}: {report:?}");
            assert_eq!((report.requests, report.connections_left), (0, 0));
        }
    }
}

#[test]
fn fault_44_resets_cost_every_request_in_flight() {
    let address = http_server(|stream, _, number| {
        if number == 3 {
            reset(stream);
        }
        number < 3 && respond(stream, &with_length("x"))
    });
    let load = LoadConfig { duration: Duration::from_secs(600), ..load(address, |_| {}) };
    for report in reports(&load) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::Reset)), (15, 5), "{report:?}");
    }
}
