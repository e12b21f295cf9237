//! Zero-downtime upgrade with `--handover PATH`: a running server transfers its sockets to a successor process.
//!
//! Both processes share the same socket objects, so queued connections are accepted by one or the other. The processes
//! communicate over a Unix socket, the *handover socket*, which is transferred as well:
//!
//! ```text
//!   successor                                running server
//!      │ ──────────── connect ───────────────────► │
//!      │ ◄── hello, sockets (SCM_RIGHTS), end ──── │
//!      │ prepares everything else                  │ serves
//!      │ ──────────── READY ─────────────────────► │ stops accepting; serves accepted connections
//!      │ ◄─────────── STOPPED ──────────────────── │
//!      │ accepts                                   │ leaves the accept queues alone
//!      │ ──────────── ACCEPTING ─────────────────► │
//!      │ ◄─────────── DONE ─────────────────────── │ drains and exits
//! ```
//!
//! # Invariants
//!
//! - The two processes never accept connections at the same time. `O_NONBLOCK` belongs to the socket and is shared by
//!   both processes, but the drivers need different values.
//! - From before the first socket is sent, a server that is stopped leaves the socket files to the successor.
//!
//! # Failures
//!
//! - The successor dies or does not reply in time: the server sends WITHDRAWN and resumes accepting. A successor that
//!   receives WITHDRAWN, however late, exits.
//! - The server dies after sending its sockets: the successor continues alone.
//! - The server sends nothing after STOPPED: the successor continues, because the server reads ACCEPTING before it can
//!   resume.
//! - A second successor waits in the queue of the handover socket and takes over from the first one.
//!
//! While the server runs, the handover opens no files: it needs accept, sendmsg, recvmsg, read, write and close.

mod channel;
mod listener;
mod successor;

pub use self::listener::{HandoverListener, HandoverSource};
pub use self::successor::{StartLock, Successor, request_handover};
