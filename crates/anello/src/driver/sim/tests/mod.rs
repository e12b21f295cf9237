//! Tests of the state machines on the simulated kernels, and the minimal executor that these tests use.
//!
//! Tasks are ordinary futures, which are polled only after they have been woken. If no task has been woken, the driver
//! waits without a deadline. A lost wake-up therefore causes a deadlock error from the kernel instead of a hang.

mod completion;
mod dropped;
mod network;
mod streams;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;

use super::super::buffer::Chunk;
use super::super::op::Wait;
use super::super::options::DriverOptions;
use super::super::send_queue::SendBuf;
use super::super::sockets::ListenOptions;
use super::super::token::Key;
use super::super::wake::WakeQueue;
use super::super::{Backend, Driver, DriverKind, DriverMetrics};
use super::network::chance;
use super::{SimModel, SimOptions};

const MODELS: [SimModel; 2] = [SimModel::Completion, SimModel::Readiness];

/// Maximum number of turns. A correct run never reaches it; a run that loops forever is stopped.
const MAX_TURNS: u32 = 3_000_000;

/// Reduces a count under Miri, where each step is about a thousand times slower.
fn scaled(count: u64) -> u64 {
    if cfg!(miri) { count.div_ceil(100) } else { count }
}

#[derive(Debug)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A driver and an executor for tasks that use it.
#[derive(Clone)]
struct World {
    driver: Rc<RefCell<Driver>>,
    /// Hash of all recorded events.
    trace: Rc<Cell<u64>>,
    /// Background tasks. A run does not wait for them to complete.
    spawned: Rc<RefCell<Vec<Task>>>,
    /// Rate, in per mille, of streams that are aborted instead of released.
    abort_rate: Rc<Cell<u16>>,
    random: Rc<RefCell<Rng>>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

impl World {
    fn new(options: &SimOptions, driver_options: &DriverOptions) -> Self {
        let driver = Driver::new(&DriverKind::Sim(options.clone()), driver_options).unwrap();
        Self {
            driver: Rc::new(RefCell::new(driver)),
            trace: Rc::default(),
            spawned: Rc::default(),
            abort_rate: Rc::default(),
            random: Rc::new(RefCell::new(Rng::with_seed(options.seed))),
        }
    }

    /// Adds an event to the trace.
    fn note(&self, event: u64) {
        let now_ns = self.driver.borrow().now_ns();
        let mut mixed = Rng::with_seed(self.trace.get() ^ event ^ now_ns.rotate_left(32));
        self.trace.set(mixed.u64(..));
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawned.borrow_mut().push(Box::pin(task));
    }

    /// Runs the tasks to completion, then drops the background tasks.
    fn run(&self, tasks: Vec<Task>) -> io::Result<()> {
        let result = self.run_awaited(tasks);
        // Breaks the reference cycle: tasks own the world, which owns the tasks.
        drop(self.spawned.take());
        result
    }

    fn run_awaited(&self, tasks: Vec<Task>) -> io::Result<()> {
        let mut awaited = tasks.len();
        let mut running: Vec<Running> = tasks.into_iter().map(|task| Running::new(task, true)).collect();
        let mut wakes = WakeQueue::default();
        for _ in 0..MAX_TURNS {
            for running in &mut running {
                if running.poll() {
                    awaited -= usize::from(running.awaited);
                }
            }
            running.retain(|running| running.task.is_some());
            if awaited == 0 {
                return Ok(());
            }
            running.extend(self.spawned.borrow_mut().drain(..).map(|task| Running::new(task, false)));
            let busy = running.iter().any(|running| running.flag.0.load(Ordering::Relaxed));
            let wait = if busy { Wait::None } else { Wait::Forever };
            self.driver.borrow_mut().turn(wait, &mut wakes)?;
            wakes.call();
        }
        Err(io::Error::other("tasks did not complete"))
    }

    /// Shuts down, and asserts that no socket is left in the driver or on the network.
    fn shut_down(&self) -> io::Result<DriverMetrics> {
        let mut driver = self.driver.borrow_mut();
        driver.shut_down(Duration::from_secs(10), &mut WakeQueue::default())?;
        let metrics = driver.metrics();
        assert_eq!(metrics.sockets, 0, "sockets left in the driver");
        drop(driver);
        assert_eq!(self.open_sockets(), 0, "sockets left in the kernel");
        Ok(metrics)
    }

    /// Returns the number of open sockets in the kernel, including those in accept queues.
    fn open_sockets(&self) -> usize {
        match &*self.driver.borrow().backend {
            Backend::SimCompletion(machine) => machine.kernel.network().open(),
            Backend::SimReadiness(machine) => machine.kernel.network().open(),
            Backend::Uring(_) | Backend::Epoll(_) => 0,
        }
    }

    fn listen(&self) -> (Listener, SocketAddr) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = ListenOptions { backlog: 16, reuse_port: false, nodelay: true };
        let key = self.driver.borrow_mut().listen(address, &options).unwrap();
        let address = self.driver.borrow().listener_address(key).unwrap().as_socket().unwrap();
        (Listener { world: self.clone(), key }, address)
    }

    /// Returns both sides of a connection.
    async fn connect_pair(&self, listener: &Listener, address: SocketAddr) -> (Stream, Stream) {
        let near = self.connect(address).await.unwrap();
        (near, listener.accept().await)
    }

    /// Runs one task to completion and returns its output.
    fn run_one<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> T {
        let output = Rc::new(Cell::new(None));
        let result = Rc::clone(&output);
        self.run(vec![Box::pin(async move { result.set(Some(task.await)) })]).unwrap();
        output.take().unwrap()
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let key = self.driver.borrow_mut().connect(address, None)?;
        let stream = Stream { world: self.clone(), key };
        poll_fn(|context| self.driver.borrow_mut().poll_connect(key, context.waker())).await?;
        Ok(stream)
    }
}

struct Running {
    flag: Arc<Flag>,
    task: Option<Task>,
    awaited: bool,
}

impl Running {
    fn new(task: Task, awaited: bool) -> Self {
        Self { flag: Arc::new(Flag(AtomicBool::new(true))), task: Some(task), awaited }
    }

    /// Polls the task if it was woken. Returns whether it has completed.
    fn poll(&mut self) -> bool {
        if !self.flag.0.swap(false, Ordering::Relaxed) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        let Some(task) = &mut self.task else { return false };
        let is_done = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if is_done {
            self.task = None;
        }
        is_done
    }
}

struct Listener {
    world: World,
    key: Key,
}

impl Listener {
    /// Accepts a connection. Retries after `EMFILE`, as a server does.
    async fn accept(&self) -> Stream {
        loop {
            let accept = |context: &mut Context<'_>| {
                self.world.driver.borrow_mut().poll_accept(self.key, context.waker())
            };
            match poll_fn(accept).await {
                Ok(key) => return Stream { world: self.world.clone(), key },
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}"),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.world.driver.borrow_mut().release_listener(self.key);
    }
}

/// A stream, which is released (or aborted) when dropped.
struct Stream {
    world: World,
    key: Key,
}

impl Stream {
    async fn receive(&self) -> io::Result<Option<Chunk>> {
        let mut chunk = None;
        poll_fn(|context| self.world.driver.borrow_mut().poll_receive(self.key, &mut chunk, context.waker()))
            .await?;
        Ok(chunk)
    }

    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.world.driver.borrow_mut().poll_read(self.key, buffer, context.waker())).await
    }

    async fn send(&self, outgoing: impl Into<SendBuf>) -> io::Result<()> {
        let mut outgoing = Some(outgoing.into());
        let send = |context: &mut Context<'_>| {
            self.world.driver.borrow_mut().poll_send(self.key, &mut outgoing, context.waker())
        };
        poll_fn(send).await
    }

    async fn write(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let write = |context: &mut Context<'_>| {
                let slices = [IoSlice::new(data)];
                self.world.driver.borrow_mut().poll_write(self.key, &slices, context.waker())
            };
            data = &data[poll_fn(write).await?..];
        }
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        poll_fn(|context| self.world.driver.borrow_mut().poll_flush(self.key, context.waker())).await
    }

    /// Flushes the stream, then shuts down its write half.
    async fn finish(&self) -> io::Result<()> {
        self.flush().await?;
        self.world.driver.borrow_mut().shutdown(self.key, Shutdown::Write)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut driver = self.world.driver.borrow_mut();
        if chance(&mut self.world.random.borrow_mut(), self.world.abort_rate.get()) {
            driver.abort(self.key);
        } else {
            driver.release(self.key);
        }
    }
}

/// Runs two futures concurrently until both have completed.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (Box::pin(one), Box::pin(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(context)
        {
            second = Some(output);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

/// Prints the seed and the model if a run fails.
struct Case(u64, SimModel);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {} on {:?}", self.0, self.1);
        }
    }
}

/// Runs a test on one model for all seeds below `count`.
fn for_seeds(count: u64, model: SimModel, mut test: impl FnMut(u64)) {
    for seed in 0..scaled(count) {
        let _case = Case(seed, model);
        test(seed);
    }
}

/// Returns `count` seeds, or as many as `ANELLO_SEEDS` requests.
fn requested_seeds(count: u64) -> Range<u64> {
    let requested = std::env::var("ANELLO_SEEDS").ok().and_then(|count| count.parse().ok());
    0..requested.unwrap_or_else(|| scaled(count))
}

/// Runs a test on one model for `count` seeds, or as many as `ANELLO_SEEDS` requests.
fn for_requested_seeds(count: u64, model: SimModel, mut test: impl FnMut(u64)) {
    for seed in requested_seeds(count) {
        let _case = Case(seed, model);
        test(seed);
    }
}

/// Runs a test with both models for `count` seeds, or as many as `ANELLO_SEEDS` requests.
fn for_seeds_and_models(count: u64, test: impl Fn(u64, SimModel)) {
    for seed in requested_seeds(count) {
        for model in MODELS {
            let _case = Case(seed, model);
            test(seed, model);
        }
    }
}
