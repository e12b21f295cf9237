//! A running server hands its sockets over to a newcomer, which goes on where it stops: `--handover PATH`.
//!
//! The sockets are the same objects in both processes, so that whoever waits in their queues is served by one or the other.
//! They talk at a Unix socket, the *door*, which goes over with the rest:
//!
//! ```text
//!   newcomer                                 running server
//!      │ ──────────── connects ──────────────────► │
//!      │ ◄── greeting, sockets (SCM_RIGHTS), end ─ │
//!      │ everything else is prepared               │ serves
//!      │ ──────────── READY ─────────────────────► │ stops accepting; what the kernel has accepted is served
//!      │ ◄─────────── STOPPED ──────────────────── │
//!      │ accepts                                   │ its queues are left alone
//!      │ ──────────── ACCEPTING ─────────────────► │
//!      │ ◄─────────── DONE ─────────────────────── │ drains, and ends
//! ```
//!
//! At no time do both accept: the mode of a socket (`O_NONBLOCK`), which the drivers want to be different, is one for both
//! processes. When the newcomer dies, or does not answer in time, the server says WITHDRAWN and goes on accepting; a
//! newcomer that hears this, however late, ends. When the server dies after it has given its sockets, the newcomer goes on
//! alone; when it says nothing more after STOPPED, the newcomer goes on, too, because the server will hear ACCEPTING. A
//! second newcomer waits at the door, and takes over from the first. From before the first socket is given, the files of
//! sockets are left alone by a server that is told to end meanwhile.
//!
//! Nothing is opened for it while the server runs: it needs accept, sendmsg, recvmsg, read, write and close.

mod channel;
mod listener;
mod successor;

pub use self::listener::{HandoverListener, HandoverSource};
pub use self::successor::{StartLock, Successor, request_handover};
