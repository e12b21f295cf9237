//! Child processes, with piped standard streams.
//!
//! [`Command`] wraps [`std::process::Command`]; its names and behaviour are those of tokio's:
//!
//! ```
//! use std::process::Stdio;
//!
//! use anello::process::Command;
//!
//! # anello::example! {
//! let mut child = Command::new("tr").args(["a-z", "A-Z"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
//! let mut input = child.stdin.take().expect("stdin is piped");
//! input.write_all(b"ciao").await?;
//! // Closes the pipe, so that the child reads EOF.
//! drop(input);
//! let output = child.wait_with_output().await?;
//! assert!(output.status.success());
//! assert_eq!(output.stdout, b"CIAO");
//! # }
//! ```
//!
//! # Waiting
//!
//! A child has a process descriptor (`pidfd_open(2)`, Linux 5.3), which becomes readable when it exits, so SIGCHLD is
//! neither caught nor needed. Where the kernel or a sandbox does not permit process descriptors, a thread of the
//! blocking pool calls `waitid(2)` for the child.
//!
//! # Dropping a child
//!
//! A child that is dropped continues to run unless [`Command::kill_on_drop`] is set. It does not become a zombie: a
//! detached task of the runtime waits for it. If the runtime is dropped first, the children that have exited are reaped
//! the next time that any thread starts or drops a child. So a zombie remains at most until then.
//!
//! # Differences from tokio
//!
//! - A child and its pipes belong to the runtime on which the child was started. They are not `Send`.
//! - The pipes have methods for reads and writes; the traits of tokio and futures need the features of
//!   [`compat`](crate::compat).
//! - `pre_exec` is unsafe, and is available through [`Command::as_std_mut`].
//! - [`Command::output`] respects handles that were configured before, like that of the standard library.
//! - Simulated drivers have no processes: [`Command::spawn`] returns an error.

mod child;
mod command;
mod orphans;
mod running;
mod stdio;

pub use child::Child;
pub use command::Command;
pub use stdio::{ChildStderr, ChildStdin, ChildStdout};
