//! Driver options: limits, and the io_uring modes and features to use.

use std::time::Duration;

use crate::driver::wake::notifier::Notifier;

/// Options for a driver.
///
/// The defaults are the values with the best measured performance. Each option names the case in which another value
/// pays; `docs/guides/choose-a-driver.md` has the measurements.
///
/// ```
/// use anello::DriverOptions;
///
/// let options = DriverOptions::default().max_send_queue_bytes(256 * 1024).max_received_chunks(4);
/// assert_eq!(options.max_send_queue_bytes, 256 * 1024);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverOptions {
    /// Maximum number of buffers in the receive ring (up to 32,768). While all of them are in use, bytes are received
    /// into other memory.
    ///
    /// A lower value limits the memory of a worker. A higher value pays if `buffer_exhaustions` of
    /// [`DriverMetrics`](crate::DriverMetrics) rises.
    ///
    /// The ring starts with 64 buffers. It doubles when the kernel runs out of buffers, and shrinks when at most a quarter
    /// of them have been in use for three seconds (Linux 6.8, with [`TaskWork::Deferred`]).
    pub max_receive_buffers: u32,
    /// Size of one receive buffer in bytes, from 64 bytes to 1 MiB; all buffers together are limited to 1 GiB. Streams
    /// with larger messages bypass the ring. Address space for `max_receive_buffers` buffers is reserved at startup. A
    /// page occupies memory from its first use until the ring shrinks or the runtime is dropped.
    ///
    /// A higher value pays if many busy connections have messages that the default does not hold: messages of 8 and 16 KiB
    /// took 0.65 to 0.87 times the CPU time in buffers that held them.
    pub receive_buffer_bytes: usize,
    /// Maximum number of received chunks per stream that the application has not yet taken. A stream stops receiving
    /// when it reaches the limit.
    ///
    /// A lower value saves memory if many peers send faster than the application reads.
    pub max_received_chunks: usize,
    /// Maximum number of bytes per stream that have been accepted for sending but not yet taken by the kernel. A stream
    /// accepts no more bytes when it reaches the limit.
    ///
    /// A higher value pays if tasks produce large messages in advance, and a lower one saves memory if many peers read
    /// slowly.
    pub max_send_queue_bytes: usize,
    /// Maximum number of connections per listener that the kernel has accepted but the application has not yet taken. A
    /// listener stops accepting when it reaches the limit.
    ///
    /// A lower value pays if the application pauses accepting: further clients stay in the kernel's backlog, where other
    /// workers or a successor can take them.
    pub max_accept_queue: usize,
    /// Minimum size of messages that are sent immediately by a system call, while their bytes are in the CPU cache.
    ///
    /// With 0, every message is sent immediately. This lowers the latency of each response a little, because it does not
    /// wait for those computed after it; it costs a system call per message on io_uring.
    ///
    /// Two kinds of data are sent immediately regardless of this threshold: data in pool buffers of 16 KiB or more
    /// outside the receive ring, because the pool keeps only a few of these buffers; and writes of more than 4096
    /// bytes, which would otherwise be copied (unlike sends, which transfer ownership of their buffers).
    ///
    /// On io_uring, shorter messages are submitted in the next turn. On epoll, messages of up to 4096 bytes are sent in
    /// the next turn if many sockets were ready at the same time, and all others are sent immediately.
    pub direct_send_threshold_bytes: usize,
    /// Policy for zero-copy sends (`SEND_ZC`, Linux 6.0).
    ///
    /// The default pays with large messages and network cards that gather from memory. Where the kernel copies the bytes
    /// anyway, as on virtual interfaces, [`ZeroCopy::Never`] saves CPU time.
    ///
    /// Bytes sent without a copy stay in the memory of the process until the peer has acknowledged them. A peer that does
    /// not read can therefore hold as many bytes there as the kernel's send buffer (`net.ipv4.tcp_wmem`, at most 4 MiB by
    /// default), in addition to the send queue.
    pub zero_copy: ZeroCopy,
    /// Scheduling of the kernel's task work, which completes operations.
    ///
    /// [`TaskWork::Cooperative`] is required for an [`EventLoop`](crate::event_loop::EventLoop) whose descriptor
    /// another loop polls. It has no other benefit.
    pub task_work: TaskWork,
    /// Kernel thread that polls for submissions (`SQPOLL`), if enabled. Disables [`TaskWork::Deferred`] and sends that
    /// complete at submission.
    ///
    /// Pays with few connections, like [`spin`](Self::spin): it doubles the requests per second of a single one. With
    /// dozens of connections, it increases the CPU time per request by more than a third if the thread shares the core
    /// of the worker.
    pub submission_polling: Option<SubmissionPolling>,
    /// Maximum time to spin before a blocking wait; zero disables spinning. The spin time is adaptive: while no work is
    /// found, it shrinks to a sixteenth of this value, except for one full spin after every sixteen spins without work.
    ///
    /// Pays at low load, where waking the core takes longer than a request: it lowers the latency and uses the core
    /// while the worker is idle.
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
    /// A ring of this process whose SQPOLL thread the new ring uses, if both have one.
    pub(crate) polling_thread_of: Option<Notifier>,
    /// Settings for the tests of the driver. No application gains by them, and they can change in any version.
    #[doc(hidden)]
    pub testing: TestOptions,
}

setters!(DriverOptions {
    max_receive_buffers: u32 = 1024,
    receive_buffer_bytes: usize = 4096,
    max_received_chunks: usize = 4,
    max_send_queue_bytes: usize = 256 * 1024,
    max_accept_queue: usize = 64,
    direct_send_threshold_bytes: usize = 4096,
    zero_copy: ZeroCopy = ZeroCopy::Never,
    task_work: TaskWork = TaskWork::Cooperative,
    submission_polling: Option<SubmissionPolling> = Some(SubmissionPolling::default().idle_ms(100)),
    spin: Duration = Duration::from_micros(50),
    max_batch_delay: Duration = Duration::from_micros(100),
});

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            max_receive_buffers: 4096,
            receive_buffer_bytes: 16 * 1024,
            max_received_chunks: 16,
            max_send_queue_bytes: 64 * 1024,
            max_accept_queue: 256,
            direct_send_threshold_bytes: 16 * 1024 + 1,
            zero_copy: ZeroCopy::RemoteOnly { threshold_bytes: 64 * 1024 },
            task_work: TaskWork::Deferred,
            submission_polling: None,
            spin: Duration::ZERO,
            max_batch_delay: Duration::ZERO,
            polling_thread_of: None,
            testing: TestOptions::default(),
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
    /// Task work runs at the next system call of the worker (`COOP_TASKRUN`, Linux 5.19), even if it does not wait for
    /// completions. The descriptor of the ring then wakes another loop that polls it.
    Cooperative,
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

/// Settings with which the tests reach every fallback and every full queue. Hidden, because larger queues and other
/// thresholds have no measured benefit, and a feature that works is always worth using.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TestOptions {
    /// Number of entries in the submission queue. Further operations wait in a backlog; none are dropped.
    pub sq_entries: u32,
    /// Number of entries in the completion queue. The kernel keeps completions that do not fit.
    pub cq_entries: u32,
    /// Number of buffers in the receive ring at startup, and after it has shrunk.
    pub initial_receive_buffers: u32,
    /// If one epoll wait returns at least this number of readiness events, small messages are deferred and sent
    /// together by the next turn. With zero, small messages are always deferred; with `usize::MAX`, never.
    pub deferred_send_threshold_edges: usize,
    /// Minimum time without progress after which a released stream is aborted.
    pub linger: Duration,
    /// Maximum time that shutdown waits for peers to acknowledge zero-copy sends on connections that are already closed.
    /// The memory of later ones is never freed.
    pub zero_copy_ack_timeout: Duration,
    /// Kernel features to disable, as if the kernel were older.
    pub disabled_features: DisabledFeatures,
}

impl Default for TestOptions {
    fn default() -> Self {
        Self {
            sq_entries: 512,
            cq_entries: 4096,
            initial_receive_buffers: 64,
            deferred_send_threshold_edges: 8,
            linger: Duration::from_secs(30),
            zero_copy_ack_timeout: Duration::from_millis(100),
            disabled_features: DisabledFeatures::default(),
        }
    }
}

/// Kernel features to disable. Every fallback of the ring setup can be forced.
#[doc(hidden)]
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
