//! Both state machines on both simulated kernels, and a small world of tasks to drive them by.
//!
//! Tasks are ordinary futures, polled only when they were woken; when none is, the driver waits without a deadline. So
//! a wake-up that is lost ends the run with the kernel's error instead of a hang.

mod completion;
mod dropped;
mod network;
mod streams;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::super::buffer::Chunk;
use super::super::op::Wait;
use super::super::options::DriverOptions;
use super::super::send_queue::SendBuf;
use super::super::sockets::ListenOptions;
use super::super::token::Key;
use super::super::wake::WakeQueue;
use super::super::{Backend, Driver, DriverKind, DriverMetrics};
use super::random::Random;
use super::{SimModel, SimOptions};

const MODELS: [SimModel; 2] = [SimModel::Completion, SimModel::Readiness];

/// More turns than any test takes: a run that spins ends here.
const MAX_TURNS: u32 = 3_000_000;

/// Fewer of everything where each step costs a thousand.
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

/// A driver, tasks on it, and what they report.
#[derive(Clone)]
struct World {
    driver: Rc<RefCell<Driver>>,
    /// Everything that happened, mixed into one number.
    trace: Rc<Cell<u64>>,
    /// Tasks that no run waits for.
    spawned: Rc<RefCell<Vec<Task>>>,
    /// How many in 1000 streams are aborted instead of released.
    aborts: Rc<Cell<u16>>,
    random: Rc<RefCell<Random>>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

impl World {
    fn new(options: &SimOptions, driver_options: &DriverOptions) -> Self {
        let driver = Driver::new(&DriverKind::Sim(options.clone()), driver_options).unwrap();
        Self {
            driver: Rc::new(RefCell::new(driver)),
            trace: Rc::default(),
            spawned: Rc::default(),
            aborts: Rc::default(),
            random: Rc::new(RefCell::new(Random::new(options.seed))),
        }
    }

    fn note(&self, what: u64) {
        let now_ns = self.driver.borrow().now_ns();
        let mut mixed = Random::new(self.trace.get() ^ what ^ now_ns.rotate_left(32));
        self.trace.set(mixed.next());
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawned.borrow_mut().push(Box::pin(task));
    }

    /// Runs the tasks to their ends, then drops those spawned, wherever they are.
    fn run(&self, tasks: Vec<Task>) -> io::Result<()> {
        let ran = self.run_awaited(tasks);
        // Tasks own the world that owns them.
        drop(self.spawned.take());
        ran
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
            let wait = if busy { Wait::No } else { Wait::Forever };
            self.driver.borrow_mut().turn(wait, &mut wakes)?;
            wakes.call();
        }
        Err(io::Error::other("the tasks do not come to an end"))
    }

    /// Shuts down: nothing may be left, in the driver or on the network.
    fn end(&self) -> io::Result<DriverMetrics> {
        let mut driver = self.driver.borrow_mut();
        driver.shut_down(Duration::from_secs(10), &mut WakeQueue::default())?;
        let metrics = driver.metrics();
        assert_eq!(metrics.sockets, 0, "sockets in the driver");
        drop(driver);
        assert_eq!(self.open(), 0, "sockets in the kernel");
        Ok(metrics)
    }

    /// Sockets that the kernel holds open, those not yet accepted included.
    fn open(&self) -> usize {
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
        let address = self.driver.borrow().listener_address(key).unwrap();
        (Listener { world: self.clone(), key }, address)
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

    /// Polls it if it was woken; whether it has ended.
    fn poll(&mut self) -> bool {
        if !self.flag.0.swap(false, Ordering::Relaxed) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        let Some(task) = &mut self.task else { return false };
        let ended = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if ended {
            self.task = None;
        }
        ended
    }
}

struct Listener {
    world: World,
    key: Key,
}

impl Listener {
    /// Goes on accepting when there are no descriptors, as a server does.
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

/// Given up when dropped, wherever that happens.
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

    /// Ends this side when all was sent.
    async fn finish(&self) -> io::Result<()> {
        self.flush().await?;
        self.world.driver.borrow_mut().shutdown(self.key, Shutdown::Write)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut driver = self.world.driver.borrow_mut();
        if self.world.random.borrow_mut().chance(self.world.aborts.get()) {
            driver.abort(self.key);
        } else {
            driver.release(self.key);
        }
    }
}

/// Polls both until both are done.
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

/// Seeds with both models: so many, or as many as `ANELLO_SEEDS` says.
fn seeds(count: u64) -> impl Iterator<Item = (u64, SimModel)> {
    let asked = std::env::var("ANELLO_SEEDS").ok().and_then(|count| count.parse().ok());
    (0..asked.unwrap_or_else(|| scaled(count))).flat_map(|seed| MODELS.map(|model| (seed, model)))
}
