//! The epoll kernel: `epoll_wait(2)` on Linux sockets, edge-triggered.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::driver::{Descriptors, Edge, Kernel, Kind, OsSockets, ReadinessKernel, Token, Wait, timespec};

/// Maximum number of events per wait. The next wait returns the remaining ones. The limit is small because the kernel
/// accesses each reported socket, the event loop accesses its stream, and the task accesses both again. With more than
/// about a hundred events, the data for the first ones would have been evicted from the L2 cache by then.
const EDGES_PER_WAIT: usize = 64;

#[derive(Debug)]
pub(crate) struct Epoll {
    epoll: OwnedFd,
    sockets: OsSockets,
    /// The eventfd to which other threads write. It is never read, because each write triggers a new event.
    wake: Arc<OwnedFd>,
    events: Box<[MaybeUninit<Event>]>,
    count: usize,
    next: usize,
}

impl Epoll {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let data = EventData::new_u64(Token::internal(Kind::Wake).0);
        epoll::add(&epoll, &*wake, data, EventFlags::IN | EventFlags::ET)?;
        let events = vec![MaybeUninit::uninit(); EDGES_PER_WAIT].into_boxed_slice();
        Ok(Self { epoll, sockets: OsSockets::new(true), wake, events, count: 0, next: 0 })
    }
}

impl Kernel for Epoll {
    type Sockets = OsSockets;

    #[inline]
    fn sockets(&self) -> &OsSockets {
        &self.sockets
    }

    #[inline]
    fn sockets_mut(&mut self) -> &mut OsSockets {
        &mut self.sockets
    }

    fn wake_descriptors(&self) -> io::Result<Option<Descriptors>> {
        Ok(Some(Descriptors { eventfd: Arc::clone(&self.wake), ring: None }))
    }
}

impl ReadinessKernel for Epoll {
    fn watch(&mut self, socket: &OwnedFd, token: Token) -> io::Result<()> {
        let interest =
            EventFlags::IN | EventFlags::OUT | EventFlags::PRI | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token.0), interest)?)
    }

    fn watch_source(&mut self, socket: &OwnedFd, token: Token, events: u32) -> io::Result<()> {
        let interest = EventFlags::from_bits_retain(events) | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token.0), interest)?)
    }

    fn unwatch(&mut self, socket: &OwnedFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    fn wait(&mut self, wait: Wait) -> io::Result<()> {
        let timeout = match wait {
            Wait::None => Some(Timespec::default()),
            Wait::For(nanoseconds) => Some(timespec(nanoseconds)),
            Wait::Forever => None,
        };
        self.next = 0;
        self.count = match epoll::wait(&self.epoll, &mut *self.events, timeout.as_ref()) {
            Ok((events, _)) => events.len(),
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }

    #[inline]
    fn edge(&mut self) -> Option<Edge> {
        if self.next == self.count {
            return None;
        }
        // SAFETY: the last wait initialised the first `count` events.
        let event = unsafe { self.events[self.next].assume_init() };
        self.next += 1;
        let flags = event.flags;
        Some(Edge {
            token: Token(event.data.u64()),
            readable: flags.intersects(EventFlags::IN),
            writable: flags.intersects(EventFlags::OUT),
            hung_up: flags
                .intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI),
            events: flags.bits(),
        })
    }
}
