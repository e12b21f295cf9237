//! The connections of a worker: accepting, the limit, counting, moving to other workers, and draining.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anello::net::{ByteStream, ShutdownHandle, TcpListener, UnixListener, raw_os_error};
use anello::server::{
    AttachedStream, DetachedStream, GroupListener, GroupMember, PagedSlab, RebalancerMember,
};
use anello::time::{sleep, timeout};
use anello::{JoinHandle, log_event};
use futures_util::future::select;

use super::exchange::{self, Served, Sizes};
use super::metrics::{CloseReason, WorkerMetrics};

/// Interval at which the counters of the driver are published while there are connections.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Options of the connections, and the number of open connections across all workers.
pub struct Limits {
    /// Sizes of requests and responses; `None` to echo all data.
    pub sizes: Option<Sizes>,
    /// Time after which a connection without data is closed.
    pub idle_timeout: Option<Duration>,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Number of open connections.
    pub connections: AtomicUsize,
}

/// A connection that counts toward the limit until this is dropped.
pub struct Admitted(Arc<Limits>);

impl Admitted {
    fn try_new(limits: &Arc<Limits>) -> Option<Self> {
        let admitted = Self(Arc::clone(limits));
        // Incremented before the check, so that two workers cannot both take the last place.
        (limits.connections.fetch_add(1, Ordering::Relaxed) < limits.max_connections).then_some(admitted)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection on its way to another worker.
pub struct Moved {
    stream: DetachedStream,
    admitted: Admitted,
}

/// Accepts connections until the listeners are closed, and those that other workers move to this one until
/// [`OpenConnections::refuse_moved`] is called. Returns the tasks that accept them.
pub fn accept(
    internet: Option<GroupMember<TcpListener>>,
    unix: Option<GroupMember<UnixListener>>,
    limits: &Arc<Limits>,
    open: &Rc<OpenConnections>,
) -> Vec<JoinHandle<()>> {
    let (limits, open) = (|| Arc::clone(limits), || Rc::clone(open));
    let internet = internet.map(|member| anello::spawn(accept_from(member, limits(), open())));
    let unix = unix.map(|member| anello::spawn(accept_from(member, limits(), open())));
    let moved = anello::spawn(accept_moved(open()));
    internet.into_iter().chain(unix).chain([moved]).collect()
}

async fn accept_from<L: GroupListener>(
    listener: GroupMember<L>,
    limits: Arc<Limits>,
    open: Rc<OpenConnections>,
) {
    loop {
        let stream = match listener.accept().await {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(error) => {
                log_event!(ERROR, %error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match Admitted::try_new(&limits) {
            Some(admitted) => {
                open.metrics.iter().for_each(|metrics| metrics.accepted.add(1));
                serve(stream, admitted, &open);
            }
            None => open.metrics.iter().for_each(|metrics| metrics.rejected.add(1)),
        }
    }
}

async fn accept_moved(open: Rc<OpenConnections>) {
    let Some(rebalancer) = &open.rebalancer else { return };
    while let Some(moved) = rebalancer.recv().await {
        serve_moved(moved, &open);
    }
}

fn serve_moved(Moved { stream, admitted }: Moved, open: &Rc<OpenConnections>) {
    match stream.attach() {
        Ok(AttachedStream::Tcp(stream)) => serve(stream, admitted, open),
        Ok(AttachedStream::Unix(stream)) => serve(stream, admitted, open),
        Err(error) => open.finish(Err(error)),
    }
}

fn serve(stream: impl ByteStream, admitted: Admitted, open: &Rc<OpenConnections>) {
    let Limits { sizes, idle_timeout, .. } = *admitted.0;
    let permit = OpenConnections::enter(open, admitted, &stream);
    match (sizes, idle_timeout) {
        (None, None) => anello::spawn(echo(stream, permit)).detach(),
        _ => anello::spawn(connection_with_options(stream, permit)).detach(),
    }
}

/// Serves a connection with neither fixed message sizes nor an idle timeout, which is the common case. Each local variable
/// that is used after an `await` takes memory for every connection.
#[expect(clippy::manual_async_fn, reason = "an async function would store its arguments twice")]
fn echo<S: ByteStream>(mut stream: S, permit: ConnectionPermit) -> impl Future<Output = ()> {
    async move {
        let (mut reader, mut writer) = stream.split();
        let received_all = loop {
            let (message_bytes, sending) = match reader.recv().await {
                Ok(Some(chunk)) => (chunk.len() as u64, writer.send(chunk)),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let metrics = &permit.slot.open.metrics;
            metrics.iter().for_each(|metrics| metrics.received_bytes.add(message_bytes));
            if let Err(error) = sending.await {
                break Err(error);
            }
            let metrics = &permit.slot.open.metrics;
            metrics.iter().for_each(|metrics| metrics.sent_bytes.add(message_bytes));
            if permit.should_move() {
                return anello::spawn(permit.move_connection(stream)).detach();
            }
        };
        let result = if received_all.is_ok() { writer.flush().await } else { received_all };
        permit.slot.open.finish(result);
    }
}

async fn connection_with_options(mut stream: impl ByteStream, permit: ConnectionPermit) {
    let Limits { sizes, idle_timeout, .. } = *permit.admitted.0;
    let should_move = || permit.should_move();
    let metrics = permit.slot.open.metrics.as_deref();
    match exchange::serve(&mut stream, sizes, idle_timeout, metrics, should_move).await {
        Ok(Served::UntilEof) => permit.slot.open.finish(Ok(())),
        Ok(Served::UntilMove) => permit.move_connection(stream).await,
        Err(error) => permit.slot.open.finish(Err(error)),
    }
}

/// The open connections of a worker.
pub struct OpenConnections {
    handles: RefCell<PagedSlab<ShutdownHandle>>,
    /// Counters of the worker, if the server has an endpoint for them.
    metrics: Option<Arc<WorkerMetrics>>,
    /// Set while a task publishes the counters of the driver.
    is_publishing: Cell<bool>,
    is_draining: Cell<bool>,
    /// Moves connections between the workers, if there are several.
    rebalancer: Option<RebalancerMember<Moved>>,
}

/// An open connection. Dropping it frees its slot.
struct ConnectionPermit {
    slot: Slot,
    admitted: Admitted,
}

/// Slot of an open connection in its worker's [`OpenConnections`]. Released on drop.
struct Slot {
    open: Rc<OpenConnections>,
    index: usize,
}

impl OpenConnections {
    /// Creates the state of a worker. `rebalancer` moves connections between the workers, if there are several.
    pub fn new(metrics: Option<Arc<WorkerMetrics>>, rebalancer: Option<RebalancerMember<Moved>>) -> Self {
        metrics.iter().for_each(|metrics| metrics.driver.publish_driver());
        Self {
            handles: RefCell::default(),
            metrics,
            is_publishing: Cell::new(false),
            is_draining: Cell::new(false),
            rebalancer,
        }
    }

    fn enter(open: &Rc<Self>, admitted: Admitted, stream: &impl ByteStream) -> ConnectionPermit {
        let handle = stream.shutdown_handle();
        if open.is_draining.get() {
            // The connection was about to move to a worker that is also shutting down.
            handle.shutdown_read();
        }
        let index = open.handles.borrow_mut().insert(handle);
        if open.metrics.is_some() && !open.is_publishing.replace(true) {
            anello::spawn(publish_driver(Rc::clone(open))).detach();
        }
        ConnectionPermit { slot: Slot { open: Rc::clone(open), index }, admitted }
    }

    /// Receives no more connections from other workers, and moves none to them.
    pub fn refuse_moved(&self) {
        self.rebalancer.iter().for_each(RebalancerMember::close);
    }

    /// Shuts down the read half of every connection, so that its task echoes what was received and finishes. Waits
    /// until all have finished, the timeout expires, or `abort_requested` completes. Resets the remaining TCP
    /// connections: after an EOF, their clients would take what they have received for everything.
    pub async fn drain(&self, drain_timeout: Duration, abort_requested: impl Future<Output = ()>) {
        self.is_draining.set(true);
        for (_, shutdown_handle) in self.handles.borrow().iter() {
            shutdown_handle.shutdown_read();
        }
        let finished = timeout(drain_timeout, async {
            while !self.handles.borrow().is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        });
        select(pin!(finished), pin!(abort_requested)).await;
        let connections = self.handles.borrow().len();
        if connections > 0 {
            log_event!(WARN, connections, "drain ended early; resetting the remaining connections");
            self.handles.borrow().iter().for_each(|(_, handle)| handle.reset());
        }
    }
}

/// Publishes the counters of the driver until no connection is open.
async fn publish_driver(open: Rc<OpenConnections>) {
    loop {
        sleep(PUBLISH_INTERVAL).await;
        open.metrics.iter().for_each(|metrics| metrics.driver.publish_driver());
        if open.handles.borrow().is_empty() {
            open.is_publishing.set(false);
            return;
        }
    }
}

impl ConnectionPermit {
    /// Records a message. Returns whether the connection should move to another worker.
    #[inline]
    fn should_move(&self) -> bool {
        self.slot.open.rebalancer.as_ref().is_some_and(|rebalancer| rebalancer.record(self.slot.index, 1))
    }

    /// Moves the connection to the worker that the rebalancer has selected, or continues to serve it here.
    async fn move_connection(self, stream: impl ByteStream) {
        let Self { slot, admitted } = self;
        let open = Rc::clone(&slot.open);
        match DetachedStream::detach(stream).await {
            Ok(stream) => {
                let Some(rebalancer) = &open.rebalancer else { return };
                match rebalancer.move_connection(slot.index, Moved { stream, admitted }) {
                    Ok(()) => open.metrics.iter().for_each(|metrics| metrics.moved.add(1)),
                    Err(refused) => {
                        drop(slot);
                        serve_moved(refused, &open);
                    }
                }
            }
            Err(error) => open.finish(Err(error.into())),
        }
    }
}

impl OpenConnections {
    /// Logs and counts the end of a connection.
    fn finish(&self, result: io::Result<()>) {
        let reason = match &result {
            Ok(()) if self.is_draining.get() => CloseReason::Drain,
            Ok(()) => CloseReason::Peer,
            // Without an error number, the error is that of the idle timeout.
            Err(error) if error.kind() == ErrorKind::TimedOut && raw_os_error(error).is_none() => {
                CloseReason::Idle
            }
            Err(_) => CloseReason::Aborted,
        };
        if let Some(metrics) = &self.metrics {
            metrics.connection_closed(reason);
        }
        if let Err(error) = result {
            log_event!(DEBUG, %error, "connection failed");
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.handles.borrow_mut().remove(self.index);
    }
}
