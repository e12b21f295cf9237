//! `uring`: fixed reads and writes. The blocks are registered once, which spares the kernel pinning their pages for each
//! direct request, and so is the file, which spares its look-up; one enter a turn submits and waits.
//!
//! Invariants: the block of a request stays in `in_flight` until its completion; if there may still be requests in the
//! kernel when the engine is dropped, their blocks are leaked.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;

use io_uring::types::Fixed;
use io_uring::{IoUring, opcode};
use rustix::io::Errno;

use super::block::Block;
use super::engine::{Completion, Request, RequestQueue};
use crate::uring::setup;

pub(super) struct Uring {
    ring: IoUring,
    /// By slot.
    in_flight: Vec<Option<Block>>,
    /// The table of the ring holds the file as well; this is for those who read the list of descriptors.
    _file: File,
}

/// The only registered file.
const FILE: Fixed = Fixed(0);

/// Finds out whether this process may use io_uring.
pub(super) fn check() -> io::Result<()> {
    ring().map(drop)
}

fn ring() -> io::Result<IoUring> {
    setup::build_ring("another engine").map(|(ring, _)| ring)
}

impl Uring {
    pub(super) fn new(file: File, blocks: &mut [Block]) -> io::Result<Uring> {
        let ring = ring()?;
        let buffers: Vec<libc::iovec> = blocks
            .iter_mut()
            .map(|block| libc::iovec {
                iov_base: block.bytes_mut().as_mut_ptr().cast(),
                iov_len: block.len(),
            })
            .collect();
        // SAFETY: the memory is that of the blocks now, and its pages are pinned, so that the kernel reaches nothing else
        // by these buffers. A request names one of them only while its block is in `in_flight`.
        unsafe { ring.submitter().register_buffers(&buffers) }.map_err(|error| {
            let remedy = match Errno::from_io_error(&error) {
                Some(Errno::NOMEM) => {
                    ": raise the limit of locked memory (ulimit -l), or take fewer or smaller blocks"
                }
                _ => "",
            };
            io::Error::new(error.kind(), format!("no registered buffers ({error}){remedy}"))
        })?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Uring { ring, in_flight: blocks.iter().map(|_| None).collect(), _file: file })
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
        self.in_flight[slot] = Some(block);
        // SAFETY: the memory is that of a block which stays in `in_flight` until the request's completion.
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }.map_err(io::Error::other)
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                _ => return Err(error),
            },
        }
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            let result = usize::try_from(completion.result())
                .map_err(|_| io::Error::from_raw_os_error(-completion.result()));
            let block = self.in_flight.get_mut(slot).and_then(Option::take);
            completions.extend(block.map(|block| Completion { slot, block, result }));
        }
        Ok(())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.in_flight.drain(..).flatten().for_each(mem::forget);
    }
}
