//! `posix-aio`: the C library's asynchronous reads and writes. glibc has threads that do them by `pread` and `pwrite`,
//! at most 20 at once, and those of one descriptor one after another: so each slot has a descriptor of its own.
//!
//! nix wraps these calls, but its requests borrow their memory for as long as they live, so that none could be used
//! again while another is in flight.
//!
//! Invariant: the block and the control block of a request stay in `in_flight`, where they do not move, until
//! `aio_error` says that it has ended; the descriptors are closed after that.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::io::Errno;

use super::block::Block;
use super::engine::{Completion, Request, RequestQueue};

pub(super) struct PosixAio {
    /// By slot.
    in_flight: Vec<Option<InFlight>>,
    /// By slot.
    descriptors: Vec<File>,
}

struct InFlight {
    control: Box<libc::aiocb>,
    block: Block,
}

impl PosixAio {
    pub(super) fn new(file: &File, slots: usize) -> io::Result<PosixAio> {
        let descriptors = (0..slots).map(|_| file.try_clone()).collect::<io::Result<_>>()?;
        Ok(PosixAio { in_flight: (0..slots).map(|_| None).collect(), descriptors })
    }

    /// Takes out what has ended.
    fn reap(&mut self, completions: &mut Vec<Completion>) {
        for (slot, entry) in self.in_flight.iter_mut().enumerate() {
            let finished = entry.take_if(|in_flight| {
                // SAFETY: the control block is one that was submitted and whose result was not taken yet.
                unsafe { libc::aio_error(&*in_flight.control) != libc::EINPROGRESS }
            });
            if let Some(InFlight { mut control, block }) = finished {
                // SAFETY: as above, and the request has ended; this is done once, as it has left `in_flight`.
                let (errno, bytes) = unsafe { (libc::aio_error(&*control), libc::aio_return(&mut *control)) };
                let result = usize::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(errno));
                completions.push(Completion { slot, block, result });
            }
        }
    }
}

impl RequestQueue for PosixAio {
    fn start(&mut self, Request { slot, writes, offset, mut block }: Request) -> io::Result<()> {
        // SAFETY: a C structure of integers and pointers, for which zero is a value; all but what is set below must
        // be zero. Zero in its `sigev_notify` would be a signal, so that is set, too.
        let mut control: Box<libc::aiocb> = Box::new(unsafe { mem::zeroed() });
        control.aio_fildes = self.descriptors[slot].as_raw_fd();
        control.aio_buf = block.bytes_mut().as_mut_ptr().cast();
        control.aio_nbytes = block.len();
        control.aio_offset = i64::try_from(offset).map_err(io::Error::other)?;
        control.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
        let InFlight { control, .. } = self.in_flight[slot].insert(InFlight { control, block });
        // SAFETY: control block and memory stay in `in_flight` until the request has ended (module invariant).
        let result =
            unsafe { if writes { libc::aio_write(&mut **control) } else { libc::aio_read(&mut **control) } };
        if result != 0 {
            self.in_flight[slot] = None;
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            let count_before = completions.len();
            self.reap(completions);
            if completions.len() > count_before {
                return Ok(());
            }
            let control_blocks: Vec<*const libc::aiocb> =
                self.in_flight.iter().flatten().map(|in_flight| ptr::from_ref(&*in_flight.control)).collect();
            // SAFETY: the control blocks are in flight or have ended, and stay where they are during the call.
            if unsafe { libc::aio_suspend(control_blocks.as_ptr(), control_blocks.len() as i32, ptr::null()) }
                != 0
            {
                let error = io::Error::last_os_error();
                if !matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN)) {
                    return Err(error);
                }
            }
        }
    }
}

impl Drop for PosixAio {
    /// Waits for what is in flight; if that cannot be waited for, leaks its memory and its descriptors.
    fn drop(&mut self) {
        let mut completions = Vec::new();
        while self.in_flight.iter().any(Option::is_some) {
            if self.wait(&mut completions).is_err() {
                mem::forget(mem::take(&mut self.in_flight));
                mem::forget(mem::take(&mut self.descriptors));
            }
        }
    }
}
