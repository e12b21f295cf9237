//! The connections of a worker: accepting, the limit, counting, and draining.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anello::net::{Echo, ShutdownHandle, Stream, echo, raw_os_error};
use anello::time::{sleep, timeout};
use anello_http::observe::metrics::{CloseReason, RejectReason, WorkerMetrics};
use anello_http::server::Accept;
use futures_util::future::select;
use slab::Slab;

use super::exchange::{self, Sizes};

/// Interval at which the counters of the driver are published while there are connections.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Options of the connections, and the number of open connections across all workers.
pub struct Limits {
    pub sizes: Option<Sizes>,
    pub idle_timeout: Option<Duration>,
    pub max_connections: usize,
    pub connections: AtomicUsize,
}

/// Accepts connections until the listener is closed.
pub async fn accept(listener: impl Accept, (limits, open): (Arc<Limits>, Rc<OpenConnections>)) {
    loop {
        let stream = match listener.accept().await {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if limits.connections.fetch_add(1, Ordering::Relaxed) >= limits.max_connections {
            limits.connections.fetch_sub(1, Ordering::Relaxed);
            if let Some(metrics) = &open.metrics {
                metrics.connection_rejected(RejectReason::MaxConnections);
            }
            continue;
        }
        let permit = OpenConnections::enter(&open, &limits, &stream);
        match (limits.sizes, limits.idle_timeout, &open.metrics) {
            (None, None, None) => {
                anello::spawn(Connection::<_, false> { echo: echo(stream), permit }).detach();
            }
            (None, None, Some(_)) => {
                anello::spawn(Connection::<_, true> { echo: echo(stream), permit }).detach();
            }
            _ => anello::spawn(connection_with_options(stream, permit)).detach(),
        }
    }
}

/// A connection with neither fixed message sizes nor an idle timeout, which is the common case. Implemented by hand,
/// because an `async` block would store the stream and the permit twice. `COUNTED` is constant, so that a server without
/// metrics executes no instruction for them per message.
#[repr(C)]
struct Connection<S, const COUNTED: bool> {
    echo: Echo<S>,
    permit: ConnectionPermit,
}

impl<S: Stream, const COUNTED: bool> Future for Connection<S, COUNTED> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let counts =
            |echo: &Echo<S>| if COUNTED { (echo.received_bytes(), echo.sent_bytes()) } else { (0, 0) };
        let (received_before, sent_before) = counts(&this.echo);
        let polled = Pin::new(&mut this.echo).poll(context);
        if COUNTED && let Some(metrics) = &this.permit.open.metrics {
            let (received, sent) = counts(&this.echo);
            metrics.add_received_bytes(received - received_before);
            metrics.add_sent_bytes(sent - sent_before);
        }
        this.permit.finish(ready!(polled).map(drop));
        Poll::Ready(())
    }
}

async fn connection_with_options(mut stream: impl Stream, permit: ConnectionPermit) {
    let Limits { sizes, idle_timeout, .. } = *permit.limits;
    let result = exchange::serve(&mut stream, sizes, idle_timeout, permit.open.metrics.as_ref()).await;
    permit.finish(result);
}

/// The open connections of a worker.
pub struct OpenConnections {
    handles: RefCell<Slab<ShutdownHandle>>,
    /// Number of connections below which unused memory of `handles` is returned: half of the largest number since the
    /// last time.
    shrink_below: Cell<usize>,
    /// Counters of the worker, if the server has an endpoint for them.
    metrics: Option<WorkerMetrics>,
    /// Set while a task publishes the counters of the driver.
    is_publishing: Cell<bool>,
    is_draining: Cell<bool>,
}

/// Slot of an open connection. Released on drop.
struct ConnectionPermit {
    open: Rc<OpenConnections>,
    limits: Arc<Limits>,
    index: usize,
}

impl OpenConnections {
    pub fn new(metrics: Option<WorkerMetrics>) -> Self {
        metrics.iter().for_each(WorkerMetrics::publish_driver);
        Self {
            handles: RefCell::default(),
            shrink_below: Cell::new(0),
            metrics,
            is_publishing: Cell::new(false),
            is_draining: Cell::new(false),
        }
    }

    fn enter(open: &Rc<Self>, limits: &Arc<Limits>, stream: &impl Stream) -> ConnectionPermit {
        let mut handles = open.handles.borrow_mut();
        let index = handles.insert(stream.shutdown_handle());
        open.shrink_below.set(open.shrink_below.get().max(handles.len() / 2));
        if let Some(metrics) = &open.metrics {
            metrics.connection_accepted();
            if !open.is_publishing.replace(true) {
                anello::spawn(publish_driver(Rc::clone(open))).detach();
            }
        }
        ConnectionPermit { open: Rc::clone(open), limits: Arc::clone(limits), index }
    }

    /// Shuts down the read half of every connection, so that its task echoes what was received and finishes. Waits
    /// until all have finished, the timeout expires, or `abort_requested` completes.
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
            tracing::warn!(connections, "drain ended early; closing the remaining connections");
        }
    }
}

/// Publishes the counters of the driver until no connection is open.
async fn publish_driver(open: Rc<OpenConnections>) {
    loop {
        sleep(PUBLISH_INTERVAL).await;
        open.metrics.iter().for_each(WorkerMetrics::publish_driver);
        if open.handles.borrow().is_empty() {
            open.is_publishing.set(false);
            return;
        }
    }
}

impl ConnectionPermit {
    /// Logs and counts the end of the connection.
    fn finish(&self, result: io::Result<()>) {
        let reason = match &result {
            Ok(()) if self.open.is_draining.get() => CloseReason::Drain,
            Ok(()) => CloseReason::Peer,
            // Without an error number, the error is that of the idle timeout.
            Err(error) if error.kind() == ErrorKind::TimedOut && raw_os_error(error).is_none() => {
                CloseReason::Idle
            }
            Err(_) => CloseReason::Aborted,
        };
        if let Some(metrics) = &self.open.metrics {
            metrics.connection_closed(reason);
        }
        if let Err(error) = result {
            tracing::debug!(%error, "connection failed");
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut handles = self.open.handles.borrow_mut();
        handles.remove(self.index);
        if handles.len() < self.open.shrink_below.get() {
            handles.shrink_to_fit();
            self.open.shrink_below.set(handles.len() / 2);
        }
        self.limits.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
