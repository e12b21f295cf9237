//! Code shared by the runtime's tests: the driver setups, a watchdog, and test data that reveals lost or misplaced
//! bytes.
//!
//! A test is written once against the public API. It runs on every driver that is available here, in every driver
//! configuration. Unavailable setups are reported on standard error and skipped. No result depends on timing: the
//! watchdog only terminates tests that hang.

#![allow(dead_code, reason = "each test program uses only a part of this module")]

pub mod child;
pub mod event_loops;
pub mod groups;
pub mod server;
pub mod socket_path;

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use anello::fs::File;
use anello::net::{Stream, TcpListener, TcpStream};
use anello::{
    DisabledFeatures, DriverKind, DriverOptions, Runtime, RuntimeBuilder, SimFaults, SimModel, SimOptions,
    SubmissionPolling, TaskWork, ZeroCopy,
};
use sha2::{Digest, Sha256};

/// Time after which a test is considered to hang: a hundred times as long as any test needs.
pub fn hang_timeout() -> Duration {
    scaled_timeout(Duration::from_secs(60))
}

/// Multiplies a test's time limit by `ANELLO_TIMEOUT_FACTOR`, which is set if the processor is emulated or a memory
/// checker is used.
pub fn scaled_timeout(limit: Duration) -> Duration {
    limit * std::env::var("ANELLO_TIMEOUT_FACTOR").map_or(1, |factor| factor.parse().unwrap())
}

/// Returns the major and minor version of the kernel.
pub fn kernel_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("kernel release");
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Address that test listeners bind to.
pub const ANY_PORT: &str = "127.0.0.1:0";

/// More bytes than fit in the kernel's buffers for one connection.
pub const LARGE: usize = 32 << 20;

/// Number of turns after which every task that can make progress has done so.
pub const TURNS: usize = 1000;

/// Returns bytes whose owner calls `on_drop` when it is dropped.
pub fn bytes_of_owner(on_drop: impl FnMut() + Send + 'static) -> bytes::Bytes {
    struct Owner<F: FnMut()>(F);

    impl<F: FnMut()> AsRef<[u8]> for Owner<F> {
        fn as_ref(&self) -> &[u8] {
            b"owned bytes"
        }
    }

    impl<F: FnMut()> Drop for Owner<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    bytes::Bytes::from_owner(Owner(on_drop))
}

/// Driver and its options.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    pub kind: DriverKind,
    pub options: DriverOptions,
}

impl Setup {
    pub fn new(name: &'static str, kind: DriverKind, change: impl FnOnce(&mut DriverOptions)) -> Self {
        let mut options = DriverOptions::default();
        change(&mut options);
        Self { name, kind, options }
    }

    pub fn builder(&self) -> RuntimeBuilder {
        let builder = Runtime::builder().driver(self.kind.clone()).options(self.options.clone());
        builder.driver_from_environment(false)
    }

    pub fn runtime(&self) -> Runtime {
        self.builder().build().unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// Runs a future on a new runtime.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime().block_on(future)
    }

    pub fn is_uring(&self) -> bool {
        self.kind == DriverKind::Uring
    }

    /// Returns a copy with changed options.
    pub fn with(&self, change: impl FnOnce(&mut DriverOptions)) -> Self {
        let mut setup = self.clone();
        change(&mut setup.options);
        setup
    }

    /// Returns whether the setup is available here, and prints the reason if not.
    fn is_available(&self) -> bool {
        match self.builder().build() {
            Ok(_) => true,
            Err(error) if self.is_uring() && is_uring_unavailable(&error) => {
                eprintln!("skipped on {}: {error}", self.name);
                false
            }
            Err(error) => panic!("{}: {error}", self.name),
        }
    }
}

/// Returns whether the error means that io_uring is unavailable here, rather than a defect of the driver.
pub fn is_uring_unavailable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported | io::ErrorKind::OutOfMemory
    )
}

/// Returns the two Linux drivers with their default options.
pub fn both_drivers() -> Vec<Setup> {
    vec![Setup::new("uring", DriverKind::Uring, |_| {}), Setup::new("epoll", DriverKind::Epoll, |_| {})]
}

/// Returns the name, the feature expected to be missing, and the setup for each io_uring fallback step.
pub fn fallback_setups() -> Vec<(&'static str, &'static str, Setup)> {
    let step = |name, feature, disable: fn(&mut DisabledFeatures)| {
        (
            name,
            feature,
            Setup::new(name, DriverKind::Uring, |options| disable(&mut options.testing.disabled_features)),
        )
    };
    vec![
        step("uring without NO_SQARRAY", "no-sqarray", |disabled| disabled.no_sqarray = true),
        step("uring without DEFER_TASKRUN", "defer-taskrun", |disabled| disabled.defer_taskrun = true),
        step("uring without SINGLE_ISSUER", "single-issuer", |disabled| disabled.single_issuer = true),
        step("uring without COOP_TASKRUN", "coop-taskrun", |disabled| disabled.coop_taskrun = true),
        step("uring without multishot receive", "multishot-recv", |disabled| {
            disabled.multishot_receive = true
        }),
        step("uring without multishot accept", "multishot-accept", |disabled| {
            disabled.multishot_accept = true
        }),
        step("uring without buffer ring", "buffer-ring", |disabled| disabled.buffer_ring = true),
        step("uring without MSG_RING", "msg-ring", |disabled| disabled.msg_ring = true),
        step("uring without registered ring", "registered-ring", |disabled| disabled.registered_ring = true),
        step("uring without CQE_SKIP_SUCCESS", "cqe-skip", |disabled| disabled.cqe_skip = true),
        step("uring without SEND_ZC", "send-zc", |disabled| disabled.zero_copy = true),
    ]
}

fn disable_all(disabled: &mut DisabledFeatures) {
    disabled.no_sqarray = true;
    disabled.defer_taskrun = true;
    disabled.single_issuer = true;
    disabled.coop_taskrun = true;
    disabled.multishot_receive = true;
    disabled.multishot_accept = true;
    disabled.buffer_ring = true;
    disabled.msg_ring = true;
    disabled.registered_ring = true;
    disabled.cqe_skip = true;
    disabled.zero_copy = true;
}

/// Sets every queue and buffer to its minimum size.
pub fn smallest(options: &mut DriverOptions) {
    options.testing.sq_entries = 2;
    options.testing.cq_entries = 4;
    options.testing.initial_receive_buffers = 1;
    options.max_receive_buffers = 2;
    options.receive_buffer_bytes = 64;
    options.max_received_chunks = 1;
    options.max_send_queue_bytes = 100;
    options.max_accept_queue = 1;
}

/// Returns all setups on Linux.
pub fn all_drivers() -> Vec<Setup> {
    let uring = |name, change: fn(&mut DriverOptions)| Setup::new(name, DriverKind::Uring, change);
    let epoll = |name, change: fn(&mut DriverOptions)| Setup::new(name, DriverKind::Epoll, change);
    let mut setups = both_drivers();
    setups.extend(fallback_setups().into_iter().map(|(_, _, setup)| setup));
    setups.extend([
        uring("uring as of Linux 5.13", |options| disable_all(&mut options.testing.disabled_features)),
        uring("uring with batched events", |options| options.max_batch_delay = Duration::from_micros(100)),
        uring("uring with batched events and cooperative task work", |options| {
            options.max_batch_delay = Duration::from_micros(100);
            options.task_work = TaskWork::Cooperative;
        }),
        uring("uring with cooperative task work", |options| options.task_work = TaskWork::Cooperative),
        uring("uring without direct sends", |options| options.direct_send_threshold_bytes = usize::MAX),
        uring("uring with direct sends only", |options| options.direct_send_threshold_bytes = 0),
        uring("uring with zero-copy sends", |options| {
            options.zero_copy = ZeroCopy::Always { threshold_bytes: 1000 };
        }),
        uring("uring with submission polling", |options| {
            options.submission_polling = Some(SubmissionPolling::default().idle_ms(1));
        }),
        uring("uring, all sizes small", smallest),
        uring("uring, all sizes small, a completion per send", |options| {
            smallest(options);
            options.testing.disabled_features.cqe_skip = true;
            options.testing.disabled_features.multishot_receive = true;
        }),
        uring("uring, spinning", |options| options.spin = Duration::from_micros(20)),
        epoll("epoll, all sizes small", smallest),
        epoll("epoll, deferring every small send", |options| {
            options.testing.deferred_send_threshold_edges = 0
        }),
        epoll("epoll without epoll_pwait2", |options| options.testing.disabled_features.epoll_pwait2 = true),
        epoll("epoll, spinning", |options| options.spin = Duration::from_micros(20)),
    ]);
    setups
}

/// Returns the simulated kernels, for tests that use only the runtime's sockets.
pub fn simulated_drivers() -> Vec<Setup> {
    let seed = 0xa11e_1105;
    let sim = |name, model, change: fn(&mut DriverOptions)| {
        Setup::new(name, DriverKind::Sim(SimOptions::new(seed).model(model)), change)
    };
    vec![
        sim("sim, completion model", SimModel::Completion, |_| {}),
        sim("sim, readiness model", SimModel::Readiness, |_| {}),
        sim("sim, completion model, all sizes small", SimModel::Completion, smallest),
        sim("sim, readiness model, all sizes small", SimModel::Readiness, smallest),
    ]
}

/// Returns the simulated kernel for a seed, with random options and faults, and whether it loses connections.
pub fn random_simulator(seed: u64) -> (Setup, bool) {
    let mut random = Rng::with_seed(!seed);
    let model = if random.usize(..2) == 0 { SimModel::Completion } else { SimModel::Readiness };
    let rate = [0, 5, 50, 300][random.usize(..4)];
    let is_lossy = random.usize(..3) == 0;
    let mut faults = if is_lossy { SimFaults::all(rate) } else { SimFaults::lossless(rate) };
    if !is_lossy {
        // If no descriptor is free, a listener closes client connections. Clients get no error, but lose data.
        faults.descriptor_exhaustion = 0;
    }
    let kind = DriverKind::Sim(SimOptions::new(seed).model(model).faults(faults));
    let setup = Setup::new("sim", kind, |options| {
        options.testing.initial_receive_buffers = 1 << random.usize(..7);
        options.max_receive_buffers = options.testing.initial_receive_buffers << random.usize(..3);
        options.receive_buffer_bytes = 64 << random.usize(..7);
        options.max_send_queue_bytes = 1 << (6 + random.usize(..11));
        options.max_received_chunks = 1 + random.usize(..16);
        options.max_accept_queue = 1 + random.usize(..8);
        options.direct_send_threshold_bytes = 1 << (6 + random.usize(..11));
        options.testing.deferred_send_threshold_edges = random.usize(..4);
    });
    (setup, is_lossy)
}

/// Runs the test on the two Linux drivers with their default options.
pub fn on_both_drivers(test: impl Fn(&Setup) + Send + Sync + 'static) {
    on_each(both_drivers(), test);
}

/// Runs the test on all setups on Linux.
pub fn on_every_driver(test: impl Fn(&Setup) + Send + Sync + 'static) {
    on_each(all_drivers(), test);
}

/// Runs the test on all setups, including the simulated kernels. The test may use only the runtime's sockets.
pub fn on_every_driver_and_sim(test: impl Fn(&Setup) + Send + Sync + 'static) {
    on_each(all_drivers().into_iter().chain(simulated_drivers()).collect(), test);
}

/// Runs the test on each of these setups under the watchdog.
pub fn on_each(setups: Vec<Setup>, test: impl Fn(&Setup) + Send + Sync + 'static) {
    let test = Arc::new(test);
    for setup in setups {
        let (name, test) = (setup.name, Arc::clone(&test));
        within(hang_timeout(), name, move || {
            if setup.is_available() {
                test(&setup);
            }
        });
    }
}

/// Runs a function on a new thread, and fails if it does not return within the limit.
pub fn within<T: Send + 'static>(limit: Duration, name: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (report, reports) = mpsc::channel();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The receiver has been dropped if the test has already failed.
        report.send(run()).ok();
    });
    let thread = thread.unwrap();
    match reports.recv_timeout(limit) {
        Ok(value) => {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            value
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}: no result within {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => {
                eprintln!("failed on {name}");
                std::panic::resume_unwind(panic)
            }
            Ok(()) => unreachable!("a thread that returns without a panic sends its result"),
        },
    }
}

/// Creates a connection within one runtime, and returns the client and server sides.
pub async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(ANY_PORT)?;
    let client = TcpStream::connect(listener.local_addr()?).await?;
    Ok((client, listener.accept().await?))
}

/// Sends a message to an echo peer and reads it back. Does both concurrently, because a large message does not fit into
/// any buffer.
pub async fn exchange<S: Stream>(stream: &mut S, message: &[u8]) {
    let mut response = vec![0; message.len()];
    let (mut reader, mut writer) = stream.split();
    let (written, read) = join(writer.write_all(message), reader.read_exact(&mut response)).await;
    written.unwrap();
    read.unwrap();
    assert_same_bytes(&response, message);
}

/// Returns pseudo-random bytes, so that a lost, duplicated or misplaced byte is detected.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let generate = || {
        let mut bytes = vec![0; length];
        Rng::with_seed(seed).fill(&mut bytes);
        bytes
    };
    if length < 1 << 20 {
        return generate();
    }
    // Without optimization, this takes a second for `LARGE` bytes, and many tests use the same bytes on each driver.
    static LONG_PATTERNS: Mutex<BTreeMap<(u64, usize), Vec<u8>>> = Mutex::new(BTreeMap::new());
    LONG_PATTERNS.lock().unwrap().entry((seed, length)).or_insert_with(generate).clone()
}

/// Returns an open unnamed file that contains these bytes.
pub fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("disk space");
    file.into()
}

/// Returns whether a file is on a file system in memory. Since Linux 6.6, `tmpfs` accepts and ignores `O_DIRECT`.
pub fn is_in_memory(file: impl AsFd) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    matches!(rustix::fs::fstatfs(file).unwrap().f_type as u64, TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Opens a new file of 256 blocks of 4 KiB for direct I/O or, where this is not supported, through the page cache.
pub fn block_file(seed: u64) -> File {
    let (named, content) = (tempfile::NamedTempFile::new().unwrap(), pattern(seed, 1 << 20));
    fs::write(named.path(), &content).unwrap();
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    let cached = options.open(named.path()).unwrap();
    let direct = options.custom_flags(libc::O_DIRECT).open(named.path());
    direct.ok().filter(|_| !is_in_memory(&cached)).unwrap_or(cached).into()
}

/// Fails with the first differing offset instead of printing megabytes of data.
#[track_caller]
pub fn assert_same_bytes(actual: &[u8], expected: &[u8]) {
    // Without optimization, comparing whole slices is much faster than comparing byte by byte.
    if actual == expected {
        return;
    }
    if let Some(offset) = actual.iter().zip(expected).position(|(one, other)| one != other) {
        panic!("byte {offset} of {} differs", expected.len());
    }
    panic!("the number of bytes differs: {} instead of {}", actual.len(), expected.len());
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// All random values in a test derive from a seed that is constant or printed.
pub use fastrand::Rng;

/// Flag that any thread can raise once, and that one task can wait for.
#[derive(Clone, Default)]
pub struct Flag(Arc<(AtomicBool, Mutex<Option<Waker>>)>);

impl Flag {
    pub fn raise(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        if let Some(waker) = self.0.1.lock().unwrap().take() {
            waker.wake();
        }
    }

    pub async fn wait(&self) {
        std::future::poll_fn(|context| {
            *self.0.1.lock().unwrap() = Some(context.waker().clone());
            if self.0.0.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Polls a future once and drops it. Returns its output if it was ready.
pub async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Runs both futures concurrently in one task.
pub async fn join<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(move |context| {
        poll_into(&mut first, one.as_mut(), context);
        poll_into(&mut second, other.as_mut(), context);
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (left, right) => {
                (first, second) = (left, right);
                Poll::Pending
            }
        }
    })
    .await
}

fn poll_into<F: Future>(output: &mut Option<F::Output>, future: Pin<&mut F>, context: &mut Context<'_>) {
    if output.is_none()
        && let Poll::Ready(ready) = future.poll(context)
    {
        *output = Some(ready);
    }
}

/// Polls a future at most `polls` times, then drops it. Returns the output if the future completed.
pub async fn poll_at_most<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Pending if left == 0 => Poll::Ready(None),
            polled => polled.map(Some),
        }
    })
    .await
}
