//! I/O drivers. Only this module and its submodules make system calls on sockets.
//!
//! # Driver contract
//!
//! A driver owns all sockets, and all buffers that the kernel can access. Callers hold a [`Key`], which is a slot index
//! plus a generation, and never lend memory to the kernel.
//!
//! - *Poll*: `poll_receive`, `poll_send`, `poll_accept` and the other poll functions never block. They either complete
//!   immediately or store the caller's waker and return `Pending`. A full queue is not an error. A poll may make a
//!   non-blocking system call (on epoll, and on io_uring for large messages) or queue an operation for the next
//!   [`Driver::turn`] (on io_uring, and on epoll for small messages when many sockets were ready).
//! - *Wakers*: there is one waker per direction. A later poll in the same direction replaces the waker.
//! - *Cancel safety*: dropping a future has no effect on the driver. Received bytes stay queued, and bytes accepted by
//!   `poll_send` are still sent.
//! - *Release*: [`Driver::release`] releases a key. The driver then (1) sends all accepted bytes, (2) cancels the
//!   operations in flight, (3) waits for their terminal completions, and (4) closes the socket, frees the slot and
//!   gives it a new generation. [`Driver::abort`] skips step 1.
//! - *Turn*: [`Driver::turn`] submits all queued operations and optionally waits for completions, with a single system
//!   call on io_uring. Wakers that are due are collected and then called once the driver is no longer borrowed, because
//!   a waker can run arbitrary code.
//!
//! Two state machines implement the contract: [`proactor`] on kernels that complete operations (io_uring, simulated)
//! and [`reactor`] on kernels that report readiness (epoll, simulated). The same test suite runs on all four kernels.

mod backend;
mod calls;
mod counters;
mod datagram;
mod datagram_socket;
mod epoll;
mod errors;
mod file;
mod kernel;
mod machine_calls;
mod memory;
mod proactor;
mod reactor;
mod settings;
#[cfg(feature = "sim")]
mod sim;
#[cfg(not(feature = "sim"))]
#[path = "no_sim.rs"]
mod sim;
mod sockets;
mod source;
mod stream;
#[cfg(all(test, not(miri)))]
mod tests;
mod uring;
mod wait;
mod wake;

use std::collections::HashMap;
use std::io;
#[cfg(feature = "sim")]
use std::sync::Arc;
use std::time::Duration;

use self::backend::{Backend, OwnedBackend, dispatch, dispatch_by_model};
pub use self::counters::{DriverMetrics, MetricEntry};
pub use self::datagram::info::{DatagramInfo, Ecn, OutgoingDatagram};
pub(crate) use self::datagram::messages::MAX_BATCH_DATAGRAMS;
pub use self::datagram::recv_batch::{ReceivedDatagram, RecvBatch};
pub(crate) use self::datagram_socket::DatagramSocket;
pub(crate) use self::datagram_socket::unix::UnixDatagramSocket;
use self::epoll::Epoll;
pub use self::errors::catch_panic::catch_and_log_panic;
pub(crate) use self::errors::catch_panic::rethrow_broken_invariant;
pub use self::errors::context::raw_os_error;
pub(crate) use self::errors::context::{unexpected_eof, with_context, with_text};
#[cfg(debug_assertions)]
pub(crate) use self::errors::impossible::is_check_due;
pub(crate) use self::errors::log::{LogSpan, display_field, log_event, log_span};
pub use self::errors::log::{log_guarded, tracing};
pub(crate) use self::errors::owner_process::{OwnerProcess, PerProcess};
#[cfg(feature = "sim")]
pub use self::file::disk::CrashLoss;
pub(crate) use self::file::disk::{Disk, NameChange};
pub(crate) use self::file::operation::{FileOperation, Memory, Transfer};
use self::kernel::Kernel;
pub(crate) use self::kernel::op::Wait;
pub use self::memory::buffer::Chunk;
pub(crate) use self::memory::key::Key;
pub(crate) use self::memory::pages;
pub(crate) use self::memory::table::{Packed, Table};
use self::proactor::Proactor;
use self::reactor::Reactor;
pub use self::settings::kind::{DriverInfo, DriverKind};
#[doc(hidden)]
pub use self::settings::options::{DisabledFeatures, TestOptions};
pub use self::settings::options::{DriverOptions, SubmissionPolling, TaskWork, ZeroCopy};
#[cfg(feature = "sim")]
pub use self::settings::sim_options::{SimFaults, SimModel, SimOptions};
pub(crate) use self::sim::SimSignal;
#[cfg(feature = "sim")]
pub(crate) use self::sim::{Due, SimNetwork, Uplink, World, duration_ns};
#[cfg(feature = "sim")]
pub use self::sim::{LinkOptions, LinkStatistics};
use self::sockets::Sockets;
pub(crate) use self::sockets::detached::{AnySocket, DetachedConnection, DetachedSocket};
pub(crate) use self::sockets::messages::{ReceivedFds, ReceivedMessage};
pub use self::sockets::options::PeerCredentials;
pub(crate) use self::sockets::options::SocketOption;
pub(crate) use self::sockets::reuse_port::{listen_shared, steer_by_core, stop_steering};
pub(crate) use self::sockets::{
    End, Family, FileRange, ListenOptions, Target, check_linger, check_socket, gone, try_accept,
    unix_datagrams, unix_name,
};
pub(crate) use self::source::interest::{Direction, Side};
pub use self::source::interest::{Interest, Ready};
pub(crate) use self::source::readiness::{Clear, ReadyEvent, Ticket};
pub(crate) use self::stream::accepted::{AcceptSink, Accepted};
pub(crate) use self::stream::lingering::Lingering;
pub(crate) use self::stream::open_count::{OpenCount, OpenCounts};
pub use self::stream::send_queue::SendBuf;
use self::uring::Uring;
pub(crate) use self::wait::clock::Clock;
use self::wait::spin::Spin;
pub(crate) use self::wake::event_waker::{collect_events, event_queue, event_waker};
pub(crate) use self::wake::notifier::Notifier;
pub use self::wake::queue::wake_all;
pub(crate) use self::wake::queue::{PollIo, WakeQueue};
pub(crate) use self::wake::signal_count::count_signal;
pub(crate) use self::wake::waker_set::{Place, WakerSet};
#[cfg(feature = "sim")]
pub(crate) use self::wake::woken_hosts::{HostId, WokenHosts};

/// Maximum wait per turn during shutdown, when no notification wakes the driver.
const SHUT_DOWN_STEP_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(crate) struct Driver {
    backend: OwnedBackend,
    spin: Spin,
    /// Minimum time without progress after which a released stream is aborted.
    linger: Duration,
    pub description: DriverInfo,
    /// The shares of counted connections, which are dropped when the connections are released. Empty unless the
    /// application counts open connections.
    open_counts: HashMap<Key, OpenCount>,
    /// Set when shutdown starts. No new socket is added afterwards, so no operation starts after the last cancellation.
    closed: bool,
    /// Set during a call of an event loop. A driver that is dropped meanwhile is leaked.
    pub is_entered: bool,
}

impl Driver {
    /// Opens a driver of the given kind on the calling thread.
    pub fn new(kind: &DriverKind, options: &DriverOptions) -> io::Result<Self> {
        let mut fallback_reason = None;
        let uring =
            || Uring::new(options).map(|uring| Backend::Uring(Box::new(Proactor::new(uring, options))));
        let epoll =
            || Epoll::new(options).map(|epoll| Backend::Epoll(Box::new(Reactor::new(epoll, options))));
        let backend = match kind {
            DriverKind::Uring => uring()?,
            DriverKind::Epoll => epoll()?,
            DriverKind::Auto => uring().or_else(|error| {
                fallback_reason = Some(error.to_string());
                epoll()
            })?,
            #[cfg(feature = "sim")]
            DriverKind::Sim(sim) => return Ok(Self::simulated(SimNetwork::new(sim), sim, options)),
        };
        Ok(Self::of(backend, options, fallback_reason))
    }

    fn of(backend: Backend, options: &DriverOptions, fallback_reason: Option<String>) -> Self {
        let (name, features) = match &backend {
            Backend::Uring(uring) => ("uring", uring.kernel.features.to_string()),
            Backend::Epoll(epoll) => ("epoll", epoll.kernel.features()),
            Backend::SimCompletion(_) => ("sim", "completion".to_owned()),
            Backend::SimReadiness(_) => ("sim", "readiness".to_owned()),
        };
        let description = DriverInfo { name, features, fallback_reason };
        let backend = OwnedBackend::new(backend);
        let spin = Spin::new(options.spin);
        let linger = options.testing.linger;
        Self {
            backend,
            spin,
            linger,
            description,
            open_counts: HashMap::new(),
            closed: false,
            is_entered: false,
        }
    }

    /// Returns `true` if the clock and the network are simulated. A simulated driver does not react to other threads.
    pub fn is_simulated(&self) -> bool {
        matches!(*self.backend, Backend::SimCompletion(_) | Backend::SimReadiness(_))
    }

    /// Returns `true` in a forked child process. There, releasing a socket or file has no effect; other calls panic.
    pub fn is_foreign(&self) -> bool {
        !self.backend.owner.is_current()
    }

    /// Returns a notifier. Until the driver is closed, other threads can use it to interrupt the driver's wait.
    pub fn notifier(&self) -> io::Result<Notifier> {
        #[cfg(feature = "sim")]
        if let Some(Uplink { world, host }) = self.uplink() {
            return Ok(Notifier::simulated(Arc::clone(world.borrow().woken()), host));
        }
        dispatch!(&*self.backend, machine => machine.kernel.wake_descriptors()).map(Notifier::new)
    }

    /// Returns `true` if [`send_wake`](Self::send_wake) can reach other rings.
    pub fn can_send_wake(&self) -> bool {
        matches!(&*self.backend, Backend::Uring(uring) if uring.kernel.features.msg_ring)
    }

    /// Wakes the owner of another ring, and submits all queued operations. Returns `true` if both drivers use io_uring
    /// and the target is still open. The wake-up may be delayed until the next turn.
    pub fn send_wake(&mut self, target: &Notifier) -> bool {
        match &mut *self.backend {
            Backend::Uring(uring) => uring.kernel.send_wake(target),
            _ => false,
        }
    }

    /// Submits queued operations, waits as requested and processes completions. See the [contract](self).
    #[inline]
    pub fn turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        if wait != Wait::None && self.spin.is_on() && !self.is_simulated() && self.spin_before_wait(wakes)? {
            return Ok(());
        }
        dispatch!(&mut *self.backend, machine => machine.turn(wait, wakes))
    }

    /// Returns `true` if a turn would submit queued operations or read pending completions.
    pub fn needs_turn(&self) -> bool {
        match &*self.backend {
            Backend::Uring(uring) => uring.needs_turn(),
            Backend::Epoll(epoll) => epoll.needs_turn(),
            #[cfg(feature = "sim")]
            Backend::SimReadiness(sim) => sim.needs_turn(),
            #[cfg(not(feature = "sim"))]
            Backend::SimReadiness(_) => false,
            // No other thread runs during the simulation, so submitting earlier has no effect.
            Backend::SimCompletion(_) => false,
        }
    }

    /// Returns `true` if polls of tasks make the system calls that receive. Otherwise, turns of the driver do.
    pub fn receives_in_polls(&self) -> bool {
        dispatch_by_model!(&*self.backend, completion _ => false, readiness _ => true)
    }

    /// Returns `true` if the next turn will submit operations.
    pub fn has_unsubmitted(&self) -> bool {
        dispatch_by_model!(
            &*self.backend,
            completion machine => machine.has_unsubmitted(),
            readiness machine => machine.needs_turn()
        )
    }

    /// Spins for a short time before a blocking wait. Returns `true` if there is work to do.
    #[cold]
    #[inline(never)]
    fn spin_before_wait(&mut self, wakes: &mut WakeQueue) -> io::Result<bool> {
        dispatch!(&mut *self.backend, machine => {
            // Submit queued operations first: the peer may be waiting for one of them.
            machine.turn(Wait::None, wakes)?;
            Ok(wakes.has_work() || self.spin.spin_until(|| machine.find_work(wakes))?)
        })
    }

    /// Returns the state machine for opening or importing a socket, or an error if the driver has been shut down.
    /// Operations on existing sockets need no check: shutdown releases all sockets, and a released socket starts no
    /// operations.
    fn open_backend(&mut self) -> io::Result<&mut Backend> {
        if self.closed { Err(gone()) } else { Ok(&mut *self.backend) }
    }

    /// Returns an empty list of released streams that may still be sending.
    pub fn lingering(&self) -> Lingering {
        Lingering::new(self.linger)
    }

    /// Returns the number of streams, including streams that are being closed.
    pub fn stream_count(&self) -> usize {
        dispatch!(&*self.backend, machine => machine.stream_count())
    }

    pub fn now_ns(&self) -> u64 {
        dispatch!(&*self.backend, machine => machine.kernel.sockets().now_ns())
    }

    pub fn clock(&self) -> Clock {
        dispatch!(&*self.backend, machine => machine.kernel.sockets().clock())
    }

    pub fn metrics(&self) -> DriverMetrics {
        dispatch!(&*self.backend, machine => machine.metrics())
    }

    /// Shuts down the driver: releases every socket, sends accepted bytes, aborts each stream of which the kernel has
    /// taken no bytes for `drain`, cancels the remaining operations and waits until the kernel no longer uses the
    /// driver's memory. Later attempts to add a socket fail. The caller must call the wakers in `wakes`.
    ///
    /// # Errors
    /// Returns an error if waiting fails, or if the kernel has not completed all operations in time. Their memory is
    /// then never freed.
    pub fn shut_down(&mut self, drain: Duration, wakes: &mut WakeQueue) -> io::Result<()> {
        self.closed = true;
        self.open_counts.clear();
        self.close_signals(wakes);
        dispatch!(&mut *self.backend, machine => {
            machine.release_sources(wakes);
            machine.release_all(wakes);
        });
        dispatch!(&mut *self.backend, machine => machine.turn(Wait::None, wakes))?;
        let mut lingering = Lingering::new(drain);
        for key in dispatch!(&*self.backend, machine => machine.sending_streams()) {
            lingering.push(key, self, self.now_ns());
        }
        while let Some(next_check_ns) = lingering.next_check_ns()
            && self.metrics().sockets > 0
        {
            let wait_ns = next_check_ns.saturating_sub(self.now_ns()).min(SHUT_DOWN_STEP_NS);
            let wait = if wait_ns == 0 { Wait::None } else { Wait::For(wait_ns) };
            dispatch!(&mut *self.backend, machine => machine.turn(wait, wakes))?;
            lingering.check(self, self.now_ns(), wakes);
        }
        dispatch!(&mut *self.backend, machine => machine.shut_down(wakes))?;
        debug_assert_eq!(self.metrics().sockets, 0, "invariant 14: shutdown ends while a socket is open");
        Ok(())
    }
}

/// Frees no memory that the kernel may still use. A handle, a waker or another worker can hold a descriptor of the
/// ring, so closing the driver's own descriptor does not end the operations. The kernel stops using the memory only
/// once it has posted the terminal completions.
impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_foreign() {
            return;
        }
        if self.is_entered {
            return log_event!(ERROR, "event loop dropped during one of its calls; leaking its driver");
        }
        // If the driver is already closed, the runtime has shut it down.
        if !self.closed {
            let mut wakes = WakeQueue::default();
            catch_and_log_panic("driver panicked during shutdown", || {
                if let Err(error) = self.shut_down(Duration::ZERO, &mut wakes) {
                    log_event!(ERROR, %error, "cannot shut down driver");
                }
            });
            // Events of a dropped event loop are discarded. Otherwise, the turn of another loop would report them.
            let call_wakers = || collect_events(&mut Vec::new(), || wakes.call());
            catch_and_log_panic("waker panicked during driver shutdown", call_wakers);
        }
        let is_quiescent = dispatch_by_model!(
            &*self.backend,
            completion machine => machine.is_quiescent(),
            // The kernel uses the driver's memory only during system calls.
            readiness _ => true
        );
        if is_quiescent {
            // Invariant 15: otherwise, the memory is leaked.
            // SAFETY: nothing accesses the field after this. The kernel no longer uses the state machine's memory:
            // every operation that uses it belongs to an entry in its tables, and the tables are empty.
            unsafe { self.backend.drop() }
        } else {
            log_event!(ERROR, "operations still in flight at shutdown; leaking the driver's memory");
        }
    }
}

/// Opens an io_uring ring, probes its features and closes it. Returns the name of each feature, and whether a driver
/// would use it.
///
/// ```
/// use anello::doctor::probe_uring;
/// use anello::{DriverOptions, TaskWork};
///
/// match probe_uring(&DriverOptions::default().task_work(TaskWork::Cooperative)) {
///     Ok(features) => assert!(features.contains(&("defer-taskrun", false))),
///     Err(error) => println!("{error}"),
/// }
/// ```
///
/// # Errors
/// Returns an error that states the cause and the remedy if io_uring is unavailable.
pub fn probe_uring(options: &DriverOptions) -> io::Result<Vec<(&'static str, bool)>> {
    Ok(Uring::new(options)?.features.named().to_vec())
}
