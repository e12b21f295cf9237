//! `posix-aio`: the asynchronous reads and writes provided by the C library. glibc executes them with `pread` and
//! `pwrite` on at most 20 threads, and executes requests on the same descriptor one after another. Each slot therefore
//! has its own descriptor.
//!
//! nix wraps these calls, but its requests borrow their memory for their whole lifetime, so no block could be reused
//! while another request is in flight.
//!
//! Invariant: the block and the control block of a request stay in `in_flight`, at a fixed address, until `aio_error`
//! reports its completion. The descriptors are closed only after that.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::io::Errno;

use super::request::{Block, Completion, Request, RequestQueue};

/// Both lists are indexed by slot.
pub(super) struct PosixAio {
    in_flight: Vec<Option<InFlight>>,
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

    /// Removes the completed requests from `in_flight`.
    fn reap(&mut self, completions: &mut Vec<Completion>) {
        for (slot, entry) in self.in_flight.iter_mut().enumerate() {
            let finished = entry.take_if(|in_flight| {
                // SAFETY: the control block was submitted and its result has not been retrieved.
                unsafe { libc::aio_error(&*in_flight.control) != libc::EINPROGRESS }
            });
            if let Some(InFlight { mut control, block }) = finished {
                // SAFETY: the control block was submitted and the request has completed. `aio_return` is called once,
                // because the request has been removed from `in_flight`.
                let (errno, bytes) = unsafe { (libc::aio_error(&*control), libc::aio_return(&mut *control)) };
                let result = usize::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(errno));
                completions.push(Completion { slot, block, result });
            }
        }
    }
}

impl RequestQueue for PosixAio {
    fn start(&mut self, Request { slot, writes, offset, mut block }: Request) -> io::Result<()> {
        // SAFETY: a C structure of integers and pointers, for which zero is a valid value. The fields that are not
        // set below must be zero. `sigev_notify` is set because zero would request a signal.
        let mut control: Box<libc::aiocb> = Box::new(unsafe { mem::zeroed() });
        control.aio_fildes = self.descriptors[slot].as_raw_fd();
        control.aio_buf = block.bytes_mut().as_mut_ptr().cast();
        control.aio_nbytes = block.len();
        control.aio_offset = i64::try_from(offset).map_err(io::Error::other)?;
        control.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
        let InFlight { control, .. } = self.in_flight[slot].insert(InFlight { control, block });
        // SAFETY: the control block and the memory stay in `in_flight` until the request has completed (module
        // invariant).
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
            // SAFETY: the control blocks have been submitted and do not move during the call.
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
    /// Waits for the requests in flight. If that fails, leaks their memory and descriptors.
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
