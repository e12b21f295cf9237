//! Code shared by the runtime's tests: pairs of sockets, files, futures that are polled by hand, and the resource usage of processes.
//! The set-ups, the watchdog and test data are in the crate `anello-test`.

#![allow(dead_code, reason = "each test program uses only a part of this module")]

pub mod event_loops;
pub mod fork;
pub mod usage;

use std::fs;
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{self, PanicHookInfo};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use anello::DriverKind;
use anello::fs::File;
use anello::net::{ByteStream, TcpListener, TcpStream};
use anello::sim::{SimFaults, SimModel, SimOptions};
pub use anello_test::*;
use sha2::{Digest, Sha256};

/// Returns the major and minor version of the kernel.
pub fn kernel_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("kernel release");
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// More bytes than fit in the kernel's buffers for one connection.
pub const LARGE: usize = 32 << 20;

/// Number of turns after which every task that can make progress has done so.
pub const TURNS: usize = 1000;

/// Returns all received bytes to the peer until EOF. Returns their number.
pub async fn echo(stream: &mut impl ByteStream) -> io::Result<u64> {
    let (mut reader, mut writer) = stream.split();
    let mut echoed_bytes = 0;
    while let Some(chunk) = reader.recv().await? {
        echoed_bytes += chunk.len() as u64;
        writer.send(chunk).await?;
    }
    writer.flush().await?;
    Ok(echoed_bytes)
}

/// Leaks a value like `mem::forget`, but keeps it reachable for leak checkers.
pub fn forget<T>(forgotten: T) {
    static FORGOTTEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let address = std::ptr::from_mut(Box::leak(Box::new(forgotten))).expose_provenance();
    FORGOTTEN.lock().unwrap_or_else(PoisonError::into_inner).push(address);
}

/// Polls a future once. Then forgets it, or returns it to a caller that keeps it without polling it.
pub fn abandon<F: Future>(future: F, is_kept: bool) -> Option<Pin<Box<F>>> {
    let mut future = Box::pin(future);
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    if is_kept {
        return Some(future);
    }
    forget(future);
    None
}

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

/// Returns the set-ups between which listener groups and messages to other workers differ.
pub fn group_setups() -> Vec<Setup> {
    let mut setups = all_drivers();
    let names = ["uring", "uring-min", "uring-no-multishot-accept", "uring-no-defer-taskrun", "epoll"];
    setups.retain(|setup| names.contains(&setup.name));
    setups
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

/// Creates a connection within one runtime, and returns the client and server sides.
pub async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(ANY_PORT)?;
    let client = TcpStream::connect(listener.local_addr()?).await?;
    Ok((client, listener.accept().await?))
}

/// Sends a message to an echo peer and reads it back. Does both concurrently, because a large message does not fit into
/// any buffer.
pub async fn exchange<S: ByteStream>(stream: &mut S, message: &[u8]) {
    let mut response = vec![0; message.len()];
    let (mut reader, mut writer) = stream.split();
    let (written, read) = join(writer.write_all(message), reader.read_exact(&mut response)).await;
    written.unwrap();
    read.unwrap();
    assert_same_bytes(&response, message);
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

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Calls `hook` for every panic of this process from now on. The panic is printed as before if `hook` returns `true`.
pub fn add_panic_hook(hook: impl Fn(&PanicHookInfo<'_>) -> bool + Send + Sync + 'static) {
    static CHANGES: Mutex<()> = Mutex::new(());
    let _alone = CHANGES.lock().unwrap();
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if hook(info) {
            before(info);
        }
    }));
}

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

/// Returns a set-up whose runtimes and event loops wait until peers that read have acknowledged zero-copy sends, however
/// slow the machine is.
pub fn with_long_ack_timeout(setup: &Setup) -> Setup {
    setup.with(|options| options.testing.zero_copy_ack_timeout = hang_timeout())
}
