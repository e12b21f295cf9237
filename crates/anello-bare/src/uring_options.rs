//! `uring` with options: the same echo server as `uring`, built so that each way of io_uring can be chosen.
//!
//! It exists to find what an option is worth, by comparing two of its own settings. So it is made for clarity: one
//! list of connections that have something to do, one place that decides what ([`submit`]), one that takes what came
//! of it ([`complete`]), and a branch where an option makes a difference. The yardstick itself, `uring`, has none of
//! those branches; what they cost is seen by comparing it with this one's default.
//!
//! ```text
//!            ┌──────────────────────────────────────────────────────────────────────────┐
//!            ▼                                                                          │
//!   submit: connections that are due ──▶ entries ──▶ enter ──▶ completions ──▶ complete ┘
//!                                         (or look, spin, wake the polling thread)
//! ```
//!
//! Invariants:
//! - One send of a connection is in flight at most, and one receive.
//! - The kernel touches only the buffers of the ring, and of each connection its own buffers, message and chunks that
//!   are in flight or held. None of them moves or is freed while it may: the ring's are never freed, and a connection
//!   keeps its place until its last completion. A server that fails is never dropped.

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

/// Whether this process may use io_uring with these options here.
pub(crate) fn check(options: &UringOptions) -> io::Result<()> {
    options.validate()?;
    ring::build_ring(options, None).map(drop)
}

/// Serves until a ring fails: one on each listener, each on a thread of its own.
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
        // One after the other, because a ring can only join the workers of one that exists.
        match statuses.recv().map_err(io::Error::other)? {
            RingStatus::Ready(ring) if uring.shared_workers => worker_ring = worker_ring.or(Some(ring)),
            RingStatus::Ready(_) => {}
            RingStatus::Failed(error) => return Err(error),
        }
    }
    drop(status_sender);
    // None serves before all are made: connections could take the descriptors that the others need.
    starts.into_iter().try_for_each(|start| start.send(())).map_err(io::Error::other)?;
    loop {
        if let RingStatus::Failed(error) = statuses.recv().map_err(io::Error::other)? {
            return Err(error);
        }
    }
}

/// What the thread of a ring says.
enum RingStatus {
    /// It has set up this ring.
    Ready(RawFd),
    Failed(io::Error),
}

/// What the thread of a ring needs to begin.
struct RingThread {
    listener: TcpListener,
    uring: UringOptions,
    buffers: u16,
    buffer_bytes: u32,
    attach_to: Option<RawFd>,
    status_sender: mpsc::Sender<RingStatus>,
    /// Tells that all rings are made; closed if one could not be.
    start: mpsc::Receiver<()>,
}

impl RingThread {
    fn run(self) {
        let status_sender = self.status_sender.clone();
        if let Err(error) = self.serve() {
            // Nobody listens any more if another ring has failed, and that one is as good a reason.
            status_sender.send(RingStatus::Failed(error)).unwrap_or_default();
        }
    }

    fn serve(self) -> io::Result<()> {
        let mut ring = ring::build_ring(&self.uring, self.attach_to)?;
        let free_file_slots = ring::max_registered_files();
        let descriptor = ring.as_raw_fd();
        let (mut submitter, submissions, completions) = ring.split();
        // Linux 5.18: saves the lookup of the descriptor. Without it everything works, a little slower.
        let _registered = submitter.register_ring_fd().is_ok();
        let buffers = OrderedPool::new(&submitter, self.buffers, self.buffer_bytes)?;
        let deadline = self.uring.linked_timeout.unwrap_or_default();
        // Never dropped: when serving fails, requests are still in flight on this memory and these descriptors.
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
            deadline: Box::new(Timespec::new().sec(deadline.as_secs()).nsec(deadline.subsec_nanos())),
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
    /// Free places in the table of registered files.
    free_file_slots: u32,
    buffers: OrderedPool,
    connection_buffer_bytes: usize,
    connections: Vec<Connection>,
    /// Indices of `connections` without a socket.
    free: Vec<u32>,
    /// Connections that may have something to do; their state decides.
    due: Vec<u32>,
    /// Connections with a send that completes at submission and was not settled yet.
    unconfirmed_sends: Vec<u32>,
    /// Do not wait: something did not fit into the submission queue, or a send of this turn has something to follow
    /// it, and its success is told by the return of the enter alone.
    skip_wait: bool,
    turn: Turn,
    options: UringOptions,
    send_completion: SendCompletion,
    multishot: bool,
    /// Asks for deferred work until none is left.
    runs_all_task_work: bool,
    deadline: Box<Timespec>,
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

    /// Puts a connection into the list of those that may have something to do.
    fn mark_due(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if !connection.is_due {
            connection.is_due = true;
            self.due.push(index);
        }
    }

    /// Hands over what is queued and waits for a completion, unless there is more to submit. `true`: the kernel is
    /// short of memory or of room for completions.
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
        // What was taken is told by the head of the queue, not by the result.
        self.submissions.sync();
        is_busy(result)
    }

    /// The kernel's thread takes the submissions by itself: enter only to wake it, to wait for room, or to sleep.
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

    /// Looks for completions, or for work that would make some, for as long as it was told. `true`: found.
    fn spin(&mut self) -> bool {
        let start = Instant::now();
        loop {
            self.completions.sync();
            if !self.completions.is_empty() {
                return true;
            }
            if self.submissions.taskrun() {
                // A failure would come again at the next enter, which handles it.
                return enter(&self.submitter, 0, 0, EnterFlags::GETEVENTS).is_ok();
            }
            if start.elapsed() >= self.options.spin {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Handles all completions, those that the kernel had no room for included. Whether there were any.
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
