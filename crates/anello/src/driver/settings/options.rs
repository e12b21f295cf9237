//! Driver options: limits, and the io_uring modes and features to use.

use std::io;
use std::time::Duration;

use crate::driver::wake::notifier::Notifier;

/// Options for a driver.
///
/// The defaults are the values with the best measured performance.
///
/// ```
/// use anello::DriverOptions;
///
/// let options = DriverOptions::default().max_send_queue_bytes(256 * 1024).registered_files(true);
/// assert_eq!(options.max_send_queue_bytes, 256 * 1024);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverOptions {
    /// Number of entries in the submission queue. Further operations wait in a backlog; none are dropped.
    pub sq_entries: u32,
    /// Number of entries in the completion queue. The kernel keeps completions that do not fit.
    pub cq_entries: u32,
    /// Initial number of buffers in the receive ring. It doubles when the kernel runs out of buffers, and shrinks when at
    /// most a quarter of them have been in use for three seconds (Linux 6.8, with [`TaskWork::Deferred`]).
    pub initial_receive_buffers: u32,
    /// Maximum number of buffers in the receive ring (up to 32,768). While all of them are in use, bytes are received
    /// into other memory.
    pub max_receive_buffers: u32,
    /// Size of one receive buffer in bytes, from 64 bytes to 1 MiB; all buffers together are limited to 1 GiB. Streams
    /// with larger messages bypass the ring. Address space for `max_receive_buffers` buffers is reserved at startup. A
    /// page occupies memory from its first use until the ring shrinks or the runtime is dropped.
    pub receive_buffer_bytes: usize,
    /// Maximum number of received chunks per stream that the application has not yet taken. A stream stops receiving
    /// when it reaches the limit.
    pub max_received_chunks: usize,
    /// Maximum number of bytes per stream that have been accepted for sending but not yet taken by the kernel. A stream
    /// accepts no more bytes when it reaches the limit.
    pub max_send_queue_bytes: usize,
    /// Maximum number of connections per listener that the kernel has accepted but the application has not yet taken. A
    /// listener stops accepting when it reaches the limit.
    pub max_accept_queue: usize,
    /// Minimum size of messages that are sent immediately by a system call, while their bytes are in the CPU cache.
    ///
    /// Two kinds of data are sent immediately regardless of this threshold: data in pool buffers of 16 KiB or more
    /// outside the receive ring, because the pool keeps only a few of these buffers; and writes of more than 4096
    /// bytes, which would otherwise be copied (unlike sends, which transfer ownership of their buffers).
    ///
    /// On io_uring, shorter messages are submitted in the next turn. On epoll, messages of up to 4096 bytes are sent in
    /// the next turn if many sockets were ready at the same time
    /// ([`deferred_send_threshold_edges`](Self::deferred_send_threshold_edges)), and all others are sent immediately.
    pub direct_send_threshold_bytes: usize,
    /// If one epoll wait returns at least this number of readiness events, small messages are deferred and sent
    /// together by the next turn. With zero, small messages are always deferred; with `usize::MAX`, never. Values below
    /// the default have no benefit.
    pub deferred_send_threshold_edges: usize,
    /// Policy for zero-copy sends (`SEND_ZC`, Linux 6.0).
    pub zero_copy: ZeroCopy,
    /// Completion mode for sends on io_uring.
    pub send_completion: SendCompletion,
    /// Scheduling of the kernel's task work, which completes operations.
    pub task_work: TaskWork,
    /// Kernel thread that polls for submissions (`SQPOLL`), if enabled. Disables [`TaskWork::Deferred`] and
    /// [`SendCompletion::Inline`].
    pub submission_polling: Option<SubmissionPolling>,
    /// Whether each receive operation posts a single completion (`RECV` without multishot). A multishot
    /// receive occasionally leaves TCP urgent data unread until the peer's next bytes arrive (observed on Linux 6.1,
    /// 6.12 and 6.18); this mode avoids that.
    pub one_shot_receive: bool,
    /// Whether to use registered files instead of descriptors. Requires Linux 6.14: earlier kernels close registered
    /// files too late, and descriptors are used instead.
    pub registered_files: bool,
    /// Maximum time to spin before a blocking wait; zero disables spinning. The spin time is adaptive: while no work is
    /// found, it shrinks to a sixteenth of this value, except for one full spin after every sixteen spins without work.
    pub spin: Duration,
    /// Maximum time for which a worker without work delays events to handle several of them per wake-up; zero disables
    /// batching.
    ///
    /// Batching uses less CPU time per request while many clients are active, at the cost of latency. The number of
    /// events to wait for is adaptive: it follows the number that arrives within the delay. A worker that finds one
    /// event at a time, as with a single client, does not delay it. Timers are never delayed. The delay is rounded down
    /// to microseconds.
    ///
    /// Only on io_uring with [`TaskWork::Deferred`], without submission polling, and with Linux 6.12 or later
    /// (`IORING_FEAT_MIN_TIMEOUT`); otherwise, this option has no effect.
    pub max_batch_delay: Duration,
    /// Busy polling of network devices (NAPI, Linux 6.9), if enabled.
    ///
    /// If the kernel rejects it, the option has no effect: a warning is logged, and the features of the driver do not
    /// include `napi-busy-poll`.
    pub napi_polling: Option<NapiPolling>,
    /// A ring of this process whose SQPOLL thread the new ring uses, if both have one.
    pub(crate) polling_thread_of: Option<Notifier>,
    /// Kernel features to disable, as if the kernel were older. Used in tests and comparisons.
    pub disabled_features: DisabledFeatures,
}

setters!(DriverOptions {
    sq_entries: u32 = 256,
    cq_entries: u32 = 8192,
    initial_receive_buffers: u32 = 16,
    max_receive_buffers: u32 = 1024,
    receive_buffer_bytes: usize = 4096,
    max_received_chunks: usize = 4,
    max_send_queue_bytes: usize = 256 * 1024,
    max_accept_queue: usize = 64,
    direct_send_threshold_bytes: usize = 4096,
    deferred_send_threshold_edges: usize = 32,
    zero_copy: ZeroCopy = ZeroCopy::Never,
    send_completion: SendCompletion = SendCompletion::PerSend,
    task_work: TaskWork = TaskWork::Cooperative,
    submission_polling: Option<SubmissionPolling> = Some(SubmissionPolling::default().idle_ms(100)),
    one_shot_receive: bool = true,
    registered_files: bool = true,
    spin: Duration = Duration::from_micros(50),
    max_batch_delay: Duration = Duration::from_micros(100),
    napi_polling: Option<NapiPolling> = Some(NapiPolling::default()),
    disabled_features: DisabledFeatures = DisabledFeatures::default().zero_copy(true),
});

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            sq_entries: 512,
            cq_entries: 4096,
            initial_receive_buffers: 64,
            max_receive_buffers: 4096,
            receive_buffer_bytes: 16 * 1024,
            max_received_chunks: 16,
            max_send_queue_bytes: 64 * 1024,
            max_accept_queue: 256,
            direct_send_threshold_bytes: 16 * 1024 + 1,
            deferred_send_threshold_edges: 8,
            zero_copy: ZeroCopy::RemoteOnly { threshold_bytes: 64 * 1024 },
            send_completion: SendCompletion::Inline,
            task_work: TaskWork::Deferred,
            submission_polling: None,
            one_shot_receive: false,
            registered_files: false,
            spin: Duration::ZERO,
            max_batch_delay: Duration::ZERO,
            napi_polling: None,
            polling_thread_of: None,
            disabled_features: DisabledFeatures::default(),
        }
    }
}

/// Policy for zero-copy sends.
///
/// ```
/// use anello::{DriverOptions, ZeroCopy};
///
/// let options = DriverOptions::default();
/// assert_eq!(options.zero_copy, ZeroCopy::RemoteOnly { threshold_bytes: 64 * 1024 });
/// let options = options.zero_copy(ZeroCopy::Always { threshold_bytes: 256 * 1024 });
/// let runtime = anello::Runtime::builder().options(options).build()?;
/// # drop(runtime);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZeroCopy {
    /// No zero-copy sends.
    Never,
    /// Zero-copy sends for messages of at least `threshold_bytes` to peers on other machines. On loopback, the kernel
    /// would copy anyway.
    RemoteOnly {
        /// Minimum message size in bytes.
        threshold_bytes: usize,
    },
    /// Zero-copy sends for messages of at least `threshold_bytes` to any peer.
    Always {
        /// Minimum message size in bytes.
        threshold_bytes: usize,
    },
}

/// Completion mode for sends on io_uring.
///
/// ```
/// use anello::{DriverOptions, SendCompletion};
///
/// let options = DriverOptions::default();
/// assert_eq!(options.send_completion, SendCompletion::Inline);
/// let runtime = anello::Runtime::builder().options(options.send_completion(SendCompletion::PerSend)).build()?;
/// # drop(runtime);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendCompletion {
    /// Sends complete during the system call that submits them. Only a short or failed send posts a completion (Linux
    /// 5.17).
    Inline,
    /// Every send posts a completion.
    PerSend,
}

/// Scheduling of the kernel's task work, which completes operations.
///
/// ```
/// use anello::{DriverOptions, TaskWork};
///
/// let options = DriverOptions::default();
/// assert_eq!(options.task_work, TaskWork::Deferred);
/// let runtime = anello::Runtime::builder().options(options.task_work(TaskWork::Cooperative)).build()?;
/// # drop(runtime);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskWork {
    /// Task work runs when the worker requests completions (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// Task work runs at the next system call of the worker (`COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// Task work runs immediately and interrupts the worker.
    Interrupting,
}

/// A kernel thread that polls for submissions.
///
/// ```
/// use anello::{DriverOptions, SubmissionPolling};
///
/// // The kernel thread sleeps after 10 ms without submissions.
/// let polling = SubmissionPolling::default().idle_ms(10).core(Some(1));
/// let options = DriverOptions::default().submission_polling(Some(polling));
/// assert_eq!(options.submission_polling, Some(polling));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubmissionPolling {
    /// Idle time after which the thread sleeps, in milliseconds. With 0, the default, the kernel uses one second.
    pub idle_ms: u32,
    /// The core to pin the thread to.
    pub core: Option<u32>,
}

setters!(SubmissionPolling {
    idle_ms: u32 = 10,
    core: Option<u32> = Some(1),
});

/// Busy polling of network devices.
///
/// Before a worker sleeps, it polls the receive queues of the network devices that its sockets have received from, instead
/// of waiting for the interrupt of the device. This lowers the latency, and uses the CPU while the worker waits.
///
/// Requires Linux 6.9 with `CONFIG_NET_RX_BUSY_POLL`, and devices whose Linux driver supports NAPI, such as those of most
/// network cards and of virtio-net. Sockets on the loopback interface are not affected. On epoll, the kernel polls a single
/// queue per worker: the one that the last reported socket has received from.
///
/// ```
/// use anello::{DriverOptions, NapiPolling};
///
/// let polling = NapiPolling::default().max_us(50);
/// let options = DriverOptions::default().napi_polling(Some(polling));
/// assert_eq!(options.napi_polling, Some(polling));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NapiPolling {
    /// Maximum time to poll before the worker sleeps, in microseconds (default 50). Values above 10,000 are lowered to it,
    /// as io_uring does (observed on Linux 6.18).
    pub max_us: u32,
    /// Whether the worker's polling takes precedence over interrupts (`prefer_busy_poll`). The operator must also set
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` of the device; otherwise, interrupts are processed as usual.
    pub prefer: bool,
}

impl Default for NapiPolling {
    fn default() -> Self {
        Self { max_us: 50, prefer: false }
    }
}

setters!(NapiPolling { max_us: u32 = 100, prefer: bool = true });

impl NapiPolling {
    /// Returns the time in microseconds, at most that of io_uring.
    pub(in crate::driver) fn limited_us(self) -> u32 {
        self.max_us.min(10_000)
    }
}

/// Returns whether the kernel has enabled busy polling. Logs a warning otherwise.
pub(in crate::driver) fn log_rejected_napi(enabled: io::Result<()>) -> bool {
    if let Err(error) = &enabled {
        tracing::warn!(%error, "NAPI busy polling disabled: it requires Linux 6.9 with CONFIG_NET_RX_BUSY_POLL");
    }
    enabled.is_ok()
}

/// Kernel features to disable. Every fallback of the ring setup can be forced.
///
/// ```
/// use anello::{DisabledFeatures, DriverOptions};
///
/// // As on Linux 5.15.
/// let disabled = DisabledFeatures::default().multishot_accept(true).multishot_receive(true).buffer_ring(true);
/// let options = DriverOptions::default().disabled_features(disabled);
/// let runtime = anello::Runtime::builder().options(options).build()?;
/// # drop(runtime);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DisabledFeatures {
    /// Disables `NO_SQARRAY` (Linux 6.6).
    pub no_sqarray: bool,
    /// Disables `DEFER_TASKRUN` (Linux 6.1).
    pub defer_taskrun: bool,
    /// Disables `SINGLE_ISSUER` (Linux 6.0).
    pub single_issuer: bool,
    /// Disables `COOP_TASKRUN` and `TASKRUN_FLAG` (Linux 5.19).
    pub coop_taskrun: bool,
    /// Disables multishot receive (Linux 6.0).
    pub multishot_receive: bool,
    /// Disables multishot accept (Linux 5.19).
    pub multishot_accept: bool,
    /// Disables buffer rings (Linux 5.19). Data is then received with `recv(2)` when the socket is readable.
    pub buffer_ring: bool,
    /// Disables `MSG_RING` (Linux 5.18). Threads then wake each other through an eventfd.
    pub msg_ring: bool,
    /// Disables registration of the ring descriptor (Linux 5.18).
    pub registered_ring: bool,
    /// Disables `CQE_SKIP_SUCCESS` (Linux 5.17). Every send then posts a completion.
    pub cqe_skip: bool,
    /// Disables `SEND_ZC` (Linux 6.0).
    pub zero_copy: bool,
    /// Disables `epoll_pwait2(2)` (Linux 5.11). Timeouts on epoll are then rounded up to milliseconds.
    pub epoll_pwait2: bool,
}

setters!(DisabledFeatures {
    no_sqarray: bool = true,
    defer_taskrun: bool = true,
    single_issuer: bool = true,
    coop_taskrun: bool = true,
    multishot_receive: bool = true,
    multishot_accept: bool = true,
    buffer_ring: bool = true,
    msg_ring: bool = true,
    registered_ring: bool = true,
    cqe_skip: bool = true,
    zero_copy: bool = true,
    epoll_pwait2: bool = true,
});
