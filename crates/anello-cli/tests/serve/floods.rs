//! Tests for `anello http` during client floods: memory and descriptors per client, and service for other clients.
//!
//! `ANELLO_LONG` selects longer floods.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anello_test::{driver_flags, hang_timeout, on_each_driver_flag, short_or_long, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

use crate::common::anello;
use crate::served;
use crate::served::tls::{connect_tls, create_identity};
use crate::served::{BODY, Served, assert_ok_response, document_root, request};

/// Number of floods in this file. They share the descriptors of this process.
const FLOODS: usize = 5;

/// Raises the open-file limit of this process and of the servers that it starts. Returns the number of usable files, at
/// most `max_count`, or `None` if the limit is too low for a flood.
fn open_files(max_count: usize) -> Option<usize> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: maximum, maximum };
    setrlimit(Resource::Nofile, limit).expect("setrlimit");
    let allowed = maximum.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let count = max_count.min(allowed.saturating_sub(1000) / FLOODS);
    if count < max_count.min(500) {
        eprintln!("skipped: open-file limit {allowed} is too low (ulimit -Hn)");
        return None;
    }
    Some(count)
}

/// Connects from one of several source addresses, because each has a limited number of ports.
fn connect(address: &str, number: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("create socket");
    let source = Ipv4Addr::new(127, 0, 0, 2 + (number % 8) as u8);
    socket.bind(&SocketAddr::from((source, 0)).into()).expect("bind port");
    let address: SocketAddr = address.parse().expect("valid address");
    socket.connect(&address.into()).expect("connect");
    socket.set_read_timeout(Some(hang_timeout())).expect("set timeout");
    socket.into()
}

/// Reads byte by byte until the received bytes end with `end`.
fn read_until(mut stream: impl Read, end: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    while !received.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("read response");
        received.push(byte[0]);
    }
    received
}

impl Served {
    fn resident_bytes(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("read status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS field");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("integer") * 1024
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).expect("read fd directory").count()
    }

    /// Returns the resident memory once it stops growing.
    fn settled_resident_bytes(&self) -> usize {
        let mut resident = self.resident_bytes();
        loop {
            thread::sleep(Duration::from_millis(200));
            let current = self.resident_bytes();
            if current <= resident {
                return current;
            }
            resident = current;
        }
    }

    /// Checks that a well-behaved client is served.
    fn assert_serves(&self) {
        let mut client = served::connect(self.ready_value("addr"));
        client.write_all(request(false).as_bytes()).expect("send request");
        assert_ok_response(client);
    }
}

/// Reads all available bytes and returns `true` if the server has closed the connection.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("set nonblocking mode");
    let is_closed = loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
            Err(_) => break true,
        }
    };
    stream.set_nonblocking(false).expect("set nonblocking mode");
    is_closed
}

#[test]
fn huge_pages_are_disabled() {
    let document_root = document_root();
    let server = Served::start(document_root.path(), &["--addr", "127.0.0.1:0"]);
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("read status");
    assert!(!status.contains("THP_enabled:\t1"), "{status}");
    server.stop();
}

#[test]
fn fault_18_slow_request_heads_time_out() {
    let Some(count) = open_files(short_or_long(300, 2000)) else { return };
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let flags = ["--addr", "127.0.0.1:0", "--driver", driver, "--header-timeout", "2s"];
        let server = Served::start(document_root.path(), &flags);
        let base = server.descriptors();
        let address = server.ready_value("addr").to_owned();
        let mut dripping: Vec<_> = (0..count).map(|number| connect(&address, number)).collect();
        // On a slow machine, the first connections may already have been closed.
        dripping.retain_mut(|stream| stream.write_all(b"GET / HTTP/1.1\r\nSlow: ").is_ok());
        wait_until(|| {
            dripping.retain_mut(|stream| !is_closed(stream) && stream.write_all(b"x").is_ok());
            server.assert_serves();
            thread::sleep(Duration::from_millis(200));
            dripping.is_empty()
        });
        wait_until(|| server.descriptors() <= base);
        server.stop();
    });
}

/// Maximum memory per client that does not read the body: twice the total size of the send queue and the read-ahead.
const MAX_BYTES_PER_DOWNLOAD: usize = 512 << 10;

/// Opens connections that request a large file and read only the response head. Returns the clients and the server
/// memory per client.
fn open_unread_downloads<S: Read + Write>(
    server: &Served,
    count: usize,
    connect: impl Fn(usize) -> S,
) -> (Vec<S>, usize) {
    let before = server.resident_bytes();
    let clients: Vec<_> = (0..count)
        .map(|number| {
            let mut client = connect(number);
            client.write_all(b"GET /sparse.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("send request");
            let head = read_until(&mut client, b"\r\n\r\n");
            assert!(head.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&head));
            client
        })
        .collect();
    let per_client = server.settled_resident_bytes().saturating_sub(before) / count;
    (clients, per_client)
}

#[test]
fn fault_20_unread_downloads_use_bounded_memory() {
    let Some(count) = open_files(short_or_long(100, 500)) else { return };
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let at = |name: &str| document_root.path().join(name);
        File::create(at("sparse.bin")).and_then(|file| file.set_len(100 << 20)).expect("create file");
        let [certificate, key] = [at(".certificate.pem"), at(".key.pem")];
        let client = create_identity(&certificate, &key);
        for with_tls in [false, true] {
            let mut flags = vec!["--addr", "127.0.0.1:0", "--driver", driver];
            if with_tls {
                let [certificate, key] = [&certificate, &key].map(|path| path.to_str().expect("UTF-8"));
                flags.extend(["--tls-cert", certificate, "--tls-key", key]);
            }
            let server = Served::start(document_root.path(), &flags);
            let address = server.ready_value("addr").to_owned();
            let per_client = if with_tls {
                let (clients, per_client) = open_unread_downloads(&server, count, |_| {
                    let stream = connect_tls(&client, &address);
                    SockRef::from(&stream.sock)
                        .set_recv_buffer_size(64 << 10)
                        .expect("set receive buffer size");
                    stream
                });
                drop(clients);
                per_client
            } else {
                let (clients, per_client) = open_unread_downloads(&server, count, |number| {
                    let stream = connect(&address, number);
                    SockRef::from(&stream).set_recv_buffer_size(64 << 10).expect("set receive buffer size");
                    stream
                });
                server.assert_serves();
                drop(clients);
                per_client
            };
            eprintln!("{driver}, TLS {with_tls}: {per_client} bytes per unread download");
            assert!(per_client <= MAX_BYTES_PER_DOWNLOAD, "{driver}, TLS {with_tls}: {per_client} bytes");
            server.stop();
        }
    });
}

/// Maximum server memory per idle connection in a debug build, including what is allocated once. A release build needs a
/// tenth of it (`bench/connections`).
const MAX_BYTES_PER_IDLE_CLIENT: usize = 4096;

#[test]
fn fault_21_idle_clients_use_bounded_memory_and_time_out() {
    let Some(count) = open_files(short_or_long(1500, 15_000)) else { return };
    let max_connections = (count - 100).to_string();
    eprintln!("{count} idle clients, limited by the open-file limit");
    for driver in driver_flags() {
        let document_root = document_root();
        let common = ["--addr", "127.0.0.1:0", "--driver", driver];
        // Ensures that no connection times out while memory and the connection limit are being checked.
        let long_timeouts = ["--keep-alive-timeout", "1h", "--max-connections", &max_connections];
        let server = Served::start(document_root.path(), &[&common[..], &long_timeouts].concat());
        let address = server.ready_value("addr").to_owned();
        let send_request = |number: usize| -> io::Result<(TcpStream, Vec<u8>)> {
            let mut client = connect(&address, number);
            client.write_all(request(true).as_bytes())?;
            let head = read_until(&client, b"\r\n\r\n");
            Ok((client, head))
        };
        let idle = |numbers: std::ops::Range<usize>| -> Vec<TcpStream> {
            numbers
                .map(|number| {
                    let (client, head) = send_request(number).expect("read response");
                    assert!(head.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&head));
                    read_until(&client, b"!");
                    client
                })
                .collect()
        };
        // The first clients cause one-time allocations, which are not measured.
        let mut clients = idle(0..100);
        let before = server.resident_bytes();
        clients.extend(idle(100..count - 100));
        let per_client = server.settled_resident_bytes().saturating_sub(before) / (count - 200);
        eprintln!("{driver}: {per_client} bytes per idle client");
        assert!(per_client <= MAX_BYTES_PER_IDLE_CLIENT, "{driver}: {per_client} bytes per idle client");
        for number in 0..100 {
            let (client, head) = send_request(number).expect("read rejection");
            assert!(head.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&head));
            drop(client);
        }
        // The connections are still usable.
        for client in clients.iter_mut().step_by(500) {
            client.write_all(request(true).as_bytes()).expect("send request");
            read_until(client, b"!");
        }
        drop(clients);
        server.stop();

        let short_timeouts =
            ["--keep-alive-timeout", "1s", "--header-timeout", "1s", "--max-connections", &max_connections];
        let server = Served::start(document_root.path(), &[&common[..], &short_timeouts].concat());
        let base = server.descriptors();
        let address = server.ready_value("addr");
        let clients: Vec<_> = (0..count - 100).map(|number| connect(address, number)).collect();
        wait_until(|| clients.iter().all(is_closed));
        wait_until(|| server.descriptors() <= base);
        server.assert_serves();
        server.stop();
    }
}

/// Connections per worker that are kept open after a rejection, so that the client can read the response.
const REFUSALS_PER_WORKER: usize = 64;

/// Maximum number of transferred connections in the queue of a worker that does not accept connections in advance.
const TRANSFERS_PER_WORKER: usize = 16;

#[test]
fn fault_21_rejected_clients_hold_few_descriptors_and_no_slot() {
    let Some(count) = open_files(short_or_long(500, 2000)) else { return };
    let (workers, limit) = (2, 3);
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let flags = ["--addr", "127.0.0.1:0", "--driver", driver, "--cores", "0,0", "--max-connections", "3"];
        let server = Served::start(document_root.path(), &flags);
        let base = server.descriptors();
        let address = server.ready_value("addr").to_owned();
        let mut holders: Vec<_> = (0..limit).map(|number| connect(&address, number)).collect();
        for holder in &mut holders {
            holder.write_all(request(true).as_bytes()).expect("send request");
            read_until(holder, BODY.as_bytes());
        }
        // For each worker, the bound includes rejected connections, one connection being accepted, one being closed,
        // and the connections that other workers have accepted for it.
        let bound = base + limit + workers * (REFUSALS_PER_WORKER + 2 + TRANSFERS_PER_WORKER);
        let mut peak = 0;
        let silent: Vec<_> = (0..count)
            .map(|number| {
                let client = connect(&address, number);
                peak = peak.max(server.descriptors());
                client
            })
            .collect();
        let send_request = || {
            let mut client = served::connect(&address);
            client.write_all(request(false).as_bytes()).expect("send request");
            let mut response = String::new();
            client.read_to_string(&mut response).expect("read response");
            response[..12].to_owned()
        };
        for _ in 0..10 {
            assert_eq!(send_request(), "HTTP/1.1 503", "{driver}");
            peak = peak.max(server.descriptors());
        }
        eprintln!("{driver}: peak of {peak} descriptors, {base} when idle, with {count} silent clients");
        assert!(peak <= bound, "{driver}: {peak} descriptors, {base} when idle");
        // All silent clients have received a rejection.
        for client in silent.iter().step_by(100) {
            assert!(read_until(client, b"later\n").starts_with(b"HTTP/1.1 503 "), "{driver}");
        }
        // The silent clients stay connected but do not count towards the connection limit.
        drop(holders);
        wait_until(|| send_request() == "HTTP/1.1 200");
        for _ in 0..100 {
            assert_eq!(send_request(), "HTTP/1.1 200", "{driver}");
        }
        drop(silent);
        server.stop();
    });
}

/// Maximum server memory per stalled client, in KiB.
const MAX_STALLED_KIB: usize = 128;

#[test]
fn stalled_tls_readers_of_large_file_use_bounded_memory() {
    let document_root = document_root();
    let (certificate, key) = (document_root.path().join("cert.pem"), document_root.path().join("key.pem"));
    let config = create_identity(&certificate, &key);
    // More than the socket buffers.
    let length = 16 << 20;
    let Some(count) = open_files(short_or_long(30, 100)) else { return };
    File::create(document_root.path().join("large"))
        .and_then(|file| file.set_len(length))
        .expect("create file");
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().expect("UTF-8"));
    on_each_driver_flag(|driver| {
        let flags = ["--addr", "127.0.0.1:0", "--cores", "0", "--driver", driver];
        let tls_flags = ["--tls-cert", certificate, "--tls-key", key, "--send-timeout", "1h"];
        let server = Served::start(document_root.path(), &[&flags[..], &tls_flags].concat());
        let address = server.ready_value("addr").to_owned();
        let mut clients: Vec<_> = (0..count)
            .map(|_| {
                let stream = connect_tls(&config, &address);
                SockRef::from(&stream.sock).set_recv_buffer_size(64 << 10).expect("set receive buffer size");
                stream
            })
            .collect();
        for client in &mut clients {
            client.write_all(request(true).as_bytes()).expect("send request");
            client.read_exact(&mut [0]).expect("read response");
        }
        let before = server.settled_resident_bytes();
        for client in &mut clients {
            client.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").expect("send request");
        }
        // If a later kernel buffers more, the test is less strict but does not fail.
        let last = server.settled_resident_bytes();
        let per_client = last.saturating_sub(before) / count / 1024;
        eprintln!("{driver}: {per_client} KiB per stalled client");
        assert!(per_client <= MAX_STALLED_KIB, "{driver}: {per_client} KiB");
        // The buffered response is delivered.
        let mut reader = clients.swap_remove(0);
        let mut buffer = vec![0; 1 << 16];
        let mut remaining = length as usize;
        while remaining > 0 {
            let count = reader.read(&mut buffer).expect("read file");
            assert!(count > 0, "{driver}: {remaining} bytes are missing");
            remaining = remaining.saturating_sub(count);
        }
    });
}

/// Returns a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Opens HTTP/2 connections with 100 requests each, for which the client accepts `window` bytes.
fn open_unread_streams(address: &str, connections: usize, window: u32, path: &str) -> Vec<TcpStream> {
    // The initial window, and a large one for the connection.
    let settings = frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    let mut bytes =
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &frame(8, 0, 0, &[0x7f, 0, 0, 0])].concat();
    // GET, http, the path, the authority h, and accept-encoding: br.
    let head = [&[0x82, 0x86, 0x04, path.len() as u8], path.as_bytes(), b"\x41\x01h\x0f\x01\x02br"].concat();
    (0..100).for_each(|index| bytes.extend(frame(1, 5, 1 + 2 * index, &head)));
    let clients = (0..connections).map(|number| {
        let mut client = connect(address, number);
        SockRef::from(&client).set_recv_buffer_size(4096).expect("set receive buffer size");
        client.write_all(&bytes).expect("send requests");
        client
    });
    clients.collect()
}

/// Memory of a server after a burst of requests, beyond that before it.
const MAX_RETAINED_BYTES: usize = 24 << 20;

#[test]
fn fault_20_unread_http2_requests_return_their_memory() {
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let path = document_root.path().join("sparse.bin");
        File::create(path).and_then(|file| file.set_len(100 << 20)).expect("create file");
        let flags = ["--addr", "127.0.0.1:0", "--driver", driver, "--http2", "cleartext", "--cores", "0"];
        // The server does not evict clients on a busy machine.
        let timeout_flags = ["--send-timeout", "1h", "--min-send-rate", "0"];
        let server = Served::start(document_root.path(), &[&flags[..], &timeout_flags].concat());
        let address = server.ready_value("addr").to_owned();
        server.assert_serves();
        let before = server.settled_resident_bytes();
        let clients = open_unread_streams(&address, 10, 1 << 20, "/sparse.bin");
        // Each stream queues 64 KiB.
        wait_until(|| server.resident_bytes() >= before + 2 * MAX_RETAINED_BYTES);
        drop(clients);
        wait_until(|| server.resident_bytes() <= before + MAX_RETAINED_BYTES);
        server.assert_serves();
        server.stop();
    });
}

#[test]
fn fault_20_encoders_of_unread_responses_use_bounded_memory() {
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let text: String = (0..200_000).map(|line| format!("line {line}\n")).collect();
        fs::write(document_root.path().join("large.txt"), text).expect("write file");
        let flags = ["--addr", "127.0.0.1:0", "--driver", driver, "--http2", "cleartext", "--cores", "0"];
        let compress_flags =
            ["--compress", "--compress-memory", "20MiB", "--send-timeout", "1h", "--min-send-rate", "0"];
        let server = Served::start(document_root.path(), &[&flags[..], &compress_flags].concat());
        let address = server.ready_value("addr").to_owned();
        server.assert_serves();
        let before = server.settled_resident_bytes();
        let get = || {
            let stream = served::connect(&address);
            let response = served::send_request(stream, "GET /large.txt", "Accept-Encoding: br\r\n");
            let head_end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("head");
            String::from_utf8_lossy(&response[..head_end]).contains("\r\nContent-Encoding: br")
        };
        assert!(get(), "compressed");
        let clients = open_unread_streams(&address, 2, 1, "/large.txt");
        // The other responses are sent uncompressed.
        wait_until(|| !get());
        let grown = server.settled_resident_bytes().saturating_sub(before);
        eprintln!("{driver}: {} MiB for 200 unread responses", grown >> 20);
        // Streams without an encoder hold up to 4 KiB of the file.
        assert!(grown <= 32 << 20, "{driver}: {grown} bytes");
        drop(clients);
        wait_until(&get);
        server.stop();
    });
}

/// The crate `h2` warns of each acknowledgement of a PING that it has not sent.
#[test]
fn warnings_of_other_crates_are_suppressed_if_a_client_repeats_them() {
    const REPEATED: usize = 1000;
    on_each_driver_flag(|driver| {
        let document_root = document_root();
        let log = document_root.path().join("log");
        let mut command = anello(&["http"]);
        command.arg(document_root.path()).args(["--addr", "127.0.0.1:0", "--http2", "cleartext"]);
        command.args(["--cores", "0", "--driver", driver]).stderr(File::create(&log).expect("create file"));
        let server = Served::spawn(command);
        let mut client = served::connect(server.address());
        let acknowledgement = frame(6, 1, 0, b"not sent");
        let frames =
            [&frame(4, 0, 0, b"")[..], &acknowledgement.repeat(REPEATED), &frame(6, 0, 0, b"the last")];
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        client.write_all(&[preface, &frames.concat()[..]].concat()).expect("send frames");
        // The server has read all of them.
        read_until(&client, b"the last");
        server.stop();
        let log = fs::read_to_string(&log).expect("read log");
        let count = log.lines().filter(|line| line.contains("PING ack")).count();
        // Ten in ten seconds, and more only on a very slow machine.
        assert!((10..REPEATED / 10).contains(&count), "{driver}: {count} lines\n{log}");
    });
}
