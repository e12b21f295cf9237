//! The lab's load: sessions of anello-load on one runtime of the calling thread, and the control connections of disk
//! workers.
//!
//! The driver is chosen once for all contenders, and `ANELLO_DRIVER` has no say: the load must not depend on what it is
//! to measure.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anello::time::timeout;
use anello::{DriverKind, Runtime};
use anello_lab::load::latency_histogram;
use anello_lab::tls::{Cipher, Identity};
use anello_lab::{Cell, Check, DiskOperation, Load, LoadSession, SliceLoad, Workload, latency};
use anello_load::check::http::Server;
use anello_load::{Arrivals, ErrorKind, Mode, Session, Tls, check};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::lab_load_http::{self, HandshakeKinds};

/// How long the connections of one contender in one cell may take to open, and a request to be answered: far more
/// than a server in order ever needs.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The same for what a check asks for: thousands of connections, megabytes.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The same under TLS, where thousands of connections cost both sides seconds of their cores.
const TLS_CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a check looks whether the run is to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Replies that came whole and were not the right ones. All else has cost a connection.
const WRONG_REPLY_KINDS: [ErrorKind; 3] =
    [ErrorKind::WrongBytes, ErrorKind::WrongStatus, ErrorKind::WrongLength];

/// Size of the one message that an idle connection has exchanged.
const IDLE_MESSAGE_BYTES: usize = 128;

/// The driver of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadDriver {
    /// io_uring where it may be used, else epoll.
    Auto,
    /// Works everywhere, so that results of different machines can be compared.
    Epoll,
    /// Costs the load fewer system calls; fails where io_uring is not allowed.
    Uring,
}

impl LoadDriver {
    /// The driver of this name, as [`LabLoad::driver_name`] tells it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "epoll" => Some(Self::Epoll),
            "io_uring" | "uring" => Some(Self::Uring),
            _ => None,
        }
    }
}

/// The lab's load.
pub struct LabLoad {
    runtime: Rc<Runtime>,
    /// The file of the disk workers.
    disk_file: PathBuf,
    /// The file of the certificate that all servers under TLS have, and the cipher by which they are checked.
    certificate: Option<PathBuf>,
    checked_by: Option<Cipher>,
    /// TLS by each cipher that was asked for, or by all. It keeps no sessions, so that no server profits by another.
    tls: Vec<(Option<Cipher>, Tls)>,
    handshakes: HandshakeKinds,
}

impl LabLoad {
    /// A load on a runtime of this thread. `disk_file` is the file that disk workers use.
    pub fn new(driver: LoadDriver, disk_file: &Path) -> io::Result<Self> {
        let driver = match driver {
            LoadDriver::Auto => DriverKind::Auto,
            LoadDriver::Epoll => DriverKind::Epoll,
            LoadDriver::Uring => DriverKind::Uring,
        };
        let runtime = Runtime::builder().driver(driver).driver_from_environment(false).build()?;
        Ok(Self {
            runtime: Rc::new(runtime),
            disk_file: disk_file.to_owned(),
            certificate: None,
            checked_by: None,
            tls: Vec::new(),
            handshakes: HandshakeKinds::default(),
        })
    }

    /// The same load for these cells, to which HTTP servers show who they are by this identity.
    pub fn with_identity(self, identity: Option<&Identity>, cells: &[Cell]) -> Self {
        let checked_by = cells.iter().find_map(|cell| cell.workload.cipher());
        Self { certificate: identity.map(Identity::certificate), checked_by, ..self }
    }

    /// What handshakes came to until now, as a sentence; none if there were none.
    pub fn handshake_note(&self) -> Option<String> {
        self.handshakes.note()
    }

    /// Where an HTTP server is to be asked, and how.
    fn http_server(&mut self, address: SocketAddr, cipher: Option<Cipher>) -> Result<Server, String> {
        let Some(certificate) = &self.certificate else { return Ok(Server { address, tls: None }) };
        if let Some((_, tls)) = self.tls.iter().find(|(known, _)| *known == cipher) {
            return Ok(Server { address, tls: Some(tls.clone()) });
        }
        let tls = lab_load_http::tls(certificate, cipher)?;
        self.tls.push((cipher, tls.clone()));
        Ok(Server { address, tls: Some(tls) })
    }

    /// The name of the driver that it runs on, as results hold it: "epoll" or "io_uring".
    pub fn driver_name(&self) -> String {
        match self.runtime.driver().name {
            "uring" => "io_uring".to_owned(),
            name => name.to_owned(),
        }
    }

    fn open(&self, load: &anello_load::LoadConfig) -> Result<NetworkSession, String> {
        let runtime = Rc::clone(&self.runtime);
        let session = runtime.block_on(Session::connect(load)).map_err(|error| error.to_string())?;
        let troubles: Vec<String> = session
            .connect_errors()
            .iter()
            .map(|error| {
                format!("{} of {} failed, the first: {}", error.count, load.connections, error.example)
            })
            .collect();
        let session = NetworkSession { runtime, session: Some(session), handshakes: self.handshakes.clone() };
        if troubles.is_empty() { Ok(session) } else { Err(troubles.join("; ")) }
    }
}

impl Load for LabLoad {
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, String> {
        let echo = |message_bytes: usize| anello_load::LoadConfig {
            connections: cell.connections,
            verify: true,
            connect_timeout: TIMEOUT,
            stall_timeout: TIMEOUT,
            ..anello_load::LoadConfig::echo(target, message_bytes)
        };
        let in_time = |load: anello_load::LoadConfig| match cell.offered_per_second {
            Some(per_second) => {
                let mode = Mode::Open { per_second, arrivals: Arrivals::Constant, seed: 1 };
                anello_load::LoadConfig { mode, ..load }
            }
            None => load,
        };
        match cell.workload {
            Workload::Echo { message_bytes } => Ok(Box::new(self.open(&in_time(echo(message_bytes)))?)),
            Workload::Http { target: asked, pipelining, reconnect, cipher } => {
                let server = self.http_server(target, cipher)?;
                let load = lab_load_http::load(server, cell, (asked, pipelining, reconnect), TIMEOUT);
                Ok(Box::new(self.open(&in_time(load))?))
            }
            Workload::Idle => {
                let mut session = self.open(&echo(IDLE_MESSAGE_BYTES))?;
                let exchanged = session.run_slice(Duration::ZERO)?;
                Ok(Box::new(IdleSession { session, exchanged }))
            }
            Workload::Disk { operation, direct, block_bytes } => {
                let command = DiskCommand {
                    operation,
                    direct,
                    block_bytes,
                    depth: cell.connections,
                    duration_ns: 0,
                    seed: 0,
                };
                Ok(Box::new(DiskSession::connect(target, command, &self.disk_file)?))
            }
        }
    }

    fn check(&mut self, target: SocketAddr, check: Check, stop: &AtomicBool) -> Result<Vec<String>, String> {
        let server = self.http_server(target, self.checked_by)?;
        let timeout = if server.tls.is_some() { TLS_CHECK_TIMEOUT } else { CHECK_TIMEOUT };
        self.runtime.block_on(async {
            let checked = async {
                match check {
                    Check::CompleteBytes => check::complete_bytes(target, CHECK_TIMEOUT).await,
                    Check::StalledReader => check::stalled_reader(target, CHECK_TIMEOUT).await,
                    Check::ManyConnections(connections) => {
                        check::many_connections(target, connections, CHECK_TIMEOUT).await
                    }
                    Check::CompleteAnswers(served) => {
                        lab_load_http::check_complete_responses(server, served, timeout).await
                    }
                    Check::StalledDownload(served) => {
                        lab_load_http::check_stalled_download(server, served, timeout).await
                    }
                    Check::ManyRequests(served, connections) => {
                        lab_load_http::check_many_requests(server, served, connections, timeout).await
                    }
                }
            };
            unless_stopped(checked, stop).await
        })
    }
}

/// Does the work, but gives it up, and closes its connections, soon after `stop` has become true.
async fn unless_stopped<T>(
    work: impl Future<Output = Result<T, String>>,
    stop: &AtomicBool,
) -> Result<T, String> {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = timeout(STOP_POLL_INTERVAL, work.as_mut()).await {
            return done;
        }
        if stop.load(Ordering::Relaxed) {
            return Err("was stopped before its end".to_owned());
        }
    }
}

/// The connections of one contender in one cell.
struct NetworkSession {
    runtime: Rc<Runtime>,
    /// There until dropped.
    session: Option<Session>,
    /// Where its handshakes are told.
    handshakes: HandshakeKinds,
}

impl LoadSession for NetworkSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, String> {
        let Some(session) = &mut self.session else { return Err("is closed".to_owned()) };
        let slice = self.runtime.block_on(session.run_slice(duration));
        let (wrong, others): (Vec<_>, Vec<_>) =
            slice.errors.iter().partition(|error| WRONG_REPLY_KINDS.contains(&error.kind));
        Ok(SliceLoad {
            requests: slice.requests,
            elapsed_ns: slice.elapsed_ns,
            latency: slice.latency,
            errors: others
                .iter()
                .map(|error| (format!("{}: {}", error.kind, error.example), error.count))
                .collect(),
            wrong_replies: wrong.iter().map(|error| error.count).sum(),
            wrong_example: wrong
                .iter()
                .find(|error| error.kind != ErrorKind::WrongBytes)
                .map(|error| error.example.clone()),
            uncorrected: slice.uncorrected,
            offered: slice.offered,
            late: slice.late,
            unsent: slice.unsent,
            reopened: slice.reopened,
        })
    }
}

impl Drop for NetworkSession {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.handshakes.add(&session.handshakes());
            // Closed for good before the next contender has its turn.
            self.runtime.block_on(session.close());
        }
    }
}

/// Connections that have exchanged one message each.
struct IdleSession {
    session: NetworkSession,
    exchanged: SliceLoad,
}

impl LoadSession for IdleSession {
    /// Leaves them alone for so long.
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, String> {
        self.session.runtime.block_on(async { anello::time::sleep(duration).await });
        Ok(self.exchanged.clone())
    }
}

/// What a disk worker is told.
#[derive(Clone, Copy, Serialize)]
struct DiskCommand {
    operation: DiskOperation,
    direct: bool,
    block_bytes: usize,
    depth: usize,
    duration_ns: u64,
    seed: u64,
}

/// What it answers: what it did, or why it did not.
#[derive(Deserialize)]
struct DiskReply {
    error: Option<String>,
    #[serde(default)]
    operations: u64,
    #[serde(default)]
    elapsed_ns: u64,
    #[serde(default)]
    latency: String,
    #[serde(default)]
    errors: Vec<(String, u64)>,
    #[serde(default)]
    wrong_blocks: u64,
}

/// The control connection of a disk worker.
struct DiskSession {
    stream: BufReader<TcpStream>,
    command: DiskCommand,
    file: PathBuf,
}

impl DiskSession {
    fn connect(target: SocketAddr, command: DiskCommand, file: &Path) -> Result<Self, String> {
        let open = || {
            let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(stream)
        };
        let stream = open().map_err(|error: io::Error| error.to_string())?;
        Ok(Self { stream: BufReader::new(stream), command, file: file.to_owned() })
    }

    fn request(&mut self, duration: Duration) -> io::Result<DiskReply> {
        // A disk may hold an operation for long: what is in flight at the end of the slice is waited for.
        self.stream.get_ref().set_read_timeout(Some(duration + 6 * TIMEOUT))?;
        self.command.duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.command.seed += 1;
        let mut line = serde_json::to_string(&self.command)?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes())?;
        line.clear();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the worker ended the connection"));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl LoadSession for DiskSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, String> {
        let answer = self.request(duration).map_err(|error| error.to_string())?;
        if let Some(error) = answer.error {
            return Err(error);
        }
        let mut sum = latency_histogram();
        if !answer.latency.is_empty() {
            latency::add(&mut sum, &latency::decode(&answer.latency)?);
        }
        Ok(SliceLoad {
            requests: answer.operations,
            elapsed_ns: answer.elapsed_ns,
            latency: sum,
            errors: answer.errors,
            wrong_replies: answer.wrong_blocks,
            ..SliceLoad::empty()
        })
    }

    /// Has the kernel write what buffered writes have left in the page cache (fsync(2)).
    fn settle(&mut self) -> Result<(), String> {
        let writes =
            matches!(self.command.operation, DiskOperation::RandomWrite | DiskOperation::SequentialWrite);
        if !writes || self.command.direct {
            return Ok(());
        }
        File::open(&self.file)
            .and_then(|file| file.sync_all())
            .map_err(|error| format!("{} could not be synced: {error}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A worker that answers every line with this one.
    fn worker(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while let Some(Ok(line)) = lines.next() {
                assert!(
                    line.starts_with(r#"{"operation":"random_read","direct":true,"block_bytes":4096,"#),
                    "{line}"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    fn slice_of(answer: &'static str) -> Result<SliceLoad, String> {
        let workload =
            Workload::Disk { operation: DiskOperation::RandomRead, direct: true, block_bytes: 4096 };
        let cell = Cell { workload, ..Cell::echo(1, 16) };
        let mut session = LabLoad::new(LoadDriver::Epoll, Path::new("none"))
            .unwrap()
            .connect(worker(answer), &cell)
            .unwrap();
        session.run_slice(Duration::from_millis(5))
    }

    #[test]
    fn the_driver_has_the_name_that_results_hold() {
        for driver in [LoadDriver::Epoll, LoadDriver::Auto] {
            let name = LabLoad::new(driver, Path::new("none")).unwrap().driver_name();
            assert!(["epoll", "io_uring"].contains(&name.as_str()), "{name}");
            assert!(
                LoadDriver::named(&name).is_some_and(|named| driver == LoadDriver::Auto || named == driver)
            );
        }
    }

    #[test]
    fn the_file_is_synced_after_buffered_writes_only() {
        let settle = |operation, direct, file: &Path| {
            let workload = Workload::Disk { operation, direct, block_bytes: 4096 };
            let cell = Cell { workload, ..Cell::echo(1, 16) };
            let mut load = LabLoad::new(LoadDriver::Epoll, file).unwrap();
            load.connect(worker(""), &cell).unwrap().settle()
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        settle(DiskOperation::RandomWrite, false, file.path()).unwrap();
        // A file that is not there shows who would sync it.
        let absent = Path::new("/nowhere/at/all");
        let error = settle(DiskOperation::SequentialWrite, false, absent).unwrap_err();
        assert!(error.starts_with("/nowhere/at/all could not be synced"), "{error}");
        settle(DiskOperation::SequentialWrite, true, absent).unwrap();
        settle(DiskOperation::RandomRead, false, absent).unwrap();
    }

    #[test]
    fn a_check_ends_soon_after_the_run_is_to_stop() {
        // Nobody accepts, so the check would wait with all its patience.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let mut load = LabLoad::new(LoadDriver::Epoll, Path::new("/nowhere/at/all")).unwrap();
        let stopped = load.check(target, Check::CompleteBytes, &AtomicBool::new(true));
        assert_eq!(stopped.unwrap_err(), "was stopped before its end");
    }

    #[test]
    fn a_disk_worker_is_told_and_believed() {
        let slice = slice_of(
            "{\"operations\":12,\"elapsed_ns\":5,\"latency\":\"\",\"errors\":[[\"EIO\",2]],\"wrong_blocks\":1}\n",
        );
        let slice = slice.unwrap();
        assert_eq!((slice.requests, slice.elapsed_ns, slice.wrong_replies), (12, 5, 1));
        assert_eq!(slice.errors, [("EIO".to_owned(), 2)]);
        assert_eq!(slice_of("{\"error\":\"no room\"}\n").unwrap_err(), "no room");
        assert!(slice_of("hello\n").is_err());
    }
}
