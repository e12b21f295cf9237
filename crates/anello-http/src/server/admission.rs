//! Admission control: connection permits, eviction of connections that are waiting for their clients, and rejection.
//!
//! ```text
//!   accepted ──► permit available ──────────────────────────────► serve
//!       │              ▲ closes the connections that have waited longest
//!       └─ no ──► ServerOptions::eviction ── still no permit ──► 503, close
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use anello::log_event;
use anello::net::ByteStream;
use anello::time::{monotonic_now, sleep, timeout};
use anello::{JoinHandle, spawn, yield_now};

use super::permit::ConnectionPermit;
use super::tls;
use super::worker::Worker;
use crate::h1::{HttpDate, Method, Rejection};
use crate::observe::metrics::RejectReason;
use crate::transport::{Receiver, Sender};

/// Maximum time for a rejected client to read the response and close its side.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between attempts to acquire a permit after an eviction.
const EVICTION_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum time that a new connection waits for evicted connections to close.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(100);
/// Time after a failed wait for evictions by other workers in which clients are rejected without another wait.
const EVICTION_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum number of free permits at which the driver may accept connections ahead of the server. It covers a full
/// accept queue, because each connection accepted ahead holds a descriptor before the server can reject it.
const MIN_FREE_FOR_ACCEPT_AHEAD: usize = 4096;

#[derive(Debug)]
pub(super) struct Admission {
    worker: Rc<Worker>,
    /// Tasks of rejected clients that have not closed their side yet.
    rejections: RefCell<VecDeque<JoinHandle<()>>>,
    accepts_ahead: Cell<bool>,
    /// Time at which a wait for other workers to evict a connection last failed.
    last_failed_wait: Cell<Option<Duration>>,
}

impl Admission {
    pub fn new(worker: Rc<Worker>) -> Self {
        Self {
            worker,
            rejections: RefCell::default(),
            accepts_ahead: Cell::new(false),
            last_failed_wait: Cell::new(None),
        }
    }

    /// Acquires a permit. Evicts other connections if necessary.
    pub async fn admit(&self) -> Option<ConnectionPermit> {
        if self.worker.should_evict() { self.evict_for_permit().await } else { self.acquire_permit() }
    }

    /// Returns `true` if enough permits are free for the driver to accept ahead of the server.
    pub fn accepts_ahead(&self) -> bool {
        let options = &self.worker.options;
        let limit = options.eviction.threshold().unwrap_or(usize::MAX).min(options.max_connections);
        let free = limit.saturating_sub(self.worker.total_connections());
        // Starting to accept ahead requires twice as many free permits, because each change requires a cancellation.
        let factor = if self.accepts_ahead.get() { 1 } else { 2 };
        self.accepts_ahead.set(free >= factor * MIN_FREE_FOR_ACCEPT_AHEAD);
        self.accepts_ahead.get()
    }

    fn acquire_permit(&self) -> Option<ConnectionPermit> {
        let limit = self.worker.options.max_connections;
        let Some(open) = &self.worker.shared_count else {
            return (self.worker.connections() < limit).then_some(ConnectionPermit(None));
        };
        let permit = ConnectionPermit(Some(Arc::clone(open)));
        // Incremented before the check, so that two threads cannot both take the last permit.
        (open.fetch_add(1, Ordering::Relaxed) < limit).then_some(permit)
    }

    /// Closes connections that are waiting for their clients, and acquires a permit once these have closed.
    #[cold]
    #[inline(never)]
    async fn evict_for_permit(&self) -> Option<ConnectionPermit> {
        let deadline = monotonic_now() + EVICTION_TIMEOUT;
        loop {
            let open = self.worker.total_connections();
            let evicted = self.worker.evict_batch();
            // An evicted connection has nothing to send, so its client cannot delay the close.
            self.wait_until_evicted(deadline, open.saturating_sub(evicted)).await;
            if let Some(permit) = self.acquire_permit() {
                return Some(permit);
            }
            if evicted == 0 {
                break;
            }
            // Other workers took the permits.
            if monotonic_now() >= deadline {
                return None;
            }
        }
        // Other workers evict connections at their next tick. Wait for it unless such a wait failed recently.
        let is_recent = |failed_at| monotonic_now() < failed_at + EVICTION_RETRY_INTERVAL;
        if self.worker.shared_count.is_none() || self.last_failed_wait.get().is_some_and(is_recent) {
            return None;
        }
        self.wait_until_evicted(monotonic_now() + self.worker.options.timer_resolution * 2, 0).await;
        let permit = self.acquire_permit();
        self.last_failed_wait.set(permit.is_none().then(monotonic_now));
        permit
    }

    /// Waits until at most `remaining` connections are open, no eviction is needed, or the deadline has passed.
    async fn wait_until_evicted(&self, deadline: Duration, remaining: usize) {
        let worker = &self.worker;
        while worker.should_evict() && worker.total_connections() > remaining && monotonic_now() < deadline {
            sleep(EVICTION_POLL_INTERVAL).await;
        }
    }

    /// Sends 503 immediately. The client may keep its side open until
    /// [`ServerOptions::refusals`](super::ServerOptions::refusals) further clients have been rejected.
    pub async fn reject(&self, stream: impl ByteStream) {
        self.worker.observer.count(|metrics| metrics.connection_rejected(RejectReason::MaxConnections));
        let (tls, date) = (self.worker.tls.clone(), self.worker.clock.date.get());
        let sending = async move {
            match tls {
                None => {
                    let (reader, writer) = stream.into_split();
                    send_rejection(reader, writer, true, &date).await
                }
                // The rejection is an HTTP/1.1 response.
                Some(config) => {
                    let (receiver, sender) = tls::split(stream, None, &config, false)?;
                    send_rejection(receiver, sender, false, &date).await
                }
            }
        };
        let mut rejecting: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            let result = timeout(REJECTION_TIMEOUT, sending).await;
            log_event!(DEBUG, ?result, "connection rejected: connection limit reached");
        });
        // The first poll passes the whole response to the driver, which sends it even if the task is aborted later.
        let is_pending = poll_fn(|context| Poll::Ready(rejecting.as_mut().poll(context))).await.is_pending();
        if is_pending && self.add_rejection(spawn(rejecting)) {
            // Let the aborted tasks close their connections before more are accepted.
            yield_now().await;
        }
    }

    /// Adds a task, and aborts the oldest tasks beyond the limit. Returns `true` if it aborted any.
    fn add_rejection(&self, task: JoinHandle<()>) -> bool {
        let max_tasks = self.worker.options.refusals;
        let mut tasks = self.rejections.borrow_mut();
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

/// Sends 503 without reading the request. With `close_immediately`, the write half is shut down before the client has
/// sent anything.
async fn send_rejection(
    mut receiver: impl Receiver,
    mut sender: impl Sender,
    close_immediately: bool,
    date: &HttpDate,
) -> io::Result<()> {
    const TOO_MANY_CONNECTIONS: Rejection = Rejection::new(503, "connection limit reached, try again later");
    let mut response = Vec::new();
    // The method is unknown; GET is the most common one.
    TOO_MANY_CONNECTIONS.write(&mut response, Method::Get, Some(date));
    sender.write_all(&response).await?;
    // A TLS handshake progresses only during receive operations, and is complete when a request arrives.
    if close_immediately || poll_fn(|context| receiver.poll_receive(context)).await?.is_some() {
        poll_fn(|context| sender.poll_shutdown(context)).await?;
    }
    // Closing with unread bytes would reset the connection before the client reads the response.
    while poll_fn(|context| receiver.poll_receive(context)).await?.is_some() {}
    Ok(())
}
