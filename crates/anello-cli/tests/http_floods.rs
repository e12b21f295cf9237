//! `anello http` with more clients than any that mean well: what they cost it, and that others are served meanwhile.
//!
//! One test after the other: descriptors and ports belong to all.

mod served;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

use served::tls::{identity, tls};
use served::{BODY, Served, TIMEOUT, drivers, folder, is_answered, request, until};

static SERIAL: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets this process, and servers that it starts, open so many files, or as many as it may; how many that is, but for
/// those that are in use anyway. `None` if that makes no flood.
fn open_files(wanted: usize) -> Option<usize> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: maximum, maximum };
    setrlimit(Resource::Nofile, limit).expect("a limit that is no higher");
    let may = maximum.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let count = wanted.min(may.saturating_sub(1000));
    if count < 500 {
        eprintln!("skipped: a process may have only {may} open files here (ulimit -Hn)");
        return None;
    }
    Some(count)
}

/// A client from one of several addresses, as each has but so many ports.
fn connect(address: &str, number: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let source = Ipv4Addr::new(127, 0, 0, 2 + (number % 8) as u8);
    socket.bind(&SocketAddr::from((source, 0)).into()).expect("a port");
    let address: SocketAddr = address.parse().expect("an address");
    socket.connect(&address.into()).expect("connects");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    socket.into()
}

/// Reads until these bytes have come, and no further.
fn read_until(mut stream: impl Read, end: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    while !found.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        found.push(byte[0]);
    }
    found
}

impl Served {
    fn resident_bytes(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).expect("its descriptors").count()
    }

    /// Its memory, once it grows no more.
    fn settled_resident_bytes(&self) -> usize {
        let mut resident = self.resident_bytes();
        loop {
            thread::sleep(Duration::from_millis(200));
            let still = self.resident_bytes();
            if still <= resident {
                return still;
            }
            resident = still;
        }
    }

    /// A client that means well.
    fn still_serves(&self) {
        let mut client = served::connect(self.ready_value("addr"));
        client.write_all(request(false).as_bytes()).expect("sends");
        is_answered(client);
    }
}

/// Whether the other side has ended a connection, of which everything is read that is there.
fn is_ended(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a flag");
    let ended = loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
            Err(_) => break true,
        }
    };
    stream.set_nonblocking(false).expect("a flag");
    ended
}

#[test]
fn fault_18_heads_of_two_thousand_clients_that_drip() {
    let _alone = alone();
    let Some(count) = open_files(2000) else { return };
    for driver in drivers() {
        let folder = folder();
        let flags = ["--addr", "127.0.0.1:0", "--driver", driver, "--header-timeout", "3s"];
        let server = Served::start(folder.path(), &flags);
        let base = server.descriptors();
        let address = server.ready_value("addr").to_owned();
        let mut dripping: Vec<_> = (0..count).map(|number| connect(&address, number)).collect();
        // Where the machine is slow, the first have been told to go by then.
        dripping.retain_mut(|stream| stream.write_all(b"GET / HTTP/1.1\r\nSlow: ").is_ok());
        until(|| {
            dripping.retain_mut(|stream| !is_ended(stream) && stream.write_all(b"x").is_ok());
            server.still_serves();
            thread::sleep(Duration::from_millis(200));
            dripping.is_empty()
        });
        until(|| server.descriptors() <= base);
        server.end();
    }
}

const DOWNLOADS: usize = 500;

/// What a client that reads nothing may cost: the send queue, what is read for it, and as much again.
const MAX_BYTES_PER_DOWNLOAD: usize = 512 << 10;

/// Asks with each, and reads of each answer what it needs to have begun; what that has cost the server for each.
fn unread<S: Read + Write>(server: &Served, connect: impl Fn(usize) -> S) -> (Vec<S>, usize) {
    let before = server.resident_bytes();
    let clients: Vec<_> = (0..DOWNLOADS)
        .map(|number| {
            let mut client = connect(number);
            client.write_all(b"GET /sparse.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
            let head = read_until(&mut client, b"\r\n\r\n");
            assert!(head.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&head));
            client
        })
        .collect();
    let each = server.settled_resident_bytes().saturating_sub(before) / DOWNLOADS;
    (clients, each)
}

#[test]
fn fault_20_five_hundred_downloads_that_nobody_reads() {
    let _alone = alone();
    if open_files(DOWNLOADS).is_none() {
        return;
    }
    for driver in drivers() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        File::create(at("sparse.bin")).and_then(|file| file.set_len(100 << 20)).expect("a file");
        let [certificate, key] = [at(".certificate.pem"), at(".key.pem")];
        let client = identity(&certificate, &key);
        for secured in [false, true] {
            let mut flags = vec!["--addr", "127.0.0.1:0", "--driver", driver];
            if secured {
                let [certificate, key] = [&certificate, &key].map(|path| path.to_str().expect("text"));
                flags.extend(["--tls-cert", certificate, "--tls-key", key]);
            }
            let server = Served::start(folder.path(), &flags);
            let address = server.ready_value("addr").to_owned();
            let each = if secured {
                let (clients, each) = unread(&server, |_| {
                    let stream = tls(&client, &address);
                    SockRef::from(&stream.sock).set_recv_buffer_size(64 << 10).expect("a size");
                    stream
                });
                drop(clients);
                each
            } else {
                let (clients, each) = unread(&server, |number| {
                    let stream = connect(&address, number);
                    SockRef::from(&stream).set_recv_buffer_size(64 << 10).expect("a size");
                    stream
                });
                server.still_serves();
                drop(clients);
                each
            };
            eprintln!("{driver}, TLS {secured}: {each} bytes for each download that nobody reads");
            assert!(each <= MAX_BYTES_PER_DOWNLOAD, "{driver}, TLS {secured}: {each} bytes");
            server.end();
        }
    }
}

/// What an idle connection may cost the server.
const MAX_BYTES_PER_IDLE_CLIENT: usize = 4096;

#[test]
fn fault_21_a_flood_of_idle_clients() {
    let _alone = alone();
    let Some(count) = open_files(15_000) else { return };
    let most = (count - 100).to_string();
    eprintln!("{count} idle clients, as the limit of open files allows");
    for driver in drivers() {
        let folder = folder();
        let common = ["--addr", "127.0.0.1:0", "--driver", driver];
        // Nobody is told to go while memory and the cap are looked at.
        let patient = ["--keep-alive-timeout", "1h", "--max-connections", &most];
        let server = Served::start(folder.path(), &[&common[..], &patient].concat());
        let address = server.ready_value("addr").to_owned();
        let asks = |number: usize| -> io::Result<(TcpStream, Vec<u8>)> {
            let mut client = connect(&address, number);
            client.write_all(request(true).as_bytes())?;
            let head = read_until(&client, b"\r\n\r\n");
            Ok((client, head))
        };
        let idle = |numbers: std::ops::Range<usize>| -> Vec<TcpStream> {
            numbers
                .map(|number| {
                    let (client, head) = asks(number).expect("an answer");
                    assert!(head.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&head));
                    read_until(&client, b"!");
                    client
                })
                .collect()
        };
        // What is made once is there.
        let mut clients = idle(0..100);
        let before = server.resident_bytes();
        clients.extend(idle(100..count - 100));
        let each = server.settled_resident_bytes().saturating_sub(before) / (count - 200);
        eprintln!("{driver}: {each} bytes for each idle client");
        assert!(each <= MAX_BYTES_PER_IDLE_CLIENT, "{driver}: {each} bytes for each idle client");
        for number in 0..100 {
            let (client, head) = asks(number).expect("a refusal");
            assert!(head.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&head));
            drop(client);
        }
        // They are clients all the same.
        for client in clients.iter_mut().step_by(500) {
            client.write_all(request(true).as_bytes()).expect("sends");
            read_until(client, b"!");
        }
        drop(clients);
        server.end();

        let brief = ["--keep-alive-timeout", "1s", "--header-timeout", "1s", "--max-connections", &most];
        let server = Served::start(folder.path(), &[&common[..], &brief].concat());
        let base = server.descriptors();
        let address = server.ready_value("addr");
        let clients: Vec<_> = (0..count - 100).map(|number| connect(address, number)).collect();
        until(|| clients.iter().all(is_ended));
        until(|| server.descriptors() <= base);
        server.still_serves();
        server.end();
    }
}

/// Refused clients that a worker waits for, so that they can read why.
const REFUSALS_PER_WORKER: usize = 64;

/// Connections that wait at a worker that does not accept ahead.
const TRANSFERS_PER_WORKER: usize = 16;

#[test]
fn fault_21_silent_clients_beyond_the_limit_hold_few_descriptors_and_no_place() {
    let _alone = alone();
    let Some(count) = open_files(2000) else { return };
    let (workers, limit) = (2, 3);
    for driver in drivers() {
        let folder = folder();
        let flags = ["--addr", "127.0.0.1:0", "--driver", driver, "--cores", "0,0", "--max-connections", "3"];
        let server = Served::start(folder.path(), &flags);
        let base = server.descriptors();
        let address = server.ready_value("addr").to_owned();
        let mut holders: Vec<_> = (0..limit).map(|number| connect(&address, number)).collect();
        for holder in &mut holders {
            holder.write_all(request(true).as_bytes()).expect("sends");
            read_until(holder, BODY.as_bytes());
        }
        // Those that are refused, for each worker one that is accepted and one that ends, and what other workers have accepted
        // for it.
        let bound = base + limit + workers * (REFUSALS_PER_WORKER + 2 + TRANSFERS_PER_WORKER);
        let mut most = 0;
        let silent: Vec<_> = (0..count)
            .map(|number| {
                let client = connect(&address, number);
                most = most.max(server.descriptors());
                client
            })
            .collect();
        let asks = || {
            let mut client = served::connect(&address);
            client.write_all(request(false).as_bytes()).expect("sends");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            answer[..12].to_owned()
        };
        for _ in 0..10 {
            assert_eq!(asks(), "HTTP/1.1 503", "{driver}");
            most = most.max(server.descriptors());
        }
        eprintln!("{driver}: {most} descriptors at most, {base} at rest, with {count} silent clients");
        assert!(most <= bound, "{driver}: {most} descriptors, {base} at rest");
        // All of the silent ones were refused, and have been told so.
        for client in silent.iter().step_by(100) {
            assert!(read_until(client, b"later\n").starts_with(b"HTTP/1.1 503 "), "{driver}");
        }
        // They wait on, and take no place.
        drop(holders);
        until(|| asks() == "HTTP/1.1 200");
        for _ in 0..100 {
            assert_eq!(asks(), "HTTP/1.1 200", "{driver}");
        }
        drop(silent);
        server.end();
    }
}

/// Clients that ask for a large file under TLS, and do not read it.
const STALLED: usize = 100;

/// Maximum memory of the server for each of them.
const MAX_STALLED_KIB: usize = 128;

#[test]
fn stalled_readers_of_a_large_file_under_tls_hold_little_memory() {
    let _alone = alone();
    let folder = folder();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let config = identity(&certificate, &key);
    let length = 64 << 20;
    File::create(folder.path().join("large")).and_then(|file| file.set_len(length)).expect("a file");
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().expect("text"));
    for driver in drivers() {
        let flags = ["--addr", "127.0.0.1:0", "--cores", "0", "--driver", driver];
        let tls_flags = ["--tls-cert", certificate, "--tls-key", key, "--send-timeout", "1h"];
        let server = Served::start(folder.path(), &[&flags[..], &tls_flags].concat());
        let address = server.ready_value("addr").to_owned();
        let mut clients: Vec<_> = (0..STALLED).map(|_| tls(&config, &address)).collect();
        for client in &mut clients {
            client.write_all(request(true).as_bytes()).expect("sends");
            client.read_exact(&mut [0]).expect("an answer");
        }
        let before = server.settled_resident_bytes();
        for client in &mut clients {
            client.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
        }
        // If the kernel takes more later, the test proves less, but does not fail.
        let last = server.settled_resident_bytes();
        let each = last.saturating_sub(before) / STALLED / 1024;
        eprintln!("{driver}: {each} KiB for each stalled client");
        assert!(each <= MAX_STALLED_KIB, "{driver}: {each} KiB");
        // What waited arrives.
        let mut reader = clients.swap_remove(0);
        let mut taken = vec![0; 1 << 16];
        let mut left = length as usize;
        while left > 0 {
            let count = reader.read(&mut taken).expect("the file");
            assert!(count > 0, "{driver}: {left} bytes are missing");
            left = left.saturating_sub(count);
        }
    }
}
