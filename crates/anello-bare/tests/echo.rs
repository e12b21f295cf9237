//! One suite, run against every model as a process of its own. Where io_uring is refused, `uring` is skipped with
//! a message.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anello_bare::{Model, Options, check, listen, run};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

/// Long enough for any step on a loaded machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    model: Model,
    process: Child,
    address: SocketAddr,
    /// Held open, so that the server has all its descriptors before they are counted.
    bystander: Option<TcpStream>,
}

impl Server {
    /// Starts one, allowed `open_files` descriptors at most if that is given.
    fn start(model: Model, open_files: Option<u32>) -> Server {
        let program = env!("CARGO_BIN_EXE_anello-bare");
        let limit = open_files.map_or(String::new(), |count| format!("ulimit -n {count}; "));
        let mut process = Command::new("sh")
            .args(["-c", &format!("{limit}exec \"$0\" \"$@\""), program])
            .args([model.name(), "--addr", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("stdout is piped"))
            .read_line(&mut line)
            .expect("a ready line");
        let address = line
            .trim()
            .strip_prefix(&format!("anello-bare ready model={model} addr="))
            .unwrap_or_else(|| panic!("{model}: not a ready line: {line:?}"));
        let address = address.parse().expect("an address");
        let mut server = Server { model, process, address, bystander: None };
        let mut bystander = server.connect();
        exchange(&mut bystander, b"first").expect("echoes");
        server.bystander = Some(bystander);
        server
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connects");
        prepare(&stream);
        stream
    }

    /// A new connection echoes.
    fn assert_alive(&self) {
        let mut stream = self.connect();
        exchange(&mut stream, b"are you there?").unwrap_or_else(|error| panic!("{}: {error}", self.model));
    }

    /// The oldest connection still echoes.
    fn assert_bystander_served(&mut self) {
        let bystander = self.bystander.as_mut().expect("there is one since the start");
        exchange(bystander, b"still here").unwrap_or_else(|error| panic!("{}: {error}", self.model));
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.process.id())).expect("the server lives")
    }

    fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("the server lives").count()
    }

    fn resident_bytes(&self) -> u64 {
        let pages = self.proc("statm").split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.expect("statm has a second field") * 4096
    }

    /// CPU time of the process until now, clock ticks of 10 ms.
    fn cpu_ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split(' ').skip(12).take(2).map(|ticks| ticks.parse::<u64>().expect("ticks")).sum()
    }

    /// Asserts that the server is at rest: it uses at most a third of a core. A busy machine can only lower that.
    fn assert_no_spin(&self) {
        let (start, ticks) = (Instant::now(), self.cpu_ticks());
        sleep(Duration::from_millis(500));
        let (elapsed, used) = (start.elapsed(), self.cpu_ticks() - ticks);
        assert!(u128::from(used) * 30 < elapsed.as_millis(), "{}: {used} ticks in {elapsed:?}", self.model);
    }

    /// Waits until the server has closed all but `count` descriptors.
    fn await_open_files(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.open_files() > count {
            assert!(Instant::now() < deadline, "{}: {} files stay open", self.model, self.open_files());
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let dead = self.process.try_wait().expect("the server can be waited for");
        self.process.kill().and_then(|()| self.process.wait()).expect("the server can be ended");
        if !std::thread::panicking() {
            assert_eq!(dead, None, "{} died", self.model);
        }
    }
}

/// Runs `case` for every model that this machine allows.
fn each_model(case: fn(Model)) {
    for model in Model::ALL {
        match check(model) {
            Ok(()) => {
                println!("{model}");
                case(model);
            }
            Err(error) => println!("{model}: skipped: {error}"),
        }
    }
}

fn prepare(stream: &TcpStream) {
    stream.set_nodelay(true).expect("nodelay");
    stream.set_read_timeout(Some(PATIENCE)).expect("read timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("write timeout");
}

fn exchange(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    stream.write_all(message)?;
    expect(stream, message)
}

fn expect(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut echoed = vec![0; message.len()];
    stream.read_exact(&mut echoed)?;
    if echoed == message { Ok(()) } else { Err(io::Error::other("wrong bytes came back")) }
}

/// A small generator of repeatable noise (splitmix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> usize {
        (self.next() % limit) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(count).collect()
    }
}

fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("raise the limit of open files");
}

#[test]
fn echoes_messages_of_all_sizes() {
    each_model(|model| {
        let server = Server::start(model, None);
        let mut stream = server.connect();
        let mut noise = Noise(1);
        println!("seed 1");
        for round in 0..400 {
            let size = 1 + noise.below(1 << (1 + round % 17));
            let message = noise.bytes(size);
            exchange(&mut stream, &message).unwrap_or_else(|error| panic!("{model}: {size} bytes: {error}"));
        }
    });
}

#[test]
fn pipelined_bytes_come_back_in_order() {
    each_model(|model| {
        let server = Server::start(model, None);
        let stream = server.connect();
        let message = Noise(2).bytes(32 << 20);
        let echoed = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut echoed = Vec::new();
                (&stream).read_to_end(&mut echoed).map(|_| echoed)
            });
            for piece in message.chunks(100_003) {
                (&stream).write_all(piece).expect("takes bytes");
            }
            stream.shutdown(Shutdown::Write).expect("half-closes");
            reader.join().expect("the reader ends")
        });
        assert!(echoed.expect("an echo") == message, "{model}: wrong bytes");
    });
}

/// The peer writes until the server no longer takes anything, and only then reads.
#[test]
fn stalled_reader_loses_nothing_and_costs_little() {
    each_model(|model| {
        let server = Server::start(model, None);
        let resident = server.resident_bytes();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(64 << 10).expect("a small receive buffer");
        socket.connect(&server.address.into()).expect("connects");
        let mut stream = TcpStream::from(socket);
        prepare(&stream);

        let message = Noise(3).bytes(32 << 20);
        let mut written = write_until_stuck(&mut stream, &message);
        assert!(written < message.len(), "{model}: everything was taken, so nothing stalled");
        server.assert_no_spin();
        let grown = server.resident_bytes().saturating_sub(resident);
        assert!(grown < 8 << 20, "{model}: grew by {grown} bytes for one stalled connection");
        server.assert_alive();

        let mut echoed = Vec::with_capacity(message.len());
        let mut piece = vec![0; 256 << 10];
        stream.set_nonblocking(true).expect("nonblocking");
        while echoed.len() < message.len() {
            let wrote = progress(stream.write(&message[written..]));
            written += wrote;
            let read = progress(stream.read(&mut piece));
            echoed.extend_from_slice(&piece[..read]);
            if wrote + read == 0 {
                sleep(Duration::from_micros(100));
            }
        }
        assert!(echoed == message, "{model}: wrong bytes");
        stream.set_nonblocking(false).expect("blocking");
        exchange(&mut stream, b"and it still echoes").expect("goes on");
    });
}

/// Stalls, half-closes, then reads: all that is owed arrives, then the end.
#[test]
fn half_close_is_honoured_with_everything_owed() {
    each_model(|model| {
        let server = Server::start(model, None);
        let idle = server.open_files();
        for size in [0, 1, 5000, 65_536, 3 << 20] {
            let mut stream = server.connect();
            let message = Noise(4).bytes(size);
            let written = write_until_stuck(&mut stream, &message);
            stream.set_nonblocking(false).expect("blocking");
            stream.shutdown(Shutdown::Write).expect("half-closes");
            let mut echoed = Vec::new();
            stream.read_to_end(&mut echoed).expect("reads to the end");
            assert!(echoed == message[..written], "{model}: {} of {written} bytes", echoed.len());
        }
        server.await_open_files(idle);
    });
}

#[test]
fn resets_close_their_connection_only() {
    each_model(|model| {
        let mut server = Server::start(model, None);
        let idle = server.open_files();
        let message = Noise(5).bytes(600_000);
        for round in 0..300 {
            let mut stream = server.connect();
            // From an idle connection over owed bytes to a stalled one.
            let bytes = &message[..[0, 1, 4000, 600_000][round % 4]];
            stream.set_nonblocking(true).expect("nonblocking");
            progress(stream.write(bytes));
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("linger");
        }
        server.assert_bystander_served();
        server.await_open_files(idle);
        server.assert_alive();
    });
}

/// As many connections as a model can hold, all with bytes in flight at once.
#[test]
fn a_thousand_connections() {
    raise_open_files();
    each_model(|model| {
        let server = Server::start(model, None);
        let idle = server.open_files();
        let mut noise = Noise(6);
        println!("seed 6");
        let mut connections: Vec<_> = (0..1100).map(|_| (server.connect(), Vec::new(), true)).collect();
        for _ in 0..3 {
            for (stream, message, served) in connections.iter_mut().filter(|connection| connection.2) {
                let size = 1 + noise.below(9000);
                *message = noise.bytes(size);
                *served = stream.write_all(message).is_ok();
            }
            for (stream, message, served) in connections.iter_mut().filter(|connection| connection.2) {
                *served = expect(stream, message).is_ok();
            }
        }
        let served = connections.iter().filter(|connection| connection.2).count();
        let least = if model == Model::Select { 1000 } else { 1100 };
        assert!(served >= least, "{model}: served {served} of 1100");
        drop(connections);
        server.await_open_files(idle);
        server.assert_alive();
    });
}

/// Two buffers of 64 bytes for 30 busy connections: running out of buffers only delays.
#[test]
fn uring_serves_with_hardly_any_buffers() {
    if let Err(error) = check(Model::Uring) {
        return println!("skipped: {error}");
    }
    let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let address = listener.local_addr().expect("an address");
    // Serves until this process ends.
    std::thread::spawn(move || {
        let options = Options { uring_buffers: 2, uring_buffer_bytes: 64, ..Options::default() };
        run(Model::Uring, listener, &options)
    });
    std::thread::scope(|scope| {
        for seed in 0..30 {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(address).expect("connects");
                prepare(&stream);
                let mut noise = Noise(seed);
                for _ in 0..20 {
                    let size = 1 + noise.below(3000);
                    exchange(&mut stream, &noise.bytes(size)).expect("echoes");
                }
            });
        }
    });
}

/// With no descriptor left, those who wait are served once others leave.
#[test]
fn running_out_of_descriptors_only_delays() {
    each_model(|model| {
        let server = Server::start(model, Some(40));
        let mut first: Vec<_> = (0..80).map(|_| server.connect()).collect();
        exchange(&mut first[0], b"accepted in time").expect("echoes");
        server.assert_no_spin();
        let mut last = first.split_off(60);
        drop(first);
        for stream in &mut last {
            exchange(stream, b"accepted late").unwrap_or_else(|error| panic!("{model}: {error}"));
        }
    });
}

/// Writes without reading until the server has not taken a byte for a while; how much it took.
fn write_until_stuck(stream: &mut TcpStream, message: &[u8]) -> usize {
    stream.set_nonblocking(true).expect("nonblocking");
    let (mut written, mut refusals) = (0, 0);
    while written < message.len() && refusals < 30 {
        match progress(stream.write(&message[written..])) {
            0 => {
                refusals += 1;
                sleep(Duration::from_millis(10));
            }
            bytes => (written, refusals) = (written + bytes, 0),
        }
    }
    written
}

/// Bytes moved by a call that does not block; a connection that fails or ends fails the test.
fn progress(result: io::Result<usize>) -> usize {
    match result {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("the connection failed: {error}"),
    }
}
