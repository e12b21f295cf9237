//! One test suite for all models and all io_uring variants. Each server runs in its own process. `uring` is skipped
//! with a message if io_uring is unavailable.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anello_bare::{Model, Options, TaskWork, UringOptions, check, listen_for, run};
use anello_test::{Rng, hang_timeout, pattern, wait_until};
use clap::{Parser, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

/// Server under test: a model, or `uring` with a combination of options.
#[derive(Clone, Debug)]
struct Subject {
    name: String,
    model: Model,
    arguments: Vec<String>,
}

impl Subject {
    fn new(model: Model, name: &str, arguments: &[&str]) -> Subject {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Subject { name: name.to_owned(), model, arguments }
    }

    fn model(model: Model) -> Subject {
        let name = model.to_string();
        Subject::new(model, &name, &[&name])
    }

    fn with(name: &str, arguments: &[&str]) -> Subject {
        Subject::new(Model::Uring, name, arguments)
    }

    /// Number of connections needed for each ring of the server to have at least one.
    fn idle_connections(&self) -> usize {
        if self.has_argument("--rings") { 16 } else { 1 }
    }

    fn has_argument(&self, name: &str) -> bool {
        self.arguments.iter().any(|argument| argument == name)
    }

    /// Returns `true` if the server has a polling thread, which adds to the CPU time of the process even while the
    /// server is idle.
    fn uses_sqpoll(&self) -> bool {
        self.has_argument("--sqpoll")
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

/// Environment variable with the arguments of the server process.
const ARGUMENTS: &str = "ANELLO_BARE_ARGUMENTS";

#[derive(Parser)]
struct Arguments {
    model: Model,
    #[arg(long)]
    configurable: bool,
    #[command(flatten)]
    uring: UringOptions,
}

/// Runs the server. The test program starts itself as a child process that executes only this test.
#[test]
fn server_process() {
    let Ok(line) = env::var(ARGUMENTS) else { return };
    let Arguments { model, configurable, mut uring } =
        Arguments::parse_from(["bare"].into_iter().chain(line.split_whitespace()));
    let mut options = Options::default();
    if model != Model::Uring {
        options.spin = std::mem::take(&mut uring.spin);
    }
    options.uring = (configurable || uring != UringOptions::default()).then_some(uring);
    check(model, &options).expect("the model is available");
    let listeners = listen_for("127.0.0.1:0".parse().unwrap(), &options).expect("listens");
    for listener in &listeners {
        // The kernel applies this size to accepted sockets. Otherwise it could enlarge a receive buffer until it holds all
        // the bytes that a test sends before it reads.
        SockRef::from(listener).set_recv_buffer_size(128 << 10).expect("a fixed receive buffer");
    }
    println!("\n{READY}{}", listeners[0].local_addr().expect("an address"));
    run(model, listeners, &options).expect("serves");
}

const READY: &str = "ready addr=";

struct Server {
    subject: Subject,
    process: Child,
    address: SocketAddr,
    /// Opened at startup, at least one per ring, and kept open. Once these connections are served, the server has
    /// opened all of its own descriptors, which a test can then count.
    idle_connections: Vec<TcpStream>,
}

impl Server {
    /// Starts a server, limited to `open_files` descriptors if given.
    fn start(subject: &Subject, open_files: Option<u32>) -> Server {
        let limit = open_files.map_or(String::new(), |count| format!("ulimit -n {count}; "));
        let mut process = Command::new("sh")
            .args(["-c", &format!("{limit}exec \"$0\" echo::server_process --exact --nocapture")])
            .arg(env::current_exe().expect("the path of this program"))
            .env(ARGUMENTS, subject.arguments.join(" "))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let output = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let mut lines = output.lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix(READY)?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{subject}: no ready line"));
        let mut server = Server { subject: subject.clone(), process, address, idle_connections: Vec::new() };
        for _ in 0..subject.idle_connections() {
            let mut connection = server.connect();
            exchange(&mut connection, b"first").expect("echoes");
            server.idle_connections.push(connection);
        }
        server
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connects");
        configure(&stream);
        stream
    }

    /// Asserts that data on a new connection is echoed.
    fn assert_alive(&self) {
        let mut stream = self.connect();
        exchange(&mut stream, b"alive").unwrap_or_else(|error| panic!("{}: {error}", self.subject));
    }

    /// Asserts that data on the oldest connections is still echoed.
    fn assert_idle_connections_served(&mut self) {
        for connection in &mut self.idle_connections {
            exchange(connection, b"still here").unwrap_or_else(|error| panic!("{}: {error}", self.subject));
        }
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.process.id())).expect("the server is running")
    }

    fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("the server is running").count()
    }

    fn resident_bytes(&self) -> u64 {
        let pages = self.proc("statm").split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.expect("statm has a second field") * 4096
    }

    /// CPU time of the process so far, in clock ticks of 10 ms.
    fn cpu_ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split(' ').skip(12).take(2).map(|ticks| ticks.parse::<u64>().expect("ticks")).sum()
    }

    /// Asserts that the server is idle: it uses at most a third of a core. Load on the machine can only lower the
    /// measured CPU time.
    fn assert_no_spin(&self) {
        if self.subject.uses_sqpoll() {
            return;
        }
        let (start, ticks) = (Instant::now(), self.cpu_ticks());
        sleep(Duration::from_millis(200));
        let (elapsed, used) = (start.elapsed(), self.cpu_ticks() - ticks);
        assert!(u128::from(used) * 30 < elapsed.as_millis(), "{}: {used} ticks in {elapsed:?}", self.subject);
    }

    /// Waits until the server has at most `count` open descriptors.
    fn wait_for_open_files(&self, count: usize) {
        wait_until(|| self.open_files() <= count);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let exit_status = self.process.try_wait().expect("the server can be waited for");
        self.process.kill().and_then(|()| self.process.wait()).expect("the server can be killed");
        if !std::thread::panicking() {
            assert_eq!(exit_status, None, "{} died", self.subject);
        }
    }
}

/// Each io_uring option alone, and combinations of options.
const VARIANTS: [&str; 23] = [
    "--configurable",
    "--task-work deferred-once",
    "--task-work cooperative",
    "--task-work interrupting",
    "--sqpoll 5",
    "--sqpoll 5 --sqpoll-core last",
    "--one-shot-receive",
    "--per-connection-buffers",
    "--registered-files",
    "--linked-timeout 60s",
    "--bundles",
    "--completion-per-send",
    "--forced-async",
    "--zero-copy-sends",
    "--spin 50us",
    "--rings 2",
    "--rings 2 --shared-workers",
    "--rings 2 --forced-async",
    "--rings 2 --forced-async --shared-workers",
    "--sqpoll 50 --registered-files",
    "--per-connection-buffers --zero-copy-sends",
    "--forced-async --one-shot-receive",
    "--bundles --one-shot-receive --completion-per-send",
];

/// Servers that are tested at the same time: the tests wait more than they compute.
const THREADS: usize = 4;

/// Runs `case` for each model and variant that is available.
fn for_each_subject(case: impl Fn(&Subject) + Sync) {
    let variants = VARIANTS.iter().map(|line| {
        let arguments: Vec<&str> = ["uring"].into_iter().chain(line.split_whitespace()).collect();
        Subject::with(line, &arguments)
    });
    let models = Model::value_variants().iter().copied().map(Subject::model).chain([Subject::new(
        Model::Epoll,
        "epoll, spinning",
        &["epoll", "--spin", "50us"],
    )]);
    let subjects = Mutex::new(models.chain(variants));
    let next = || subjects.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(subject) = next() {
                    match allowed(subject.model) {
                        Ok(()) => {
                            println!("{subject}");
                            case(&subject);
                        }
                        Err(error) => println!("{subject}: skipped: {error}"),
                    }
                }
            });
        }
    });
}

fn allowed(model: Model) -> io::Result<()> {
    check(model, &Options::default()).map(drop)
}

fn configure(stream: &TcpStream) {
    stream.set_nodelay(true).expect("nodelay");
    stream.set_read_timeout(Some(hang_timeout())).expect("read timeout");
    stream.set_write_timeout(Some(hang_timeout())).expect("write timeout");
}

fn exchange(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    stream.write_all(message)?;
    expect_echo(stream, message)
}

fn expect_echo(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut echoed = vec![0; message.len()];
    stream.read_exact(&mut echoed)?;
    if echoed == message { Ok(()) } else { Err(io::Error::other("wrong bytes came back")) }
}

/// Returns a message with random bytes, which are a part of constant ones: without optimization, generating them takes
/// longer than everything else.
fn random_message(rng: &mut Rng, bytes: usize) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(1, 1 << 18));
    let start = rng.usize(..=BYTES.len() - bytes);
    &BYTES[start..start + bytes]
}

fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .expect("raises the limit of open files");
}

#[test]
fn echoes_messages_of_all_sizes() {
    for_each_subject(|subject| {
        let server = Server::start(subject, None);
        let mut stream = server.connect();
        let mut rng = Rng::with_seed(1);
        println!("seed 1");
        for round in 0..400 {
            let size = 1 + rng.usize(..1 << (1 + round % 17));
            exchange(&mut stream, random_message(&mut rng, size))
                .unwrap_or_else(|error| panic!("{subject}: {size} bytes: {error}"));
        }
    });
}

#[test]
fn pipelined_bytes_come_back_in_order() {
    let message = pattern(2, 4 << 20);
    for_each_subject(|subject| {
        let server = Server::start(subject, None);
        let stream = server.connect();
        let echoed = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut echoed = Vec::new();
                (&stream).read_to_end(&mut echoed).map(|_| echoed)
            });
            for chunk in message.chunks(100_003) {
                (&stream).write_all(chunk).expect("writes");
            }
            stream.shutdown(Shutdown::Write).expect("half-closes");
            reader.join().expect("the reader completes")
        });
        assert!(echoed.expect("an echo") == message, "{subject}: wrong bytes");
    });
}

/// The peer writes until the server stops reading, and only then starts to read.
#[test]
fn stalled_reader_receives_everything_with_bounded_memory() {
    let message = pattern(3, 16 << 20);
    for_each_subject(|subject| {
        let server = Server::start(subject, None);
        let resident = server.resident_bytes();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(64 << 10).expect("a small receive buffer");
        socket.connect(&server.address.into()).expect("connects");
        let mut stream = TcpStream::from(socket);
        configure(&stream);

        let mut written = write_until_blocked(&mut stream, &message);
        assert!(
            written < message.len(),
            "{subject}: all bytes were accepted, so the connection did not stall"
        );
        server.assert_no_spin();
        let grown = server.resident_bytes().saturating_sub(resident);
        assert!(grown < 8 << 20, "{subject}: memory grew by {grown} bytes for one stalled connection");
        server.assert_alive();

        let mut echoed = Vec::with_capacity(message.len());
        let mut chunk = vec![0; 256 << 10];
        stream.set_nonblocking(true).expect("nonblocking");
        while echoed.len() < message.len() {
            let wrote = bytes_or_zero(stream.write(&message[written..]));
            written += wrote;
            let read = bytes_or_zero(stream.read(&mut chunk));
            echoed.extend_from_slice(&chunk[..read]);
            if wrote + read == 0 {
                sleep(Duration::from_micros(100));
            }
        }
        assert!(echoed == message, "{subject}: wrong bytes");
        stream.set_nonblocking(false).expect("blocking");
        exchange(&mut stream, b"still echoing").expect("continues");
    });
}

/// The peer stalls, half-closes, then reads: all unsent data arrives, then EOF.
#[test]
fn half_close_delivers_unsent_data() {
    for_each_subject(|subject| {
        let server = Server::start(subject, None);
        let idle = server.open_files();
        for size in [0, 1, 5000, 65_536, 3 << 20] {
            let mut stream = server.connect();
            let message = pattern(4, size);
            let written = write_until_blocked(&mut stream, &message);
            stream.set_nonblocking(false).expect("blocking");
            stream.shutdown(Shutdown::Write).expect("half-closes");
            let mut echoed = Vec::new();
            stream.read_to_end(&mut echoed).expect("reads to EOF");
            assert!(echoed == message[..written], "{subject}: {} of {written} bytes", echoed.len());
        }
        server.wait_for_open_files(idle);
    });
}

#[test]
fn reset_closes_one_connection() {
    for_each_subject(|subject| {
        let mut server = Server::start(subject, None);
        let idle = server.open_files();
        let message = pattern(5, 600_000);
        for round in 0..300 {
            let mut stream = server.connect();
            // Covers idle connections, connections with unsent bytes, and stalled connections.
            let bytes = &message[..[0, 1, 4000, 600_000][round % 4]];
            stream.set_nonblocking(true).expect("nonblocking");
            bytes_or_zero(stream.write(bytes));
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("linger");
        }
        server.assert_idle_connections_served();
        server.wait_for_open_files(idle);
        server.assert_alive();
    });
}

/// Up to 1100 connections have bytes in flight at the same time. `select` can serve only about 1000 of them.
#[test]
fn serves_a_thousand_connections() {
    raise_open_files();
    // One server at a time, because the limit of open files can be a few thousand.
    let serial = Mutex::new(());
    for_each_subject(|subject| {
        let _serial = serial.lock().unwrap_or_else(PoisonError::into_inner);
        let server = Server::start(subject, None);
        let idle = server.open_files();
        let mut rng = Rng::with_seed(6);
        println!("seed 6");
        let mut connections: Vec<_> = (0..1100).map(|_| (server.connect(), &[][..], true)).collect();
        for _ in 0..3 {
            for (stream, message, served) in connections.iter_mut().filter(|connection| connection.2) {
                let size = 1 + rng.usize(..9000);
                *message = random_message(&mut rng, size);
                *served = stream.write_all(message).is_ok();
            }
            for (stream, message, served) in connections.iter_mut().filter(|connection| connection.2) {
                *served = expect_echo(stream, message).is_ok();
            }
        }
        let served = connections.iter().filter(|connection| connection.2).count();
        let min_served = if subject.model == Model::Select { 1000 } else { 1100 };
        assert!(served >= min_served, "{subject}: served {served} of 1100");
        drop(connections);
        server.wait_for_open_files(idle);
        server.assert_alive();
    });
}

/// If there are far fewer buffers than 30 busy connections need, echoes are delayed but not lost.
#[test]
fn uring_serves_with_few_buffers() {
    if let Err(error) = allowed(Model::Uring) {
        return println!("skipped: {error}");
    }
    let default = UringOptions::default;
    let option_sets = [
        None,
        Some(default()),
        Some(UringOptions { task_work: Some(TaskWork::Interrupting), ..default() }),
        Some(UringOptions { sqpoll: Some(Duration::from_millis(10)), ..default() }),
        Some(UringOptions { one_shot_receive: true, ..default() }),
        Some(UringOptions { one_shot_receive: true, forced_async: true, ..default() }),
        Some(UringOptions { per_connection_buffers: true, ..default() }),
        Some(UringOptions { bundles: true, ..default() }),
        Some(UringOptions { bundles: true, zero_copy_sends: true, ..default() }),
        Some(UringOptions { registered_files: true, rings: 2, ..default() }),
    ];
    for uring in option_sets {
        println!("{uring:?}");
        for (buffers, bytes, max_bytes) in [(2, 64, 3000), (16, 4096, 200_000)] {
            let options =
                Options { uring_buffers: buffers, uring_buffer_bytes: bytes, uring, ..Options::default() };
            exchange_concurrently(&options, max_bytes);
        }
    }
}

/// Exchanges messages of random lengths up to `max_bytes` on 30 connections with a server that uses these options.
fn exchange_concurrently(options: &Options, max_bytes: usize) {
    let listeners = listen_for("127.0.0.1:0".parse().expect("an address"), options).expect("listens");
    let address = listeners[0].local_addr().expect("an address");
    let options = options.clone();
    // Serves until the test process exits.
    std::thread::spawn(move || {
        let error = run(Model::Uring, listeners, &options);
        println!("the server failed: {error:?}");
    });
    std::thread::scope(|scope| {
        for seed in 0..30 {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(address).expect("connects");
                configure(&stream);
                let mut rng = Rng::with_seed(seed);
                for _ in 0..20 {
                    let size = 1 + rng.usize(..max_bytes);
                    let message = random_message(&mut rng, size);
                    let mut sender = stream.try_clone().expect("a second handle");
                    std::thread::scope(|scope| {
                        scope.spawn(move || sender.write_all(message).expect("writes"));
                        expect_echo(&mut stream, message)
                            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    });
                }
            });
        }
    });
}

/// Only clients that send nothing are disconnected.
#[test]
fn linked_timeout_disconnects_silent_clients() {
    if let Err(error) = allowed(Model::Uring) {
        return println!("skipped: {error}");
    }
    let short = Subject::with("short timeouts", &["uring", "--linked-timeout", "500ms"]);
    let mut server = Server::start(&short, None);
    let mut connection = server.idle_connections.remove(0);
    assert_eq!(connection.read_to_end(&mut Vec::new()).expect("EOF instead of a reset"), 0);
    let mut silent: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for stream in &mut silent {
        assert_eq!(stream.read_to_end(&mut Vec::new()).expect("EOF instead of a reset"), 0);
    }
    let long = Subject::with("long timeouts", &["uring", "--linked-timeout", "3600s"]);
    let mut server = Server::start(&long, None);
    sleep(Duration::from_millis(200));
    server.assert_idle_connections_served();
}

/// If no descriptors are free, pending connections are served once other connections close.
#[test]
fn descriptor_exhaustion_delays_accepts() {
    for_each_subject(|subject| {
        let server = Server::start(subject, Some(40 + subject.idle_connections() as u32));
        let mut first = vec![server.connect()];
        // Exchanges data before opening the other connections. Otherwise, with several rings, connections on another
        // ring could use the last descriptor before this connection is accepted.
        exchange(&mut first[0], b"accepted in time").expect("echoes");
        first.extend((1..80).map(|_| server.connect()));
        exchange(&mut first[0], b"still served").expect("echoes");
        server.assert_no_spin();
        // With one ring, more connections stay open than there are descriptors. With several rings, fewer stay open,
        // because a connection could otherwise wait for a descriptor that another ring uses.
        let last = first.split_off(if subject.idle_connections() > 1 { 60 } else { 20 });
        drop(first);
        for mut stream in last {
            exchange(&mut stream, b"accepted late").unwrap_or_else(|error| panic!("{subject}: {error}"));
        }
    });
}

/// Writes without reading until the socket has accepted no bytes for a while. Returns the number of bytes written.
fn write_until_blocked(stream: &mut TcpStream, message: &[u8]) -> usize {
    stream.set_nonblocking(true).expect("nonblocking");
    let (mut written, mut blocked_writes) = (0, 0);
    while written < message.len() && blocked_writes < 30 {
        match bytes_or_zero(stream.write(&message[written..])) {
            0 => {
                blocked_writes += 1;
                sleep(Duration::from_millis(10));
            }
            bytes => (written, blocked_writes) = (written + bytes, 0),
        }
    }
    written
}

/// Returns the number of bytes transferred by a non-blocking call, or 0 if it would block. Panics if the connection
/// failed.
fn bytes_or_zero(result: io::Result<usize>) -> usize {
    match result {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("the connection failed: {error}"),
    }
}
