//! The epoll kernel: `epoll_wait(2)` on Linux sockets, edge-triggered except for listeners. Waits with a timeout use
//! `epoll_pwait2(2)` (Linux 5.11), whose timeout is in nanoseconds.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::driver::kernel::op::{Wait, timespec};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{Edge, Kernel, ReadinessKernel};
use crate::driver::settings::options::DriverOptions;
use crate::driver::sockets::OsSockets;
use crate::driver::wake::notifier::Descriptors;

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
    /// Whether the kernel has `epoll_pwait2(2)` and the sandbox permits it.
    has_pwait2: bool,
}

impl Epoll {
    pub fn new(options: &DriverOptions) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let data = EventData::new_u64(Token::internal(Kind::Wake).0);
        epoll::add(&epoll, &*wake, data, EventFlags::IN | EventFlags::ET)?;
        let events = vec![MaybeUninit::uninit(); EDGES_PER_WAIT].into_boxed_slice();
        let sockets = OsSockets::new(true);
        let mut kernel = Self { epoll, sockets, wake, events, count: 0, next: 0, has_pwait2: false };
        let is_disabled = options.testing.disabled_features.epoll_pwait2;
        kernel.has_pwait2 = !is_disabled && kernel.wait_nanoseconds(0).is_ok();
        Ok(kernel)
    }

    pub fn features(&self) -> String {
        let timeouts = if self.has_pwait2 { ",nanosecond-timeouts" } else { "" };
        format!("edge-triggered,speculative{timeouts}")
    }

    /// Waits with `epoll_pwait2(2)` and returns the number of events. The wrapper in `rustix` uses this system call only
    /// for timeouts that do not fit into milliseconds.
    fn wait_nanoseconds(&mut self, timeout_ns: u64) -> rustix::io::Result<usize> {
        // `struct __kernel_timespec`. musl and older versions of glibc have no wrapper for the system call.
        let timeout: [i64; 2] =
            [(timeout_ns / 1_000_000_000).cast_signed(), (timeout_ns % 1_000_000_000).cast_signed()];
        // SAFETY: the kernel writes at most `EDGES_PER_WAIT` events to the buffer, whose elements have the layout of
        // `struct epoll_event`, and reads the timeout, both only during the call. There is no signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                EDGES_PER_WAIT as libc::c_int,
                &raw const timeout,
                std::ptr::null::<libc::c_void>(),
                0usize,
            )
        };
        usize::try_from(count)
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
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

    fn watch_listener(&mut self, socket: &OwnedFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token.0), EventFlags::IN)?)
    }

    fn watch_source(&mut self, socket: &OwnedFd, token: Token, events: u32) -> io::Result<()> {
        let interest = EventFlags::from_bits_retain(events) | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token.0), interest)?)
    }

    fn rewatch_source(&mut self, socket: &OwnedFd, token: Token, events: u32) -> io::Result<()> {
        let interest = EventFlags::from_bits_retain(events) | EventFlags::ET;
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(token.0), interest)?)
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
        let waited = match wait {
            Wait::For(nanoseconds) if self.has_pwait2 => self.wait_nanoseconds(nanoseconds),
            // The timeout is rounded up to milliseconds.
            _ => {
                epoll::wait(&self.epoll, &mut *self.events, timeout.as_ref()).map(|(events, _)| events.len())
            }
        };
        self.count = match waited {
            Ok(count) => count,
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
