//! Ring setup: selects the best flags that the kernel supports and probes its features.
//!
//! ```text
//!  setup flags (on EINVAL, the next one is removed)   features probed or requested at startup
//!  NO_SQARRAY                    6.6                  multishot receive   6.0   by receiving once from a socket pair
//!  DEFER_TASKRUN                 6.1                  buffer ring         5.19  by registering one
//!  SINGLE_ISSUER                 6.0                  SEND_ZC, MSG_RING   6.0, 5.18  by probing the opcodes
//!  COOP_TASKRUN, TASKRUN_FLAG    5.19                 registered ring     5.18  by registering
//!  SUBMIT_ALL                    5.18                 CQE_SKIP_SUCCESS    5.17  by feature bit
//!  CQSIZE, CLAMP                 5.6                  inline send         5.17  by overfilling a socket buffer
//!                                                     minimum wait time   6.12  by feature bit, if requested
//!                                                                               (requires DEFER_TASKRUN)
//!                                                     minimum: EXT_ARG 5.11, multishot poll 5.13
//! ```

use std::collections::VecDeque;
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

use super::ring::Ring;
use super::sqe::Sqe;
use crate::driver::errors::context::{with_context, with_text};
use crate::driver::errors::log::log_event;
use crate::driver::kernel::op::Wait;
use crate::driver::memory::buffer::{BufferRing, Pools};
use crate::driver::settings::options::{DriverOptions, TaskWork};
use crate::driver::wait::batch_wait::BatchWait;
use crate::driver::wake::notifier::Notifier;

/// Buffer group ID of the receive ring.
pub(super) const BUFFER_GROUP: u16 = 0;

/// `IORING_FEAT_MIN_TIMEOUT` (6.12).
const MIN_TIMEOUT: IoringFeatureFlags = IoringFeatureFlags::from_bits_retain(1 << 15);

/// The features of a ring, after setup and probing.
#[derive(Debug, Default)]
pub(crate) struct Features {
    pub setup: IoringSetupFlags,
    pub multishot_accept: bool,
    pub multishot_receive: bool,
    pub buffer_ring: bool,
    pub cqe_skip: bool,
    pub inline_sends: bool,
    pub zero_copy: bool,
    pub msg_ring: bool,
    pub registered_ring: bool,
    pub min_wait: bool,
}

impl Features {
    /// Returns the name of each feature, and whether it is used.
    pub fn named(&self) -> [(&'static str, bool); 14] {
        [
            ("no-sqarray", self.setup.contains(IoringSetupFlags::NO_SQARRAY)),
            ("defer-taskrun", self.setup.contains(IoringSetupFlags::DEFER_TASKRUN)),
            ("single-issuer", self.setup.contains(IoringSetupFlags::SINGLE_ISSUER)),
            ("coop-taskrun", self.setup.contains(IoringSetupFlags::COOP_TASKRUN)),
            ("sqpoll", self.setup.contains(IoringSetupFlags::SQPOLL)),
            ("multishot-accept", self.multishot_accept),
            ("multishot-recv", self.multishot_receive),
            ("buffer-ring", self.buffer_ring),
            ("cqe-skip", self.cqe_skip),
            ("send-at-submission", self.inline_sends),
            ("send-zc", self.zero_copy),
            ("msg-ring", self.msg_ring),
            ("registered-ring", self.registered_ring),
            ("min-wait", self.min_wait),
        ]
    }
}

/// Formats the names of the features in use, separated by commas.
impl fmt::Display for Features {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used: Vec<_> = self.named().into_iter().filter(|(_, used)| *used).map(|(name, _)| name).collect();
        formatter.write_str(&used.join(","))
    }
}

/// Opens a ring that the calling thread owns.
pub(super) fn ring(options: &DriverOptions) -> io::Result<(Ring, Features, Rc<Pools>)> {
    let mut ring = open_with_best_flags(options)?;
    let mut features = Features { setup: ring.parameters.flags, ..Features::default() };
    let kernel = ring.parameters.features;
    if !kernel.contains(IoringFeatureFlags::EXT_ARG | IoringFeatureFlags::RSRC_TAGS) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring requires Linux 5.13 or later (upgrade the kernel or use the epoll driver)",
        ));
    }
    let disabled = &options.testing.disabled_features;
    limit_io_wq_workers(&ring);

    let is_supported = probe_opcodes(&ring);
    features.zero_copy = is_supported(IoringOp::SendZc) && !disabled.zero_copy;
    features.msg_ring = is_supported(IoringOp::MsgRing) && !disabled.msg_ring;
    features.cqe_skip = kernel.contains(IoringFeatureFlags::CQE_SKIP) && !disabled.cqe_skip;
    features.inline_sends = features.cqe_skip
        && options.submission_polling.is_none()
        && is_tested_release(rustix::system::uname().release())
        && log_failed_probe(reports_short_inline_sends(&mut ring), "inline sends");

    let pools = buffer_ring(&ring, options);
    features.buffer_ring = pools.ring.is_some();
    features.multishot_accept = features.buffer_ring && !disabled.multishot_accept;
    features.multishot_receive = features.buffer_ring
        && !disabled.multishot_receive
        && log_failed_probe(supports_multishot_recv(&mut ring, &pools), "multishot receive");
    // Without deferred task work, Linux before 6.19 (fixed in stable releases) does not wake the worker for an event that
    // arrives after the minimum wait time ("io_uring: fix min_wait wakeups for SQPOLL").
    if kernel.contains(MIN_TIMEOUT) && features.setup.contains(IoringSetupFlags::DEFER_TASKRUN) {
        ring.batch = BatchWait::new(options.max_batch_delay);
    }
    features.min_wait = ring.batch.is_on();
    features.registered_ring = !disabled.registered_ring && ring.register_itself();
    Ok((ring, features, pools))
}

/// Opens a ring with the best flags, removing one at a time until the kernel accepts the rest.
fn open_with_best_flags(options: &DriverOptions) -> io::Result<Ring> {
    let disabled = &options.testing.disabled_features;
    let has_task_work_flags = options.submission_polling.is_none();
    let defers = has_task_work_flags && options.task_work == TaskWork::Deferred && !disabled.defer_taskrun;
    let cooperates = has_task_work_flags && !disabled.coop_taskrun;
    // The newest flags come first.
    let mut optional = VecDeque::from([
        (IoringSetupFlags::NO_SQARRAY, !disabled.no_sqarray),
        // Deferred task work requires a single issuer.
        (IoringSetupFlags::DEFER_TASKRUN, defers && !disabled.single_issuer),
        (IoringSetupFlags::SINGLE_ISSUER, !disabled.single_issuer),
        (IoringSetupFlags::COOP_TASKRUN | IoringSetupFlags::TASKRUN_FLAG, cooperates),
        (IoringSetupFlags::SUBMIT_ALL, true),
    ]);
    optional.retain(|(_, is_wanted)| *is_wanted);
    let mut parameters = io_uring_params::default();
    parameters.cq_entries = options.testing.cq_entries.max(options.testing.sq_entries).max(1);
    let mut required = IoringSetupFlags::CLAMP | IoringSetupFlags::CQSIZE;
    // Keeps the other ring open during the setup.
    let shared = options.polling_thread_of.as_ref().and_then(Notifier::ring);
    if let Some(polling) = options.submission_polling {
        required |= IoringSetupFlags::SQPOLL;
        if let Some(shared) = &shared {
            required |= IoringSetupFlags::ATTACH_WQ;
            parameters.wq_fd = shared.as_raw_fd();
        }
        parameters.sq_thread_idle = polling.idle_ms;
        if let Some(core) = polling.core {
            required |= IoringSetupFlags::SQ_AFF;
            parameters.sq_thread_cpu = core;
        }
    }
    loop {
        parameters.flags = optional.iter().fold(required, |flags, (flag, _)| flags | *flag);
        match Ring::new(options.testing.sq_entries.max(1), parameters) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(setup_error(error)),
            Err(error) if optional.pop_front().is_none() => {
                return Err(unsupported_flags_error(required, options, error));
            }
            Err(_) => {}
            opened => return opened,
        }
    }
}

/// Returns the error for a kernel that rejects even the oldest flags.
fn unsupported_flags_error(
    required: IoringSetupFlags,
    options: &DriverOptions,
    error: io::Error,
) -> io::Error {
    let (kind, text) = if required.contains(IoringSetupFlags::ATTACH_WQ) {
        (
            io::ErrorKind::InvalidInput,
            format!(
                "cannot share an SQPOLL thread: {error} (set submission_polling for the other ring as well)"
            ),
        )
    } else if let Some(core) = options.submission_polling.and_then(|polling| polling.core) {
        (
            io::ErrorKind::InvalidInput,
            format!("cannot pin the SQPOLL thread to core {core}: {error} (choose an online core)"),
        )
    } else {
        (
            io::ErrorKind::Unsupported,
            format!("io_uring is too old: {error} (upgrade the kernel or use the epoll driver)"),
        )
    };
    with_text(kind, text, error)
}

/// Adds the likely cause and a remedy to an error from `io_uring_setup(2)`.
fn setup_error(error: io::Error) -> io::Error {
    let advice = match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "io_uring unavailable: not in the kernel, or hidden by seccomp (allow io_uring_setup, io_uring_enter and \
             io_uring_register, or use the epoll driver)"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring not permitted: denied by seccomp or by the sysctl kernel.io_uring_disabled (allow \
             io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile, set the \
             sysctl to 0, or use the epoll driver)"
        }
        Some(libc::ENOMEM) => {
            "cannot allocate the ring: locked-memory limit reached (raise ulimit -l or use the epoll driver)"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "cannot open the ring: file descriptors exhausted (raise ulimit -n)"
        }
        _ => "cannot set up io_uring (use the epoll driver)",
    };
    with_context(advice, error)
}

/// Limits the kernel to a few worker threads. Of the driver's operations, normally only writes to the page cache use
/// them, and those of a file exclude each other.
fn limit_io_wq_workers(ring: &Ring) {
    let mut max_workers = [4u32, 4];
    // SAFETY: the argument points to an array of two counts, which the kernel reads and writes only during the call.
    let limited =
        unsafe { ring.register(IoringRegisterOp::RegisterIowqMaxWorkers, max_workers.as_mut_ptr(), 2) };
    if let Err(error) = limited {
        log_event!(DEBUG, %error, "cannot limit io_uring worker threads on this kernel");
    }
}

/// Probes the operations of the kernel. Returns a function that reports whether an operation is supported.
fn probe_opcodes(ring: &Ring) -> impl Fn(IoringOp) -> bool + use<> {
    const SUPPORTED: u16 = 1;
    // `struct io_uring_probe`: a header of 16 bytes, then 8 bytes per operation, of which bytes 2 and 3 are its flags.
    let mut probe = [[0u8; 8]; 2 + 256];
    // SAFETY: the argument has room for 256 operations and is only written during the call.
    let probed = unsafe { ring.register(IoringRegisterOp::RegisterProbe, probe.as_mut_ptr(), 256) };
    if let Err(error) = probed {
        log_event!(DEBUG, %error, "cannot probe which io_uring operations this kernel supports");
    }
    move |opcode| {
        let [_, _, first, second, ..] = probe[2 + opcode as usize];
        u16::from_ne_bytes([first, second]) & SUPPORTED != 0
    }
}

/// Registers the receive ring. Returns pools without a ring if the kernel does not support buffer rings.
fn buffer_ring(ring: &Ring, options: &DriverOptions) -> Rc<Pools> {
    if options.testing.disabled_features.buffer_ring {
        return Pools::new(None);
    }
    let (initial, limit) = (options.testing.initial_receive_buffers, options.max_receive_buffers);
    let Some(buffers) = BufferRing::new(initial, limit, options.receive_buffer_bytes) else {
        log_event!(DEBUG, "cannot reserve address space for receive buffers; receiving with poll and recv");
        return Pools::new(None);
    };
    if buffers.limit() < limit {
        log_event!(DEBUG, limit = buffers.limit(), "using fewer receive buffers than requested");
    }
    let mut registration = io_uring_buf_reg::default();
    registration.ring_addr = (buffers.entries_address() as *mut std::ffi::c_void).into();
    registration.ring_entries = buffers.limit();
    registration.bgid = BUFFER_GROUP;
    // SAFETY: the entries do not move until the pools are dropped, which happens after the ring is dropped.
    match unsafe { ring.register(IoringRegisterOp::RegisterPbufRing, &raw const registration, 1) } {
        Ok(_) => Pools::new(Some(buffers)),
        Err(error) => {
            log_event!(DEBUG, %error, "cannot register a buffer ring; receiving with poll and recv");
            Pools::new(None)
        }
    }
}

/// Returns the result of a probe, or `false` if it failed.
fn log_failed_probe(works: io::Result<bool>, feature: &str) -> bool {
    works.unwrap_or_else(|error| {
        log_event!(DEBUG, %error, "cannot test {feature} on this kernel; not using it");
        false
    })
}

/// Returns `true` if multishot receive works, which opcode probing does not report. Receives one byte from a socket
/// pair and cancels the receive. No other operation uses the ring at this point.
fn supports_multishot_recv(ring: &mut Ring, pools: &Rc<Pools>) -> io::Result<bool> {
    const RECEIVE: u64 = 1;
    const CANCEL: u64 = 2;
    let (mut near, far) = UnixStream::pair()?;
    near.write_all(b"?")?;
    let receive = Sqe::receive(far.as_raw_fd(), BUFFER_GROUP, true);
    ring.push(receive.with_user_data(RECEIVE));
    let (mut works, mut in_flight) = (false, 1);
    // Also waits for the completion of the cancellation, which the driver would count as one of an unknown operation.
    while in_flight > 0 {
        let Some(completion) = ring.completion() else {
            ring.enter(Wait::Forever)?;
            continue;
        };
        let flags = IoringCqeFlags::from_bits_retain(completion.flags as _);
        if flags.contains(IoringCqeFlags::BUFFER) {
            let length = usize::try_from(completion.result).unwrap_or(0);
            drop(pools.filled((completion.flags >> 16) as u16, length));
        }
        if !flags.contains(IoringCqeFlags::MORE) {
            in_flight -= 1;
            continue;
        }
        works |= completion.result == 1;
        ring.push(Sqe::cancel(RECEIVE).with_user_data(CANCEL));
        in_flight += 1;
    }
    Ok(works)
}

/// Returns `true` if this kernel release, as reported by uname(2), is 6.1 or later. Inline sends are not tested on
/// older kernels. From Linux 5.19 to 6.0.3, an inline send reports `EAGAIN` after part of the message was sent, and the
/// number of bytes sent is lost.
fn is_tested_release(release: &CStr) -> bool {
    let release = release.to_string_lossy();
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 1),
        _ => false,
    }
}

/// Returns `true` if the result of a send larger than the socket buffer is the number of bytes sent.
fn is_short_count(result: i32, message_bytes: usize) -> bool {
    usize::try_from(result).is_ok_and(|count| (1..message_bytes).contains(&count))
}

/// Returns `true` if an inline send of a message larger than the socket buffer reports a short count.
fn reports_short_inline_sends(ring: &mut Ring) -> io::Result<bool> {
    const SEND: u64 = 3;
    const MESSAGE_BYTES: usize = 1 << 20;
    let (near, _far) = UnixStream::pair()?;
    let near_socket = socket2::SockRef::from(&near);
    near_socket.set_send_buffer_size(1)?;
    let message = vec![0u8; MESSAGE_BYTES];
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let send = Sqe::send(near.as_raw_fd(), message.as_ptr(), MESSAGE_BYTES as u32, flags);
    let submission_index = ring.submission_index();
    ring.push(send.skip_success_cqe().with_user_data(SEND));
    loop {
        ring.enter(Wait::None)?;
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
    use crate::driver::errors::context::raw_os_error;

    #[test]
    fn inline_sends_require_linux_6_1() {
        let recent =
            [c"6.1.0-31-amd64", c"6.1", c"6.12.43+deb12-cloud-amd64", c"6.18.44-fc-v669", c"7.0-rc1"];
        let old = [c"5.19.17", c"6.0.2", c"6.0.12-200.fc36", c"5.15.0-1", c"", c"6", c"mainline"];
        for release in recent.into_iter().chain(old) {
            assert_eq!(is_tested_release(release), recent.contains(&release), "{release:?}");
        }
    }

    #[test]
    fn setup_errors_keep_error_number() {
        for number in [libc::ENOSYS, libc::EPERM, libc::ENOMEM, libc::EMFILE, libc::EIO] {
            let error = setup_error(io::Error::from_raw_os_error(number));
            assert_eq!(raw_os_error(&error), Some(number), "{error}");
        }
        for flags in [IoringSetupFlags::ATTACH_WQ, IoringSetupFlags::empty()] {
            let error = io::Error::from_raw_os_error(libc::EINVAL);
            let error = unsupported_flags_error(flags, &DriverOptions::default(), error);
            assert_eq!(raw_os_error(&error), Some(libc::EINVAL), "{error}");
        }
    }

    #[test]
    fn short_send_result_must_be_partial_count() {
        // In the last three cases, the whole message was sent, no bytes were sent, or the count was lost.
        let cases = [(1, true), (99, true), (100, false), (0, false), (-libc::EAGAIN, false)];
        assert_eq!(cases.map(|(result, _)| is_short_count(result, 100)), cases.map(|(_, is_short)| is_short));
    }
}
