//! What a yardstick may be told, and the list of io_uring's options that the lab compares.
//!
//! [`UringOptions::validate`] refuses what cannot go together before anything is set up, and says whether the kernel or
//! this server is the reason.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::thread::CpuSet;

/// What [`run`](crate::run) may be told; the defaults are what measured best.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of one receive buffer of `uring`, bytes, 1 to 1 GiB. Default 16 KiB. The other models receive into one
    /// buffer of 64 KiB.
    pub uring_buffer_bytes: u32,
    /// Most receive buffers that `uring` may have, rounded up to a power of two, at most 32768. Default 1024; it
    /// starts with few and doubles their number when they run out.
    pub uring_buffers: u16,
    /// Look for events so long before sleeping, under `epoll`; zero, the default, sleeps at once. For `uring` it is
    /// [`UringOptions::spin`], the other models never spin.
    pub spin: Duration,
    /// Serve `uring` by the server that has options, with these. `None`, the default: by the one that has none, which
    /// is the yardstick.
    pub uring: Option<UringOptions>,
    /// Counts the connections that were accepted and closed at once because the model could not hold them: a
    /// descriptor of 1024 or above under `select`, a thread that could not be started under `threads`.
    pub refused: Arc<AtomicU64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            uring_buffer_bytes: 16 * 1024,
            uring_buffers: 1024,
            spin: Duration::ZERO,
            uring: None,
            refused: Arc::default(),
        }
    }
}

/// The ways of io_uring that can be chosen. The default is what the yardstick `uring` does: deferred task work,
/// multishot receive into a buffer ring, sends that complete at submission, ordinary descriptors, one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringOptions {
    /// When the kernel does the work that completes requests. `None`: deferred, or with `sqpoll` by its thread.
    pub task_work: Option<TaskWork>,
    /// A kernel thread takes the submissions (`IORING_SETUP_SQPOLL`, Linux 5.11 for sockets) and sleeps after so long
    /// without any, whole milliseconds. Sends are then ordinary: when nobody enters, nobody is told by the return. Unless
    /// it is pinned, that thread runs on any core of the machine, whatever cores this process may use.
    pub sqpoll: Option<Duration>,
    /// Pin that thread to this core (`IORING_SETUP_SQ_AFF`).
    pub sqpoll_core: Option<u32>,
    /// One receive per submission instead of a multishot one.
    pub one_shot_receive: bool,
    /// Each connection receives into two buffers of its own, in turn, instead of buffers that the kernel takes from a
    /// ring. Receives are one-shot then.
    pub own_buffers: bool,
    /// Connections live in the ring's table of registered files, and nowhere else (Linux 5.19).
    pub registered_files: bool,
    /// Hand every receive and send to the kernel's worker threads at once (`IOSQE_ASYNC`). Sends are ordinary then.
    pub forced_async: bool,
    /// Link a timeout to each receive (`IORING_OP_LINK_TIMEOUT`): who sends nothing for so long is disconnected.
    /// Receives are one-shot then.
    pub linked_timeout: Option<Duration>,
    /// One completion for as many buffers as a receive filled (`IORING_RECVSEND_BUNDLE`, Linux 6.10). Several received
    /// buffers go out as one gathered send, with or without this option.
    pub bundles: bool,
    /// Every send has a completion of its own and waits for room by itself.
    pub completion_per_send: bool,
    /// Sends from the received buffers without a copy (`IORING_OP_SEND_ZC`, Linux 6.0; 6.1 for several buffers). On
    /// loopback the kernel copies nevertheless.
    pub zero_copy_sends: bool,
    /// Rings, each on a thread of its own with a listener of its own (`SO_REUSEPORT`); 1 to [`MAX_RINGS`].
    pub rings: u16,
    /// The rings share the kernel's worker threads, and with `sqpoll` its thread (`IORING_SETUP_ATTACH_WQ`).
    pub shared_workers: bool,
    /// Look for completions so long before sleeping.
    pub spin: Duration,
}

impl Default for UringOptions {
    fn default() -> UringOptions {
        UringOptions {
            task_work: None,
            sqpoll: None,
            sqpoll_core: None,
            one_shot_receive: false,
            own_buffers: false,
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

/// Most rings of one server.
pub const MAX_RINGS: u16 = 256;

/// When the kernel does the work that completes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskWork {
    /// When the thread asks for completions, again until none is left (`IORING_SETUP_DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// When the thread asks for completions, once a turn: since Linux 6.13 that does some twenty pieces of it.
    DeferredOnce,
    /// At the thread's next system call (`IORING_SETUP_COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// At once: a running thread is interrupted.
    Interrupting,
}

impl TaskWork {
    /// Every way, the default first.
    pub const ALL: [TaskWork; 4] =
        [TaskWork::Deferred, TaskWork::DeferredOnce, TaskWork::Cooperative, TaskWork::Interrupting];

    /// The name that [`FromStr`] reads and [`Display`](fmt::Display) writes.
    pub fn name(self) -> &'static str {
        match self {
            TaskWork::Deferred => "deferred",
            TaskWork::DeferredOnce => "deferred-once",
            TaskWork::Cooperative => "cooperative",
            TaskWork::Interrupting => "interrupting",
        }
    }
}

impl fmt::Display for TaskWork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for TaskWork {
    type Err = String;

    fn from_str(name: &str) -> Result<TaskWork, String> {
        TaskWork::ALL.into_iter().find(|task_work| task_work.name() == name).ok_or_else(|| {
            format!("unknown task work {name:?}: use deferred, deferred-once, cooperative or interrupting")
        })
    }
}

/// How sends are made, as it follows from all options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendCompletion {
    Inline,
    PerSend,
    ZeroCopy,
}

impl UringOptions {
    /// Refuses what does not go together.
    ///
    /// # Errors
    /// `InvalidInput`, with the cause: the kernel's rule or this server's.
    pub fn validate(&self) -> io::Result<()> {
        let sqpoll = self.sqpoll.is_some();
        let interrupting = self.task_work == Some(TaskWork::Interrupting);
        let conflicts = [
            (
                sqpoll && self.task_work.is_some(),
                "--sqpoll and --task-work exclude each other: the kernel's polling thread does the task work, and the \
                 kernel refuses DEFER_TASKRUN and COOP_TASKRUN beside SQPOLL",
            ),
            (self.sqpoll_core.is_some() && !sqpoll, "--sqpoll-core pins the thread of --sqpoll: give both"),
            (
                self.sqpoll.is_some_and(|idle| !(1..=u128::from(u32::MAX)).contains(&idle.as_millis())),
                "--sqpoll takes 1 to 4294967295 milliseconds",
            ),
            (
                self.bundles && self.own_buffers,
                "--bundles and --per-connection-buffers exclude each other: a bundle is made of buffers of a ring",
            ),
            (
                self.bundles && (sqpoll || self.forced_async || interrupting),
                "--bundles goes only with deferred or cooperative task work of the server's own thread: a completion \
                 names the first buffer only, the others follow from the ring's order, which must not move meanwhile",
            ),
            (
                self.completion_per_send && self.zero_copy_sends,
                "--completion-per-send and --zero-copy-sends exclude each other: they are different requests",
            ),
            (
                self.linked_timeout.is_some_and(|timeout| timeout.is_zero()),
                "--linked-timeout must be longer than nothing, or nobody could send in time",
            ),
            (!(1..=MAX_RINGS).contains(&self.rings), "--rings takes 1 to 256"),
            (
                self.shared_workers && self.rings < 2,
                "--shared-workers joins the worker threads of several rings: give --rings 2 or more",
            ),
        ];
        match conflicts.into_iter().find(|(is_present, _)| *is_present) {
            Some((_, reason)) => Err(io::Error::new(io::ErrorKind::InvalidInput, reason)),
            None => Ok(()),
        }
    }

    /// Whether one submission receives for good.
    pub(crate) fn uses_multishot_receive(&self) -> bool {
        !self.one_shot_receive && !self.own_buffers && self.linked_timeout.is_none()
    }

    /// Whether deferred work is asked for until none is left.
    pub(crate) fn runs_all_task_work(&self) -> bool {
        self.sqpoll.is_none() && self.task_work.is_none_or(|task_work| task_work == TaskWork::Deferred)
    }

    pub(crate) fn send_completion(&self) -> SendCompletion {
        match self {
            UringOptions { zero_copy_sends: true, .. } => SendCompletion::ZeroCopy,
            UringOptions { completion_per_send: true, .. } | UringOptions { forced_async: true, .. } => {
                SendCompletion::PerSend
            }
            UringOptions { sqpoll: Some(_), .. } => SendCompletion::PerSend,
            _ => SendCompletion::Inline,
        }
    }
}

/// What is in effect, as one word with commas, for the line that says that the server is ready.
impl fmt::Display for UringOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.sqpoll, self.sqpoll_core) {
            (Some(idle), Some(core)) => {
                write!(formatter, "sqpoll={}ms,sqpoll-core={core}", idle.as_millis())?
            }
            (Some(idle), None) => write!(formatter, "sqpoll={}ms", idle.as_millis())?,
            _ => write!(formatter, "{}", self.task_work.unwrap_or(TaskWork::Deferred))?,
        }
        formatter.write_str(if self.uses_multishot_receive() {
            ",multishot-receive"
        } else {
            ",one-shot-receive"
        })?;
        formatter.write_str(if self.own_buffers { ",own-buffers" } else { ",buffer-ring" })?;
        formatter.write_str(match self.send_completion() {
            SendCompletion::Inline => ",sends-at-submission",
            SendCompletion::PerSend => ",completion-per-send",
            SendCompletion::ZeroCopy => ",zero-copy-sends",
        })?;
        let features = [
            (self.registered_files, ",registered-files"),
            (self.forced_async, ",forced-async"),
            (self.bundles, ",bundles"),
            (self.shared_workers, ",shared-workers"),
        ];
        for (_, feature) in features.into_iter().filter(|(is_set, _)| *is_set) {
            formatter.write_str(feature)?;
        }
        if let Some(timeout) = self.linked_timeout {
            write!(formatter, ",linked-timeout={}ms", timeout.as_millis())?;
        }
        if !self.spin.is_zero() {
            write!(formatter, ",spin={}us", self.spin.as_micros())?;
        }
        write!(formatter, ",rings={}", self.rings)
    }
}

/// One contender of the comparison of io_uring's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Unique, short: what the lab calls it.
    pub name: &'static str,
    /// The arguments of `anello bare` and of `anello-bare`, to which `--addr` is to be added.
    pub arguments: &'static [&'static str],
    /// What it is to be compared with, by name, to see what the option alone is worth.
    pub against: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
}

/// The core that `--sqpoll-core` means: a number, or `last`, the last core that this process may use
/// (`sched_getaffinity(2)`).
///
/// # Errors
/// The text is neither, with a sentence that says so; or the kernel does not tell the cores.
pub fn core(text: &str) -> Result<u32, String> {
    if let Ok(core) = text.parse() {
        return Ok(core);
    }
    if text != "last" {
        return Err(format!("{text:?} is no core: give its number, or last"));
    }
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|error| error.to_string())?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core));
    last.map(|core| core as u32).ok_or_else(|| "this process may use no core".to_owned())
}

/// Every option of io_uring by itself, the default first, then those whose worth shows only beside another.
///
/// The polling thread sleeps after 5 ms: soon enough not to disturb who is measured next, and longer than any pause under
/// load.
pub fn variants() -> &'static [Variant] {
    const fn new(
        name: &'static str,
        arguments: &'static [&'static str],
        against: &'static str,
        about: &'static str,
    ) -> Variant {
        Variant { name, arguments, against, about }
    }
    const DEFAULT: &str = "default";
    const VARIANTS: &[Variant] = &[
        new(
            DEFAULT,
            &["uring", "--configurable"],
            DEFAULT,
            "deferred task work, multishot receive into a buffer ring, sends that complete at submission",
        ),
        new(
            "deferred once",
            &["uring", "--task-work", "deferred-once"],
            DEFAULT,
            "deferred task work, asked for once a turn",
        ),
        new(
            "cooperative",
            &["uring", "--task-work", "cooperative"],
            DEFAULT,
            "task work at the next system call",
        ),
        new(
            "interrupting",
            &["uring", "--task-work", "interrupting"],
            DEFAULT,
            "task work at once, by an interrupt",
        ),
        new("sqpoll", &["uring", "--sqpoll", "5"], "ordinary sends", "a kernel thread takes submissions"),
        new(
            "sqpoll, pinned",
            &["uring", "--sqpoll", "5", "--sqpoll-core", "last"],
            "sqpoll",
            "the thread that takes submissions stays on the last core that the server may use",
        ),
        new("one-shot receive", &["uring", "--one-shot-receive"], DEFAULT, "a submission for each receive"),
        new(
            "own buffers",
            &["uring", "--per-connection-buffers"],
            "one-shot receive",
            "receives into the connection's memory",
        ),
        new(
            "registered files",
            &["uring", "--registered-files"],
            DEFAULT,
            "sockets only in the ring's table",
        ),
        new(
            "linked timeouts",
            &["uring", "--linked-timeout", "60s"],
            "one-shot receive",
            "a timeout for each receive",
        ),
        new("bundles", &["uring", "--bundles"], DEFAULT, "one completion for several buffers"),
        new("ordinary sends", &["uring", "--completion-per-send"], DEFAULT, "a completion for each send"),
        new(
            "forced async",
            &["uring", "--forced-async"],
            "ordinary sends",
            "every request by a worker thread",
        ),
        new(
            "zero-copy sends",
            &["uring", "--zero-copy-sends"],
            "ordinary sends",
            "sends from the received buffers",
        ),
        new("spin", &["uring", "--spin", "50us"], DEFAULT, "looks for work before it sleeps"),
        new("two rings", &["uring", "--rings", "2"], DEFAULT, "two threads with a ring each"),
        new(
            "two rings, shared workers",
            &["uring", "--rings", "2", "--shared-workers"],
            "two rings",
            "two rings with one pool of worker threads",
        ),
        new(
            "two rings, forced async",
            &["uring", "--rings", "2", "--forced-async"],
            "forced async",
            "two rings, each with worker threads that are used",
        ),
        new(
            "two rings, forced async, shared workers",
            &["uring", "--rings", "2", "--forced-async", "--shared-workers"],
            "two rings, forced async",
            "two rings with one pool of worker threads that is used",
        ),
    ];
    VARIANTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_go_together_is_refused_with_the_cause() {
        let idle = Some(Duration::from_secs(1));
        let default = UringOptions::default;
        let wrong = [
            (
                UringOptions { sqpoll: idle, task_work: Some(TaskWork::Deferred), ..default() },
                "DEFER_TASKRUN",
            ),
            (UringOptions { sqpoll_core: Some(0), ..default() }, "--sqpoll"),
            (UringOptions { sqpoll: Some(Duration::ZERO), ..default() }, "milliseconds"),
            (UringOptions { bundles: true, own_buffers: true, ..default() }, "--per-connection-buffers"),
            (UringOptions { bundles: true, sqpoll: idle, ..default() }, "order"),
            (UringOptions { bundles: true, forced_async: true, ..default() }, "order"),
            (
                UringOptions { completion_per_send: true, zero_copy_sends: true, ..default() },
                "--zero-copy-sends",
            ),
            (UringOptions { linked_timeout: Some(Duration::ZERO), ..default() }, "--linked-timeout"),
            (UringOptions { rings: 0, ..default() }, "--rings"),
            (UringOptions { shared_workers: true, ..default() }, "--rings 2"),
        ];
        for (options, part) in wrong {
            let error = options.validate().expect_err(part);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(part), "{error}");
        }
        default().validate().expect("the default is valid");
    }

    #[test]
    fn the_last_core_is_one_that_may_be_used() {
        assert_eq!(core("3"), Ok(3));
        assert!(core("first").is_err());
        let last = core("last").unwrap();
        assert!(rustix::thread::sched_getaffinity(None).unwrap().is_set(last as usize));
    }

    #[test]
    fn an_option_brings_what_it_needs() {
        let sqpoll = UringOptions { sqpoll: Some(Duration::from_secs(1)), ..UringOptions::default() };
        assert_eq!(sqpoll.send_completion(), SendCompletion::PerSend);
        let deadline =
            UringOptions { linked_timeout: Some(Duration::from_secs(1)), ..UringOptions::default() };
        assert!(!deadline.uses_multishot_receive());
        assert_eq!(
            deadline.to_string(),
            "deferred,one-shot-receive,buffer-ring,sends-at-submission,linked-timeout=1000ms,rings=1"
        );
    }

    #[test]
    fn variants_have_names_of_their_own_and_something_to_be_compared_with() {
        for (index, variant) in variants().iter().enumerate() {
            assert!(variants()[..index].iter().all(|other| other.name != variant.name), "{}", variant.name);
            assert!(variants().iter().any(|other| other.name == variant.against), "{}", variant.name);
        }
    }
}
