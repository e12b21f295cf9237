//! Which clients are served: places of connections, eviction of those that wait for their clients, and refusals.
//!
//! ```text
//!   accepted ──► a place is free ───────────────────────────────► served
//!       │              ▲ the longest idle connections are closed
//!       └─ none ──► Options::eviction ── still none ──► 503, and closed
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use anello::net::Stream;
use anello::time::{monotonic_now, sleep, timeout};
use anello::{JoinHandle, spawn, yield_now};

use super::options::Eviction;
use super::transport::{Receiver, Sender};
use super::{Accept, Server, tls};
use crate::h1::{HttpDate, Method, Rejection};
use crate::request::Request;
use crate::response::Response;

/// How long a refused client may take to read that, and to close its side.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a place is looked for after connections have been evicted, and for how long.
const EVICTION_POLL_INTERVAL: Duration = Duration::from_millis(1);
const EVICTION_TIMEOUT: Duration = Duration::from_millis(100);

/// How long clients are refused at once after other workers have evicted nothing.
const EVICTION_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// With a free place for each connection of a full backlog, the driver may accept ahead of the server. It must not when there
/// are fewer: each connection that it accepts holds a descriptor before the server can refuse it.
const MIN_FREE_FOR_ACCEPT_AHEAD: usize = 4096;

/// Clients that have been refused and have not closed their side.
#[derive(Debug, Default)]
pub(super) struct RejectionTasks {
    tasks: RefCell<VecDeque<JoinHandle<()>>>,
    /// Whether the driver accepts ahead of the server.
    accepts_ahead: Cell<Option<bool>>,
    /// When other workers were last waited for to evict, and none did.
    last_failed_wait: Cell<Option<Duration>>,
}

/// A connection's place among those of all servers that count together, given up when dropped.
pub(super) struct ConnectionPermit(Option<Arc<AtomicUsize>>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(open) = &self.0 {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Server {
    /// Serves a connection that was accepted, or refuses it.
    pub(super) async fn admit<H>(&self, stream: impl Stream, handler: &Rc<H>)
    where
        H: AsyncFn(Request) -> Response + 'static,
    {
        let permit = if self.should_evict() { self.evict_for_permit().await } else { self.acquire_permit() };
        let Some(permit) = permit else { return self.reject(stream).await };
        let (server, handler) = (self.clone(), Rc::clone(handler));
        self.worker.task_spawned();
        spawn(async move {
            let _permit = permit;
            server.worker.task_started();
            if let Err(error) = server.serve_connection(stream, &*handler).await {
                tracing::debug!(%error, "a connection broke");
            }
        })
        .detach();
    }

    /// Has the driver accept ahead of the server only while there are places for what that may bring.
    pub(super) fn limit_accepts(&self, listener: &impl Accept) {
        let options = &self.worker.options;
        let limit = options
            .eviction
            .threshold()
            .map_or(options.max_connections, |at| at.min(options.max_connections));
        let free = limit.saturating_sub(self.worker.total_connections());
        let previous = self.rejections.accepts_ahead.get();
        // Not to and fro: a change costs a cancellation.
        let needed =
            if previous == Some(true) { MIN_FREE_FOR_ACCEPT_AHEAD } else { 2 * MIN_FREE_FOR_ACCEPT_AHEAD };
        let accepts_ahead = free >= needed;
        self.rejections.accepts_ahead.set(Some(accepts_ahead));
        // Each listener of the server hears it; those that have heard it do nothing.
        listener.set_accept_ahead(accepts_ahead);
    }

    /// A place for one more connection, if there is one.
    fn acquire_permit(&self) -> Option<ConnectionPermit> {
        let limit = self.worker.options.max_connections;
        let Some(open) = &self.worker.shared_count else {
            return (self.worker.connections() < limit).then_some(ConnectionPermit(None));
        };
        let permit = ConnectionPermit(Some(Arc::clone(open)));
        // Counted first, so that two threads do not both take the last one.
        (open.fetch_add(1, Ordering::Relaxed) < limit).then_some(permit)
    }

    #[inline]
    fn should_evict(&self) -> bool {
        let threshold = self.worker.options.eviction.threshold();
        threshold.is_some_and(|threshold| self.worker.total_connections() >= threshold)
    }

    /// Closes connections that wait for their clients, and looks for a place when they have ended.
    #[cold]
    #[inline(never)]
    async fn evict_for_permit(&self) -> Option<ConnectionPermit> {
        // What was accepted just now waits for its client as soon as its task has begun.
        while self.worker.has_unstarted_tasks() {
            yield_now().await;
        }
        let deadline = monotonic_now() + EVICTION_TIMEOUT;
        loop {
            let open = self.worker.total_connections();
            let evicted = self.worker.evict_batch();
            // Such a connection has nothing to send: it ends by itself, and not when its client wants it to.
            self.wait_until_evicted(deadline, open.saturating_sub(evicted)).await;
            if let Some(permit) = self.acquire_permit() {
                return Some(permit);
            }
            if evicted == 0 {
                break;
            }
            // Other workers have taken the places.
            if monotonic_now() >= deadline {
                return None;
            }
        }
        // Other workers evict at their next tick. Where that has been in vain, no further client waits for it.
        let last_failed_wait = &self.rejections.last_failed_wait;
        if self.worker.shared_count.is_none()
            || last_failed_wait.get().is_some_and(|at| monotonic_now() < at + EVICTION_RETRY_INTERVAL)
        {
            return None;
        }
        self.wait_until_evicted(monotonic_now() + self.worker.options.timer_resolution * 2, 0).await;
        let permit = self.acquire_permit();
        last_failed_wait.set(permit.is_none().then(monotonic_now));
        permit
    }

    /// Waits until no more than so many connections are open, or none has to be evicted.
    async fn wait_until_evicted(&self, deadline: Duration, remaining: usize) {
        while self.should_evict() && self.worker.total_connections() > remaining && monotonic_now() < deadline
        {
            sleep(EVICTION_POLL_INTERVAL).await;
        }
    }

    /// Answers that there are too many connections. The client hears it at once, and may close its side for a while, until
    /// [`Options::refusals`](super::ServerOptions::refusals) others have been refused.
    async fn reject(&self, stream: impl Stream) {
        self.worker.observer.connection_rejected();
        let (tls, date) = (self.tls.clone(), self.worker.clock.date());
        let sending = async move {
            match tls {
                None => {
                    let (reader, writer) = stream.into_split();
                    send_rejection(reader, writer, true, &date).await
                }
                Some(config) => {
                    let (receiver, sender) = tls::split(stream, &config)?;
                    send_rejection(receiver, sender, false, &date).await
                }
            }
        };
        let mut rejecting: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            let result = timeout(REJECTION_TIMEOUT, sending).await;
            tracing::debug!(?result, "a client was refused: there are too many connections");
        });
        // The first poll gives the whole answer to the driver, which sends it whatever becomes of the task.
        let is_pending = poll_fn(|context| Poll::Ready(rejecting.as_mut().poll(context))).await.is_pending();
        if is_pending && self.rejections.push(spawn(rejecting), self.worker.options.refusals) {
            // The connections of those that were ended are closed before others are accepted.
            yield_now().await;
        }
    }
}

impl RejectionTasks {
    /// Keeps a refusal that its client has not ended, and ends the oldest ones beyond so many. Whether there were any.
    fn push(&self, task: JoinHandle<()>, max_tasks: usize) -> bool {
        let mut tasks = self.tasks.borrow_mut();
        tasks.push_back(task);
        if tasks.len() <= max_tasks {
            return false;
        }
        tasks.retain(|task| !task.is_finished());
        let excess = tasks.len().saturating_sub(max_tasks);
        tasks.drain(..excess).for_each(|oldest| oldest.abort());
        excess > 0
    }
}

impl Eviction {
    pub(super) fn threshold(self) -> Option<usize> {
        match self {
            Self::Never => None,
            Self::Idle { threshold } | Self::Stalled { threshold } => Some(threshold),
        }
    }
}

/// Answers 503 without having understood anything. `close_immediately`: the answer does not wait for what the client sends.
async fn send_rejection(
    mut receiver: impl Receiver,
    mut sender: impl Sender,
    close_immediately: bool,
    date: &HttpDate,
) -> io::Result<()> {
    const TOO_MANY_CONNECTIONS: Rejection =
        Rejection::new(503, "the server has as many connections as it may: try again later");
    let mut response = Vec::new();
    // The method is not known: most clients ask by GET.
    TOO_MANY_CONNECTIONS.write(&mut response, Method::Get, Some(date));
    sender.write_all(&response).await?;
    // The handshake of TLS goes on with receiving, and is over when a request comes.
    if close_immediately || poll_fn(|context| receiver.poll_receive(context)).await?.is_some() {
        poll_fn(|context| sender.poll_shutdown(context)).await?;
    }
    // Bytes that are not read would reset the connection before the answer is.
    while poll_fn(|context| receiver.poll_receive(context)).await?.is_some() {}
    Ok(())
}
