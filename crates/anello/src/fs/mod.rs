//! Asynchronous files and directories, which never block the worker on disk I/O.
//!
//! Names and behaviour follow `tokio::fs` and `std::fs`. A [`File`] reads and writes at its cursor, like tokio's, and
//! also at explicit offsets ([`File::read_at`], [`File::write_at`]). Streams can send data from a file without copying
//! it through user space; see [`TcpStream::send_file`](crate::net::TcpStream::send_file).
//!
//! # Where operations run
//!
//! | operation | where | reason |
//! |---|---|---|
//! | read of data in the page cache | directly, with `RWF_NOWAIT` | costs less than passing it to a thread or the ring |
//! | write, if the file system can write without waiting | directly, with `RWF_NOWAIT` | the same |
//! | `*_at` on a file with direct I/O | io_uring | takes 0.4 of the file pool's CPU time at depth 16 |
//! | `*_at` read of up to 32 KiB that is not in the page cache | io_uring | takes a quarter of the CPU time at depth 16 |
//! | `*_at` write to the page cache of a file opened with `O_SYNC` or `O_DSYNC` | file pool | the writes wait for the disk in parallel |
//! | other `*_at` write of up to 32 KiB | io_uring | takes 0.85 to 0.9 of the CPU time of the pool |
//! | longer `*_at` write to the page cache | file pool, one per file at a time | the writes of a file exclude each other |
//! | other reads and writes | file pool | its threads copy in parallel |
//! | open of a FIFO by path | a thread of [`spawn_blocking`](crate::spawn_blocking) | waits until the other end is opened |
//! | open, metadata, directories, sync, and so on | file pool | io_uring also runs them on threads |
//!
//! For direct I/O with many operations in flight, allocate [registered](AlignedBuf::registered) buffers and reuse them:
//! on io_uring, operations of 128 KiB then take up to 40 % less CPU time, and those of 4 KiB up to 8 % less.
//!
//! A kernel thread performs the writes to the page cache on io_uring. If several are in flight and the worker has nothing
//! else to do, it therefore submits up to eight of them and yields its core (`sched_yield(2)`) before it waits. If the
//! kernel thread runs on the same core, events of sockets can be delayed by these writes, usually for less than 100 µs.
//!
//! The file pool replaces io_uring on the other drivers, outside a runtime, and on file systems that do not support
//! `RWF_NOWAIT`, where io_uring would use a few threads of its own.
//!
//! The file pool has up to 32 threads, which all runtimes of the process share, and more, up to 512, while operations do
//! not complete, for example on a dead mount; see [`spawn_file_operation`]. On the simulated drivers, files are real, and
//! the virtual clock does not advance during an operation. On simulated hosts, operations can be delayed, fail, or be
//! undone by a crash; see [`sim`](crate::sim).
//!
//! # Cancellation
//!
//! No operation lends the caller's memory to the kernel or to another thread: a buffer is copied, or owned by the
//! operation until it completes. Dropping a future is therefore always safe. The operation itself is not cancelled. It
//! completes in the background, and then its buffer is freed or its new descriptor closed. Dropping a runtime waits for
//! its operations on io_uring. Dropping the last runtime of the process also waits for accepted writes
//! ([`File::write`]), also outside of runtimes, but not for other operations on the file pool. A program that uses files
//! without any runtime calls [`File::flush`] before it ends.
//!
//! # Thread safety
//!
//! A [`File`] can be sent to other threads. The futures of reads and writes at an offset cannot, because they may use the
//! ring of their worker. All other futures of this module are `Send`.
//!
//! # Errors
//!
//! Errors of functions that take a path contain the operation and the path; see [`PathError`]. Operations on an open
//! file return the error of the system call.
//!
//! ```
//! # anello::example! {
//! # let directory = tempfile::tempdir()?;
//! use anello::fs::{self, File};
//!
//! let path = directory.path().join("greeting");
//! fs::write(&path, "good morning").await?;
//! let file = File::open(&path).await?;
//! let mut word = [0; 7];
//! file.read_exact_at(&mut word, 5).await?;
//! assert_eq!(&word, b"morning");
//! # }
//! ```

mod cursor;
mod detached;
mod directory;
mod file;
mod open_options;
mod owned_buf;
mod path_error;
mod paths;
mod positional;
mod read_ahead;
mod read_dir;
mod residency_cache;
mod ring;
mod sequential;
mod transfer;

pub(crate) use detached::Detached;
pub use directory::{DirBuilder, create_dir, create_dir_all, remove_dir, remove_dir_all};
pub use file::File;
pub use open_options::OpenOptions;
pub use owned_buf::{AlignedBuf, OwnedBuf};
pub use path_error::PathError;
pub use paths::{
    canonicalize, copy, hard_link, metadata, read, read_link, read_to_string, remove_file, rename,
    set_permissions, symlink, symlink_metadata, try_exists, write,
};
pub use read_dir::{DirEntry, ReadDir, read_dir};

pub use crate::executor::spawn_file_operation;
