//! Drivers: sockets in, bytes out. The only place that talks to the kernel.
//!
//! # The contract
//!
//! A driver owns every socket and every buffer that the kernel may touch, and hands out [`Key`]s. Whoever holds a key
//! *polls* (`poll_receive`, `poll_send`, `poll_accept`, …) and is woken through the [`Waker`] it left; nobody outside
//! ever lends memory to the kernel.
//!
//! - A poll never blocks and never fails because a queue is full. It may perform a system call that does not wait
//!   (epoll; large messages on io_uring) or note an operation for the next [`Driver::turn`] (io_uring; small messages
//!   on epoll when many sockets were ready).
//! - One waker per direction: a later poll replaces an earlier one's.
//! - Dropping a future changes nothing in the driver: bytes received stay queued, bytes accepted by `poll_send` are
//!   sent. So every operation is cancel-safe.
//! - [`Driver::release`] gives a key up. What was accepted is still sent; then everything in flight is cancelled, its
//!   terminal completions are awaited, and only then is the socket closed and the slot reused, under a new generation.
//!   [`Driver::abort`] does the same without sending the rest.
//! - [`Driver::turn`] hands everything noted to the kernel and, when told to, waits: one system call does both. It
//!   puts the wakers of what happened into a list; they are called when the driver is no longer borrowed, because a
//!   waker may run any code.
//!
//! Two state machines meet the contract: [`proactor`] over kernels that complete operations (io_uring, simulated) and
//! [`reactor`] over kernels that report readiness (epoll, simulated). A shared suite runs on all.

mod accept_sink;
pub(crate) mod buffer;
mod catch_panic;
mod clock;
mod counters;
mod direct_read;
mod epoll;
mod io_slice_cursor;
mod notifier;
mod op;
mod options;
pub(crate) mod page_cache;
mod proactor;
mod reactor;
mod send_queue;
mod sim;
mod socket_options;
mod sockets;
mod spin;
pub(crate) mod table;
#[cfg(all(test, not(miri)))]
mod tests;
mod token;
mod uring;
mod wake;

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::ManuallyDrop;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixAddress;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::Duration;

pub(crate) use accept_sink::AcceptSink;
use buffer::Chunk;
pub(crate) use catch_panic::{catch_and_log_panic, log};
pub(crate) use clock::Clock;
pub use counters::DriverMetrics;
use epoll::Epoll;
use notifier::Descriptors;
pub(crate) use notifier::Notifier;
pub(crate) use op::Wait;
pub use options::{DisabledFeatures, DriverOptions, SendCompletion, SubmissionPolling, TaskWork, ZeroCopy};
use proactor::{CompletionKernel, Proactor, gone};
use reactor::{Reactor, ReadinessKernel};
pub use send_queue::SendBuf;
use sim::{SimCompletion, SimReadiness};
pub use sim::{SimFaults, SimModel, SimOptions};
pub use sockets::PeerCredentials;
use sockets::{Family, MAX_IO_SLICES, Sockets};
pub(crate) use sockets::{ListenOptions, StreamOption, try_accept};
use spin::Spin;
pub(crate) use token::Key;
use uring::Uring;
pub(crate) use wake::{WakeQueue, wake_all};

/// Which driver to run on.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DriverKind {
    /// io_uring where the set-up works, else epoll; the reason is logged.
    #[default]
    Auto,
    /// io_uring, or an error that names the cause and the remedy.
    Uring,
    /// epoll.
    Epoll,
    /// The simulated kernel: in-memory sockets, a virtual clock, seeded faults.
    Sim(SimOptions),
}

impl std::str::FromStr for DriverKind {
    type Err = io::Error;

    fn from_str(name: &str) -> io::Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "uring" | "io_uring" => Ok(Self::Uring),
            "epoll" => Ok(Self::Epoll),
            other => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no driver is called {other:?}: use auto, uring or epoll"),
            )),
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Epoll => "epoll",
            Self::Sim(_) => "sim",
        })
    }
}

/// Longest wait while the rest is sent: nothing else wakes a driver whose runtime is going.
const SHUT_DOWN_STEP_NS: u64 = 10_000_000;

/// What an accept gave.
#[derive(Debug)]
pub(crate) enum Accepted {
    Stream(Key),
    /// Not for this driver: in blocking mode.
    Descriptor(OwnedFd),
}

/// The driver that a runtime runs on.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Dropped only when the kernel uses none of its memory: see `Drop`.
    backend: ManuallyDrop<Backend>,
    spin: Spin,
    description: DriverInfo,
    /// Has begun to shut down: no new socket is accepted, so that nothing is started after the last cancellation.
    closed: bool,
}

/// Which driver runs, with what, and why not the other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverInfo {
    /// `uring`, `epoll` or `sim`.
    pub name: &'static str,
    /// The kernel features in use, with commas.
    pub features: String,
    /// Why `auto` did not take io_uring, when it did not.
    pub fallback_reason: Option<String>,
}

#[derive(Debug)]
enum Backend {
    Uring(Box<Proactor<Uring>>),
    Epoll(Box<Reactor<Epoll>>),
    SimCompletion(Box<Proactor<SimCompletion>>),
    SimReadiness(Box<Reactor<SimReadiness>>),
}

/// The same call on whichever state machine it is: four arms that differ in nothing but a name.
macro_rules! dispatch {
    ($driver:expr, $machine:ident => $call:expr) => {
        match $driver {
            Backend::Uring($machine) => $call,
            Backend::Epoll($machine) => $call,
            Backend::SimCompletion($machine) => $call,
            Backend::SimReadiness($machine) => $call,
        }
    };
}

/// Apart, so that only the real kernels are inlined into whoever receives and sends.
impl Backend {
    #[cold]
    #[inline(never)]
    fn poll_receive(&mut self, key: Key, into: &mut Option<Chunk>, waker: &Waker) -> Poll<io::Result<()>> {
        dispatch!(self, machine => machine.poll_receive(key, into, waker))
    }

    #[cold]
    #[inline(never)]
    fn poll_send(&mut self, key: Key, outgoing: &mut Option<SendBuf>, waker: &Waker) -> Poll<io::Result<()>> {
        dispatch!(self, machine => machine.poll_send(key, outgoing, waker))
    }
}

impl Driver {
    /// Opens the driver of that kind on the calling thread.
    ///
    /// # Errors
    /// When the driver asked for by name is not to be had, or the process has no descriptors left.
    pub fn new(kind: &DriverKind, options: &DriverOptions) -> io::Result<Self> {
        let mut fallback_reason = None;
        let backend = match kind {
            DriverKind::Uring => Self::uring(options)?,
            DriverKind::Epoll => Self::epoll(options)?,
            DriverKind::Auto => match Self::uring(options) {
                Ok(backend) => backend,
                Err(error) => {
                    fallback_reason = Some(error.to_string());
                    Self::epoll(options)?
                }
            },
            DriverKind::Sim(sim) => match sim.model {
                SimModel::Completion => {
                    Backend::SimCompletion(Box::new(Proactor::new(SimCompletion::new(sim, options), options)))
                }
                SimModel::Readiness => {
                    Backend::SimReadiness(Box::new(Reactor::new(SimReadiness::new(sim), options)))
                }
            },
        };
        let (name, features) = match &backend {
            Backend::Uring(uring) => ("uring", uring.kernel.features().to_string()),
            Backend::Epoll(_) => ("epoll", "edge-triggered,speculative".to_owned()),
            Backend::SimCompletion(_) => ("sim", "completion".to_owned()),
            Backend::SimReadiness(_) => ("sim", "readiness".to_owned()),
        };
        let description = DriverInfo { name, features, fallback_reason };
        let backend = ManuallyDrop::new(backend);
        Ok(Self { backend, spin: Spin::new(options.spin), description, closed: false })
    }

    fn uring(options: &DriverOptions) -> io::Result<Backend> {
        Ok(Backend::Uring(Box::new(Proactor::new(Uring::new(options)?, options))))
    }

    fn epoll(options: &DriverOptions) -> io::Result<Backend> {
        Ok(Backend::Epoll(Box::new(Reactor::new(Epoll::new()?, options))))
    }

    pub fn description(&self) -> &DriverInfo {
        &self.description
    }

    /// Whether time and network are simulated: then nothing happens that another thread does.
    pub fn is_simulated(&self) -> bool {
        matches!(*self.backend, Backend::SimCompletion(_) | Backend::SimReadiness(_))
    }

    /// How other threads wake this driver out of its wait, until the notifier is closed.
    ///
    /// # Errors
    /// Returns the error of duplicating the descriptor of the ring.
    pub fn notifier(&self) -> io::Result<Notifier> {
        Ok(Notifier::new(match &*self.backend {
            Backend::Uring(uring) => {
                let supports_msg_ring = uring.kernel.features().msg_ring;
                let ring = supports_msg_ring.then(|| uring.kernel.duplicate().map(Arc::new)).transpose()?;
                Some(Descriptors { eventfd: uring.kernel.wake_descriptor(), ring })
            }
            Backend::Epoll(epoll) => {
                Some(Descriptors { eventfd: epoll.kernel.wake_descriptor(), ring: None })
            }
            Backend::SimCompletion(_) | Backend::SimReadiness(_) => None,
        }))
    }

    /// Whether [`queue_wake`](Self::queue_wake) can reach other rings.
    pub fn can_queue_wake(&self) -> bool {
        matches!(&*self.backend, Backend::Uring(uring) if uring.kernel.features().msg_ring)
    }

    /// Queues a wake-up of the owner of another ring, which the next turn submits. Returns whether both are rings and open.
    pub fn queue_wake(&mut self, target: &Notifier) -> bool {
        match &mut *self.backend {
            Backend::Uring(uring) => uring.kernel.queue_wake(target),
            _ => false,
        }
    }

    /// See the [contract](self).
    pub fn turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        if wait != Wait::No && self.spin.is_on() && self.spin_before_wait(wakes)? {
            return Ok(());
        }
        dispatch!(&mut *self.backend, machine => machine.turn(wait, wakes))
    }

    /// Whether something waits to be handed to the kernel by a turn, or for a turn to be read.
    pub fn needs_turn(&self) -> bool {
        match &*self.backend {
            Backend::Uring(uring) => uring.kernel.needs_enter(),
            Backend::Epoll(epoll) => epoll.needs_turn(),
            Backend::SimReadiness(sim) => sim.needs_turn(),
            // Nobody else runs meanwhile.
            Backend::SimCompletion(_) => false,
        }
    }

    /// The short spin. Whether there was something to do.
    fn spin_before_wait(&mut self, wakes: &mut WakeQueue) -> io::Result<bool> {
        // What was noted goes to the kernel first: it may be what the other side waits for.
        dispatch!(&mut *self.backend, machine => machine.turn(Wait::No, wakes))?;
        if wakes.has_work() {
            return Ok(true);
        }
        let mut turn_error = None;
        let has_work = match &mut *self.backend {
            Backend::Uring(uring) => self.spin.spin_until(|| uring.kernel.has_pending_work()),
            Backend::Epoll(epoll) => self.spin.spin_until(|| {
                turn_error = epoll.turn(Wait::No, wakes).err();
                turn_error.is_some() || wakes.has_work()
            }),
            Backend::SimCompletion(_) | Backend::SimReadiness(_) => false,
        };
        if let Some(error) = turn_error {
            return Err(error);
        }
        if has_work && let Backend::Uring(uring) = &mut *self.backend {
            uring.turn(Wait::No, wakes)?;
        }
        Ok(has_work)
    }

    /// Checked before a socket is opened or imported. Operations on sockets that exist need no check: shutting down
    /// releases all of them, and a released socket starts nothing.
    ///
    /// # Errors
    /// When the driver has been shut down.
    fn check_open(&self) -> io::Result<()> {
        if self.closed { Err(gone()) } else { Ok(()) }
    }

    pub fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Key> {
        self.check_open()?;
        dispatch!(&mut *self.backend, machine => machine.listen(address, options))
    }

    pub fn poll_accept(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Key>> {
        dispatch!(&mut *self.backend, machine => machine.poll_accept(key, waker))
    }

    /// Accepts as [`poll_accept`](Self::poll_accept), but takes the connection out of the driver if `keeps` says so.
    pub fn poll_accept_if(
        &mut self,
        key: Key,
        waker: &Waker,
        should_attach: impl FnOnce() -> bool,
    ) -> Poll<io::Result<Accepted>> {
        dispatch!(&mut *self.backend, machine => {
            let (socket, family) = ready!(machine.poll_accepted(key, waker))?;
            Poll::Ready(match should_attach() {
                true => machine.attach_accepted(socket, family).map(Accepted::Stream),
                false => machine.kernel.sockets_mut().export(socket).map(Accepted::Descriptor),
            })
        })
    }

    /// Sets whether connections may be accepted before the program asks for them. Readiness drivers never do that.
    pub fn set_accept_ahead(&mut self, key: Key, accepts_ahead: bool) {
        match &mut *self.backend {
            Backend::Uring(machine) => machine.set_accept_ahead(key, accepts_ahead),
            Backend::SimCompletion(machine) => machine.set_accept_ahead(key, accepts_ahead),
            Backend::Epoll(_) | Backend::SimReadiness(_) => {}
        }
    }

    pub fn refuse(&mut self, key: Key) -> usize {
        dispatch!(&mut *self.backend, machine => machine.refuse(key))
    }

    pub fn release_listener(&mut self, key: Key) {
        dispatch!(&mut *self.backend, machine => machine.release_listener(key));
    }

    /// Gives a listener up; what the kernel has accepted for it, and accepts until it lets go, goes to the sink. Its wakers
    /// are the caller's to call.
    pub fn release_listener_to(&mut self, key: Key, accept_sink: Arc<dyn AcceptSink>) {
        dispatch!(&mut *self.backend, machine => machine.release_listener_to(key, accept_sink));
    }

    pub fn listen_unix(&mut self, address: &UnixAddress, backlog: u32) -> io::Result<Key> {
        self.check_open()?;
        dispatch!(&mut *self.backend, machine => {
            let socket = machine.kernel.sockets_mut().listen_unix(address, backlog)?;
            machine.attach_listener(socket, Family::Unix)
        })
    }

    pub fn import_listener(&mut self, descriptor: OwnedFd) -> io::Result<Key> {
        self.check_open()?;
        dispatch!(&mut *self.backend, machine => {
            let socket = machine.kernel.sockets_mut().import(descriptor)?;
            let family = machine.kernel.sockets().family(&socket)?;
            machine.attach_listener(socket, family)
        })
    }

    pub fn share_listener(&mut self, key: Key) {
        dispatch!(&mut *self.backend, machine => machine.share_listener(key));
    }

    pub fn import_stream(&mut self, descriptor: OwnedFd) -> io::Result<Key> {
        self.check_open()?;
        dispatch!(&mut *self.backend, machine => {
            let socket = machine.kernel.sockets_mut().import(descriptor)?;
            let family = machine.kernel.sockets().family(&socket)?;
            machine.attach(socket, family)
        })
    }

    pub fn poll_detach(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<(OwnedFd, Vec<Chunk>)>> {
        dispatch!(&mut *self.backend, machine => machine.poll_detach(key, waker))
    }

    pub fn connect(&mut self, peer: SocketAddr, source: Option<SocketAddr>) -> io::Result<Key> {
        self.check_open()?;
        dispatch!(&mut *self.backend, machine => machine.connect(peer, source))
    }

    /// Connects at once; `WouldBlock` when the listener's backlog is full, about which the kernel tells nothing further.
    pub fn connect_unix(&mut self, peer: &UnixAddress) -> io::Result<Key> {
        self.check_open()?;
        dispatch!(&mut *self.backend, machine => {
            let socket = machine.kernel.sockets_mut().connect_unix(peer)?;
            machine.attach(socket, Family::Unix)
        })
    }

    pub fn poll_connect(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<()>> {
        dispatch!(&mut *self.backend, machine => machine.poll_connect(key, waker))
    }

    /// The next bytes of a stream, put into what is `None`; it stays so at the end of the stream.
    #[inline(always)]
    pub fn poll_receive(
        &mut self,
        key: Key,
        into: &mut Option<Chunk>,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        match &mut *self.backend {
            Backend::Uring(uring) => uring.poll_receive(key, into, waker),
            Backend::Epoll(epoll) => epoll.poll_receive(key, into, waker),
            simulated => simulated.poll_receive(key, into, waker),
        }
    }

    pub fn poll_read(&mut self, key: Key, buffer: &mut [u8], waker: &Waker) -> Poll<io::Result<usize>> {
        dispatch!(&mut *self.backend, machine => machine.poll_read(key, buffer, waker))
    }

    /// Hands at most so many bytes of a stream to `copy`, once; none at its end. How many.
    pub fn poll_copy(
        &mut self,
        key: Key,
        max_bytes: usize,
        copy: impl FnOnce(&[u8]),
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        dispatch!(&mut *self.backend, machine => machine.poll_copy(key, max_bytes, copy, waker))
    }

    #[inline(always)]
    pub fn poll_send(
        &mut self,
        key: Key,
        outgoing: &mut Option<SendBuf>,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        match &mut *self.backend {
            Backend::Uring(uring) => uring.poll_send(key, outgoing, waker),
            Backend::Epoll(epoll) => epoll.poll_send(key, outgoing, waker),
            simulated => simulated.poll_send(key, outgoing, waker),
        }
    }

    /// Accepts as much of the slices as there is room for, or as the kernel takes at once.
    pub fn poll_write(&mut self, key: Key, slices: &[IoSlice<'_>], waker: &Waker) -> Poll<io::Result<usize>> {
        let slices = &slices[..slices.len().min(MAX_IO_SLICES)];
        dispatch!(&mut *self.backend, machine => machine.poll_write(key, slices, waker))
    }

    /// As [`poll_write`](Self::poll_write), of bytes that more follows, or the end.
    pub fn poll_write_more(&mut self, key: Key, data: &[u8], waker: &Waker) -> Poll<io::Result<usize>> {
        dispatch!(&mut *self.backend, machine => machine.poll_write_more(key, data, waker))
    }

    pub fn poll_flush(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<()>> {
        dispatch!(&mut *self.backend, machine => machine.poll_flush(key, waker))
    }

    /// Shuts down the write direction behind what was accepted, without waiting for it; see the state machines.
    pub fn shutdown_write(&mut self, key: Key) -> io::Result<()> {
        dispatch!(&mut *self.backend, machine => machine.shutdown_write(key))
    }

    /// Sends bytes of a file, as many as the kernel takes at once, when everything accepted before was sent; zero at the
    /// end of the file.
    pub fn poll_send_file(
        &mut self,
        key: Key,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        dispatch!(&mut *self.backend, machine => machine.poll_send_file(key, file, offset, length, waker))
    }

    /// Ready when everything accepted is with the kernel, or goes to it with the next turns; see the state machines.
    pub fn poll_submitted(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<()>> {
        dispatch!(&mut *self.backend, machine => machine.poll_submitted(key, waker))
    }

    /// Gives a stream up. Whether bytes are left to send, which goes on without its owner.
    pub fn release(&mut self, key: Key) -> bool {
        dispatch!(&mut *self.backend, machine => machine.release(key))
    }

    /// Whether a stream is still there, if only to send what is left.
    pub fn holds(&self, key: Key) -> bool {
        dispatch!(&*self.backend, machine => machine.holds(key))
    }

    pub fn abort(&mut self, key: Key) {
        dispatch!(&mut *self.backend, machine => machine.abort(key));
    }

    /// Who waits for a stream, on either side: to be woken when the driver is not borrowed, since nothing else does it.
    pub fn take_wakers(&mut self, key: Key) -> [Option<Waker>; 2] {
        dispatch!(&mut *self.backend, machine => machine.take_wakers(key))
    }

    pub fn now_ns(&self) -> u64 {
        dispatch!(&*self.backend, machine => machine.kernel.sockets().now_ns())
    }

    /// Returns the driver's clock.
    pub fn clock(&self) -> Clock {
        dispatch!(&*self.backend, machine => machine.kernel.sockets().clock())
    }

    pub fn metrics(&self) -> DriverMetrics {
        dispatch!(&*self.backend, machine => machine.metrics())
    }

    // ---- What the kernel does or says of a socket at once ---------------------------------------------------------

    pub fn shutdown(&self, key: Key, how: Shutdown) -> io::Result<()> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.stream_socket(key)?;
            sockets.shutdown(socket, how)
        })
    }

    pub fn set_option(&self, key: Key, option: StreamOption) -> io::Result<()> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.stream_socket(key)?;
            sockets.set_option(socket, option)
        })
    }

    pub fn local_address(&self, key: Key) -> io::Result<SocketAddr> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.stream_socket(key)?;
            sockets.local_address(socket)
        })
    }

    pub fn peer_address(&self, key: Key) -> io::Result<SocketAddr> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.stream_socket(key)?;
            sockets.peer_address(socket)
        })
    }

    pub fn listener_address(&self, key: Key) -> io::Result<SocketAddr> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.listener_socket(key)?;
            sockets.local_address(socket)
        })
    }

    pub fn local_unix_address(&self, key: Key) -> io::Result<UnixAddress> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.stream_socket(key)?;
            sockets.local_unix_address(socket)
        })
    }

    pub fn peer_unix_address(&self, key: Key) -> io::Result<UnixAddress> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.stream_socket(key)?;
            sockets.peer_unix_address(socket)
        })
    }

    pub fn listener_unix_address(&self, key: Key) -> io::Result<UnixAddress> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.listener_socket(key)?;
            sockets.local_unix_address(socket)
        })
    }

    pub fn peer_credentials(&self, key: Key) -> io::Result<PeerCredentials> {
        dispatch!(&*self.backend, machine => {
            let (sockets, socket) = machine.stream_socket(key)?;
            sockets.peer_credentials(socket)
        })
    }

    /// Releases every socket, sends for at most `drain` what was accepted, cancels the rest and waits until the kernel
    /// holds nothing any more. The driver accepts no new sockets from then on. The caller calls the wakers in `wakes`.
    ///
    /// # Errors
    /// When the kernel fails to wait, or has not ended all operations in time. Then their memory is never freed.
    pub fn shut_down(&mut self, drain: Duration, wakes: &mut WakeQueue) -> io::Result<()> {
        self.closed = true;
        dispatch!(&mut *self.backend, machine => machine.release_all());
        let deadline_ns = self.now_ns().saturating_add(u64::try_from(drain.as_nanos()).unwrap_or(u64::MAX));
        loop {
            dispatch!(&mut *self.backend, machine => machine.turn(Wait::No, wakes))?;
            let now_ns = self.now_ns();
            if self.metrics().sockets == 0 || now_ns >= deadline_ns {
                break;
            }
            let wait = Wait::For((deadline_ns - now_ns).min(SHUT_DOWN_STEP_NS));
            dispatch!(&mut *self.backend, machine => machine.turn(wait, wakes))?;
        }
        dispatch!(&mut *self.backend, machine => machine.shut_down(wakes))
    }
}

/// Frees nothing that the kernel may still use. A handle, a waker or another worker may hold a descriptor of the ring, so
/// that closing ours ends no operation; only terminal completions do.
impl Drop for Driver {
    fn drop(&mut self) {
        // Otherwise the runtime has shut it down.
        if !self.closed {
            let mut wakes = WakeQueue::default();
            catch_and_log_panic("the driver panicked while it was shut down", || {
                if let Err(error) = self.shut_down(Duration::ZERO, &mut wakes) {
                    log(|| tracing::error!(%error, "the driver could not be shut down"));
                }
            });
            catch_and_log_panic("a waker panicked while its driver was shut down", || wakes.call());
        }
        if dispatch!(&*self.backend, machine => machine.is_quiescent()) {
            // SAFETY: nothing touches the field after this. The kernel uses no memory of the machine: every operation that
            // names some belongs to an entry of its tables, which are empty.
            unsafe { ManuallyDrop::drop(&mut self.backend) }
        } else {
            log(|| {
                tracing::error!("operations are still in flight: the driver's memory is leaked, not freed")
            });
        }
    }
}

/// Sets an io_uring ring up, tries its features and closes it: each feature with whether it would be used.
///
/// # Errors
/// When there is no io_uring here: the error names the cause and the remedy.
pub fn probe_uring(options: &DriverOptions) -> io::Result<Vec<(&'static str, bool)>> {
    Ok(Uring::new(options)?.features().named().to_vec())
}
