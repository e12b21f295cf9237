//! The connections of a worker: accepting, the limit, and draining.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anello::net::{Echo, ShutdownHandle, Stream, echo};
use anello::time::{sleep, timeout};
use anello_http::server::Accept;
use futures_util::future::select;
use slab::Slab;

use super::exchange::{self, Sizes};

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
            continue;
        }
        let permit = OpenConnections::enter(&open, &limits, &stream);
        match (limits.sizes, limits.idle_timeout) {
            (None, None) => anello::spawn(Connection { echo: echo(stream), _permit: permit }).detach(),
            _ => anello::spawn(connection_with_options(stream, permit)).detach(),
        }
    }
}

/// A connection with neither fixed message sizes nor an idle timeout, which is the common case. Implemented by hand,
/// because an `async` block would store the stream and the permit twice.
#[repr(C)]
struct Connection<S> {
    echo: Echo<S>,
    _permit: ConnectionPermit,
}

impl<S: Stream> Future for Connection<S> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Err(error) = ready!(Pin::new(&mut self.echo).poll(context)) {
            tracing::debug!(%error, "connection failed");
        }
        Poll::Ready(())
    }
}

async fn connection_with_options(mut stream: impl Stream, permit: ConnectionPermit) {
    let Limits { sizes, idle_timeout, .. } = *permit.limits;
    if let Err(error) = exchange::serve(&mut stream, sizes, idle_timeout).await {
        tracing::debug!(%error, "connection failed");
    }
}

/// The open connections of a worker.
#[derive(Default)]
pub struct OpenConnections {
    handles: RefCell<Slab<ShutdownHandle>>,
    /// Number of connections below which unused memory of `handles` is returned: half of the largest number since the
    /// last time.
    shrink_below: Cell<usize>,
}

/// Slot of an open connection. Released on drop.
struct ConnectionPermit {
    open: Rc<OpenConnections>,
    limits: Arc<Limits>,
    index: usize,
}

impl OpenConnections {
    fn enter(open: &Rc<Self>, limits: &Arc<Limits>, stream: &impl Stream) -> ConnectionPermit {
        let mut handles = open.handles.borrow_mut();
        let index = handles.insert(stream.shutdown_handle());
        open.shrink_below.set(open.shrink_below.get().max(handles.len() / 2));
        ConnectionPermit { open: Rc::clone(open), limits: Arc::clone(limits), index }
    }

    /// Shuts down the read half of every connection, so that its task echoes what was received and finishes. Waits
    /// until all have finished, the timeout expires, or `abort_requested` completes.
    pub async fn drain(&self, drain_timeout: Duration, abort_requested: impl Future<Output = ()>) {
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
