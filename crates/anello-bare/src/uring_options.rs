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
use self::pool::Buffers;
use crate::options::{Options, SendCompletion, UringOptions};
use crate::uring::accept::Accept;
use crate::uring::enter::{BUSY_PAUSE, Turn, enter, flush_overflow, is_busy};

/// Whether this process may use io_uring with these options here.
pub(crate) fn check(options: &UringOptions) -> io::Result<()> {
    options.validate()?;
    ring::ring(options, None).map(drop)
}

/// Serves until a ring fails: one on each listener, each on a thread of its own.
pub(crate) fn run(listeners: Vec<TcpListener>, options: &Options, uring: &UringOptions) -> io::Result<()> {
    uring.validate()?;
    let (news, reports) = mpsc::channel();
    let mut shared = None;
    let mut starts = Vec::new();
    for listener in listeners {
        let (start, started) = mpsc::channel();
        starts.push(start);
        let maker = Maker {
            listener,
            uring: *uring,
            buffers: options.uring_buffers,
            buffer_bytes: options.uring_buffer_bytes,
            share_with: shared,
            news: news.clone(),
            started,
        };
        thread::Builder::new().name("ring".into()).spawn(move || maker.run())?;
        // One after the other, because a ring can only join the workers of one that exists.
        match reports.recv().map_err(io::Error::other)? {
            News::Ready(ring) if uring.shared_workers => shared = shared.or(Some(ring)),
            News::Ready(_) => {}
            News::Failed(error) => return Err(error),
        }
    }
    drop(news);
    // None serves before all are made: connections could take the descriptors that the others need.
    starts.into_iter().try_for_each(|start| start.send(())).map_err(io::Error::other)?;
    loop {
        if let News::Failed(error) = reports.recv().map_err(io::Error::other)? {
            return Err(error);
        }
    }
}

/// What the thread of a ring says.
enum News {
    /// It has set up this ring.
    Ready(RawFd),
    Failed(io::Error),
}

/// What the thread of a ring needs to begin.
struct Maker {
    listener: TcpListener,
    uring: UringOptions,
    buffers: u16,
    buffer_bytes: u32,
    share_with: Option<RawFd>,
    news: mpsc::Sender<News>,
    /// Tells that all rings are made; closed if one could not be.
    started: mpsc::Receiver<()>,
}

impl Maker {
    fn run(self) {
        let news = self.news.clone();
        if let Err(error) = self.serve() {
            // Nobody listens any more if another ring has failed, and that one is as good a reason.
            news.send(News::Failed(error)).unwrap_or_default();
        }
    }

    fn serve(self) -> io::Result<()> {
        let mut ring = ring::ring(&self.uring, self.share_with)?;
        let places = ring::places();
        let descriptor = ring.as_raw_fd();
        let (mut submitter, submissions, completions) = ring.split();
        // Linux 5.18: saves the lookup of the descriptor. Without it everything works, a little slower.
        let _registered = submitter.register_ring_fd().is_ok();
        let buffers = Buffers::new(&submitter, self.buffers, self.buffer_bytes)?;
        let deadline = self.uring.linked_timeout.unwrap_or_default();
        // Never dropped: when serving fails, requests are still in flight on this memory and these descriptors.
        let mut server = ManuallyDrop::new(Server {
            submitter,
            submissions,
            completions,
            listener: self.listener,
            accept: Accept::Wanted,
            places,
            buffers,
            own_buffer_bytes: self.buffer_bytes.max(1) as usize,
            connections: Vec::new(),
            free: Vec::new(),
            due: Vec::new(),
            unsettled: Vec::new(),
            follow_up: false,
            turn: Turn::default(),
            options: self.uring,
            sends: self.uring.sends(),
            multishot: self.uring.multishot(),
            fetches_all: self.uring.fetches_all(),
            deadline: Box::new(Timespec::new().sec(deadline.as_secs()).nsec(deadline.subsec_nanos())),
        });
        self.news.send(News::Ready(descriptor)).map_err(io::Error::other)?;
        self.started.recv().map_err(io::Error::other)?;
        server.serve()
    }
}

/// One ring and its connections.
struct Server<'ring> {
    submitter: Submitter<'ring>,
    submissions: SubmissionQueue<'ring>,
    completions: CompletionQueue<'ring>,
    listener: TcpListener,
    accept: Accept,
    /// Free places in the table of registered files.
    places: u32,
    buffers: Buffers,
    own_buffer_bytes: usize,
    connections: Vec<Connection>,
    /// Indices of `connections` without a socket.
    free: Vec<u32>,
    /// Connections that may have something to do; their state decides.
    due: Vec<u32>,
    /// Connections with a send that completes at submission and was not settled yet.
    unsettled: Vec<u32>,
    /// Do not wait: something did not fit into the submission queue, or a send of this turn has something to follow
    /// it, and its success is told by the return of the enter alone.
    follow_up: bool,
    turn: Turn,
    options: UringOptions,
    sends: SendCompletion,
    multishot: bool,
    /// Asks for deferred work until none is left.
    fetches_all: bool,
    deadline: Box<Timespec>,
}

impl Server<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.submit();
            self.buffers.publish();
            let busy = self.enter()?;
            let mut reaped = self.reap()?;
            while self.fetches_all && self.turn.goes_on(&self.submitter, &self.submissions) {
                reaped |= self.reap()?;
            }
            self.settle();
            if busy && !reaped {
                thread::sleep(BUSY_PAUSE);
            }
        }
    }

    /// Puts a connection into the list of those that may have something to do.
    fn list(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if !connection.listed {
            connection.listed = true;
            self.due.push(index);
        }
    }

    /// Hands over what is queued and waits for a completion, unless there is more to submit. `true`: the kernel is
    /// short of memory or of room for completions.
    fn enter(&mut self) -> io::Result<bool> {
        self.submissions.sync();
        let wait = !self.follow_up;
        let result = if self.options.sqpoll.is_some() {
            self.enter_beside_polling(wait)
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
    fn enter_beside_polling(&mut self, wait: bool) -> io::Result<()> {
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
        let mut any = false;
        loop {
            self.completions.sync();
            while let Some(completion) = self.completions.next() {
                any = true;
                self.complete(&completion)?;
            }
            self.completions.sync();
            if !self.submissions.cq_overflow() {
                return Ok(any);
            }
            flush_overflow(&self.submitter)?;
        }
    }
}
