//! What can be chosen about a driver: limits with names, and the ways of io_uring that a laboratory wants to compare.

use std::time::Duration;

/// Limits and ways of the drivers. The defaults are what measured best; every field says what it costs or buys.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverOptions {
    /// Entries of the submission queue. More operations than that wait in a backlog, none is dropped.
    pub sq_entries: u32,
    /// Entries of the completion queue; the kernel keeps what does not fit.
    pub cq_entries: u32,
    /// Buffers in the receive ring at the start. They double when the kernel runs out.
    pub initial_receive_buffers: u32,
    /// Most buffers in the receive ring (at most 32,768). Beyond, bytes are received into other memory.
    pub max_receive_buffers: u32,
    /// Bytes of one receive buffer, from 64 to 1 MiB (and 1 GiB for all of them). Streams with larger messages are
    /// received without the ring. Address space for `max_receive_buffers` of them is reserved at once; a page takes memory
    /// from its first use to the end of the runtime.
    pub receive_buffer_bytes: usize,
    /// Chunks received and not yet taken by the program at which a stream stops receiving.
    pub max_received_chunks: usize,
    /// Bytes accepted for sending and not yet taken by the kernel at which a stream accepts no more.
    pub max_send_queue_bytes: usize,
    /// Connections accepted by the kernel and not yet taken by the program at which a listener stops accepting.
    pub max_accept_queue: usize,
    /// Messages of at least so many bytes are sent by a system call at once, while they are in the cache. So is, whatever
    /// this says, what was received or copied into a buffer of 16 or 128 KiB outside the ring, of which few are kept, and
    /// what is written (not handed over to be sent) in pieces above 4096 bytes, which so need no copy. On io_uring shorter
    /// ones go to the kernel with the next turn. On epoll those up to 4096 bytes do where many sockets were ready at once
    /// ([`deferred_send_threshold_edges`](Self::deferred_send_threshold_edges)), all others are sent at once.
    pub direct_send_threshold_bytes: usize,
    /// Edges that one wait of the epoll driver brings from which on small messages go to the kernel with the next turn,
    /// all together: zero always, `usize::MAX` never. With fewer than the default it saves nothing.
    pub deferred_send_threshold_edges: usize,
    /// When to send without a copy (`SEND_ZC`, Linux 6.0).
    pub zero_copy: ZeroCopy,
    /// How sends complete on io_uring.
    pub send_completion: SendCompletion,
    /// When the kernel runs the work that completes operations.
    pub task_work: TaskWork,
    /// Let a kernel thread take submissions (`SQPOLL`); excludes [`TaskWork::Deferred`] and completion at submission.
    pub submission_polling: Option<SubmissionPolling>,
    /// Receive one message per operation instead of many (`RECV` without multishot). Multishot receive may leave TCP
    /// urgent data that arrives while it reads until the peer's next bytes (seen on Linux 6.18); this does not.
    pub one_shot_receive: bool,
    /// Give the ring indexes of registered files instead of descriptors (Linux 6.14: earlier ones close such files
    /// too late, and descriptors are used).
    pub registered_files: bool,
    /// Longest time to look for work without sleeping before a wait; zero never spins. The spin adapts: it becomes a
    /// sixteenth of this while it finds nothing, but for every sixteenth.
    pub spin: Duration,
    /// Kernel features to do without, as if the kernel were older. For tests and comparisons.
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

/// When to send without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Never.
    Never,
    /// Messages of at least `threshold_bytes`, to peers on other machines: on loopback the kernel copies all the same.
    RemoteOnly {
        /// The smallest message sent so, in bytes.
        threshold_bytes: usize,
    },
    /// Messages of at least `threshold_bytes`, to any peer.
    Always {
        /// The smallest message sent so, in bytes.
        threshold_bytes: usize,
    },
}

/// How sends complete on io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendCompletion {
    /// With the system call that submits them; only a short send posts a completion (Linux 5.17).
    Inline,
    /// Each with a completion of its own.
    PerSend,
}

/// When the kernel runs the work that completes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskWork {
    /// When the worker asks for completions (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// At the next system call (`COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// At once, interrupting the worker.
    Interrupting,
}

/// A kernel thread that takes submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionPolling {
    /// How long the thread looks before it sleeps, in milliseconds.
    pub idle_ms: u32,
    /// The core to pin it to.
    pub core: Option<u32>,
}

/// Kernel features to do without. Each step of the set-up ladder can be forced.
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
    /// No buffer rings (as before 5.19): everything is received on readiness.
    pub buffer_ring: bool,
    /// No `MSG_RING` (as before 5.18): threads wake each other through an eventfd.
    pub msg_ring: bool,
    /// No registered ring descriptor (as before 5.18).
    pub registered_ring: bool,
    /// No `CQE_SKIP_SUCCESS` (as before 5.17): sends complete each for itself.
    pub cqe_skip: bool,
    /// No `SEND_ZC` (as before 6.0).
    pub zero_copy: bool,
}
