//! `linux-aio`: the kernel's asynchronous I/O interface that predates io_uring. One `io_submit(2)` submits all queued
//! requests; one `io_getevents(2)` sleeps until a request has completed. Only direct I/O is asynchronous; buffered
//! requests complete within `io_submit`.
//!
//! Invariants: the kernel copies each control block on submission, and can access the memory of the data block until it
//! has reported the completion. Blocks stay in `in_flight` until then. `io_destroy(2)` waits for requests in flight.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use libc::c_long;
use rustix::io::Errno;

use super::request::{Completion, KernelBlocks, Request, RequestQueue};
use crate::errors::with_message;

/// `IOCB_CMD_PREAD` and `IOCB_CMD_PWRITE` from `linux/aio_abi.h`.
const OPCODES: [u16; 2] = [0, 1];
/// Pause before the next attempt when the kernel lacks the resources to accept a request and none is in flight.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct LinuxAio {
    file: File,
    context: Context,
    in_flight: KernelBlocks,
    /// Control blocks to be submitted, in order.
    queued: Vec<ControlBlock>,
    /// Number of requests in flight in the kernel.
    submitted: usize,
    events: Vec<IoEvent>,
}

/// `struct iocb` from `linux/aio_abi.h`, which libc has only for glibc.
#[repr(C)]
#[derive(Default)]
struct ControlBlock {
    data: u64,
    /// `aio_key` and `aio_rw_flags`, whose order depends on the byte order. Both are zero.
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `struct io_event` from `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// Converts the result of a system call.
fn check_count(result: c_long) -> Result<usize, Errno> {
    let error = || Errno::from_io_error(&io::Error::last_os_error());
    usize::try_from(result).map_err(|_| error().unwrap_or(Errno::IO))
}

/// `aio_context_t`.
pub(super) struct Context(libc::c_ulong);

impl Context {
    pub(super) fn new(requests: usize) -> io::Result<Context> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: `io_setup(2)` writes only the context, which is zero before the call.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, requests as c_long, &raw mut context) };
        let remedy = match check_count(result) {
            Ok(_) => return Ok(Context(context)),
            Err(Errno::AGAIN) => "request limit reached: raise sysctl fs.aio-max-nr",
            Err(Errno::NOSYS) => "kernel built without CONFIG_AIO",
            Err(Errno::PERM | Errno::ACCESS) => {
                "allow io_setup, io_submit, io_getevents and io_destroy in the seccomp profile"
            }
            Err(errno) => return Err(errno.into()),
        };
        let error = io::Error::last_os_error();
        Err(with_message(&error, format!("Linux AIO unavailable: {error} ({remedy}, or use another engine)")))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context comes from `io_setup` and is not used after this. The call waits for all requests; it
        // fails only for an invalid context.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

impl LinuxAio {
    pub(super) fn new(file: File, slots: usize) -> io::Result<LinuxAio> {
        Ok(LinuxAio {
            file,
            context: Context::new(slots)?,
            in_flight: KernelBlocks::new(slots),
            queued: Vec::new(),
            submitted: 0,
            events: vec![IoEvent::default(); slots],
        })
    }

    /// Submits the queued requests. If the kernel accepts only some of them for lack of resources, the rest stay
    /// queued.
    fn submit(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        while !self.queued.is_empty() {
            let mut blocks: Vec<*mut ControlBlock> = self.queued.iter_mut().map(ptr::from_mut).collect();
            let (count, blocks) = (blocks.len() as c_long, blocks.as_mut_ptr());
            // SAFETY: `io_submit(2)` reads the control blocks, which are live, and writes one field of each. The memory
            // that they point to is in `in_flight` and stays there until the kernel has reported the completion.
            let result = unsafe { libc::syscall(libc::SYS_io_submit, self.context.0, count, blocks) };
            match check_count(result) {
                Ok(accepted) => {
                    self.submitted += accepted;
                    self.queued.drain(..accepted);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.submitted > 0 => return Ok(()),
                Err(Errno::AGAIN) => std::thread::sleep(BUSY_PAUSE),
                // The error applies only to the first control block.
                Err(errno) => {
                    let slot = self.queued.remove(0).data as usize;
                    completions.extend(self.in_flight.complete(slot, -i64::from(errno.raw_os_error())));
                }
            }
        }
        Ok(())
    }
}

impl RequestQueue for LinuxAio {
    fn start(&mut self, Request { slot, writes, offset, mut block }: Request) -> io::Result<()> {
        let control_block = ControlBlock {
            data: slot as u64,
            opcode: OPCODES[usize::from(writes)],
            descriptor: self.file.as_raw_fd() as u32,
            buffer: block.bytes_mut().as_mut_ptr() as u64,
            bytes: block.len() as u64,
            offset: i64::try_from(offset).map_err(io::Error::other)?,
            ..ControlBlock::default()
        };
        self.in_flight.0[slot] = Some(block);
        self.queued.push(control_block);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.submit(completions)?;
        if !completions.is_empty() || self.submitted == 0 {
            return Ok(());
        }
        let (min, max, events) = (1 as c_long, self.events.len() as c_long, self.events.as_mut_ptr());
        let timeout = ptr::null::<libc::timespec>();
        let count = rustix::io::retry_on_intr(|| {
            let (call, context) = (libc::SYS_io_getevents, self.context.0);
            // SAFETY: `io_getevents(2)` writes at most `max` events, and the buffer has room for that number.
            check_count(unsafe { libc::syscall(call, context, min, max, events, timeout) })
        })?;
        self.submitted -= count.min(self.submitted);
        for event in &self.events[..count] {
            completions.extend(self.in_flight.complete(event.data as usize, event.result));
        }
        Ok(())
    }
}
