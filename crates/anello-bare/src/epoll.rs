//! `epoll`: edge-triggered, with speculative system calls.
//!
//! A receive that does not fill the shared buffer has drained the socket, so the call that would return EAGAIN is
//! omitted. A request thus requires one receive and one send, and shares one wait with the other requests of the turn.
//!
//! Invariants:
//! - A descriptor is registered once and closed only while its own event is handled, so an event is never attributed to
//!   another connection that reuses the index.
//! - An edge-triggered event is consumed only when the socket is drained, cannot send, or is listed in `pending`.
//! - EOF can arrive together with the last data, in a single event. `RDHUP` is then set, and the socket is read until
//!   EOF.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;

use crate::accept::{ACCEPT_PAUSE, AcceptError, accept};
use crate::options::Options;
use crate::stream::{RECEIVE_BUFFER_BYTES, StepResult, Stream};

/// Event data of the listener; connections use their index.
const LISTENER: u64 = u64::MAX;
const MAX_EVENTS: usize = 1024;
/// Maximum number of full buffers echoed for one connection before the other connections are served.
const MAX_STEPS_PER_TURN: usize = 16;

pub(crate) fn run(listener: TcpListener, options: &Options) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN | EventFlags::ET)?;
    let (streams, pending) = (Slab::new(), Vec::new());
    Server { epoll, listener, accept_paused: false, spin: options.spin, streams, pending }.serve()
}

struct Server {
    epoll: OwnedFd,
    listener: TcpListener,
    /// Set while descriptors are exhausted: accepting is retried in every turn, and each wait lasts at most
    /// [`ACCEPT_PAUSE`].
    accept_paused: bool,
    /// Time to poll for events before sleeping.
    spin: Duration,
    streams: Slab<Stream>,
    /// Indices of connections that reached the per-turn limit before they were drained.
    pending: Vec<usize>,
}

#[inline]
fn wait(epoll: &OwnedFd, events: &mut Vec<Event>, timeout: Option<&Timespec>) -> io::Result<()> {
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Server {
    fn serve(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        let mut events: Vec<Event> = Vec::with_capacity(MAX_EVENTS);
        loop {
            events.clear();
            if self.spin.is_zero() || !self.spin(&mut events)? {
                wait(&self.epoll, &mut events, self.timeout().as_ref())?;
            }
            if self.accept_paused || !self.pending.is_empty() {
                self.resume(&mut buffer)?;
            }
            for event in &events {
                let data = event.data.u64();
                if data == LISTENER {
                    self.accept_all()?;
                } else {
                    let flags = event.flags;
                    let until_empty = flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
                    self.echo(data as usize, until_empty, &mut buffer);
                }
            }
        }
    }

    /// Polls for events, without sleeping, until one occurs or the spin time has elapsed. Does not poll if a connection
    /// is pending. Returns `true` if there are events.
    #[cold]
    fn spin(&self, events: &mut Vec<Event>) -> io::Result<bool> {
        let start = Instant::now();
        while self.pending.is_empty() && start.elapsed() < self.spin {
            wait(&self.epoll, events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if !events.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn timeout(&self) -> Option<Timespec> {
        if !self.pending.is_empty() {
            Some(Timespec { tv_sec: 0, tv_nsec: 0 })
        } else if self.accept_paused {
            Some(Timespec { tv_sec: 0, tv_nsec: ACCEPT_PAUSE.subsec_nanos().into() })
        } else {
            None
        }
    }

    /// Handles the work deferred by an earlier turn.
    #[cold]
    fn resume(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for index in std::mem::take(&mut self.pending) {
            self.echo(index, true, buffer);
        }
        if self.accept_paused { self.accept_all() } else { Ok(()) }
    }

    #[inline]
    fn echo(&mut self, index: usize, until_empty: bool, buffer: &mut [u8]) {
        let Some(stream) = self.streams.get_mut(index) else { return };
        for _ in 0..MAX_STEPS_PER_TURN {
            match stream.step(buffer) {
                StepResult::FullRead => {}
                StepResult::ShortRead if until_empty => {}
                StepResult::ShortRead | StepResult::WouldBlock | StepResult::SendBlocked => return,
                StepResult::Closed => return self.close(index),
            }
        }
        self.pending.push(index);
    }

    #[cold]
    fn close(&mut self, index: usize) {
        drop(self.streams.try_remove(index));
    }

    #[cold]
    fn accept_all(&mut self) -> io::Result<()> {
        self.accept_paused = false;
        loop {
            match accept(&self.listener) {
                Ok(socket) => self.add(socket),
                Err(AcceptError::WouldBlock | AcceptError::Transient) => return Ok(()),
                Err(AcceptError::OutOfResources) => {
                    self.accept_paused = true;
                    return Ok(());
                }
                Err(AcceptError::Fatal(errno)) => return Err(errno.into()),
            }
        }
    }

    /// Registers a connection. If the kernel rejects the registration, the connection is closed.
    fn add(&mut self, socket: OwnedFd) {
        let entry = self.streams.vacant_entry();
        let data = EventData::new_u64(entry.key() as u64);
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if epoll::add(&self.epoll, &socket, data, interest).is_ok() {
            entry.insert(Stream::new(socket));
        }
    }
}
