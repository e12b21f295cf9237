//! `uring`: fixed reads and writes. The blocks are registered once, so the kernel does not need to pin their pages for
//! each direct request; the file is registered, so the kernel does not need to look it up. One `io_uring_enter(2)` per
//! turn submits requests and waits.
//!
//! Invariants: the block of a request stays in `in_flight` until its completion. If requests can still be in flight
//! when the engine is dropped, their blocks are leaked.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::types::Fixed;
use io_uring::{IoUring, opcode};
use rustix::io::Errno;

use super::request::{Block, Completion, KernelBlocks, Request, RequestQueue};
use crate::errors::with_message;
use crate::uring::setup;

pub(super) struct Uring {
    ring: IoUring,
    in_flight: KernelBlocks,
    /// The ring's file table also holds the file. This descriptor makes the file visible in `/proc/PID/fd`.
    _file: File,
}

const FILE: Fixed = Fixed(0);

pub(super) fn ring() -> io::Result<IoUring> {
    setup::build_ring("another engine").map(|(ring, _)| ring)
}

impl Uring {
    pub(super) fn new(file: File, blocks: &mut [Block]) -> io::Result<Uring> {
        let ring = ring()?;
        let buffers: Vec<libc::iovec> = blocks
            .iter_mut()
            .map(Block::bytes_mut)
            .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
            .collect();
        // SAFETY: the memory belongs to the blocks, and its pages are pinned, so the kernel accesses only this memory
        // through the buffers. A request refers to a buffer only while its block is in `in_flight`.
        unsafe { ring.submitter().register_buffers(&buffers) }.map_err(|error| {
            let remedy = if Errno::from_io_error(&error) == Some(Errno::NOMEM) {
                " (raise the locked-memory limit with ulimit -l, or use fewer or smaller blocks)"
            } else {
                ""
            };
            with_message(&error, format!("cannot register buffers: {error}{remedy}"))
        })?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Uring { ring, in_flight: KernelBlocks::new(blocks.len()), _file: file })
    }
}

impl RequestQueue for Uring {
    fn start(&mut self, Request { slot, writes, offset, mut block }: Request) -> io::Result<()> {
        let (memory, bytes) = (block.bytes_mut().as_mut_ptr(), block.len() as u32);
        let buffer_id = u16::try_from(slot).map_err(io::Error::other)?;
        let entry = if writes {
            opcode::WriteFixed::new(FILE, memory, bytes, buffer_id).offset(offset).build()
        } else {
            opcode::ReadFixed::new(FILE, memory, bytes, buffer_id).offset(offset).build()
        };
        self.in_flight.0[slot] = Some(block);
        // SAFETY: the memory belongs to a block that stays in `in_flight` until the completion of the request.
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }.map_err(io::Error::other)
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        if let Err(error) = self.ring.submit_and_wait(1)
            && !matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
        {
            return Err(error);
        }
        completions.extend(self.ring.completion().filter_map(|completion| {
            self.in_flight.complete(completion.user_data() as usize, completion.result().into())
        }));
        Ok(())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.in_flight.0.drain(..).flatten().for_each(std::mem::forget);
    }
}
