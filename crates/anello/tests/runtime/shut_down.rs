//! Application code during runtime shutdown: destructors of wakers and byte owners that panic or drop the runtime, log
//! subscribers that panic, `process::exit`, and sockets and futures that outlive the runtime.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::io::{ErrorKind, Read};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream as StdStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use anello::event_loop::{EventLoop, Events};
use anello::net::{SendBuf, TcpStream, UnixStream};
use anello::time::sleep;
use anello::{Runtime, spawn, yield_now};
use bytes::Bytes;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::common::*;

/// Larger than what a Unix socket accepts in one call.
const MESSAGE_BYTES: usize = 2 << 20;

/// Creates a runtime that does not wait for peers when it is dropped.
fn runtime_without_drain(setup: &Setup) -> Runtime {
    setup.builder().drain_timeout(Duration::ZERO).build().unwrap()
}

/// Drops a runtime, which must not unwind, even if destructors panic.
#[track_caller]
fn assert_drops(setup: &Setup, runtime: Runtime) {
    assert!(catch_unwind(AssertUnwindSafe(|| drop(runtime))).is_ok(), "{}: the drop panicked", setup.name);
}

fn poll_once<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Action performed by a destructor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropAction {
    Panic,
    DropRuntime,
    DropRuntimeAndPanic,
}

const ALL: [DropAction; 3] = [DropAction::Panic, DropAction::DropRuntime, DropAction::DropRuntimeAndPanic];

thread_local! {
    /// Runtime that is dropped by a destructor.
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

impl DropAction {
    fn act(self) {
        if self != Self::Panic {
            drop(RUNTIME.take());
        }
        if self != Self::DropRuntime {
            panic!("deliberate panic in a destructor");
        }
    }
}

struct Destructive(DropAction, Arc<AtomicUsize>);

impl Wake for Destructive {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Destructive {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.act();
    }
}

/// Returns a waker whose destructor performs the action, and the number of times the destructor has run.
fn destructive_waker(action: DropAction) -> (Waker, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    (Waker::from(Arc::new(Destructive(action, Arc::clone(&dropped)))), dropped)
}

/// Memory that is overwritten and leaked when it is dropped, so that late reads are detected.
struct Poisoned {
    bytes: &'static mut [u8],
    dropped: Arc<AtomicUsize>,
    action: Option<DropAction>,
}

static POISONED: Mutex<Vec<&'static mut [u8]>> = Mutex::new(Vec::new());

impl AsRef<[u8]> for Poisoned {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for Poisoned {
    fn drop(&mut self) {
        self.bytes.fill(0xdd);
        POISONED.lock().unwrap().push(std::mem::take(&mut self.bytes));
        self.dropped.fetch_add(1, Ordering::SeqCst);
        if let Some(action) = self.action {
            action.act();
        }
    }
}

/// Returns bytes that are overwritten when they are dropped, and the number of times that has happened.
fn poisoned(bytes: Vec<u8>, action: Option<DropAction>) -> (Bytes, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let owner = Poisoned { bytes: bytes.leak(), dropped: Arc::clone(&dropped), action };
    (Bytes::from_owner(owner), dropped)
}

#[test]
fn unix_connect_after_its_runtime_fails() {
    on_every_driver(|setup| {
        let name = format!("anello-shut-down-{}-{:?}", std::process::id(), thread::current().id());
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(format!("\0{name}")).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let listener = UnixListener::from(socket);
        let address: SocketAddr = listener.local_addr().unwrap();
        let _fills_the_backlog = StdStream::connect_addr(&address).unwrap();
        let runtime = setup.runtime();
        // Keeps the ring open, so all operations stay in flight.
        let _handle = runtime.handle();
        let mut connecting = Box::pin(UnixStream::connect_addr(&address));
        runtime.block_on(async {
            let polled = poll_fn(|context| Poll::Ready(connecting.as_mut().poll(context))).await;
            assert!(polled.is_pending(), "{}: the backlog had room", setup.name);
            // Waits until the delay before the next attempt to connect has elapsed.
            sleep(Duration::from_millis(20)).await;
        });
        listener.accept().unwrap();
        drop(runtime);
        let Poll::Ready(connected) = poll_once(connecting.as_mut(), Waker::noop()) else {
            panic!("{}: the future waits for a dropped runtime", setup.name)
        };
        assert_eq!(
            connected.err().map(|error| error.kind()),
            Some(ErrorKind::NotConnected),
            "{}",
            setup.name
        );
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().err().map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    });
}

#[test]
fn memory_of_send_in_flight_outlives_panicking_wakers_at_shutdown() {
    on_every_driver(|setup| {
        let runtime = runtime_without_drain(setup);
        // Keeps the ring open, so all operations stay in flight.
        let _handle = runtime.handle();
        let expected = pattern(1, MESSAGE_BYTES);
        let (bytes, freed) = poisoned(expected.clone(), None);
        let (mut streams, mut peers, mut wakers) = (Vec::new(), Vec::new(), Vec::new());
        runtime.block_on(async {
            for _ in 0..3 {
                let (near, far) = StdStream::pair().unwrap();
                streams.push(UnixStream::from_std(near).unwrap());
                peers.push(far);
            }
            // The kernel takes the bytes it has room for, and the operation waits for room for the rest.
            assert!(poll_at_most(1, streams[1].send(bytes)).await.is_some());
            yield_now().await;
            sleep(Duration::from_millis(1)).await;
            let mut wait = |pending: &mut dyn FnMut(&Waker) -> bool| {
                let (waker, dropped) = destructive_waker(DropAction::Panic);
                assert!(pending(&waker));
                wakers.push(dropped);
            };
            for stream in &mut streams {
                wait(&mut |waker| poll_once(pin!(stream.recv()), waker).is_pending());
            }
            wait(&mut |waker| poll_once(pin!(streams[1].flush()), waker).is_pending());
            sleep(Duration::from_millis(1)).await;
        });
        assert_drops(setup, runtime);
        // The peer reads EOF once nothing is in flight. Until then, the kernel keeps sending as the peer reads.
        let mut received = Vec::new();
        peers[1].set_read_timeout(Some(hang_timeout())).unwrap();
        peers[1].read_to_end(&mut received).unwrap();
        assert_same_bytes(&received, &expected[..received.len()]);
        assert!(received.len() < expected.len(), "{}: all bytes had been sent", setup.name);
        drop(streams);
        assert_eq!(freed.load(Ordering::SeqCst), 1, "{}: the memory was leaked or freed twice", setup.name);
        let dropped: Vec<_> = wakers.iter().map(|dropped| dropped.load(Ordering::SeqCst)).collect();
        assert_eq!(dropped, [1; 4], "{}", setup.name);
    });
}

/// Returns two connected streams on a runtime that a destructor will drop.
fn pair_of_stashed_runtime(setup: &Setup) -> (TcpStream, TcpStream) {
    let runtime = runtime_without_drain(setup);
    let streams = runtime.block_on(pair()).unwrap();
    RUNTIME.set(Some(runtime));
    streams
}

/// Asserts that the runtime has been dropped or is being dropped: the stream no longer receives anything.
fn assert_gone(setup: &Setup, action: DropAction, stream: &mut TcpStream) {
    // Drops the runtime if the destructor has not dropped it.
    drop(RUNTIME.take());
    let polled = poll_once(pin!(stream.recv()), Waker::noop());
    let Poll::Ready(Err(error)) = polled else {
        panic!("{} {action:?}: {polled:?} from a stream of a dropped runtime", setup.name)
    };
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{} {action:?}", setup.name);
}

/// Returns a pair of streams and a counter. The first stream holds the last clone of a waker whose destructor performs
/// the action and increments the counter.
fn pair_with_destructive_waker(
    setup: &Setup,
    action: DropAction,
) -> (TcpStream, TcpStream, Arc<AtomicUsize>) {
    let (mut near, far) = pair_of_stashed_runtime(setup);
    let (waker, dropped) = destructive_waker(action);
    assert!(poll_once(pin!(near.recv()), &waker).is_pending());
    (near, far, dropped)
}

#[test]
fn destructor_of_replaced_waker_can_drop_runtime_and_panic() {
    on_every_driver_and_sim(|setup| {
        for action in ALL {
            let (mut near, mut far, dropped) = pair_with_destructive_waker(setup, action);
            let polled =
                catch_unwind(AssertUnwindSafe(|| poll_once(pin!(near.recv()), Waker::noop()).is_pending()));
            assert_eq!(
                (polled.ok(), dropped.load(Ordering::SeqCst)),
                (Some(true), 1),
                "{} {action:?}",
                setup.name
            );
            assert_gone(setup, action, &mut far);
            assert_gone(setup, action, &mut near);
        }
    });
}

#[test]
fn destructor_of_dropped_stream_waker_can_drop_runtime_and_panic() {
    on_every_driver_and_sim(|setup| {
        for action in ALL {
            let (near, mut far, dropped) = pair_with_destructive_waker(setup, action);
            let done = catch_unwind(AssertUnwindSafe(|| drop(near)));
            assert_eq!(
                (done.is_ok(), dropped.load(Ordering::SeqCst)),
                (true, 1),
                "{} {action:?}",
                setup.name
            );
            assert_gone(setup, action, &mut far);
        }
    });
}

#[test]
fn owner_of_bytes_can_drop_runtime_and_panic() {
    on_every_driver_and_sim(|setup| {
        for (action, length) in ALL.into_iter().flat_map(|action| [(action, 10), (action, MESSAGE_BYTES)]) {
            let (mut near, mut far) = pair_of_stashed_runtime(setup);
            let (bytes, dropped) = poisoned(pattern(2, length), Some(action));
            let done = catch_unwind(AssertUnwindSafe(|| {
                poll_once(pin!(near.send(bytes)), Waker::noop()).is_ready();
                // Takes effect in the next turn, or when the runtime is dropped.
                drop(near);
            }));
            assert!(done.is_ok(), "{} {action:?}", setup.name);
            if RUNTIME.with_borrow(Option::is_none) {
                assert_eq!(dropped.load(Ordering::SeqCst), 1);
            }
            assert_gone(setup, action, &mut far);
            drop(far);
            assert_eq!(dropped.load(Ordering::SeqCst), 1, "{} {action:?}", setup.name);
        }
    });
}

#[test]
fn panicking_owner_of_bytes_does_not_affect_other_streams() {
    on_every_driver_and_sim(|setup| {
        let runtime = runtime_without_drain(setup);
        let (last, last_freed) = poisoned(pattern(3, 50), Some(DropAction::Panic));
        let streams = runtime.block_on(async {
            let mut pairs = Vec::new();
            for _ in 0..4 {
                pairs.push(pair().await.unwrap());
            }
            for round in 0..3 {
                for (number, (near, _)) in pairs.iter_mut().enumerate() {
                    let message = pattern(round * 10 + number as u64, 50);
                    // All sends complete in one turn.
                    if number % 2 == 0 {
                        near.send(poisoned(message, Some(DropAction::Panic)).0).await.unwrap();
                    } else {
                        near.send(message).await.unwrap();
                    }
                }
                for (number, (near, far)) in pairs.iter_mut().enumerate() {
                    near.flush().await.unwrap();
                    let mut received = [0; 50];
                    far.read_exact(&mut received).await.unwrap();
                    assert_same_bytes(&received, &pattern(round * 10 + number as u64, 50));
                }
            }
            pairs[0].0.send(last).await.unwrap();
            pairs
        });
        assert_drops(setup, runtime);
        drop(streams);
        assert_eq!(last_freed.load(Ordering::SeqCst), 1, "{}", setup.name);
    });
}

/// Subscriber (application code) that panics when an error is logged.
struct PanickingSubscriber;

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("deliberate panic in a subscriber");
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Reports the thread on which it is dropped, then panics.
struct Local(mpsc::Sender<ThreadId>);

impl Drop for Local {
    fn drop(&mut self) {
        self.0.send(thread::current().id()).unwrap();
        panic!("deliberate panic in a dropped task");
    }
}

#[test]
fn futures_are_dropped_on_their_thread_despite_panicking_subscriber() {
    on_every_driver_and_sim(|setup| {
        tracing::subscriber::with_default(PanickingSubscriber, || {
            const TASKS: usize = 5;
            let runtime = runtime_without_drain(setup);
            let (report, reports) = mpsc::channel();
            let (leave, left) = mpsc::channel();
            runtime.block_on(async {
                for _ in 0..TASKS {
                    let (local, leave) = (Local(report.clone()), leave.clone());
                    spawn(async move {
                        let _local = local;
                        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
                        leave.send(waker).unwrap();
                        pending::<()>().await;
                    })
                    .detach();
                }
                yield_now().await;
            });
            drop((report, leave));
            // This thread holds the last reference to each task.
            let (go, gone) = mpsc::channel();
            let other = thread::spawn(move || {
                let wakers: Vec<Waker> = left.into_iter().take(TASKS).collect();
                gone.recv().unwrap();
                drop(wakers);
            });
            assert_drops(setup, runtime);
            go.send(()).unwrap();
            other.join().unwrap();
            let threads: Vec<_> = reports.into_iter().collect();
            assert_eq!(threads, [thread::current().id(); TASKS], "{}", setup.name);
        });
    });
}

/// Environment variable that contains the name of the setup that the child process uses.
const EXITS: &str = "ANELLO_TEST_EXITS";
const EXIT_CODE: i32 = 42;

static DROPPED: AtomicBool = AtomicBool::new(false);

/// Value on the stack of a task that calls exit.
struct OnStack(Box<Cell<u64>>);

impl Drop for OnStack {
    fn drop(&mut self) {
        self.0.set(0);
        DROPPED.store(true, Ordering::SeqCst);
    }
}

/// Dropped after the runtime, because it was created earlier.
struct Witness;

impl Drop for Witness {
    fn drop(&mut self) {
        if DROPPED.load(Ordering::SeqCst) {
            eprintln!("a value in use by a task was dropped");
            std::process::abort();
        }
    }
}

thread_local! {
    static WITNESS: Witness = const { Witness };
}

/// Exits the process from within a task whose runtime is in a `thread_local!`.
fn exit_in_a_task(setup: &Setup) -> ! {
    WITNESS.with(|_| ());
    RUNTIME.set(Some(runtime_without_drain(setup)));
    RUNTIME.with_borrow(|runtime| {
        runtime.as_ref().unwrap().block_on(async {
            let (mut near, mut far) = pair().await.unwrap();
            near.send(b"hello".to_vec()).await.unwrap();
            let on_stack = OnStack(Box::new(Cell::new(1)));
            let task = spawn(async move {
                let on_stack = OnStack(Box::new(Cell::new(1)));
                let _received = far.recv().await.unwrap();
                yield_now().await;
                // The thread keeps the memory of completed tasks for reuse.
                spawn(async {}).await.unwrap();
                if on_stack.0.get() == 1 {
                    std::process::exit(EXIT_CODE);
                }
            });
            task.await.unwrap();
            drop((near, on_stack));
        });
    });
    unreachable!("the task exits");
}

/// Runs a test of this program in a process of its own on every driver. The process must exit as `exit` does.
#[track_caller]
fn assert_exits(test: impl Send + Sync + 'static, exit: impl Fn(&Setup)) {
    if let Ok(name) = std::env::var(EXITS) {
        exit(&setup_named(&name));
        unreachable!("the process has exited");
    }
    on_every_driver_and_sim(move |setup| {
        let mut command = command_for(&test);
        // Leaks are expected here.
        command.env(EXITS, setup.name).env("ASAN_OPTIONS", "detect_leaks=0");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(EXIT_CODE), "{}: {stderr}", setup.name);
    });
}

#[test]
fn runtime_in_thread_local_is_leaked_by_exit_in_task() {
    assert_exits(runtime_in_thread_local_is_leaked_by_exit_in_task, |setup| exit_in_a_task(setup));
}

/// Owner of sent bytes that ends the process in its destructor, or with `true` panics there.
struct ExitsOnDrop(Box<[u8]>, bool);

impl AsRef<[u8]> for ExitsOnDrop {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for ExitsOnDrop {
    fn drop(&mut self) {
        assert!(!self.1, "the panic hook exits");
        std::process::exit(EXIT_CODE);
    }
}

thread_local! {
    static EVENT_LOOP: RefCell<Option<EventLoop>> = const { RefCell::new(None) };
}

/// Aborts a stream whose queue contains bytes of an owner that ends the process.
fn exit_in_event_loop(setup: &Setup, panics: bool) {
    if panics {
        std::panic::set_hook(Box::new(|_| std::process::exit(EXIT_CODE)));
    }
    let options = setup.options.clone().max_send_queue_bytes(2 * LARGE);
    let builder = EventLoop::builder().driver(setup.kind.clone()).options(options);
    EVENT_LOOP.set(Some(builder.build().unwrap()));
    EVENT_LOOP.with_borrow_mut(|event_loop| {
        let event_loop = event_loop.as_mut().unwrap();
        let (stream, _peer) = event_loops::pair(event_loop);
        // Copies in buffers of the loop, which would be released a second time.
        for _ in 0..LARGE >> 14 {
            assert!(event_loop.write(stream, &[5; 1 << 14]).is_ready());
        }
        // Starts a send, so that the queue is dropped when it completes.
        event_loop.turn(&mut Events::new(), Some(Duration::ZERO)).unwrap();
        let owner = Bytes::from_owner(ExitsOnDrop(vec![7; 7000].into(), panics));
        assert!(event_loop.send(stream, &mut Some(owner.into())).is_ready());
        event_loop.abort(stream);
        while event_loop.turn(&mut Events::new(), None).is_ok() {}
    });
}

#[test]
fn event_loop_in_thread_local_is_leaked_by_exit_in_destructor_of_sent_bytes() {
    assert_exits(event_loop_in_thread_local_is_leaked_by_exit_in_destructor_of_sent_bytes, |setup| {
        exit_in_event_loop(setup, false);
    });
}

/// Outside of `block_on`, the driver is borrowed while the destructor runs.
#[test]
fn runtime_in_thread_local_is_leaked_by_exit_in_destructor_of_sent_bytes() {
    assert_exits(runtime_in_thread_local_is_leaked_by_exit_in_destructor_of_sent_bytes, |setup| {
        let (mut near, _far) = pair_of_stashed_runtime(setup);
        let owner = Bytes::from_owner(ExitsOnDrop(vec![7; LARGE].into(), false));
        assert!(poll_once(pin!(near.send(owner)), Waker::noop()).is_ready());
        near.abort();
        RUNTIME.with_borrow(|runtime| runtime.as_ref().unwrap().block_on(pending::<()>()));
    });
}

#[test]
fn event_loop_in_thread_local_is_leaked_by_panic_hook_that_exits() {
    assert_exits(event_loop_in_thread_local_is_leaked_by_panic_hook_that_exits, |setup| {
        exit_in_event_loop(setup, true);
    });
}

/// Value of a `thread_local!` that uses event loops when the thread ends, perhaps after all other values have been dropped.
#[derive(Default)]
struct UsesEventLoops {
    setup: Option<Setup>,
    dropped: Option<EventLoop>,
    used: Option<EventLoop>,
}

impl Drop for UsesEventLoops {
    fn drop(&mut self) {
        drop(self.dropped.take());
        let mut event_loop = self.used.take().unwrap();
        let (near, far) = event_loops::pair(&mut event_loop);
        let mut message = SendBuf::spare_vec();
        message.extend_from_slice(b"ciao");
        assert!(event_loop.send(near, &mut Some(message.into())).is_ready());
        let received = event_loops::wait(&mut event_loop, |event_loop| event_loop.recv(far)).unwrap();
        assert_eq!(received.as_deref(), Some(&b"ciao"[..]), "{}", self.setup.as_ref().unwrap().name);
        event_loop.shutdown(Duration::ZERO).unwrap();
    }
}

thread_local! {
    /// Used before and after the thread-local values of the library, because destructors have no fixed order.
    static FIRST: RefCell<UsesEventLoops> = RefCell::default();
    static LAST: RefCell<UsesEventLoops> = RefCell::default();
}

/// A panic in one of the destructors would abort the process.
#[test]
fn event_loops_in_thread_locals_work_until_the_end_of_the_thread() {
    on_every_driver_and_sim(|setup| {
        let setup = setup.clone();
        let ended = thread::spawn(move || {
            for uses in [&FIRST, &LAST] {
                let (dropped, used) = (Some(event_loops::open(&setup)), Some(event_loops::open(&setup)));
                uses.set(UsesEventLoops { setup: Some(setup.clone()), dropped, used });
                let mut event_loop = event_loops::open(&setup);
                event_loops::pair(&mut event_loop);
                drop(SendBuf::from(SendBuf::spare_vec()));
            }
        });
        ended.join().unwrap();
    });
}
