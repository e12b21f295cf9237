//! Zero-downtime upgrade with `--handover PATH`: a running server transfers its sockets to a successor process.
//!
//! Both processes share the same socket objects, so each queued connection is accepted by one process or the other. The
//! processes communicate over a Unix socket, the *handover socket*, which is transferred as well:
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
//! - Before the first socket is sent, the server leases the socket files to the successor: if the server is stopped
//!   after that, it does not remove them.
//!
//! # Failures
//!
//! - The successor dies or does not reply in time: the server sends WITHDRAWN and resumes accepting. A successor that
//!   receives WITHDRAWN, however late, exits.
//! - The server dies after sending its sockets: the successor continues alone.
//! - The server sends nothing after STOPPED: the successor continues, because the server reads ACCEPTING before it can
//!   resume.
//! - A second successor waits in the handover socket's queue and takes over from the first successor.
//!
//! In the running server, a handover opens no files and needs only accept, sendmsg, recvmsg, read, write and close.

mod channel;
mod listener;
mod successor;

pub use self::listener::{HandoverListener, ServerSockets};
pub use self::successor::{ReceivedSockets, Successor, lock_startup, request_handover};
