//! Setting a ring up: the best flags that the kernel takes, and what it turns out to be able to do.
//!
//! ```text
//!  flags of set-up (EINVAL: down one step)            tried or asked for at the start
//!  NO_SQARRAY                    6.6                  multishot receive   6.0   by receiving once from a socket pair
//!  DEFER_TASKRUN                 6.1                  buffer ring         5.19  by registering one
//!  SINGLE_ISSUER                 6.0                  SEND_ZC, MSG_RING   6.0, 5.18  by probing the opcodes
//!  COOP_TASKRUN, TASKRUN_FLAG    5.19                 registered ring     5.18  by registering
//!  SUBMIT_ALL                    5.18                 CQE_SKIP_SUCCESS    5.17  by feature bit
//!  CQSIZE, CLAMP                 5.6                  send at submission  5.17  by sending more than a socket takes
//!                                                     registered files    6.14  by feature bit, when asked for
//!                                                     floor: EXT_ARG 5.11, multishot poll 5.13
//! ```

use std::ffi::CStr;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use rustix::io_uring::{
    IoringCqeFlags, IoringFeatureFlags, IoringOp, IoringRegisterOp, IoringSetupFlags, io_uring_buf_reg,
    io_uring_params,
};

use super::super::buffer::{BufferRing, Pools};
use super::super::op::Wait;
use super::super::options::{DriverOptions, SendCompletion, TaskWork};
use super::ring::Ring;
use super::sqe::{File, Sqe};
use super::{BUFFER_GROUP, REGISTERED_FILES};

/// `IORING_FEAT_RW_ATTR` (6.14), for what came one version before it and no bit tells. Until then a file taken out of
/// the table is closed only when every operation that was submitted before, on whichever registered file, has ended: a
/// receive that waits keeps all sockets open that are closed after it.
const CLOSES_REGISTERED_FILES: IoringFeatureFlags = IoringFeatureFlags::from_bits_retain(1 << 16);

/// What this ring does, after set-up and trials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub(crate) no_sqarray: bool,
    pub(crate) defer_taskrun: bool,
    pub(crate) single_issuer: bool,
    pub(crate) coop_taskrun: bool,
    /// The kernel says in shared memory when there is work to run.
    pub(crate) task_work_flag: bool,
    pub(crate) submission_polling: bool,
    pub(crate) multishot_accept: bool,
    pub(crate) multishot_receive: bool,
    pub(crate) buffer_ring: bool,
    pub(crate) cqe_skip: bool,
    pub(crate) inline_sends: bool,
    pub(crate) zero_copy: bool,
    pub(crate) msg_ring: bool,
    pub(crate) registered_ring: bool,
    pub(crate) registered_files: bool,
}

impl Features {
    /// Each feature with its name and whether it is used.
    pub fn named(&self) -> [(&'static str, bool); 14] {
        [
            ("no-sqarray", self.no_sqarray),
            ("defer-taskrun", self.defer_taskrun),
            ("single-issuer", self.single_issuer),
            ("coop-taskrun", self.coop_taskrun),
            ("sqpoll", self.submission_polling),
            ("multishot-accept", self.multishot_accept),
            ("multishot-recv", self.multishot_receive),
            ("buffer-ring", self.buffer_ring),
            ("cqe-skip", self.cqe_skip),
            ("send-at-submission", self.inline_sends),
            ("send-zc", self.zero_copy),
            ("msg-ring", self.msg_ring),
            ("registered-ring", self.registered_ring),
            ("registered-files", self.registered_files),
        ]
    }
}

/// The names of what is used, with commas.
impl fmt::Display for Features {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used: Vec<_> = self.named().into_iter().filter(|(_, used)| *used).map(|(name, _)| name).collect();
        formatter.write_str(&used.join(","))
    }
}

/// Builds the ring on the calling thread, which will own it.
pub(super) fn ring(options: &DriverOptions) -> io::Result<(Ring, Features, Rc<Pools>)> {
    let (mut ring, mut features) = probe_setup_flags(options)?;
    let kernel = ring.features();
    if !kernel.contains(IoringFeatureFlags::EXT_ARG | IoringFeatureFlags::RSRC_TAGS) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel's io_uring is older than Linux 5.13: use a newer kernel, or the epoll driver",
        ));
    }
    let disabled = &options.disabled_features;
    limit_io_wq_workers(&ring);

    let opcodes = Opcodes::probe(&ring);
    features.zero_copy = opcodes.has(IoringOp::SendZc) && !disabled.zero_copy;
    features.msg_ring = opcodes.has(IoringOp::MsgRing) && !disabled.msg_ring;
    features.cqe_skip = kernel.contains(IoringFeatureFlags::CQE_SKIP) && !disabled.cqe_skip;
    features.inline_sends = features.cqe_skip
        && options.send_completion == SendCompletion::Inline
        && options.submission_polling.is_none()
        && is_tested_release(rustix::system::uname().release())
        && reports_short_inline_sends(&mut ring);

    let pools = buffer_ring(&ring, options);
    features.buffer_ring = pools.ring().is_some();
    features.multishot_accept = features.buffer_ring && !disabled.multishot_accept;
    features.multishot_receive = features.buffer_ring
        && !options.one_shot_receive
        && !disabled.multishot_receive
        && supports_multishot_recv(&mut ring, &pools);
    if options.registered_files && !kernel.contains(CLOSES_REGISTERED_FILES) {
        tracing::warn!("before Linux 6.14 registered files are closed too late: going on with descriptors");
    } else if options.registered_files {
        register_files(&ring).map_err(|error| {
            with_advice(error, "registering files failed: raise the limit of open files (ulimit -n 20000)")
        })?;
        features.registered_files = true;
    }
    features.registered_ring = !disabled.registered_ring && ring.register_itself();
    Ok((ring, features, pools))
}

/// Down the ladder until the kernel takes the flags.
fn probe_setup_flags(options: &DriverOptions) -> io::Result<(Ring, Features)> {
    let disabled = &options.disabled_features;
    let polling = options.submission_polling.is_some();
    let mut features = Features {
        no_sqarray: !disabled.no_sqarray,
        defer_taskrun: options.task_work == TaskWork::Deferred && !disabled.defer_taskrun && !polling,
        single_issuer: !disabled.single_issuer,
        coop_taskrun: options.task_work != TaskWork::Interrupting && !disabled.coop_taskrun && !polling,
        submission_polling: polling,
        ..Features::default()
    };
    // Deferred task work needs a single issuer.
    features.defer_taskrun &= features.single_issuer;
    let mut submit_all = true;
    loop {
        features.task_work_flag = features.coop_taskrun;
        match build(options, &features, submit_all) {
            Ok(ring) => return Ok((ring, features)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                if features.no_sqarray {
                    features.no_sqarray = false;
                } else if features.defer_taskrun {
                    features.defer_taskrun = false;
                } else if features.single_issuer {
                    features.single_issuer = false;
                } else if features.coop_taskrun {
                    features.coop_taskrun = false;
                } else if submit_all {
                    submit_all = false;
                } else {
                    return Err(unsupported_flags_error(options, &error));
                }
            }
            Err(error) => return Err(setup_error(error)),
        }
    }
}

/// The kernel refuses even the oldest flags.
fn unsupported_flags_error(options: &DriverOptions, error: &io::Error) -> io::Error {
    match options.submission_polling.and_then(|polling| polling.core) {
        Some(core) => io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "submission polling cannot run on core {core}: choose one of this machine (io_uring: {error})"
            ),
        ),
        None => io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "this kernel's io_uring is too old: use a newer kernel, or the epoll driver (io_uring: {error})"
            ),
        ),
    }
}

fn build(options: &DriverOptions, features: &Features, submit_all: bool) -> io::Result<Ring> {
    let mut parameters = io_uring_params::default();
    parameters.cq_entries = options.cq_entries.max(options.sq_entries).max(1);
    parameters.flags = IoringSetupFlags::CLAMP | IoringSetupFlags::CQSIZE;
    parameters.flags.set(IoringSetupFlags::SUBMIT_ALL, submit_all);
    parameters.flags.set(IoringSetupFlags::NO_SQARRAY, features.no_sqarray);
    parameters.flags.set(IoringSetupFlags::SINGLE_ISSUER, features.single_issuer);
    parameters.flags.set(IoringSetupFlags::DEFER_TASKRUN, features.defer_taskrun);
    let cooperative = IoringSetupFlags::COOP_TASKRUN | IoringSetupFlags::TASKRUN_FLAG;
    parameters.flags.set(cooperative, features.coop_taskrun);
    if let Some(polling) = options.submission_polling {
        parameters.flags |= IoringSetupFlags::SQPOLL;
        parameters.sq_thread_idle = polling.idle_ms;
        if let Some(core) = polling.core {
            parameters.flags |= IoringSetupFlags::SQ_AFF;
            parameters.sq_thread_cpu = core;
        }
    }
    Ring::new(options.sq_entries.max(1), parameters)
}

/// What a refusal of `io_uring_setup(2)` means and what to do about it.
fn setup_error(error: io::Error) -> io::Error {
    let advice = match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "the kernel has no io_uring, or a seccomp filter hides it: allow io_uring_setup, io_uring_enter and \
             io_uring_register, or use the epoll driver"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here by seccomp or by the sysctl kernel.io_uring_disabled: allow io_uring_setup, \
             io_uring_enter and io_uring_register in the container's profile, set the sysctl to 0, or use the epoll \
             driver"
        }
        Some(libc::ENOMEM) => {
            "no memory for the ring: raise the limit of locked memory (ulimit -l), or use the epoll driver"
        }
        Some(libc::EMFILE | libc::ENFILE) => "no descriptors left: raise the limit of open files (ulimit -n)",
        _ => "io_uring could not be set up: use the epoll driver",
    };
    with_advice(error, advice)
}

/// The error with its number kept in the text, and the remedy.
fn with_advice(error: io::Error, advice: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{advice} (io_uring: {error})"))
}

/// Nothing here is meant for kernel worker threads; a few for what cannot do without.
fn limit_io_wq_workers(ring: &Ring) {
    let mut max_workers = [4u32, 4];
    // SAFETY: two counts, which the kernel reads and writes during the call only.
    let limited =
        unsafe { ring.register(IoringRegisterOp::RegisterIowqMaxWorkers, max_workers.as_mut_ptr(), 2) };
    if let Err(error) = limited {
        tracing::debug!(%error, "io_uring worker threads are not limited on this kernel");
    }
}

/// `struct io_uring_probe`: which operations the kernel has.
#[repr(C)]
struct Opcodes {
    last: u8,
    count: u8,
    unused: [u16; 7],
    operations: [Operation; 256],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Operation {
    opcode: u8,
    unused: u8,
    flags: u16,
    unused2: u32,
}

impl Opcodes {
    fn probe(ring: &Ring) -> Self {
        let none = Operation { opcode: 0, unused: 0, flags: 0, unused2: 0 };
        let mut opcodes = Self { last: 0, count: 0, unused: [0; 7], operations: [none; 256] };
        // SAFETY: room for 256 operations, written during the call only.
        let probed = unsafe { ring.register(IoringRegisterOp::RegisterProbe, &raw mut opcodes, 256) };
        if let Err(error) = probed {
            tracing::debug!(%error, "this kernel does not tell its operations");
        }
        opcodes
    }

    fn has(&self, opcode: IoringOp) -> bool {
        const SUPPORTED: u16 = 1;
        self.operations[opcode as usize].flags & SUPPORTED != 0
    }
}

/// `struct io_uring_rsrc_register`: an empty table of files (Linux 5.19).
fn register_files(ring: &Ring) -> io::Result<()> {
    const SPARSE: u32 = 1;
    let table: [u32; 8] = [REGISTERED_FILES, SPARSE, 0, 0, 0, 0, 0, 0];
    // SAFETY: one registration of the size that is named, read during the call only.
    unsafe { ring.register(IoringRegisterOp::RegisterFiles2, table.as_ptr(), size_of_val(&table) as u32) }?;
    Ok(())
}

/// `struct io_uring_files_update`: one place of that table.
#[repr(C)]
pub(super) struct FilesUpdate {
    offset: u32,
    unused: u32,
    descriptors: u64,
}

impl FilesUpdate {
    /// The descriptor is read when the update is registered.
    pub fn new(offset: u32, descriptor: &i32) -> Self {
        Self { offset, unused: 0, descriptors: std::ptr::from_ref(descriptor) as u64 }
    }
}

/// Registers the receive ring; pools without one where the kernel has none.
fn buffer_ring(ring: &Ring, options: &DriverOptions) -> Rc<Pools> {
    if options.disabled_features.buffer_ring {
        return Pools::new(None);
    }
    let (initial, limit) = (options.initial_receive_buffers, options.max_receive_buffers);
    let Some(buffers) = BufferRing::new(initial, limit, options.receive_buffer_bytes) else {
        tracing::debug!("no address space for receive buffers: receiving on readiness");
        return Pools::new(None);
    };
    if buffers.limit() < limit {
        tracing::debug!(limit = buffers.limit(), "fewer receive buffers than asked for");
    }
    let mut registration = io_uring_buf_reg::default();
    registration.ring_addr = (buffers.entries_address() as *mut std::ffi::c_void).into();
    registration.ring_entries = buffers.limit();
    registration.bgid = BUFFER_GROUP;
    // SAFETY: the entries stay where they are until the pools are dropped, which the driver does after the ring.
    match unsafe { ring.register(IoringRegisterOp::RegisterPbufRing, &raw const registration, 1) } {
        Ok(_) => Pools::new(Some(buffers)),
        Err(error) => {
            tracing::debug!(%error, "no buffer ring on this kernel: receiving on readiness");
            Pools::new(None)
        }
    }
}

/// Whether multishot receive works: opcode probing does not say, so it is tried on a pair of sockets.
fn supports_multishot_recv(ring: &mut Ring, pools: &Rc<Pools>) -> bool {
    probe_multishot_recv(ring, pools).unwrap_or_else(|error| {
        tracing::debug!(%error, "multishot receive could not be tried: receiving one message at a time");
        false
    })
}

/// Receives one byte, then cancels; nothing else uses the ring yet.
fn probe_multishot_recv(ring: &mut Ring, pools: &Rc<Pools>) -> io::Result<bool> {
    const RECEIVE: u64 = 1;
    const CANCEL: u64 = 2;
    let (mut near, far) = UnixStream::pair()?;
    near.write_all(b"?")?;
    let receive = Sqe::receive(File::Descriptor(far.as_raw_fd()), BUFFER_GROUP, true);
    ring.push(receive.with_user_data(RECEIVE));
    let mut works = false;
    loop {
        let Some(completion) = ring.completion() else {
            ring.enter(Wait::Forever)?;
            continue;
        };
        if completion.user_data != RECEIVE {
            continue;
        }
        let flags = IoringCqeFlags::from_bits_retain(completion.flags as _);
        if flags.contains(IoringCqeFlags::BUFFER) {
            drop(
                pools
                    .filled((completion.flags >> 16) as u16, usize::try_from(completion.result).unwrap_or(0)),
            );
        }
        if !flags.contains(IoringCqeFlags::MORE) {
            // A late completion of the cancellation finds no owner in the driver either.
            return Ok(works);
        }
        works |= completion.result == 1;
        ring.push(Sqe::cancel(RECEIVE).with_user_data(CANCEL));
    }
}

/// The oldest kernel on which sends that complete at submission are tested. From Linux 5.19 until 6.0.3, such a send reports
/// `EAGAIN` after a part of the message was sent, and the count of that is lost.
const OLDEST_TESTED: (u32, u32) = (6, 1);

/// Whether a kernel of this release, as uname(2) reports it, is recent enough for sends that complete at submission.
fn is_tested_release(release: &CStr) -> bool {
    let release = release.to_string_lossy();
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= OLDEST_TESTED,
        _ => false,
    }
}

/// Whether the result of a send of more than the socket takes is the count of what was sent.
fn is_short_count(result: i32, message_bytes: usize) -> bool {
    usize::try_from(result).is_ok_and(|count| (1..message_bytes).contains(&count))
}

/// Whether a send that completes at submission says so when not all was taken: what the driver builds on, tried with more
/// than a socket takes.
fn reports_short_inline_sends(ring: &mut Ring) -> bool {
    probe_short_inline_send(ring).unwrap_or_else(|error| {
        tracing::debug!(%error, "a short send could not be tried: each send has a completion of its own");
        false
    })
}

fn probe_short_inline_send(ring: &mut Ring) -> io::Result<bool> {
    const SEND: u64 = 3;
    const MESSAGE_BYTES: usize = 1 << 20;
    let (near, _far) = UnixStream::pair()?;
    let near_socket = socket2::SockRef::from(&near);
    near_socket.set_send_buffer_size(1)?;
    let message = vec![0u8; MESSAGE_BYTES];
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let send = Sqe::send(File::Descriptor(near.as_raw_fd()), message.as_ptr(), MESSAGE_BYTES as u32, flags);
    let submission_index = ring.submission_index();
    ring.push(send.skip_success_cqe().with_user_data(SEND));
    loop {
        ring.enter(Wait::No)?;
        while let Some(completion) = ring.completion() {
            if completion.user_data == SEND {
                return Ok(is_short_count(completion.result, MESSAGE_BYTES));
            }
        }
        if ring.has_consumed(submission_index) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_at_submission_need_linux_6_1() {
        for release in
            [c"6.1.0-31-amd64", c"6.1", c"6.12.43+deb12-cloud-amd64", c"6.18.44-fc-v669", c"7.0-rc1"]
        {
            assert!(is_tested_release(release), "{release:?}");
        }
        for release in [c"5.19.17", c"6.0.2", c"6.0.12-200.fc36", c"5.15.0-1", c"", c"6", c"mainline"] {
            assert!(!is_tested_release(release), "{release:?}");
        }
    }

    #[test]
    fn short_send_must_report_its_count() {
        assert!(is_short_count(1, 100) && is_short_count(99, 100));
        // All of it was sent, nothing was, or the count was lost.
        assert!(!is_short_count(100, 100) && !is_short_count(0, 100));
        assert!(!is_short_count(-libc::EAGAIN, 100));
    }
}
