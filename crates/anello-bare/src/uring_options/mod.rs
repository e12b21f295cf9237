//! `uring` with options: the same echo server as `uring`, with selectable io_uring features.
//!
//! It measures the effect of an option by comparing two of its own configurations, so clarity comes before speed.
//! There is one list of due connections, one place that decides what to submit ([`submit`]), one that handles
//! completions ([`complete`]), and a branch per option. The baseline `uring` has none of these branches; their cost
//! is the difference between the baseline and the default configuration of this server.
//!
//! ```text
//!            ┌──────────────────────────────────────────────────────────────────────────┐
//!            ▼                                                                          │
//!   submit: due connections ──▶ entries ──▶ enter ──▶ completions ──▶ handle_completion ┘
//!                                          (or poll, spin, wake the polling thread)
//! ```
//!
//! Invariants:
//! - Each connection has at most one send and one receive in flight.
//! - The kernel accesses only the buffers of the ring, and the buffers, message and chunks of each connection that
//!   are in flight or in `zero_copy_chunks`. None of them moves or is freed during that time: the buffers of the ring
//!   are never freed, and a connection keeps its slot until its last completion. A failed server is never dropped.

mod complete;
mod connection;
mod pool;
mod ring;
mod submit;

use std::io;
use std::mem::ManuallyDrop;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use io_uring::types::Timespec;
use io_uring::{CompletionQueue, EnterFlags, SubmissionQueue, Submitter};

use self::connection::Connection;
use self::pool::OrderedPool;
use crate::options::{Options, SendCompletion, UringOptions};
use crate::uring::accept::AcceptState;
use crate::uring::enter::{BUSY_PAUSE, Turn, enter, flush_overflow, is_busy};

/// Checks that this process can use io_uring with these options.
pub(crate) fn check(options: &UringOptions) -> io::Result<()> {
    options.validate()?;
    ring::build_ring(options, None).map(drop)
}

/// Runs one ring on each listener, each on its own thread, until a ring fails.
pub(crate) fn run(listeners: Vec<TcpListener>, options: &Options, uring: &UringOptions) -> io::Result<()> {
    uring.validate()?;
    let (status_sender, statuses) = mpsc::channel();
    let mut worker_ring = None;
    let mut starts = Vec::new();
    for listener in listeners {
        let (start_sender, start) = mpsc::channel();
        starts.push(start_sender);
        let ring_thread = RingThread {
            listener,
            uring: *uring,
            buffers: options.uring_buffers,
            buffer_bytes: options.uring_buffer_bytes,
            attach_to: worker_ring,
            status_sender: status_sender.clone(),
            start,
        };
        thread::Builder::new().name("ring".into()).spawn(move || ring_thread.run())?;
        // Rings are created one after the other, because a ring can only share the workers of an existing ring.
        match statuses.recv().map_err(io::Error::other)? {
            RingStatus::Ready(ring) if uring.shared_workers => worker_ring = worker_ring.or(Some(ring)),
            RingStatus::Ready(_) => {}
            RingStatus::Failed(error) => return Err(error),
        }
    }
    drop(status_sender);
    // No ring serves before all are created: connections could use the descriptors that later rings need.
    starts.into_iter().try_for_each(|start| start.send(())).map_err(io::Error::other)?;
    loop {
        if let RingStatus::Failed(error) = statuses.recv().map_err(io::Error::other)? {
            return Err(error);
        }
    }
}

/// Status message from the thread of a ring.
enum RingStatus {
    /// The ring with this descriptor is set up.
    Ready(RawFd),
    Failed(io::Error),
}

/// Configuration of the thread of a ring.
struct RingThread {
    listener: TcpListener,
    uring: UringOptions,
    buffers: u16,
    buffer_bytes: u32,
    attach_to: Option<RawFd>,
    status_sender: mpsc::Sender<RingStatus>,
    /// Receives a message when all rings are created; closed if a ring failed.
    start: mpsc::Receiver<()>,
}

impl RingThread {
    fn run(self) {
        let status_sender = self.status_sender.clone();
        if let Err(error) = self.serve() {
            // The receiver is gone if another ring has failed; that error has been returned.
            status_sender.send(RingStatus::Failed(error)).unwrap_or_default();
        }
    }

    fn serve(self) -> io::Result<()> {
        let mut ring = ring::build_ring(&self.uring, self.attach_to)?;
        let free_file_slots = ring::max_registered_files();
        let descriptor = ring.as_raw_fd();
        let (mut submitter, submissions, completions) = ring.split();
        // Linux 5.18: saves the lookup of the descriptor. If it fails, the descriptor is used.
        let _registered = submitter.register_ring_fd().is_ok();
        let buffers = OrderedPool::new(&submitter, self.buffers, self.buffer_bytes)?;
        let linked_timeout = self.uring.linked_timeout.unwrap_or_default();
        // Never dropped: after an error, requests in flight still access this memory and these descriptors.
        let mut server = ManuallyDrop::new(Server {
            submitter,
            submissions,
            completions,
            listener: self.listener,
            accept: AcceptState::Unarmed,
            free_file_slots,
            buffers,
            connection_buffer_bytes: self.buffer_bytes.max(1) as usize,
            connections: Vec::new(),
            free: Vec::new(),
            due: Vec::new(),
            unconfirmed_sends: Vec::new(),
            skip_wait: false,
            turn: Turn::default(),
            options: self.uring,
            send_completion: self.uring.send_completion(),
            multishot: self.uring.uses_multishot_receive(),
            runs_all_task_work: self.uring.runs_all_task_work(),
            linked_timeout: Box::new(
                Timespec::new().sec(linked_timeout.as_secs()).nsec(linked_timeout.subsec_nanos()),
            ),
        });
        self.status_sender.send(RingStatus::Ready(descriptor)).map_err(io::Error::other)?;
        self.start.recv().map_err(io::Error::other)?;
        server.serve()
    }
}

/// One ring and its connections.
struct Server<'ring> {
    submitter: Submitter<'ring>,
    submissions: SubmissionQueue<'ring>,
    completions: CompletionQueue<'ring>,
    listener: TcpListener,
    accept: AcceptState,
    /// Number of free slots in the table of registered files.
    free_file_slots: u32,
    buffers: OrderedPool,
    connection_buffer_bytes: usize,
    connections: Vec<Connection>,
    /// Indices of `connections` without a socket.
    free: Vec<u32>,
    /// Connections that may need an action; their state decides.
    due: Vec<u32>,
    /// Connections with an inline send that is not yet confirmed.
    unconfirmed_sends: Vec<u32>,
    /// Enter without waiting: some entries did not fit into the submission queue, or a send of this turn has a
    /// subsequent action and only the return of the enter confirms the send.
    skip_wait: bool,
    turn: Turn,
    options: UringOptions,
    send_completion: SendCompletion,
    multishot: bool,
    /// Runs deferred task work until none is left.
    runs_all_task_work: bool,
    linked_timeout: Box<Timespec>,
}

impl Server<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.submit();
            self.buffers.publish();
            let busy = self.enter()?;
            let mut reaped = self.reap()?;
            while self.runs_all_task_work && self.turn.run_task_work(&self.submitter, &self.submissions) {
                reaped |= self.reap()?;
            }
            self.confirm_sends();
            if busy && !reaped {
                thread::sleep(BUSY_PAUSE);
            }
        }
    }

    /// Adds a connection to the list of due connections.
    fn mark_due(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if !connection.is_due {
            connection.is_due = true;
            self.due.push(index);
        }
    }

    /// Submits the queued entries, and waits for a completion unless `skip_wait` is set. Returns `true` if the kernel
    /// lacks memory or completion queue space.
    fn enter(&mut self) -> io::Result<bool> {
        self.submissions.sync();
        let wait = !self.skip_wait;
        let result = if self.options.sqpoll.is_some() {
            self.enter_with_sqpoll(wait)
        } else if wait && !self.options.spin.is_zero() {
            enter(&self.submitter, self.submissions.len(), 0, EnterFlags::GETEVENTS).and_then(|()| {
                if self.spin() { Ok(()) } else { enter(&self.submitter, 0, 1, EnterFlags::GETEVENTS) }
            })
        } else {
            enter(&self.submitter, self.submissions.len(), wait.into(), EnterFlags::GETEVENTS)
        };
        // The head of the queue shows which entries were consumed; the result of the call does not.
        self.submissions.sync();
        is_busy(result)
    }

    /// The polling thread consumes the submissions. Enters only to wake it, to wait for room in the queue, or to
    /// sleep.
    fn enter_with_sqpoll(&mut self, wait: bool) -> io::Result<()> {
        let mut flags = EnterFlags::empty();
        if self.submissions.need_wakeup() {
            flags |= EnterFlags::SQ_WAKEUP;
        }
        if self.submissions.is_full() {
            flags |= EnterFlags::SQ_WAIT;
        }
        let sleep = wait && !self.spin();
        if sleep {
            flags |= EnterFlags::GETEVENTS;
        }
        if flags.is_empty() {
            Ok(())
        } else {
            enter(&self.submitter, self.submissions.len(), sleep.into(), flags)
        }
    }

    /// Polls for completions, or for task work that produces them, until the spin time has elapsed. Returns `true` if
    /// there are any.
    fn spin(&mut self) -> bool {
        let start = Instant::now();
        loop {
            self.completions.sync();
            if !self.completions.is_empty() {
                return true;
            }
            if self.submissions.taskrun() {
                // If this enter fails, the next one fails as well and its error is handled.
                return enter(&self.submitter, 0, 0, EnterFlags::GETEVENTS).is_ok();
            }
            if start.elapsed() >= self.options.spin {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Handles all completions, including those in the kernel's overflow list. Returns `true` if there were any.
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
