//! The lab's load generator: sessions in a runtime on the calling thread, and control connections to disk workers.
//!
//! The load must be the same for all contenders, so the driver is selected once, regardless of `ANELLO_DRIVER`.

mod checks;
mod disk;
mod http;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anello::time::timeout;
use anello::{DriverKind, Runtime};
use anello_lab::tls::{Cipher, Identity};
use anello_lab::{Cell, Check, Load, LoadError, LoadSession, SliceLoad, Workload};
use anello_load::check::http::Server;
use anello_load::tls::HandshakeSummary;
use anello_load::{Arrivals, ErrorKind, LoadConfig, Mode, Session, Tls};
use clap::ValueEnum;

use self::disk::{DiskCommand, DiskSession};

/// Timeout for opening a contender's connections in a cell, and for a response. A working server needs far less time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which a running check polls the stop flag.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Errors for complete but wrong replies. All other errors also close the connection.
const WRONG_REPLY_KINDS: [ErrorKind; 3] =
    [ErrorKind::WrongBytes, ErrorKind::WrongStatus, ErrorKind::WrongLength];

/// Size of the single message exchanged on each idle connection at the start.
const IDLE_MESSAGE_BYTES: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadDriver {
    /// io_uring if available, else epoll.
    Auto,
    /// Available on all machines, which makes results from different machines comparable.
    Epoll,
    /// Fewer system calls in the load generator; fails if io_uring is unavailable.
    Uring,
}

impl LoadDriver {
    /// Returns the driver for a name returned by `LabLoad::driver_name`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "epoll" => Some(Self::Epoll),
            "io_uring" | "uring" => Some(Self::Uring),
            _ => None,
        }
    }
}

/// Kinds of TLS handshakes in all sessions: protocol version, cipher suite and key exchange.
type HandshakeKinds = Rc<RefCell<BTreeSet<String>>>;

pub struct LabLoad {
    runtime: Rc<Runtime>,
    disk_file: PathBuf,
    /// File with the certificate that all TLS servers use.
    certificate: Option<PathBuf>,
    check_cipher: Option<Cipher>,
    /// TLS configurations by cipher suite; `None` allows all suites.
    tls: Vec<(Option<Cipher>, Tls)>,
    handshakes: HandshakeKinds,
}

impl LabLoad {
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
            check_cipher: None,
            tls: Vec::new(),
            handshakes: HandshakeKinds::default(),
        })
    }

    /// Sets the TLS identity that HTTP servers in these cells use.
    pub fn with_identity(self, identity: Option<&Identity>, cells: &[Cell]) -> Self {
        let check_cipher = cells.iter().find_map(|cell| cell.workload.cipher());
        Self { certificate: identity.map(Identity::certificate), check_cipher, ..self }
    }

    /// Returns a sentence that lists the kinds of TLS handshakes so far; `None` if there were no handshakes.
    fn handshake_note(&self) -> Option<String> {
        let kinds: Vec<String> = self.handshakes.borrow().iter().cloned().collect();
        (!kinds.is_empty()).then(|| format!("Kinds of TLS handshakes: {}.", kinds.join("; ")))
    }

    fn http_server(&mut self, address: SocketAddr, cipher: Option<Cipher>) -> Result<Server, LoadError> {
        let Some(certificate) = &self.certificate else { return Ok(Server { address, tls: None }) };
        if let Some((_, tls)) = self.tls.iter().find(|(known, _)| *known == cipher) {
            return Ok(Server { address, tls: Some(tls.clone()) });
        }
        let tls = http::tls(certificate, cipher).map_err(LoadError::Failed)?;
        self.tls.push((cipher, tls.clone()));
        Ok(Server { address, tls: Some(tls) })
    }

    /// Returns the name of the driver as it appears in results: "epoll" or "io_uring".
    pub fn driver_name(&self) -> String {
        match self.runtime.driver().name {
            "uring" => "io_uring".to_owned(),
            name => name.to_owned(),
        }
    }

    fn open(&self, mut load: LoadConfig, cell: &Cell) -> Result<NetworkSession, LoadError> {
        if let Some(per_second) = cell.offered_per_second {
            load.mode = Mode::Open { per_second, arrivals: Arrivals::Constant, seed: 1 };
        }
        let (runtime, handshakes) = (Rc::clone(&self.runtime), Rc::clone(&self.handshakes));
        let session = runtime.block_on(Session::connect(&load))?;
        let errors = session.connect_errors().iter().map(|error| {
            format!("{} of {} connections failed: {}", error.count, load.connections, error.example)
        });
        let errors = errors.collect::<Vec<_>>().join("; ");
        let session = NetworkSession { runtime, session: Some(session), handshakes };
        if errors.is_empty() { Ok(session) } else { Err(LoadError::Failed(errors)) }
    }
}

impl Load for LabLoad {
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, LoadError> {
        let echo = |message_bytes: usize| LoadConfig {
            connections: cell.connections,
            verify: true,
            connect_timeout: TIMEOUT,
            stall_timeout: TIMEOUT,
            ..LoadConfig::echo(target, message_bytes)
        };
        match cell.workload {
            Workload::Echo { message_bytes } => Ok(Box::new(self.open(echo(message_bytes), cell)?)),
            Workload::Http { target: requested, pipelining, reconnect, cipher } => {
                let server = self.http_server(target, cipher)?;
                let load = http::load(server, cell, requested, pipelining, reconnect, TIMEOUT);
                Ok(Box::new(self.open(load, cell)?))
            }
            Workload::Idle => {
                let mut session = self.open(echo(IDLE_MESSAGE_BYTES), cell)?;
                let exchanged = session.run_slice(Duration::ZERO)?;
                Ok(Box::new(IdleSession { session, exchanged }))
            }
            Workload::Disk { operation, direct, block_bytes } => {
                let depth = cell.connections;
                let command = DiskCommand { operation, direct, block_bytes, depth, duration_ns: 0, seed: 0 };
                Ok(Box::new(DiskSession::connect(target, command, &self.disk_file)?))
            }
            other => Err(LoadError::Failed(format!("unsupported workload {other:?}"))),
        }
    }

    fn check(
        &mut self,
        target: SocketAddr,
        check: Check,
        stop: &AtomicBool,
    ) -> Result<Vec<String>, LoadError> {
        let server = self.http_server(target, self.check_cipher)?;
        self.runtime.block_on(async {
            let mut running = pin!(checks::run(server, check));
            loop {
                if let Ok(result) = timeout(STOP_POLL_INTERVAL, running.as_mut()).await {
                    return result.map_err(LoadError::Failed);
                }
                if stop.load(Ordering::Relaxed) {
                    // Dropping the check closes its connections.
                    return Err(LoadError::Interrupted);
                }
            }
        })
    }

    fn notes(&mut self) -> Result<Vec<String>, LoadError> {
        let driver = format!("The load generator ran on anello's {} driver.", self.driver_name());
        Ok([driver].into_iter().chain(self.handshake_note()).collect())
    }
}

/// The connections to one contender in one cell.
struct NetworkSession {
    runtime: Rc<Runtime>,
    /// `Some` until the session is dropped.
    session: Option<Session>,
    /// Receives the kinds of the session's handshakes when the session is dropped.
    handshakes: HandshakeKinds,
}

impl LoadSession for NetworkSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError> {
        let Some(session) = &mut self.session else {
            return Err(LoadError::Failed("session is closed".to_owned()));
        };
        let slice = self.runtime.block_on(session.run_slice(duration));
        let (wrong, others): (Vec<_>, Vec<_>) =
            slice.interval.counts.errors.iter().partition(|error| WRONG_REPLY_KINDS.contains(&error.kind));
        let errors = others.iter().map(|error| (format!("{}: {}", error.kind, error.example), error.count));
        let wrong_example = wrong.iter().find(|error| error.kind != ErrorKind::WrongBytes);
        Ok(SliceLoad {
            requests: slice.interval.requests,
            elapsed_ns: slice.interval.elapsed_ns,
            latency: slice.interval.latency,
            errors: errors.collect(),
            wrong_replies: wrong.iter().map(|error| error.count).sum(),
            wrong_example: wrong_example.map(|error| error.example.clone()),
            uncorrected: slice.interval.uncorrected,
            offered: slice.interval.counts.offered,
            late: slice.interval.counts.late,
            unsent: slice.interval.counts.unsent,
            reopened: slice.reopened,
        })
    }
}

impl Drop for NetworkSession {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let handshakes = session.handshakes();
            self.handshakes.borrow_mut().extend(handshakes.iter().map(HandshakeSummary::in_words));
            // Waits until the connections are closed, so that closing does not overlap with the next contender's slice.
            self.runtime.block_on(session.close());
        }
    }
}

/// Idle connections, each of which has exchanged one message.
struct IdleSession {
    session: NetworkSession,
    /// Result of the exchange, which every slice reports again.
    exchanged: SliceLoad,
}

impl LoadSession for IdleSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError> {
        self.session.runtime.block_on(async { anello::time::sleep(duration).await });
        Ok(self.exchanged.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use anello_lab::DiskOperation;

    use super::*;

    /// Starts a worker that replies to each command with this line.
    fn worker(reply: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while let Some(Ok(line)) = lines.next() {
                let command = r#"{"operation":"random_read","direct":true,"block_bytes":4096,"#;
                assert!(line.starts_with(command), "{line}");
                writeln!(stream, "{reply}").unwrap();
            }
        });
        address
    }

    fn disk_session(
        reply: &'static str,
        operation: DiskOperation,
        direct: bool,
        file: &Path,
    ) -> Box<dyn LoadSession> {
        let workload = Workload::Disk { operation, direct, block_bytes: 4096 };
        let cell = Cell { workload, ..Cell::echo(1, 16) };
        LabLoad::new(LoadDriver::Epoll, file).unwrap().connect(worker(reply), &cell).unwrap()
    }

    #[test]
    fn driver_name_matches_results() {
        for driver in [LoadDriver::Epoll, LoadDriver::Auto] {
            let name = LabLoad::new(driver, Path::new("none")).unwrap().driver_name();
            assert!(["epoll", "io_uring"].contains(&name.as_str()), "{name}");
            let named = LoadDriver::named(&name).unwrap();
            assert!(driver == LoadDriver::Auto || named == driver);
        }
    }

    #[test]
    fn note_lists_handshake_kinds_once() {
        let load = LabLoad::new(LoadDriver::Epoll, Path::new("none")).unwrap();
        assert_eq!(load.handshake_note(), None);
        for suite in ["B", "A", "A"] {
            let [version, cipher_suite, exchange] = ["TLS 1.3", suite, "X25519"].map(str::to_owned);
            let key_exchange = Some(exchange);
            let kind = HandshakeSummary { version, cipher_suite, key_exchange, resumed: false, count: 7 };
            load.handshakes.borrow_mut().insert(kind.in_words());
        }
        let expected = "Kinds of TLS handshakes: TLS 1.3, A, X25519; TLS 1.3, B, X25519.";
        assert_eq!(load.handshake_note().as_deref(), Some(expected));
    }

    #[test]
    fn only_buffered_writes_are_synced() {
        let settle = |operation, direct, file: &Path| disk_session("", operation, direct, file).settle();
        let file = tempfile::NamedTempFile::new().unwrap();
        settle(DiskOperation::RandomWrite, false, file.path()).unwrap();
        // Syncing a nonexistent file fails, which shows whether the session tries to sync.
        let absent = Path::new("/nowhere/at/all");
        let error = settle(DiskOperation::SequentialWrite, false, absent).unwrap_err().to_string();
        assert!(error.starts_with("cannot sync /nowhere/at/all: "), "{error}");
        settle(DiskOperation::SequentialWrite, true, absent).unwrap();
        settle(DiskOperation::RandomRead, false, absent).unwrap();
    }

    #[test]
    fn stop_flag_interrupts_check() {
        // No thread accepts connections, so the check would otherwise wait for its timeout.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let mut load = LabLoad::new(LoadDriver::Epoll, Path::new("none")).unwrap();
        let stopped = load.check(target, Check::CompleteBytes(None), &AtomicBool::new(true));
        assert!(matches!(stopped, Err(LoadError::Interrupted)));
    }

    #[test]
    fn disk_session_parses_replies() {
        let slice_of = |reply| {
            let mut session = disk_session(reply, DiskOperation::RandomRead, true, Path::new("none"));
            session.run_slice(Duration::from_millis(5))
        };
        let reply = r#"{"operations":12,"elapsed_ns":5,"latency":"","errors":[["EIO",2]],"wrong_blocks":1}"#;
        let slice = slice_of(reply).unwrap();
        assert_eq!((slice.requests, slice.elapsed_ns, slice.wrong_replies), (12, 5, 1));
        assert_eq!(slice.errors, [("EIO".to_owned(), 2)]);
        assert_eq!(slice_of(r#"{"error":"no space"}"#).unwrap_err().to_string(), "no space");
        assert!(slice_of("hello").is_err());
    }
}
