//! A set of connections that stays open, and slices of load over it.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use anello::JoinHandle;
use anello::time::{sleep, timeout};
use hdrhistogram::Histogram;

use crate::config::TcpLoad;
use crate::connection::{Connection, Shared};
use crate::errors::{ErrorKind, Errors};
use crate::message::Messages;
use crate::source;

/// How often the overseer looks after the connections, and progress is told, at most.
const TICK: Duration = Duration::from_millis(100);

/// How long requests in flight may take when the user wants to stop.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// Longest latency that the histograms tell apart, in nanoseconds.
const LATENCY_LIMIT_NS: u64 = 60_000_000_000;

/// Open connections to one server, on this thread's runtime. Dropping it closes them.
#[derive(Debug)]
pub struct Session {
    shared: Rc<Shared>,
    connections: Vec<Connection>,
    connect_errors: Errors,
    stall_timeout: Duration,
}

/// What one slice of load saw.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Requests answered: whole and, if verified, with the right bytes.
    pub requests: u64,
    /// From the first request to the last reply, or to the last trouble.
    pub elapsed_ns: u64,
    /// Time from request to whole reply in nanoseconds, one value for each request, at three significant digits.
    pub latency: Histogram<u64>,
    /// Requests answered on each of the connections that are left.
    pub requests_by_connection: Vec<u64>,
    /// What went wrong. All but wrong bytes have cost a connection.
    pub errors: Errors,
}

impl Slice {
    /// A slice in which nothing happened.
    pub(crate) fn empty() -> Self {
        Self {
            requests: 0,
            elapsed_ns: 0,
            latency: latency_histogram(),
            requests_by_connection: Vec::new(),
            errors: Errors::default(),
        }
    }
}

/// How things stand, for whoever watches.
pub(crate) struct Standing {
    pub open: usize,
    pub requests: u64,
    pub errors: u64,
}

/// Asked every tick; says whether to go on.
pub(crate) type Tick<'a> = &'a mut dyn FnMut(Standing) -> ControlFlow<()>;

impl Session {
    /// Opens the connections that `config` asks for (its duration and warm-up are not looked at).
    ///
    /// Connections that cannot be opened within [`connect_timeout`](TcpLoad::connect_timeout) are in
    /// [`connect_errors`](Self::connect_errors); the session has the others. Cancel-safe: dropping the future closes
    /// everything.
    ///
    /// # Errors
    /// When the configuration is unusable (`InvalidInput`, [`TcpLoad::check`]).
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub async fn connect(config: &TcpLoad) -> io::Result<Self> {
        Self::open(config, &mut |_| ControlFlow::Continue(())).await
    }

    /// As [`connect`](Self::connect), with progress.
    pub(crate) async fn open(config: &TcpLoad, tick: Tick<'_>) -> io::Result<Self> {
        config.check().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let opening = Rc::new(Opening::new(config));
        let openers = config.connects_at_once.min(config.connections);
        let mut openers = Tasks((0..openers).map(|_| anello::spawn(Rc::clone(&opening).work())).collect());
        let all = async {
            while let Some(opener) = openers.0.pop() {
                if let Err(error) = opener.await {
                    opening.errors.borrow_mut().add(ErrorKind::Other, || error.to_string());
                }
            }
        };
        with_ticks(TICK, all, || tick(opening.standing())).await;
        drop(openers);
        let messages = Messages::new(config.message_bytes, config.verify);
        let shared = Shared::new(messages, config.message_bytes, config.verify);
        let mut connections = opening.connections.take();
        shared.tally.open.set(connections.len());
        connections.shrink_to_fit();
        Ok(Self {
            shared: Rc::new(shared),
            connections,
            connect_errors: opening.errors.take(),
            stall_timeout: config.stall_timeout,
        })
    }

    /// Connections that are open and in order.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.connections.len()
    }

    /// Why connections could not be opened.
    #[must_use]
    pub fn connect_errors(&self) -> &Errors {
        &self.connect_errors
    }

    /// Keeps one request in flight on every connection for `duration`, then waits for the replies that are owed.
    ///
    /// Returns after at most `duration` and 1.25 times the [`stall_timeout`](TcpLoad::stall_timeout), whatever the
    /// server does; earlier when no connection is left. Every connection makes at least one request. Nothing is in
    /// flight afterwards. Dropping the future closes all connections.
    pub async fn run_slice(&mut self, duration: Duration) -> Slice {
        self.drive(duration, &mut |_| ControlFlow::Continue(())).await
    }

    /// As [`run_slice`](Self::run_slice), with progress. When `tick` breaks, requests in flight get a moment, and are
    /// then given up without being counted.
    pub(crate) async fn drive(&mut self, duration: Duration, tick: Tick<'_>) -> Slice {
        let shared = Rc::clone(&self.shared);
        let watches: Vec<_> =
            self.connections.iter().map(|connection| Rc::clone(&connection.watch)).collect();
        let stall_timeout_ns = nanoseconds(self.stall_timeout);
        let began_ns = shared.now_ns();
        shared.deadline_ns.set(began_ns.saturating_add(nanoseconds(duration)));
        shared.tally.last_ns.set(began_ns);
        let running =
            self.connections.drain(..).map(|connection| anello::spawn(connection.run(Rc::clone(&shared))));
        let mut tasks = Tasks(running.collect());
        tasks.0.reverse();
        let connections = &mut self.connections;
        let all = async {
            while let Some(task) = tasks.0.pop() {
                match task.await {
                    Ok(connection) => connections.extend(connection),
                    Err(error) => {
                        shared.tally.errors.borrow_mut().add(ErrorKind::Other, || error.to_string())
                    }
                }
            }
        };
        let mut give_up_ns = None;
        let oversee = || {
            let now_ns = shared.now_ns();
            watches.iter().for_each(|watch| watch.check(now_ns, stall_timeout_ns));
            if give_up_ns.is_none() && tick(shared.tally.standing()).is_break() {
                give_up_ns = Some(now_ns.saturating_add(nanoseconds(STOP_GRACE)));
                shared.deadline_ns.set(now_ns);
            }
            if give_up_ns.is_some_and(|give_up_ns| now_ns >= give_up_ns) {
                watches.iter().for_each(|watch| watch.abandon());
            }
            ControlFlow::Continue(())
        };
        let period = TICK.min(self.stall_timeout / 4).max(Duration::from_millis(1));
        with_ticks(period, all, oversee).await;
        let mut slice = shared.tally.take(began_ns);
        slice.requests_by_connection =
            self.connections.iter().map(|connection| connection.answered).collect();
        slice
    }

    /// Closes all connections and lets the driver do it before it returns.
    pub async fn close(self) {
        drop(self);
        // A few turns of the driver: io_uring has receives to cancel first.
        sleep(Duration::from_millis(1)).await;
    }
}

impl crate::connection::Tally {
    fn standing(&self) -> Standing {
        Standing {
            open: self.open.get(),
            requests: self.requests.get(),
            errors: self.errors.borrow().total(),
        }
    }

    /// The slice that began then; the counts begin anew.
    fn take(&self, began_ns: u64) -> Slice {
        Slice {
            requests: self.requests.take(),
            elapsed_ns: self.last_ns.get().saturating_sub(began_ns),
            latency: self.latency.replace(latency_histogram()),
            requests_by_connection: Vec::new(),
            errors: self.errors.take(),
        }
    }
}

/// An empty histogram as slices have them: 1 ns to 60 s at three significant digits. Longer latencies are counted as
/// 60 s.
///
/// # Panics
/// Never: the bounds are constants that make sense.
#[must_use]
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_LIMIT_NS, 3).expect("constant bounds that make sense")
}

/// Connections being opened.
struct Opening {
    config: TcpLoad,
    /// Taken in turn; the kernel chooses if there are none.
    sources: Vec<IpAddr>,
    deadline: Instant,
    /// Index of the next connection to open.
    next: Cell<usize>,
    connections: RefCell<Vec<Connection>>,
    errors: RefCell<Errors>,
}

impl Opening {
    fn new(config: &TcpLoad) -> Self {
        Self {
            config: config.clone(),
            sources: config.sources_in_use(),
            deadline: Instant::now() + config.connect_timeout,
            next: Cell::new(0),
            connections: RefCell::new(Vec::with_capacity(config.connections)),
            errors: RefCell::default(),
        }
    }

    /// Opens one connection after the other.
    async fn work(self: Rc<Self>) {
        while self.next.get() < self.config.connections {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.give_the_rest_up();
            }
            let index = self.next.replace(self.next.get() + 1);
            let from = self.source(index);
            match timeout(left, source::connect(self.config.target, from)).await {
                Ok(Ok(stream)) => {
                    self.connections.borrow_mut().push(Connection::new(index as u64, stream));
                }
                Ok(Err(error)) => {
                    let kind = ErrorKind::of_connecting(&error);
                    self.errors.borrow_mut().add(kind, || error.to_string());
                }
                Err(_) => self.count_late(1),
            }
        }
    }

    fn source(&self, index: usize) -> Option<IpAddr> {
        self.sources.get(index % self.sources.len().max(1)).copied()
    }

    fn give_the_rest_up(&self) {
        let rest = self.config.connections - self.next.replace(self.config.connections);
        self.count_late(rest as u64);
    }

    fn count_late(&self, count: u64) {
        let (target, limit) = (self.config.target, self.config.connect_timeout);
        self.errors.borrow_mut().add_many(ErrorKind::ConnectTimeout, count, || {
            format!("{target}: not connected within {limit:?}")
        });
    }

    fn standing(&self) -> Standing {
        let open = self.connections.borrow().len();
        Standing { open, requests: 0, errors: self.errors.borrow().total() }
    }
}

/// Tasks that end with their owner.
struct Tasks<T>(Vec<JoinHandle<T>>);

impl<T> Drop for Tasks<T> {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|task| task.abort());
    }
}

/// Waits for a future and calls `tick` every so often meanwhile; drops the future when `tick` breaks.
async fn with_ticks<F: Future>(
    period: Duration,
    future: F,
    mut tick: impl FnMut() -> ControlFlow<()>,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut pause = sleep(period);
    poll_fn(|context| {
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if Pin::new(&mut pause).poll(context).is_pending() {
                return Poll::Pending;
            }
            if tick().is_break() {
                return Poll::Ready(None);
            }
            pause.reset(period);
        }
    })
    .await
}

/// In nanoseconds; half a millennium at most.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
