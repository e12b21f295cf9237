//! Selection of a disk engine.

use std::fs::File;
use std::io;

use super::request::{Block, RequestQueue};
use super::{blocking, linux_aio, posix_aio, uring};

/// I/O interface that reads and writes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Engine {
    /// `pread(2)` and `pwrite(2)` on the worker's own thread, one request at a time, whatever depth is requested.
    Pread,
    /// The same calls, on a pool whose number of threads equals the depth.
    Threads,
    /// `aio_read(3)`, `aio_write(3)` and `aio_suspend(3)`. glibc executes them on at most 20 threads of its own, and
    /// executes requests on the same descriptor one after another. Each request in flight therefore has its own
    /// descriptor.
    PosixAio,
    /// `io_submit(2)` and `io_getevents(2)`, Linux 2.6. Buffered requests complete within `io_submit`.
    LinuxAio,
    /// io_uring: fixed reads and writes with registered buffers and a registered file, one `io_uring_enter(2)` per
    /// turn. Linux 5.19.
    Uring,
}

impl Engine {
    /// Returns a description for the line that is printed when the worker is ready.
    pub fn description(self) -> &'static str {
        match self {
            Engine::Pread => "one call to pread or pwrite at a time; the depth is always 1",
            Engine::Threads => {
                "pread and pwrite on one thread per request in flight; the threads share a queue"
            }
            Engine::PosixAio => {
                "aio_read and aio_write of the C library, with at most 20 threads and one descriptor per request in \
                 flight"
            }
            Engine::LinuxAio => "io_submit and io_getevents; buffered requests complete within io_submit",
            Engine::Uring => {
                "fixed reads and writes with registered buffers and a registered file; one call to io_uring_enter per \
                 iteration"
            }
        }
    }

    /// Checks that this process can use the engine. Returns an error with a remedy if the engine is forbidden or not
    /// supported by this kernel, or if a resource limit is reached.
    pub fn check(self) -> io::Result<()> {
        match self {
            Engine::Pread | Engine::Threads | Engine::PosixAio => Ok(()),
            Engine::LinuxAio => linux_aio::Context::new(1).map(drop),
            Engine::Uring => uring::ring().map(drop),
        }
    }

    /// Sets up the engine for a file and a set of blocks. Each block belongs to the slot with the same index.
    pub(super) fn start(self, file: File, blocks: &mut [Block]) -> io::Result<Box<dyn RequestQueue>> {
        Ok(match self {
            Engine::Pread => Box::new(blocking::Pread { file, next: None }),
            Engine::Threads => Box::new(blocking::Pool::new(file, blocks.len())?),
            Engine::PosixAio => Box::new(posix_aio::PosixAio::new(&file, blocks.len())?),
            Engine::LinuxAio => Box::new(linux_aio::LinuxAio::new(file, blocks.len())?),
            Engine::Uring => Box::new(uring::Uring::new(file, blocks)?),
        })
    }
}
