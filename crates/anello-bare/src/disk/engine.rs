//! What every engine does, and which there are.

use std::fmt;
use std::fs::File;
use std::io;
use std::str::FromStr;

use super::block::Block;
use super::{linux_aio, posix_aio, pread, threads, uring};

/// A way to read and write a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// `pread(2)` and `pwrite(2)` on the worker's own thread, one after another whatever the depth.
    Pread,
    /// The same calls on as many threads as the depth, to which the worker's thread hands requests.
    Threads,
    /// `aio_read(3)`, `aio_write(3)` and `aio_suspend(3)`. glibc does them by threads of its own, at most 20, and
    /// those of one descriptor one after another, so each place in the depth has a descriptor of its own.
    PosixAio,
    /// `io_submit(2)` and `io_getevents(2)`, Linux 2.6. What is buffered is done within `io_submit`.
    LinuxAio,
    /// io_uring: fixed reads and writes on registered buffers and a registered file, one enter a turn. Linux 5.19.
    Uring,
}

impl Engine {
    /// Every engine, in the order of their age.
    pub const ALL: [Engine; 5] =
        [Engine::Pread, Engine::Threads, Engine::PosixAio, Engine::LinuxAio, Engine::Uring];

    /// The name that [`FromStr`] reads and [`Display`](fmt::Display) writes.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Pread => "pread",
            Engine::Threads => "threads",
            Engine::PosixAio => "posix-aio",
            Engine::LinuxAio => "linux-aio",
            Engine::Uring => "uring",
        }
    }

    /// How it works, in words for the line that says that a worker is ready.
    pub fn way(self) -> &'static str {
        match self {
            Engine::Pread => "pread and pwrite one after another, so a depth of 1 whatever is asked for",
            Engine::Threads => "pread and pwrite on as many threads as the depth, fed by a queue",
            Engine::PosixAio => {
                "aio_read and aio_write of the C library, at most 20 threads, a descriptor per request"
            }
            Engine::LinuxAio => "io_submit and io_getevents; buffered requests are done within io_submit",
            Engine::Uring => "fixed reads and writes, registered buffers and file, one enter a turn",
        }
    }

    /// Finds out whether this process may use it.
    ///
    /// # Errors
    /// It is forbidden, or not in this kernel, or at its limit; the text names the remedy.
    pub fn check(self) -> io::Result<()> {
        match self {
            Engine::Pread | Engine::Threads | Engine::PosixAio => Ok(()),
            Engine::LinuxAio => linux_aio::check(),
            Engine::Uring => uring::check(),
        }
    }

    /// How many requests it can have in flight of so many that are asked for.
    pub(super) fn effective_depth(self, requested: usize) -> usize {
        if self == Engine::Pread { 1 } else { requested }
    }

    /// Sets it up for a file, and for blocks of which each belongs to the slot of the same number.
    pub(super) fn start(self, file: File, blocks: &mut [Block]) -> io::Result<Box<dyn RequestQueue>> {
        Ok(match self {
            Engine::Pread => Box::new(pread::Pread::new(file)),
            Engine::Threads => Box::new(threads::Pool::new(file, blocks.len())?),
            Engine::PosixAio => Box::new(posix_aio::PosixAio::new(&file, blocks.len())?),
            Engine::LinuxAio => Box::new(linux_aio::LinuxAio::new(file, blocks.len())?),
            Engine::Uring => Box::new(uring::Uring::new(file, blocks)?),
        })
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Engine, String> {
        Engine::ALL.into_iter().find(|engine| engine.name() == name).ok_or_else(|| {
            format!("unknown engine {name:?}: use pread, threads, posix-aio, linux-aio or uring")
        })
    }
}

/// An engine at work. It owns the block of every request that it was given, until it gives it back; if it is dropped
/// with requests in flight, their memory is freed only if the kernel has certainly let go of it.
pub(super) trait RequestQueue {
    /// Takes a request, whose slot must be free. It is done at any time until [`wait`](RequestQueue::wait) gives it back.
    fn start(&mut self, request: Request) -> io::Result<()>;

    /// Gets on with what was started and waits until at least one request has ended, of which one there must be.
    /// An error is one of the engine, after which it is of no use; the failure of a request is its result.
    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()>;
}

/// To read or write a block.
#[derive(Debug)]
pub(super) struct Request {
    /// Which of the blocks it is: below the number of blocks that the engine was set up for.
    pub(super) slot: usize,
    pub(super) writes: bool,
    pub(super) offset: u64,
    pub(super) block: Block,
}

/// A request that has ended, with the number of bytes that were moved.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) slot: usize,
    pub(super) block: Block,
    pub(super) result: io::Result<usize>,
}
