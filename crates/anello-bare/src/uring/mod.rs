//! `uring`: one `io_uring_enter(2)` per turn submits all entries and waits for the next completions. If more task work
//! is pending than one call runs, further calls run it before anything is echoed.
//!
//! One multishot accept creates connections. One multishot receive per connection fills buffers from a shared buffer
//! ring. Received data is sent directly from those buffers with inline completion: MSG_DONTWAIT makes the kernel accept
//! only what fits into the send buffer, and IOSQE_CQE_SKIP_SUCCESS suppresses the completion if all bytes were
//! accepted. When `io_uring_enter(2)` returns, a send without a completion is therefore complete and its buffers are
//! free. A short or rejected send posts a completion: the remaining bytes are copied out of the buffers, the connection
//! stops receiving, and a blocking send, which waits for space in the send buffer, sends the rest.
//!
//! ```text
//!            receive                 enter                   no completion
//!   idle ──────────────▶ chunks ──────────────▶ in flight ──────────────────▶ idle
//!                                                   │ short send
//!                                                   ▼       all sent, receive again
//!                                                stalled ───────────────────▶ idle
//! ```
//!
//! [`UringOptions`] change this behaviour. The baseline and the configurable server are two instances of the same code
//! (`CONFIGURABLE`): in the baseline, the options are constants, so it has no branches for options.
//!
//! Invariants:
//! - Sends on one connection never overlap: either chunks, one blocking send or nothing is in flight.
//! - The kernel accesses only the pool, `messages`, the timeout, and the `unsent` bytes of a stalled connection whose
//!   send is in flight. None of them moves or is freed during that time: a failed server is never dropped, and a
//!   connection keeps its slot until its last completion.
//! - The lists of due work hold indices and are only hints; the state of the connection is authoritative.

mod complete;
mod connection;
mod enter;
mod pool;
mod server;
pub(crate) mod setup;
mod submit;
mod token;

use std::io;
use std::mem::ManuallyDrop;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use io_uring::EnterFlags;
use io_uring::types::Timespec;

use self::enter::{BUSY_PAUSE, Turn, enter, flush_overflow, is_busy};
use self::pool::Pool;
use self::server::{AcceptState, MESSAGES, Message, Server};
use crate::options::{Options, UringOptions};

/// Checks that a ring with these options can be created. Returns the options or, if there are none, the names of the
/// ring flags in use.
pub(crate) fn check(options: Option<&UringOptions>) -> io::Result<String> {
    let Some(options) = options else {
        return setup::build_ring("epoll").map(|(_, flags)| flags.to_owned());
    };
    options.validate()?;
    setup::build_ring_with(options, None).map(|_| options.to_string())
}

pub(crate) fn run(listener: TcpListener, options: &Options) -> io::Result<()> {
    serve::<false>(listener, options, UringOptions::default(), None, |_| Ok(()))
}

/// Runs one configurable ring on each listener, each on its own thread, until a ring fails.
pub(crate) fn run_rings(
    listeners: Vec<TcpListener>,
    options: &Options,
    uring: UringOptions,
) -> io::Result<()> {
    uring.validate()?;
    let (sender, statuses) = mpsc::channel();
    let mut worker_ring = None;
    let mut starts = Vec::new();
    for listener in listeners {
        let (start_sender, start) = mpsc::channel();
        starts.push(start_sender);
        let (sender, options) = (sender.clone(), options.clone());
        thread::Builder::new().name("ring".into()).spawn(move || {
            let wait_for_start = |ring| {
                sender.send(Ok(ring)).map_err(io::Error::other)?;
                start.recv().map_err(io::Error::other)
            };
            if let Err(error) = serve::<true>(listener, &options, uring, worker_ring, wait_for_start) {
                // If the receiver has been dropped, another ring has failed and its error has been returned.
                sender.send(Err(error)).unwrap_or_default();
            }
        })?;
        // Rings are created in sequence, because a ring can share only the workers of an existing ring.
        let ring = statuses.recv().map_err(io::Error::other)??;
        worker_ring = worker_ring.or(uring.shared_workers.then_some(ring));
    }
    drop(sender);
    // No ring serves connections before all rings are created: otherwise, connections could use the descriptors that
    // later rings need.
    starts.into_iter().try_for_each(|start| start.send(())).map_err(io::Error::other)?;
    statuses.recv().map_err(io::Error::other)?.map(drop)
}

/// Creates a ring, passes its descriptor to `on_ready`, and serves connections until a permanent error occurs.
fn serve<const CONFIGURABLE: bool>(
    listener: TcpListener,
    options: &Options,
    uring: UringOptions,
    attach_to: Option<RawFd>,
    on_ready: impl FnOnce(RawFd) -> io::Result<()>,
) -> io::Result<()> {
    let mut ring =
        if CONFIGURABLE { setup::build_ring_with(&uring, attach_to)? } else { setup::build_ring("epoll")?.0 };
    let descriptor = ring.as_raw_fd();
    let (mut submitter, submissions, completions) = ring.split();
    // Avoids looking up the descriptor in each call (Linux 5.18). If the registration fails, the descriptor is used.
    let _registered = submitter.register_ring_fd().is_ok();
    let pool = Pool::new(&submitter, options.uring_buffers, options.uring_buffer_bytes)?;
    let timeout = uring.linked_timeout.unwrap_or_default();
    // Never dropped: after an error, requests in flight can still access this memory and these descriptors.
    let mut server = ManuallyDrop::new(Server::<CONFIGURABLE> {
        submitter,
        submissions,
        completions,
        listener,
        accept: AcceptState::Unarmed,
        pool,
        messages: (0..MESSAGES).map(|_| Message::empty()).collect(),
        messages_used: 0,
        connections: Vec::new(),
        free: Vec::new(),
        to_send: Vec::new(),
        to_arm: Vec::new(),
        to_cancel: Vec::new(),
        to_close: Vec::new(),
        sends_in_flight: Vec::new(),
        skip_wait: false,
        turn: Turn::default(),
        free_file_slots: setup::max_registered_files(),
        linked_timeout: Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos()),
        selected_options: uring,
    });
    on_ready(descriptor)?;
    server.serve()
}

impl<const CONFIGURABLE: bool> Server<'_, CONFIGURABLE> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.queue_submissions();
            self.pool.publish();
            let busy = self.enter()?;
            let mut reaped = self.reap()?;
            while self.options().runs_all_task_work()
                && self.turn.run_task_work(&self.submitter, &self.submissions)
            {
                reaped |= self.reap()?;
            }
            self.confirm_sends();
            if busy && !reaped {
                thread::sleep(BUSY_PAUSE);
            }
        }
    }

    /// Submits the queued entries, and waits for a completion unless `skip_wait` is set. Returns the result of
    /// [`is_busy`].
    #[inline]
    fn enter(&mut self) -> io::Result<bool> {
        self.submissions.sync();
        let (entries, wait) = (self.submissions.len(), !self.skip_wait);
        let options = self.options();
        let result = if options.sqpoll.is_some() {
            self.enter_with_sqpoll(wait)
        } else if wait && !options.spin.is_zero() {
            enter(&self.submitter, entries, 0, EnterFlags::GETEVENTS).and_then(|()| {
                if self.spin() { Ok(()) } else { enter(&self.submitter, 0, 1, EnterFlags::GETEVENTS) }
            })
        } else {
            enter(&self.submitter, entries, wait.into(), EnterFlags::GETEVENTS)
        };
        // The head of the queue shows which entries were consumed; the result of the call does not.
        self.submissions.sync();
        is_busy(result)
    }

    /// The polling thread consumes the submissions. This method enters the kernel only to wake that thread, to wait for
    /// space in the queue, or to sleep.
    fn enter_with_sqpoll(&mut self, wait: bool) -> io::Result<()> {
        let mut flags = EnterFlags::empty();
        flags.set(EnterFlags::SQ_WAKEUP, self.submissions.need_wakeup());
        flags.set(EnterFlags::SQ_WAIT, self.submissions.is_full());
        let sleep = wait && !self.spin();
        flags.set(EnterFlags::GETEVENTS, sleep);
        if flags.is_empty() {
            Ok(())
        } else {
            enter(&self.submitter, self.submissions.len(), sleep.into(), flags)
        }
    }

    /// Polls for completions, or for task work that produces them, until the spin time has elapsed. Returns `true` if
    /// there are any completions.
    fn spin(&mut self) -> bool {
        let start = Instant::now();
        loop {
            self.completions.sync();
            if !self.completions.is_empty() {
                return true;
            }
            if self.submissions.taskrun() {
                // If this call fails, the next one fails as well and its error is handled.
                return enter(&self.submitter, 0, 0, EnterFlags::GETEVENTS).is_ok();
            }
            if start.elapsed() >= self.options().spin {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Handles all completions, including those in the kernel's overflow list. Returns `true` if there were any.
    #[inline]
    fn reap(&mut self) -> io::Result<bool> {
        let mut has_completions = false;
        loop {
            self.completions.sync();
            while let Some(completion) = self.completions.next() {
                has_completions = true;
                self.handle_completion(&completion)?;
            }
            self.completions.sync();
            if !self.submissions.cq_overflow() {
                return Ok(has_completions);
            }
            flush_overflow(&self.submitter)?;
        }
    }
}
