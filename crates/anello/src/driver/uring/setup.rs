//! Setting a ring up: the best flags that the kernel takes, and what it turns out to be able to do.
//!
//! ```text
//!  flags of set-up (EINVAL: down one step)            tried or asked for at the start
//!  NO_SQARRAY                    6.6                  multishot receive   6.0   by receiving once from a socket pair
//!  DEFER_TASKRUN                 6.1                  buffer ring         5.19  by registering one
//!  SINGLE_ISSUER                 6.0                  SEND_ZC, MSG_RING   6.0, 5.18  by probing the opcodes
//!  COOP_TASKRUN, TASKRUN_FLAG    5.19                 registered ring     5.18  by registering
//!  SUBMIT_ALL                    5.18                 CQE_SKIP_SUCCESS    5.17  by feature bit
//!  CQSIZE, CLAMP                 5.6                  floor: EXT_ARG 5.11, multishot poll 5.13
//! ```

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::io_uring::{IoringRegisterOp, io_uring_register, io_uring_rsrc_update};

use super::super::buffer::{BufferRing, Pools};
use super::super::options::{DriverOptions, Sends, TaskWork};
use super::{BUFFER_GROUP, REGISTERED_FILES};

/// What this ring does, after set-up and trials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub(crate) no_submission_array: bool,
    pub(crate) deferred_task_work: bool,
    pub(crate) single_issuer: bool,
    pub(crate) cooperative_task_work: bool,
    /// The kernel says in shared memory when there is work to run.
    pub(crate) task_work_flag: bool,
    pub(crate) submission_polling: bool,
    pub(crate) multishot_accept: bool,
    pub(crate) multishot_receive: bool,
    pub(crate) buffer_ring: bool,
    pub(crate) completion_skip: bool,
    pub(crate) sends_at_submission: bool,
    pub(crate) zero_copy: bool,
    pub(crate) message_ring: bool,
    pub(crate) registered_ring: bool,
    pub(crate) registered_files: bool,
}

impl Features {
    /// Each feature with its name and whether it is used.
    pub fn named(&self) -> [(&'static str, bool); 14] {
        [
            ("no-sqarray", self.no_submission_array),
            ("defer-taskrun", self.deferred_task_work),
            ("single-issuer", self.single_issuer),
            ("coop-taskrun", self.cooperative_task_work),
            ("sqpoll", self.submission_polling),
            ("multishot-accept", self.multishot_accept),
            ("multishot-recv", self.multishot_receive),
            ("buffer-ring", self.buffer_ring),
            ("cqe-skip", self.completion_skip),
            ("send-at-submission", self.sends_at_submission),
            ("send-zc", self.zero_copy),
            ("msg-ring", self.message_ring),
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

pub(super) struct Ring {
    pub ring: IoUring,
    pub registered_ring: Option<RawFd>,
    pub features: Features,
    pub pools: Rc<Pools>,
}

/// Builds the ring on the calling thread, which will own it.
pub(super) fn ring(options: &DriverOptions) -> io::Result<Ring> {
    let (ring, mut features) = climb(options)?;
    let parameters = ring.params();
    if !parameters.is_feature_ext_arg() || !parameters.is_feature_resource_tagging() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel's io_uring is older than Linux 5.13: use a newer kernel, or the epoll driver",
        ));
    }
    let without = &options.without;
    limit_workers(&ring);

    let mut probe = Probe::new();
    if ring.submitter().register_probe(&mut probe).is_ok() {
        features.zero_copy = probe.is_supported(opcode::SendZc::CODE) && !without.zero_copy;
        features.message_ring = probe.is_supported(opcode::MsgRingData::CODE) && !without.message_ring;
    }
    features.completion_skip = parameters.is_feature_skip_cqe_on_success() && !without.completion_skip;
    features.sends_at_submission = features.completion_skip
        && options.sends == Sends::AtSubmission
        && options.submission_polling.is_none();

    let pools = buffer_ring(&ring, options);
    features.buffer_ring = pools.ring().is_some();
    features.multishot_accept = features.buffer_ring && !without.multishot_accept;
    features.multishot_receive = features.buffer_ring
        && !options.one_shot_receive
        && !without.multishot_receive
        && receives_many(&ring, &pools);
    if options.registered_files {
        ring.submitter().register_files_sparse(REGISTERED_FILES).map_err(|error| {
            explain(error, "registering files failed: raise the limit of open files (ulimit -n 20000)")
        })?;
        features.registered_files = true;
    }
    let registered_ring = if without.registered_ring { None } else { register_ring(&ring) };
    features.registered_ring = registered_ring.is_some();
    Ok(Ring { ring, registered_ring, features, pools })
}

/// Down the ladder until the kernel takes the flags.
fn climb(options: &DriverOptions) -> io::Result<(IoUring, Features)> {
    let without = &options.without;
    let polling = options.submission_polling.is_some();
    let mut features = Features {
        no_submission_array: !without.no_submission_array,
        deferred_task_work: options.task_work == TaskWork::Deferred
            && !without.deferred_task_work
            && !polling,
        single_issuer: !without.single_issuer,
        cooperative_task_work: options.task_work != TaskWork::Interrupting
            && !without.cooperative_task_work
            && !polling,
        submission_polling: polling,
        ..Features::default()
    };
    // Deferred task work needs a single issuer.
    features.deferred_task_work &= features.single_issuer;
    let mut submit_all = true;
    loop {
        features.task_work_flag = features.cooperative_task_work;
        match build(options, &features, submit_all) {
            Ok(ring) => return Ok((ring, features)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                if features.no_submission_array {
                    features.no_submission_array = false;
                } else if features.deferred_task_work {
                    features.deferred_task_work = false;
                } else if features.single_issuer {
                    features.single_issuer = false;
                } else if features.cooperative_task_work {
                    features.cooperative_task_work = false;
                } else if submit_all {
                    submit_all = false;
                } else {
                    return Err(unknown_flags(options, &error));
                }
            }
            Err(error) => return Err(refused(error)),
        }
    }
}

/// The kernel refuses even the oldest flags.
fn unknown_flags(options: &DriverOptions, error: &io::Error) -> io::Error {
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

fn build(options: &DriverOptions, features: &Features, submit_all: bool) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(options.completion_entries.max(options.submission_entries)).dontfork();
    if submit_all {
        builder.setup_submit_all();
    }
    if features.no_submission_array {
        builder.setup_no_sqarray();
    }
    if features.single_issuer {
        builder.setup_single_issuer();
    }
    if features.deferred_task_work {
        builder.setup_defer_taskrun();
    }
    if features.cooperative_task_work {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    if let Some(polling) = options.submission_polling {
        builder.setup_sqpoll(polling.idle_ms);
        if let Some(core) = polling.core {
            builder.setup_sqpoll_cpu(core);
        }
    }
    builder.build(options.submission_entries.max(1))
}

/// What a refusal of `io_uring_setup(2)` means and what to do about it.
fn refused(error: io::Error) -> io::Error {
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
    explain(error, advice)
}

/// The error with its number kept in the text, and the remedy.
fn explain(error: io::Error, advice: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{advice} (io_uring: {error})"))
}

/// Nothing here is meant for kernel worker threads; a few for what cannot do without.
fn limit_workers(ring: &IoUring) {
    if let Err(error) = ring.submitter().register_iowq_max_workers(&mut [4, 4]) {
        tracing::debug!(%error, "io_uring worker threads are not limited on this kernel");
    }
}

/// Registers the receive ring; pools without one where the kernel has none.
fn buffer_ring(ring: &IoUring, options: &DriverOptions) -> Rc<Pools> {
    if options.without.buffer_ring {
        return Pools::new(None);
    }
    let buffers =
        BufferRing::new(options.receive_buffers, options.receive_buffers_limit, options.receive_buffer_bytes);
    let (address, entries) = (buffers.entries_address(), buffers.limit() as u16);
    // SAFETY: the entries stay where they are until the pools are dropped, which the driver does after the ring.
    match unsafe { ring.submitter().register_buf_ring_with_flags(address, entries, BUFFER_GROUP, 0) } {
        Ok(()) => Pools::new(Some(buffers)),
        Err(error) => {
            tracing::debug!(%error, "no buffer ring on this kernel: receiving on readiness");
            Pools::new(None)
        }
    }
}

/// Whether multishot receive works: opcode probing does not say, so it is tried on a pair of sockets.
fn receives_many(ring: &IoUring, pools: &Rc<Pools>) -> bool {
    trial(ring, pools).unwrap_or_else(|error| {
        tracing::debug!(%error, "multishot receive could not be tried: receiving one message at a time");
        false
    })
}

fn trial(ring: &IoUring, pools: &Rc<Pools>) -> io::Result<bool> {
    const RECEIVE: u64 = 1;
    const CANCEL: u64 = 2;
    let (mut near, far) = UnixStream::pair()?;
    near.write_all(b"?")?;
    submit(
        ring,
        &opcode::RecvMulti::new(types::Fd(far.as_raw_fd()), BUFFER_GROUP).build().user_data(RECEIVE),
    )?;
    let mut works = false;
    loop {
        // SAFETY: no other view of the completion queue is alive.
        let completion = unsafe { ring.completion_shared() }.next();
        let Some(completion) = completion else {
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                // Interrupted or not, the queue tells what happened.
                _ => continue,
            }
        };
        if completion.user_data() != RECEIVE {
            continue;
        }
        let flags = completion.flags();
        if let Some(id) = cqueue::buffer_select(flags) {
            drop(pools.filled(id, usize::try_from(completion.result()).unwrap_or(0)));
        }
        if !cqueue::more(flags) {
            // A late completion of the cancellation finds no owner in the driver either.
            return Ok(works);
        }
        works |= completion.result() == 1;
        submit(ring, &opcode::AsyncCancel::new(RECEIVE).build().user_data(CANCEL))?;
    }
}

/// Puts an entry into the queue of a ring that nothing else uses yet.
fn submit(ring: &IoUring, entry: &squeue::Entry) -> io::Result<()> {
    // SAFETY: no other view of the submission queue is alive; the entry names nothing that ends before the operation.
    unsafe { ring.submission_shared().push(entry) }.map_err(|_| io::Error::other("the queue is full"))
}

/// Registers the ring's own descriptor (Linux 5.18); its index, if the kernel gave one.
fn register_ring(ring: &IoUring) -> Option<RawFd> {
    let mut update = io_uring_rsrc_update::default();
    update.offset = u32::MAX;
    update.data = (ring.as_raw_fd() as usize as *mut std::ffi::c_void).into();
    // SAFETY: the descriptor is open as long as `ring`.
    let descriptor = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    // SAFETY: the argument is one update, which the kernel reads and writes during the call.
    let registered = unsafe {
        io_uring_register(descriptor, IoringRegisterOp::RegisterRingFds, (&raw mut update).cast(), 1)
    };
    match registered {
        Ok(1) => RawFd::try_from(update.offset).ok(),
        _ => None,
    }
}
