//! The I/O driver without the executor, for programs with their own event loop or runtime.
//!
//! An [`EventLoop`] has the same driver, buffers and kernel features as a [`Runtime`](crate::Runtime), but no tasks:
//! the application runs the loop and receives events. The methods correspond to poll functions: they either complete
//! immediately or return `Pending`, and then [`turn`](EventLoop::turn) reports an [`Event`] with the token of the
//! object once the call should be repeated. An application that prefers callbacks stores them under their tokens.
//!
//! - **No memory is lent to the kernel.** Bytes are received into buffers of the loop ([`Chunk`]) and sent from buffers
//!   that the loop owns ([`SendBuf`]). Abandoning an operation is therefore always safe.
//! - **Identifiers** contain a generation. A stale one is an error and never denotes another object.
//! - **Cancellation.** [`cancel`](EventLoop::cancel) cancels a call that returned `Pending` on a stream, listener, UDP
//!   socket or registered descriptor: no event follows. Received bytes stay queued and accepted bytes are still sent.
//!   [`close`](EventLoop::close) and [`abort`](EventLoop::abort) cancel everything that is in flight in the kernel.
//! - **Deadlines** of operations are in the loop's timer wheel ([`set_deadline`](EventLoop::set_deadline)), like
//!   [timers](EventLoop::add_timer). The next one is the timeout of the wait, so they need no system call. A linked
//!   timeout (`IORING_OP_LINK_TIMEOUT`, Linux 5.5) would add a submission, a kernel timer and a completion to each
//!   operation, and cannot be used with multishot receives and accepts, which the loop keeps armed.
//! - **UDP** sockets are non-blocking: a call transfers datagrams between the kernel and the caller's memory, or
//!   returns `Pending`, and an event follows ([`bind_udp`](EventLoop::bind_udp)).
//! - **Files** are read and written at an offset ([`read_at`](EventLoop::read_at), [`write_at`](EventLoop::write_at))
//!   on the ring or the file pool, as in [`fs`](crate::fs), and sent on streams ([`send_file`](EventLoop::send_file)).
//!   Other file operations block on every driver. Run them on threads that then call [`LoopWaker::wake`].
//! - **Unix sockets** are streams and listeners like those of TCP ([`listen_unix`](EventLoop::listen_unix),
//!   [`connect_unix`](EventLoop::connect_unix)).
//!   Unix datagram sockets, and streams on which descriptors are passed, remain the application's: it
//!   [registers](EventLoop::register) them and calls `sendmsg(2)` and `recvmsg(2)`. These calls have a form for each
//!   kind of ancillary data, which would be half of this interface, and gain nothing from a ring: on every driver, they
//!   are made once the socket is ready.
//! - **Socket options** are set on the descriptor of a socket ([`stream_fd`](EventLoop::stream_fd)).
//! - **Other threads** end a wait through a [`LoopWaker`].
//! - **Another loop** can wait for this one ([`pollable_fd`](EventLoop::pollable_fd),
//!   [`max_wait`](EventLoop::max_wait)).
//!
//! A thread can have several loops, and a process any number; each loop stays on the thread that created it. The rings
//! of one thread share the kernel's pool of worker threads (Linux 5.12), of which the loops use at most four. Loops of
//! any thread can share an SQPOLL thread ([`share_polling_thread`](EventLoopBuilder::share_polling_thread)). On the
//! simulated driver, a program with its own loop can be tested with virtual time and seeded faults.
//!
//! ```
//! use std::task::Poll;
//!
//! use anello::event_loop::{EventKind, EventLoop, Events};
//!
//! let mut event_loop = EventLoop::new()?;
//! let listener = event_loop.listen("127.0.0.1:0".parse().expect("valid address"), 0)?;
//! assert!(event_loop.accept(listener, 2)?.is_pending());
//! let client = event_loop.connect(event_loop.local_addr(listener)?, 1)?;
//! let (mut outgoing, mut server) = (Some("ping".into()), None);
//! assert!(event_loop.poll_connect(client).is_pending());
//! let mut events = Events::with_capacity(64);
//! let received = 'turns: loop {
//!     event_loop.turn(&mut events, None)?;
//!     for event in events.iter() {
//!         match (event.token(), event.kind()) {
//!             (0, EventKind::Accept) => {
//!                 if let Poll::Ready(stream) = event_loop.accept(listener, 2)? {
//!                     server = Some(stream);
//!                     if let Poll::Ready(Some(chunk)) = event_loop.recv(stream)? {
//!                         break 'turns chunk;
//!                     }
//!                 }
//!             }
//!             (1, EventKind::Connect) => {
//!                 assert!(event_loop.poll_connect(client)?.is_ready());
//!                 assert!(event_loop.send(client, &mut outgoing)?.is_ready());
//!             }
//!             (2, EventKind::Receive) => {
//!                 if let Some(stream) = server
//!                     && let Poll::Ready(Some(chunk)) = event_loop.recv(stream)?
//!                 {
//!                     break 'turns chunk;
//!                 }
//!             }
//!             _ => {}
//!         }
//!     }
//! };
//! assert_eq!(&received[..], b"ping");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The program `event_loop_echo` in the directory `examples` of the repository is a complete echo server.

mod builder;
mod closing;
mod connections;
mod datagrams;
mod entered;
mod event;
mod file_table;
mod files;
mod listeners;
mod nesting;
mod sockets;
mod sources;
mod streams;
mod timers;
mod turn;
mod udp_sockets;
mod waker;

pub use builder::EventLoopBuilder;
pub use event::{
    Direction, Event, EventKind, Events, FileId, ListenerId, MAX_TOKEN, ObjectId, SourceId, StreamId,
    TimerId, UdpId,
};
pub use turn::EventLoop;
pub use waker::LoopWaker;

#[doc(no_inline)]
pub use crate::driver::{Chunk, Interest, OutgoingDatagram, Ready, RecvBatch, SendBuf};
