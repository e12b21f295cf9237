//! A set of open connections, and short periods of load (slices) on them.

use std::future::{Future, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use anello::JoinHandle;
use anello::time::{self, sleep, timeout};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{self, StreamExt};

use crate::engine::connection::{Connection, ConnectionState};
use crate::engine::measurement::{FinalInterval, MeasurementRequest, MeasurementRunner, Observer, TICK};
use crate::engine::pacer::SharedPacer;
use crate::engine::schedule::{Schedule, Share};
use crate::engine::shared::{ProgressSnapshot, Shared};
use crate::engine::slot::ConnectionSlot;
use crate::model::config::{LoadConfig, Protocol};
use crate::model::errors::{ConnectionError, ErrorKind, Errors};
use crate::model::interval::Interval;
use crate::model::tls::HandshakeSummary;
use crate::system::nanoseconds;
use crate::wire::exchange::Exchange;
use crate::wire::http::{HttpShared, References, references};
use crate::wire::message::Messages;

/// A set of connections to one server, on the runtime of the calling thread. Dropping the session closes them. On a
/// [simulated host](https://docs.rs/anello/latest/anello/sim), all times are virtual.
pub struct Session {
    pub(crate) shared: Rc<Shared>,
    /// All connections of this thread in index order, including broken ones.
    pub(crate) connections: Vec<Connection>,
    slots: Vec<Rc<ConnectionSlot>>,
    pacer: Rc<SharedPacer>,
    share: Share,
    connect_errors: Errors,
    /// Number of slices so far.
    slices: u64,
}

/// Results of one call to [`Session::run_slice`].
#[derive(Clone, Debug)]
pub struct Slice {
    /// Measurements of the slice, which ends with the last reply or error. In an open loop, requests that were not yet
    /// due when the last connection failed count as unsent. The resource usage of the server and the load generator is
    /// not measured.
    pub interval: Interval,
    /// Requests answered on each connection that is not broken.
    pub requests_by_connection: Vec<u64>,
    /// Connections that were opened again because the server had closed them, or because each request uses its own
    /// connection.
    pub reopened: u64,
}

impl Session {
    /// Opens the connections of `load`. The configured duration, warm-up, ramp, threads and cores are ignored. All
    /// connections belong to the calling thread. Dropping the future closes them.
    ///
    /// Connections that cannot be opened within [`connect_timeout`](LoadConfig::connect_timeout) are reported by
    /// [`connect_errors`](Self::connect_errors). The session uses the remaining connections.
    ///
    /// # Errors
    /// Returns `InvalidInput` if [`LoadConfig::validate`] fails.
    ///
    /// # Panics
    /// Panics if no runtime is running on the calling thread.
    pub async fn connect(load: &LoadConfig) -> io::Result<Self> {
        let load = LoadConfig { ramp: Duration::ZERO, threads: 1, cores: Vec::new(), ..load.clone() };
        load.validate().map_err(|cause| io::Error::new(io::ErrorKind::InvalidInput, cause))?;
        let share = Share::new(&load, 0);
        let references = load.http_load().map(references).unwrap_or_default();
        let no_tick = &mut |_| ControlFlow::Continue(());
        Ok(Self::open(load, share, Instant::now(), references, no_tick).await)
    }

    /// Opens one thread's share of the connections. The load must be valid. Times are relative to `origin`.
    ///
    /// The future is boxed, like that of a measurement, so that its code is generated, and optimized, in this crate:
    /// that of a future is otherwise generated where it is polled.
    pub(crate) fn open<'a>(
        load: LoadConfig,
        share: Share,
        origin: Instant,
        references: References,
        on_tick: &'a mut dyn FnMut(ProgressSnapshot) -> ControlFlow<()>,
    ) -> LocalBoxFuture<'a, Self> {
        Box::pin(Self::open_share(load, share, origin, references, on_tick))
    }

    async fn open_share(
        load: LoadConfig,
        share: Share,
        origin: Instant,
        references: References,
        on_tick: &mut dyn FnMut(ProgressSnapshot) -> ControlFlow<()>,
    ) -> Self {
        let exchange = match &load.protocol {
            Protocol::Messages { request_bytes, response_bytes } => {
                Exchange::Messages(Messages::new(*request_bytes, *response_bytes, load.verify))
            }
            Protocol::Http(http) => Exchange::Http(HttpShared::new(http, load.verify, references)),
        };
        let shared = Rc::new(Shared::new(load, exchange, origin));
        let slots: Vec<_> = (0..share.count()).map(|_| Rc::<ConnectionSlot>::default()).collect();
        let pacer = Rc::<SharedPacer>::default();
        let connection = |(slot_index, slot): (usize, &Rc<ConnectionSlot>)| Connection {
            index: share.global_index(slot_index) as u64,
            slot: Rc::clone(slot),
            pacer: Rc::clone(&pacer),
            ..Connection::default()
        };
        let connections = slots.iter().enumerate().map(connection).collect();
        let mut session =
            Self { shared, connections, slots, pacer, share, connect_errors: Errors::default(), slices: 0 };
        // In a ramp, connections are opened one by one. If each request has its own connection, the connection is
        // opened when the request is due.
        if session.shared.load.ramp.is_zero() && session.shared.keep_alive {
            session.open_all(on_tick).await;
        }
        session
    }

    /// Opens the connections, a limited number at a time, until all have been tried or the timeout has passed.
    async fn open_all(&mut self, on_tick: &mut dyn FnMut(ProgressSnapshot) -> ControlFlow<()>) {
        let (shared, share) = (Rc::clone(&self.shared), self.share);
        let deadline = time::Instant::now() + self.shared.load.connect_timeout;
        let connect = async |slot_index| {
            let remaining = deadline.saturating_duration_since(time::Instant::now());
            (slot_index, shared.connect(share.global_index(slot_index) as u64, remaining).await)
        };
        let all = stream::iter(0..share.count()).map(connect);
        let mut connecting = pin!(all.buffer_unordered(self.shared.load.max_concurrent_connects));
        let mut next_tick = time::Instant::now() + TICK;
        loop {
            let until_tick = next_tick.saturating_duration_since(time::Instant::now());
            match timeout(until_tick, connecting.next()).await {
                Ok(Some((slot_index, Ok(stream)))) => self.connections[slot_index].open(stream, &shared),
                Ok(Some((_, Err(error)))) => self.connect_errors.add(1, error),
                Ok(None) => break,
                Err(_) => {
                    next_tick = time::Instant::now() + TICK;
                    let errors = self.connect_errors.total();
                    if on_tick(ProgressSnapshot { errors, ..shared.counters.snapshot() }).is_break() {
                        break;
                    }
                }
            }
        }
        for connection in &mut self.connections {
            if !connection.is_open() && !shared.reconnect {
                connection.mark_broken(&shared);
            }
        }
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.connections.iter().filter(|connection| connection.is_open()).count()
    }

    /// Returns the errors from connections that could not be opened.
    pub fn connect_errors(&self) -> &Errors {
        &self.connect_errors
    }

    /// Applies load to the server for `duration`, then waits for the replies to requests in flight. Dropping the future
    /// closes all connections.
    ///
    /// In a closed loop, every connection sends at least one request. In an open loop, the schedule starts with the
    /// slice (a sweep uses its first rate), and requests that are queued for a busy connection at the end can still be
    /// sent within [`drain_timeout`](LoadConfig::drain_timeout). After `duration`, the slice takes at most this timeout
    /// plus 1.25 times the [`stall_timeout`](LoadConfig::stall_timeout). It ends early if no connection is left.
    pub async fn run_slice(&mut self, duration: Duration) -> Slice {
        let rate = self.shared.load.mode.open_loop().map(|(per_second, ..)| (per_second, self.slices));
        self.slices += 1;
        let (start_ns, warm_up) = (self.shared.now_ns(), Duration::ZERO);
        let request = MeasurementRequest { start_ns, warm_up, duration, interval: None, rate };
        let interval = self.run_measurement(&request, &mut ()).await.interval;
        Slice {
            interval,
            requests_by_connection: self.requests_by_connection(),
            reopened: self.shared.reopened.take(),
        }
    }

    /// Sets the times at which the connections are opened in a ramp that starts at `start_ns`.
    pub(crate) fn start_ramp(&self, start_ns: u64) {
        let (ramp_ns, count) =
            (u128::from(nanoseconds(self.shared.load.ramp)), self.share.connections as u128);
        for (slot_index, slot) in self.slots.iter().enumerate() {
            let delay_ns = ramp_ns * self.share.global_index(slot_index) as u128 / count;
            slot.open_at_ns.set(start_ns.saturating_add(u64::try_from(delay_ns).unwrap_or(u64::MAX)));
        }
    }

    /// Runs a measurement to completion. If the observer returns `Break`, requests in flight are abandoned after a
    /// short time and do not count.
    pub(crate) fn run_measurement<'a>(
        &'a mut self,
        request: &'a MeasurementRequest,
        observer: &'a mut dyn Observer,
    ) -> LocalBoxFuture<'a, FinalInterval> {
        Box::pin(self.measure(request, observer))
    }

    async fn measure(&mut self, request: &MeasurementRequest, observer: &mut dyn Observer) -> FinalInterval {
        let shared = Rc::clone(&self.shared);
        let limit = shared.load.requests.map(|requests| self.share.part_of(requests.into()));
        shared.remaining_requests.set(limit.and_then(|limit| limit.try_into().ok()).unwrap_or(u64::MAX));
        let schedule = shared.load.mode.open_loop().zip(request.rate);
        let schedule = schedule.map(|((_, arrivals, seed), (per_second, number))| {
            Schedule::new(self.share, per_second, arrivals, seed.wrapping_add(number << 32))
        });
        let mut runner =
            MeasurementRunner::new(&shared, &self.slots, &self.pacer, request, schedule, observer);
        let running =
            self.connections.drain(..).map(|connection| anello::spawn(connection.run(Rc::clone(&shared))));
        let mut tasks = AbortOnDrop(running.collect());
        tasks.0.reverse();
        let connections = &mut self.connections;
        poll_fn(|context| {
            while let Some(task) = tasks.0.last_mut() {
                match Pin::new(task).poll(context) {
                    Poll::Pending => {
                        runner.poll(context);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(connection)) => connections.push(connection),
                    Poll::Ready(Err(error)) => {
                        let error = ConnectionError::new(ErrorKind::Other, error.to_string());
                        shared.counters.record_error(1, error);
                        self.slots[connections.len()].broken.set(true);
                    }
                }
                tasks.0.pop();
            }
            Poll::Ready(())
        })
        .await;
        runner.finish()
    }

    /// Returns the requests answered in the last measurement, for each connection that is not broken.
    pub(crate) fn requests_by_connection(&self) -> Vec<u64> {
        let is_usable = |one: &&Connection| !matches!(one.state, ConnectionState::Broken);
        self.connections.iter().filter(is_usable).map(|connection| connection.answered).collect()
    }

    /// Returns the TLS handshakes so far, including those of connections that were opened again. Empty without TLS.
    pub fn handshakes(&self) -> Vec<HandshakeSummary> {
        self.shared.handshakes.borrow().clone()
    }

    /// Closes all connections, and gives the driver time to close their sockets.
    pub async fn close(mut self) {
        for connection in &mut self.connections {
            if let ConnectionState::Open(stream) = &mut connection.state {
                stream.send_close_notify();
            }
        }
        drop(self);
        // The driver needs a few turns of the event loop, because io_uring first cancels pending receives.
        sleep(Duration::from_millis(1)).await;
    }
}

/// Tasks that are aborted on drop.
struct AbortOnDrop<T>(Vec<JoinHandle<T>>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|task| task.abort());
    }
}
