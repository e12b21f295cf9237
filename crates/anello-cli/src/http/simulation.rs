//! The file server on simulated hosts, with clients that check every byte.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::iter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use anello::net::TcpStream;
use anello::sim::{Control, LinkOptions, SimFaults, check};
use anello::time::{Instant, sleep, timeout};
use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
use anello_test::{pattern, short_or_long};
use clap::Parser;
use futures_util::future::join;

use super::directory_watch::DirectoryWatch;
use super::flags::Arguments;
use super::sandbox::Sandbox;
use super::worker::{Service, serve};
use crate::common::admin::Health;
use crate::common::listening::Listening;
use crate::common::notify::ServiceManager;
use crate::common::simulation::{
    CLIENTS, HostState, PROGRESS_TIMEOUT, SERVERS, WORKERS, builder, run_with_faults, seeds,
};

/// Time limit of a client for all requests that it sends together.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Sizes of the files. Each one is named after its size.
const FILE_BYTES: [u64; 4] = [0, 100, 5000, 200_000];

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    http: Arguments,
}

/// Creates the document root. The modification times are constant, because they are part of the entity tags.
fn create_files() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for bytes in FILE_BYTES {
        let path = directory.path().join(bytes.to_string());
        std::fs::write(&path, content(bytes, 0..bytes)).expect("a file");
        let file = std::fs::File::options().write(true).open(path).expect("a file");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).expect("a timestamp");
    }
    directory
}

/// Returns a part of the file with this size.
fn content(bytes: u64, range: Range<u64>) -> Vec<u8> {
    pattern(bytes, range.end as usize).split_off(range.start as usize)
}

/// Creates what the workers of the command share, without the parts that use real threads and sockets: the access log,
/// TLS, and the metrics endpoint.
fn service(directory: &Path, drain_timeout: Duration) -> io::Result<Service> {
    let drain_timeout = format!("--drain-timeout={}s", drain_timeout.as_secs());
    let directory_flag = directory.as_os_str().to_owned();
    let flags =
        Flags::parse_from(["http".into(), directory_flag, "--sandbox=off".into(), drain_timeout.into()]);
    let flags = flags.http;
    let mut metrics_options = MetricsOptions::default();
    metrics_options.workers = WORKERS;
    Ok(Service {
        workers: WORKERS,
        listening: Arc::new(Listening::simulated("0.0.0.0:80")?),
        driver: OnceLock::new(),
        directory_watch: Arc::new(DirectoryWatch::new(directory)?),
        files: flags.files.options(WORKERS),
        options: flags.connections.options(),
        connections: Arc::default(),
        // Streams cannot be detached from the simulated driver.
        rebalancer: None,
        tls: None,
        log: None,
        metrics: Some(ServerMetrics::new(metrics_options)),
        admin_addr: None,
        health: Health::default(),
        manager: ServiceManager::find(),
        is_stopping: AtomicBool::new(false),
        sandbox: Sandbox::enter(flags.sandbox, &flags.allowed_paths(iter::empty())?)?,
        flags,
    })
}

/// The program of a host.
async fn run_server(directory: PathBuf, drain_timeout: Duration, state: Rc<HostState>) -> io::Result<()> {
    let start = || {
        let service = Arc::new(service(&directory, drain_timeout)?);
        let workers = (0..WORKERS).map(|worker| anello::spawn(serve(Arc::clone(&service), worker)));
        let workers = workers.collect();
        service.listening.resume();
        service.health.set_ready();
        Ok((workers, move || service.connections.load(Ordering::Relaxed)))
    };
    state.supervise(drain_timeout, start).await
}

/// A request, and the parts that the body of its response must contain in this order.
struct Exchange {
    request: String,
    status: u16,
    expected: Vec<Vec<u8>>,
}

impl Exchange {
    /// Requests a whole file.
    fn get(bytes: u64) -> Self {
        let request = format!("GET /{bytes} HTTP/1.1\r\nHost: a\r\n\r\n");
        Self { request, status: 200, expected: vec![content(bytes, 0..bytes)] }
    }

    fn random(control: &Control) -> Self {
        let bytes = FILE_BYTES[control.random() as usize % FILE_BYTES.len()];
        let (method, path, field, status, expected) = match control.random() % 8 {
            0 => ("HEAD", bytes.to_string(), String::new(), 200, vec![]),
            1 => ("GET", "missing".to_owned(), String::new(), 404, vec![b"404".to_vec()]),
            2 => ("GET", bytes.to_string(), "If-None-Match: *\r\n".to_owned(), 304, vec![]),
            3 if bytes > 0 => {
                let first = control.random() % bytes;
                let field = format!("Range: bytes={first}-\r\n");
                ("GET", bytes.to_string(), field, 206, vec![content(bytes, first..bytes)])
            }
            4 if bytes > 1000 => {
                let first = control.random() % 1000;
                let parts = vec![content(bytes, first..first + 10), content(bytes, bytes - 5..bytes)];
                let field = format!("Range: bytes={first}-{},-5\r\n", first + 9);
                ("GET", bytes.to_string(), field, 206, parts)
            }
            _ => return Self::get(bytes),
        };
        Self { request: format!("{method} /{path} HTTP/1.1\r\nHost: a\r\n{field}\r\n"), status, expected }
    }

    fn check(&self, response: &Response) {
        let request = &self.request;
        assert_eq!(response.status, self.status, "{request}");
        let mut rest = &response.body[..];
        for part in &self.expected {
            let found =
                (0..=rest.len() - part.len().min(rest.len())).find(|start| rest[*start..].starts_with(part));
            let start = found.unwrap_or_else(|| panic!("{} wrong bytes: {request}", response.body.len()));
            rest = &rest[start + part.len()..];
        }
        if self.status == 200 {
            let length = self.expected.iter().map(Vec::len).sum::<usize>();
            assert_eq!(response.body.len(), length, "{request}");
        }
    }
}

struct Response {
    status: u16,
    body: Vec<u8>,
    is_last: bool,
}

/// A connection of a client.
struct Connection<'a> {
    stream: TcpStream,
    received: Vec<u8>,
    /// A hash of all bytes that the clients have received.
    digest: &'a Cell<u64>,
}

impl<'a> Connection<'a> {
    async fn open(server: &str, digest: &'a Cell<u64>) -> io::Result<Self> {
        let stream = timeout(Duration::from_secs(5), TcpStream::connect((server, 80))).await??;
        Ok(Self { stream, received: Vec::new(), digest })
    }

    /// Sends all requests together and checks the responses. Returns whether the connection can be used again.
    async fn exchange(&mut self, exchanges: &[Exchange]) -> io::Result<bool> {
        let requests: String = exchanges.iter().map(|exchange| &*exchange.request).collect();
        self.stream.write_all(requests.as_bytes()).await?;
        self.stream.flush().await?;
        for exchange in exchanges {
            let response = self.receive(exchange.request.starts_with("HEAD")).await?;
            exchange.check(&response);
            if response.is_last {
                return Ok(false);
            }
        }
        assert!(self.received.is_empty(), "bytes after the last response");
        Ok(true)
    }

    async fn receive(&mut self, is_head: bool) -> io::Result<Response> {
        let head_bytes = loop {
            let end = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            match end {
                Some(end) => break end + 4,
                None => self.receive_more().await?,
            }
        };
        let head = String::from_utf8(self.received[..head_bytes].to_vec()).expect("UTF-8").to_lowercase();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let status = head[9..12].parse().expect("a status");
        let length = field("content-length").map_or(0, |length| length.parse().expect("a length"));
        let body_bytes = if is_head || status == 304 { 0 } else { length };
        while self.received.len() < head_bytes + body_bytes {
            self.receive_more().await?;
        }
        let is_last = field("connection") == Some("close");
        let body = self.received[head_bytes..head_bytes + body_bytes].to_vec();
        self.received.drain(..head_bytes + body_bytes);
        Ok(Response { status, body, is_last })
    }

    async fn receive_more(&mut self) -> io::Result<()> {
        let chunk = self.stream.recv().await?.ok_or(ErrorKind::UnexpectedEof)?;
        let add = |hash: u64, byte: &u8| hash.rotate_left(5).wrapping_mul(31) ^ u64::from(*byte);
        self.digest.set(chunk.iter().fold(self.digest.get(), add));
        self.received.extend_from_slice(&chunk);
        Ok(())
    }
}

/// Returns whether an error is one that a client must expect under faults.
fn is_expected(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, TimedOut, UnexpectedEof};
    let expected = [BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, TimedOut, UnexpectedEof];
    expected.contains(&error.kind())
}

async fn run_client(control: Control, faults_ended: Rc<Cell<bool>>, digest: Rc<Cell<u64>>) -> io::Result<()> {
    let random = |bound: usize| (control.random() % bound as u64) as usize;
    let mut open: Option<Connection<'_>> = None;
    while !faults_ended.get() {
        let exchanges: Vec<_> = (0..1 + random(4)).map(|_| Exchange::random(&control)).collect();
        let exchanging = async {
            let mut connection = match open.take() {
                Some(connection) => connection,
                None => Connection::open(SERVERS[random(SERVERS.len())], &digest).await?,
            };
            let is_reusable = connection.exchange(&exchanges).await?;
            Ok::<_, io::Error>(is_reusable.then_some(connection))
        };
        match timeout(CLIENT_TIMEOUT, exchanging).await.unwrap_or_else(|error| Err(error.into())) {
            Ok(connection) => open = connection.filter(|_| random(4) > 0),
            Err(error) => assert!(is_expected(&error), "{error:?}"),
        }
        sleep(Duration::from_millis(control.random() % if random(10) == 0 { 4000 } else { 100 })).await;
    }
    drop(open);
    let end = Instant::now() + PROGRESS_TIMEOUT;
    for server in SERVERS {
        let exchanges = [Exchange::random(&control)];
        let attempt = async || Connection::open(server, &digest).await?.exchange(&exchanges).await;
        while let Err(error) =
            timeout(CLIENT_TIMEOUT, attempt()).await.unwrap_or_else(|error| Err(error.into()))
        {
            assert!(is_expected(&error), "{error:?}");
            assert!(Instant::now() < end, "{server}: no success after the faults: {error}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

/// Returns the hashes of the run and of all bytes that the clients have received.
fn run(seed: u64) -> Result<(u64, u64), anello::sim::Error> {
    let (directory, digest) = (create_files(), Rc::new(Cell::new(0)));
    let path = directory.path().to_owned();
    let hash = run_with_faults(
        seed,
        move |state| run_server(path.clone(), Duration::from_secs(3), state),
        |control, _, faults_ended| run_client(control, faults_ended, Rc::clone(&digest)),
    )?;
    Ok((hash, digest.get()))
}

#[test]
fn http_withstands_faults() {
    check("http_withstands_faults", 0..seeds(), |seed| run(seed).map(drop));
}

#[test]
fn seed_determines_a_run() {
    for seed in 4..short_or_long(5, 6) {
        assert_eq!(run(seed).expect("a run"), run(seed).expect("a run"), "seed {seed}");
    }
}

/// Time after which a request has certainly reached the server.
const ARRIVAL: Duration = Duration::from_secs(2);

/// Requests without a pause while the server is terminated and started again. A response that has begun must arrive
/// completely, and so must the response to a request that the server had when the signal arrived.
async fn run_strict_client(
    control: Control,
    last_signal: Rc<Cell<Option<Instant>>>,
    ended: Rc<Cell<bool>>,
) -> io::Result<()> {
    let digest = Cell::default();
    while !ended.get() {
        let Ok(mut connection) = Connection::open("server", &digest).await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        loop {
            let (sent_at, exchanges) = (Instant::now(), [Exchange::random(&control)]);
            match connection.exchange(&exchanges).await {
                Ok(true) if !ended.get() => sleep(Duration::from_millis(control.random() % 20)).await,
                Ok(_) => break,
                Err(error) => {
                    assert!(is_expected(&error), "{error:?}");
                    assert!(connection.received.is_empty(), "incomplete response: {error}");
                    let is_late = last_signal.get().is_some_and(|signal| sent_at + ARRIVAL > signal);
                    assert!(is_late, "no response to a request that the server had received: {error}");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Links and hosts do not fail here, so that every lost response is the fault of the server.
#[test]
fn drain_under_load_loses_no_response() {
    check("drain_under_load_loses_no_response", 0..seeds(), |seed| {
        let directory = create_files();
        let (faults, bandwidth) = (SimFaults::lossless(seed as u16 / 2 % 2 * 30), 20_000 << (seed % 5));
        let link = LinkOptions::default().loss(10).bandwidth(Some(bandwidth));
        let mut sim = builder(seed).faults(faults.descriptor_exhaustion(0)).link(link).build();
        let (state, path) = (HostState::new("server", &sim), directory.path().to_owned());
        let served = Rc::clone(&state);
        sim.host("server", move || run_server(path.clone(), Duration::from_secs(60), Rc::clone(&served)));
        let (last_signal, ended) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(false)));
        for name in CLIENTS {
            let client = run_strict_client(sim.control(), Rc::clone(&last_signal), Rc::clone(&ended));
            sim.client(name, client);
        }
        let control = sim.control();
        sim.client("operator", async move {
            for round in 1..=short_or_long(2, 5) {
                sleep(Duration::from_millis(control.random() % 10_000)).await;
                last_signal.set(Some(Instant::now()));
                state.terminate();
                while state.exits.get() < round {
                    sleep(Duration::from_millis(10)).await;
                }
            }
            ended.set(true);
            Ok(())
        });
        sim.run()
    });
}

#[test]
fn second_signal_aborts_the_drain() {
    for seed in 0..2 {
        let directory = create_files();
        let link = LinkOptions::default().bandwidth(Some(20_000));
        let mut sim = builder(seed).link(link).build();
        let (state, path) = (HostState::new("server", &sim), directory.path().to_owned());
        let served = Rc::clone(&state);
        sim.host("server", move || run_server(path.clone(), Duration::from_secs(60), Rc::clone(&served)));
        sim.client("client", async move {
            let digest = Cell::default();
            let mut connection = Connection::open("server", &digest).await?;
            // The response takes ten seconds.
            let exchanges = [Exchange::get(200_000)];
            let exchanging = connection.exchange(&exchanges);
            let terminating = async {
                for _ in 0..2 {
                    sleep(Duration::from_secs(1)).await;
                    assert_eq!(state.exits.get(), 0, "the drain waits for the response");
                    state.terminate();
                }
            };
            let (exchanged, ()) = join(exchanging, terminating).await;
            assert!(is_expected(&exchanged.expect_err("an incomplete response")));
            assert!(!connection.received.is_empty(), "no response");
            drop(connection);
            sleep(Duration::from_secs(2)).await;
            assert_eq!(state.exits.get(), 1, "the server has not exited");
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{error}\n{}", sim.trace()));
    }
}
