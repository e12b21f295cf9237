//! HTTP loads against servers with known behaviour, correct and faulty, on every driver.

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anello::net::TcpStream as SimStream;
use anello::time::{Instant, sleep};
use anello_load::{Arrivals, ErrorKind, HttpLoad, Knee, LoadConfig, Mode, Protocol, Sweep};
use anello_test::tcp_server;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::serialization::Deserializer;

use crate::common::virtual_time::{self, for_each_simulated_kernel};
use crate::common::{reports, reset};

/// Starts a server that reads request heads. `respond` is called with the path of each request and its number on the
/// connection, and returns whether to keep the connection open.
fn http_server(respond: impl Fn(&mut TcpStream, &str, u64) -> bool + Send + Sync + 'static) -> SocketAddr {
    tcp_server(move |mut stream| {
        stream.set_nodelay(true)?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        for number in 0.. {
            let Some(line) = lines.next().transpose()? else { return Ok(()) };
            let mut has_host = false;
            loop {
                let Some(field) = lines.next().transpose()? else { return Ok(()) };
                has_host |= field == "Host: test";
                if field.is_empty() {
                    break;
                }
            }
            let path = line.strip_prefix("GET ").and_then(|rest| rest.strip_suffix(" HTTP/1.1"));
            assert!(has_host, "every request has a Host field");
            if !respond(&mut stream, path.expect("a GET request"), number) {
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

/// Returns a short load run with verification enabled.
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
fn supports_all_framings_and_multiple_paths() {
    let address = http_server(|stream, path, number| match path {
        "/length" => respond(stream, &with_length("hello")),
        // The response is split at varying positions, to cover all positions in the head and the chunks.
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
            assert_eq!((report.connections_open_at_end, report.connections_reopened), (5, 0));
        }
    }
}

#[test]
fn request_bodies_are_sent_completely() {
    for (method, body_bytes) in [("POST", 1024), ("PUT", 100_000), ("POST", 0), ("DELETE", 0)] {
        let address = tcp_server(move |mut stream: TcpStream| {
            let mut reader = BufReader::new(stream.try_clone()?);
            loop {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if reader.read_line(&mut head)? == 0 {
                        return Ok(());
                    }
                }
                let mut body = vec![0; body_bytes];
                reader.read_exact(&mut body)?;
                assert!(head.starts_with(&format!("{method} / HTTP/1.1\r\nHost: test\r\n")), "{head}");
                let length = format!("Content-Length: {body_bytes}\r\n");
                assert_eq!(head.contains(&length), method != "DELETE", "{head}");
                assert!(body.iter().all(|&byte| byte == b'x'));
                if !respond(&mut stream, &with_length("done")) {
                    return Ok(());
                }
            }
        });
        for pipeline_depth in [1, 4] {
            let load = load(address, |http| {
                http.method = method.to_owned();
                http.body = vec![b'x'; body_bytes].into();
                http.pipeline_depth = pipeline_depth;
            });
            for report in reports(&load) {
                assert!(report.is_success() && report.connections_open_at_end == 5, "{report:?}");
            }
        }
    }
}

#[test]
fn separate_interim_response_is_skipped() {
    // Other connections receive their responses during the pause.
    let address = http_server(|stream, _, _| {
        let interim = respond(stream, "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n");
        thread::sleep(Duration::from_millis(3));
        interim && respond(stream, &with_length("hello"))
    });
    for report in reports(&load(address, |_| {})) {
        assert!(report.is_success() && report.connections_open_at_end == 5, "{report:?}");
    }
}

#[test]
fn announced_close_between_requests_reconnects_without_error() {
    let served = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&served);
    let address = http_server(move |stream, path, number| {
        counter.fetch_add(1, Ordering::SeqCst);
        match path {
            // Announces the close in the third response.
            "/announced" if number == 2 => {
                respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
                false
            }
            "/announced" => respond(stream, &with_length("hello")),
            // The response ends at EOF.
            _ => {
                respond(stream, "HTTP/1.1 200 OK\r\n\r\nhello");
                false
            }
        }
    });
    for path in ["/announced", "/until-eof"] {
        for report in reports(&load(address, |http| http.paths = vec![path.to_owned()])) {
            assert!(report.is_success(), "{report:?}");
            assert_eq!(
                (report.requests, report.connections_open_at_end),
                (served.swap(0, Ordering::SeqCst), 5)
            );
            assert!(report.requests < 15 || report.connections_reopened > 0, "{report:?}");
        }
    }
}

#[test]
fn unannounced_close_between_requests_reconnects() {
    let served = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&served);
    let address = http_server(move |stream, _, number| {
        counter.fetch_add(1, Ordering::SeqCst);
        respond(stream, &with_length("hello"));
        if number == 2 {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // Read any request in flight, because closing the socket with unread data would send a reset.
            std::io::copy(stream, &mut std::io::sink()).ok();
        }
        number < 2
    });
    let open = Mode::Open { per_second: 1000, arrivals: Arrivals::Constant, seed: 1 };
    for mode in [Mode::Closed { think_time: Duration::ZERO }, open] {
        let load = LoadConfig { mode, duration: Duration::from_millis(100), ..load(address, |_| {}) };
        for report in reports(&load) {
            assert!(report.is_success() && report.connections_open_at_end == 5, "{report:?}");
            assert_eq!(report.requests, served.swap(0, Ordering::SeqCst));
            assert!(report.requests <= 15 || report.connections_reopened > 0, "{report:?}");
            assert!(report.offered.is_none_or(|offered| offered == report.requests), "{report:?}");
        }
    }
}

/// Answers the first request on each connection, and closes the connection instead of answering the second one.
async fn answer_first(mut stream: SimStream, delay: Duration, closed: Rc<Cell<u64>>) -> io::Result<()> {
    virtual_time::read_head(&mut stream).await?;
    stream.write_all(with_length("hello").as_bytes()).await?;
    virtual_time::read_head(&mut stream).await?;
    closed.update(|count| count + 1);
    sleep(delay).await;
    Ok(())
}

#[test]
fn late_close_after_request_counts_as_closed_early() {
    for_each_simulated_kernel(async || {
        let address =
            virtual_time::server(|stream| answer_first(stream, Duration::from_millis(1500), Rc::default()));
        let load = LoadConfig { duration: Duration::from_secs(1), ..load(address, |_| {}) };
        let (slice, open) = virtual_time::run(&load).await;
        let errors = &slice.interval.counts.errors;
        assert_eq!((slice.interval.requests, errors.count(ErrorKind::ClosedEarly)), (5, 5), "{errors:?}");
        assert_eq!((errors.total(), open), (5, 0), "{errors:?}");
    });
}

#[test]
fn latency_of_resent_request_starts_at_first_send() {
    for_each_simulated_kernel(async || {
        // The second request on each connection is answered on the next one, which is opened after 10 ms.
        let closed = Rc::new(Cell::new(0));
        let server_closed = Rc::clone(&closed);
        let address = virtual_time::server(move |stream| {
            answer_first(stream, Duration::from_millis(200), Rc::clone(&server_closed))
        });
        let load_config =
            LoadConfig { connections: 1, duration: Duration::from_millis(500), ..load(address, |_| {}) };
        let (slice, _) = virtual_time::run(&load_config).await;
        let interval = &slice.interval;
        assert_eq!((interval.counts.errors.total(), closed.get()), (0, 3), "{:?}", interval.counts.errors);
        assert_eq!(interval.requests, closed.get() + 1, "requests sent before the end are answered");
        let latency = interval.quantiles().unwrap();
        assert!((200_000_000..220_000_000).contains(&latency.max_ns), "{latency:?}");
    });
    for_each_simulated_kernel(async || {
        // The server answers only the first request on each connection, not the requests pipelined after it.
        let address = virtual_time::server(async |mut stream: SimStream| {
            virtual_time::read_head(&mut stream).await?;
            sleep(Duration::from_millis(50)).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx").await?;
            stream.shutdown().await?;
            while stream.recv().await?.is_some() {}
            Ok(())
        });
        let pipelined = load(address, |http| http.pipeline_depth = 4);
        let load_config = LoadConfig { connections: 1, duration: Duration::from_millis(400), ..pipelined };
        let (slice, _) = virtual_time::run(&load_config).await;
        let interval = &slice.interval;
        assert!(interval.counts.errors.is_empty() && interval.requests >= 4, "{:?}", interval.counts);
        // The fourth request is answered on the fourth connection.
        let latency = interval.quantiles().unwrap();
        assert!((200_000_000..260_000_000).contains(&latency.max_ns), "{latency:?}");
    });
}

#[test]
fn load_generator_without_replies_is_not_bottleneck() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closing = http_server(|_, _, _| false);
    for address in [unused, closing] {
        for report in reports(&load(address, |_| {})) {
            assert!(report.requests == 0 && !report.load_was_bottleneck, "{report:?}");
        }
    }
}

#[test]
fn immediate_close_delays_reconnects() {
    for_each_simulated_kernel(async || {
        let (origin, accepted) = (Instant::now(), Rc::new(RefCell::new(Vec::new())));
        let server_accepted = Rc::clone(&accepted);
        let address = virtual_time::server(move |stream| {
            server_accepted.borrow_mut().push(origin.elapsed().as_millis());
            drop(stream);
            ready(Ok(()))
        });
        let load = LoadConfig {
            connections: 2,
            // The second connection has no scheduled request during this load run.
            mode: Mode::Open { per_second: 1, arrivals: Arrivals::Constant, seed: 1 },
            duration: Duration::from_millis(300),
            ..load(address, |_| {})
        };
        let (slice, _) = virtual_time::run(&load).await;
        assert_eq!((slice.interval.requests, slice.interval.counts.offered), (0, Some(1)));
        // The load generator reconnects after 10 ms, 20 ms, 40 ms and so on.
        assert_eq!(*accepted.borrow(), [0, 0, 10, 30, 70, 150]);
    });
}

/// Returns the number of values in a histogram of a report.
fn value_count(histogram: &str) -> u64 {
    let bytes = BASE64.decode(histogram).unwrap();
    Deserializer::new().deserialize::<u64, _>(&mut &bytes[..]).unwrap().len()
}

#[test]
fn slow_close_does_not_count_as_schedule_error() {
    let address = http_server(|stream, _, _| {
        respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx");
        thread::sleep(Duration::from_millis(100));
        false
    });
    let load = LoadConfig {
        connections: 1,
        mode: Mode::Open { per_second: 100, arrivals: Arrivals::Constant, seed: 1 },
        duration: Duration::from_millis(40),
        drain_timeout: Duration::from_secs(60),
        ..load(address, |http| http.keep_alive = false)
    };
    for report in reports(&load) {
        assert!(report.is_success() && report.requests == 4, "{report:?}");
        // Only the first request finds its connection idle. The others are due while a close is pending, because four
        // intervals are shorter than the pause before a close.
        let schedule_error = report.histograms.as_ref().unwrap().schedule_error.as_ref().unwrap();
        assert_eq!(value_count(schedule_error), 1, "{report:?}");
    }
}

#[test]
fn sweep_without_keep_alive_completes_all_steps() {
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
        knee: Knee { min_answered_percent: 0, max_latency_factor: u32::MAX },
    };
    let load = LoadConfig {
        mode: Mode::Sweep(sweep),
        duration: Duration::from_millis(100),
        drain_timeout: Duration::from_secs(60),
        ..load(address, |http| http.keep_alive = false)
    };
    for report in reports(&load) {
        let offered: Vec<_> = report.steps.iter().map(|step| step.total.counts.offered).collect();
        assert_eq!(offered, [10, 20, 30].map(Some), "{report:?}");
        assert!(report.is_success() && report.knee.is_none() && report.requests == 60, "{report:?}");
    }
}

#[test]
fn pipelined_requests_after_announced_close_are_resent() {
    let address = http_server(|stream, _, number| {
        let close = if number == 5 { "Connection: close\r\n" } else { "" };
        respond(stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{close}\r\nx"));
        if number == 5 {
            // Read the remaining requests, so that a reset does not discard the response.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            std::io::copy(stream, &mut std::io::sink()).ok();
        }
        number < 5
    });
    for report in reports(&load(address, |http| http.pipeline_depth = 4)) {
        assert!(report.is_success() && report.connections_open_at_end == 5, "{report:?}");
    }
}

#[test]
fn disabled_keep_alive_opens_connection_per_request() {
    let accepted = Arc::new(AtomicU64::new(0));
    for announces_close in [true, false] {
        let counter = Arc::clone(&accepted);
        let address = http_server(move |stream, _, number| {
            counter.fetch_add(1, Ordering::SeqCst);
            assert_eq!(number, 0, "one request per connection");
            let close = if announces_close { "Connection: close\r\n" } else { "" };
            respond(stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{close}\r\nx"))
                && !announces_close
        });
        for report in reports(&load(address, |http| http.keep_alive = false)) {
            assert!(report.is_success(), "{report:?}");
            assert_eq!(
                (report.requests, report.connections_open_at_end),
                (accepted.swap(0, Ordering::SeqCst), 5)
            );
        }
    }
}

#[test]
fn wrong_status_length_and_bytes_keep_connection_open() {
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
        let expected = [0, 1, 2].map(|kind: usize| wrong[kind].swap(0, Ordering::SeqCst));
        assert_eq!(kinds.map(|kind| report.errors.count(kind)), expected, "{report:?}");
        assert_eq!((report.errors.total(), report.connections_open_at_end), (expected.iter().sum(), 5));
    }
}

#[test]
fn configured_headers_are_sent_in_every_request() {
    let fields = [("Accept", "text/plain"), ("X-Token", "let: me in")];
    let address = tcp_server(move |mut stream| {
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
                let actual = (report.requests > 0, wrong > 0, report.errors.total() == wrong);
                assert_eq!(actual, (count == 2, count < 2, true), "{report:?}");
            }
        }
    }
}

#[test]
fn expected_status_and_body_are_configurable() {
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
fn fault_44_invalid_response_closes_connection() {
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
            assert_eq!((report.requests, report.connections_open_at_end), (0, 0));
        }
    }
}

#[test]
fn fault_44_reset_within_response_fails_request() {
    let address = http_server(|stream, _, number| {
        if number < 3 {
            return respond(stream, &with_length("x"));
        }
        respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe");
        reset(stream);
        false
    });
    let load = LoadConfig { duration: Duration::from_secs(600), ..load(address, |_| {}) };
    for report in reports(&load) {
        assert_eq!((report.requests, report.errors.count(ErrorKind::Reset)), (15, 5), "{report:?}");
        assert!(report.ended_early(), "{report:?}");
    }
}

#[test]
fn close_or_reset_after_each_response_reopens_connection() {
    for (resets, mode, pipeline_depth) in [
        (false, Mode::Closed { think_time: Duration::ZERO }, 1),
        (true, Mode::Closed { think_time: Duration::ZERO }, 1),
        (true, Mode::Closed { think_time: Duration::ZERO }, 4),
        (true, Mode::Open { per_second: 500, arrivals: Arrivals::Constant, seed: 1 }, 1),
    ] {
        let address = http_server(move |stream, _, _| {
            respond(stream, &with_length("hello"));
            if resets {
                reset(stream);
            }
            false
        });
        let load = load(address, |http| http.pipeline_depth = pipeline_depth);
        let load = LoadConfig { mode, requests: Some(100), duration: Duration::from_secs(600), ..load };
        for report in reports(&load) {
            assert_eq!((report.requests, report.errors.total()), (100, 0), "{resets}: {report:?}");
            assert!(report.connections_reopened >= 95 && !report.ended_early(), "{resets}: {report:?}");
        }
    }
}

#[test]
fn head_requests_have_no_bodies_in_responses() {
    let respond_to = |stream: &mut TcpStream| {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        while let Some(line) = lines.next().transpose()? {
            if line.is_empty() {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")?;
            } else {
                assert!(line.starts_with("Host: ") || line == "HEAD / HTTP/1.1", "{line}");
            }
        }
        Ok(())
    };
    let address = tcp_server(move |mut stream| respond_to(&mut stream));
    let mut load = load(address, |http| http.method = "HEAD".to_owned());
    load.requests = Some(50);
    load.duration = Duration::from_secs(600);
    for report in reports(&load) {
        assert_eq!((report.requests, report.errors.total()), (50, 0), "{report:?}");
    }
}
