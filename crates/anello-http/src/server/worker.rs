//! State shared by the connections of one thread: options, clock, timers, and whether the server is draining.

use std::cell::Cell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anello::net::ShutdownHandle;
use anello::server::{HeapTrim, RebalancerMember};
use anello::spawn;
use anello::time::{self, sleep};

use super::deadline::Phase;
use super::observer::Observer;
#[cfg(feature = "http2")]
use super::options::Http2Mode;
use super::options::{Eviction, ServerOptions};
use super::permit::MovedConnection;
use super::registry::Registry;
use super::timer::Clock;
use super::tls::TlsConfig;

/// Length of a response body that takes about as long as a request without one.
const BODY_BYTES_PER_WORK: u64 = 32 * 1024;

/// Time after the last connection in which the memory that its requests have freed is returned.
const HEAP_SETTLE_TIME: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Worker {
    pub options: ServerOptions,
    pub clock: Rc<Clock>,
    pub observer: Observer,
    pub tls: Option<TlsConfig>,
    /// Connection count shared with other servers, if any.
    pub shared_count: Option<Arc<AtomicUsize>>,
    /// Moves connections to other workers, if any.
    pub rebalancer: Option<RebalancerMember<MovedConnection>>,
    pub registry: Registry,
    /// `true` if each response must be the last one on its connection.
    pub is_draining: Cell<bool>,
    clock_task: Cell<ClockTask>,
}

/// The task that updates the clock and checks the deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockTask {
    /// There have been no connections for [`HEAP_SETTLE_TIME`].
    Stopped,
    Running,
}

impl Worker {
    pub fn new(
        options: ServerOptions,
        observer: Observer,
        tls: Option<TlsConfig>,
        shared_count: Option<Arc<AtomicUsize>>,
        rebalancer: Option<RebalancerMember<MovedConnection>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            clock: Clock::new(options.timer_resolution),
            options,
            observer,
            tls,
            shared_count,
            rebalancer,
            registry: Registry::new(),
            is_draining: Cell::new(false),
            clock_task: Cell::new(ClockTask::Stopped),
        })
    }

    /// Registers a connection that has been accepted or moved to this worker, so that the timeouts apply. Returns its
    /// key in the registry. `phase` is [`Phase::FirstHead`] or [`Phase::Idle`].
    pub fn register(self: &Rc<Self>, phase: Phase, shutdown_handle: ShutdownHandle) -> usize {
        if self.clock_task.replace(ClockTask::Running) == ClockTask::Stopped {
            // The clock was not updated while there were no connections.
            self.clock.read();
            spawn(Rc::clone(self).tick()).detach();
        }
        self.registry.insert(phase, &self.clock, shutdown_handle)
    }

    async fn tick(self: Rc<Self>) {
        let (mut is_used, mut last_used) = (true, time::monotonic_now());
        loop {
            let now = time::monotonic_now();
            if self.registry.count() > 0 {
                (is_used, last_used) = (true, now);
            } else {
                if mem::take(&mut is_used) {
                    self.observer.flush();
                }
                if self.is_draining.get() || now - last_used >= HEAP_SETTLE_TIME {
                    break;
                }
            }
            sleep(self.options.timer_resolution).await;
            self.clock.read();
            self.observer.tick();
            self.registry.tick(&self.clock, &self.options).await;
            // Response bodies take most of the memory. A few connections can have many.
            HeapTrim::return_free_memory();
            // Another worker may have new clients but no connection to evict.
            if self.shared_count.is_some() && self.should_evict() {
                self.evict_batch();
            }
            if self.is_draining.get() {
                self.close_idle();
            }
        }
        self.clock_task.set(ClockTask::Stopped);
    }

    /// Records a request that sent `body_bytes`. Returns `true` if its connection should move to another worker.
    #[inline]
    pub fn record_request(&self, connection: usize, body_bytes: u64) -> bool {
        let record = |rebalancer: &RebalancerMember<_>| {
            rebalancer.record(connection, 1 + body_bytes / BODY_BYTES_PER_WORK)
        };
        self.rebalancer.as_ref().is_some_and(record)
    }

    pub fn connections(&self) -> usize {
        self.registry.count()
    }

    /// Returns the number of open connections across all servers that share the count.
    pub fn total_connections(&self) -> usize {
        self.shared_count.as_ref().map_or_else(|| self.connections(), |open| open.load(Ordering::Relaxed))
    }

    /// Returns `true` if clients may use HTTP/2 on some connections.
    #[cfg(feature = "http2")]
    pub fn may_use_http2(&self) -> bool {
        match self.options.http2 {
            Http2Mode::Off => false,
            Http2Mode::Tls => self.tls.is_some(),
            Http2Mode::Cleartext => true,
        }
    }

    #[inline]
    pub fn should_evict(&self) -> bool {
        self.options.eviction.threshold().is_some_and(|threshold| self.total_connections() >= threshold)
    }

    /// Evicts the connections that have waited longest for their clients and returns their number. With many
    /// connections, evicts several at once, so that one scan over the active ones makes room for several new ones.
    pub fn evict_batch(&self) -> usize {
        let include_stalled = matches!(self.options.eviction, Eviction::Stalled { .. });
        self.registry.evict(self.connections().div_ceil(64), include_stalled, self.clock.now())
    }

    pub fn refuse_moved(&self) {
        self.rebalancer.iter().for_each(RebalancerMember::close);
    }

    pub fn begin_draining(&self) {
        self.refuse_moved();
        self.is_draining.set(true);
        self.close_idle();
    }

    fn close_idle(&self) {
        self.registry.close_idle(&self.clock, self.options.drain_min_idle);
    }

    pub fn abort_all(&self) {
        self.registry.abort_all();
    }
}
