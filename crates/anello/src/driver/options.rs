//! Options of the drivers: limits, and the io_uring modes and features to use.

use std::time::Duration;

/// Options of a driver.
///
/// The defaults performed best in measurements.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverOptions {
    /// Number of entries of the submission queue. Further operations wait in a backlog; none is dropped.
    pub sq_entries: u32,
    /// Number of entries of the completion queue. The kernel keeps completions that do not fit.
    pub cq_entries: u32,
    /// Initial number of buffers in the receive ring. It doubles when the kernel runs out of buffers.
    pub initial_receive_buffers: u32,
    /// Maximum number of buffers in the receive ring (up to 32,768). When all are in use, bytes are received into other
    /// memory.
    pub max_receive_buffers: u32,
    /// Size of one receive buffer in bytes, from 64 bytes to 1 MiB; all buffers together are limited to 1 GiB. Streams
    /// with larger messages are received without the ring. Address space for `max_receive_buffers` buffers is reserved
    /// at startup. A page uses memory from its first use until the runtime is dropped.
    pub receive_buffer_bytes: usize,
    /// Number of received chunks not yet taken by the application at which a stream stops receiving.
    pub max_received_chunks: usize,
    /// Number of bytes accepted for sending but not yet taken by the kernel at which a stream accepts no more.
    pub max_send_queue_bytes: usize,
    /// Number of connections accepted by the kernel but not yet taken by the application at which a listener stops
    /// accepting.
    pub max_accept_queue: usize,
    /// Messages of at least this many bytes are sent immediately by a system call, while they are in the CPU cache.
    ///
    /// Independent of this threshold, two kinds of data are sent immediately: data in pool buffers of 16 or 128 KiB
    /// outside the receive ring, because few of these buffers are kept; and writes (unlike sends, which transfer
    /// ownership) of more than 4096 bytes, because they then need no copy.
    ///
    /// On io_uring, shorter messages are submitted by the next turn. On epoll, messages of up to 4096 bytes are sent by
    /// the next turn if many sockets were ready at the same time
    /// ([`deferred_send_threshold_edges`](Self::deferred_send_threshold_edges)), and all others are sent immediately.
    pub direct_send_threshold_bytes: usize,
    /// Number of readiness events in one wait of the epoll driver from which small messages are sent together by the
    /// next turn. Zero always defers, and `usize::MAX` never does. Values below the default save nothing.
    pub deferred_send_threshold_edges: usize,
    /// When to use zero-copy sends (`SEND_ZC`, Linux 6.0).
    pub zero_copy: ZeroCopy,
    /// Completion mode of sends on io_uring.
    pub send_completion: SendCompletion,
    /// When the kernel runs the task work that completes operations.
    pub task_work: TaskWork,
    /// Lets a kernel thread poll for submissions (`SQPOLL`). Excludes [`TaskWork::Deferred`] and
    /// [`SendCompletion::Inline`].
    pub submission_polling: Option<SubmissionPolling>,
    /// Receives once per operation (`RECV` without multishot). If TCP urgent data arrives while a multishot receive
    /// reads, it can remain unread until the peer's next bytes arrive (observed on Linux 6.18); this mode avoids that.
    pub one_shot_receive: bool,
    /// Uses registered files instead of descriptors. Requires Linux 6.14: earlier kernels close registered files too
    /// late, and descriptors are used instead.
    pub registered_files: bool,
    /// Maximum time to spin before a sleeping wait; zero disables spinning. The spin time adapts: while no work is
    /// found, it shrinks to a sixteenth of this value, except for one full spin after every sixteen misses.
    pub spin: Duration,
    /// Kernel features to disable, as if the kernel were older. For tests and comparisons.
    pub disabled_features: DisabledFeatures,
}

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
            disabled_features: DisabledFeatures::default(),
        }
    }
}

/// When to use zero-copy sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Never.
    Never,
    /// For messages of at least `threshold_bytes` to peers on other machines. On loopback, the kernel copies anyway.
    RemoteOnly {
        /// Minimum message size for zero-copy sends, in bytes.
        threshold_bytes: usize,
    },
    /// For messages of at least `threshold_bytes` to any peer.
    Always {
        /// Minimum message size for zero-copy sends, in bytes.
        threshold_bytes: usize,
    },
}

/// Completion mode of sends on io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendCompletion {
    /// Sends complete during the system call that submits them. Only a short or failed send posts a completion (Linux
    /// 5.17).
    Inline,
    /// Every send posts a completion.
    PerSend,
}

/// When the kernel runs the task work that completes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskWork {
    /// When the worker waits for or requests completions (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// At the next system call (`COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// Immediately, by interrupting the worker.
    Interrupting,
}

/// A kernel thread that polls for submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionPolling {
    /// Idle time after which the thread sleeps, in milliseconds.
    pub idle_ms: u32,
    /// The core to pin the thread to.
    pub core: Option<u32>,
}

/// Kernel features to disable. Every fallback of the ring setup can be forced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DisabledFeatures {
    /// No `NO_SQARRAY` (as before Linux 6.6).
    pub no_sqarray: bool,
    /// No `DEFER_TASKRUN` (as before 6.1).
    pub defer_taskrun: bool,
    /// No `SINGLE_ISSUER` (as before 6.0).
    pub single_issuer: bool,
    /// No `COOP_TASKRUN` and `TASKRUN_FLAG` (as before 5.19).
    pub coop_taskrun: bool,
    /// No multishot receive (as before 6.0).
    pub multishot_receive: bool,
    /// No multishot accept (as before 5.19).
    pub multishot_accept: bool,
    /// No buffer rings (as before 5.19): all streams are received on readiness.
    pub buffer_ring: bool,
    /// No `MSG_RING` (as before 5.18): threads wake each other through an eventfd.
    pub msg_ring: bool,
    /// No registered ring descriptor (as before 5.18).
    pub registered_ring: bool,
    /// No `CQE_SKIP_SUCCESS` (as before 5.17): every send posts a completion.
    pub cqe_skip: bool,
    /// No `SEND_ZC` (as before 6.0).
    pub zero_copy: bool,
}
