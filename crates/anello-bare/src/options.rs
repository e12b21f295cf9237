//! The I/O models and the options of the echo servers.

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::thread::CpuSet;

use crate::errors::invalid_input;

/// I/O model: how the server waits until it can receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Model {
    /// io_uring: multishot accept, multishot receive into provided buffers, one io_uring_enter(2) per turn. Linux 6.0.
    Uring,
    /// epoll_wait(2), edge-triggered, with speculative system calls. Linux 2.6.17.
    Epoll,
    /// poll(2), level-triggered.
    Poll,
    /// select(2), level-triggered; supports only descriptors below 1024.
    Select,
    /// One blocking thread per connection.
    Threads,
}

/// Options for [`run`](crate::run). The defaults are the fastest measured settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of each `uring` receive buffer, from 1 byte to 1 GiB. Default: 16 KiB.
    pub uring_buffer_bytes: u32,
    /// Maximum number of `uring` receive buffers, rounded up to a power of two, at most 32768. Default: 1024. The
    /// server starts with 32 buffers and doubles their number when they run out.
    pub uring_buffers: u16,
    /// Time for which `epoll` polls for events before it sleeps. Default: zero. For `uring`, set
    /// [`UringOptions::spin`].
    pub spin: Duration,
    /// Runs `uring` as the configurable server with these options. Default: `None`, the baseline.
    pub uring: Option<UringOptions>,
}

impl Default for Options {
    fn default() -> Options {
        Options { uring_buffer_bytes: 16 * 1024, uring_buffers: 1024, spin: Duration::ZERO, uring: None }
    }
}

/// Selectable io_uring features, which are also command-line flags. The defaults are those of the baseline `uring`:
/// deferred task work, multishot receive into a buffer ring, inline send completion, ordinary descriptors, one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "io_uring options")]
pub struct UringOptions {
    /// When the kernel runs task work, which completes requests. Default: deferred, or on the polling thread with
    /// --sqpoll.
    #[arg(long, value_name = "WHEN")]
    pub task_work: Option<TaskWork>,
    /// Poll for submissions on a kernel thread (IORING_SETUP_SQPOLL, Linux 5.11 for sockets), which sleeps after
    /// IDLE_MS milliseconds without submissions. Each send then posts a completion, because the return of
    /// io_uring_enter(2) cannot confirm it. Unless it is pinned, the thread runs on any core, even outside the CPU
    /// affinity mask of this process.
    #[arg(long, value_name = "IDLE_MS", value_parser = parse_milliseconds)]
    pub sqpoll: Option<Duration>,
    /// Pin the polling thread to this core (IORING_SETUP_SQ_AFF); the value `last` selects the last core that this
    /// process may use.
    #[arg(long, value_name = "CORE", value_parser = parse_core)]
    pub sqpoll_core: Option<u32>,
    /// Submit each receive separately instead of using multishot receives.
    #[arg(long)]
    pub one_shot_receive: bool,
    /// Receive alternately into two buffers per connection instead of into a buffer ring. Receives are then one-shot.
    #[arg(long)]
    pub per_connection_buffers: bool,
    /// Keep connections only in the ring's table of registered files, without descriptors (Linux 5.19).
    #[arg(long)]
    pub registered_files: bool,
    /// Execute every receive and send on the kernel's worker threads (IOSQE_ASYNC). Each send then posts a completion.
    #[arg(long)]
    pub forced_async: bool,
    /// Link a timeout to each receive (IORING_OP_LINK_TIMEOUT). Clients that send nothing for this long are
    /// disconnected. Receives are then one-shot.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub linked_timeout: Option<Duration>,
    /// Post one completion for all buffers that a receive filled (IORING_RECVSEND_BUNDLE, Linux 6.10). With or without
    /// this option, several received buffers are sent with one gathered send.
    #[arg(long)]
    pub bundles: bool,
    /// Post a completion for each send instead of completing sends inline at submission.
    #[arg(long)]
    pub completion_per_send: bool,
    /// Send from the receive buffers without copying (IORING_OP_SEND_ZC, Linux 6.0; 6.1 for several buffers). On
    /// loopback, the kernel copies anyway.
    #[arg(long)]
    pub zero_copy_sends: bool,
    /// Number of rings, 1 to 256. Each has its own thread and its own listener (SO_REUSEPORT).
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub rings: u16,
    /// Share the kernel's worker threads, and with --sqpoll the polling thread, between all rings
    /// (IORING_SETUP_ATTACH_WQ).
    #[arg(long)]
    pub shared_workers: bool,
    /// Time to poll for completions before the thread sleeps, such as 50us; at most 1s.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    pub spin: Duration,
}

impl Default for UringOptions {
    #[inline]
    fn default() -> UringOptions {
        UringOptions {
            task_work: None,
            sqpoll: None,
            sqpoll_core: None,
            one_shot_receive: false,
            per_connection_buffers: false,
            registered_files: false,
            forced_async: false,
            linked_timeout: None,
            bundles: false,
            completion_per_send: false,
            zero_copy_sends: false,
            rings: 1,
            shared_workers: false,
            spin: Duration::ZERO,
        }
    }
}

/// Maximum number of rings of one server.
pub const MAX_RINGS: u16 = 256;

/// When the kernel runs task work, which completes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum TaskWork {
    /// When the thread waits for completions, until no work is left (IORING_SETUP_DEFER_TASKRUN, Linux 6.1).
    Deferred,
    /// When the thread waits for completions, once per turn. Since Linux 6.13, each wait runs about 20 items of task
    /// work.
    DeferredOnce,
    /// At the thread's next system call (IORING_SETUP_COOP_TASKRUN, Linux 5.19).
    Cooperative,
    /// Immediately: a running thread is interrupted.
    Interrupting,
}

impl UringOptions {
    /// Returns an `InvalidInput` error if options conflict or are out of range. The message states which rule of the
    /// kernel or of this server is violated.
    pub fn validate(&self) -> io::Result<()> {
        let sqpoll = self.sqpoll.is_some();
        let interrupting = self.task_work == Some(TaskWork::Interrupting);
        let conflict = if sqpoll && self.task_work.is_some() {
            "--sqpoll conflicts with --task-work: the polling thread runs the task work, and the kernel rejects \
             DEFER_TASKRUN and COOP_TASKRUN together with SQPOLL"
        } else if self.sqpoll_core.is_some() && !sqpoll {
            "--sqpoll-core requires --sqpoll"
        } else if self.sqpoll.is_some_and(|idle| !(1..=u128::from(u32::MAX)).contains(&idle.as_millis())) {
            "invalid --sqpoll: must be 1 to 4294967295 milliseconds"
        } else if self.bundles && self.per_connection_buffers {
            "--bundles conflicts with --per-connection-buffers: a bundle consists of ring buffers"
        } else if self.bundles && (sqpoll || self.forced_async || interrupting) {
            "--bundles requires deferred or cooperative task work on the server's thread: a completion contains only \
             the first buffer, and the order of the ring must not change before it is handled"
        } else if self.completion_per_send && self.zero_copy_sends {
            "--completion-per-send conflicts with --zero-copy-sends: they select different send requests"
        } else if self.linked_timeout.is_some_and(|timeout| timeout.is_zero()) {
            "invalid --linked-timeout: must be greater than zero"
        } else if !(1..=MAX_RINGS).contains(&self.rings) {
            "invalid --rings: must be 1 to 256"
        } else if self.shared_workers && self.rings < 2 {
            "--shared-workers requires --rings 2 or more"
        } else {
            return Ok(());
        };
        Err(invalid_input(conflict))
    }

    #[inline]
    pub(crate) fn uses_multishot_receive(&self) -> bool {
        !self.one_shot_receive && !self.per_connection_buffers && self.linked_timeout.is_none()
    }

    /// Returns `true` if deferred task work is run until none is left.
    #[inline]
    pub(crate) fn runs_all_task_work(&self) -> bool {
        self.sqpoll.is_none() && self.task_work.is_none_or(|task_work| task_work == TaskWork::Deferred)
    }

    /// Returns `true` if only short or failed sends post a completion.
    #[inline]
    pub(crate) fn completes_sends_inline(&self) -> bool {
        !(self.completion_per_send || self.zero_copy_sends || self.forced_async) && self.sqpoll.is_none()
    }
}

/// Writes the options in effect, separated by commas, for the line that is printed when the server is ready.
impl fmt::Display for UringOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let task_work = self.task_work.unwrap_or(TaskWork::Deferred);
        let (multishot, inline) = (self.uses_multishot_receive(), self.completes_sends_inline());
        let named = |is_set: bool, name: &str| is_set.then(|| name.to_owned());
        let features = [
            Some(self.sqpoll.map_or(task_work.to_string(), |idle| format!("sqpoll={}ms", idle.as_millis()))),
            self.sqpoll_core.map(|core| format!("sqpoll-core={core}")),
            named(multishot, "multishot-receive"),
            named(!multishot, "one-shot-receive"),
            named(self.per_connection_buffers, "own-buffers"),
            named(!self.per_connection_buffers, "buffer-ring"),
            named(self.zero_copy_sends, "zero-copy-sends"),
            named(inline, "sends-at-submission"),
            named(!self.zero_copy_sends && !inline, "completion-per-send"),
            named(self.registered_files, "registered-files"),
            named(self.forced_async, "forced-async"),
            named(self.bundles, "bundles"),
            named(self.shared_workers, "shared-workers"),
            self.linked_timeout.map(|timeout| format!("linked-timeout={}ms", timeout.as_millis())),
            (!self.spin.is_zero()).then(|| format!("spin={}us", self.spin.as_micros())),
            Some(format!("rings={}", self.rings)),
        ];
        formatter.write_str(&features.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

/// Parses the value of `--sqpoll-core`: a number, or `last` for the last core that this process may use
/// (`sched_getaffinity(2)`).
pub fn parse_core(text: &str) -> Result<u32, String> {
    if let Ok(core) = text.parse() {
        return Ok(core);
    }
    if text != "last" {
        return Err(format!("invalid core {text:?} (expected a number, or `last` for the last usable core)"));
    }
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|error| error.to_string())?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core));
    last.map(|core| core as u32).ok_or_else(|| "CPU affinity mask of this process is empty".to_owned())
}

fn parse_milliseconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse::<u32>().map(|milliseconds| Duration::from_millis(milliseconds.into()))
}
