//! Options for a simulated kernel, and the rates of the faults that it injects.

/// The kind of kernel that is simulated.
///
/// ```
/// use anello::sim::{SimModel, SimOptions};
/// use anello::{DriverKind, Runtime};
///
/// for model in [SimModel::Completion, SimModel::Readiness] {
///     let driver = DriverKind::Sim(SimOptions::new(1).model(model));
///     // The test of an application runs on both.
///     assert_eq!(Runtime::builder().driver(driver).build()?.block_on(async { 42 }), 42);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimModel {
    /// A completion-based kernel, like io_uring.
    #[default]
    Completion,
    /// A readiness-based kernel, like epoll.
    Readiness,
}

/// Options for a simulated kernel.
///
/// Applications that run on it are deterministic. A failed test that prints its seed can be replayed with that seed.
///
/// TCP, UDP and Unix sockets are simulated, and reach only sockets on the same runtime. Virtual time passes only while
/// the runtime runs, and a sleep takes no real time.
///
/// ```
/// use std::time::Duration;
///
/// use anello::time::{Instant, sleep};
/// use anello::sim::{SimFaults, SimOptions};
/// use anello::{DriverKind, Runtime};
///
/// let driver = DriverKind::Sim(SimOptions::new(42).faults(SimFaults::lossless(50)));
/// let runtime = Runtime::builder().driver(driver).driver_from_environment(false).build()?;
/// let elapsed = runtime.block_on(async {
///     let start = Instant::now();
///     // Takes no real time.
///     sleep(Duration::from_secs(3600)).await;
///     start.elapsed()
/// });
/// assert!(elapsed >= Duration::from_secs(3600));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimOptions {
    /// Seed for the random numbers.
    pub seed: u64,
    /// Kind of kernel to simulate.
    pub model: SimModel,
    /// Rates of the injected faults.
    pub faults: SimFaults,
    /// Capacity, in bytes, of a connection in each direction.
    pub socket_buffer_bytes: usize,
}

setters!(SimOptions { seed: u64 = 42 });

impl SimOptions {
    /// Returns options for a completion-based kernel without faults.
    ///
    /// ```
    /// use anello::sim::{SimFaults, SimModel, SimOptions};
    ///
    /// let options = SimOptions::new(42);
    /// assert_eq!((options.seed, options.model), (42, SimModel::Completion));
    /// assert_eq!(options.faults, SimFaults::none());
    /// ```
    pub fn new(seed: u64) -> Self {
        Self { seed, model: SimModel::default(), faults: SimFaults::none(), socket_buffer_bytes: 16 * 1024 }
    }

    /// Sets the kind of kernel.
    ///
    /// ```
    /// use anello::sim::{SimModel, SimOptions};
    ///
    /// let options = SimOptions::new(42).model(SimModel::Readiness);
    /// assert_eq!(options.model, SimModel::Readiness);
    /// ```
    #[must_use]
    pub fn model(mut self, model: SimModel) -> Self {
        self.model = model;
        self
    }

    /// Sets the rates of the injected faults.
    ///
    /// ```
    /// use anello::sim::{SimFaults, SimOptions};
    ///
    /// let options = SimOptions::new(42).faults(SimFaults::lossless(100));
    /// assert_eq!(options.faults.short_receives, 100);
    /// ```
    #[must_use]
    pub fn faults(mut self, faults: SimFaults) -> Self {
        self.faults = faults;
        self
    }

    /// Sets the capacity of a connection in each direction, in bytes. The minimum is 1.
    ///
    /// ```
    /// use anello::sim::SimOptions;
    ///
    /// let options = SimOptions::new(42).socket_buffer_bytes(1024);
    /// assert_eq!(options.socket_buffer_bytes, 1024);
    /// ```
    #[must_use]
    pub fn socket_buffer_bytes(mut self, bytes: usize) -> Self {
        self.socket_buffer_bytes = bytes.max(1);
        self
    }
}

impl Default for SimOptions {
    fn default() -> Self {
        Self::new(0)
    }
}

/// Rates of the faults that a simulated kernel injects. Each rate is the probability, in per mille, that the fault
/// occurs when it can.
///
/// A rate above 900 is treated as 900, so that no operation fails indefinitely. Start from [`none`](Self::none),
/// [`lossless`](Self::lossless) or [`all`](Self::all), and change individual fields.
///
/// ```
/// use anello::sim::SimFaults;
///
/// let faults = SimFaults::none().short_sends(500).delays(100);
/// assert_eq!((faults.short_sends, faults.resets), (500, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimFaults {
    /// A receive returns only some of the available bytes, but at least one.
    pub short_receives: u16,
    /// A send fills only part of the available buffer space, but accepts at least one byte.
    pub short_sends: u16,
    /// A non-blocking send fails with `EAGAIN` even though the buffer has space. A zero-copy send fails because it is
    /// not supported, or because the limit on locked memory is reached.
    pub refused_sends: u16,
    /// A completion or a readiness event is delayed.
    pub delays: u16,
    /// Maximum delay in nanoseconds.
    pub max_delay_ns: u64,
    /// Completions or readiness events are reordered, or operations complete before the submissions of the current turn
    /// are consumed.
    pub reordering: u16,
    /// A receive fails with `ENOBUFS` even though the receive ring contains buffers.
    pub buffer_exhaustion: u16,
    /// An accept fails with `EMFILE`. The connection stays in the accept queue.
    pub descriptor_exhaustion: u16,
    /// A cancellation comes too late: the operation succeeds, or completes long after the cancellation.
    pub cancel_races: u16,
    /// A multishot operation terminates with a successful result.
    pub multishot_terminations: u16,
    /// A multishot receive that returns the last bytes before a reset does not see the reset, and keeps waiting, unless
    /// the peer has shut down its write half before.
    pub missed_resets: u16,
    /// A wait returns without any events, or an operation fails with `EINTR`.
    pub interruptions: u16,
    /// The completion queue is full, and the kernel keeps further completions until the next system call.
    pub completion_overflows: u16,
    /// The kernel has no memory to keep a completion: it drops the completion and reports the loss. Completions of
    /// accepts are never dropped.
    pub dropped_completions: u16,
    /// Readiness is reported even though no bytes are available, or a call fails with `EAGAIN` even though bytes are
    /// available (readiness is then reported again later).
    pub spurious_readiness: u16,
    /// The kernel consumes only some of the submissions.
    pub partial_submissions: u16,
    /// A completion or a readiness event is reported after the socket was closed and its slot was reused. No real
    /// kernel should do this.
    pub late_completions: u16,
    /// A connection is reset (`ECONNRESET`, then `EPIPE`).
    pub resets: u16,
    /// A connection attempt fails with `ECONNREFUSED` even though a listener exists.
    pub refused_connects: u16,
    /// A datagram is lost in transit.
    pub datagram_losses: u16,
    /// A datagram arrives twice.
    pub datagram_duplicates: u16,
    /// A datagram is delayed in transit, so that it can arrive after later ones.
    pub datagram_delays: u16,
}

setters!(SimFaults {
    short_receives: u16 = 100,
    short_sends: u16 = 100,
    refused_sends: u16 = 100,
    delays: u16 = 100,
    max_delay_ns: u64 = 1_000_000,
    reordering: u16 = 100,
    buffer_exhaustion: u16 = 100,
    descriptor_exhaustion: u16 = 100,
    cancel_races: u16 = 100,
    multishot_terminations: u16 = 100,
    missed_resets: u16 = 100,
    interruptions: u16 = 100,
    completion_overflows: u16 = 100,
    dropped_completions: u16 = 100,
    spurious_readiness: u16 = 100,
    partial_submissions: u16 = 100,
    late_completions: u16 = 100,
    resets: u16 = 100,
    refused_connects: u16 = 100,
    datagram_losses: u16 = 100,
    datagram_duplicates: u16 = 100,
    datagram_delays: u16 = 100,
});

impl SimFaults {
    /// Returns the rates of a kernel without faults.
    ///
    /// ```
    /// use anello::sim::SimFaults;
    ///
    /// let faults = SimFaults::none();
    /// assert_eq!((faults.delays, faults.resets), (0, 0));
    /// ```
    pub fn none() -> Self {
        Self::lossless(0)
    }

    /// Returns the given rate for each fault that connections must survive without data loss, and 0 for the others.
    /// Datagrams then arrive once and in order, unless the receiver's buffer is full.
    ///
    /// ```
    /// use anello::sim::SimFaults;
    ///
    /// let faults = SimFaults::lossless(100);
    /// assert_eq!((faults.delays, faults.resets, faults.datagram_losses), (100, 0, 0));
    /// ```
    pub fn lossless(per_mille: u16) -> Self {
        Self {
            short_receives: per_mille,
            short_sends: per_mille,
            refused_sends: per_mille,
            delays: per_mille,
            max_delay_ns: 100_000,
            reordering: per_mille,
            buffer_exhaustion: per_mille,
            descriptor_exhaustion: per_mille,
            cancel_races: per_mille,
            multishot_terminations: per_mille,
            missed_resets: per_mille,
            interruptions: per_mille,
            completion_overflows: per_mille,
            spurious_readiness: per_mille,
            partial_submissions: per_mille,
            late_completions: per_mille,
            dropped_completions: 0,
            resets: 0,
            refused_connects: 0,
            datagram_losses: 0,
            datagram_duplicates: 0,
            datagram_delays: 0,
        }
    }

    /// Returns fault rates: the given rate for each fault, except resets and refused connects, whose rate is one
    /// fiftieth of it, and dropped completions, whose rate is 0.
    ///
    /// ```
    /// use anello::sim::SimFaults;
    ///
    /// let faults = SimFaults::all(100);
    /// assert_eq!((faults.delays, faults.resets, faults.datagram_losses), (100, 2, 100));
    /// ```
    pub fn all(per_mille: u16) -> Self {
        // At the full rate, connections would not last long enough for the other faults to occur.
        let fatal_rate = per_mille.div_ceil(50);
        Self {
            resets: fatal_rate,
            refused_connects: fatal_rate,
            datagram_losses: per_mille,
            datagram_duplicates: per_mille,
            datagram_delays: per_mille,
            ..Self::lossless(per_mille)
        }
    }
}

impl Default for SimFaults {
    fn default() -> Self {
        Self::none()
    }
}
